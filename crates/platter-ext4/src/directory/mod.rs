//! Directories: names to inode numbers, linear, indexed or inline. Spec: `ext4/directory`.
//!
//! A lookup uses the index if it is valid, and searches all blocks otherwise: corruption of one
//! block or of the index hides no name in another block.

pub mod hash;
pub mod casefold;
mod contents;
mod naming;
mod position;
mod linear;
mod index;
mod ordered;
mod change;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, DirCursor, DirEntry, DirSink, Error, FileKind, Name, Result};

use crate::FsContext;
use crate::mapping::BlockMap;
use crate::ondisk::dir_entry::{DirEntryRule, Entry, EntryFormat, Gap, TAIL_BYTES};
use crate::ondisk::features::Compat;
use crate::ondisk::htree::HtreeRule;
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};
use contents::{Contents, DirBlocks};
use hash::HashVersion;
use index::Walker;
use naming::{Hashing, Wanted};
use ordered::Ordered;
use position::Position;

pub use change::{CHANGE_CREDITS, DirectoryMut, insert_credits};

/// The most names of one file, and the most links of a directory that are counted.
pub const LINKS_MAX: u32 = 65_000;

rules! {
    /// The rules of a directory as a whole.
    pub enum DirectoryRule of "directory" {
        /// It is not larger than the filesystem.
        Size => "is too big",
        /// An inline directory contains a valid inode number of its parent.
        InlineParent => "invalid parent in inline data",
    }
}

/// Result of a successful lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The inode number, not read or validated.
    pub inode: InodeNr,
    /// The file type in the entry.
    pub kind: Option<FileKind>,
}

/// Location of an entry, valid while the directory is not modified.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    found: Found,
    /// The block or region.
    chunk: u32,
    /// Offset of the preceding entry in it.
    before: Option<usize>,
    /// Offset of the entry itself.
    offset: usize,
}

impl Slot {
    /// Returns what the entry refers to.
    #[must_use]
    pub fn found(&self) -> Found {
        self.found
    }
}

/// Location of the inode number of the parent, valid while the directory is not modified.
#[derive(Debug, Clone, Copy)]
pub enum ParentSlot {
    /// In the inode of an inline directory.
    Inode,
    /// In the entry `..`.
    Entry(Slot),
}

/// Where to insert a name that does not exist, valid while the directory is not modified.
#[derive(Debug, Clone, Copy)]
pub struct Vacancy {
    /// The block or region, and the gap in it, unless the directory has to grow.
    gap: Option<(u32, Gap)>,
}

/// Result of searching for a name.
#[derive(Debug)]
enum Survey {
    There(Slot),
    Missing(Vacancy),
}

/// A directory opened for reading.
#[derive(Debug)]
pub struct Directory<'a> {
    fs: &'a FsContext,
    inode: &'a Inode,
    format: EntryFormat,
    contents: Contents<'a>,
}

impl<'a> Directory<'a> {
    /// Opens the directory `inode` with the block mapping `map`.
    ///
    /// # Errors
    /// `NotDirectory` for other inodes.
    pub fn open(fs: &'a FsContext, inode: &'a Inode, map: &'a BlockMap) -> Result<Self> {
        if inode.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        let has_hash = inode
            .flags
            .contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD);
        let contents = if inode.flags.contains(InodeFlags::INLINE_DATA) {
            Contents::inline(fs, inode)?
        } else {
            Contents::Blocks(DirBlocks::new(fs, inode, map)?)
        };
        Ok(Self {
            fs,
            inode,
            format: EntryFormat::new(&fs.geometry, has_hash),
            contents,
        })
    }

    /// Looks up `name`, including `.` and `..`.
    ///
    /// # Errors
    /// `NotFound`; `NoKey` for other names than those two in an encrypted directory;
    /// `InvalidArgument` for a name that is not UTF-8 in a directory with strict encoding.
    pub fn lookup(&self, name: Name<'_>) -> Result<Found> {
        if name.is_dot_or_dotdot() {
            return self.lookup_dots(name);
        }
        Ok(self.locate(name)?.found)
    }

    /// Returns the location of the entry `name`, which is neither `.` nor `..`.
    ///
    /// # Errors
    /// Those of [`lookup`](Self::lookup).
    pub fn locate(&self, name: Name<'_>) -> Result<Slot> {
        match self.survey(name)? {
            Survey::There(slot) => Ok(slot),
            Survey::Missing(_) => Err(Condition::NotFound.into()),
        }
    }

    /// Returns where to insert `name`, which does not exist yet.
    ///
    /// # Errors
    /// `Exists`; else those of [`lookup`](Self::lookup).
    pub fn vacancy(&self, name: Name<'_>) -> Result<Vacancy> {
        if name.is_dot_or_dotdot() {
            return Err(Condition::Exists.into());
        }
        match self.survey(name)? {
            Survey::There(_) => Err(Condition::Exists.into()),
            Survey::Missing(vacancy) => Ok(vacancy),
        }
    }

    /// Returns the location of the parent's inode number, which is not encrypted.
    ///
    /// # Errors
    /// `Corrupt` if the second entry is not `..`.
    pub fn locate_parent(&self) -> Result<ParentSlot> {
        if let Contents::Inline(_) = &self.contents {
            return Ok(ParentSlot::Inode);
        }
        let broken = || self.broken_entry(0, (0, DirEntryRule::Dots));
        let first = self.contents.read(0)?.ok_or_else(broken)?;
        let entry = self.format.entries(&first).nth(1).ok_or_else(broken)?;
        let entry = entry.map_err(|broken| self.broken_entry(0, broken))?;
        let inode = entry.inode.filter(|_| entry.name == b"..");
        Ok(ParentSlot::Entry(Slot {
            found: Found {
                inode: inode.ok_or_else(broken)?,
                kind: entry.kind,
            },
            chunk: 0,
            before: Some(0),
            offset: entry.offset,
        }))
    }

    fn survey(&self, name: Name<'_>) -> Result<Survey> {
        self.refuse_encrypted()?;
        let wanted = self.wanted(name)?;
        let mut corruption = None;
        if let Some((walker, hashing)) = self.index(&mut corruption)? {
            match index::survey(walker, &hashing, &wanted) {
                Ok(survey) => return Ok(survey),
                Err(error) => corruption = Some(error),
            }
        }
        let survey = linear::survey(self, &wanted)?;
        match (survey, corruption) {
            (Survey::Missing(_), Some(corruption)) => Err(corruption),
            // New names are inserted by the index, even if it is corrupt.
            (Survey::Missing(_), None) if self.is_indexed() => {
                Ok(Survey::Missing(Vacancy { gap: None }))
            }
            (survey, _) => Ok(survey),
        }
    }

    /// Whether the directory has no entries except `.` and `..`.
    ///
    /// # Errors
    /// `Corrupt` if any part is corrupt, as it may contain entries.
    pub fn is_empty(&self) -> Result<bool> {
        for number in 0..self.contents.chunk_count() {
            let Some(chunk) = self.contents.read_in_order(number)? else {
                continue;
            };
            for entry in self.format.entries(&chunk) {
                let entry = entry.map_err(|broken| self.broken_entry(number, broken))?;
                if entry.inode.is_some() && !matches!(entry.name, b"." | b"..") {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Passes the entries after `from` to `sink`: in hash order if the kernel does so, else in the
    /// order they are stored.
    ///
    /// Corrupt entries are skipped, and the listing continues after them. It then ends with an
    /// error, even if it was interrupted and resumed in between.
    ///
    /// # Errors
    /// `NoKey` for an encrypted directory.
    pub fn read(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.refuse_encrypted()?;
        let mut corruption = None;
        let hashing = self.order_hashing(&mut corruption)?;
        let from = Position::decode(from);
        match hashing {
            Some(hashing) => Ordered::new(self, hashing).read(from, sink),
            None => linear::read(self, from, corruption, sink),
        }
    }

    fn wanted<'n>(&self, name: Name<'n>) -> Result<Wanted<'n>> {
        Wanted::new(name, self.is_casefolded(), self.is_strict())
    }

    fn lookup_dots(&self, name: Name<'_>) -> Result<Found> {
        if let Contents::Inline(inline) = &self.contents {
            let inode = if name.as_bytes() == b"." {
                self.inode.number
            } else {
                inline.parent
            };
            let kind = Some(FileKind::Directory);
            return Ok(Found { inode, kind });
        }
        let first = self.contents.read(0)?;
        let entries = first
            .iter()
            .flat_map(|chunk| self.format.entries(chunk))
            .take(2);
        for entry in entries {
            let entry = entry.map_err(|broken| self.broken_entry(0, broken))?;
            if let (true, Some(inode)) = (entry.name == name.as_bytes(), entry.inode) {
                let kind = entry.kind;
                return Ok(Found { inode, kind });
            }
        }
        Err(self.broken_entry(0, (0, DirEntryRule::Dots)))
    }

    /// Refuses an encrypted directory, whose names cannot be read without a key.
    ///
    /// # Errors
    /// `NoKey`.
    pub fn refuse_encrypted(&self) -> Result<()> {
        if self.inode.is_encrypted() {
            return Err(Condition::NoKey.into());
        }
        Ok(())
    }

    fn is_casefolded(&self) -> bool {
        self.inode.flags.contains(InodeFlags::CASEFOLD)
    }

    /// `EXT4_ENC_STRICT_MODE_FL`: names in casefolded directories are valid UTF-8.
    fn is_strict(&self) -> bool {
        self.fs.superblock.encoding_flags & 1 != 0
    }

    fn has_dir_index(&self) -> bool {
        let compat = self.fs.geometry.features.compat;
        compat.contains(Compat::DIR_INDEX)
    }

    fn is_indexed(&self) -> bool {
        let is_inline = matches!(self.contents, Contents::Inline(_));
        self.has_dir_index() && !is_inline && self.inode.flags.contains(InodeFlags::INDEX)
    }

    /// Bytes of a block available for entries.
    fn content_len(&self) -> usize {
        let geometry = &self.fs.geometry;
        let tail = if geometry.features.has_metadata_csum() {
            TAIL_BYTES
        } else {
            0
        };
        (geometry.block_bytes as usize).saturating_sub(tail)
    }

    fn hashing(&self, version: Option<HashVersion>) -> Option<Hashing> {
        Some(Hashing {
            version: version?,
            seed: hash::HashSeed(self.fs.superblock.hash_seed),
            casefold: self.is_casefolded(),
        })
    }

    /// `EXT2_FLAGS_UNSIGNED_HASH`.
    fn hashes_unsigned(&self) -> bool {
        self.fs.superblock.flags & 2 != 0
    }

    /// Returns the index and its hash function; `None` without an index, with an unknown hash, or
    /// if the root is corrupt, which is stored in `corruption`.
    fn index(&self, corruption: &mut Option<Error>) -> Result<Option<(Walker<'_, 'a>, Hashing)>> {
        if !self.is_indexed() {
            return Ok(None);
        }
        match Walker::open(self) {
            Ok(walker) => {
                let number = walker.hash_version();
                let version = HashVersion::of_directory(number, self.hashes_unsigned());
                Ok(self.hashing(version).map(|hashing| (walker, hashing)))
            }
            Err(error @ Error::Corrupt(_)) => {
                *corruption = Some(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the hash function of a listing; `None` if it is in storage order. As in the kernel,
    /// a directory that may be indexed when it grows is already listed in hash order.
    fn order_hashing(&self, corruption: &mut Option<Error>) -> Result<Option<Hashing>> {
        if self.is_indexed() {
            return Ok(self.index(corruption)?.map(|(_, hashing)| hashing));
        }
        if !self.has_dir_index() || !self.contents.is_small() {
            return Ok(None);
        }
        let number = self.fs.superblock.default_hash_version;
        Ok(self.hashing(HashVersion::of_superblock(number, self.hashes_unsigned())))
    }

    fn broken_entry(&self, chunk: u32, (offset, rule): (usize, DirEntryRule)) -> Error {
        Corrupt::new(self.locus(chunk, offset), rule).into()
    }

    fn broken_index(&self, block: FileBlock, rule: HtreeRule) -> Error {
        Corrupt::new(self.locus(block.0, 0), rule).into()
    }

    /// Returns a location in the directory; the offset is relative to the chunk.
    fn locus(&self, chunk: u32, offset: usize) -> Locus {
        let offset = self.contents.base(chunk).saturating_add(offset as u64);
        Locus::inode(u64::from(self.inode.number.get())).at_offset(offset)
    }
}

/// Converts an entry for a listing; `None` for a name that cannot be shown.
fn listed(
    name: &[u8],
    inode: InodeNr,
    kind: Option<FileKind>,
    next: Position,
) -> Option<DirEntry<'_>> {
    Some(DirEntry {
        name: Name::new(name).ok()?,
        id: inode.id(),
        kind,
        next: next.encode(),
    })
}

#[cfg(test)]
mod tests;
