//! Directories: their entries against the inodes they name. Spec: `xfs/directories`.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{ControlFlow, Range};
use std::rc::Rc;

use platter_ondisk::Locus;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::{Checker, DirectoryUseRule, Flow, dir_blocks, dir_index, locus_of};
use crate::directory::{Directory, Form};
use crate::file::ForkRule;
use crate::inode::InodeNumberRule;
use crate::mapping::ForkMap;
use crate::ondisk::dir;
use crate::ondisk::dir::data::DataKind;
use crate::ondisk::{Inode, InodeNr};

/// Directories between two reports of progress.
const REPORT_EVERY: usize = 64;

/// Corrupt blocks of one directory after which the rest is not read.
const CORRUPT_BLOCKS_MAX: u32 = 32;

/// What was read of a directory.
pub(super) struct DirScan<'a> {
    pub(super) directory: &'a Directory<'a>,
    pub(super) number: InodeNr,
    pub(super) size: u64,
    /// All that was read so far could be.
    pub(super) is_whole: bool,
    /// Hash and position of each entry.
    pub(super) entries: Vec<(u32, u32)>,
    /// The same from the index.
    pub(super) leaves: Vec<(u32, u32)>,
    /// The longest free region of each block of entries.
    pub(super) bests: Vec<(u32, u16)>,
    /// Extents of the fork, by first block and the one after the last.
    pub(super) runs: Rc<[(u64, u64)]>,
    /// Blocks of entries that are corrupt.
    pub(super) corrupt: u32,
}

impl DirScan<'_> {
    pub(super) fn locus(&self) -> Locus {
        locus_of(self.number)
    }
}

/// Numbers of the directory blocks, of `per_block` blocks each, in a part of a fork with these extents.
pub(super) fn block_numbers(
    runs: &[(u64, u64)],
    part: Range<u64>,
    per_block: u64,
) -> impl Iterator<Item = u64> {
    let mut next = 0;
    runs.iter().flat_map(move |&(first, after)| {
        let (first, after) = (first.max(part.start), after.min(part.end));
        let numbers = if first < after {
            (first / per_block).max(next)..after.div_ceil(per_block)
        } else {
            0..0
        };
        next = next.max(numbers.end);
        numbers
    })
}

/// Reads all directories.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let directories = std::mem::take(&mut checker.directories);
    let count = directories.len();
    for (nth, &number) in directories.iter().enumerate() {
        if nth % REPORT_EVERY == 0 {
            checker
                .report
                .progress("directories", nth as u64, count as u64)?;
        }
        check_directory(checker, number)?;
    }
    checker.report.count("directories", count as u64);
    checker.directories = directories;
    Ok(())
}

fn check_directory(checker: &mut Checker<'_>, number: InodeNr) -> Flow {
    // A corrupt one was reported.
    let Some(inode) = checker.inode(number) else {
        checker.misses_entries = true;
        return Ok(());
    };
    let locus = locus_of(number);
    let context = checker.context;
    let Ok(map) = ForkMap::of_data(context, &inode) else {
        checker.misses_entries = true;
        return Ok(());
    };
    let mut runs = Vec::new();
    let read = map.mappings(context, &mut |mapping| {
        runs.push((mapping.offset.0, mapping.end().0));
        Ok(ControlFlow::Continue(()))
    });
    if read.is_err() {
        // Reported with the fork.
        checker.misses_entries = true;
        return Ok(());
    }
    let opened = Directory::open(context, &inode, &map);
    let Some(directory) = checker.tolerate("directory", locus, opened)? else {
        return Ok(());
    };
    let form = directory.form();
    let Some(form) = checker.tolerate("directory", locus, form)? else {
        checker.misses_entries = true;
        return Ok(());
    };
    let mut scan = DirScan {
        directory: &directory,
        number,
        size: inode.size_bytes,
        is_whole: true,
        entries: Vec::new(),
        leaves: Vec::new(),
        bests: Vec::new(),
        runs: runs.into(),
        corrupt: 0,
    };
    if form == Form::Short {
        return check_short(checker, &inode, &mut scan);
    }
    let geometry = context.geometry();
    let per_block = u64::from(geometry.dir_block_blocks());
    let data = 0..dir::leaf_start(geometry).0;
    let cost = scan.runs.iter().map(|&(first, after)| after - first);
    let cost = cost.fold(0, u64::saturating_add);
    let Some(left) = checker.blocks_left.checked_sub(cost) else {
        checker.misses_entries = true;
        return checker.found(locus, ForkRule::TooManyBlocks);
    };
    checker.blocks_left = left;
    let kind = if form == Form::Block {
        DataKind::Single
    } else {
        DataKind::Data
    };
    let runs = Rc::clone(&scan.runs);
    let ends = runs.iter().filter(|run| run.0 < data.end);
    let end = ends.map(|run| run.1.min(data.end)).max().unwrap_or(0);
    let end = end.div_ceil(per_block);
    if end.saturating_mul(geometry.dir_block_bytes().into()) != inode.size_bytes {
        checker.found(locus, DirectoryUseRule::Size)?;
    }
    let mut first = None;
    for block in block_numbers(&runs, data, per_block) {
        first.get_or_insert(block);
        if scan.corrupt >= CORRUPT_BLOCKS_MAX {
            break;
        }
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        dir_blocks::check(checker, &mut scan, block, kind)?;
    }
    if scan.is_whole && first != Some(0) {
        checker.found(locus, DirectoryUseRule::Dot)?;
    }
    dir_index::check(checker, &mut scan, form)
}

fn check_short(checker: &mut Checker<'_>, inode: &Inode, scan: &mut DirScan<'_>) -> Flow {
    let locus = scan.locus();
    let short = scan.directory.short();
    let Some(short) = checker.tolerate("short form directory", locus, short)? else {
        checker.misses_entries = true;
        return Ok(());
    };
    checker.dotdots.insert(inode.number, short.parent);
    let mut names = HashSet::new();
    let is_wide = |inode: InodeNr| u32::try_from(inode.get()).is_err();
    let mut wide = u32::from(is_wide(short.parent));
    for entry in short.entries(checker.context.geometry()) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(rule) => {
                checker.misses_entries = true;
                return checker.found(locus, rule);
            }
        };
        wide += u32::from(is_wide(entry.inode));
        if !names.insert(scan.directory.folded(entry.name)) {
            checker.found(locus, DirectoryUseRule::DuplicateName)?;
        }
        if entry.name == b"." || entry.name == b".." {
            checker.found(locus, DirectoryUseRule::StrayDot)?;
            continue;
        }
        take_entry(checker, scan, entry.name, entry.inode, entry.kind, None)?;
    }
    if wide != u32::from(short.wide_count) {
        checker.found(locus, DirectoryUseRule::WideCount)?;
    }
    Ok(())
}

/// Takes an entry. `position` is its index in the first block.
pub(super) fn take_entry(
    checker: &mut Checker<'_>,
    scan: &DirScan<'_>,
    name: &[u8],
    inode: InodeNr,
    kind: Option<FileKind>,
    position: Option<u32>,
) -> Flow {
    let locus = scan.locus();
    let has_ftype = checker.context.geometry().features.has_ftype();
    match (position, name) {
        (Some(0), name) if name != b"." => checker.found(locus, DirectoryUseRule::Dot)?,
        (Some(1), name) if name != b".." => checker.found(locus, DirectoryUseRule::DotDot)?,
        _ => {}
    }
    let is_directory = kind == Some(FileKind::Directory) || !has_ftype;
    match name {
        b"." => {
            if position != Some(0) {
                return checker.found(locus, DirectoryUseRule::StrayDot);
            }
            if inode != scan.number {
                checker.found(locus, DirectoryUseRule::Dot)?;
            }
            if !is_directory {
                checker.found(locus, DirectoryUseRule::FileType)?;
            }
            return Ok(());
        }
        b".." => {
            if position != Some(1) {
                return checker.found(locus, DirectoryUseRule::StrayDot);
            }
            if !is_directory {
                checker.found(locus, DirectoryUseRule::FileType)?;
            }
            checker.dotdots.insert(scan.number, inode);
            return Ok(());
        }
        _ => {}
    }
    let of_directory = checker.inodes.get(scan.number).copied().unwrap_or_default();
    let root = checker.context.superblock.root_inode;
    let special = checker.context.superblock.metadir_inode;
    let Some(state) = checker.inodes.get_mut(inode) else {
        if checker.is_blind {
            return Ok(());
        }
        return checker.found(locus, InodeNumberRule::NoChunk);
    };
    let Some(found_kind) = state.kind else {
        if state.is_corrupt {
            return Ok(());
        }
        return checker.found(locus, InodeNumberRule::Deleted);
    };
    state.found = state.found.saturating_add(1);
    let crosses = state.is_metadata != of_directory.is_metadata;
    if has_ftype && kind != Some(found_kind) {
        checker.found(locus, DirectoryUseRule::FileType)?;
    }
    if crosses {
        checker.found(locus, InodeNumberRule::Metadata)?;
    }
    if found_kind == FileKind::Directory {
        let is_first = inode != root
            && Some(inode) != special
            && checker.parents.insert(inode, scan.number).is_none();
        if !is_first {
            checker.found(locus, DirectoryUseRule::SecondName)?;
        }
    }
    if checker.context.geometry().features.has_parent() {
        let sum = parent_hash(inode, scan.number, of_directory.generation, name);
        let entry = checker.parent_sums.entry(inode).or_default();
        *entry = entry.wrapping_add(sum);
    }
    Ok(())
}

/// A number for an entry, which a pointer to its directory has as well.
pub(super) fn parent_hash(inode: InodeNr, parent: InodeNr, generation: u32, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (inode.get(), parent.get(), generation, name).hash(&mut hasher);
    hasher.finish()
}
