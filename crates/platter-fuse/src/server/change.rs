//! Requests that change something.

use std::ops::Range;

use platter_vfs::acl::ACL_ACCESS_NAME;
use platter_vfs::attr::DeviceNumber;
use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE, check_frozen, without_set_ids};
use platter_vfs::{
    Attr, Condition, CreateKind, Error, FallocateMode, FileKind, Inode, RenameMode, SetAttr,
    WriteTo, XattrMode,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Answer, Caller, EntryParam, ReadAttr, Server, Validity};
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
    pub(crate) from: WriteFrom,
}

/// Where what is written comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFrom {
    /// A call of `write(2)`.
    Call,
    /// One with `O_DIRECT`: the contents are on the device when it is answered.
    DirectCall,
    /// Pages that the kernel has cached, all of which it takes to be written then.
    Pages,
}

/// What a request changed besides what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The kernel knows which attributes change with such a request.
    Foreseen,
    /// It keeps attributes of this node that have changed, until a notice drops them.
    Unforeseen(NodeId),
}

/// A name that the kernel keeps although others change with it: it came from a directory that does not fold case to one
/// that does.
#[derive(Debug)]
pub(crate) struct KeptName {
    pub(crate) dir: NodeId,
    pub(crate) name: Vec<u8>,
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

/// Requests of a caller that change something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'s> {
    server: &'s Server,
    caller: Caller,
}

impl<'s> Change<'s> {
    pub(crate) fn new(server: &'s Server, caller: Caller) -> Self {
        Self { server, caller }
    }

    pub(crate) fn make(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: MakeKind<'_>,
        mode: u32,
        umask: u32,
    ) -> Answer<EntryParam> {
        let Self { server, caller } = *self;
        server.counters.count(kind.operation());
        server.must_be_writable()?;
        let dir = server.inode(parent)?;
        let context = Server::context(caller, umask);
        let (name, kind) = (server.name(name)?, kind.to_create()?);
        let made = {
            let _change = server.versions.begin(dir.id());
            server.check(dir.create(&context, name, kind, mode & 0o7777))?
        };
        server.make_entry(&made, server.name_validity(&*dir))
    }

    /// Makes a file without a name, which lives as long as the kernel holds it or until it gets one.
    pub(crate) fn make_unnamed(&self, dir: NodeId, mode: u32, umask: u32) -> Answer<EntryParam> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::TmpFile);
        server.must_be_writable()?;
        let dir = server.inode(dir)?;
        let context = Server::context(caller, umask);
        let made = server.check(dir.create_unnamed(&context, mode & 0o7777))?;
        server.make_entry(&made, server.name_validity(&*dir))
    }

    pub(crate) fn link(&self, target: NodeId, parent: NodeId, name: &[u8]) -> Answer<EntryParam> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::Link);
        server.must_be_writable()?;
        let (dir, target) = (server.inode(parent)?, server.inode(target)?);
        let context = Server::context(caller, 0);
        {
            let _changes = server.begin_changes([Some(&dir), Some(&target)]);
            server.check(dir.link(&context, server.name(name)?, target.id()))?;
        }
        server.make_entry(&target, server.name_validity(&*dir))
    }

    pub(crate) fn unlink(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::Unlink);
        server.must_be_writable()?;
        let context = Server::context(caller, 0);
        let (dir, name) = (server.inode(parent)?, server.name(name)?);
        let named = server.named(&*dir, name)?;
        let _changes = server.begin_changes([Some(&dir), named.as_ref()]);
        let removed = dir.unlink(&context, name);
        server.keep_nameless(named, &mut Effect::Foreseen);
        server.check(removed)
    }

    pub(crate) fn remove_dir(
        &self,
        parent: NodeId,
        name: &[u8],
        effect: &mut Effect,
    ) -> Answer<()> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::RmDir);
        server.must_be_writable()?;
        let context = Server::context(caller, 0);
        let (dir, name) = (server.inode(parent)?, server.name(name)?);
        let named = server.named(&*dir, name)?;
        let _changes = server.begin_changes([Some(&dir), named.as_ref()]);
        let removed = dir.remove_dir(&context, name);
        server.keep_nameless(named, effect);
        server.check(removed)
    }

    pub(crate) fn rename(
        &self,
        (parent, name): (NodeId, &[u8]),
        (new_parent, new_name): (NodeId, &[u8]),
        mode: RenameMode,
        effect: &mut Effect,
    ) -> Answer<Option<KeptName>> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::Rename);
        server.must_be_writable()?;
        let (dir, new_dir) = (server.inode(parent)?, server.inode(new_parent)?);
        let (name, new_name) = (server.name(name)?, server.name(new_name)?);
        let context = Server::context(caller, 0);
        let moved = server.named(&*dir, name)?;
        let replaced = server.named(&*new_dir, new_name)?;
        let _of_dirs = server.begin_changes([Some(&dir), Some(&new_dir)]);
        let _of_files = server.begin_changes([moved.as_ref(), replaced.as_ref()]);
        let renamed = dir.rename(&context, name, new_dir.id(), new_name, mode);
        server.keep_nameless(replaced, effect);
        server.check(renamed)?;
        if parent == new_parent {
            return Ok(None);
        }
        let [old, new] = [&dir, &new_dir].map(|dir| server.name_validity(&**dir));
        Ok(match (old, new) {
            (Validity::Always, Validity::Never) => Some(KeptName {
                dir: new_parent,
                name: new_name.to_vec(),
            }),
            (Validity::Never, Validity::Always) if mode == RenameMode::Exchange => Some(KeptName {
                dir: parent,
                name: name.to_vec(),
            }),
            _ => None,
        })
    }

    pub(crate) fn set_attributes(&self, node: NodeId, changes: &Changes) -> Answer<ReadAttr> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::SetAttr);
        server.must_be_writable()?;
        let mut changes = *changes;
        // Where an owner is only shown, it cannot be changed to another.
        for (shown, wanted) in [
            (server.options.uid, &mut changes.uid),
            (server.options.gid, &mut changes.gid),
        ] {
            if shown.is_some() && wanted.take().is_some_and(|wanted| Some(wanted) != shown) {
                return Err(Errno::PERM);
            }
        }
        let inode = server.inode(node)?;
        // A time of writing that the kernel gathered was allowed when it was set.
        let kept = Changes {
            modified: changes.modified,
            changed: changes.changed,
            ..Changes::default()
        };
        if !server.options.writeback || changes != kept {
            let attr = server.check(inode.attr())?;
            server.check(check_frozen(&attr, &changes))?;
        }
        let new_owner = changes.uid.is_some() || changes.gid.is_some();
        if (new_owner || changes.size_bytes.is_some())
            && let Some(kept) = self.permissions_kept(&*inode)?
            && (new_owner || !caller.keeps_set_ids())
        {
            changes.permissions.get_or_insert(kept);
        }
        server.nodes.note_attr_sent(node);
        let change = server.versions.begin(inode.id());
        let attr = server.check(inode.set_attr(&Server::context(caller, 0), &changes))?;
        let version = change.end();
        let attr = server.as_shown(attr);
        Ok(ReadAttr { attr, version })
    }

    pub(crate) fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        manner: WriteManner,
        effect: &mut Effect,
    ) -> Answer<usize> {
        let server = self.server;
        server.counters.count(Operation::Write);
        server.must_be_writable()?;
        let inode = server.inode(node)?;
        if !manner.only_appends && server.check(inode.attr())?.flags & APPEND_ONLY != 0 {
            return Err(Errno::PERM);
        }
        let _change = server.versions.begin(inode.id());
        if manner.drops_set_ids && self.drop_set_ids(&*inode)? {
            *effect = Effect::Unforeseen(node);
        }
        let written = match manner.from {
            WriteFrom::Call => inode.write_some(offset, data, WriteTo::Cache),
            WriteFrom::DirectCall => inode.write_some(offset, data, WriteTo::Device),
            WriteFrom::Pages => inode.write_at(offset, data).map(|()| data.len()),
        };
        server.check(written)
    }

    pub(crate) fn allocate(
        &self,
        node: NodeId,
        range: Range<u64>,
        mode: FallocateMode,
        effect: &mut Effect,
    ) -> Answer<()> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::Fallocate);
        server.must_be_writable()?;
        let inode = server.inode(node)?;
        let only_takes_space = FallocateMode::Allocate { keep_size: true };
        if mode != only_takes_space && mode != (FallocateMode::Allocate { keep_size: false }) {
            self.refuse_frozen(&*inode)?;
        }
        let _change = server.versions.begin(inode.id());
        if self.permissions_kept(&*inode)?.is_some()
            && !caller.keeps_set_ids()
            && self.drop_set_ids(&*inode)?
        {
            *effect = Effect::Unforeseen(node);
        }
        server.check(inode.fallocate(range, mode))
    }

    /// Copies a range of a file to a place in another, or in the same.
    pub(crate) fn copy_range(
        &self,
        (source, range): (NodeId, Range<u64>),
        (target, to): (NodeId, u64),
        effect: &mut Effect,
    ) -> Answer<Copied> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::CopyFileRange);
        server.must_be_writable()?;
        let (source, inode) = (server.inode(source)?, server.inode(target)?);
        self.refuse_frozen(&*inode)?;
        let _change = server.versions.begin(inode.id());
        if self.permissions_kept(&*inode)?.is_some()
            && !caller.keeps_set_ids()
            && self.drop_set_ids(&*inode)?
        {
            *effect = Effect::Unforeseen(target);
        }
        let bytes = server.check(inode.copy_range(&*source, range, to))?;
        let before = server.check(source.attr())?.accessed;
        server.note_access(&*source, FileKind::Regular, OFlags::empty());
        let accessed = server.check(source.attr())?.accessed != before;
        Ok(Copied { bytes, accessed })
    }

    /// Refuses what must not happen to a file that is immutable or only grows.
    fn refuse_frozen(&self, inode: &dyn Inode) -> Answer<Attr> {
        let server = self.server;
        let attr = server.check(inode.attr())?;
        if attr.flags & (IMMUTABLE | APPEND_ONLY) != 0 {
            return Err(Errno::PERM);
        }
        Ok(attr)
    }

    /// Takes the set-id bits from a file whose contents change. Whether it had any.
    fn drop_set_ids(&self, inode: &dyn Inode) -> Answer<bool> {
        let Self { server, caller } = *self;
        let Some(permissions) = self.permissions_kept(inode)? else {
            return Ok(false);
        };
        let changes = Changes {
            permissions: Some(permissions),
            ..Changes::default()
        };
        server.check(inode.set_attr(&Server::context(caller, 0), &changes))?;
        Ok(true)
    }

    /// The permission bits that a change of contents leaves a file, if not all. Where the group may not
    /// run it, the set-group-id bit stays for members of the group.
    fn permissions_kept(&self, inode: &dyn Inode) -> Answer<Option<u32>> {
        let Self { server, caller } = *self;
        let attr = server.check(inode.attr())?;
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
        node: NodeId,
        change: &XattrChange<'_>,
        effect: &mut Effect,
    ) -> Answer<()> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::SetXattr);
        server.must_be_writable()?;
        let mut context = Server::context(caller, 0);
        let inode = server.inode(node)?;
        let attr = self.refuse_frozen(&*inode)?;
        let _change = server.versions.begin(inode.id());
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
        server.check(set)?;
        // The kernel says so for the default ACL as well, which leaves the mode as it is.
        if change.drops_set_group == Some(true) && name == ACL_ACCESS_NAME {
            let permissions = server.check(inode.attr())?.permissions;
            let changes = Changes {
                permissions: Some(permissions & !SET_GROUP_ID),
                ..Changes::default()
            };
            server.check(inode.set_attr(&context, &changes))?;
        }
        self.note_unforeseen(node, &*inode, &attr, effect)
    }

    pub(crate) fn remove_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        effect: &mut Effect,
    ) -> Answer<()> {
        let Self { server, caller } = *self;
        server.counters.count(Operation::RemoveXattr);
        server.must_be_writable()?;
        let context = Server::context(caller, 0);
        let inode = server.inode(node)?;
        let attr = self.refuse_frozen(&*inode)?;
        let _change = server.versions.begin(inode.id());
        server.check(inode.remove_xattr(&context, name))?;
        self.note_unforeseen(node, &*inode, &attr, effect)
    }

    /// Records whether a change of an extended attribute also changed what the kernel does not expect: space, and
    /// permissions where it does not know of ACLs.
    fn note_unforeseen(
        &self,
        node: NodeId,
        inode: &dyn Inode,
        before: &Attr,
        effect: &mut Effect,
    ) -> Answer<()> {
        let server = self.server;
        let unforeseen = |attr: &Attr| (attr.sectors, attr.space_is_estimated, attr.permissions);
        if unforeseen(&server.check(inode.attr())?) != unforeseen(before) {
            *effect = Effect::Unforeseen(node);
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
