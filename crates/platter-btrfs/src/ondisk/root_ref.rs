//! The name of a subvolume in its parent, stored at both. Spec: `btrfs/root_ref`.

use platter_ondisk::endian::{Le16, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::inode_ref::NAME_LEN_MAX;

/// A reference; the name follows.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskRootRef {
    /// `dirid`.
    pub dir: Le64,
    /// `sequence`.
    pub index: Le64,
    /// `name_len`.
    pub name_len: Le16,
}

const _: () = assert!(size_of::<DiskRootRef>() == 18);

rules! {
    /// The rules of a reference to a subvolume.
    pub enum RootRefRule of "root ref" {
        /// It has the size that its name asks for.
        Size => "invalid item size",
        /// A name has 1 to 255 bytes.
        NameLength => "invalid name length",
    }
}

/// The name of a subvolume in its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// The directory of the parent subvolume that the name is in.
    pub dir: u64,
    /// The index of the entry there.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Decodes the item.
    pub fn decode(bytes: &'a [u8], locus: Locus) -> Result<Self, Corrupt<RootRefRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let prefix = DiskRootRef::ref_from_prefix(bytes);
        let (disk, name) = prefix.map_err(|_| broken(RootRefRule::Size))?;
        let name_len = disk.name_len.get();
        if name.len() != usize::from(name_len) {
            return Err(broken(RootRefRule::Size));
        }
        if name_len == 0 || name_len > NAME_LEN_MAX {
            return Err(broken(RootRefRule::NameLength));
        }
        Ok(Self {
            dir: disk.dir.get(),
            index: disk.index.get(),
            name,
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskRootRef {
            dir: self.dir.into(),
            index: self.index.into(),
            name_len: u16::try_from(self.name.len()).unwrap_or(u16::MAX).into(),
        };
        [disk.as_bytes(), self.name].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_survives_encoding() {
        let reference = RootRef {
            dir: 256,
            index: 7,
            name: b"snapshot",
        };
        let bytes = reference.encode();
        assert_eq!(RootRef::decode(&bytes, Locus::UNKNOWN), Ok(reference));
        let rule = |bytes: &[u8]| RootRef::decode(bytes, Locus::UNKNOWN).unwrap_err().rule;
        assert_eq!(rule(&bytes[..20]), RootRefRule::Size);
        assert_eq!(rule(&bytes[..17]), RootRefRule::Size);
        assert_eq!(rule(&[0; 18]), RootRefRule::NameLength);
    }
}
