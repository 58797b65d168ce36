//! The index of a hashed directory: maps hash ranges to blocks.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use platter_ondisk::Corrupt;
use platter_vfs::check::Checking as _;

use super::{Checker, DirectoryUseRule, Flow, directories, locus_of};
use crate::directory::casefold;
use crate::directory::hash::{HashSeed, HashVersion};
use crate::mapping::BlockMap;
use crate::ondisk::htree::{HtreeRoot, HtreeRule, IndexEntries, decode_node};
use crate::ondisk::{FileBlock, Inode, InodeFlags};

/// The hash ranges of a directory's blocks according to its index.
#[derive(Debug)]
pub(super) struct Index {
    /// The hash function; `None` if it is unknown.
    version: Option<HashVersion>,
    seed: HashSeed,
    /// Names are casefolded before hashing.
    is_casefolded: bool,
    /// Interior nodes of the index.
    nodes: HashSet<FileBlock>,
    /// The hash range of the names in each leaf; the upper bound is excluded.
    leaves: HashMap<FileBlock, Range<u64>>,
}

impl Index {
    pub(super) fn is_node(&self, block: FileBlock) -> bool {
        self.nodes.contains(&block)
    }

    pub(super) fn contains(&self, block: FileBlock) -> bool {
        self.leaves.contains_key(&block)
    }

    /// Whether a name may be in a block of entries.
    pub(super) fn allows(&self, block: FileBlock, name: &[u8]) -> bool {
        let Some((version, hashes)) = self.version.zip(self.leaves.get(&block)) else {
            return true;
        };
        let folded = self
            .is_casefolded
            .then(|| casefold::fold(name).ok())
            .flatten();
        let name = folded.as_deref().unwrap_or(name);
        hashes.contains(&u64::from(version.hash(self.seed, name).major))
    }
}

/// Reads the whole index of a directory; `None` if it is corrupt.
pub(super) fn check(
    checker: &mut Checker<'_>,
    inode: &Inode,
    map: &BlockMap,
) -> Flow<Option<Index>> {
    let fs = checker.fs;
    let locus = locus_of(inode.number);
    let Some(root) = directories::read_dir_block(checker, inode, map, FileBlock(0))? else {
        return Ok(None);
    };
    let decoded = HtreeRoot::decode(&root, &fs.geometry);
    let decoded = decoded.map_err(|rule| Corrupt::new(locus, rule).into());
    let Some(root) = checker.tolerate("directory index", locus, decoded)? else {
        return Ok(None);
    };
    let unsigned = fs.superblock.flags & 0x2 != 0;
    let version = HashVersion::of_directory(root.hash_version, unsigned);
    if version.is_none() {
        checker.found(locus, HtreeRule::HashVersion)?;
    }
    let is_casefolded = inode.flags.contains(InodeFlags::CASEFOLD);
    // With both features, the hash is computed from the decrypted name.
    let is_hidden = is_casefolded && inode.is_encrypted();
    let mut index = Index {
        version: version.filter(|_| !is_hidden),
        seed: HashSeed(fs.superblock.hash_seed),
        is_casefolded,
        nodes: HashSet::from([FileBlock(0)]),
        leaves: HashMap::new(),
    };
    take_entries(
        checker,
        inode,
        map,
        root.entries,
        u32::from(root.levels),
        0..1 << 32,
        &mut index,
    )?;
    Ok(Some(index))
}

/// Adds the blocks below one index block. Recurses at most
/// [`HTREE_LEVELS_MAX`](crate::ondisk::htree::HTREE_LEVELS_MAX) deep, and into no block twice.
fn take_entries(
    checker: &mut Checker<'_>,
    inode: &Inode,
    map: &BlockMap,
    entries: IndexEntries<'_>,
    levels: u32,
    hashes: Range<u64>,
    index: &mut Index,
) -> Flow {
    let locus = locus_of(inode.number);
    for at in 0..entries.len() {
        let Some(block) = entries.block(at) else {
            continue;
        };
        // The lowest bit means that the hash continues from the preceding block.
        let start = u64::from(entries.hash(at) & !1).max(hashes.start);
        let end = if entries.len() > at + 1 {
            // The next block may begin with the hash that this one ends with.
            let next = entries.hash(at + 1);
            u64::from(next) + u64::from(next & 1)
        } else {
            hashes.end
        };
        let start = if at == 0 { hashes.start } else { start };
        if index.is_node(block) || index.contains(block) {
            checker.found(
                locus.at_offset(u64::from(block.0)),
                DirectoryUseRule::IndexedTwice,
            )?;
            continue;
        }
        if levels == 0 {
            index.leaves.insert(block, start..end);
            continue;
        }
        index.nodes.insert(block);
        let Some(buffer) = directories::read_dir_block(checker, inode, map, block)? else {
            continue;
        };
        let node = decode_node(&buffer, &checker.fs.geometry);
        let node = node.map_err(|rule| Corrupt::new(locus, rule).into());
        if let Some(node) = checker.tolerate("directory index", locus, node)? {
            take_entries(checker, inode, map, node, levels - 1, start..end, index)?;
        }
    }
    Ok(())
}
