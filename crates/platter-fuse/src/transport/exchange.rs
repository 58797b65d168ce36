//! One request and its answer.

use platter_vfs::{FallocateMode, FileKind, RenameMode, SeekTarget, SetTime, Timestamp, XattrMode};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::notice::Notice;
use super::protocol::{
    AttrOut, BatchForgetIn, CreateIn, Dirent, EntryOut, FOPEN_KEEP_CACHE, FSYNC_FDATASYNC,
    FallocateIn, FileAttr, ForgetIn, ForgetOne, FsyncIn, GetXattrIn, GetXattrOut, InHeader,
    InitFlags, IoctlIn, IoctlOut, LinkIn, LseekIn, LseekOut, MkDirIn, MkNodIn, Opcode, OpenOut,
    ReadIn, Rename2In, RenameIn, SETXATTR_ACL_KILL_SGID, SetAttrFlags, SetAttrIn, SetXattrIn,
    ShortSetXattrIn, StatFsOut, Statx, StatxOut, WRITE_KILL_SUIDGID, WriteIn, WriteOut,
    decode_device,
};
use super::reply::Reply;
use crate::Operation;
use crate::node::NodeId;
use crate::server::{
    Answer, Caller, Changes, DirLine, Looked, MakeKind, PlusFile, PlusLine, Server, Told, Validity,
    sets_flags,
};

/// As good as for ever, and still a number of seconds the kernel can add to its clock.
const ALWAYS: u64 = 1 << 32;

/// Answers the requests of one serving thread.
pub(super) struct Exchange<'s> {
    server: &'s Server,
    agreed: InitFlags,
    reply: Reply,
    notice: Option<Notice>,
}

/// What a request comes to.
pub(super) enum Outcome<'r> {
    /// This is the answer.
    Answer(&'r [u8]),
    /// None is expected.
    Nothing,
    /// The answer waits for what the kernel has to write first.
    Later(Later),
}

/// A request that needs what the kernel has not written yet.
pub(super) struct Later {
    pub(super) unique: u64,
    pub(super) node: NodeId,
    pub(super) action: Action,
}

/// What is asked for later.
pub(super) enum Action {
    Seek {
        offset: u64,
        target: SeekTarget,
    },
    /// A change of flags: what was written before one that forbids it is not refused.
    Ioctl {
        caller: Caller,
        command: u32,
        input: Vec<u8>,
    },
}

impl Later {
    /// `None` for requests that are answered at once.
    fn decode(opcode: Opcode, header: &InHeader, mut body: Body<'_>) -> Answer<Option<Self>> {
        let action = if opcode == Opcode::Lseek {
            let LseekIn { offset, whence, .. } = body.take()?;
            let target = seek_target(whence)?;
            Action::Seek { offset, target }
        } else if opcode == Opcode::Ioctl {
            let asked: IoctlIn = body.take()?;
            if !sets_flags(asked.command) {
                return Ok(None);
            }
            Action::Ioctl {
                caller: Caller::of(header),
                command: asked.command,
                input: body.bytes(asked.in_size)?.to_vec(),
            }
        } else {
            return Ok(None);
        };
        Ok(Some(Self {
            unique: header.unique,
            node: NodeId(header.node),
            action,
        }))
    }
}

impl Caller {
    fn of(header: &InHeader) -> Self {
        Self {
            uid: header.uid,
            gid: header.gid,
        }
    }
}

/// What follows a request's header.
struct Body<'b>(&'b [u8]);

impl<'b> Body<'b> {
    fn take<T: FromBytes>(&mut self) -> Answer<T> {
        let (structure, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(structure)
    }

    /// A name up to its closing NUL.
    fn name(&mut self) -> Answer<&'b [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.ok_or(Errno::INVAL)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(name)
    }

    fn bytes(&mut self, count: u32) -> Answer<&'b [u8]> {
        let (bytes, rest) = self
            .0
            .split_at_checked(count as usize)
            .ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

impl<'s> Exchange<'s> {
    pub(super) fn new(server: &'s Server, agreed: InitFlags) -> Self {
        let read_max = server.options().request_bytes_max as usize;
        Self {
            server,
            agreed,
            reply: Reply::new(read_max),
            notice: None,
        }
    }

    /// What a request comes to.
    pub(super) fn answer(&mut self, request: &[u8]) -> Outcome<'_> {
        self.reply.clear();
        self.notice = None;
        let Ok((header, body)) = InHeader::read_from_prefix(request) else {
            return Outcome::Nothing;
        };
        // What the kernel adds after the body is not asked for.
        let Some(opcode) = Opcode::decode(header.opcode) else {
            return Outcome::Answer(self.reply.finish(header.unique, Err(Errno::NOSYS)));
        };
        let server = self.server;
        if matches!(opcode, Opcode::Forget | Opcode::BatchForget) {
            // A request without an answer has nobody to tell.
            let _ = server.guarded(|server| forget(server, opcode, header.node, Body(body)));
            return Outcome::Nothing;
        }
        // Of a file that is mapped, the kernel may hold changed pages at any time.
        if !server.options().read_only
            && let Ok(Some(later)) = Later::decode(opcode, &header, Body(body))
        {
            return Outcome::Later(later);
        }
        let answer = server.guarded(|_| self.carry_out(opcode, &header, Body(body)));
        let node = NodeId(header.node);
        self.notice = match (opcode, &answer) {
            // What is not allowed to be written must not be seen either.
            (Opcode::Write, Err(Errno::PERM)) => Some(Notice::Refused(node)),
            (Opcode::Write | Opcode::Fsync, Ok(())) => server
                .has_stale_attributes(node)
                .then_some(Notice::Changed(node)),
            _ => None,
        };
        Outcome::Answer(self.reply.finish(header.unique, answer))
    }

    /// What the kernel is to be told after the last answer.
    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// The last answer did not reach the kernel: it holds none of what it was to be told of.
    pub(super) fn lost(&mut self) {
        for node in self.reply.take_held() {
            self.server.forget(node, 1);
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each request")]
    fn carry_out(&mut self, opcode: Opcode, header: &InHeader, mut body: Body<'_>) -> Answer<()> {
        let server = self.server;
        let node = NodeId(header.node);
        let caller = Caller::of(header);
        match opcode {
            Opcode::Lookup => self.look_up(node, body.name()?),
            Opcode::GetAttr => {
                let attr = server.attributes(node)?;
                self.reply.push(&AttrOut::new(FileAttr::new(&attr)))
            }
            Opcode::Statx => self.statx(node),
            Opcode::SetAttr => {
                let attr = server.set_attributes(caller, node, &changes(&body.take()?))?;
                self.reply.push(&AttrOut::new(FileAttr::new(&attr)))
            }
            Opcode::ReadLink => {
                let target = server.link_target(node)?;
                self.reply.push_bytes(&target)
            }
            Opcode::MkNod => {
                let asked: MkNodIn = body.take()?;
                let kind = MakeKind::OfMode(asked.mode, decode_device(asked.device));
                let (name, mode) = (body.name()?, asked.mode);
                self.tell(&server.make(caller, node, name, kind, mode, asked.umask)?)
            }
            Opcode::MkDir => {
                let MkDirIn { mode, umask } = body.take()?;
                let (name, kind) = (body.name()?, MakeKind::Directory);
                self.tell(&server.make(caller, node, name, kind, mode, umask)?)
            }
            Opcode::Symlink => {
                let name = body.name()?;
                let kind = MakeKind::Symlink(body.name()?);
                self.tell(&server.make(caller, node, name, kind, 0o777, 0)?)
            }
            Opcode::TmpFile => {
                let asked: CreateIn = body.take()?;
                self.tell(&server.make_unnamed(caller, node, asked.mode, asked.umask)?)?;
                self.reply.push(&OpenOut {
                    handle: 0,
                    open_flags: FOPEN_KEEP_CACHE,
                    backing: 0,
                })
            }
            Opcode::Link => {
                let LinkIn { node: target } = body.take()?;
                self.tell(&server.link(caller, NodeId(target), node, body.name()?)?)
            }
            Opcode::Unlink => server.unlink(caller, node, body.name()?),
            Opcode::RmDir => server.remove_dir(caller, node, body.name()?),
            Opcode::Rename => {
                let RenameIn { new_dir } = body.take()?;
                let (from, to) = ((node, body.name()?), (NodeId(new_dir), body.name()?));
                server.rename(caller, from, to, RenameMode::Replace)
            }
            Opcode::Rename2 => {
                let Rename2In { new_dir, flags, .. } = body.take()?;
                let (from, to) = ((node, body.name()?), (NodeId(new_dir), body.name()?));
                server.rename(caller, from, to, rename_mode(flags)?)
            }
            Opcode::Read => {
                let ReadIn { offset, size, .. } = body.take()?;
                let read = |space: &mut [u8]| server.read(node, offset, space);
                self.reply.fill(size as usize, read)
            }
            Opcode::Write => {
                let asked: WriteIn = body.take()?;
                let data = body.bytes(asked.size)?;
                let drops_set_ids = asked.write_flags & WRITE_KILL_SUIDGID != 0;
                server.write(caller, node, asked.offset, data, drops_set_ids)?;
                self.reply.push(&WriteOut {
                    size: asked.size,
                    unused: 0,
                })
            }
            Opcode::ReadDir => self.list(node, &body.take()?),
            Opcode::ReadDirPlus => self.list_plus(node, &body.take()?),
            Opcode::StatFs => self.statfs(),
            Opcode::Fsync | Opcode::FsyncDir => {
                let FsyncIn { flags, .. } = body.take()?;
                let of = if opcode == Opcode::Fsync {
                    Operation::Fsync
                } else {
                    Operation::FsyncDir
                };
                server.sync(node, flags & FSYNC_FDATASYNC != 0, of)
            }
            Opcode::SetXattr => self.set_xattr(caller, node, body),
            Opcode::GetXattr => {
                let GetXattrIn { size, .. } = body.take()?;
                let value = server.xattr(node, body.name()?)?;
                self.value(size, &value)
            }
            Opcode::ListXattr => {
                let GetXattrIn { size, .. } = body.take()?;
                let names = server.xattr_names(node, caller)?;
                self.value(size, &names)
            }
            Opcode::RemoveXattr => server.remove_xattr(caller, node, body.name()?),
            Opcode::Ioctl => {
                let asked: IoctlIn = body.take()?;
                let output =
                    server.ioctl(caller, node, asked.command, body.bytes(asked.in_size)?)?;
                let len = output.len().min(asked.out_size as usize);
                self.reply.push(&IoctlOut::new_zeroed())?;
                self.reply.push_bytes(&output[..len])
            }
            Opcode::Fallocate => {
                let asked: FallocateIn = body.take()?;
                let range = asked.offset..asked.offset.saturating_add(asked.length);
                server.allocate(caller, node, range, fallocate_mode(asked.mode)?)
            }
            Opcode::Lseek => {
                let LseekIn { offset, whence, .. } = body.take()?;
                let offset = server.seek(node, offset, seek_target(whence)?)?;
                self.reply.push(&LseekOut { offset })
            }
            // The kernel makes files with `MKNOD` instead, and has nothing to release afterwards.
            Opcode::Create => Err(server.not_needed(Operation::Create)),
            Opcode::Open => Err(server.not_needed(Operation::Open)),
            Opcode::OpenDir => Err(server.not_needed(Operation::OpenDir)),
            Opcode::Flush => Err(server.not_needed(Operation::Flush)),
            Opcode::Access => Err(server.not_needed(Operation::Access)),
            Opcode::CopyFileRange => Err(server.not_needed(Operation::CopyFileRange)),
            Opcode::Release | Opcode::ReleaseDir => {
                server.released();
                Ok(())
            }
            // Every request is answered soon enough.
            Opcode::Interrupt | Opcode::Init => Err(Errno::NOSYS),
            Opcode::Destroy | Opcode::Forget | Opcode::BatchForget => Ok(()),
        }
    }

    fn look_up(&mut self, dir: NodeId, name: &[u8]) -> Answer<()> {
        match self.server.lookup(dir, name)? {
            Looked::Found(told) => self.tell(&told),
            // Node 0 says that there is no such file, and for how long.
            Looked::Missing(Validity::Always) => {
                let mut entry = EntryOut::new_zeroed();
                entry.entry_valid = ALWAYS;
                self.reply.push(&entry)
            }
            Looked::Missing(Validity::Never) => Err(Errno::NOENT),
        }
    }

    /// Tells the kernel of a file.
    fn tell(&mut self, told: &Told) -> Answer<()> {
        self.reply.hold(told.node);
        self.reply.push(&EntryOut::new(told))
    }

    fn statx(&mut self, node: NodeId) -> Answer<()> {
        let attr = self.server.extended_attributes(node)?;
        self.reply.push(&StatxOut {
            attr_valid: ALWAYS,
            attr_valid_ns: 0,
            flags: 0,
            spare: [0; 2],
            stat: Statx::new(&attr),
        })
    }

    fn statfs(&mut self) -> Answer<()> {
        let stat = self.server.space()?;
        self.reply.push(&StatFsOut {
            blocks: stat.blocks,
            blocks_free: stat.blocks_free,
            blocks_available: stat.blocks_available,
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
            block_bytes: stat.block_bytes,
            name_len_max: stat.name_len_max,
            fragment_bytes: stat.block_bytes,
            unused: 0,
            spare: [0; 6],
        })
    }

    fn list(&mut self, node: NodeId, asked: &ReadIn) -> Answer<()> {
        let (server, reply) = (self.server, &mut self.reply);
        server.list(node, asked.offset, |line| {
            let DirLine {
                name,
                inode,
                kind,
                next,
            } = line;
            let dirent = Dirent::new(inode, kind, next, name);
            reply.push_dirent(asked.size as usize, &[], &dirent, name)
        })
    }

    fn list_plus(&mut self, node: NodeId, asked: &ReadIn) -> Answer<()> {
        let (server, reply) = (self.server, &mut self.reply);
        server.list_plus(node, asked.offset, |line| {
            let PlusLine { name, next, file } = line;
            let (entry, inode, kind) = match file {
                PlusFile::Told(told) => (EntryOut::new(told), told.attr.inode, told.attr.kind),
                // Without a node, the kernel takes the line as of an ordinary listing.
                PlusFile::Named { inode, kind } => (EntryOut::new_zeroed(), inode, kind),
            };
            let dirent = Dirent::new(inode, kind, next, name);
            let is_full = reply.push_dirent(asked.size as usize, entry.as_bytes(), &dirent, name);
            if let (PlusFile::Told(told), false) = (file, is_full) {
                reply.hold(told.node);
            }
            is_full
        })
    }

    fn set_xattr(&mut self, caller: Caller, node: NodeId, mut body: Body<'_>) -> Answer<()> {
        let tells_more = self.agreed.contains(InitFlags::SETXATTR_EXT);
        let asked = if tells_more {
            body.take()?
        } else {
            let ShortSetXattrIn { size, flags } = body.take()?;
            SetXattrIn {
                size,
                flags,
                more_flags: 0,
                unused: 0,
            }
        };
        let name = body.name()?;
        let value = body.bytes(asked.size)?;
        let mode = xattr_mode(asked.flags)?;
        let drops_set_group = tells_more.then_some(asked.more_flags & SETXATTR_ACL_KILL_SGID != 0);
        let server = self.server;
        server.set_xattr(caller, node, name, value, mode, drops_set_group)
    }

    /// A value, or its length where that is asked for with size 0.
    fn value(&mut self, size_max: u32, value: &[u8]) -> Answer<()> {
        let size = u32::try_from(value.len()).map_err(|_| Errno::RANGE)?;
        if size_max == 0 {
            return self.reply.push(&GetXattrOut { size, unused: 0 });
        }
        if size > size_max {
            return Err(Errno::RANGE);
        }
        self.reply.push_bytes(value)
    }
}

fn forget(server: &Server, opcode: Opcode, node: u64, mut body: Body<'_>) -> Answer<()> {
    if opcode == Opcode::Forget {
        let ForgetIn { lookups } = body.take()?;
        server.forget(NodeId(node), lookups);
        return Ok(());
    }
    let BatchForgetIn { count, .. } = body.take()?;
    for _ in 0..count {
        let ForgetOne { node, lookups } = body.take()?;
        server.forget(NodeId(node), lookups);
    }
    Ok(())
}

impl EntryOut {
    fn new(told: &Told) -> Self {
        Self {
            node: told.node.0,
            generation: told.attr.generation,
            entry_valid: match told.validity {
                Validity::Always => ALWAYS,
                Validity::Never => 0,
            },
            attr_valid: ALWAYS,
            entry_valid_ns: 0,
            attr_valid_ns: 0,
            attr: FileAttr::new(&told.attr),
        }
    }
}

impl AttrOut {
    fn new(attr: FileAttr) -> Self {
        Self {
            attr_valid: ALWAYS,
            attr_valid_ns: 0,
            unused: 0,
            attr,
        }
    }
}

impl Dirent {
    fn new(inode: u64, kind: FileKind, next: u64, name: &[u8]) -> Self {
        Self {
            inode,
            next,
            name_len: u32::try_from(name.len()).unwrap_or(u32::MAX),
            kind: kind.mode_bits() >> 12,
        }
    }
}

fn changes(asked: &SetAttrIn) -> Changes {
    let valid = SetAttrFlags::from_bits_truncate(asked.valid);
    let time = |at: SetAttrFlags, now: SetAttrFlags, seconds: u64, nanoseconds| {
        if valid.contains(now) {
            return Some(SetTime::Now);
        }
        valid
            .contains(at)
            .then(|| SetTime::At(timestamp(seconds, nanoseconds)))
    };
    Changes {
        permissions: valid
            .contains(SetAttrFlags::MODE)
            .then_some(asked.mode & 0o7777),
        uid: valid.contains(SetAttrFlags::UID).then_some(asked.uid),
        gid: valid.contains(SetAttrFlags::GID).then_some(asked.gid),
        size_bytes: valid.contains(SetAttrFlags::SIZE).then_some(asked.size),
        accessed: time(
            SetAttrFlags::ATIME,
            SetAttrFlags::ATIME_NOW,
            asked.accessed,
            asked.accessed_ns,
        ),
        modified: time(
            SetAttrFlags::MTIME,
            SetAttrFlags::MTIME_NOW,
            asked.modified,
            asked.modified_ns,
        ),
        changed: valid
            .contains(SetAttrFlags::CTIME)
            .then(|| timestamp(asked.changed, asked.changed_ns)),
        flags: None,
        project: None,
    }
}

fn timestamp(seconds: u64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds: seconds.cast_signed(),
        nanoseconds,
    }
}

/// The flags of `renameat2(2)`.
fn rename_mode(flags: u32) -> Answer<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        1 => Ok(RenameMode::NoReplace),
        2 => Ok(RenameMode::Exchange),
        // The kernel has made sure that nothing is replaced, where that is asked for besides.
        4 | 5 => Ok(RenameMode::Whiteout),
        _ => Err(Errno::INVAL),
    }
}

/// The mode bits of `fallocate(2)`.
fn fallocate_mode(mode: u32) -> Answer<FallocateMode> {
    Ok(match mode {
        0x00 => FallocateMode::Allocate { keep_size: false },
        0x01 => FallocateMode::Allocate { keep_size: true },
        0x03 => FallocateMode::PunchHole,
        0x08 => FallocateMode::CollapseRange,
        0x10 => FallocateMode::ZeroRange { keep_size: false },
        0x11 => FallocateMode::ZeroRange { keep_size: true },
        0x20 => FallocateMode::InsertRange,
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// `XATTR_CREATE` and `XATTR_REPLACE`.
fn xattr_mode(flags: u32) -> Answer<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL),
    }
}

fn seek_target(whence: u32) -> Answer<SeekTarget> {
    match whence {
        3 => Ok(SeekTarget::Data),
        4 => Ok(SeekTarget::Hole),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert!(rename_mode(3).is_err());
        assert!(fallocate_mode(0x28).is_err());
        assert!(xattr_mode(3).is_err());
    }

    #[test]
    fn requests_that_are_too_short_are_refused() {
        let mut body = Body(b"name without end");
        assert!(body.name().is_err());
        assert!(body.bytes(17).is_err());
        assert!(body.take::<ReadIn>().is_err());
        assert_eq!(Body(b"a\0b\0").name(), Ok(&b"a"[..]));
    }
}
