//! The descriptor block: one tag for each logged block that follows it.
//! Spec: `ext4/journal`, descriptor block.

use bitflags::bitflags;
use platter_ondisk::endian::{Be16, Be32, join_u32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::{Checksums, LogFormat, take};
use super::header::{BlockKind, DiskHeader, Header, Sequence};
use crate::ondisk::BlockNr;

/// A tag without version 3 checksums. Spec: `ext4/journal`, `struct journal_block_tag_s`.
///
/// `t_blocknr_high` follows with 64-bit block numbers; with version 2 checksums the tag is two
/// bytes longer, which are unused.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskTag {
    /// `t_blocknr`.
    pub block_lo: Be32,
    /// `t_checksum`: the low half.
    pub checksum: Be16,
    /// `t_flags`.
    pub flags: Be16,
}

/// A tag with version 3 checksums. Spec: `ext4/journal`, `struct journal_block_tag3_s`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskTag3 {
    /// `t_blocknr`.
    pub block_lo: Be32,
    /// `t_flags`.
    pub flags: Be32,
    /// `t_blocknr_high`: zero without 64-bit block numbers.
    pub block_hi: Be32,
    /// `t_checksum`.
    pub checksum: Be32,
}

const _: () = assert!(size_of::<DiskTag>() == 8);
const _: () = assert!(size_of::<DiskTag3>() == 16);

/// Bytes of the UUID after a tag without `SAME_UUID`.
const UUID_BYTES: usize = 16;

bitflags! {
    /// `t_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct TagFlags: u16 {
        /// The block began with the journal's magic, which was replaced by zeros.
        const ESCAPE = 0x1;
        /// No UUID follows: it is that of the preceding tag.
        const SAME_UUID = 0x2;
        /// The block was deleted in this transaction; never written.
        const DELETED = 0x4;
        /// The last tag of the block.
        const LAST_TAG = 0x8;
    }
}

/// One logged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The block's location in the filesystem.
    pub block: BlockNr,
    /// Its flags.
    pub flags: TagFlags,
    /// Checksum of the logged block; zero if tags have none.
    pub checksum: u32,
}

/// Iterates over the complete tags of a descriptor block.
#[derive(Debug, Clone)]
pub struct Tags<'a> {
    rest: &'a [u8],
    format: &'a LogFormat,
}

impl<'a> Tags<'a> {
    /// Decodes the tags of `block`, at most as many as fit.
    #[must_use]
    pub fn decode(block: &'a [u8], format: &'a LogFormat) -> Self {
        let rest = block.get(size_of::<DiskHeader>()..format.records_end());
        Self {
            rest: rest.unwrap_or_default(),
            format,
        }
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let (tag, rest) = decode_tag(self.rest, self.format)?;
        let uuid_bytes = if tag.flags.contains(TagFlags::SAME_UUID) {
            0
        } else {
            UUID_BYTES
        };
        let last = tag.flags.contains(TagFlags::LAST_TAG);
        let rest = rest.get(uuid_bytes..).filter(|_| !last);
        self.rest = rest.unwrap_or_default();
        Some(tag)
    }
}

fn decode_tag<'a>(bytes: &'a [u8], format: &LogFormat) -> Option<(Tag, &'a [u8])> {
    if let Checksums::Tag32 { .. } = format.checksums {
        let (disk, rest) = take::<DiskTag3>(bytes)?;
        let [_, _, flags @ ..] = disk.flags.to_bytes();
        let tag = Tag {
            block: join(format, disk.block_hi, disk.block_lo),
            flags: TagFlags::from_bits_retain(Be16::from_bytes(flags).get()),
            checksum: disk.checksum.get(),
        };
        return Some((tag, rest));
    }
    let (disk, rest) = take::<DiskTag>(bytes)?;
    let (block_hi, rest) = if format.wide {
        take::<Be32>(rest)?
    } else {
        (Be32::ZERO, rest)
    };
    let rest = match format.checksums {
        Checksums::Tag16 { .. } => take::<Be16>(rest)?.1,
        Checksums::None | Checksums::Commit | Checksums::Tag32 { .. } => rest,
    };
    let tag = Tag {
        block: join(format, block_hi, disk.block_lo),
        flags: TagFlags::from_bits_retain(disk.flags.get()),
        checksum: u32::from(disk.checksum.get()),
    };
    Some((tag, rest))
}

fn join(format: &LogFormat, high: Be32, low: Be32) -> BlockNr {
    let high = if format.wide { high.get() } else { 0 };
    BlockNr(join_u32(high, low.get()))
}

/// Returns the size of a stored tag in bytes.
fn tag_bytes(format: &LogFormat) -> usize {
    let wide = if format.wide { 4 } else { 0 };
    match format.checksums {
        Checksums::None | Checksums::Commit => size_of::<DiskTag>().saturating_add(wide),
        Checksums::Tag16 { .. } => size_of::<DiskTag>().saturating_add(wide).saturating_add(2),
        Checksums::Tag32 { .. } => size_of::<DiskTag3>(),
    }
}

/// Returns the capacity of a descriptor block in tags, as written by [`encode`].
#[must_use]
pub fn tags_max(format: &LogFormat) -> usize {
    let fixed = size_of::<DiskHeader>().saturating_add(UUID_BYTES);
    let capacity = format.records_end().saturating_sub(fixed);
    capacity.checked_div(tag_bytes(format)).unwrap_or_default()
}

/// Encodes a descriptor block of transaction `sequence` with these tags, at most [`tags_max`], in a
/// journal of this UUID. Sets the `SAME_UUID` and `LAST_TAG` flags itself.
#[must_use]
pub fn encode(
    sequence: Sequence,
    tags: &[Tag],
    uuid: [u8; UUID_BYTES],
    format: &LogFormat,
) -> Vec<u8> {
    let header = Header {
        kind: BlockKind::Descriptor,
        sequence,
    };
    let mut block = Vec::with_capacity(format.block_bytes as usize);
    block.extend(header.encode().as_bytes());
    let last = tags.len().saturating_sub(1);
    for (index, tag) in tags.iter().enumerate() {
        let mut tag = *tag;
        tag.flags.set(TagFlags::SAME_UUID, index > 0);
        tag.flags.set(TagFlags::LAST_TAG, index == last);
        encode_tag(&tag, format, &mut block);
        if index == 0 {
            block.extend(uuid);
        }
    }
    debug_assert!(
        block.len() <= format.records_end(),
        "the tags fit the block"
    );
    block.resize(format.block_bytes as usize, 0);
    format.seal_tail(&mut block);
    block
}

/// Appends the stored form of `tag` to a descriptor block under construction.
pub fn encode_tag(tag: &Tag, format: &LogFormat, block: &mut Vec<u8>) {
    let [.., b4, b5, b6, b7] = tag.block.0.to_be_bytes();
    let [h0, h1, h2, h3, ..] = tag.block.0.to_be_bytes();
    let (low, high) = ([b4, b5, b6, b7], [h0, h1, h2, h3]);
    block.extend(low);
    if let Checksums::Tag32 { .. } = format.checksums {
        block.extend(u32::from(tag.flags.bits()).to_be_bytes());
        block.extend(if format.wide { high } else { [0; 4] });
        block.extend(tag.checksum.to_be_bytes());
        return;
    }
    let [.., c2, c3] = tag.checksum.to_be_bytes();
    block.extend([c2, c3]);
    block.extend(tag.flags.bits().to_be_bytes());
    if format.wide {
        block.extend(high);
    }
    if let Checksums::Tag16 { .. } = format.checksums {
        block.extend([0; 2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(wide: bool, checksums: Checksums) -> LogFormat {
        LogFormat {
            block_bytes: 1024,
            wide,
            checksums,
            async_commit: false,
        }
    }

    fn tag(block: u64, flags: TagFlags, checksum: u32) -> Tag {
        Tag {
            block: BlockNr(block),
            flags,
            checksum,
        }
    }

    #[test]
    fn tags_round_trip_in_every_layout() {
        let layouts = [
            (false, Checksums::None, 8),
            (true, Checksums::None, 12),
            (false, Checksums::Tag16 { seed: 0 }, 10),
            (true, Checksums::Tag16 { seed: 0 }, 14),
            (false, Checksums::Tag32 { seed: 0 }, 16),
            (true, Checksums::Tag32 { seed: 0 }, 16),
        ];
        for (wide, checksums, tag_bytes) in layouts {
            let format = format(wide, checksums);
            let high = if wide { 0x7_0000_0000 } else { 0 };
            let tags = [
                tag(high + 5, TagFlags::ESCAPE, 0xabcd),
                tag(high + 6, TagFlags::SAME_UUID, 0x1234),
                tag(high + 7, TagFlags::SAME_UUID | TagFlags::LAST_TAG, 0),
            ];
            let mut block = vec![0; size_of::<DiskHeader>()];
            encode_tag(&tags[0], &format, &mut block);
            assert_eq!(block.len(), 12 + tag_bytes);
            block.extend([0xee; UUID_BYTES]);
            encode_tag(&tags[1], &format, &mut block);
            encode_tag(&tags[2], &format, &mut block);
            block.resize(1024, 0xff);
            assert_eq!(Tags::decode(&block, &format).collect::<Vec<_>>(), tags);
        }
    }

    #[test]
    fn full_descriptor_round_trips_in_every_layout() {
        let checksums = [
            Checksums::None,
            Checksums::Commit,
            Checksums::Tag16 { seed: 1 },
            Checksums::Tag32 { seed: 1 },
        ];
        for (checksums, wide) in checksums
            .into_iter()
            .flat_map(|sums| [(sums, false), (sums, true)])
        {
            let format = format(wide, checksums);
            let count = tags_max(&format);
            let sum = if format.seed().is_some() { 0xabcd } else { 0 };
            let tags: Vec<_> = (0..count as u64)
                .map(|block| tag(block, TagFlags::ESCAPE, sum))
                .collect();
            let block = encode(Sequence(7), &tags, [0xee; UUID_BYTES], &format);
            let header = Header::decode(&block).unwrap();
            assert_eq!(
                (header.kind, header.sequence),
                (BlockKind::Descriptor, Sequence(7))
            );
            assert!(format.tail_matches(&block));
            let found: Vec<_> = Tags::decode(&block, &format).collect();
            assert_eq!(found.len(), count);
            assert!(
                found
                    .iter()
                    .zip(&tags)
                    .all(|(found, tag)| found.block == tag.block
                        && found.checksum == tag.checksum
                        && found.flags.contains(TagFlags::ESCAPE))
            );
            let capacity = format.records_end() - 12 - UUID_BYTES - count * tag_bytes(&format);
            assert!(capacity < tag_bytes(&format), "one more tag would fit");
        }
    }

    #[test]
    fn block_without_last_tag_ends_at_last_complete_tag() {
        let format = format(false, Checksums::Tag32 { seed: 0 });
        let mut block = vec![0; size_of::<DiskHeader>()];
        let plain = tag(5, TagFlags::SAME_UUID, 0);
        while block.len() < 1024 {
            encode_tag(&plain, &format, &mut block);
        }
        block.truncate(1024);
        assert_eq!(Tags::decode(&block, &format).count(), (1024 - 12 - 4) / 16);
    }

    #[test]
    fn block_too_short_for_a_tag_has_none() {
        let format = format(false, Checksums::None);
        assert_eq!(Tags::decode(&[0; 12], &format).count(), 0);
        assert_eq!(Tags::decode(&[], &format).count(), 0);
    }
}
