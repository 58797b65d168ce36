//! Storage of a directory's entries: blocks, or the inode. Both are a sequence of chunks.

use std::cell::Cell;
use std::ops::Deref;

use platter_cache::Buffer;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::DirectoryRule;
use crate::FsContext;
use crate::mapping::{Backing, BlockMap, InlineData};
use crate::ondisk::dir_entry::DirBlockVerifier;
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};

/// Readahead of a listing in bytes.
const READ_AHEAD_BYTES: u32 = 256 << 10;
/// Bytes of the parent's inode number at the start of an inline directory.
const INLINE_PARENT_BYTES: usize = 4;
/// Logical offset of the first entry of an inline directory, after its implied `.` and `..`.
const INLINE_BASE: u64 = 24;

/// A directory's entries.
pub(super) enum Contents<'a> {
    /// In blocks.
    Blocks(DirBlocks<'a>),
    /// In the inode.
    Inline(Inline<'a>),
}

/// The entries of one block or inline region.
pub(super) enum Chunk<'a> {
    /// A block.
    Block(Buffer),
    /// A region of an inline directory.
    Region(&'a [u8]),
}

/// An inline directory: `..` is stored as an inode number, `.` is implied.
#[derive(Debug)]
pub(super) struct Inline<'a> {
    /// The inode of `..`.
    pub(super) parent: InodeNr,
    /// The regions in `i_block` and in the attribute `system.data`.
    regions: [&'a [u8]; 2],
}

/// The blocks of a directory, each validated as one of this directory.
pub(super) struct DirBlocks<'a> {
    fs: &'a FsContext,
    inode: &'a Inode,
    map: &'a BlockMap,
    count: u32,
    /// Blocks before this one were already read ahead by a listing.
    ahead: Cell<u32>,
}

impl<'a> Contents<'a> {
    /// Returns the entries of the inline directory `inode`.
    pub(super) fn inline(fs: &FsContext, inode: &'a Inode) -> Result<Self> {
        let data = InlineData::decode(inode, &fs.geometry)?;
        let (parent, area) = data
            .first
            .split_first_chunk::<INLINE_PARENT_BYTES>()
            .unzip();
        let parent = parent.and_then(|&parent| InodeNr::new(u32::from_le_bytes(parent)));
        let locus = Locus::inode(u64::from(inode.number.get()));
        Ok(Self::Inline(Inline {
            parent: parent.ok_or(Corrupt::new(locus, DirectoryRule::InlineParent))?,
            regions: [area.unwrap_or_default(), data.rest],
        }))
    }

    /// Returns the number of blocks or regions.
    pub(super) fn chunk_count(&self) -> u32 {
        match self {
            Self::Blocks(blocks) => blocks.count,
            Self::Inline(_) => 2,
        }
    }

    /// Whether all entries are in one block, or in the inode.
    pub(super) fn is_small(&self) -> bool {
        match self {
            Self::Blocks(blocks) => blocks.count == 1,
            Self::Inline(_) => true,
        }
    }

    /// Reads a block or region; `None` for a hole.
    pub(super) fn read(&self, number: u32) -> Result<Option<Chunk<'a>>> {
        match self {
            Self::Blocks(blocks) => Ok(blocks.read(FileBlock(number))?.map(Chunk::Block)),
            Self::Inline(inline) => {
                let region = inline.regions.get(number as usize);
                Ok(region.map(|&region| Chunk::Region(region)))
            }
        }
    }

    /// Like [`read`](Self::read), with readahead for sequential access.
    pub(super) fn read_in_order(&self, number: u32) -> Result<Option<Chunk<'a>>> {
        if let Self::Blocks(blocks) = self {
            blocks.read_ahead_from(FileBlock(number));
        }
        self.read(number)
    }

    /// Returns the start of a block or region, in bytes of the directory.
    pub(super) fn base(&self, number: u32) -> u64 {
        match self {
            Self::Blocks(blocks) => {
                u64::from(number).saturating_mul(u64::from(blocks.fs.geometry.block_bytes))
            }
            Self::Inline(inline) => {
                let before = inline.regions.iter().take(number as usize);
                let bytes: usize = before.map(|region| region.len()).sum();
                INLINE_BASE.saturating_add(bytes as u64)
            }
        }
    }

    /// Returns the block or region that contains a byte of the directory.
    pub(super) fn chunk_at(&self, byte: u64) -> u32 {
        match self {
            Self::Blocks(blocks) => {
                let number = byte >> blocks.fs.geometry.block_bits;
                u32::try_from(number).unwrap_or(u32::MAX)
            }
            Self::Inline(_) => u32::from(byte >= self.base(1)),
        }
    }
}

impl<'a> DirBlocks<'a> {
    pub(super) fn new(fs: &'a FsContext, inode: &'a Inode, map: &'a BlockMap) -> Result<Self> {
        let count = inode.size_bytes >> fs.geometry.block_bits;
        let count = u32::try_from(count)
            .ok()
            .filter(|&count| u64::from(count) <= fs.geometry.blocks_count)
            .ok_or_else(|| {
                let locus = Locus::inode(u64::from(inode.number.get()));
                Corrupt::new(locus, DirectoryRule::Size)
            })?;
        Ok(Self {
            fs,
            inode,
            map,
            count,
            ahead: Cell::new(0),
        })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Reads and validates a block; `None` for a hole, and beyond the end.
    pub(super) fn read(&self, block: FileBlock) -> Result<Option<Buffer>> {
        if block.0 >= self.count {
            return Ok(None);
        }
        let Some(device) = self.map.block(self.fs, block)? else {
            return Ok(None);
        };
        let verifier = verifier(self.fs, self.inode, block);
        Ok(Some(self.fs.read_block(device, &verifier)?))
    }

    /// Starts readahead from `block` on, unless that was done.
    fn read_ahead_from(&self, block: FileBlock) {
        if block.0 < self.ahead.get() {
            return;
        }
        let ahead = (READ_AHEAD_BYTES >> self.fs.geometry.block_bits).max(1);
        let end = block.0.saturating_add(ahead).min(self.count);
        // A single block is read when it is needed.
        if end.saturating_sub(block.0) > 1 {
            self.announce(block.0, end);
        }
        self.ahead.set(end);
    }

    /// Starts readahead of blocks in any order.
    pub(super) fn announce_all(&self, mut blocks: Vec<FileBlock>) {
        blocks.sort_unstable();
        blocks.dedup();
        for run in blocks.chunk_by(|a, b| b.checked_since(*a) == Some(1)) {
            if let (Some(first), Some(last)) = (run.first(), run.last()) {
                self.announce(first.0, last.0.saturating_add(1).min(self.count));
            }
        }
    }

    /// Starts readahead; mapping errors are left to the read itself.
    fn announce(&self, from: u32, end: u32) {
        let mut at = from;
        while at < end {
            let Ok(run) = self.map.lookup(self.fs, FileBlock(at)) else {
                return;
            };
            let count = run.count.min(end - at);
            if let Backing::Written(device) = run.backing {
                self.fs.read_ahead(device, u64::from(count));
            }
            at = at.saturating_add(count);
        }
    }
}

/// Returns the verifier of a block of the directory `inode`.
pub(super) fn verifier(fs: &FsContext, inode: &Inode, block: FileBlock) -> DirBlockVerifier {
    let has_checksum = fs.geometry.features.has_metadata_csum();
    DirBlockVerifier {
        inode: inode.number,
        checksum_seed: has_checksum.then_some(inode.checksum_seed),
        is_indexed: inode.flags.contains(InodeFlags::INDEX),
        is_first: block.0 == 0,
    }
}

impl Deref for Chunk<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Block(buffer) => buffer,
            Self::Region(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Contents<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Blocks(blocks) => write!(out, "{} blocks", blocks.count),
            Self::Inline(inline) => inline.fmt(out),
        }
    }
}
