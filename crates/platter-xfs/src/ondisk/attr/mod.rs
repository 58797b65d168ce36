//! Attributes: their namespaces and flags. Spec: `xfs/extended_attributes`.

pub mod leaf;
pub mod remote;
pub mod short;
pub mod build;

use bitflags::bitflags;
use platter_ondisk::endian::{Be32, Be64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags! {
    /// Flags of an attribute. Parent pointers: `xfs-headers/xfs_da_format.h`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AttrFlags: u8 {
        /// The value is in the leaf.
        const LOCAL = 0x1;
        /// The namespace is `trusted`.
        const ROOT = 0x2;
        /// The namespace is `security`.
        const SECURE = 0x4;
        /// It is a pointer to a parent directory.
        const PARENT = 0x8;
        /// It is being changed: it does not exist.
        const INCOMPLETE = 0x80;
    }
}

/// The value of a pointer to a parent directory; its name is that of the entry.
/// Spec: `xfs-headers/xfs_da_format.h`, `struct xfs_parent_rec`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskParent {
    /// `p_ino`: the directory.
    pub inode: Be64,
    /// `p_gen`: its generation.
    pub generation: Be32,
}

const _: () = assert!(size_of::<DiskParent>() == 12);

impl DiskParent {
    /// The pointer that fills a value.
    #[must_use]
    pub fn decode(value: &[u8]) -> Option<&Self> {
        Self::ref_from_bytes(value).ok()
    }
}

/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// The largest value.
pub const VALUE_BYTES_MAX: u32 = 65_536;

/// A namespace of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// Of users.
    User,
    /// Of the superuser; ACLs are in it as well.
    Root,
    /// Of security modules.
    Secure,
    /// Parent pointers.
    Parent,
}

impl AttrFlags {
    /// The namespace; `None` if the flags name more than one.
    #[must_use]
    pub fn namespace(self) -> Option<Namespace> {
        let namespaces = self & (Self::ROOT | Self::SECURE | Self::PARENT);
        Some(match namespaces {
            flags if flags.is_empty() => Namespace::User,
            Self::ROOT => Namespace::Root,
            Self::SECURE => Namespace::Secure,
            Self::PARENT => Namespace::Parent,
            _ => return None,
        })
    }

    /// Whether it exists for readers.
    #[must_use]
    pub fn is_complete(self) -> bool {
        !self.contains(Self::INCOMPLETE)
    }
}

impl Namespace {
    /// The flag of the namespace.
    #[must_use]
    pub fn flag(self) -> AttrFlags {
        match self {
            Self::User => AttrFlags::empty(),
            Self::Root => AttrFlags::ROOT,
            Self::Secure => AttrFlags::SECURE,
            Self::Parent => AttrFlags::PARENT,
        }
    }
}

/// Where the value of an attribute is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrValue<'a> {
    /// With the name.
    Local(&'a [u8]),
    /// In blocks of the attribute fork.
    Remote {
        /// The first block.
        block: u32,
        /// Length of the value in bytes.
        len: u32,
    },
}

/// An attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttrEntry<'a> {
    /// Its flags.
    pub flags: AttrFlags,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name, without the namespace.
    pub name: &'a [u8],
    /// Its value.
    pub value: AttrValue<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_has_one_namespace() {
        for namespace in [
            Namespace::User,
            Namespace::Root,
            Namespace::Secure,
            Namespace::Parent,
        ] {
            let flags = namespace.flag() | AttrFlags::LOCAL;
            assert_eq!(flags.namespace(), Some(namespace));
        }
        assert_eq!((AttrFlags::ROOT | AttrFlags::SECURE).namespace(), None);
        assert!(!AttrFlags::INCOMPLETE.is_complete());
    }
}
