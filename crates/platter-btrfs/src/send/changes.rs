//! The inodes that differ between two subvolumes.

use platter_vfs::Result;
use platter_vfs::subvolumes::SendOptions;

use super::side::Side;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::tree::compare;

/// What differs of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// Its number.
    pub(super) number: u64,
    /// Extended attributes.
    pub(super) xattrs: bool,
    /// Extents.
    pub(super) extents: bool,
}

impl Change {
    fn of(number: u64) -> Self {
        Self {
            number,
            xattrs: false,
            extents: false,
        }
    }
}

/// Passes the inodes that differ to `sink`, in order of their numbers; all, without an older subvolume. Ends early where
/// the stream is cancelled.
pub(super) fn each_change(
    old: Option<&Side<'_>>,
    new: &Side<'_>,
    options: &SendOptions,
    sink: &mut dyn FnMut(Change) -> Result<()>,
) -> Result<()> {
    let mut current: Option<Change> = None;
    compare(
        &new.context.blocks,
        old.map(Side::tree),
        new.tree(),
        &|| options.refuse_if_cancelled(),
        &mut |difference| {
            let (number, kind) = (difference.key.object, difference.key.kind);
            let is_of_inode = matches!(
                kind,
                ItemKind::INODE_ITEM
                    | ItemKind::INODE_REF
                    | ItemKind::INODE_EXTREF
                    | ItemKind::XATTR_ITEM
                    | ItemKind::EXTENT_DATA
            );
            if !is_of_inode || !(FIRST_FREE_OBJECT..=LAST_FREE_OBJECT).contains(&number) {
                return Ok(());
            }
            if let Some(done) = current.filter(|change| change.number != number) {
                current = None;
                sink(done)?;
            }
            let change = current.get_or_insert(Change::of(number));
            change.xattrs |= kind == ItemKind::XATTR_ITEM;
            change.extents |= kind == ItemKind::EXTENT_DATA;
            Ok(())
        },
    )?;
    current.map_or(Ok(()), sink)
}
