//! Contents that lie in the inode: 60 bytes in `i_block`, the rest as the value of an attribute.
//! Spec: `ext4/inlinedata`.

use platter_ondisk::Locus;

use crate::ondisk::corrupt::{Corrupt, Rule};
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::xattr::{ValuePlace, XattrSpace};
use crate::ondisk::{Geometry, Inode};

/// The prefix number of `system.`.
const SYSTEM_NAME_INDEX: u8 = 7;
/// The attribute that holds what the block area has no room for: prefix number and name.
pub const INLINE_DATA_NAME: (u8, &[u8]) = (SYSTEM_NAME_INDEX, b"data");

/// What an inode with inline contents must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InlineDataRule {
    /// The attribute `system.data` is there.
    Attribute,
    /// Its value lies in the inode.
    Place,
}

impl Rule for InlineDataRule {
    const STRUCTURE: &'static str = "inline data";

    fn text(self) -> &'static str {
        match self {
            Self::Attribute => "inode has no attribute system.data",
            Self::Place => "value of system.data does not lie in the inode",
        }
    }
}

/// The inline contents of an inode, in two parts.
#[derive(Debug, Clone, Copy)]
pub struct InlineData<'a> {
    /// The first bytes.
    pub first: &'a [u8; BLOCK_AREA_BYTES],
    /// What follows them.
    pub rest: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// Finds the contents of an inode that has the inline data flag.
    pub fn decode(inode: &'a Inode, geometry: &Geometry) -> Result<Self, platter_vfs::Error> {
        let locus = Locus::inode(u64::from(inode.number.get()));
        let has_ea_inode = geometry.features.incompat.contains(Incompat::EA_INODE);
        let missing = Corrupt::new(locus, InlineDataRule::Attribute);
        let space = XattrSpace::decode_inode(&inode.tail, has_ea_inode).ok_or(missing)?;
        let space = space.map_err(|(offset, rule)| {
            Corrupt::new(
                locus.at_offset(u64::try_from(offset).unwrap_or(u64::MAX)),
                rule,
            )
        })?;
        let entry = space
            .find(INLINE_DATA_NAME.0, INLINE_DATA_NAME.1)
            .ok_or(missing)?;
        match entry.value {
            ValuePlace::Here(rest) => Ok(Self {
                first: &inode.block,
                rest,
            }),
            ValuePlace::Inode { .. } => Err(Corrupt::new(locus, InlineDataRule::Place).into()),
        }
    }

    /// Fills `buf` with the contents from byte `offset` on, zeros behind their end.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let parts = [
            self.first.get(offset..).unwrap_or_default(),
            self.rest
                .get(offset.saturating_sub(self.first.len())..)
                .unwrap_or_default(),
        ];
        let mut filled = 0;
        for part in parts {
            let free = &mut buf[filled..];
            let count = part.len().min(free.len());
            free[..count].copy_from_slice(&part[..count]);
            filled += count;
        }
        buf[filled..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use platter_vfs::Error;
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::ondisk::InodeNr;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::inode::tests::sample;
    use crate::ondisk::xattr::{DiskXattrEntry, XATTR_MAGIC};

    /// An inode whose attributes are one entry, `system.data`, as `change` leaves it; its space
    /// for values ends with `value`.
    fn inode(value: &[u8], change: impl FnOnce(&mut DiskXattrEntry)) -> Inode {
        let number = InodeNr::new(12).unwrap();
        let bytes = sample(&sample_geometry(), number, |disk, _| disk.block.fill(b'a'));
        let mut inode = Inode::decode(&bytes, number, &sample_geometry()).unwrap();
        let (magic, space) = inode.tail.split_at_mut(4);
        magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
        let mut entry = DiskXattrEntry::new_zeroed();
        entry.name_len = 4;
        entry.name_index = SYSTEM_NAME_INDEX;
        entry.value_size.set(u32::try_from(value.len()).unwrap());
        let at = space.len() - value.len().next_multiple_of(4);
        entry.value_offset.set(u16::try_from(at).unwrap());
        change(&mut entry);
        space[..16].copy_from_slice(entry.as_bytes());
        space[16..20].copy_from_slice(b"data");
        space[at..at + value.len()].copy_from_slice(value);
        inode
    }

    fn broken(inode: &Inode, has_ea_inode: bool) -> String {
        let mut geometry = sample_geometry();
        if has_ea_inode {
            geometry.features.incompat |= Incompat::EA_INODE;
        }
        let Error::Corrupt(corruption) = InlineData::decode(inode, &geometry).unwrap_err() else {
            panic!("no corruption");
        };
        corruption.rule.into_owned()
    }

    #[test]
    fn contents_are_both_parts_and_zeros_behind_them() {
        let inode = inode(b"tail", |_| ());
        let data = InlineData::decode(&inode, &sample_geometry()).unwrap();
        let mut buf = [7; 8];
        data.read_at(58, &mut buf);
        assert_eq!(&buf, b"aatail\0\0");
        data.read_at(u64::MAX, &mut buf);
        assert_eq!(buf, [0; 8]);
    }

    #[test]
    fn inline_flag_without_its_attribute_is_corrupt() {
        let other = inode(b"", |entry| entry.name_index = 1);
        assert_eq!(broken(&other, false), InlineDataRule::Attribute.text());
        let mut none = inode(b"", |_| ());
        none.tail.fill(0);
        assert_eq!(broken(&none, false), InlineDataRule::Attribute.text());
    }

    #[test]
    fn inline_contents_in_another_inode_are_corrupt() {
        let elsewhere = inode(b"", |entry| {
            entry.value_inode.set(20);
            entry.value_size.set(4);
        });
        assert_eq!(broken(&elsewhere, true), InlineDataRule::Place.text());
    }
}
