//! Subvolumes in the root tree and the UUID tree: root items, names, UUIDs, the default, and those that are deleted.

mod names;
mod roots;
mod uuids;

pub use names::{add_name, has_children, remove_name};
pub use roots::{
    change_root, clear_dead, clear_progress, insert_root, mark_dead, next_id, set_default,
};
pub use uuids::{add_uuid, remove_uuid};
