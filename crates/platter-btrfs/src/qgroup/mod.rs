//! Quota groups: what the quota tree says, which subvolumes reach an extent, and the usage that follows.

mod limits;
mod uncounted;
mod sets;
mod stored;
mod limited;
mod groups;
mod roots;

pub use groups::{DirtyGroup, Groups, Moves};
pub use limited::Exceeded;
pub use limits::CountingLimits;
pub use roots::{Resolver, RootsRule};
pub use sets::{Set, Sets};
pub use stored::{QuotaState, Stored, level_of};
pub use uncounted::Uncounted;
