//! Quota files: read as a whole when a filesystem is mounted for writing, and changed where owners get
//! or lose an entry. The usage in the entries is changed by [`quota`](crate::quota).

mod change;
mod files;

use std::collections::HashSet;

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use crate::FsContext;
use crate::mapping::{Backing, BlockMap};
use crate::ondisk::quota::{
    DiskQuotaEntry, DiskQuotaHead, QUOTA_BLOCK_BYTES, QUOTA_ROOT_BLOCK, QUOTA_TREE_LEVELS,
    QuotaKind, QuotaRule, broken, decode_head, entries, references,
};
use crate::ondisk::{FileBlock, Inode};
use crate::quota::EntryPlace;

pub use change::NEW_FILE_CREDITS;
pub use files::QuotaFiles;

/// A quota file, its block mapping, and its header.
#[derive(Debug)]
pub struct QuotaFile {
    inode: Inode,
    map: BlockMap,
    head: DiskQuotaHead,
}

/// Receives entries with their locations.
pub type EntrySink<'a> = dyn FnMut(&DiskQuotaEntry, EntryPlace) -> Result<()> + 'a;

impl QuotaFile {
    /// Reads the header of a file of one kind.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn open(fs: &FsContext, kind: QuotaKind, inode: Inode) -> Result<Self> {
        let mut file = Self {
            map: BlockMap::decode(fs, &inode)?,
            inode,
            head: DiskQuotaHead::new(kind),
        };
        let head = file.read(fs, 0)?;
        file.head = decode_head(&head, kind, file.inode.size_bytes)
            .map_err(|rule| broken(file.inode.number.get(), None, rule))?;
        Ok(file)
    }

    /// Returns its header.
    #[must_use]
    pub fn head(&self) -> &DiskQuotaHead {
        &self.head
    }

    /// Passes all entries to `sink`.
    ///
    /// # Errors
    /// `Corrupt`, and those of `sink`.
    pub fn visit(&self, fs: &FsContext, sink: &mut EntrySink<'_>) -> Result<()> {
        let mut seen = HashSet::from([0, QUOTA_ROOT_BLOCK]);
        let root = self.read(fs, QUOTA_ROOT_BLOCK)?;
        self.descend(fs, &root, QUOTA_TREE_LEVELS, &mut seen, sink)
    }

    /// Recurses at most [`QUOTA_TREE_LEVELS`] deep, and into no block twice.
    fn descend(
        &self,
        fs: &FsContext,
        block: &[u8],
        levels: u32,
        seen: &mut HashSet<u32>,
        sink: &mut EntrySink<'_>,
    ) -> Result<()> {
        for reference in references(block) {
            // A leaf is reached once for each of the ids it holds.
            let is_new = seen.insert(reference);
            if levels == 1 && !is_new {
                continue;
            }
            if !is_new || u64::from(reference) >= self.len_blocks() {
                return Err(self.broken(reference, QuotaRule::Reference).into());
            }
            let below = self.read(fs, reference)?;
            if levels > 1 {
                self.descend(fs, &below, levels - 1, seen, sink)?;
                continue;
            }
            for (offset, entry) in entries(&below) {
                sink(&entry, self.place(fs, reference, offset)?)?;
            }
        }
        Ok(())
    }

    /// Returns the length of the file in quota blocks.
    fn len_blocks(&self) -> u64 {
        self.inode.size_bytes / QUOTA_BLOCK_BYTES as u64
    }

    /// Reads a block; holes read as zeros.
    fn read(&self, fs: &FsContext, block: u32) -> Result<Vec<u8>> {
        let Some(place) = self.locate(fs, block)? else {
            return Ok(vec![0; QUOTA_BLOCK_BYTES]);
        };
        let buffer = fs.read_block(place.block, &Unverified)?;
        let bytes = buffer.get(place.offset..).unwrap_or_default();
        Ok(bytes.iter().copied().take(QUOTA_BLOCK_BYTES).collect())
    }

    /// Returns the location of a byte of a block that is not a hole.
    fn place(&self, fs: &FsContext, block: u32, offset: usize) -> Result<EntryPlace> {
        let place = self.locate(fs, block)?;
        let mut place = place.ok_or_else(|| self.broken(block, QuotaRule::Reference))?;
        place.offset += offset;
        Ok(place)
    }

    fn locate(&self, fs: &FsContext, block: u32) -> Result<Option<EntryPlace>> {
        let geometry = &fs.geometry;
        let at = u64::from(block) * QUOTA_BLOCK_BYTES as u64;
        let Ok(first) = u32::try_from(at >> geometry.block_bits) else {
            return Ok(None);
        };
        let run = self.map.lookup(fs, FileBlock(first))?;
        let Backing::Written(start) = run.backing else {
            return Ok(None);
        };
        let offset = at % u64::from(geometry.block_bytes);
        Ok(Some(EntryPlace {
            block: start,
            offset: usize::try_from(offset).unwrap_or_default(),
        }))
    }

    fn broken(&self, block: u32, rule: QuotaRule) -> Corrupt<QuotaRule> {
        broken(self.inode.number.get(), Some(block), rule)
    }

    fn locus(&self) -> Locus {
        Locus::inode(u64::from(self.inode.number.get()))
    }
}
