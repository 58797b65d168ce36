//! Inline data: 60 bytes in `i_block`, the rest as the value of an attribute. Spec:
//! `ext4/inlinedata`.

use platter_ondisk::{Corrupt, Locus, rules};

use crate::ondisk::features::Incompat;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::xattr::{Attribute, AttributeValue, Attributes, ValuePlace, XattrSpace};
use crate::ondisk::{Geometry, Inode};

/// The prefix number of `system.`.
const SYSTEM_NAME_INDEX: u8 = 7;
/// The attribute with the data that does not fit `i_block`: prefix number and name.
pub const INLINE_DATA_NAME: (u8, &[u8]) = (SYSTEM_NAME_INDEX, b"data");

rules! {
    /// The rules of an inode with inline data.
    pub enum InlineDataRule of "inline data" {
        /// The attribute `system.data` exists.
        Attribute => "missing system.data extended attribute",
        /// Its value is stored in the inode.
        Place => "system.data value is not in the inode",
    }
}

/// The inline data of an inode, in two parts.
#[derive(Debug, Clone, Copy)]
pub struct InlineData<'a> {
    /// The bytes in `i_block`.
    pub first: &'a [u8; BLOCK_AREA_BYTES],
    /// The bytes in the attribute.
    pub rest: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// Returns the data of an inode that has the inline data flag.
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

    /// Fills `buf` with the data from byte `offset` on, and zeros after its end.
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

/// Stores `contents` in an inode, replacing its inline data, if they fit next to its attributes.
/// Returns whether they fit; if not, nothing is changed. The caller sets the flag.
///
/// # Errors
/// `Corrupt` if the attributes are.
pub fn store_inline(
    inode: &mut Inode,
    geometry: &Geometry,
    contents: &[u8],
) -> Result<bool, platter_vfs::Error> {
    let locus = Locus::inode(u64::from(inode.number.get()));
    let has_ea_inode = geometry.features.incompat.contains(Incompat::EA_INODE);
    let mut attributes = match XattrSpace::decode_inode(&inode.tail, has_ea_inode) {
        None => Attributes::default(),
        Some(Ok(space)) => Attributes::of(&space),
        Some(Err((_, rule))) => return Err(Corrupt::new(locus, rule).into()),
    };
    let (name_index, name) = INLINE_DATA_NAME;
    attributes.remove(name_index, name);
    let (first, rest) = contents.split_at(contents.len().min(BLOCK_AREA_BYTES));
    let attribute = Attribute {
        name_index,
        name: name.to_vec(),
        value: AttributeValue::Here(rest.to_vec()),
    };
    if !attributes.fits_in_inode(&attribute, inode.tail.len()) {
        return Ok(false);
    }
    attributes.insert(attribute);
    let mut tail = inode.tail.clone();
    if !attributes.encode_inode(&mut tail) {
        return Ok(false);
    }
    inode.tail = tail;
    inode.block = [0; BLOCK_AREA_BYTES];
    let block = inode.block.iter_mut().zip(first);
    block.for_each(|(to, from)| *to = *from);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule as _;
    use platter_vfs::Error;
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::ondisk::InodeNr;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::inode::tests::sample;
    use crate::ondisk::xattr::{DiskXattrEntry, XATTR_MAGIC};

    /// Builds an inode whose only attribute is `system.data`, modified by `change`; its space for
    /// values ends with `value`.
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
    fn read_returns_both_parts_and_zeros_after_them() {
        let inode = inode(b"tail", |_| ());
        let data = InlineData::decode(&inode, &sample_geometry()).unwrap();
        let mut buf = [7; 8];
        data.read_at(58, &mut buf);
        assert_eq!(&buf, b"aatail\0\0");
        data.read_at(u64::MAX, &mut buf);
        assert_eq!(buf, [0; 8]);
    }

    #[test]
    fn data_is_stored_if_it_fits_next_to_attributes() {
        let mut inode = inode(b"tail", |entry| entry.name_index = 1);
        let geometry = sample_geometry();
        // The space after the fields, except the magic, two entries with names, and the terminator.
        let capacity = BLOCK_AREA_BYTES + inode.tail.len() - 4 - 2 * 20 - 4 - 4;
        for len in [0, 10, 60, 61, capacity, 5] {
            let contents: Vec<u8> = (1..=u8::try_from(len).unwrap()).collect();
            assert!(store_inline(&mut inode, &geometry, &contents).unwrap());
            let mut buf = vec![0; len + 1];
            let stored = InlineData::decode(&inode, &geometry).unwrap();
            stored.read_at(0, &mut buf);
            assert_eq!(buf[..len], contents);
            assert_eq!(stored.rest.len(), len.saturating_sub(60));
            let space = XattrSpace::decode_inode(&inode.tail, false)
                .unwrap()
                .unwrap();
            let other = space.find(1, b"data").unwrap();
            assert_eq!(other.value, ValuePlace::Here(b"tail"));
        }
        let before = inode.clone();
        let contents = vec![7; capacity + 1];
        assert!(!store_inline(&mut inode, &geometry, &contents).unwrap());
        assert_eq!(inode.tail, before.tail);
        assert_eq!(inode.block, before.block);
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
    fn inline_data_in_an_ea_inode_is_corrupt() {
        let elsewhere = inode(b"", |entry| {
            entry.value_inode.set(20);
            entry.value_size.set(4);
        });
        assert_eq!(broken(&elsewhere, true), InlineDataRule::Place.text());
    }
}
