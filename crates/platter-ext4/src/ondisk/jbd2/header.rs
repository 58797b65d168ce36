//! The header of every block of the log except logged blocks. Spec: `ext4/journal`, block header.

use std::fmt;

use platter_cache::commit::{TransactionId, TransactionNumber};
use platter_ondisk::endian::Be32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `h_magic`. A logged block that begins with it is stored with zeros in its place, and marked as
/// escaped.
pub const JBD2_MAGIC: u32 = 0xc03b_3998;

/// The first 12 bytes of a block. Spec: `ext4/journal`, `struct journal_header_s`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHeader {
    /// `h_magic`.
    pub magic: Be32,
    /// `h_blocktype`.
    pub kind: Be32,
    /// `h_sequence`.
    pub sequence: Be32,
}

const _: () = assert!(size_of::<DiskHeader>() == 12);

/// Number of a journal block; block 0 of an internal journal is its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogBlock(pub u32);

impl fmt::Display for LogBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Sequence number (tid) of a transaction. It wraps around, so comparison uses the signed
/// difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sequence(pub u32);

impl Sequence {
    /// Returns the sequence number of the next transaction.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this transaction came before `other`.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    /// Returns the later one of two transactions.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

impl TransactionNumber for Sequence {
    fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    fn is_before(self, other: Self) -> bool {
        Self::is_before(self, other)
    }
}

impl From<Sequence> for TransactionId {
    fn from(sequence: Sequence) -> Self {
        Self(sequence.0.into())
    }
}

impl From<TransactionId> for Sequence {
    /// The sequence of a transaction of the journal, which counts modulo 2^32.
    fn from(id: TransactionId) -> Self {
        let [b0, b1, b2, b3, ..] = id.0.to_le_bytes();
        Self(u32::from_le_bytes([b0, b1, b2, b3]))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// `h_blocktype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Tags of the logged blocks that follow.
    Descriptor,
    /// The end of a transaction.
    Commit,
    /// The journal superblock before there were features.
    SuperblockV1,
    /// The journal superblock.
    SuperblockV2,
    /// Blocks whose earlier copies in the log must not be replayed.
    Revoke,
}

impl BlockKind {
    /// Returns the stored number.
    #[must_use]
    pub fn encode(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }

    fn decode(kind: u32) -> Option<Self> {
        let kinds = [
            Self::Descriptor,
            Self::Commit,
            Self::SuperblockV1,
            Self::SuperblockV2,
            Self::Revoke,
        ];
        kinds.into_iter().find(|known| known.encode() == kind)
    }
}

/// A decoded block header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// The kind of block.
    pub kind: BlockKind,
    /// Its transaction.
    pub sequence: Sequence,
}

impl Header {
    /// Decodes the header of `block`. Returns `None` without a magic or with an unknown kind: such
    /// a block is the regular end of the log.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (disk, _) = DiskHeader::ref_from_prefix(block).ok()?;
        if disk.magic.get() != JBD2_MAGIC {
            return None;
        }
        Some(Self {
            kind: BlockKind::decode(disk.kind.get())?,
            sequence: Sequence(disk.sequence.get()),
        })
    }

    /// Returns the stored form.
    #[must_use]
    pub fn encode(self) -> DiskHeader {
        DiskHeader {
            magic: JBD2_MAGIC.into(),
            kind: self.kind.encode().into(),
            sequence: self.sequence.0.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_order_survives_wrap_around() {
        let last = Sequence(u32::MAX);
        assert!(last.is_before(last.next()));
        assert!(!last.next().is_before(last));
        assert!(!last.is_before(last));
        assert_eq!(last.next(), Sequence(0));
        assert_eq!(last.later(Sequence(0)), Sequence(0));
        assert_eq!(Sequence(0).later(last), Sequence(0));
    }

    #[test]
    fn header_round_trips() {
        let header = Header {
            kind: BlockKind::Revoke,
            sequence: Sequence(0x0102_0304),
        };
        let mut block = [0xff; 1024];
        block[..12].copy_from_slice(header.encode().as_bytes());
        assert_eq!(block[..4], [0xc0, 0x3b, 0x39, 0x98]);
        assert_eq!(Header::decode(&block), Some(header));
        block[7] = 6;
        assert_eq!(Header::decode(&block), None);
        block[0] = 0;
        assert_eq!(Header::decode(&block), None);
        assert_eq!(Header::decode(&block[..11]), None);
    }
}
