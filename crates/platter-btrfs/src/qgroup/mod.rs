//! Quota groups: what the quota tree says, which subvolumes reach an extent, and the usage that follows.

mod limits;
mod uncounted;
mod sets;
mod stored;
mod groups;
mod roots;

pub use groups::{Groups, Moves};
pub use limits::CountingLimits;
pub use roots::{Resolver, RootsRule};
pub use sets::{Set, Sets};
pub use stored::{QuotaState, Stored, level_of};
pub use uncounted::Uncounted;
