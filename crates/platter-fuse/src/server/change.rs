//! Requests that change something.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_vfs::attr::DeviceNumber;
use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE, check_frozen, without_set_ids};
use platter_vfs::{
    Attr, Condition, CreateKind, Error, FallocateMode, FileKind, Inode, RenameMode, SetAttr,
    XattrMode,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Answer, Caller, EntryParam, Server};
use crate::Operation;
use crate::node::NodeId;

/// `S_ISGID`.
const SET_GROUP_ID: u32 = 0o2000;

/// What to make.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MakeKind<'a> {
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// What the type bits of a mode say; the number is for devices.
    OfMode(u32, DeviceNumber),
}

/// How a write comes about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteManner {
    /// The writer can do no more than append, or the kernel does not say.
    pub(crate) only_appends: bool,
    /// The kernel asks for it because of the writer's credentials.
    pub(crate) drops_set_ids: bool,
    /// With `O_DIRECT`: the contents are on the device when this is answered.
    pub(crate) is_direct: bool,
}

/// What a request changed besides what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The kernel knows which attributes change with such a request.
    Foreseen,
    /// It keeps attributes of this node that have changed, until a notice drops them.
    Unforeseen(NodeId),
}

/// What came of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    /// How many bytes were copied, which may be fewer than asked for.
    pub(crate) bytes: u64,
    /// The source has another time of access now.
    pub(crate) accessed: bool,
}

/// An attribute to set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XattrChange<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) mode: XattrMode,
    /// What the kernel has to say to the set-group-id bit of a file that gets an ACL, which goes by
    /// all groups of the caller.
    pub(crate) drops_set_group: Option<bool>,
}

/// What to change of a file's attributes.
pub(crate) type Changes = SetAttr;

impl Server {
    pub(crate) fn make(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: MakeKind<'_>,
        mode: u32,
        umask: u32,
    ) -> Answer<EntryParam> {
        self.counters.count(kind.operation());
        self.must_be_writable()?;
        let dir = self.inode(parent)?;
        let context = Self::context(caller, umask);
        let (name, kind) = (self.name(name)?, kind.to_create()?);
        let made = self.check(dir.create(&context, name, kind, mode & 0o7777))?;
        self.make_entry(&made, self.name_validity(&*dir))
    }

    /// Makes a file without a name, which lives as long as the kernel holds it or until it gets one.
    pub(crate) fn make_unnamed(
        &self,
        caller: Caller,
        dir: NodeId,
        mode: u32,
        umask: u32,
    ) -> Answer<EntryParam> {
        self.counters.count(Operation::TmpFile);
        self.must_be_writable()?;
        let dir = self.inode(dir)?;
        let context = Self::context(caller, umask);
        let made = self.check(dir.create_unnamed(&context, mode & 0o7777))?;
        self.make_entry(&made, self.name_validity(&*dir))
    }

    pub(crate) fn link(
        &self,
        caller: Caller,
        target: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Answer<EntryParam> {
        self.counters.count(Operation::Link);
        self.must_be_writable()?;
        let (dir, target) = (self.inode(parent)?, self.inode(target)?);
        let context = Self::context(caller, 0);
        self.check(dir.link(&context, self.name(name)?, target.id()))?;
        self.make_entry(&target, self.name_validity(&*dir))
    }

    pub(crate) fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.counters.count(Operation::Unlink);
        self.must_be_writable()?;
        let context = Self::context(caller, 0);
        let (dir, name) = (self.inode(parent)?, self.name(name)?);
        let named = self.named(&*dir, name)?;
        let removed = dir.unlink(&context, name);
        self.keep_nameless(named, &mut Effect::Foreseen);
        self.check(removed)
    }

    pub(crate) fn remove_dir(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        effect: &mut Effect,
    ) -> Answer<()> {
        self.counters.count(Operation::RmDir);
        self.must_be_writable()?;
        let context = Self::context(caller, 0);
        let (dir, name) = (self.inode(parent)?, self.name(name)?);
        let named = self.named(&*dir, name)?;
        let removed = dir.remove_dir(&context, name);
        self.keep_nameless(named, effect);
        self.check(removed)
    }

    pub(crate) fn rename(
        &self,
        caller: Caller,
        (parent, name): (NodeId, &[u8]),
        (new_parent, new_name): (NodeId, &[u8]),
        mode: RenameMode,
        effect: &mut Effect,
    ) -> Answer<()> {
        self.counters.count(Operation::Rename);
        self.must_be_writable()?;
        let (dir, new_dir) = (self.inode(parent)?, self.inode(new_parent)?);
        let (name, new_name) = (self.name(name)?, self.name(new_name)?);
        let context = Self::context(caller, 0);
        let replaced = self.named(&*new_dir, new_name)?;
        let renamed = dir.rename(&context, name, new_dir.id(), new_name, mode);
        self.keep_nameless(replaced, effect);
        self.check(renamed)
    }

    pub(crate) fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        changes: &Changes,
    ) -> Answer<Attr> {
        self.counters.count(Operation::SetAttr);
        self.must_be_writable()?;
        let mut changes = *changes;
        // Where an owner is only shown, it cannot be changed to another.
        for (shown, wanted) in [
            (self.options.uid, &mut changes.uid),
            (self.options.gid, &mut changes.gid),
        ] {
            if shown.is_some() && wanted.take().is_some_and(|wanted| Some(wanted) != shown) {
                return Err(Errno::PERM);
            }
        }
        let inode = self.inode(node)?;
        // A time of writing that the kernel gathered was allowed when it was set.
        let kept = Changes {
            modified: changes.modified,
            changed: changes.changed,
            ..Changes::default()
        };
        if !self.options.writeback || changes != kept {
            let attr = self.check(inode.attr())?;
            self.check(check_frozen(&attr, &changes))?;
        }
        let new_owner = changes.uid.is_some() || changes.gid.is_some();
        if (new_owner || changes.size_bytes.is_some())
            && let Some(kept) = self.permissions_kept(caller, &*inode)?
            && (new_owner || !caller.keeps_set_ids())
        {
            changes.permissions.get_or_insert(kept);
        }
        self.nodes.note_attr_sent(node);
        let attr = self.check(inode.set_attr(&Self::context(caller, 0), &changes))?;
        Ok(self.as_shown(attr))
    }

    pub(crate) fn write(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        data: &[u8],
        manner: WriteManner,
        effect: &mut Effect,
    ) -> Answer<()> {
        self.counters.count(Operation::Write);
        self.must_be_writable()?;
        let inode = self.inode(node)?;
        if !manner.only_appends && self.check(inode.attr())?.flags & APPEND_ONLY != 0 {
            return Err(Errno::PERM);
        }
        if manner.drops_set_ids && self.drop_set_ids(caller, &*inode)? {
            *effect = Effect::Unforeseen(node);
        }
        self.check(if manner.is_direct {
            inode.write_through(offset, data)
        } else {
            inode.write_at(offset, data)
        })
    }

    pub(crate) fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        range: Range<u64>,
        mode: FallocateMode,
        effect: &mut Effect,
    ) -> Answer<()> {
        self.counters.count(Operation::Fallocate);
        self.must_be_writable()?;
        let inode = self.inode(node)?;
        let only_takes_space = FallocateMode::Allocate { keep_size: true };
        if mode != only_takes_space && mode != (FallocateMode::Allocate { keep_size: false }) {
            self.refuse_frozen(&*inode)?;
        }
        if self.permissions_kept(caller, &*inode)?.is_some()
            && !caller.keeps_set_ids()
            && self.drop_set_ids(caller, &*inode)?
        {
            *effect = Effect::Unforeseen(node);
        }
        self.check(inode.fallocate(range, mode))
    }

    /// Copies a range of a file to a place in another, or in the same.
    pub(crate) fn copy_range(
        &self,
        caller: Caller,
        (source, range): (NodeId, Range<u64>),
        (target, to): (NodeId, u64),
        effect: &mut Effect,
    ) -> Answer<Copied> {
        self.counters.count(Operation::CopyFileRange);
        self.must_be_writable()?;
        let (source, inode) = (self.inode(source)?, self.inode(target)?);
        self.refuse_frozen(&*inode)?;
        if self.permissions_kept(caller, &*inode)?.is_some()
            && !caller.keeps_set_ids()
            && self.drop_set_ids(caller, &*inode)?
        {
            *effect = Effect::Unforeseen(target);
        }
        let bytes = self.check(inode.copy_range(&*source, range, to))?;
        let before = self.check(source.attr())?.accessed;
        self.note_access(&*source, FileKind::Regular, OFlags::empty());
        let accessed = self.check(source.attr())?.accessed != before;
        Ok(Copied { bytes, accessed })
    }

    /// Refuses what must not happen to a file that is immutable or only grows.
    fn refuse_frozen(&self, inode: &dyn Inode) -> Answer<Attr> {
        let attr = self.check(inode.attr())?;
        if attr.flags & (IMMUTABLE | APPEND_ONLY) != 0 {
            return Err(Errno::PERM);
        }
        Ok(attr)
    }

    /// Takes the set-id bits from a file whose contents change. Whether it had any.
    fn drop_set_ids(&self, caller: Caller, inode: &dyn Inode) -> Answer<bool> {
        let Some(permissions) = self.permissions_kept(caller, inode)? else {
            return Ok(false);
        };
        let changes = Changes {
            permissions: Some(permissions),
            ..Changes::default()
        };
        self.check(inode.set_attr(&Self::context(caller, 0), &changes))?;
        Ok(true)
    }

    /// The permission bits that a change of contents leaves a file, if not all. Where the group may not
    /// run it, the set-group-id bit stays for members of the group.
    fn permissions_kept(&self, caller: Caller, inode: &dyn Inode) -> Answer<Option<u32>> {
        let attr = self.check(inode.attr())?;
        let mut kept = without_set_ids(attr.permissions);
        let is_allowed = || caller.is_superuser() || caller.is_in_group(attr.gid);
        if kept & SET_GROUP_ID != 0 && !is_allowed() {
            kept &= !SET_GROUP_ID;
        }
        let changes = kept != attr.permissions && attr.kind != FileKind::Directory;
        Ok(changes.then_some(kept))
    }

    pub(crate) fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        change: &XattrChange<'_>,
        effect: &mut Effect,
    ) -> Answer<()> {
        self.counters.count(Operation::SetXattr);
        self.must_be_writable()?;
        let mut context = Self::context(caller, 0);
        let inode = self.inode(node)?;
        let attr = self.refuse_frozen(&*inode)?;
        if change.drops_set_group == Some(false) {
            context.credentials.groups.push(attr.gid);
        }
        let XattrChange {
            name, value, mode, ..
        } = *change;
        let mut set = inode.set_xattr(&context, name, value, mode);
        if matches!(set, Err(Error::Condition(Condition::NoSpace))) && caller.is_unsent_superuser()
        {
            // The superuser may use what is reserved.
            context.credentials.uid = 0;
            set = inode.set_xattr(&context, name, value, mode);
        }
        self.check(set)?;
        if change.drops_set_group == Some(true) {
            let permissions = self.check(inode.attr())?.permissions;
            let changes = Changes {
                permissions: Some(permissions & !SET_GROUP_ID),
                ..Changes::default()
            };
            self.check(inode.set_attr(&context, &changes))?;
        }
        self.note_space(node, &*inode, &attr, effect)
    }

    pub(crate) fn remove_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        effect: &mut Effect,
    ) -> Answer<()> {
        self.counters.count(Operation::RemoveXattr);
        self.must_be_writable()?;
        let context = Self::context(caller, 0);
        let inode = self.inode(node)?;
        let attr = self.refuse_frozen(&*inode)?;
        self.check(inode.remove_xattr(&context, name))?;
        self.note_space(node, &*inode, &attr, effect)
    }

    /// Records whether the space changed that an inode takes, which the kernel expects of contents only.
    fn note_space(
        &self,
        node: NodeId,
        inode: &dyn Inode,
        before: &Attr,
        effect: &mut Effect,
    ) -> Answer<()> {
        if self.check(inode.attr())?.sectors != before.sectors {
            *effect = Effect::Unforeseen(node);
        }
        Ok(())
    }

    /// Makes a file's data and what leads to it durable.
    pub(crate) fn sync(&self, node: NodeId, data_only: bool, of: Operation) -> Answer<()> {
        self.counters.count(of);
        self.must_not_be_shut_down()?;
        self.check(self.inode(node)?.sync(data_only))
    }

    pub(super) fn must_be_writable(&self) -> Answer<()> {
        self.must_not_be_shut_down()?;
        if self.options.read_only || self.broken.load(Ordering::Relaxed) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }
}

impl MakeKind<'_> {
    fn operation(self) -> Operation {
        match self {
            Self::Directory => Operation::MkDir,
            Self::Symlink(_) => Operation::Symlink,
            Self::OfMode(..) => Operation::MkNod,
        }
    }

    fn to_create(self) -> Answer<CreateKind> {
        Ok(match self {
            Self::Directory => CreateKind::Directory,
            Self::Symlink(target) => CreateKind::Symlink(target.to_vec()),
            Self::OfMode(mode, device) => match FileKind::from_mode(mode) {
                Some(FileKind::Regular) => CreateKind::Regular,
                Some(FileKind::CharDevice) => CreateKind::CharDevice(device),
                Some(FileKind::BlockDevice) => CreateKind::BlockDevice(device),
                Some(FileKind::Fifo) => CreateKind::Fifo,
                Some(FileKind::Socket) => CreateKind::Socket,
                Some(FileKind::Directory | FileKind::Symlink) | None => return Err(Errno::INVAL),
            },
        })
    }
}
