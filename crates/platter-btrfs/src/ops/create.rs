//! Making files, with a name and without one, and further names.

use std::sync::Arc;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, PosixAcl};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::creation::NewFile;
use platter_vfs::namei::{AttributedInode, NewInode};
use platter_vfs::{Condition, CreateKind, Error, FileKind, Name, Result, XattrMode};

use super::properties::COMPRESSION_NAME;
use super::state::{INODE_CREDITS, NAME_CREDITS, Purpose, States, touch_contents};
use super::{BtrfsInode, entries, properties, sync};
use crate::inode;
use crate::ondisk::Key;
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::key::ItemKind;
use crate::txn::Handle;
use crate::xattr;

/// The longest target of a link, as in the kernel: a page less its end.
const TARGET_BYTES_MAX: usize = 4095;
/// What comes before the data of a file extent in its item.
const INLINE_HEADER_BYTES: usize = 21;

/// A file about to be made.
pub(super) struct Blueprint<'a> {
    pub(super) new: NewInode<'a>,
    pub(super) file: NewFile,
    pub(super) default_acl: Option<PosixAcl>,
    /// The value of `btrfs.compression`.
    pub(super) property: Option<Vec<u8>>,
    /// The number of its inode, if that is taken already.
    pub(super) number: Option<u64>,
}

impl Blueprint<'_> {
    /// The ACLs that it gets.
    pub(super) fn acls(&self) -> impl Iterator<Item = (&'static [u8], &PosixAcl)> {
        let acls: [(&'static [u8], _); 2] = [
            (ACL_ACCESS_NAME, &self.file.access_acl),
            (ACL_DEFAULT_NAME, &self.default_acl),
        ];
        acls.into_iter()
            .filter_map(|(name, acl)| Some((name, acl.as_ref()?)))
    }

    pub(super) fn kind(&self) -> FileKind {
        self.new.kind.file_kind()
    }
}

/// What a new inode has of the flags of its directory.
pub(super) fn inherited_flags(directory: InodeFlags, kind: FileKind) -> InodeFlags {
    let mut flags = directory & (InodeFlags::NOCOMPRESS | InodeFlags::NODATACOW);
    if !directory.contains(InodeFlags::NOCOMPRESS) {
        flags |= directory & InodeFlags::COMPRESS;
    }
    if flags.contains(InodeFlags::NODATACOW) && kind == FileKind::Regular {
        flags |= InodeFlags::NODATASUM;
    }
    flags
}

/// What a file made in a directory takes from it and from its maker.
///
/// # Errors
/// `NameTooLong`, `NotFound` and `InvalidArgument` for targets of links that cannot be.
pub(super) fn plan<'a>(directory: &BtrfsInode, new: NewInode<'a>) -> Result<Blueprint<'a>> {
    if let CreateKind::Symlink(target) = new.kind {
        if target.is_empty() {
            return Err(Condition::NotFound.into());
        }
        let node_bytes = directory.context().superblock.node_bytes;
        let capacity = crate::ondisk::leaf_edit::capacity(node_bytes);
        let header = INLINE_HEADER_BYTES + crate::ondisk::leaf::ITEM_BYTES;
        if target.len() > TARGET_BYTES_MAX.min(capacity.saturating_sub(header)) {
            return Err(Condition::NameTooLong.into());
        }
        if target.contains(&0) {
            return Err(Condition::InvalidArgument.into());
        }
    }
    let own = xattr::get(
        directory.context(),
        directory.tree(),
        directory.id.number,
        ACL_DEFAULT_NAME,
    );
    let default_acl = match own {
        Ok(value) => Some(PosixAcl::decode(&value)?),
        Err(Error::Condition(Condition::NoAttribute)) => None,
        Err(error) => return Err(error),
    };
    let attr = directory.attributes();
    let blueprint = Blueprint {
        new,
        file: NewFile {
            uid: 0,
            gid: 0,
            permissions: 0,
            access_acl: None,
            inherits_default_acl: false,
        },
        default_acl: None,
        property: None,
        number: None,
    };
    let acl = default_acl.as_ref();
    let kind = blueprint.kind();
    let file = NewFile::in_directory(&attr, acl, new.context, kind, new.permissions);
    Ok(Blueprint {
        default_acl: default_acl.filter(|_| file.inherits_default_acl),
        property: properties::inherited(directory, kind)?,
        file,
        ..blueprint
    })
}

/// Makes an inode of any kind; without a name, it is an orphan. The caller holds the lock of the directory.
pub(super) fn new_inode(
    directory: &BtrfsInode,
    name: Option<Name<'_>>,
    new: NewInode<'_>,
) -> Result<Arc<BtrfsInode>> {
    let fs = &directory.fs;
    let blueprint = plan(directory, new)?;
    let handle = fs.begin(
        NAME_CREDITS + 2 * INODE_CREDITS,
        Purpose::Change(directory.tree_id()),
    )?;
    let mut states = States::lock(&[directory]);
    let made = handle.whole(|handle| {
        let made = make(
            directory,
            handle,
            name,
            &blueprint,
            states.item(directory).flags,
        )?;
        if let Some(name) = name {
            let dir = states.item(directory);
            dir.size_bytes += 2 * name.len() as u64;
            touch_contents(dir, fs.clock.now());
            states.store(handle)?;
        }
        Ok(made)
    })?;
    states.end();
    drop(handle);
    let (number, item) = made;
    fs.adopt(directory, number, item)
}

/// Makes an inode in the subvolume of a directory, with what is in it from the start. The name comes first: only
/// that can be refused.
pub(super) fn make(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    name: Option<Name<'_>>,
    blueprint: &Blueprint<'_>,
    dir_flags: InodeFlags,
) -> Result<(u64, InodeItem)> {
    let (fs, kind, now) = (&directory.fs, blueprint.kind(), directory.fs.clock.now());
    let mut item = InodeItem {
        generation: handle.generation(),
        transaction: handle.generation(),
        size_bytes: 0,
        allocated_bytes: 0,
        links: u32::from(name.is_some()),
        uid: blueprint.file.uid,
        gid: blueprint.file.gid,
        kind,
        permissions: blueprint.file.permissions,
        device: DeviceNumber { major: 0, minor: 0 },
        flags: inherited_flags(dir_flags, kind) | fs.policy.flags(kind),
        sequence: 0,
        accessed: now,
        changed: now,
        modified: now,
        created: now,
    };
    let target = match blueprint.new.kind {
        CreateKind::Symlink(target) => Some(target),
        CreateKind::CharDevice(device) | CreateKind::BlockDevice(device) => {
            item.device = *device;
            None
        }
        CreateKind::Regular | CreateKind::Directory | CreateKind::Fifo | CreateKind::Socket => None,
    };
    if let Some(target) = target {
        item.size_bytes = target.len() as u64;
        item.allocated_bytes = target.len() as u64;
    }
    let number = handle.edit(directory.tree_id(), |editor| {
        let number = match blueprint.number {
            Some(number) => number,
            None => fs.free_objectids.take(directory.tree_id(), editor)?,
        };
        match name {
            Some(name) => entries::add(directory, handle, editor, name, (number, kind))?,
            None if handle.delay_orphan(directory.tree_id(), number) => {}
            None => inode::change::add_orphan(editor, number)?,
        }
        inode::change::insert(editor, number, &item)?;
        if let Some(target) = target {
            let extent = FileExtent {
                generation: handle.generation(),
                ram_bytes: target.len() as u64,
                compression: Compression::None,
                file_bytes: target.len() as u64,
                kind: FileExtentKind::Inline(target),
            };
            let key = Key::new(number, ItemKind::EXTENT_DATA, 0);
            editor.insert(key, &extent.encode())?;
        }
        if let Some(value) = &blueprint.property {
            let (of, transaction) = ((number, COMPRESSION_NAME), handle.generation());
            xattr::change::set(editor, transaction, of, value, XattrMode::Set)?;
        }
        for (name, acl) in blueprint.acls() {
            let (of, value) = ((number, name), acl.encode());
            let transaction = handle.generation();
            xattr::change::set(editor, transaction, of, &value, XattrMode::Set)?;
        }
        Ok(number)
    })?;
    Ok((number, item))
}

/// Adds a name of `file` to a directory. The caller holds both inode locks.
pub(super) fn link(directory: &BtrfsInode, name: Name<'_>, file: &Arc<BtrfsInode>) -> Result<()> {
    let handle = directory
        .fs
        .begin(NAME_CREDITS, Purpose::Change(directory.tree_id()))?;
    let mut states = States::lock(&[directory, file]);
    let now = directory.fs.clock.now();
    let was_unnamed = states.item(file).links == 0;
    handle.whole(|handle| {
        handle.edit(directory.tree_id(), |editor| {
            let named = (file.id.number, file.kind);
            entries::add(directory, handle, editor, name, named)?;
            if was_unnamed && !handle.withdraw_orphan(directory.tree_id(), file.id.number) {
                inode::change::remove_orphan(editor, file.id.number)?;
            }
            Ok(())
        })?;
        let dir = states.item(directory);
        dir.size_bytes += 2 * name.len() as u64;
        touch_contents(dir, now);
        let item = states.item(file);
        item.links = item.links.saturating_add(1);
        item.changed = now;
        states.store(handle)
    })?;
    states.end();
    drop(handle);
    if was_unnamed {
        // Now that it can be found, what was written to it before has to be.
        sync::mark_dirty(file);
    }
    Ok(())
}
