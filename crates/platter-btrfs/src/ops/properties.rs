//! How contents are to be stored: by mount options, flags of files, and the property `btrfs.compression`.

use platter_vfs::{Condition, Error, FileKind, Result};

use super::BtrfsInode;
use crate::compress::Method;
use crate::context::FsContext;
use crate::inode;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::tree::Tree;
use crate::xattr;

/// The name of the property, as that of an attribute.
pub(super) const COMPRESSION_NAME: &[u8] = b"btrfs.compression";

/// How the contents of files are stored by a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataPolicy {
    /// `compress=`: files that are not marked otherwise are compressed.
    pub compression: Option<Method>,
    /// `compress-force=`: so are those that do not seem worth it.
    pub is_forced: bool,
    /// `nodatacow`: new files are written in place.
    pub in_place: bool,
    /// `nodatasum`: new files have no checksums.
    pub unsummed: bool,
}

impl DataPolicy {
    /// The flags of a new file.
    pub(super) fn flags(&self, kind: FileKind) -> InodeFlags {
        let mut flags = InodeFlags::empty();
        if kind == FileKind::Regular {
            flags.set(InodeFlags::NODATACOW, self.in_place);
            flags.set(InodeFlags::NODATASUM, self.in_place || self.unsummed);
        }
        flags
    }

    /// What `chattr +c` sets the property to.
    pub(super) fn property(&self) -> &'static [u8] {
        self.compression
            .unwrap_or(Method::DEFAULT)
            .name()
            .as_bytes()
    }
}

/// How a change of flags changes the property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PropertyChange {
    None,
    Set(&'static [u8]),
    Remove,
}

/// What is known of the property of an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum KnownProperty {
    #[default]
    Unread,
    Read(Option<Method>),
}

/// What a value of the property asks for.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn parse_property(value: &[u8]) -> Result<Option<Method>> {
    match value {
        b"no" | b"none" => Ok(None),
        value => {
            let text = std::str::from_utf8(value).map_err(|_| Condition::InvalidArgument)?;
            Ok(Some(Method::parse(text).ok_or(Condition::InvalidArgument)?))
        }
    }
}

/// Flags with the property set to what a value asks for.
pub(super) fn flags_with(flags: InodeFlags, method: Option<Method>) -> InodeFlags {
    let new = match method {
        Some(_) => InodeFlags::COMPRESS,
        None => InodeFlags::NOCOMPRESS,
    };
    flags_without(flags) | new
}

/// Flags without a property.
pub(super) fn flags_without(flags: InodeFlags) -> InodeFlags {
    flags.difference(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS)
}

/// The value of the property of an inode, if it has one.
fn read_property(context: &FsContext, tree: Tree, number: u64) -> Result<Option<Vec<u8>>> {
    match xattr::get(context, tree, number, COMPRESSION_NAME) {
        Ok(value) => Ok(Some(value)),
        Err(Error::Condition(Condition::NoAttribute)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The item of an inode as Linux loads it: the property, where there is one, decides over the flags. A log can have
/// brought the one without the other. An inode whose attributes cannot be read keeps its flags.
pub(super) fn load_item(context: &FsContext, tree: Tree, number: u64) -> Result<Option<InodeItem>> {
    let found = inode::find_before_attributes(context, tree, number)?;
    let Some((mut item, may_have_property)) = found else {
        return Ok(None);
    };
    if may_have_property && let Ok(Some(value)) = read_property(context, tree, number) {
        if value.is_empty() {
            item.flags = flags_without(item.flags);
        } else if let Ok(method) = parse_property(&value) {
            // A value of a later version decides nothing.
            item.flags = flags_with(item.flags, method);
        }
    }
    Ok(Some(item))
}

/// How contents are compressed, and whether that is done though it may not be worth it.
pub(super) fn compression(inode: &BtrfsInode, item: &InodeItem) -> Result<Option<(Method, bool)>> {
    let flags = item.flags;
    if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
        return Ok(None);
    }
    let policy = &inode.fs.policy;
    let property = if flags.contains(InodeFlags::COMPRESS) {
        property(inode)?.or(Some(Method::DEFAULT))
    } else {
        None
    };
    let method = property.or(policy.compression);
    if policy.is_forced {
        return Ok(method.map(|method| (method, true)));
    }
    if flags.contains(InodeFlags::NOCOMPRESS) {
        return Ok(None);
    }
    Ok(method.map(|method| (method, false)))
}

/// What the property of the inode is.
fn property(inode: &BtrfsInode) -> Result<Option<Method>> {
    if let KnownProperty::Read(known) = *inode.property.lock() {
        return Ok(known);
    }
    let value = read_property(inode.context(), inode.tree(), inode.id.number)?;
    let method = value.and_then(|value| parse_property(&value).ok().flatten());
    *inode.property.lock() = KnownProperty::Read(method);
    Ok(method)
}

/// The value of the property that a new file in a directory gets.
pub(super) fn inherited(inode: &BtrfsInode, kind: FileKind) -> Result<Option<Vec<u8>>> {
    let both = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
    let has_contents = matches!(kind, FileKind::Regular | FileKind::Directory);
    if !has_contents || !inode.item().flags.intersects(both) {
        return Ok(None);
    }
    read_property(inode.context(), inode.tree(), inode.id.number)
}

/// Refuses a property that would have no effect.
pub(super) fn check(inode: &BtrfsInode) -> Result<()> {
    let flags = inode.item().flags;
    let is_fixed = flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
    let has_contents = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
    if is_fixed || !has_contents {
        return Err(Condition::InvalidArgument.into());
    }
    Ok(())
}

/// The change of the property that goes with one of flags.
pub(super) fn change_with_flags(inode: &BtrfsInode, flags: u32) -> Result<PropertyChange> {
    let item = inode.item();
    let new = inode::changed_flags(&item, flags).ok_or(Condition::NotSupported)?;
    let had = item.flags.contains(InodeFlags::COMPRESS);
    let has = new.contains(InodeFlags::COMPRESS);
    Ok(match (had, has) {
        (false, true) => PropertyChange::Set(inode.fs.policy.property()),
        (true, false) => PropertyChange::Remove,
        (true, true) | (false, false) => PropertyChange::None,
    })
}

/// Forgets what the property was.
pub(super) fn forget(inode: &BtrfsInode) {
    *inode.property.lock() = KnownProperty::Unread;
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::context::tests::sample;
    use crate::ondisk::checksum::name_hash;
    use crate::ondisk::dir_item::Xattr;
    use crate::ondisk::inode_item::tests::sample as inode_item;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::{Generation, Key, TreeId};

    /// The flags with which an inode is loaded that has these, and the property if there is a value.
    fn loaded(flags: InodeFlags, value: Option<&[u8]>) -> InodeFlags {
        let mut item = inode_item(FileKind::Regular);
        item.flags = flags;
        let mut attribute = Vec::new();
        if let Some(value) = value {
            let xattr = Xattr {
                transaction: Generation(3),
                name: COMPRESSION_NAME,
                value,
            };
            xattr.encode(&mut attribute);
        }
        loaded_with(&item, value.is_some().then_some(&attribute))
    }

    /// The flags of an inode that is loaded with the bytes of an item in the place of the property.
    fn loaded_with(item: &InodeItem, property: Option<&[u8]>) -> InodeFlags {
        let item = item.encode();
        let mut items = vec![
            (Key::new(257, ItemKind::INODE_ITEM, 0), item.as_bytes()),
            (Key::new(257, ItemKind::INODE_REF, 256), &b"name"[..]),
        ];
        if let Some(bytes) = property {
            let hash = name_hash(COMPRESSION_NAME);
            items.push((Key::new(257, ItemKind::XATTR_ITEM, hash), bytes));
        }
        let context = sample(&items, &[]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        assert_eq!(load_item(&context, tree, 258).unwrap(), None);
        load_item(&context, tree, 257).unwrap().unwrap().flags
    }

    #[test]
    fn property_decides_over_the_flags_of_a_loaded_inode() {
        let (compress, none) = (InodeFlags::COMPRESS, InodeFlags::NOCOMPRESS);
        let nodump = InodeFlags::NODUMP;
        assert_eq!(loaded(nodump, Some(b"zstd")), nodump | compress);
        assert_eq!(loaded(nodump | none, Some(b"lzo")), nodump | compress);
        assert_eq!(loaded(compress, Some(b"no")), none);
        assert_eq!(loaded(compress, Some(b"")), InodeFlags::empty());
        assert_eq!(loaded(compress, Some(b"of-a-later-version")), compress);
        assert_eq!(loaded(compress, None), compress);
        assert_eq!(loaded(nodump, None), nodump);
    }

    #[test]
    fn inode_whose_attributes_are_corrupt_keeps_its_flags() {
        let mut item = inode_item(FileKind::Regular);
        item.flags = InodeFlags::NODUMP;
        assert_eq!(loaded_with(&item, Some(b"cut")), InodeFlags::NODUMP);
    }
}
