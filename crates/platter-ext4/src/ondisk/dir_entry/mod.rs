//! Directory blocks: a chain of entries that fills the block, and with `metadata_csum` a tail
//! that holds the checksum. Spec: `ext4/directory` (linear directories).

mod edit;
mod survey;

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32};
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify, rules};
use platter_vfs::FileKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::features::Incompat;
use super::geometry::Geometry;
use super::htree;
use super::structure::Structure;
use super::types::InodeNr;

pub use edit::{Gap, split_new_tail, stored_len};
pub use survey::{Surveyed, survey};

/// Bytes of an entry before its name.
pub const ENTRY_HEADER_BYTES: usize = 8;
/// Bytes of the smallest entry that holds a name.
pub const ENTRY_LEN_MIN: usize = 12;
/// Entries begin at multiples of this many bytes.
const ENTRY_ALIGN: usize = 4;
/// Bytes of the hash that follows the name in an encrypted and casefolded directory.
const ENTRY_HASH_BYTES: usize = 8;
/// The size of blocks from which on `rec_len` is encoded.
const LONG_BLOCK_BYTES: u32 = 0x1_0000;
/// `det_reserved_ft`: distinguishes a tail from an entry.
const TAIL_FILE_TYPE: u8 = 0xde;
/// Length of the tail in bytes.
pub const TAIL_BYTES: usize = 12;

/// The header of an entry as stored. Spec: `ext4/directory`, `struct ext4_dir_entry_2`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDirEntry {
    /// `inode`: zero in an unused entry.
    pub inode: Le32,
    /// `rec_len`: distance to the next entry; see [`decode_rec_len`].
    pub rec_len: Le16,
    /// `name_len`.
    pub name_len: u8,
    /// `file_type`; without the `filetype` feature, the high half of `name_len`, always 0.
    pub file_type: u8,
}

const _: () = assert!(size_of::<DiskDirEntry>() == ENTRY_HEADER_BYTES);

/// The tail of a directory block as stored, in the form of an unused entry. Spec: `ext4/directory`,
/// `struct ext4_dir_entry_tail`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDirTail {
    /// `det_reserved_zero1`.
    pub inode: Le32,
    /// `det_rec_len`: 12.
    pub rec_len: Le16,
    /// `det_reserved_zero2`.
    pub name_len: u8,
    /// `det_reserved_ft`: 0xde.
    pub file_type: u8,
    /// `det_checksum`: of the block before the tail, from the inode's seed.
    pub checksum: Le32,
}

const _: () = assert!(size_of::<DiskDirTail>() == TAIL_BYTES);
const _: () = assert!(offset_of!(DiskDirTail, checksum) == 8);

rules! {
    /// The rules of a directory entry.
    pub enum DirEntryRule of "directory entry" {
        /// The header is within the block.
        Truncated => "entry header exceeds the block",
        /// `rec_len` fits at least a name of one byte.
        LengthMin => "rec_len is smaller than minimal",
        /// `rec_len` is a multiple of four.
        LengthAlign => "rec_len % 4 != 0",
        /// `rec_len` fits the name.
        LengthName => "rec_len is too small for name_len",
        /// The entry ends within the block.
        Overrun => "directory entry overrun",
        /// The space after the entry fits another one.
        Remainder => "directory entry too close to block end",
        /// `inode` is at most the number of inodes.
        Inode => "inode out of bounds",
        /// An entry in use has a name.
        NameEmpty => "zero-length name",
        /// A name contains neither a slash nor NUL.
        NameBytes => "illegal characters in the name",
        /// The first two entries are `.`, with the directory's own inode, and `..`.
        Dots => "first entries should be '.' and '..'",
    }
}

rules! {
    /// The rules of a directory block as a whole.
    pub enum DirBlockRule of "directory block" {
        /// The block ends with a tail.
        Tail => "has no checksum tail",
        /// `det_checksum`.
        Checksum => "checksum does not match",
    }
}

/// The parameters for decoding entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFormat {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Number of inodes of the filesystem.
    pub inodes_count: u32,
    /// Entries store the file type (`filetype`).
    pub has_file_type: bool,
    /// Names are followed by their hash, as in encrypted and casefolded directories.
    pub has_hash: bool,
}

/// One entry, used or unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its byte offset in the block.
    pub offset: usize,
    /// Byte offset of the next entry, or of the end of the block.
    pub end: usize,
    /// Its inode; `None` in an unused entry.
    pub inode: Option<InodeNr>,
    /// The file type, if entries store it.
    pub kind: Option<FileKind>,
    /// The name as stored; encrypted names are arbitrary bytes. Not empty in an entry in use.
    pub name: &'a [u8],
}

/// Iterates over the entries of a block or inline region. Ends after the first corrupt one.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    format: EntryFormat,
    offset: usize,
}

impl EntryFormat {
    /// Returns the entry format of a filesystem. `has_hash` depends on the directory.
    #[must_use]
    pub fn new(geometry: &Geometry, has_hash: bool) -> Self {
        Self {
            block_bytes: geometry.block_bytes,
            inodes_count: geometry.inodes_count,
            has_file_type: geometry.features.incompat.contains(Incompat::FILETYPE),
            has_hash,
        }
    }

    /// Returns the entries in `bytes`: a block, or one of the two regions of an inline directory.
    #[must_use]
    pub fn entries(self, bytes: &[u8]) -> Entries<'_> {
        Entries {
            bytes,
            format: self,
            offset: 0,
        }
    }

    fn decode(self, bytes: &[u8], offset: usize) -> Result<Entry<'_>, DirEntryRule> {
        let rest = bytes.get(offset..).unwrap_or_default();
        let Some(head) = self.head(rest) else {
            return Err(self.broken_rule(rest));
        };
        Ok(Entry {
            offset,
            end: offset.saturating_add(head.length),
            inode: InodeNr::new(head.inode),
            kind: decode_kind(head.file_type).filter(|_| self.has_file_type),
            name: head.name(rest),
        })
    }

    /// Whether names have no hash and the lengths of entries are stored as they are.
    fn is_plain(self) -> bool {
        !self.has_hash && self.block_bytes < LONG_BLOCK_BYTES
    }

    /// Returns the same format as constants, which loops are compiled for. The format [is plain](Self::is_plain).
    #[inline]
    fn as_plain(self) -> Self {
        Self {
            block_bytes: LONG_BLOCK_BYTES - 1,
            has_hash: false,
            ..self
        }
    }

    /// Returns the header of the entry at the start of `rest` if it breaks no rule. Loops over many
    /// entries use this fast path.
    #[inline]
    fn head(self, rest: &[u8]) -> Option<Head> {
        let head = Head::read(rest, self.block_bytes)?;
        let needed = if self.has_hash {
            self.length_min(head, rest)
        } else {
            aligned(head.name_len)
        };
        // Wraps to more than the block holds if the entry ends beyond it.
        let left = rest.len().wrapping_sub(head.length);
        let is_sound = head.length >= needed
            && head.length >= ENTRY_LEN_MIN
            && head.length & (ENTRY_ALIGN - 1) == 0
            && (left == 0 || left >= ENTRY_LEN_MIN && left < rest.len())
            && head.inode <= self.inodes_count
            && (head.inode == 0 || head.name_len > 0);
        is_sound.then_some(head)
    }

    /// Returns the rule that the entry at the start of `rest` breaks.
    #[cold]
    fn broken_rule(self, rest: &[u8]) -> DirEntryRule {
        let Some(head) = Head::read(rest, self.block_bytes) else {
            return DirEntryRule::Truncated;
        };
        let left = rest.len().saturating_sub(head.length);
        if head.length < ENTRY_LEN_MIN {
            DirEntryRule::LengthMin
        } else if !head.length.is_multiple_of(ENTRY_ALIGN) {
            DirEntryRule::LengthAlign
        } else if head.length < self.length_min(head, rest) {
            DirEntryRule::LengthName
        } else if head.length > rest.len() {
            DirEntryRule::Overrun
        } else if (1..ENTRY_LEN_MIN).contains(&left) {
            DirEntryRule::Remainder
        } else if head.inode > self.inodes_count {
            DirEntryRule::Inode
        } else {
            DirEntryRule::NameEmpty
        }
    }

    /// Returns the minimum length for the name: header, name, and hash if there is one.
    fn length_min(self, head: Head, rest: &[u8]) -> usize {
        let is_dot = || matches!(head.name(rest), b"." | b"..");
        let hash = if self.has_hash && head.inode != 0 && !is_dot() {
            ENTRY_HASH_BYTES
        } else {
            0
        };
        aligned(head.name_len.wrapping_add(hash))
    }
}

/// The header of an entry.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// Zero in an unused entry.
    inode: u32,
    length: usize,
    name_len: usize,
    file_type: u8,
}

impl Head {
    /// Reads the header at the start of `rest` without validating it.
    #[inline]
    fn read(rest: &[u8], block_bytes: u32) -> Option<Self> {
        let disk: &DiskDirEntry =
            zerocopy::transmute_ref!(rest.first_chunk::<ENTRY_HEADER_BYTES>()?);
        Some(Self {
            inode: disk.inode.get(),
            length: decode_rec_len(disk.rec_len.get(), block_bytes),
            name_len: usize::from(disk.name_len),
            file_type: disk.file_type,
        })
    }

    /// Bytes after the name, or the whole entry if it is unused.
    #[inline]
    fn capacity(self) -> usize {
        self.length.saturating_sub(self.used())
    }

    /// Bytes that the entry needs, if it is in use.
    #[inline]
    fn used(self) -> usize {
        if self.inode == 0 {
            return 0;
        }
        aligned(self.name_len)
    }

    /// Returns the name, with the entry at the start of `rest`.
    #[inline]
    fn name(self, rest: &[u8]) -> &[u8] {
        let end = ENTRY_HEADER_BYTES.saturating_add(self.name_len);
        rest.get(ENTRY_HEADER_BYTES..end).unwrap_or_default()
    }
}

/// Returns the length of an entry with this many bytes after its header, rounded up.
#[inline]
fn aligned(len: usize) -> usize {
    const ROUND: usize = ENTRY_HEADER_BYTES + ENTRY_ALIGN - 1;
    len.wrapping_add(ROUND) & !(ENTRY_ALIGN - 1)
}

impl<'a> Iterator for Entries<'a> {
    /// An entry, or the rule that the entry at this offset breaks.
    type Item = Result<Entry<'a>, (usize, DirEntryRule)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let at = self.offset;
        let entry = self.format.decode(self.bytes, at);
        self.offset = entry.as_ref().map_or(usize::MAX, |entry| entry.end);
        Some(entry.map_err(|rule| (at, rule)))
    }
}

/// Decodes `rec_len`, the distance to the next entry in bytes. In 64 KiB blocks the two lowest bits
/// are bits 16 and 17, and both 0 and 65535 mean the whole block.
#[must_use]
#[inline]
pub fn decode_rec_len(stored: u16, block_bytes: u32) -> usize {
    let stored = usize::from(stored);
    if block_bytes < LONG_BLOCK_BYTES {
        stored
    } else if stored == 0 || stored == 0xffff {
        0x1_0000
    } else {
        (stored & 0xfffc) | ((stored & 0x3) << 16)
    }
}

fn decode_kind(file_type: u8) -> Option<FileKind> {
    Some(match file_type {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}

/// Validates the checksum of a block of entries.
pub fn verify_checksum(seed: u32, bytes: &[u8]) -> Result<(), DirBlockRule> {
    let (content, tail) = split_tail(bytes).ok_or(DirBlockRule::Tail)?;
    if crc32c(seed, content) != tail.checksum.get() {
        return Err(DirBlockRule::Checksum);
    }
    Ok(())
}

fn split_tail(bytes: &[u8]) -> Option<(&[u8], &DiskDirTail)> {
    let (content, tail) = DiskDirTail::ref_from_suffix(bytes).ok()?;
    let is_tail = tail.inode.get() == 0
        && usize::from(tail.rec_len.get()) == TAIL_BYTES
        && tail.name_len == 0
        && tail.file_type == TAIL_FILE_TYPE;
    is_tail.then_some((content, tail))
}

/// Validates the checksum of any block of one directory: of entries, or of its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirBlockVerifier {
    /// The directory.
    pub inode: InodeNr,
    /// Seed of its checksums; `None` without `metadata_csum`.
    pub checksum_seed: Option<u32>,
    /// The directory is indexed (`EXT4_INDEX_FL`).
    pub is_indexed: bool,
    /// The block is the first one, which holds the root of an index.
    pub is_first: bool,
}

impl DirBlockVerifier {
    /// Whether these bytes are an index block: an interior node begins with one unused entry as
    /// long as the block.
    #[must_use]
    pub fn is_index_block(&self, bytes: &[u8]) -> bool {
        self.is_indexed && (self.is_first || htree::is_node(bytes))
    }
}

impl Verify for DirBlockVerifier {
    fn key(&self) -> VerifierKey {
        let Some(checksum_seed) = self.checksum_seed else {
            return VerifierKey {
                structure: Structure::DirBlock as u32,
                seed: 0,
            };
        };
        let kind = 1 | u64::from(self.is_indexed) << 1 | u64::from(self.is_first) << 2;
        VerifierKey {
            structure: Structure::DirBlock as u32,
            seed: u64::from(checksum_seed) << 32 | kind,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let Some(seed) = self.checksum_seed else {
            return Ok(());
        };
        let locus = Locus::block(block).of_inode(u64::from(self.inode.get()));
        if self.is_index_block(bytes) {
            htree::verify_checksum(seed, bytes).map_err(|rule| Corrupt::new(locus, rule).into())
        } else {
            verify_checksum(seed, bytes).map_err(|rule| Corrupt::new(locus, rule).into())
        }
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        let Some(seed) = self.checksum_seed else {
            return;
        };
        if self.is_index_block(bytes) {
            htree::seal(seed, bytes);
        } else if let Some((content, _)) = split_tail(bytes) {
            let checksum = crc32c(seed, content);
            if let Ok((_, tail)) = DiskDirTail::mut_from_suffix(bytes) {
                tail.checksum.set(checksum);
            }
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests;
