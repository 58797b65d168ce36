//! Names listed in the order of their entries. The cursor after an entry is one more than the entry's
//! position in units of 8 bytes, which stays when the directory changes its form or other names.

use std::ops::ControlFlow;

use platter_ondisk::Corrupt;
use platter_vfs::{DirCursor, DirEntry, DirSink, Error, FileKind, Name, Result};

use super::{Directory, DirectoryRule, Form};
use crate::file::ForkRule;
use crate::mapping::Backing;
use crate::ondisk::dir::data::{DataKind, Region, dot_offset, dotdot_offset};
use crate::ondisk::dir::{self, DataPointer};
use crate::ondisk::{FileBlock, FsBlock, InodeNr};

/// Blocks of entries that are read ahead at once.
const READ_AHEAD_BLOCKS: u64 = 64;

/// Passes the entries from `from` on to `sink`, until it breaks.
///
/// What breaks a rule is left out, and the listing goes on where it can; it ends with an error
/// then.
pub fn read(directory: &Directory<'_>, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    match directory.form()? {
        Form::Short => list_short(directory, from, sink),
        Form::Block => list_single(directory, from, sink),
        Form::Leaf | Form::Node => list_blocks(directory, from, sink),
    }
}

fn list_short(directory: &Directory<'_>, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    let geometry = directory.context.geometry();
    let short = directory.short()?;
    let own = [
        (dot_offset(geometry), &b"."[..], directory.inode.number),
        (dotdot_offset(geometry), b"..", short.parent),
    ];
    for (offset, name, inode) in own {
        let kind = Some(FileKind::Directory);
        if pass(directory, from, 0, offset, (name, inode, kind), sink)?.is_break() {
            return Ok(());
        }
    }
    for entry in short.entries(geometry) {
        let entry = entry.map_err(|rule| Corrupt::new(directory.locus(), rule))?;
        let named = (entry.name, entry.inode, entry.kind);
        if pass(directory, from, 0, entry.offset.into(), named, sink)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn list_single(directory: &Directory<'_>, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    let mut failure = None;
    let _ = list_block(directory, 0, DataKind::Single, from, sink, &mut failure)?;
    failure.map_or(Ok(()), Err)
}

fn list_blocks(directory: &Directory<'_>, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    let geometry = directory.context.geometry();
    let per_block = u64::from(geometry.dir_block_blocks());
    let units = u64::from(geometry.dir_block_bytes() / 8);
    let size = directory
        .inode
        .size_bytes
        .div_ceil(geometry.dir_block_bytes().into());
    let end = size.saturating_mul(per_block);
    if end > dir::leaf_start(geometry).0 {
        return Err(directory.corrupt(DirectoryRule::Size));
    }
    let mut left = directory.inode.blocks;
    let mut failure = None;
    let mut ahead = 0;
    let mut block = from.0 / units;
    while block < size {
        let first = FileBlock(block.saturating_mul(per_block));
        let run = directory.map.lookup(directory.context, first)?;
        let Backing::Written(start) = run.backing else {
            // A hole that begins within a block is that block's.
            block = (run.end().0 / per_block).max(block + 1);
            continue;
        };
        let Some(rest) = left.checked_sub(per_block) else {
            let corrupt = Corrupt::new(directory.locus(), ForkRule::TooManyBlocks);
            return Err(corrupt.into());
        };
        left = rest;
        if per_block == 1 && block >= ahead {
            let count = run.count.min(READ_AHEAD_BLOCKS).min(size - block);
            let blocks = u32::try_from(count).unwrap_or(1);
            directory.context.read_ahead(FsBlock(start), blocks);
            ahead = block + count;
        }
        let number = u32::try_from(block).unwrap_or(u32::MAX);
        let listed = list_block(directory, number, DataKind::Data, from, sink, &mut failure)?;
        if listed.is_break() {
            return Ok(());
        }
        block += 1;
    }
    failure.map_or(Ok(()), Err)
}

/// Lists one block of entries. What breaks a rule goes to `failure`; a device that fails ends the
/// listing.
fn list_block(
    directory: &Directory<'_>,
    number: u32,
    kind: DataKind,
    from: DirCursor,
    sink: &mut DirSink<'_>,
    failure: &mut Option<Error>,
) -> Result<ControlFlow<()>> {
    let block = match directory.data_block(number, kind) {
        Ok(Some(block)) => block,
        Ok(None) if kind == DataKind::Data => return Ok(ControlFlow::Continue(())),
        Ok(None) => return Err(directory.corrupt(DirectoryRule::Missing)),
        Err(error @ Error::Corrupt(_)) => {
            failure.get_or_insert(error);
            return Ok(ControlFlow::Continue(()));
        }
        Err(error) => return Err(error),
    };
    let data = directory.view_data(&block, kind)?;
    for region in data.regions(directory.context.geometry()) {
        let entry = match region {
            Ok(Region::Entry(entry)) => entry,
            Ok(Region::Free { .. }) => continue,
            Err(rule) => {
                let error = Corrupt::new(directory.locus(), rule);
                failure.get_or_insert(error.into());
                break;
            }
        };
        let named = (entry.name, entry.inode, entry.kind);
        if pass(directory, from, number, entry.offset, named, sink)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Passes an entry to `sink` unless it is before `from`.
fn pass(
    directory: &Directory<'_>,
    from: DirCursor,
    block: u32,
    offset: usize,
    (name, inode, kind): (&[u8], InodeNr, Option<FileKind>),
    sink: &mut DirSink<'_>,
) -> Result<ControlFlow<()>> {
    let pointer = DataPointer::new(directory.context.geometry(), block, offset);
    let position = u64::from(pointer.map_or(u32::MAX, |pointer| pointer.0));
    if position < from.0 {
        return Ok(ControlFlow::Continue(()));
    }
    Ok(sink(DirEntry {
        name: Name::new(name)?,
        id: inode.id(),
        kind,
        next: DirCursor(position + 1),
    }))
}
