//! A leaf of attributes: entries by hash, names and values after them.
//! Spec: `xfs/extended_attributes`, "Leaf Attributes".

use platter_ondisk::endian::{Be16, Be32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{AttrEntry, AttrFlags, AttrValue, VALUE_BYTES_MAX};
use crate::ondisk::da::{self, DaKind, DaLinks, DaRule};
use crate::ondisk::identity::Site;

/// What follows the header. Spec: `struct xfs_attr_leaf_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskAttrLeafCounts {
    /// `count`: entries.
    pub count: Be16,
    /// `usedbytes`: of names and values.
    pub used_bytes: Be16,
    /// `firstused`: where names and values begin; zero for byte 65536.
    pub first_used: Be16,
    /// `holes`: whether space is lost between names and values.
    pub holes: u8,
    /// `pad1`.
    pub padding: u8,
    /// `freemap`: start and size of three free regions.
    pub free: [[Be16; 2]; 3],
}

/// An entry. Spec: `struct xfs_attr_leaf_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskAttrLeafEntry {
    /// `hashval`.
    pub hash: Be32,
    /// `nameidx`: where name and value are in the block.
    pub offset: Be16,
    /// `flags`.
    pub flags: u8,
    /// `pad2`.
    pub padding: u8,
}

/// The start of a name whose value follows. Spec: `struct xfs_attr_leaf_name_local`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskLocalName {
    /// `valuelen`.
    pub value_len: Be16,
    /// `namelen`.
    pub name_len: u8,
}

/// The start of a name whose value is elsewhere. Spec: `struct xfs_attr_leaf_name_remote`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRemoteName {
    /// `valueblk`: a block of the fork.
    pub block: Be32,
    /// `valuelen`.
    pub value_len: Be32,
    /// `namelen`.
    pub name_len: u8,
}

const _: () = assert!(size_of::<DiskAttrLeafCounts>() == 20);
const _: () = assert!(size_of::<DiskAttrLeafEntry>() == 8);
const _: () = assert!(size_of::<DiskLocalName>() == 3);
const _: () = assert!(size_of::<DiskRemoteName>() == 9);

rules! {
    /// What a leaf of attributes must hold to.
    pub enum AttrLeafRule of "attribute leaf" {
        /// `magic`.
        Magic => "bad magic number",
        /// `crc`.
        Checksum => "bad CRC",
        /// `uuid`.
        Uuid => "bad UUID",
        /// `blkno`.
        BlockNumber => "block number is not where it lies",
        /// `owner`.
        Owner => "bad owner",
        /// `count` fits the block.
        Count => "bad number of entries",
        /// `firstused` is after the entries.
        FirstUsed => "bad start of names",
        /// Hashes ascend.
        Order => "hashes not ascending",
        /// Names and values lie within the block, after the entries.
        Name => "bad name or value location",
        /// The flags name one namespace.
        Flags => "bad flags",
        /// A value has at most 64 KiB, and one elsewhere is not in block 0.
        Value => "bad remote value",
    }
}

identity_rules!(AttrLeafRule);

impl DaRule for AttrLeafRule {
    const MAGIC: Self = Self::Magic;
}

/// A leaf whose header holds.
#[derive(Debug, Clone, Copy)]
pub struct AttrLeaf<'a> {
    /// Its neighbours.
    pub links: DaLinks,
    /// Entries, by ascending hash.
    pub entries: &'a [DiskAttrLeafEntry],
    /// Bytes of names and values, as the header has them.
    pub used_bytes: u16,
    /// Where names and values begin.
    pub first_used: usize,
    bytes: &'a [u8],
}

impl<'a> AttrLeaf<'a> {
    /// Validates the leaf that fills `bytes`, its names excepted.
    pub fn decode(bytes: &'a [u8], site: &Site<'_>) -> Result<Self, AttrLeafRule> {
        const PADDING: usize = 4;
        const FIRST_USED_ZERO: usize = 65_536;
        let (links, rest) = da::header(bytes, DaKind::AttrLeaf, site)?;
        let (counts, rest) =
            DiskAttrLeafCounts::ref_from_prefix(rest).map_err(|_| AttrLeafRule::Count)?;
        let rest = if site.geometry.features.is_v5() {
            rest.get(PADDING..).ok_or(AttrLeafRule::Count)?
        } else {
            rest
        };
        let count = usize::from(counts.count.get());
        let (entries, after) = <[DiskAttrLeafEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| AttrLeafRule::Count)?;
        let first_used = match usize::from(counts.first_used.get()) {
            0 => FIRST_USED_ZERO,
            first_used => first_used,
        };
        let entries_end = bytes.len().saturating_sub(after.len());
        if first_used < entries_end || first_used > bytes.len() {
            return Err(AttrLeafRule::FirstUsed);
        }
        if !site.is_verified() && !entries.is_sorted_by_key(|entry| entry.hash.get()) {
            return Err(AttrLeafRule::Order);
        }
        Ok(Self {
            links,
            entries,
            used_bytes: counts.used_bytes.get(),
            first_used,
            bytes,
        })
    }

    /// The attribute of an entry.
    pub fn attr(&self, entry: &DiskAttrLeafEntry) -> Result<AttrEntry<'a>, AttrLeafRule> {
        let flags = AttrFlags::from_bits_retain(entry.flags);
        let namespace = flags.namespace().ok_or(AttrLeafRule::Flags)?;
        let offset = usize::from(entry.offset.get());
        if offset < self.first_used {
            return Err(AttrLeafRule::Name);
        }
        let bytes = self.bytes.get(offset..).ok_or(AttrLeafRule::Name)?;
        let (name, value) = if flags.contains(AttrFlags::LOCAL) {
            local(bytes).ok_or(AttrLeafRule::Name)?
        } else {
            let (name, block, len) = remote(bytes).ok_or(AttrLeafRule::Name)?;
            // A value that is being written has no blocks yet.
            let is_sound = block != 0 && len <= VALUE_BYTES_MAX;
            if !is_sound && flags.is_complete() {
                return Err(AttrLeafRule::Value);
            }
            (name, AttrValue::Remote { block, len })
        };
        if name.is_empty() {
            return Err(AttrLeafRule::Name);
        }
        Ok(AttrEntry {
            flags,
            namespace,
            name,
            value,
        })
    }

    /// Length of the block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that an entry's name and value take in the block. A remote name takes two more than it
    /// has: the oldest compilers' padding of its structure is part of the format.
    pub fn heap_range(
        &self,
        entry: &DiskAttrLeafEntry,
    ) -> Result<std::ops::Range<usize>, AttrLeafRule> {
        const ALIGNMENT: usize = 4;
        const REMOTE_PADDING: usize = 2;
        let attr = self.attr(entry)?;
        let start = usize::from(entry.offset.get());
        let header = match attr.value {
            AttrValue::Local(value) => size_of::<DiskLocalName>().saturating_add(value.len()),
            AttrValue::Remote { .. } => size_of::<DiskRemoteName>().saturating_add(REMOTE_PADDING),
        };
        let len = header.saturating_add(attr.name.len());
        let len = len.checked_next_multiple_of(ALIGNMENT);
        let end = len.and_then(|len| start.checked_add(len));
        let end = end.filter(|&end| end <= self.bytes.len());
        end.map(|end| start..end).ok_or(AttrLeafRule::Name)
    }

    /// The entries that have this hash.
    pub fn matching(&self, hash: u32) -> impl Iterator<Item = &'a DiskAttrLeafEntry> + use<'a> {
        let first = self
            .entries
            .partition_point(|entry| entry.hash.get() < hash);
        let rest = self.entries.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(move |entry| entry.hash.get() == hash)
    }
}

fn local(bytes: &[u8]) -> Option<(&[u8], AttrValue<'_>)> {
    let (start, rest) = DiskLocalName::ref_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(start.name_len.into())?;
    let value = rest.get(..start.value_len.get().into())?;
    Some((name, AttrValue::Local(value)))
}

fn remote(bytes: &[u8]) -> Option<(&[u8], u32, u32)> {
    let (start, rest) = DiskRemoteName::ref_from_prefix(bytes).ok()?;
    let name = rest.get(..start.name_len.into())?;
    Some((name, start.block.get(), start.value_len.get()))
}

#[cfg(test)]
mod tests {
    use super::super::Namespace;
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::da::DiskDaHeaderV5;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    /// `user.a` with a value of two bytes and `security.big` with one of 3000.
    fn sample() -> Vec<u8> {
        let mut block = vec![0; 4096];
        let (header, rest) = DiskDaHeaderV5::mut_from_prefix(&mut block).unwrap();
        header.common.magic.set(0x3bee);
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        let (counts, rest) = DiskAttrLeafCounts::mut_from_prefix(rest).unwrap();
        counts.count.set(2);
        counts.first_used.set(4000);
        let (entries, _) =
            <[DiskAttrLeafEntry]>::mut_from_prefix_with_elems(&mut rest[4..], 2).unwrap();
        entries[0].hash.set(1);
        entries[0].offset.set(4000);
        entries[0].flags = 1;
        entries[1].hash.set(2);
        entries[1].offset.set(4008);
        entries[1].flags = 4;
        block[4000..4006].copy_from_slice(b"\x00\x02\x01axy");
        block[4008..4020].copy_from_slice(b"\0\0\0\x01\0\0\x0b\xb8\x03big");
        seal(&mut block);
        block
    }

    fn seal(block: &mut [u8]) {
        checksum::seal(block, DiskDaHeaderV5::CHECKSUM_OFFSET);
    }

    fn with<R>(block: &[u8], take: impl FnOnce(&AttrLeaf<'_>) -> R) -> Result<R, AttrLeafRule> {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        AttrLeaf::decode(block, &site).map(|leaf| take(&leaf))
    }

    fn broken(change: impl FnOnce(&mut [u8])) -> AttrLeafRule {
        let mut block = sample();
        change(&mut block);
        seal(&mut block);
        let all = with(&block, |leaf| {
            let mut entries = leaf.entries.iter();
            entries.try_for_each(|entry| leaf.attr(entry).map(|_| ()))
        });
        all.and_then(|all| all).unwrap_err()
    }

    #[test]
    fn leaf_has_values_with_names_and_elsewhere() {
        let checked = with(&sample(), |leaf| {
            let first = leaf.attr(&leaf.entries[0]).unwrap();
            assert_eq!(
                (first.name, first.value),
                (&b"a"[..], AttrValue::Local(b"xy"))
            );
            let second = leaf.attr(leaf.matching(2).next().unwrap()).unwrap();
            assert_eq!(
                (second.name, second.namespace),
                (&b"big"[..], Namespace::Secure)
            );
            let value = AttrValue::Remote {
                block: 1,
                len: 3000,
            };
            assert_eq!(second.value, value);
            assert!(leaf.matching(3).next().is_none());
        });
        assert_eq!(checked, Ok(()));
    }

    #[test]
    fn rules_of_a_leaf_are_checked() {
        assert_eq!(broken(|block| block[8] = 0), AttrLeafRule::Magic);
        assert_eq!(broken(|block| block[32] = 0), AttrLeafRule::Uuid);
        assert_eq!(broken(|block| block[23] = 0), AttrLeafRule::BlockNumber);
        assert_eq!(broken(|block| block[55] = 0), AttrLeafRule::Owner);
        assert_eq!(broken(|block| block[56] = 2), AttrLeafRule::Count);
        assert_eq!(broken(|block| block[60] = 0xff), AttrLeafRule::FirstUsed);
        assert_eq!(broken(|block| block[80] = 1), AttrLeafRule::Order);
        assert_eq!(broken(|block| block[84] = 0), AttrLeafRule::Name);
        assert_eq!(broken(|block| block[4000] = 1), AttrLeafRule::Name);
        assert_eq!(broken(|block| block[94] = 6), AttrLeafRule::Flags);
        assert_eq!(broken(|block| block[4011] = 0), AttrLeafRule::Value);
        assert_eq!(broken(|block| block[4012] = 1), AttrLeafRule::Value);
        let mut block = sample();
        block[2000] = 1;
        assert_eq!(with(&block, |_| ()), Err(AttrLeafRule::Checksum));
    }
}
