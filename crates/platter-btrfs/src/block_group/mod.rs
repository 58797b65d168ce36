//! Block groups: which space is in use, and the items that say so.
//!
//! The item of a group is written only if it does not hold what it should: `used` often has its old value
//! again at a commit, and writing it would only copy tree blocks.

mod persisted;
mod ranges;
mod group;
mod load;
mod table;
#[cfg(test)]
mod tests;

pub use group::{BlockGroup, SpaceUse};
pub use load::{FreeSpaceForm, load_free_space, load_groups};
pub use persisted::{Insertion, PendingItem, Persisted, Update};
pub use ranges::Ranges;
pub use table::{BlockGroupCounters, BlockGroups, SpaceRule};
