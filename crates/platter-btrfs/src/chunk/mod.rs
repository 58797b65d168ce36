//! From logical addresses to devices: the map of chunks, the profiles' geometry, parity, reading
//! of any copy, and writing.

mod layout;
mod map;
mod members;
pub mod parity;
mod store;
mod rows;
mod write;
mod discard;
mod mirror;
#[cfg(test)]
pub(crate) mod tests;

pub use discard::discard;
pub use layout::{Placement, Segment};
pub(crate) use map::wait_until_unshared;
pub use map::{ChunkMap, ChunkMapRule};
pub use members::{Member, Members};
pub use mirror::MirrorDevice;
pub use rows::{
    FindVerifier, ParityCheck, Restored, RowDoubts, RowVerifier, Unverified, WrongParity,
};
pub use store::{ChunkStore, Source};
