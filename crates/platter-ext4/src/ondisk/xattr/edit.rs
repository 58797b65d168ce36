//! Taking an attribute out of an inode's own space.

use super::{DiskXattrEntry, XATTR_ALIGN, decode_heads};

/// Removes the attribute with this prefix number and name. `bytes` is all that follows the
/// inode's fields; without such an attribute, or with broken ones, it stays as it is.
///
/// The value's bytes become zeros that belong to nothing; other values stay where they are.
pub fn remove_from_inode(bytes: &mut [u8], name_index: u8, name: &[u8]) {
    let Some((_, space)) = bytes.split_at_mut_checked(size_of::<u32>()) else {
        return;
    };
    let Ok(heads) = decode_heads(space, 0) else {
        return;
    };
    let mut entries = heads.entries.into_iter();
    let found = entries.find(|(_, disk, found)| disk.name_index == name_index && *found == name);
    let Some((offset, disk, _)) = found else {
        return;
    };
    let value_start = usize::from(disk.value_offset.get());
    let value_len = usize::try_from(disk.value_size.get()).unwrap_or(usize::MAX);
    let has_value_here = disk.value_inode.get() == 0;
    let length = size_of::<DiskXattrEntry>()
        .saturating_add(name.len())
        .next_multiple_of(XATTR_ALIGN);
    let end = heads.end;
    let value_end = value_start.saturating_add(value_len);
    if has_value_here
        && value_start >= end
        && let Some(value) = space.get_mut(value_start..value_end)
    {
        value.fill(0);
    }
    if let Some(rest) = space.get_mut(offset..end)
        && length <= rest.len()
    {
        rest.rotate_left(length);
        let kept = rest.len().saturating_sub(length);
        rest.iter_mut().skip(kept).for_each(|byte| *byte = 0);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::super::{ValuePlace, XATTR_MAGIC, XattrSpace};
    use super::*;

    fn entry(index: u8, name: &[u8], offset: u16, size: u32) -> Vec<u8> {
        let disk = DiskXattrEntry {
            name_len: u8::try_from(name.len()).unwrap(),
            name_index: index,
            value_offset: offset.into(),
            value_inode: 0.into(),
            value_size: size.into(),
            hash: 0.into(),
        };
        let mut bytes = [disk.as_bytes(), name].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn removed_attribute_leaves_the_others() {
        let heads = [
            entry(1, b"before", 92, 6),
            entry(7, b"data", 80, 4),
            entry(1, b"behind", 84, 6),
        ];
        let mut bytes = [&XATTR_MAGIC.to_le_bytes()[..], &heads.concat()].concat();
        bytes.resize(4 + 100, 0);
        bytes[4 + 80..].copy_from_slice(b"datavalue2..value1..");
        remove_from_inode(&mut bytes, 7, b"none");
        remove_from_inode(&mut bytes, 7, b"data");
        let space = XattrSpace::decode_inode(&bytes, false).unwrap().unwrap();
        assert_eq!(space.entries().len(), 2);
        let value = |name: &[u8]| space.find(1, name).map(|entry| entry.value);
        assert_eq!(value(b"before"), Some(ValuePlace::Here(b"value1")));
        assert_eq!(value(b"behind"), Some(ValuePlace::Here(b"value2")));
        assert_eq!(bytes[4 + 80..4 + 84], [0; 4]);
        remove_from_inode(&mut bytes, 1, b"before");
        remove_from_inode(&mut bytes, 1, b"behind");
        assert!(bytes[4..84].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn broken_attributes_stay_as_they_are() {
        let mut bytes = vec![0xff; 50];
        remove_from_inode(&mut bytes, 7, b"data");
        remove_from_inode(&mut bytes[..3], 7, b"data");
        assert_eq!(bytes, [0xff; 50]);
    }
}
