//! A name looked up by its hash.

use std::collections::HashSet;

use platter_ondisk::Corrupt;
use platter_vfs::Result;

use super::{Directory, DirectoryRule, Found, LeafPlace, NamePlace};
use crate::context::Block;
use crate::ondisk::da::{DaKind, DaNode, DaNodeRule};
use crate::ondisk::dir;
use crate::ondisk::dir::data::{DataKind, DirData};
use crate::ondisk::dir::leaf::{self, DiskLeafEntry};
use crate::ondisk::{BlockKind, FileBlock};

/// What was found so far: where case does not count, the same bytes are preferred.
#[derive(Debug, Default)]
struct Best {
    exact: Option<Found>,
    /// The block of entries that has it, and its first byte there.
    exact_at: Option<(u32, usize)>,
    folded: Option<Found>,
}

/// The entry with this name, in a directory of one block.
pub(super) fn in_block(directory: &Directory<'_>, name: &[u8]) -> Result<Option<Found>> {
    let block = directory.data_block(0, DataKind::Single)?;
    let block = block.ok_or_else(|| directory.corrupt(DirectoryRule::Missing))?;
    let data = directory.view_data(&block, DataKind::Single)?;
    let mut best = Best::default();
    for pointer in leaf::matching(data.leaves, directory.hash(name)) {
        let (number, offset) = pointer.split(directory.context.geometry());
        if number != 0 {
            return Err(directory.corrupt(DirectoryRule::Missing));
        }
        compare(directory, &data, (number, offset), name, &mut best)?;
    }
    Ok(best.exact.or(best.folded))
}

/// The entry with this name, in a directory with one leaf.
pub(super) fn in_leaf(directory: &Directory<'_>, name: &[u8]) -> Result<Option<Found>> {
    let first = dir::leaf_start(directory.context.geometry());
    let block = directory.read_as(first, BlockKind::DirLeaf(DaKind::DirLeaf1))?;
    let block = block.ok_or_else(|| directory.corrupt(DirectoryRule::Form))?;
    let leaf = directory.view_leaf(&block, DaKind::DirLeaf1)?;
    let mut best = Best::default();
    find_among(
        directory,
        leaf.entries,
        (directory.hash(name), name),
        &mut best,
    )?;
    Ok(best.exact.or(best.folded))
}

/// The entry with this name, in a directory with a hash tree, and where the search ended.
pub(super) fn in_tree(
    directory: &Directory<'_>,
    name: &[u8],
) -> Result<(Option<Found>, NamePlace)> {
    let hash = directory.hash(name);
    let Some((mut block, leaf)) = leaf_for(directory, hash)? else {
        return Ok((None, NamePlace::default()));
    };
    let leaf = Some(leaf);
    let mut best = Best::default();
    let mut seen = HashSet::new();
    loop {
        let view = directory.view_leaf(&block, DaKind::DirLeafN)?;
        find_among(directory, view.entries, (hash, name), &mut best)?;
        // Names of one hash may go on in the next leaf.
        let last = view.entries.last().map(|entry| entry.hash.get());
        let Some(next) = view.links.next.filter(|_| last == Some(hash)) else {
            break;
        };
        if best.exact.is_some() {
            break;
        }
        if !seen.insert(next) {
            return Err(corrupt_tree(directory, DaNodeRule::Cycle));
        }
        block = tree_block(directory, next.into(), BlockKind::DirLeaf(DaKind::DirLeafN))?;
    }
    let entry = best.exact_at;
    let place = NamePlace { leaf, entry };
    Ok((best.exact.or(best.folded), place))
}

/// The first leaf that may hold `hash`, and where it lies; `None` if all hashes are smaller.
fn leaf_for(directory: &Directory<'_>, hash: u32) -> Result<Option<(Block, LeafPlace)>> {
    let mut at = dir::leaf_start(directory.context.geometry()).0;
    let mut greatest = None;
    let mut above: Option<u16> = None;
    loop {
        let place = directory.place_of(FileBlock(at))?;
        let place = place.ok_or_else(|| corrupt_tree(directory, DaNodeRule::Kind))?;
        match directory.kind_at(place)? {
            Some(DaKind::DirLeafN) if above.is_none_or(|above| above == 1) => {
                let kind = BlockKind::DirLeaf(DaKind::DirLeafN);
                let leaf = LeafPlace {
                    hash,
                    block: u32::try_from(at).unwrap_or(u32::MAX),
                    greatest,
                };
                return Ok(Some((directory.read_at(place, kind)?, leaf)));
            }
            Some(DaKind::Node) => {}
            Some(_) => return Err(corrupt_tree(directory, DaNodeRule::Level)),
            None => return Err(corrupt_tree(directory, DaNodeRule::Kind)),
        }
        let block = directory.read_at(place, BlockKind::DaNode)?;
        let node = DaNode::decode(&block, &directory.verified());
        let node = node.map_err(|rule| corrupt_tree(directory, rule))?;
        if above.is_some_and(|above| node.level + 1 != above) {
            return Err(corrupt_tree(directory, DaNodeRule::Level));
        }
        above = Some(node.level);
        let Some(entry) = node.entry_for(hash) else {
            return Ok(None);
        };
        let child = entry.child.get();
        at = child.into();
        greatest = Some(entry.hash.get());
        // What is no leaf is refused for what it is instead.
        if node.level == 1
            && let Ok(block) = tree_block(directory, at, BlockKind::DirLeaf(DaKind::DirLeafN))
        {
            let leaf = LeafPlace {
                hash,
                block: child,
                greatest,
            };
            return Ok(Some((block, leaf)));
        }
    }
}

fn tree_block(directory: &Directory<'_>, at: u64, kind: BlockKind) -> Result<Block> {
    let block = directory.read_as(FileBlock(at), kind)?;
    block.ok_or_else(|| corrupt_tree(directory, DaNodeRule::Missing))
}

/// Compares the entries of the hash of a name with the name.
fn find_among(
    directory: &Directory<'_>,
    entries: &[DiskLeafEntry],
    (hash, name): (u32, &[u8]),
    best: &mut Best,
) -> Result<()> {
    for pointer in leaf::matching(entries, hash) {
        let (number, offset) = pointer.split(directory.context.geometry());
        let block = directory.data_block(number, DataKind::Data)?;
        let block = block.ok_or_else(|| directory.corrupt(DirectoryRule::Missing))?;
        let data = directory.view_data(&block, DataKind::Data)?;
        compare(directory, &data, (number, offset), name, best)?;
        if best.exact.is_some() {
            break;
        }
    }
    Ok(())
}

/// Compares the entry at a byte of a block with a name of the same hash.
fn compare(
    directory: &Directory<'_>,
    data: &DirData<'_>,
    at: (u32, usize),
    name: &[u8],
    best: &mut Best,
) -> Result<()> {
    let entry = data.entry_at(at.1, directory.context.geometry());
    let entry = entry.map_err(|rule| Corrupt::new(directory.locus(), rule))?;
    let found = Found {
        inode: entry.inode,
        kind: entry.kind,
    };
    if entry.name == name {
        best.exact.get_or_insert(found);
        best.exact_at.get_or_insert(at);
    } else if directory.is_same(entry.name, name) {
        best.folded.get_or_insert(found);
    }
    Ok(())
}

fn corrupt_tree(directory: &Directory<'_>, rule: DaNodeRule) -> platter_vfs::Error {
    Corrupt::new(directory.locus(), rule).into()
}
