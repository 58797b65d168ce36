//! What no record has: links of directories, space of files, directories of groups, usage of owners.
//!
//! All blocks of the inodes that records changed are marked as in use: records of others may have freed
//! some that were theirs before (`ext4_fc_set_bitmaps_and_counters`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{DirCursor, Error, FileKind, Result};

use super::apply::Apply;
use super::{entries, ranges};
use crate::FsContext;
use crate::directory::{Directory, LINKS_MAX};
use crate::file::BlockMapRule;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{BlockMap, Piece};
use crate::ondisk::{GroupNr, Inode, InodeFlags, InodeNr};
use crate::quota::Charge;
use crate::xattr;

/// Counts what the records changed. None may follow.
pub(super) fn finish(apply: &mut Apply<'_>) -> Result<()> {
    for number in std::mem::take(&mut apply.doomed) {
        if let Some(inode) = apply.valid(number)?.filter(|inode| inode.links == 0) {
            entries::delete(apply, inode)?;
        }
    }
    for number in std::mem::take(&mut apply.incomplete) {
        if apply.find(number)?.is_some() {
            return Err(ranges::without_extents(number));
        }
    }
    for number in std::mem::take(&mut apply.relinked) {
        count_links(apply, number)?;
    }
    let touched = std::mem::take(&mut apply.touched);
    // No two inodes of a valid filesystem share a block.
    let mut blocks_left = apply.fs.geometry.blocks_count;
    for &number in touched.keys() {
        if let Some(inode) = apply.in_use(number)? {
            count_space(apply, inode, &mut blocks_left)?;
        }
    }
    for group in std::mem::take(&mut apply.groups) {
        count_directories(apply, group)?;
    }
    count_usage(apply, touched)
}

/// Counts the links of a directory: two, and one for each subdirectory.
fn count_links(apply: &mut Apply<'_>, number: InodeNr) -> Result<()> {
    let Some(inode) = apply.directory(number)? else {
        return Ok(());
    };
    let (fs, mut links) = (apply.fs, 2u32);
    let map = BlockMap::decode(fs, &inode)?;
    let mut failure: Result<()> = Ok(());
    Directory::open(fs, &inode, &map)?.read(DirCursor::START, &mut |entry| {
        if entry.name.is_dot_or_dotdot() {
            return ControlFlow::Continue(());
        }
        let kind = match entry.kind {
            Some(kind) => Ok(Some(kind)),
            None => kind_of(fs, entry.id.number),
        };
        match kind {
            Ok(kind) => links += u32::from(kind == Some(FileKind::Directory)),
            Err(error) => {
                failure = Err(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    failure?;
    let links = if links > LINKS_MAX { 1 } else { links };
    apply.edit(number, |inode| inode.links = links)
}

/// Marks the blocks of an inode, and counts them in its `i_blocks`, of which there are
/// `blocks_left` at most.
fn count_space(apply: &mut Apply<'_>, inode: Inode, blocks_left: &mut u64) -> Result<()> {
    let fs = apply.fs;
    let geometry = &fs.geometry;
    let is_mapped = matches!(inode.kind, FileKind::Regular | FileKind::Directory)
        || inode.kind == FileKind::Symlink && !inode.has_target_inside(geometry);
    let has_extents = inode.flags.contains(InodeFlags::EXTENTS);
    // The records change neither inline data nor indirect blocks.
    if inode.flags.contains(InodeFlags::INLINE_DATA) || is_mapped && !has_extents {
        return Ok(());
    }
    let ratio = u64::from(geometry.cluster_blocks);
    let mut clusters = u64::from(inode.xattr_block.is_some());
    if let Some(block) = inode.xattr_block {
        apply.mark(block, 1)?;
    }
    let mut last_cluster = None;
    let mut marked: Result<()> = Ok(());
    BlockMap::decode(fs, &inode)?.visit(fs, &mut |piece| {
        let (first, count) = match piece {
            Piece::Node(_, block) => (Some(block), 1),
            Piece::Run(run) => (run.backing.start(), u64::from(run.count)),
        };
        let Some(first) = first else {
            return ControlFlow::Continue(());
        };
        let (start, last) = (first.0 / ratio, (first.0 + count - 1) / ratio);
        clusters += last - start + u64::from(last_cluster != Some(start));
        if let Piece::Run(_) = piece {
            last_cluster = Some(last);
        }
        marked = if let Some(left) = blocks_left.checked_sub(count) {
            *blocks_left = left;
            apply.mark(first, count)
        } else {
            let locus = Locus::inode(u64::from(inode.number.get()));
            Err(Corrupt::new(locus, BlockMapRule::TooManyBlocks).into())
        };
        match marked {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    marked?;
    let values = match xattr::values_outside(fs, &inode) {
        Err(Error::Corrupt(_)) => Vec::new(),
        values => values?,
    };
    let cluster_sectors = u64::from(geometry.block_bytes >> 9) * ratio;
    let values = values.into_iter();
    let of_values: u64 = values
        .map(|size_bytes| xattr::owner_sectors(fs, size_bytes.into()))
        .sum();
    let sectors = clusters.saturating_mul(cluster_sectors) + of_values;
    apply.ensure(STORE_CREDITS)?;
    inode::store(fs, &mut apply.handle, &Inode { sectors, ..inode })
}

/// Counts the directories of a group.
fn count_directories(apply: &mut Apply<'_>, group: GroupNr) -> Result<()> {
    let mut count = 0;
    for number in apply.space.inodes_in_use(apply.fs, group)? {
        let inode = match apply.in_use(number) {
            Err(Error::Corrupt(_)) => None,
            inode => inode?,
        };
        count += u32::from(inode.is_some_and(|inode| inode.kind == FileKind::Directory));
    }
    apply.ensure(2)?;
    let (fs, handle) = (apply.fs, &mut apply.handle);
    apply.space.set_directories(fs, handle, group, count)
}

/// Adds what the inodes count for now to the usage of their owners, instead of what they did.
fn count_usage(apply: &mut Apply<'_>, before: BTreeMap<InodeNr, Option<Charge>>) -> Result<()> {
    let Some((mut files, table)) = apply.quota_files.take().zip(apply.fs.quotas()) else {
        return Ok(());
    };
    for (number, before) in before {
        let after = apply.charge(number)?;
        let Some(nothing) = after.or(before).map(|charge| charge.nothing()) else {
            continue;
        };
        let after = after.unwrap_or(nothing);
        for (kind, id) in table.missing(&after.owners) {
            let Some(file) = files.file_mut(kind) else {
                continue;
            };
            apply.ensure(file.add_credits())?;
            let (fs, handle) = (apply.fs, &mut apply.handle);
            file.add_owner(fs, apply.space, handle, table, (kind, id))?;
        }
        apply.ensure(table.credits())?;
        table.change(&mut apply.handle, &before.unwrap_or(nothing), &after, 0)?;
    }
    Ok(())
}

/// Returns the type of the inode with this number, if it is valid.
fn kind_of(fs: &FsContext, number: u64) -> Result<Option<FileKind>> {
    let Some(number) = u32::try_from(number).ok().and_then(InodeNr::new) else {
        return Ok(None);
    };
    match inode::find(fs, number) {
        Ok(inode) => Ok(inode.map(|inode| inode.kind)),
        Err(Error::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
