//! Inodes that lost their last name and now their last user: all that they have becomes free.

use std::sync::atomic::Ordering;

use platter_vfs::{FileKind, Result};

use super::super::Inode;
use super::steps::{STEP_MAPPINGS, unmap_cost};
use crate::change::{Change, Cost, Unmapped};
use crate::fork::{AttrSet, ForkEdit, InodeEdit};
use crate::ondisk::{FileBlock, ForkFormat, ForkKind, FsBlock};

impl Inode {
    /// Frees what the inode holds, and the inode, unless that was tried before. It is on a list of inodes
    /// without a name until that is done: an error leaves it there, for the next mount.
    pub(in crate::ops) fn evict(&self) -> Result<()> {
        if self.is_deleted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.pages.truncate(0);
        self.release_all();
        let mut end = FileBlock(u64::MAX);
        let (has_blocks, has_attributes) = {
            let inode = &self.state.read().inode;
            let has_blocks = matches!(inode.data_format, ForkFormat::Extents | ForkFormat::Btree)
                && inode.data_extents > 0;
            (has_blocks, inode.attr_extents > 0)
        };
        let mut is_mapped = has_blocks;
        while is_mapped {
            let left = self.change(unmap_cost(), |change, edit, _| {
                forget_metadata(change, edit)?;
                change.unmap(edit, ForkKind::Data, FileBlock(0)..end, STEP_MAPPINGS)
            })?;
            match left {
                Unmapped::All => is_mapped = false,
                Unmapped::Before(before) => end = before,
            }
        }
        if has_attributes {
            let cost = self.xattr_cost(true)?;
            self.change(cost, |change, edit, _| {
                AttrSet::default().write(&mut change.groups, edit)
            })?;
        }
        let cost = Cost {
            extents: 1,
            inodes: 3,
            ..Cost::default()
        };
        let begun = self.superblock.begin(&cost)?;
        let mut state = self.state.write();
        let mut change = begun.enter();
        let mut edit = change.inode(self.number)?;
        change.remove_unlinked(&mut edit)?;
        change.free_inode(edit)?;
        state.sync = change.commit()?;
        Ok(())
    }
}

/// Blocks of metadata in the data fork, those of a directory or of a link's target, must not be replayed.
fn forget_metadata(change: &mut Change<'_>, edit: &InodeEdit) -> Result<()> {
    let geometry = change.geometry();
    let len = match edit.inode().kind {
        FileKind::Directory => geometry.dir_block_bytes(),
        FileKind::Symlink => geometry.block_bytes(),
        FileKind::Regular
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => return Ok(()),
    };
    let number = edit.inode().number;
    let mut fork = ForkEdit::open(&edit.fork(ForkKind::Data)?, number, geometry)?;
    let (mappings, _) = fork.contents(&mut change.groups)?;
    for mapping in mappings {
        for step in (0..mapping.count).step_by((len / geometry.block_bytes()) as usize) {
            let at = geometry.byte_offset(FsBlock(mapping.start + step));
            change.groups.blocks_mut().forget(at, len);
        }
    }
    Ok(())
}
