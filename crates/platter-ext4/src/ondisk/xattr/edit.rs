//! Editing in-inode attributes: removing one, changing a value in place, adding the first.

use zerocopy::IntoBytes;

use super::{DiskXattrEntry, TERMINATOR_BYTES, XATTR_ALIGN, XATTR_MAGIC, decode_heads};

/// Removes the attribute with this prefix number and name. `bytes` is the space after the inode's
/// fields; without such an attribute, or with corrupt ones, it is unchanged.
///
/// The value's bytes become unused zeros; other values are not moved.
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
    let length = entry_len(name.len());
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

/// Returns the value of the attribute with this prefix number and name, for modification in place.
/// `bytes` is the space after the inode's fields. `None` without such an attribute, or if its value
/// is stored elsewhere.
#[must_use]
pub fn value_in_inode_mut<'b>(
    bytes: &'b mut [u8],
    name_index: u8,
    name: &[u8],
) -> Option<&'b mut [u8]> {
    let (_, space) = bytes.split_at_mut_checked(size_of::<u32>())?;
    let heads = decode_heads(space, 0).ok()?;
    let mut entries = heads.entries.iter();
    let (_, disk, _) =
        entries.find(|(_, disk, found)| disk.name_index == name_index && *found == name)?;
    let start = usize::from(disk.value_offset.get());
    let len = usize::try_from(disk.value_size.get()).ok()?;
    let is_here = disk.value_inode.get() == 0 && start >= heads.end;
    let range = start..start.checked_add(len)?;
    match len {
        0 => Some(&mut []),
        _ if is_here => space.get_mut(range),
        _ => None,
    }
}

/// Returns the maximum value length of an attribute with a name of this length that is the only one
/// in an inode. `None` if it does not fit.
#[must_use]
pub fn value_len_max_in_inode(space_len: usize, name_len: usize) -> Option<usize> {
    let entry = entry_len(name_len);
    let used = size_of::<u32>()
        .checked_add(entry)?
        .checked_add(TERMINATOR_BYTES)?;
    let len = space_len.checked_sub(used)?;
    Some(len.saturating_sub(len % XATTR_ALIGN))
}

/// Stores an attribute with this value as the only one in an inode, if it fits.
pub fn begin_in_inode(bytes: &mut [u8], name_index: u8, name: &[u8], value: &[u8]) {
    bytes.fill(0);
    let Some((magic, space)) = bytes.split_at_mut_checked(size_of::<u32>()) else {
        return;
    };
    magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
    let padded = value.len().next_multiple_of(XATTR_ALIGN);
    let start = match value.len() {
        0 => 0,
        _ => space.len().saturating_sub(padded),
    };
    let disk = DiskXattrEntry {
        name_len: u8::try_from(name.len()).unwrap_or(u8::MAX),
        name_index,
        value_offset: u16::try_from(start).unwrap_or(u16::MAX).into(),
        value_inode: 0.into(),
        value_size: u32::try_from(value.len()).unwrap_or(u32::MAX).into(),
        hash: 0.into(),
    };
    let head = disk.as_bytes().iter().chain(name);
    for (to, from) in space.iter_mut().zip(head) {
        *to = *from;
    }
    let places = space.get_mut(start..).unwrap_or_default();
    for (to, from) in places.iter_mut().zip(value) {
        *to = *from;
    }
}

/// Returns the length of an entry with its name.
pub(super) fn entry_len(name_len: usize) -> usize {
    size_of::<DiskXattrEntry>()
        .saturating_add(name_len)
        .next_multiple_of(XATTR_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::super::{ValuePlace, XattrSpace};
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
    fn removed_attribute_keeps_the_others() {
        let heads = [
            entry(1, b"before", 92, 6),
            entry(7, b"data", 80, 4),
            entry(1, b"latter", 84, 6),
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
        assert_eq!(value(b"latter"), Some(ValuePlace::Here(b"value2")));
        assert_eq!(bytes[4 + 80..4 + 84], [0; 4]);
        remove_from_inode(&mut bytes, 1, b"before");
        remove_from_inode(&mut bytes, 1, b"latter");
        assert!(bytes[4..84].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn corrupt_attributes_are_unchanged() {
        let mut bytes = vec![0xff; 50];
        remove_from_inode(&mut bytes, 7, b"data");
        remove_from_inode(&mut bytes[..3], 7, b"data");
        assert_eq!(bytes, [0xff; 50]);
    }

    #[test]
    fn first_attribute_may_fill_the_space() {
        for (space_len, value_len) in [(96, Some(68)), (30, Some(0)), (28, Some(0)), (27, None)] {
            assert_eq!(value_len_max_in_inode(space_len, 4), value_len);
            let Some(value_len) = value_len else { continue };
            let mut bytes = vec![0xff; space_len];
            let value = vec![7; value_len];
            begin_in_inode(&mut bytes, 7, b"data", &value);
            let space = XattrSpace::decode_inode(&bytes, false).unwrap().unwrap();
            let entry = space.find(7, b"data").unwrap();
            assert_eq!(entry.value, ValuePlace::Here(&value));
            value_in_inode_mut(&mut bytes, 7, b"data").unwrap().fill(9);
            let space = XattrSpace::decode_inode(&bytes, false).unwrap().unwrap();
            let entry = space.find(7, b"data").unwrap();
            assert_eq!(entry.value, ValuePlace::Here(&vec![9; value_len]));
            assert_eq!(value_in_inode_mut(&mut bytes, 1, b"data"), None);
        }
    }
}
