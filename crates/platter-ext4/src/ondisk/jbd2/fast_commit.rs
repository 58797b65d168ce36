//! Fast commit records: little-endian tag, length and value, packed into the blocks after the log.
//! No record crosses a block boundary. Spec: `ext4/journal`, fast commits.

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32, join_u32};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Sequence;
use crate::ondisk::{BlockNr, FileBlock, InodeNr};

/// Maximum length of a directory entry name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Minimum length of an inode in a record in bytes: the part every inode has.
const INODE_BYTES_MIN: usize = 128;
/// Maximum length of an initialized extent in blocks; a greater one is unwritten, by that many
/// fewer blocks.
const WRITTEN_LEN_MAX: u16 = 32768;

/// The header of each record. Spec: `ext4/journal`, `struct ext4_fc_tl`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskTagLength {
    /// `fc_tag`.
    tag: Le16,
    /// `fc_len`: length of the value in bytes.
    len: Le16,
}

/// Value of the first record. Spec: `ext4/journal`, `struct ext4_fc_head`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskHead {
    /// `fc_features`.
    features: Le32,
    /// `fc_tid`.
    sequence: Le32,
}

/// Blocks mapped in a file. Spec: `ext4/journal`, `struct ext4_fc_add_range`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskAddRange {
    /// `fc_ino`.
    inode: Le32,
    /// `fc_ex`: `ee_block`.
    first: Le32,
    /// `ee_len`.
    len: Le16,
    /// `ee_start_hi`.
    start_hi: Le16,
    /// `ee_start_lo`.
    start_lo: Le32,
}

/// Blocks unmapped from a file. Spec: `ext4/journal`, `struct ext4_fc_del_range`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskDelRange {
    /// `fc_ino`.
    inode: Le32,
    /// `fc_lblk`.
    first: Le32,
    /// `fc_len`.
    len: Le32,
}

/// The fields before the name of an entry. Spec: `ext4/journal`, `struct ext4_fc_dentry_info`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    /// `fc_parent_ino`.
    parent: Le32,
    /// `fc_ino`.
    inode: Le32,
}

/// Value of the last record of a fast commit. Spec: `ext4/journal`, `struct ext4_fc_tail`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskTail {
    /// `fc_tid`.
    sequence: Le32,
    /// `fc_crc`: CRC-32C of all records of the fast commit, up to this field, from zero.
    crc: Le32,
}

const _: () = assert!(size_of::<DiskAddRange>() == 16);
const _: () = assert!(offset_of!(DiskTail, crc) == 4);

rules! {
    /// The rules of a fast commit record.
    pub enum FastCommitRule of "fast commit record" {
        /// `fc_tag` is known.
        Tag => "unknown tag",
        /// `fc_len` is within the block and valid for the tag.
        Length => "invalid length",
        /// The first fast commit after a transaction is complete.
        First => "first fast commit is incomplete, which fails a kernel mount",
        /// `fc_ino` is an inode of the filesystem.
        Inode => "inode out of bounds",
        /// `fc_ex` is an extent within the filesystem.
        Range => "invalid block range",
        /// Records of block ranges refer to files mapped by extents.
        NoExtents => "block range of a file without extents",
        /// A name is valid for a directory entry.
        Name => "invalid directory entry name",
        /// A created inode is in use when it is linked.
        Missing => "created inode is not in use",
        /// No record names the root directory, or makes it another inode.
        Root => "root directory as another inode",
        /// A directory has one parent.
        Parent => "created directory has another parent",
    }
}

/// An extent mapped in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddRange {
    /// The file's inode.
    pub inode: InodeNr,
    /// First logical block.
    pub first: FileBlock,
    /// Number of blocks, not zero.
    pub len: u32,
    /// First physical block.
    pub start: BlockNr,
    /// Unwritten: allocated, but reads as zeros.
    pub unwritten: bool,
}

/// A directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The directory.
    pub parent: InodeNr,
    /// The inode that the name refers to.
    pub inode: InodeNr,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

/// One decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// Begins the first fast commit after a transaction.
    Head {
        /// Features of the records; none is known.
        features: u32,
        /// The transaction that these fast commits belong to.
        sequence: Sequence,
    },
    /// Blocks were mapped in a file.
    AddRange(AddRange),
    /// Blocks were unmapped from a file.
    DelRange {
        /// The file's inode.
        inode: InodeNr,
        /// First logical block.
        first: FileBlock,
        /// Number of blocks.
        len: u32,
    },
    /// An inode was created and linked.
    Create(Entry<'a>),
    /// An inode was linked.
    Link(Entry<'a>),
    /// An inode was unlinked.
    Unlink(Entry<'a>),
    /// The contents of an inode, except its block mapping.
    Inode {
        /// The inode.
        inode: InodeNr,
        /// Its bytes: from 128 to the inode size.
        raw: &'a [u8],
    },
    /// Padding up to the end of the block.
    Pad,
    /// Ends a fast commit: all records so far are valid if the CRC matches.
    Tail {
        /// The same as in the head.
        sequence: Sequence,
        /// CRC-32C of the fast commit's records.
        crc: u32,
    },
}

/// Iterates over the records of one block. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    inode_bytes: usize,
}

impl<'a> Records<'a> {
    /// Decodes the records of `block`, in a filesystem with an inode size of `inode_bytes`.
    #[must_use]
    pub fn decode(block: &'a [u8], inode_bytes: u16) -> Self {
        Self {
            rest: block,
            inode_bytes: usize::from(inode_bytes),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    /// The record, and the bytes of it that the CRC covers.
    type Item = Result<(Record<'a>, &'a [u8]), Corrupt<FastCommitRule>>;

    fn next(&mut self) -> Option<Self::Item> {
        let whole = std::mem::take(&mut self.rest);
        let (header, rest) = DiskTagLength::ref_from_prefix(whole).ok()?;
        let value_len = usize::from(header.len.get());
        let Some((value, rest)) = rest.split_at_checked(value_len) else {
            return Some(Err(broken(FastCommitRule::Length)));
        };
        let record = match decode_value(header.tag.get(), value, self.inode_bytes) {
            Ok(record) => record,
            Err(error) => return Some(Err(error)),
        };
        self.rest = rest;
        let value_covered = if let Record::Tail { .. } = record {
            offset_of!(DiskTail, crc)
        } else {
            value_len
        };
        let covered = value_covered.saturating_add(size_of::<DiskTagLength>());
        Some(Ok((record, whole.get(..covered).unwrap_or_default())))
    }
}

/// Continues the CRC of a fast commit over the covered bytes of one more record.
#[must_use]
pub fn continue_crc(crc: u32, covered: &[u8]) -> u32 {
    crc32c(crc, covered)
}

fn broken(rule: FastCommitRule) -> Corrupt<FastCommitRule> {
    Corrupt::new(Locus::default(), rule)
}

fn decode_value(
    tag: u16,
    value: &[u8],
    inode_bytes: usize,
) -> Result<Record<'_>, Corrupt<FastCommitRule>> {
    match tag {
        0x1 => add_range(exact(value)?),
        0x2 => {
            let disk: &DiskDelRange = exact(value)?;
            Ok(Record::DelRange {
                inode: inode(disk.inode)?,
                first: FileBlock(disk.first.get()),
                len: disk.len.get(),
            })
        }
        0x3 => Ok(Record::Create(entry(value)?)),
        0x4 => Ok(Record::Link(entry(value)?)),
        0x5 => Ok(Record::Unlink(entry(value)?)),
        0x6 => {
            let (number, raw) = prefix::<Le32>(value)?;
            if !(INODE_BYTES_MIN..=inode_bytes).contains(&raw.len()) {
                return Err(broken(FastCommitRule::Length));
            }
            Ok(Record::Inode {
                inode: inode(*number)?,
                raw,
            })
        }
        0x7 => Ok(Record::Pad),
        0x8 => {
            let (disk, _) = prefix::<DiskTail>(value)?;
            Ok(Record::Tail {
                sequence: Sequence(disk.sequence.get()),
                crc: disk.crc.get(),
            })
        }
        0x9 => {
            let disk: &DiskHead = exact(value)?;
            Ok(Record::Head {
                features: disk.features.get(),
                sequence: Sequence(disk.sequence.get()),
            })
        }
        _ => Err(broken(FastCommitRule::Tag)),
    }
}

fn add_range(disk: &DiskAddRange) -> Result<Record<'_>, Corrupt<FastCommitRule>> {
    let stored = disk.len.get();
    let unwritten = stored > WRITTEN_LEN_MAX;
    let len = if unwritten {
        stored.saturating_sub(WRITTEN_LEN_MAX)
    } else {
        stored
    };
    if len == 0 {
        return Err(broken(FastCommitRule::Range));
    }
    Ok(Record::AddRange(AddRange {
        inode: inode(disk.inode)?,
        first: FileBlock(disk.first.get()),
        len: u32::from(len),
        start: BlockNr(join_u32(
            u32::from(disk.start_hi.get()),
            disk.start_lo.get(),
        )),
        unwritten,
    }))
}

fn entry(value: &[u8]) -> Result<Entry<'_>, Corrupt<FastCommitRule>> {
    let (disk, name) = prefix::<DiskEntry>(value)?;
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Err(broken(FastCommitRule::Length));
    }
    Ok(Entry {
        parent: inode(disk.parent)?,
        inode: inode(disk.inode)?,
        name,
    })
}

fn inode(number: Le32) -> Result<InodeNr, Corrupt<FastCommitRule>> {
    InodeNr::new(number.get()).ok_or(broken(FastCommitRule::Inode))
}

fn exact<T>(value: &[u8]) -> Result<&T, Corrupt<FastCommitRule>>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_bytes(value).map_err(|_| broken(FastCommitRule::Length))
}

fn prefix<T>(value: &[u8]) -> Result<(&T, &[u8]), Corrupt<FastCommitRule>>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(value).map_err(|_| broken(FastCommitRule::Length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len()).unwrap();
        let mut bytes = Vec::from(tag.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(value);
        bytes
    }

    fn numbers(values: &[u32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    fn decode(bytes: &[u8]) -> Vec<Result<Record<'_>, FastCommitRule>> {
        let records = Records::decode(bytes, 256);
        records
            .map(|result| result.map(|(record, _)| record).map_err(|error| error.rule))
            .collect()
    }

    fn refused(tag: u16, value: &[u8]) -> FastCommitRule {
        *decode(&record(tag, value))
            .last()
            .unwrap()
            .as_ref()
            .unwrap_err()
    }

    #[test]
    fn every_kind_of_record_is_decoded() {
        let (parent, inode) = (InodeNr::ROOT, InodeNr::new(12).unwrap());
        let entry = Entry {
            parent,
            inode,
            name: b"name",
        };
        let mut named = numbers(&[2, 12]);
        named.extend(b"name");
        let mut raw = numbers(&[12]);
        raw.extend([7; 160]);
        let mut range = numbers(&[12, 5]);
        range.extend([0x03, 0x80, 0x01, 0x00, 0x02, 0x00, 0x00, 0x00]);
        let records = [
            (
                9,
                numbers(&[0, 4]),
                Record::Head {
                    features: 0,
                    sequence: Sequence(4),
                },
            ),
            (
                1,
                range,
                Record::AddRange(AddRange {
                    inode,
                    first: FileBlock(5),
                    len: 3,
                    start: BlockNr(0x1_0000_0002),
                    unwritten: true,
                }),
            ),
            (
                2,
                numbers(&[12, 5, 6]),
                Record::DelRange {
                    inode,
                    first: FileBlock(5),
                    len: 6,
                },
            ),
            (3, named.clone(), Record::Create(entry)),
            (4, named.clone(), Record::Link(entry)),
            (5, named, Record::Unlink(entry)),
            (
                6,
                raw,
                Record::Inode {
                    inode,
                    raw: &[7; 160],
                },
            ),
            (7, vec![1, 2, 3], Record::Pad),
            (
                8,
                numbers(&[4, 0xabcd, 9]),
                Record::Tail {
                    sequence: Sequence(4),
                    crc: 0xabcd,
                },
            ),
        ];
        let bytes: Vec<_> = records
            .iter()
            .flat_map(|(tag, value, _)| record(*tag, value))
            .collect();
        let expected: Vec<_> = records
            .into_iter()
            .map(|(_, _, record)| Ok(record))
            .collect();
        assert_eq!(decode(&bytes), expected);
    }

    #[test]
    fn crc_covers_a_tail_up_to_its_crc() {
        let bytes = record(8, &numbers(&[4, 5, 6]));
        let (_, covered) = Records::decode(&bytes, 256).next().unwrap().unwrap();
        assert_eq!(covered, &bytes[..8]);
    }

    #[test]
    fn unknown_tag_is_refused() {
        assert_eq!(refused(10, &[]), FastCommitRule::Tag);
        assert_eq!(refused(0, &[]), FastCommitRule::Tag);
    }

    #[test]
    fn invalid_length_is_refused() {
        assert_eq!(refused(1, &[0; 15]), FastCommitRule::Length);
        assert_eq!(refused(2, &[1; 13]), FastCommitRule::Length);
        assert_eq!(refused(3, &[1; 8]), FastCommitRule::Length);
        assert_eq!(refused(3, &[1; 8 + 256]), FastCommitRule::Length);
        assert_eq!(refused(6, &[1; 4 + 127]), FastCommitRule::Length);
        assert_eq!(refused(6, &[1; 4 + 257]), FastCommitRule::Length);
        assert_eq!(refused(8, &[1; 7]), FastCommitRule::Length);
        assert_eq!(refused(9, &[1; 9]), FastCommitRule::Length);
        let mut cut = record(7, &[0; 8]);
        cut.pop();
        assert_eq!(decode(&cut), [Err(FastCommitRule::Length)]);
    }

    #[test]
    fn inode_zero_and_empty_range_are_refused() {
        assert_eq!(refused(2, &numbers(&[0, 1, 1])), FastCommitRule::Inode);
        let mut range = numbers(&[12, 5]);
        range.extend([0; 8]);
        assert_eq!(refused(1, &range), FastCommitRule::Range);
    }

    #[test]
    fn short_block_end_is_no_error() {
        assert_eq!(decode(&[1, 2, 3]), []);
    }
}
