//! Attributes in the inode. Spec: `xfs/extended_attributes`, "Short Form Attributes".

use platter_ondisk::endian::Be16;
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{AttrEntry, AttrFlags, AttrValue};

/// The header. Spec: `struct xfs_attr_sf_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskShortAttrHeader {
    /// `totsize`: with the header.
    pub size: Be16,
    /// `count`.
    pub count: u8,
    /// Padding.
    pub padding: u8,
}

/// The start of an entry; name and value follow. Spec: `struct xfs_attr_sf_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskShortAttrStart {
    /// `namelen`.
    pub name_len: u8,
    /// `valuelen`.
    pub value_len: u8,
    /// `flags`.
    pub flags: u8,
}

const _: () = assert!(size_of::<DiskShortAttrHeader>() == 4);
const _: () = assert!(size_of::<DiskShortAttrStart>() == 3);

rules! {
    /// What attributes in the inode must hold to.
    pub enum ShortAttrRule of "short form attributes" {
        /// The header and its size fit the fork.
        Header => "bad header",
        /// Entries lie within the size, and end with it.
        Length => "entries do not end with the attributes",
        /// A name is not empty.
        Name => "bad name",
        /// The flags name one namespace.
        Flags => "bad flags",
    }
}

/// The entries in order. The first one that breaks a rule ends them with an error.
pub fn entries(
    fork: &[u8],
) -> Result<impl Iterator<Item = Result<AttrEntry<'_>, ShortAttrRule>>, ShortAttrRule> {
    let (header, _) =
        DiskShortAttrHeader::ref_from_prefix(fork).map_err(|_| ShortAttrRule::Header)?;
    let size = usize::from(header.size.get());
    let rest = fork.get(size_of::<DiskShortAttrHeader>()..size);
    let mut rest = rest.ok_or(ShortAttrRule::Header)?;
    let mut left = header.count;
    let mut has_ended = false;
    Ok(std::iter::from_fn(move || {
        if has_ended {
            return None;
        }
        let Some(after) = left.checked_sub(1) else {
            has_ended = true;
            return (!rest.is_empty()).then_some(Err(ShortAttrRule::Length));
        };
        left = after;
        let taken = take(&mut rest);
        has_ended = taken.is_err();
        Some(taken)
    }))
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<AttrEntry<'a>, ShortAttrRule> {
    let (start, after) =
        DiskShortAttrStart::ref_from_prefix(rest).map_err(|_| ShortAttrRule::Length)?;
    let (name, after) = after
        .split_at_checked(start.name_len.into())
        .ok_or(ShortAttrRule::Length)?;
    let (value, after) = after
        .split_at_checked(start.value_len.into())
        .ok_or(ShortAttrRule::Length)?;
    if name.is_empty() {
        return Err(ShortAttrRule::Name);
    }
    let flags = AttrFlags::from_bits_retain(start.flags);
    *rest = after;
    Ok(AttrEntry {
        flags,
        namespace: flags.namespace().ok_or(ShortAttrRule::Flags)?,
        name,
        value: AttrValue::Local(value),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Namespace;
    use super::*;

    /// The attributes `user.empty` and `trusted.trust` of the document's example.
    const SAMPLE: &[u8] = b"\x00\x18\x02\x00\x05\x00\x00empty\x05\x04\x02trustval1\0\0\0\0";

    fn broken(change: fn(&mut Vec<u8>)) -> ShortAttrRule {
        let mut bytes = SAMPLE.to_vec();
        change(&mut bytes);
        let all = entries(&bytes).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        all.unwrap_err()
    }

    #[test]
    fn attributes_of_the_document_are_decoded() {
        let all: Vec<_> = entries(SAMPLE).unwrap().map(Result::unwrap).collect();
        assert_eq!(
            (all[0].name, all[0].namespace),
            (&b"empty"[..], Namespace::User)
        );
        assert_eq!(all[0].value, AttrValue::Local(b""));
        assert_eq!(
            (all[1].name, all[1].namespace),
            (&b"trust"[..], Namespace::Root)
        );
        assert_eq!(all[1].value, AttrValue::Local(b"val1"));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn rules_of_the_attributes_are_checked() {
        assert_eq!(broken(|bytes| bytes[0] = 1), ShortAttrRule::Header);
        assert_eq!(broken(|bytes| bytes[1] = 3), ShortAttrRule::Header);
        assert_eq!(broken(|bytes| bytes[1] = 27), ShortAttrRule::Length);
        assert_eq!(broken(|bytes| bytes[2] = 3), ShortAttrRule::Length);
        assert_eq!(broken(|bytes| bytes[5] = 99), ShortAttrRule::Length);
        assert_eq!(broken(|bytes| bytes[4] = 0), ShortAttrRule::Name);
        assert_eq!(broken(|bytes| bytes[6] = 6), ShortAttrRule::Flags);
    }
}
