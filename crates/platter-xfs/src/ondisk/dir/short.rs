//! A directory in the inode: all entries in its data fork. Spec: `xfs/directories`, "Shortform
//! Directories".

use platter_ondisk::endian::{Be16, Be32, Be64};
use platter_ondisk::rules;
use platter_vfs::FileKind;
use zerocopy::{FromBytes, IntoBytes};

use super::{NAME_BYTES_MAX, file_kind, stored_kind};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::types::InodeNr;

rules! {
    /// What a directory in the inode must hold to.
    pub enum ShortDirRule of "short form directory" {
        /// The header fits the fork.
        Header => "bad header",
        /// The parent's inode number.
        Parent => "bad parent inode number",
        /// Entries lie within the fork and end with it.
        Length => "entries do not end with the directory",
        /// A name has between 1 and 255 bytes, none of them a slash or zero.
        Name => "bad name",
        /// Inode numbers are ones that an inode can have.
        Inode => "bad inode number",
        /// Offsets of entries ascend.
        Offset => "bad entry offset",
    }
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortEntry<'a> {
    /// Where the entry would lie in a directory block.
    pub offset: u16,
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub inode: InodeNr,
    /// The type, where entries hold it.
    pub kind: Option<FileKind>,
}

/// A directory in the inode whose header holds.
#[derive(Debug, Clone, Copy)]
pub struct ShortDir<'a> {
    /// The directory above.
    pub parent: InodeNr,
    /// How many entries there are, without `.` and `..`.
    pub count: u8,
    /// How many inode numbers, the parent's included, need 64 bits.
    pub wide_count: u8,
    is_wide: bool,
    has_ftype: bool,
    entries: &'a [u8],
}

impl<'a> ShortDir<'a> {
    /// Validates the header of the directory that fills `bytes`.
    pub fn decode(bytes: &'a [u8], geometry: &Geometry) -> Result<Self, ShortDirRule> {
        let (&[count, wide_count], rest) =
            bytes.split_first_chunk::<2>().ok_or(ShortDirRule::Header)?;
        let is_wide = wide_count != 0;
        if wide_count > count.saturating_add(1) {
            return Err(ShortDirRule::Header);
        }
        let (parent, entries) = take_inode(rest, is_wide).ok_or(ShortDirRule::Header)?;
        let parent = InodeNr::new(parent).filter(|&inode| geometry.locate_inode(inode).is_some());
        Ok(Self {
            parent: parent.ok_or(ShortDirRule::Parent)?,
            count,
            wide_count,
            is_wide,
            has_ftype: geometry.features.has_ftype(),
            entries,
        })
    }

    /// The entries in order. The first one that breaks a rule ends them with an error.
    pub fn entries(
        &self,
        geometry: &'a Geometry,
    ) -> impl Iterator<Item = Result<ShortEntry<'a>, ShortDirRule>> + use<'a> {
        let dir = *self;
        let mut rest = self.entries;
        let mut left = u32::from(self.count);
        let mut least = super::data::first_offset_in_short(geometry);
        let mut has_failed = false;
        std::iter::from_fn(move || {
            if has_failed {
                return None;
            }
            let Some(after) = left.checked_sub(1) else {
                has_failed = true;
                return (!rest.is_empty()).then_some(Err(ShortDirRule::Length));
            };
            left = after;
            let taken = dir.take(&mut rest, &mut least, geometry);
            has_failed = taken.is_err();
            Some(taken)
        })
    }

    fn take(
        &self,
        rest: &mut &'a [u8],
        least: &mut u16,
        geometry: &Geometry,
    ) -> Result<ShortEntry<'a>, ShortDirRule> {
        let (&len, after) = rest.split_first().ok_or(ShortDirRule::Length)?;
        let (offset, after) = Be16::ref_from_prefix(after).map_err(|_| ShortDirRule::Length)?;
        let (name, after) = after
            .split_at_checked(len.into())
            .ok_or(ShortDirRule::Length)?;
        if !is_name(name) {
            return Err(ShortDirRule::Name);
        }
        let (kind, after) = if self.has_ftype {
            let (&kind, after) = after.split_first().ok_or(ShortDirRule::Length)?;
            (file_kind(kind), after)
        } else {
            (None, after)
        };
        let (inode, after) = take_inode(after, self.is_wide).ok_or(ShortDirRule::Length)?;
        let inode = InodeNr::new(inode).filter(|&inode| geometry.locate_inode(inode).is_some());
        let inode = inode.ok_or(ShortDirRule::Inode)?;
        let offset = offset.get();
        if offset < *least {
            return Err(ShortDirRule::Offset);
        }
        let size = super::data::entry_bytes(name.len(), self.has_ftype);
        let end = usize::from(offset).saturating_add(size);
        // No later entry can begin there, if any could.
        *least = u16::try_from(end).unwrap_or(u16::MAX);
        *rest = after;
        Ok(ShortEntry {
            offset,
            name,
            inode,
            kind,
        })
    }
}

/// Whether bytes can be a name.
#[must_use]
pub fn is_name(bytes: &[u8]) -> bool {
    let is_clean = bytes.iter().all(|&byte| byte != b'/' && byte != 0);
    (1..=NAME_BYTES_MAX).contains(&bytes.len()) && is_clean
}

fn take_inode(bytes: &[u8], is_wide: bool) -> Option<(u64, &[u8])> {
    if is_wide {
        let (number, rest) = Be64::ref_from_prefix(bytes).ok()?;
        return Some((number.get(), rest));
    }
    let (number, rest) = Be32::ref_from_prefix(bytes).ok()?;
    Some((number.get().into(), rest))
}

/// Encodes a directory with these entries; `None` for more than fit its counters.
#[must_use]
pub fn encode(parent: InodeNr, entries: &[ShortEntry<'_>], geometry: &Geometry) -> Option<Vec<u8>> {
    let is_wide_number = |inode: InodeNr| u32::try_from(inode.get()).is_err();
    let wide = entries.iter().filter(|entry| is_wide_number(entry.inode));
    let wide = wide
        .count()
        .checked_add(usize::from(is_wide_number(parent)))?;
    let mut bytes = vec![u8::try_from(entries.len()).ok()?, u8::try_from(wide).ok()?];
    let put = |bytes: &mut Vec<u8>, inode: InodeNr| {
        if wide > 0 {
            bytes.extend(Be64::from(inode.get()).as_bytes());
        } else {
            let narrow = u32::try_from(inode.get()).unwrap_or_default();
            bytes.extend(Be32::from(narrow).as_bytes());
        }
    };
    put(&mut bytes, parent);
    for entry in entries {
        bytes.push(u8::try_from(entry.name.len()).ok()?);
        bytes.extend(Be16::from(entry.offset).as_bytes());
        bytes.extend(entry.name);
        if geometry.features.has_ftype() {
            bytes.push(entry.kind.map_or(0, stored_kind));
        }
        put(&mut bytes, entry.inode);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};
    use crate::ondisk::{FsSize, Growth};

    fn entry(offset: u16, name: &'static [u8], inode: u64) -> ShortEntry<'static> {
        ShortEntry {
            offset,
            name,
            inode: InodeNr::new(inode).unwrap(),
            kind: Some(FileKind::Regular),
        }
    }

    fn all<'a>(
        bytes: &'a [u8],
        geometry: &'a Geometry,
    ) -> Result<Vec<ShortEntry<'a>>, ShortDirRule> {
        ShortDir::decode(bytes, geometry)?
            .entries(geometry)
            .collect()
    }

    #[test]
    fn entries_survive_encoding_with_narrow_and_wide_numbers() {
        let parent = InodeNr::new(128).unwrap();
        let mut geometry = sample_geometry();
        let entries = [entry(96, b"a", 131), entry(112, b"some name", 132)];
        let bytes = encode(parent, &entries, &geometry).unwrap();
        assert_eq!(bytes.len(), 6 + 2 * (3 + 1 + 4) + 10);
        assert_eq!(all(&bytes, &geometry).unwrap(), entries);
        geometry.growth = Growth::new(FsSize {
            ag_count: 1 << 20,
            data_blocks: 4096 << 20,
        });
        let entries = [entry(96, b"a", 1 << 33)];
        let entries = entries.map(|entry| ShortEntry {
            inode: InodeNr::new(entry.inode.get() | 128).unwrap(),
            ..entry
        });
        let bytes = encode(parent, &entries, &geometry).unwrap();
        assert_eq!(all(&bytes, &geometry).unwrap(), entries);
    }

    #[test]
    fn entries_without_types_have_none() {
        let geometry = sample_geometry_v4();
        let parent = InodeNr::new(128).unwrap();
        let bytes = encode(parent, &[entry(48, b"x", 131)], &geometry).unwrap();
        assert_eq!(bytes.len(), 6 + 3 + 1 + 4);
        assert_eq!(all(&bytes, &geometry).unwrap()[0].kind, None);
    }

    #[test]
    fn rules_of_the_directory_are_checked() {
        let geometry = sample_geometry();
        let parent = InodeNr::new(128).unwrap();
        let good = encode(parent, &[entry(96, b"abc", 131)], &geometry).unwrap();
        let broken = |change: fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            all(&bytes, &geometry).unwrap_err()
        };
        assert_eq!(broken(|bytes| bytes.truncate(5)), ShortDirRule::Header);
        assert_eq!(broken(|bytes| bytes[1] = 3), ShortDirRule::Header);
        assert_eq!(broken(|bytes| bytes[5] = 0), ShortDirRule::Parent);
        assert_eq!(broken(|bytes| bytes.truncate(16)), ShortDirRule::Length);
        assert_eq!(broken(|bytes| bytes[0] = 2), ShortDirRule::Length);
        assert_eq!(broken(|bytes| bytes[9] = b'/'), ShortDirRule::Name);
        assert_eq!(broken(|bytes| bytes[6] = 0), ShortDirRule::Name);
        assert_eq!(broken(|bytes| bytes[16] = 0), ShortDirRule::Inode);
        assert_eq!(broken(|bytes| bytes[8] = 80), ShortDirRule::Offset);
    }
}
