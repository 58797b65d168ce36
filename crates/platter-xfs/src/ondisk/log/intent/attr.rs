//! The intent to change an extended attribute. Spec: `xfs-headers/xfs_log_format.h`.

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ItemKind, LogRule};

/// The first region of the item; names and values follow. `struct xfs_attri_log_format`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskAttrIntent {
    /// `alfi_type`.
    pub kind: Le16,
    /// `alfi_size`.
    pub regions: Le16,
    /// `alfi_igen`.
    pub generation: Le32,
    /// `alfi_id`.
    pub id: Le64,
    /// `alfi_ino`.
    pub inode: Le64,
    /// `alfi_op_flags`.
    pub op: Le32,
    /// `alfi_name_len`; of two names the length of each in a half.
    pub name_len: Le32,
    /// `alfi_value_len`.
    pub value_len: Le32,
    /// `alfi_attr_filter`.
    pub filter: Le32,
}

const _: () = assert!(size_of::<DiskAttrIntent>() == 40);

/// The longest attribute value.
const VALUE_MAX: u32 = 64 << 10;
/// The longest attribute name.
const NAME_MAX: u32 = 255;

bitflags! {
    /// `alfi_attr_filter`: the namespace, and the state of the entry.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AttrFilter: u32 {
        /// `XFS_ATTR_ROOT`.
        const ROOT = 1 << 1;
        /// `XFS_ATTR_SECURE`.
        const SECURE = 1 << 2;
        /// `XFS_ATTR_PARENT`.
        const PARENT = 1 << 3;
        /// `XFS_ATTR_INCOMPLETE`.
        const INCOMPLETE = 1 << 7;
    }
}

/// What is done to the attribute (`XFS_ATTRI_OP_FLAGS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrOp {
    /// Set it.
    Set,
    /// Remove it.
    Remove,
    /// Replace it.
    Replace,
    /// Set a parent pointer.
    ParentSet,
    /// Remove a parent pointer.
    ParentRemove,
    /// Replace a parent pointer by another one.
    ParentReplace,
}

/// The intent to change an extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttrIntent {
    /// What the done item names.
    pub id: u64,
    /// The inode.
    pub inode: u64,
    /// Its generation, for parent pointers.
    pub generation: u32,
    /// What is done.
    pub op: AttrOp,
    /// The namespace.
    pub filter: AttrFilter,
    /// The name.
    pub name: Vec<u8>,
    /// The name that takes its place.
    pub new_name: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
    /// The value that takes its place.
    pub new_value: Option<Vec<u8>>,
}

impl AttrOp {
    const ALL: [Self; 6] = [
        Self::Set,
        Self::Remove,
        Self::Replace,
        Self::ParentSet,
        Self::ParentRemove,
        Self::ParentReplace,
    ];
}

impl AttrIntent {
    pub(super) fn decode(regions: &[Vec<u8>]) -> Result<Self, LogRule> {
        let (first, rest) = regions.split_first().ok_or(LogRule::ItemRegions)?;
        let (disk, _) = DiskAttrIntent::ref_from_prefix(first).map_err(|_| LogRule::ItemLength)?;
        let index = usize::try_from(disk.op.get()).unwrap_or_default();
        let op = index
            .checked_sub(1)
            .and_then(|index| AttrOp::ALL.get(index));
        let op = op.copied().ok_or(LogRule::IntentFlags)?;
        let filter = AttrFilter::from_bits(disk.filter.get()).ok_or(LogRule::IntentFlags)?;
        let (name_len, new_name_len) = if op == AttrOp::ParentReplace {
            let lengths = disk.name_len.get();
            (lengths & 0xffff, Some(lengths >> 16))
        } else {
            (disk.name_len.get(), None)
        };
        let value_len = Some(disk.value_len.get()).filter(|&len| len > 0);
        if value_len.is_some_and(|len| len > VALUE_MAX) {
            return Err(LogRule::IntentLength);
        }
        let mut rest = rest.iter();
        let mut take = |len: u32, max: u32| {
            let len = usize::try_from(len).map_err(|_| LogRule::IntentLength)?;
            let max = usize::try_from(max).map_err(|_| LogRule::IntentLength)?;
            let region = rest.next().ok_or(LogRule::ItemRegions)?;
            let bytes = region.get(..len).filter(|_| len <= max);
            bytes.map(<[u8]>::to_vec).ok_or(LogRule::ItemLength)
        };
        Ok(Self {
            id: disk.id.get(),
            inode: disk.inode.get(),
            generation: disk.generation.get(),
            op,
            filter,
            name: take(name_len, NAME_MAX)?,
            new_name: new_name_len.map(|len| take(len, NAME_MAX)).transpose()?,
            value: value_len.map(|len| take(len, VALUE_MAX)).transpose()?,
            new_value: match (value_len, op) {
                (Some(len), AttrOp::ParentReplace) => Some(take(len, VALUE_MAX)?),
                _ => None,
            },
        })
    }

    /// The regions of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<Vec<u8>> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let new_name_len = self.new_name.as_deref().map_or(0, length);
        let op = AttrOp::ALL.iter().position(|&op| op == self.op);
        let parts = [
            Some(&self.name),
            self.new_name.as_ref(),
            self.value.as_ref(),
            self.new_value.as_ref(),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let regions = u16::try_from(parts.len()).unwrap_or_default();
        let disk = DiskAttrIntent {
            kind: ItemKind::Attr.number().into(),
            regions: regions.saturating_add(1).into(),
            generation: self.generation.into(),
            id: self.id.into(),
            inode: self.inode.into(),
            op: u32::try_from(op.unwrap_or_default())
                .unwrap_or_default()
                .saturating_add(1)
                .into(),
            name_len: (length(&self.name) | (new_name_len << 16)).into(),
            value_len: self.value.as_deref().map_or(0, length).into(),
            filter: self.filter.bits().into(),
        };
        // Regions are whole words.
        let padded = parts.into_iter().map(|part| {
            let mut region = part.clone();
            region.resize(part.len().next_multiple_of(4), 0);
            region
        });
        std::iter::once(disk.as_bytes().to_vec())
            .chain(padded)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(op: AttrOp) -> AttrIntent {
        let replace = op == AttrOp::ParentReplace;
        AttrIntent {
            id: 3,
            inode: 131,
            generation: 8,
            op,
            filter: AttrFilter::ROOT,
            name: b"SGI_ACL_FILE".to_vec(),
            new_name: replace.then(|| b"other".to_vec()),
            value: Some(b"value".to_vec()),
            new_value: replace.then(|| b"eulav".to_vec()),
        }
    }

    #[test]
    fn intents_decode_as_they_were_encoded() {
        for op in AttrOp::ALL {
            let intent = sample(op);
            assert_eq!(AttrIntent::decode(&intent.encode()), Ok(intent));
        }
        let removal = AttrIntent {
            value: None,
            ..sample(AttrOp::Remove)
        };
        assert_eq!(AttrIntent::decode(&removal.encode()), Ok(removal));
    }

    #[test]
    fn intents_that_break_a_rule_are_refused() {
        let decode = |change: fn(&mut Vec<Vec<u8>>)| {
            let mut regions = sample(AttrOp::Set).encode();
            change(&mut regions);
            AttrIntent::decode(&regions).map(|_| ())
        };
        assert_eq!(decode(|_| ()), Ok(()));
        assert_eq!(decode(|r| r[0].truncate(39)), Err(LogRule::ItemLength));
        assert_eq!(decode(|r| r[0][24] = 7), Err(LogRule::IntentFlags));
        assert_eq!(decode(|r| r[0][36] = 1), Err(LogRule::IntentFlags));
        assert_eq!(decode(|r| r[0][29] = 1), Err(LogRule::ItemLength));
        assert_eq!(decode(|r| r[0][34] = 2), Err(LogRule::IntentLength));
        assert_eq!(decode(|r| r.truncate(2)), Err(LogRule::ItemRegions));
    }
}
