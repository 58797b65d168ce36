//! Delayed references: changes of the reference counts of extents, queued in memory by the running
//! transaction and applied to the extent tree later.
//!
//! So a copy of a tree block changes no other tree at once, and an extent that is referred to and then
//! no more, or the reverse, changes none at all. Each extent has one *head* with the sum of what is queued,
//! and its references. Heads are in shards by address, each with a lock of its own.

pub mod slab;
mod radix;
pub mod rbtree;
pub mod layout;
pub mod index;
#[cfg(feature = "bench")]
mod chosen;
mod reference;
mod walks;
mod queue;
mod running;
mod shared;
#[cfg(test)]
mod tests;

#[cfg(feature = "bench")]
pub use chosen::{ChosenIndex, IndexKind};
pub use queue::{
    Change, DelayedRefCounters, Discarded, ExtentKind, Freed, PRESENT_BUCKETS, RefQueue,
};
pub use reference::{Action, ExtentOp, RefKey};
pub use running::{FinishedHead, RunStep, Running};
pub use shared::{Busy, DelayedRefs, PendingState};

/// The heads of a mounted filesystem.
#[cfg(not(feature = "bench"))]
pub type Heads = index::TreeIndex<layout::LineHead>;
/// The heads of a mounted filesystem, in the index that its options choose.
#[cfg(feature = "bench")]
pub type Heads = ChosenIndex;
