//! Subvolumes, as the ioctls of btrfs create, delete and describe them. The kernel checks no permissions for an
//! ioctl: that is done here, as its own btrfs does.

use std::sync::Arc;

use platter_vfs::permission::{check_access, check_create, check_delete};
use platter_vfs::{
    Access, Attr, Condition, Context, Error, FileKind, Inode, Name, Subvolumes, Timestamp, Uuid,
};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Answer, Caller, ChangedName, Effect, IoctlAnswer, Server};
use crate::ioctl::{
    InoLookup, NextSubvolume, ROOT_DIRECTORY, ReceivedSubvolume, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID,
    SubvolumeCommand, SubvolumeInfo, VolArgs, VolArgsV2, argument, text,
};
use crate::node::NodeId;

/// `BTRFS_FS_TREE_OBJECTID`, which 0 stands for as well.
const TOP_LEVEL: u64 = 5;

/// The file that a caller has open as a descriptor, and how a snapshot of it is made.
struct Source {
    fd: i64,
    is_read_only: bool,
}

/// Carries out an ioctl of an inode.
pub(super) fn carry_out(
    server: &Server,
    caller: Caller,
    inode: &dyn Inode,
    command: SubvolumeCommand,
    input: &[u8],
) -> Answer<IoctlAnswer> {
    let subvolumes = server.fs.subvolumes().ok_or(Errno::NOTTY)?;
    let ioctl = SubvolumeIoctl {
        server,
        caller,
        subvolumes,
    };
    ioctl.carry_out(inode, command, input)
}

/// An ioctl that a caller asks for.
struct SubvolumeIoctl<'s> {
    server: &'s Server,
    caller: Caller,
    subvolumes: &'s dyn Subvolumes,
}

impl SubvolumeIoctl<'_> {
    fn carry_out(
        &self,
        inode: &dyn Inode,
        command: SubvolumeCommand,
        input: &[u8],
    ) -> Answer<IoctlAnswer> {
        match command {
            SubvolumeCommand::Create => {
                let args: VolArgs = argument(input)?;
                self.create(inode, text(&args.name)?)
            }
            SubvolumeCommand::CreateV2 => {
                let args: VolArgsV2 = argument(input)?;
                refuse_flags(args.flags, 0)?;
                self.create(inode, text(&args.name)?)
            }
            SubvolumeCommand::Snapshot => {
                let args: VolArgs = argument(input)?;
                let source = Source {
                    fd: args.fd,
                    is_read_only: false,
                };
                self.snapshot(&source, inode, text(&args.name)?)
            }
            SubvolumeCommand::SnapshotV2 => {
                let args: VolArgsV2 = argument(input)?;
                refuse_flags(args.flags, SUBVOL_RDONLY)?;
                let source = Source {
                    fd: args.fd,
                    is_read_only: args.flags & SUBVOL_RDONLY != 0,
                };
                self.snapshot(&source, inode, text(&args.name)?)
            }
            SubvolumeCommand::Delete => {
                let args: VolArgs = argument(input)?;
                self.delete(inode, text(&args.name)?, None)
            }
            SubvolumeCommand::DeleteV2 => {
                let args: VolArgsV2 = argument(input)?;
                refuse_flags(args.flags, SUBVOL_SPEC_BY_ID)?;
                if args.flags & SUBVOL_SPEC_BY_ID == 0 {
                    let name = text(&args.name)?;
                    return self.delete(inode, name, None);
                }
                let id = args.subvolume();
                let (dir, name) = self.place_of(id)?;
                self.delete(&*dir, &name, Some(id))
            }
            SubvolumeCommand::GetFlags => {
                let id = rooted(self.server, self.subvolumes, inode)?;
                let is_read_only = self.server.check(self.subvolumes.get(id))?.read_only;
                let flags = if is_read_only { SUBVOL_RDONLY } else { 0 };
                Ok(flags.as_bytes().to_vec().into())
            }
            SubvolumeCommand::SetFlags => self.set_flags(inode, argument(input)?),
            SubvolumeCommand::SetDefault => {
                self.server.must_be_mounted_writable()?;
                let id = argument(input)?;
                let id = if id == 0 { TOP_LEVEL } else { id };
                self.server.check(self.subvolumes.set_default(id))?;
                Ok(Vec::new().into())
            }
            SubvolumeCommand::Lookup => look_up_subvolume(inode, input),
            SubvolumeCommand::Info => {
                let subvolume = self.server.check(self.subvolumes.get(inode.id().tree))?;
                let info = SubvolumeInfo::encode(&subvolume);
                Ok(info.as_bytes().to_vec().into())
            }
            SubvolumeCommand::SetReceived => self.set_received(inode, argument(input)?),
            SubvolumeCommand::Next => {
                let asked: NextSubvolume = argument(input)?;
                let next = self.server.check(self.subvolumes.next(asked.info.id))?;
                let next = next.ok_or(Errno::NOENT)?;
                let is_default = self.server.check(self.subvolumes.default_id())? == next.id;
                let next = NextSubvolume::encode(&next, is_default)?;
                Ok(next.as_bytes().to_vec().into())
            }
        }
    }

    fn create(&self, dir: &dyn Inode, name: &[u8]) -> Answer<IoctlAnswer> {
        let (server, subvolumes) = (self.server, self.subvolumes);
        let (context, name) = self.new_name(dir, name)?;
        let made = server.check(subvolumes.create(&context, dir.id(), name));
        Ok(self.name_was_changed(dir, name, made.map(|_| None)))
    }

    fn snapshot(&self, source: &Source, dir: &dyn Inode, name: &[u8]) -> Answer<IoctlAnswer> {
        let (server, subvolumes) = (self.server, self.subvolumes);
        let (context, name) = self.new_name(dir, name)?;
        let file = self.caller.open_file(source.fd)?;
        if server.device.get() != Some(&file.device) {
            return Err(Errno::XDEV);
        }
        let root = if file.inode == NodeId::ROOT.0 {
            // So the kernel numbers the root of the mount until it asks for its attributes.
            server.inode(NodeId::ROOT)?
        } else {
            let id = server.fs.inode_shown_as(file.inode).ok_or(Errno::INVAL)?;
            server.check(server.fs.inode(id))?
        };
        self.must_own(&context, &*root)?;
        let id = rooted(self.server, self.subvolumes, &*root)?;
        let is_read_only = source.is_read_only;
        let made = server.check(subvolumes.snapshot(&context, id, dir.id(), name, is_read_only));
        Ok(self.name_was_changed(dir, name, made.map(|_| None)))
    }

    /// Deletes the subvolume with a name, which has to be that with the number `id`.
    fn delete(&self, dir: &dyn Inode, name: &[u8], id: Option<u64>) -> Answer<IoctlAnswer> {
        let (server, subvolumes) = (self.server, self.subvolumes);
        server.must_be_mounted_writable()?;
        let name = server.name(name)?;
        if name.is_dot_or_dotdot() {
            return Err(Errno::INVAL);
        }
        let dir_attr = self.directory(dir)?;
        let root = server.named(dir, name)?.ok_or(Errno::NOENT)?;
        let context = self.caller.context()?;
        let is_admin = self.caller.is_admin();
        if !is_admin && !server.options.users_delete_subvolumes {
            return Err(Errno::PERM);
        }
        if !server.options.no_permission_checks {
            let (root_attr, user) = (server.shown_attr(&*root)?, &context.credentials);
            if !is_admin {
                let wanted = Access::WRITE | Access::EXECUTE;
                server.check(check_access(&*root, &root_attr, user, wanted))?;
            }
            server.check(check_delete(dir, &dir_attr, &root_attr, user))?;
        }
        let found = rooted(self.server, self.subvolumes, &*root)?;
        if id.is_some_and(|id| id != found) {
            return Err(Errno::STALE);
        }
        let root_id = root.id();
        let held = server.nodes.held(root_id);
        let deleted = server.check(subvolumes.delete(&context, dir.id(), name, Some(root_id)));
        // All attributes are dropped with the name.
        server.keep_nameless(Some(root), &mut Effect::Foreseen);
        Ok(self.name_was_changed(dir, name, deleted.map(|()| held)))
    }

    fn set_flags(&self, inode: &dyn Inode, flags: u64) -> Answer<IoctlAnswer> {
        let (server, subvolumes) = (self.server, self.subvolumes);
        server.must_be_mounted_writable()?;
        self.must_own(&self.caller.context()?, inode)?;
        let id = rooted(self.server, self.subvolumes, inode)?;
        refuse_flags(flags, SUBVOL_RDONLY)?;
        server.check(subvolumes.set_read_only(id, flags & SUBVOL_RDONLY != 0))?;
        Ok(Vec::new().into())
    }

    /// Records what was received into a subvolume. When it was sent is not stored, and no receiver says it.
    fn set_received(&self, inode: &dyn Inode, asked: ReceivedSubvolume) -> Answer<IoctlAnswer> {
        let (server, subvolumes) = (self.server, self.subvolumes);
        server.must_be_mounted_writable()?;
        self.must_own(&self.caller.context()?, inode)?;
        let id = rooted(self.server, self.subvolumes, inode)?;
        refuse_flags(asked.flags, 0)?;
        if Timestamp::from(asked.sent) != Timestamp::default() {
            return Err(Errno::OPNOTSUPP);
        }
        let uuid = Uuid::from_bytes(asked.uuid);
        server.check(subvolumes.set_received(id, uuid, asked.sent_generation))?;
        let received = server.check(subvolumes.get(id))?.received;
        let answer = ReceivedSubvolume {
            received_generation: received.map_or(0, |it| it.generation),
            received: received.map_or(Timestamp::default(), |it| it.time).into(),
            ..asked
        };
        Ok(answer.as_bytes().to_vec().into())
    }

    /// The directory that holds the name of a subvolume, and the name.
    fn place_of(&self, id: u64) -> Answer<(Arc<dyn Inode>, Vec<u8>)> {
        let root = self.server.check(self.subvolumes.root(id))?;
        let subvolume = self.server.check(self.subvolumes.get(id))?;
        let name = subvolume.path.rsplit(|&byte| byte == b'/').next();
        let name = name.filter(|name| !name.is_empty()).ok_or(Errno::INVAL)?;
        let root = self.server.check(self.server.fs.inode(root))?;
        let dir = self.server.check(root.lookup(self.server.name(b"..")?))?;
        Ok((dir, name.to_vec()))
    }

    /// A name for something new, and its maker.
    fn new_name<'n>(&self, dir: &dyn Inode, name: &'n [u8]) -> Answer<(Context, Name<'n>)> {
        self.server.must_be_mounted_writable()?;
        let attr = self.directory(dir)?;
        let name = self.server.name(name)?;
        if self.server.named(dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let context = self.caller.context()?;
        if !self.server.options.no_permission_checks {
            self.server
                .check(check_create(dir, &attr, &context.credentials))?;
        }
        Ok((context, name))
    }

    /// The attributes of what has to be a directory.
    fn directory(&self, inode: &dyn Inode) -> Answer<Attr> {
        let attr = self.server.shown_attr(inode)?;
        if attr.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(attr)
    }

    /// Refuses callers that neither own a file nor are above its owner.
    fn must_own(&self, context: &Context, inode: &dyn Inode) -> Answer<()> {
        let attr = self.server.shown_attr(inode)?;
        self.server
            .must_own(self.caller, context.credentials.uid, &attr)
    }

    /// The kernel may have cached that `name` is missing, or what it named. After an error of the filesystem, it finds
    /// out which.
    fn name_was_changed(
        &self,
        dir: &dyn Inode,
        name: Name<'_>,
        removed: Answer<Option<NodeId>>,
    ) -> IoctlAnswer {
        let changed = self.server.nodes.held(dir.id()).map(|dir| ChangedName {
            dir,
            name: name.to_vec(),
            removed: removed.unwrap_or_default(),
        });
        IoctlAnswer {
            output: removed.map(|_| Vec::new()),
            changed,
        }
    }
}

/// The subvolume whose root directory this is.
///
/// # Errors
/// `EINVAL` where it is that of none.
pub(super) fn rooted(
    server: &Server,
    subvolumes: &dyn Subvolumes,
    inode: &dyn Inode,
) -> Answer<u64> {
    let id = inode.id();
    match subvolumes.root(id.tree) {
        Ok(root) if root == id => Ok(id.tree),
        Ok(_) | Err(Error::Condition(Condition::NotFound)) => Err(Errno::INVAL),
        Err(error) => Err(server.refuse(&error)),
    }
}

/// Returns the subvolume of a file, to any caller that has it open, also of a deleted one. The names of other inodes are
/// not looked up.
fn look_up_subvolume(inode: &dyn Inode, input: &[u8]) -> Answer<IoctlAnswer> {
    let mut asked: InoLookup = argument(input)?;
    if asked.inode != ROOT_DIRECTORY {
        return Err(Errno::OPNOTSUPP);
    }
    if asked.tree == 0 {
        asked.tree = inode.id().tree;
    }
    asked.name.fill(0);
    Ok(asked.as_bytes().to_vec().into())
}

/// Refuses flags that are not among those `supported`.
fn refuse_flags(flags: u64, supported: u64) -> Answer<()> {
    if flags & !supported != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}
