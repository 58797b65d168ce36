//! Adding names to directories and removing them.
//!
//! An indexed directory keeps its index as long as the leaf of a new name has space. Otherwise it
//! is converted to a linear one, which is always valid, and grows at its end.

use std::ops::ControlFlow;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, FileKind, Result, Unsupported};

use super::file_map::FileMap;
use super::inline;
use super::inode_slot;
use super::space::ReplayAllocator;
use crate::FsContext;
use crate::directory::casefold;
use crate::directory::hash::{HashSeed, HashVersion};
use crate::mapping::{Backing, BlockMap, Piece};
use crate::ondisk::dir_entry::{DirBlockVerifier, EntryFormat, TAIL_BYTES, split_new_tail};
use crate::ondisk::extent::Extent;
use crate::ondisk::htree::{self, HtreeRoot};
use crate::ondisk::jbd2::fast_commit::FastCommitRule;
use crate::ondisk::{BlockNr, FileBlock, GroupNr, Inode, InodeFlags, InodeNr};

/// `s_flags`: the directory hash uses unsigned bytes.
const FLAG_UNSIGNED_HASH: u32 = 0x2;

/// A directory being modified.
#[derive(Debug)]
pub(super) struct Names<'v> {
    fs: &'v FsContext,
    space: &'v ReplayAllocator<'v>,
    inode: Inode,
    format: EntryFormat,
    /// The blocks of the directory, in file order.
    blocks: Vec<(FileBlock, BlockNr)>,
}

/// Result of looking up a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundName {
    block: (FileBlock, BlockNr),
    offset: usize,
    /// The inode of the entry.
    pub(super) inode: InodeNr,
}

impl<'v> Names<'v> {
    /// Opens a directory.
    pub(super) fn open(
        fs: &'v FsContext,
        space: &'v ReplayAllocator<'v>,
        inode: Inode,
    ) -> Result<Self> {
        let hashed = InodeFlags::ENCRYPT | InodeFlags::CASEFOLD;
        if inode.flags.contains(hashed) {
            return Err(Unsupported {
                filesystem: "ext4",
                feature: "fast commit to an encrypted casefolded directory".into(),
                reason: Some("its records lack the hashes of names"),
            }
            .into());
        }
        let inode = if inode.flags.contains(InodeFlags::INLINE_DATA) {
            inline::expand(fs, space, &inode)?
        } else {
            inode
        };
        let blocks = blocks_of(fs, &inode)?;
        Ok(Self {
            fs,
            space,
            format: EntryFormat::new(&fs.geometry, false),
            inode,
            blocks,
        })
    }

    /// Adds `.` and `..` at the start of the directory, if they are missing.
    pub(super) fn begin(&mut self, parent: InodeNr) -> Result<()> {
        let block_bytes = u64::from(self.fs.geometry.block_bytes);
        let begins = match self.blocks.first() {
            Some(&(FileBlock(0), _)) => self.dots()?.is_some(),
            _ => false,
        };
        if begins {
            return Ok(());
        }
        self.blocks.clear();
        self.inode.size_bytes = 0;
        self.inode.flags.remove(InodeFlags::INDEX);
        let (number, format) = (self.inode.number, self.format);
        let flags = self.inode.flags.bits();
        inode_slot::edit(self.fs, number, |disk| disk.flags = flags.into())?;
        let place = self.append()?;
        self.write_leaf(place, |content| format.begin(content, number, parent))?;
        debug_assert_eq!(self.inode.size_bytes, block_bytes);
        Ok(())
    }

    /// Looks up the entry of a name.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<FoundName>> {
        if let Some(leaves) = self.leaves_of(name)? {
            for leaf in leaves {
                if let Some(found) = self.find_in(leaf, name)? {
                    return Ok(Some(found));
                }
            }
        }
        for &block in &self.blocks {
            if let Some(found) = self.find_in(block, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Adds a name, unless it exists already.
    pub(super) fn insert(&mut self, name: &[u8], inode: InodeNr, kind: FileKind) -> Result<bool> {
        let leaves = self.leaves_of(name)?;
        let searched = leaves.as_deref().unwrap_or(&self.blocks);
        for &block in searched {
            if self.find_in(block, name)?.is_some() {
                return Ok(false);
            }
        }
        if let Some(leaves) = leaves {
            for leaf in leaves {
                if self.insert_in(leaf, name, inode, kind)? {
                    return Ok(true);
                }
            }
            self.forget_index()?;
        }
        for at in 0..self.blocks.len() {
            if let Some(&block) = self.blocks.get(at)
                && self.insert_in(block, name, inode, kind)?
            {
                return Ok(true);
            }
        }
        let place = self.append()?;
        let format = self.format;
        self.write_leaf(place, |content| {
            format.clear(content);
            format.insert(content, name, inode, kind);
        })?;
        Ok(true)
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, found: &FoundName) -> Result<()> {
        let mut bytes = self.read(found.block)?;
        let content_len = self.content_len();
        if let Some(content) = bytes.get_mut(..content_len) {
            self.format.remove(content, found.offset);
        }
        self.write(found.block, bytes)
    }

    /// Whether there are names besides `.` and `..`, and the number of subdirectories.
    pub(super) fn count(&self) -> Result<(bool, u32)> {
        let (mut any, mut directories) = (false, 0u32);
        for &block in &self.blocks {
            if self.is_index_node(block)? {
                continue;
            }
            let bytes = self.read(block)?;
            for entry in self
                .format
                .entries(&bytes)
                .map_while(std::result::Result::ok)
            {
                let Some(inode) = entry.inode.filter(|_| !matches!(entry.name, b"." | b".."))
                else {
                    continue;
                };
                any = true;
                let kind = match entry.kind {
                    Some(kind) => Some(kind),
                    None => inode_slot::find(self.fs, inode)?.map(|inode| inode.kind),
                };
                directories += u32::from(kind == Some(FileKind::Directory));
            }
        }
        Ok((any, directories))
    }

    fn find_in(&self, block: (FileBlock, BlockNr), name: &[u8]) -> Result<Option<FoundName>> {
        let bytes = self.read(block)?;
        let mut entries = self
            .format
            .entries(&bytes)
            .map_while(std::result::Result::ok);
        let found = entries.find(|entry| entry.inode.is_some() && entry.name == name);
        Ok(found.and_then(|entry| {
            Some(FoundName {
                block,
                offset: entry.offset,
                inode: entry.inode?,
            })
        }))
    }

    fn insert_in(
        &self,
        block: (FileBlock, BlockNr),
        name: &[u8],
        inode: InodeNr,
        kind: FileKind,
    ) -> Result<bool> {
        if self.is_index_node(block)? {
            return Ok(false);
        }
        let mut bytes = self.read(block)?;
        let content_len = self.content_len();
        let content = bytes.get_mut(..content_len).unwrap_or_default();
        if !self.format.insert(content, name, inode, kind) {
            return Ok(false);
        }
        self.write(block, bytes)?;
        Ok(true)
    }

    /// Returns the leaves that a name may be in according to the index: the second and later ones
    /// continue the same hash. `None` without a usable index.
    fn leaves_of(&self, name: &[u8]) -> Result<Option<Vec<(FileBlock, BlockNr)>>> {
        let Some(&first) = self.blocks.first().filter(|_| self.is_indexed()) else {
            return Ok(None);
        };
        let geometry = &self.fs.geometry;
        let mut bytes = self.read(first)?;
        let Ok(root) = HtreeRoot::decode(&bytes, geometry) else {
            return Ok(None);
        };
        let superblock = &self.fs.superblock;
        let unsigned = superblock.flags & FLAG_UNSIGNED_HASH != 0;
        let Some(version) = HashVersion::of_directory(root.hash_version, unsigned) else {
            return Ok(None);
        };
        let folded = if self.inode.flags.contains(InodeFlags::CASEFOLD) {
            casefold::fold(name).unwrap_or_else(|_| name.to_vec())
        } else {
            name.to_vec()
        };
        let major = version.hash(HashSeed(superblock.hash_seed), &folded).major;
        let mut entries = root.entries;
        let levels = root.levels;
        for _ in 0..levels {
            let child = entries.block(entries.position(major));
            let Some(place) = child.and_then(|child| self.place(child)) else {
                return Ok(None);
            };
            bytes = self.read(place)?;
            let Ok(below) = htree::decode_node(&bytes, geometry) else {
                return Ok(None);
            };
            entries = below;
        }
        let position = entries.position(major);
        let goes_on = |index: &usize| *index == position || entries.hash(*index) == major | 1;
        let leaves = (position..entries.len()).take_while(goes_on);
        Ok(leaves
            .map(|index| self.place(entries.block(index)?))
            .collect())
    }

    /// Converts the directory to a linear one.
    pub(super) fn forget_index(&mut self) -> Result<()> {
        let Some((dot, parent)) = self.dots()? else {
            let locus = Locus::inode(u64::from(self.inode.number.get()));
            return Err(Corrupt::new(locus, FastCommitRule::Parent).into());
        };
        let (format, mut nodes) = (self.format, Vec::new());
        for &block in self.blocks.iter().skip(1) {
            if self.is_index_node(block)? {
                nodes.push(block);
            }
        }
        self.inode.flags.remove(InodeFlags::INDEX);
        let flags = self.inode.flags.bits();
        inode_slot::edit(self.fs, self.inode.number, |disk| {
            disk.flags = flags.into();
        })?;
        for node in nodes {
            self.write_leaf(node, |content| format.clear(content))?;
        }
        if let Some(&first) = self.blocks.first() {
            self.write_leaf(first, |content| format.begin(content, dot, parent))?;
        }
        Ok(())
    }

    /// Returns the inodes of `.` and `..`, if the first block begins with them.
    fn dots(&self) -> Result<Option<(InodeNr, InodeNr)>> {
        let Some(&first) = self.blocks.first() else {
            return Ok(None);
        };
        let bytes = match self.read(first) {
            Ok(bytes) => bytes,
            Err(Error::Corrupt(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut entries = self
            .format
            .entries(&bytes)
            .map_while(std::result::Result::ok);
        let dot = entries.next().filter(|entry| entry.name == b".");
        let dotdot = entries.next().filter(|entry| entry.name == b"..");
        let dots = dot
            .zip(dotdot)
            .and_then(|(dot, dotdot)| dot.inode.zip(dotdot.inode));
        Ok(dots.filter(|(dot, _)| *dot == self.inode.number))
    }

    /// Adds an empty block at the end of the directory.
    fn append(&mut self) -> Result<(FileBlock, BlockNr)> {
        let geometry = &self.fs.geometry;
        let block_bytes = u64::from(geometry.block_bytes);
        let Ok(index) = u32::try_from(self.inode.size_bytes / block_bytes) else {
            return Err(platter_vfs::Condition::NoSpace.into());
        };
        let mut map = FileMap::load(self.fs, self.inode.clone())?;
        let cluster = geometry.cluster_blocks;
        let start = if let Some(start) = cluster_of(map.extents(), index, cluster) {
            start
        } else {
            let goal = geometry.group_of_inode(self.inode.number);
            let goal = goal.map_or(GroupNr(0), |(group, _)| group);
            self.space.alloc(goal)?.0
        };
        let extent = Extent {
            first: FileBlock(index),
            count: 1,
            start: BlockNr(start + u64::from(index % cluster)),
            unwritten: false,
        };
        map.insert(self.space, extent)?;
        map.store(self.fs, self.space)?;
        self.inode = map.inode().clone();
        self.inode.size_bytes = (u64::from(index) + 1) * block_bytes;
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.inode.size_bytes.to_le_bytes();
        inode_slot::edit(self.fs, self.inode.number, |disk| {
            disk.size_lo = u32::from_le_bytes([s0, s1, s2, s3]).into();
            disk.size_hi = u32::from_le_bytes([s4, s5, s6, s7]).into();
        })?;
        let place = (extent.first, extent.start);
        self.blocks.push(place);
        Ok(place)
    }

    fn is_indexed(&self) -> bool {
        self.inode.flags.contains(InodeFlags::INDEX)
    }

    fn is_index_node(&self, block: (FileBlock, BlockNr)) -> Result<bool> {
        if !self.is_indexed() {
            return Ok(false);
        }
        Ok(block.0 == FileBlock(0) || htree::is_node(&self.read(block)?))
    }

    fn place(&self, block: FileBlock) -> Option<(FileBlock, BlockNr)> {
        let at = self.blocks.binary_search_by_key(&block, |place| place.0);
        self.blocks.get(at.ok()?).copied()
    }

    fn content_len(&self) -> usize {
        let block_bytes = self.fs.geometry.block_bytes as usize;
        if self.fs.geometry.features.has_metadata_csum() {
            block_bytes - TAIL_BYTES
        } else {
            block_bytes
        }
    }

    fn verifier(&self, block: FileBlock) -> DirBlockVerifier {
        let sealed = self.fs.geometry.features.has_metadata_csum();
        DirBlockVerifier {
            inode: self.inode.number,
            checksum_seed: sealed.then_some(self.inode.checksum_seed),
            is_indexed: self.is_indexed(),
            is_first: block == FileBlock(0),
        }
    }

    fn read(&self, block: (FileBlock, BlockNr)) -> Result<Vec<u8>> {
        let buffer = self.fs.read_block(block.1, &self.verifier(block.0))?;
        Ok(buffer.to_vec())
    }

    fn write(&self, block: (FileBlock, BlockNr), bytes: Vec<u8>) -> Result<()> {
        let verifier = self.verifier(block.0);
        self.fs.buffers().publish(block.1.0, bytes, &verifier)?;
        Ok(())
    }

    /// Overwrites a block of entries.
    fn write_leaf(&self, block: (FileBlock, BlockNr), fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = vec![0; self.fs.geometry.block_bytes as usize];
        if self.fs.geometry.features.has_metadata_csum() {
            fill(split_new_tail(&mut bytes));
        } else {
            fill(&mut bytes);
        }
        self.write(block, bytes)
    }
}

/// Returns the first block of the cluster of file block `index`, if an extent has a part of it and
/// is cluster-aligned.
fn cluster_of(extents: &[Extent], index: u32, cluster_blocks: u32) -> Option<u64> {
    let mate = extents
        .iter()
        .find(|extent| extent.first.0 / cluster_blocks == index / cluster_blocks)?;
    let inside = u64::from(mate.first.0 % cluster_blocks);
    mate.start.0.checked_sub(inside)
}

/// Returns the blocks of a directory, limited by their number: extents may list one block
/// repeatedly.
fn blocks_of(fs: &FsContext, inode: &Inode) -> Result<Vec<(FileBlock, BlockNr)>> {
    let mut blocks = Vec::new();
    let blocks_max = fs.geometry.blocks_count;
    let end = inode.size_bytes / u64::from(fs.geometry.block_bytes);
    BlockMap::decode(fs, inode)?.visit(fs, &mut |piece| {
        let Piece::Run(run) = piece else {
            return ControlFlow::Continue(());
        };
        let Backing::Written(start) = run.backing else {
            return ControlFlow::Continue(());
        };
        for index in 0..run.count {
            let block = FileBlock(run.first.0.saturating_add(index));
            if u64::from(block.0) >= end || blocks.len() as u64 > blocks_max {
                return ControlFlow::Break(());
            }
            blocks.push((block, BlockNr(start.0 + u64::from(index))));
        }
        ControlFlow::Continue(())
    })?;
    if blocks.len() as u64 > blocks_max {
        let locus = Locus::inode(u64::from(inode.number.get()));
        return Err(Corrupt::new(locus, FastCommitRule::DirectorySize).into());
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use platter_vfs::Error;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::file::BlockMapRule;
    use crate::fs_context::tests::sample_fs;
    use crate::ondisk::extent::encode_node;
    use crate::ondisk::inode::tests::sample;
    use platter_ondisk::Rule;

    #[test]
    fn extent_before_the_first_cluster_has_no_cluster() {
        let extent = |first: u32, start: u64| Extent {
            first: FileBlock(first),
            count: 1,
            start: BlockNr(start),
            unwritten: false,
        };
        assert_eq!(cluster_of(&[extent(14, 46)], 15, 16), Some(32));
        assert_eq!(cluster_of(&[extent(14, 46)], 16, 16), None);
        assert_eq!(cluster_of(&[extent(14, 3)], 15, 16), None);
    }

    #[test]
    fn directory_larger_than_its_filesystem_is_corrupt() {
        let fs = sample_fs(&[]);
        let extent = |first: u32| {
            let extent = Extent {
                first: FileBlock(first),
                count: 8000,
                start: BlockNr(100),
                unwritten: false,
            };
            extent.encode()
        };
        let extents = [extent(0), extent(8000)];
        let bytes = sample(&fs.geometry, InodeNr::ROOT, |disk, _| {
            disk.mode = 0o4_0755.into();
            disk.size_lo = u32::MAX.into();
            disk.flags = InodeFlags::EXTENTS.bits().into();
            encode_node(&mut disk.block, 0, 4, extents.as_bytes());
        });
        let inode = Inode::decode(&bytes, InodeNr::ROOT, &fs.geometry).unwrap();
        let Err(Error::Corrupt(report)) = blocks_of(&fs, &inode) else {
            panic!("accepted as a directory");
        };
        assert_eq!(report.rule, FastCommitRule::DirectorySize.text());
        let Err(Error::Corrupt(report)) = FileMap::load(&fs, inode) else {
            panic!("accepted as a file");
        };
        assert_eq!(report.rule, BlockMapRule::TooManyBlocks.text());
    }
}
