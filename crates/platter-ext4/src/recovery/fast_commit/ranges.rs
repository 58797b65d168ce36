//! Records of the blocks of files.

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, FileKind, Result};

use super::apply::{Apply, Mapped};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, BlockMap, INLINE_DATA_NAME, MapChange, Progress, Run};
use crate::ondisk::jbd2::fast_commit::{AddRange, FastCommitRule};
use crate::ondisk::xattr::remove_from_inode;
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};

pub(super) fn add(apply: &mut Apply<'_>, range: &AddRange) -> Result<()> {
    let end = range.first.checked_add(range.len);
    let may_be_mapped = apply.space.may_hold_contents(range.start, range.len.into());
    let Some(end) = end.filter(|_| may_be_mapped) else {
        let locus = Locus::block(range.start.0).of_inode(u64::from(range.inode.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Range).into());
    };
    move_contents_out(apply, range.inode)?;
    let Some(mut file) = mapped(apply, range.inode)? else {
        return Ok(());
    };
    let wanted = Run {
        first: range.first,
        count: range.len,
        backing: if range.unwritten {
            Backing::Unwritten(range.start)
        } else {
            Backing::Written(range.start)
        },
    };
    let mut at = range.first;
    while at < end {
        let found = file.map.lookup(apply.fs, at)?;
        let found = found.truncated(end.0 - at.0);
        let wanted = wanted.starting_at(at).truncated(found.count);
        at = found.end();
        if found.backing == wanted.backing {
            continue;
        }
        if found.backing.start() == wanted.backing.start() {
            convert(apply, &mut file, found.first..found.end(), range.unwritten)?;
            continue;
        }
        if found.backing != Backing::Hole {
            unmap(apply, &mut file, found.first..found.end())?;
        }
        insert(apply, &mut file, wanted)?;
    }
    apply.mark(range.start, u64::from(range.len))
}

/// Begins the mapping of a file with inline data. The record of its inode, which has it no longer,
/// comes after those of its blocks.
fn move_contents_out(apply: &mut Apply<'_>, number: InodeNr) -> Result<()> {
    let Some(mut inode) = apply.find_or_unnamed(number)?.filter(is_inline) else {
        return Ok(());
    };
    apply.touch(number)?;
    remove_from_inode(&mut inode.tail, INLINE_DATA_NAME.0, INLINE_DATA_NAME.1);
    inode.flags.remove(InodeFlags::INLINE_DATA);
    inode.flags.insert(InodeFlags::EXTENTS);
    let _ = BlockMap::begin(apply.fs, &mut inode);
    apply.ensure(STORE_CREDITS)?;
    inode::store(apply.fs, &mut apply.handle, &inode)
}

pub(super) fn delete(
    apply: &mut Apply<'_>,
    number: InodeNr,
    first: FileBlock,
    len: u32,
) -> Result<()> {
    let inode = apply.find_or_unnamed(number)?;
    if inode.as_ref().is_some_and(is_inline) {
        return Ok(());
    }
    let Some(mut file) = mapped(apply, number)? else {
        return Ok(());
    };
    let end = FileBlock(first.0.saturating_add(len));
    unmap(apply, &mut file, first..end)
}

fn insert(apply: &mut Apply<'_>, file: &mut Mapped, mut run: Run) -> Result<()> {
    while run.count > 0 {
        let count = change_map(apply, file, |map, change| map.insert(change, run))?;
        run = run.starting_at(FileBlock(run.first.0.saturating_add(count.max(1))));
    }
    Ok(())
}

fn convert(
    apply: &mut Apply<'_>,
    file: &mut Mapped,
    mut blocks: Range<FileBlock>,
    unwritten: bool,
) -> Result<()> {
    while let Progress::More(start) = change_map(apply, file, |map, change| {
        map.convert(change, blocks.clone(), unwritten)
    })? {
        blocks.start = start;
    }
    Ok(())
}

pub(super) fn unmap(
    apply: &mut Apply<'_>,
    file: &mut Mapped,
    mut blocks: Range<FileBlock>,
) -> Result<()> {
    while let Progress::More(end) = change_map(apply, file, |map, change| {
        map.remove(change, blocks.clone())
    })? {
        blocks.end = end;
    }
    Ok(())
}

/// Takes one step of a change of a map, and stores the inode.
fn change_map<'f, R>(
    apply: &mut Apply<'f>,
    file: &mut Mapped,
    change: impl FnOnce(&mut BlockMap, &mut MapChange<'_, 'f>) -> Result<R>,
) -> Result<R> {
    apply.ensure(file.map.step_credits() + STORE_CREDITS)?;
    let mut step = MapChange {
        fs: apply.fs,
        space: apply.space,
        handle: &mut apply.handle,
        inode: &mut file.inode,
    };
    let result = change(&mut file.map, &mut step)?;
    inode::store(apply.fs, &mut apply.handle, &file.inode)?;
    Ok(result)
}

/// Returns the mapping of a file for changes; `None` if there is no such file, or it has no extents: unless it is
/// deleted, or the record of another inode of this number follows, the replay fails at its end.
fn mapped(apply: &mut Apply<'_>, number: InodeNr) -> Result<Option<Mapped>> {
    let Some(inode) = apply.find_or_unnamed(number)? else {
        return Ok(None);
    };
    if !inode.flags.contains(InodeFlags::EXTENTS) {
        apply.incomplete.insert(number);
        return Ok(None);
    }
    apply.touch(number)?;
    Mapped::new(apply.fs, inode).map(Some)
}

/// The error of blocks for a file that maps its blocks otherwise.
pub(super) fn without_extents(number: InodeNr) -> Error {
    let locus = Locus::inode(u64::from(number.get()));
    Corrupt::new(locus, FastCommitRule::NoExtents).into()
}

fn is_inline(inode: &Inode) -> bool {
    inode.kind == FileKind::Regular && inode.flags.contains(InodeFlags::INLINE_DATA)
}
