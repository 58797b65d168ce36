//! The hash index of a directory, and where it has free space, compared with its entries. Spec:
//! `xfs/directories`, `xfs/dabtrees`.

use std::collections::HashSet;
use std::rc::Rc;

use platter_ondisk::Corrupt;
use platter_vfs::check::Checking as _;

use super::directories::{DirScan, block_numbers};
use super::{Checker, DirectoryUseRule, Flow, HashTreeRule, dir_blocks};
use crate::directory::Form;
use crate::ondisk::da::{DA_LEVELS_MAX, DaKind, DaLinks, DaNode, DaNodeRule};
use crate::ondisk::dir::data::DataKind;
use crate::ondisk::dir::free::{DirFree, NO_FREE};
use crate::ondisk::dir::leaf::DirLeaf;
use crate::ondisk::dir::{self, DataPointer};
use crate::ondisk::{BlockKind, FileBlock};

/// A block of a hash tree as its parent and its neighbours see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DaBlock {
    /// Its number in the fork.
    pub(super) block: u32,
    pub(super) links: DaLinks,
    /// Its greatest hash; `None` if it is empty.
    pub(super) last: Option<u32>,
}

/// The chains of blocks of a hash tree, by level.
#[derive(Debug, Default)]
pub(super) struct Chains {
    levels: [Option<(u32, Option<u32>)>; DA_LEVELS_MAX as usize + 1],
    seen: HashSet<u32>,
}

impl Chains {
    /// Adds the next block of a level. Returns whether its links are those of its neighbours.
    pub(super) fn add(&mut self, level: u16, block: &DaBlock) -> bool {
        let Some(last) = self.levels.get_mut(usize::from(level)) else {
            return false;
        };
        let previous = last.replace((block.block, block.links.next));
        match previous {
            None => block.links.previous.is_none(),
            Some((before, next)) => {
                block.links.previous == Some(before) && next == Some(block.block)
            }
        }
    }

    /// Whether a block was not added before.
    pub(super) fn is_new(&mut self, block: u32) -> bool {
        self.seen.insert(block)
    }

    /// Whether the last block of each level names no next one.
    pub(super) fn end(&self) -> bool {
        let open =
            |level: &Option<(u32, Option<u32>)>| level.is_some_and(|(_, next)| next.is_some());
        !self.levels.iter().any(open)
    }
}

/// Compares the index of a directory with its entries, once all of those are known.
pub(super) fn check(checker: &mut Checker<'_>, scan: &mut DirScan<'_>, form: Form) -> Flow {
    match form {
        Form::Short => return Ok(()),
        Form::Block => {}
        Form::Leaf => check_only_leaf(checker, scan)?,
        Form::Node => {
            let mut chains = Chains::default();
            let root = leaf_number(checker, 0);
            check_tree(checker, scan, root, None, &mut chains)?;
            if scan.is_whole && !chains.end() {
                checker.found(scan.locus(), HashTreeRule::Sibling)?;
            }
            let geometry = checker.context.geometry();
            let (start, end) = (dir::leaf_start(geometry).0, dir::free_start(geometry).0);
            let per_block = u64::from(geometry.dir_block_blocks());
            let mapped = block_numbers(&scan.runs, start..end, per_block).count();
            if scan.is_whole && mapped != chains.seen.len() {
                checker.found(scan.locus(), HashTreeRule::Unreached)?;
            }
            check_free_index(checker, scan)?;
        }
    }
    if !scan.is_whole {
        return Ok(());
    }
    scan.entries.sort_unstable();
    scan.leaves.sort_unstable();
    if scan.entries != scan.leaves {
        checker.found(scan.locus(), DirectoryUseRule::Index)?;
    }
    let kind = if form == Form::Block {
        DataKind::Single
    } else {
        DataKind::Data
    };
    check_duplicates(checker, scan, kind)
}

/// Names with one hash have to differ.
fn check_duplicates(checker: &mut Checker<'_>, scan: &DirScan<'_>, kind: DataKind) -> Flow {
    let geometry = checker.context.geometry();
    let same_hash = scan.entries.chunk_by(|one, next| one.0 == next.0);
    for group in same_hash.filter(|group| group.len() > 1) {
        let mut names = HashSet::new();
        for &(_, pointer) in group {
            let (number, offset) = DataPointer(pointer).split(geometry);
            let Ok(Some(block)) = scan.directory.data_block(number, kind) else {
                continue;
            };
            let Ok(data) = scan.directory.view_data(&block, kind) else {
                continue;
            };
            let Ok(entry) = data.entry_at(offset, geometry) else {
                continue;
            };
            if !names.insert(scan.directory.folded(entry.name)) {
                checker.found(scan.locus(), DirectoryUseRule::DuplicateName)?;
            }
        }
    }
    Ok(())
}

/// The number in the fork of the leaf area's block at this distance.
fn leaf_number(checker: &Checker<'_>, distance: u64) -> u32 {
    let start = dir::leaf_start(checker.context.geometry()).0;
    u32::try_from(start.saturating_add(distance)).unwrap_or(u32::MAX)
}

fn check_only_leaf(checker: &mut Checker<'_>, scan: &mut DirScan<'_>) -> Flow {
    let first = leaf_number(checker, 0);
    let kind = DaKind::DirLeaf1;
    let Some(()) = with_leaf(checker, scan, first, kind, |checker, scan, leaf| {
        take_leaf(checker, scan, leaf)?;
        if leaf.links
            != (DaLinks {
                next: None,
                previous: None,
            })
        {
            checker.found(scan.locus(), HashTreeRule::Sibling)?;
        }
        let blocks = scan.size / u64::from(checker.context.geometry().dir_block_bytes());
        let mut expected = vec![NO_FREE; leaf.bests.len()];
        for &(number, best) in &scan.bests {
            if let Some(slot) = expected.get_mut(number as usize) {
                *slot = best;
            }
        }
        let is_same = leaf.bests.iter().map(|best| best.get()).eq(expected);
        if scan.is_whole && (leaf.bests.len() as u64 != blocks || !is_same) {
            checker.found(scan.locus(), DirectoryUseRule::Bests)?;
        }
        Ok(())
    })?
    else {
        return Ok(());
    };
    Ok(())
}

/// Reads a leaf and passes it on; `None` if it is corrupt.
fn with_leaf<T>(
    checker: &mut Checker<'_>,
    scan: &mut DirScan<'_>,
    block: u32,
    kind: DaKind,
    take: impl FnOnce(&mut Checker<'_>, &mut DirScan<'_>, &DirLeaf<'_>) -> Flow<T>,
) -> Flow<Option<T>> {
    let locus = scan.locus();
    let read = scan
        .directory
        .read_as(FileBlock(block.into()), BlockKind::DirLeaf(kind));
    let Some(buffer) = checker.tolerate("directory leaf", locus, read)?.flatten() else {
        scan.is_whole = false;
        return Ok(None);
    };
    checker.note_da_lsn(&buffer, locus);
    let directory = scan.directory;
    let view = directory.view_leaf(&buffer, kind);
    let Some(leaf) = checker.tolerate("directory leaf", locus, view)? else {
        scan.is_whole = false;
        return Ok(None);
    };
    take(checker, scan, &leaf).map(Some)
}

fn take_leaf(checker: &mut Checker<'_>, scan: &mut DirScan<'_>, leaf: &DirLeaf<'_>) -> Flow {
    let stale = leaf
        .entries
        .iter()
        .filter(|entry| entry.pointer().is_none());
    if stale.count() != usize::from(leaf.stale) {
        checker.found(scan.locus(), DirectoryUseRule::Stale)?;
    }
    scan.leaves.extend(leaf.entries.iter().filter_map(|entry| {
        let pointer = entry.pointer()?;
        Some((entry.hash.get(), pointer.0))
    }));
    Ok(())
}

/// Walks the hash tree from a block on. Recurses once for each level. `above` is the level of the
/// parent.
fn check_tree(
    checker: &mut Checker<'_>,
    scan: &mut DirScan<'_>,
    block: u32,
    above: Option<u16>,
    chains: &mut Chains,
) -> Flow<Option<u32>> {
    let locus = scan.locus();
    if !chains.is_new(block) {
        scan.is_whole = false;
        checker.found(locus, DaNodeRule::Cycle)?;
        return Ok(None);
    }
    let kind = scan.directory.kind_of(FileBlock(block.into()));
    let kind = match checker.tolerate("hash tree node", locus, kind)? {
        Some(Some(DaKind::DirLeafN)) if above.is_none_or(|above| above == 1) => DaKind::DirLeafN,
        Some(Some(DaKind::Node)) if above != Some(1) => DaKind::Node,
        Some(_) => {
            scan.is_whole = false;
            checker.found(locus, DaNodeRule::Kind)?;
            return Ok(None);
        }
        None => {
            scan.is_whole = false;
            return Ok(None);
        }
    };
    if kind == DaKind::DirLeafN {
        let last = with_leaf(checker, scan, block, kind, |checker, scan, leaf| {
            take_leaf(checker, scan, leaf)?;
            let found = DaBlock {
                block,
                links: leaf.links,
                last: leaf.entries.last().map(|entry| entry.hash.get()),
            };
            if !chains.add(0, &found) && scan.is_whole {
                checker.found(scan.locus(), HashTreeRule::Sibling)?;
            }
            Ok(found.last)
        })?;
        return Ok(last.flatten());
    }
    let read = scan
        .directory
        .read_as(FileBlock(block.into()), BlockKind::DaNode);
    let Some(buffer) = checker.tolerate("hash tree node", locus, read)?.flatten() else {
        scan.is_whole = false;
        return Ok(None);
    };
    checker.note_da_lsn(&buffer, locus);
    let site = scan.directory.verified();
    let node = DaNode::decode(&buffer, &site).map_err(|rule| Corrupt::new(locus, rule).into());
    let Some(node) = checker.tolerate("hash tree node", locus, node)? else {
        scan.is_whole = false;
        return Ok(None);
    };
    if above.is_some_and(|above| node.level + 1 != above) {
        scan.is_whole = false;
        checker.found(locus, DaNodeRule::Level)?;
        return Ok(None);
    }
    let found = DaBlock {
        block,
        links: node.links,
        last: node.entries.last().map(|entry| entry.hash.get()),
    };
    if !chains.add(node.level, &found) && scan.is_whole {
        checker.found(locus, HashTreeRule::Sibling)?;
    }
    for entry in node.entries {
        let last = check_tree(checker, scan, entry.child.get(), Some(node.level), chains)?;
        if last.is_some_and(|last| last != entry.hash.get()) {
            checker.found(locus, HashTreeRule::Hash)?;
        }
    }
    Ok(found.last)
}

/// Compares the free indexes with the blocks of entries.
fn check_free_index(checker: &mut Checker<'_>, scan: &mut DirScan<'_>) -> Flow {
    let geometry = checker.context.geometry();
    let start = dir::free_start(geometry).0;
    let per_block = u64::from(geometry.dir_block_blocks());
    let runs = Rc::clone(&scan.runs);
    let mut bests = scan.bests.iter().peekable();
    let mut is_same = true;
    for number in block_numbers(&runs, start..u64::MAX, per_block) {
        let locus = scan.locus();
        let first = FileBlock(number.saturating_mul(per_block));
        let read = scan.directory.read_as(first, BlockKind::DirFree);
        let Some(buffer) = checker
            .tolerate("directory free index", locus, read)?
            .flatten()
        else {
            return Ok(());
        };
        dir_blocks::note_lsn(checker, &buffer, locus);
        let site = scan.directory.verified();
        let free = DirFree::decode(&buffer, &site);
        let free = free.map_err(|rule| Corrupt::new(locus, rule).into());
        let Some(free) = checker.tolerate("directory free index", locus, free)? else {
            return Ok(());
        };
        let used = free.bests.iter().filter(|best| best.get() != NO_FREE);
        is_same &= used.count() == free.used as usize;
        for (data, best) in (free.first..).zip(free.bests) {
            let expected = match bests.next_if(|(known, _)| *known == data) {
                Some(&(_, best)) => best,
                None => NO_FREE,
            };
            is_same &= best.get() == expected;
        }
    }
    if scan.is_whole && (!is_same || bests.peek().is_some()) {
        checker.found(scan.locus(), DirectoryUseRule::Bests)?;
    }
    Ok(())
}
