//! Processing one request into its answer.

#[cfg(test)]
mod tests;

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use platter_vfs::RenameMode;
use rustix::fs::OFlags;
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::connection::Connection;
use super::later::{Action, Later};
use super::meaning::{changes, fallocate_mode, rename_mode, seek_target, xattr_mode};
use super::notice::{self, Notice};
use super::protocol::{
    ALWAYS, AttrOut, BatchForgetIn, CopyFileRangeIn, CopyFileRangeOut, CreateIn, Dirent, EntryOut,
    FOPEN_KEEP_CACHE, FSYNC_FDATASYNC, FallocateIn, ForgetIn, ForgetOne, FsyncIn, GetXattrIn,
    GetXattrOut, InHeader, InitFlags, IoctlIn, IoctlOut, LinkIn, LseekIn, LseekOut, MkDirIn,
    MkNodIn, Opcode, OpenIn, OpenOut, ReadIn, ReleaseIn, Rename2In, RenameIn,
    SETXATTR_ACL_KILL_SGID, SetXattrIn, ShortSetXattrIn, StatFsOut, Statx, StatxOut, WRITE_CACHE,
    WRITE_KILL_SUIDGID, WriteIn, WriteOut, attr_valid, decode_device,
};
use super::reply::{Answered, Reply, ReplyInodes};
use super::request::{Body, Request};
use crate::Operation;
use crate::ioctl::sets_flags;
use crate::node::NodeId;
use crate::server::{
    Answer, Caller, Change, ChangedName, DirLine, Effect, EntryParam, KeptName, Looked, MakeKind,
    PlusFile, PlusLine, ReadAttr, Server, Validity, WriteFrom, WriteManner, XattrChange, ioctl,
};

/// Bytes that `COPY_FILE_RANGE` copies at most, as its reply counts them in 32 bits: whole blocks of all sizes, so that
/// the next copy can share blocks as well. Linux before 6.18 may ask for more.
const COPIED_BYTES_MAX: u64 = (1 << 32) - (64 << 10);

/// Processes the requests of one serving thread.
pub(super) struct Exchange<'s> {
    server: &'s Server,
    /// The device that notices are written to.
    device: BorrowedFd<'s>,
    agreed: InitFlags,
    inodes: ReplyInodes,
    notice: Option<Notice>,
}

/// One request being processed.
struct Turn<'t> {
    server: &'t Server,
    agreed: InitFlags,
    reply: Reply<'t>,
    effect: Effect,
    /// The range written past the kernel's page cache.
    past_cache: Option<Range<u64>>,
    /// Bytes that were written.
    written: u32,
    /// A file that was read without the kernel, whose time of access it does not know.
    read_here: Option<NodeId>,
    /// A file of which a part may have changed if the request fails: the kernel keeps its attributes and pages then.
    changing: Option<NodeId>,
    /// A name that changed without the kernel.
    changed_name: Option<ChangedName>,
    /// A name that the kernel is not to keep.
    kept_name: Option<KeptName>,
}

/// Outcome of a request.
pub(super) enum Outcome {
    /// An answer.
    Answer(Answered),
    /// No answer is expected.
    Nothing,
    /// The answer depends on a writeback by the kernel.
    Later(Later),
}

impl<'s> Exchange<'s> {
    pub(super) fn new(connection: &'s Connection) -> Self {
        Self {
            server: connection.server(),
            device: connection.device(),
            agreed: connection.agreed(),
            inodes: ReplyInodes::default(),
            notice: None,
        }
    }

    /// Processes a request; an answer may use `space`.
    pub(super) fn answer(&mut self, request: Request<'_>, space: &mut [u8]) -> Outcome {
        self.notice = None;
        let Request { header, body } = request;
        // Bytes that a newer kernel adds after the body are ignored.
        let Some(opcode) = Opcode::decode(header.opcode) else {
            let refused = Answered::new(header.unique, Err(Errno::NOSYS));
            return Outcome::Answer(refused);
        };
        let server = self.server;
        if matches!(opcode, Opcode::Forget | Opcode::BatchForget) {
            // A request without an answer cannot report errors.
            let _ = server.guarded(|server| forget(server, opcode, header.node, body));
            return Outcome::Nothing;
        }
        // A mapped file may have dirty pages in the kernel at any time.
        if !server.options().read_only
            && let Ok(Some(later)) = Later::decode(server, opcode, &header, body)
        {
            return Outcome::Later(later);
        }
        let mut turn = Turn {
            server,
            agreed: self.agreed,
            reply: Reply::new(space, &mut self.inodes),
            effect: Effect::Foreseen,
            past_cache: None,
            written: 0,
            read_here: None,
            changing: None,
            changed_name: None,
            kept_name: None,
        };
        let answer = server.guarded(|_| turn.carry_out(opcode, &header, body));
        let Turn {
            reply,
            effect,
            past_cache,
            written,
            read_here,
            changing,
            changed_name,
            kept_name,
            ..
        } = turn;
        let len = reply.len();
        let node = NodeId(header.node);
        if let Effect::Unforeseen(node) = effect {
            notice::drop_attributes(self.device, node);
        }
        let half_changed = changing.filter(|_| answer.is_err_and(is_of_a_change));
        if let Some(node) = half_changed {
            notice::drop_attributes(self.device, node);
        }
        if let Some(node) = read_here {
            notice::drop_attributes(self.device, node);
        }
        if let Some(range) = past_cache.filter(|_| self.agreed.contains(InitFlags::ASYNC_DIO)) {
            return Outcome::Later(Later {
                unique: header.unique,
                node,
                action: Action::WrittenPastCache {
                    range,
                    result: answer.map(|()| WriteOut {
                        size: written,
                        unused: 0,
                    }),
                },
            });
        }
        if let Some(name) = changed_name {
            return Outcome::Later(Later {
                unique: header.unique,
                node,
                action: Action::NameChanged {
                    name,
                    body: answer.map(|()| space[..len].to_vec()),
                },
            });
        }
        self.notice = match (opcode, &answer) {
            // Data that may not be written must not stay in the page cache.
            (Opcode::Write, Err(Errno::PERM)) => Some(Notice::StalePages(node)),
            (Opcode::Write | Opcode::Fsync, Ok(())) => {
                let is_stale = server.has_stale_attributes(node);
                // After a write that it did not buffer, the kernel refreshes attributes itself.
                let knows =
                    opcode == Opcode::Write && !self.agreed.contains(InitFlags::WRITEBACK_CACHE);
                (is_stale && !knows).then_some(Notice::Changed(node))
            }
            // Linux before 6.2 would unmount what is mounted below a directory that was moved.
            (Opcode::Rename | Opcode::Rename2, Ok(())) => kept_name
                .filter(|_| self.agreed.contains(InitFlags::HAS_EXPIRE_ONLY))
                .map(Notice::KeptName),
            _ => half_changed.map(Notice::StalePages),
        };
        self.expire_overtaken(space);
        Outcome::Answer(Answered::new(header.unique, answer.map(|()| len)))
    }

    /// Sets the validity of attributes in the answer to zero that a change has overtaken since they were read. Done
    /// last: what the kernel keeps, it keeps until it makes a change itself.
    fn expire_overtaken(&mut self, space: &mut [u8]) {
        for (at, version) in self.inodes.versions.drain(..) {
            let valid = space.get_mut(at..at + size_of::<u64>());
            if let Some(valid) = valid.filter(|_| !self.server.is_current(version)) {
                valid.fill(0);
            }
        }
    }

    /// Returns the notice to be sent after the last answer.
    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// Handles an answer that did not reach the kernel: its lookups do not count.
    pub(super) fn lost(&mut self) {
        for node in self.inodes.held.drain(..) {
            self.server.forget(node, 1);
        }
    }
}

/// Whether a change that ends with this error may have been begun: the others are those of checks. `EROFS` is also the
/// error of a journal that was aborted meanwhile.
fn is_of_a_change(error: Errno) -> bool {
    !matches!(
        error,
        Errno::ACCESS
            | Errno::BADF
            | Errno::FBIG
            | Errno::INVAL
            | Errno::ISDIR
            | Errno::NODEV
            | Errno::OPNOTSUPP
            | Errno::PERM
            | Errno::STALE
            | Errno::XDEV
    )
}

impl Turn<'_> {
    #[expect(clippy::too_many_lines, reason = "one arm for each request")]
    fn carry_out(&mut self, opcode: Opcode, header: &InHeader, mut body: Body<'_>) -> Answer<()> {
        let server = self.server;
        let node = NodeId(header.node);
        let caller = Caller::of(header);
        let change = Change::new(server, caller);
        match opcode {
            Opcode::Lookup => self.look_up(node, body.name()?),
            Opcode::GetAttr => {
                let read = server.attributes(node)?;
                self.reply_attr(&read)
            }
            Opcode::Statx => self.statx(node),
            Opcode::SetAttr => {
                let changes = changes(&body.take()?);
                self.changing = changes.size_bytes.map(|_| node);
                let read = change.set_attributes(node, &changes)?;
                self.reply_attr(&read)
            }
            Opcode::ReadLink => {
                let target = server.link_target(node)?;
                self.reply.push_bytes(&target)
            }
            Opcode::MkNod => {
                let asked: MkNodIn = body.take()?;
                let kind = MakeKind::OfMode(asked.mode, decode_device(asked.device));
                let (name, mode) = (body.name()?, asked.mode);
                self.reply_entry(&change.make(node, name, kind, mode, asked.umask)?)
            }
            Opcode::MkDir => {
                let MkDirIn { mode, umask } = body.take()?;
                let (name, kind) = (body.name()?, MakeKind::Directory);
                self.reply_entry(&change.make(node, name, kind, mode, umask)?)
            }
            Opcode::Symlink => {
                let name = body.name()?;
                let kind = MakeKind::Symlink(body.name()?);
                self.reply_entry(&change.make(node, name, kind, 0o777, 0)?)
            }
            Opcode::TmpFile => {
                let asked: CreateIn = body.take()?;
                self.reply_entry(&change.make_unnamed(node, asked.mode, asked.umask)?)?;
                self.reply.push(&OpenOut {
                    handle: 0,
                    open_flags: FOPEN_KEEP_CACHE,
                    backing: 0,
                })
            }
            Opcode::Link => {
                let LinkIn { node: target } = body.take()?;
                self.reply_entry(&change.link(NodeId(target), node, body.name()?)?)
            }
            Opcode::Unlink => change.unlink(node, body.name()?),
            Opcode::RmDir => change.remove_dir(node, body.name()?, &mut self.effect),
            Opcode::Rename => {
                let RenameIn { new_dir } = body.take()?;
                let (from, to) = ((node, body.name()?), (NodeId(new_dir), body.name()?));
                let mode = RenameMode::Replace;
                self.kept_name = change.rename(from, to, mode, &mut self.effect)?;
                Ok(())
            }
            Opcode::Rename2 => {
                let Rename2In { new_dir, flags, .. } = body.take()?;
                let (from, to) = ((node, body.name()?), (NodeId(new_dir), body.name()?));
                let mode = rename_mode(flags)?;
                self.kept_name = change.rename(from, to, mode, &mut self.effect)?;
                Ok(())
            }
            Opcode::Read => {
                let asked: ReadIn = body.take()?;
                let (offset, size) = (asked.offset, asked.size);
                let read = |space: &mut [u8]| server.read(node, offset, opened(&asked), space);
                self.reply.fill(size as usize, read)
            }
            Opcode::Write => {
                let asked: WriteIn = body.take()?;
                let data = body.bytes(asked.size)?;
                // A write of cached pages does not say how the file was opened.
                let of_pages = asked.write_flags & WRITE_CACHE != 0;
                let is_gathered = of_pages && self.agreed.contains(InitFlags::WRITEBACK_CACHE);
                let manner = WriteManner {
                    only_appends: is_gathered || asked.flags & OFlags::APPEND.bits() != 0,
                    drops_set_ids: asked.write_flags & WRITE_KILL_SUIDGID != 0,
                    from: if of_pages {
                        WriteFrom::Pages
                    } else if asked.flags & OFlags::DIRECT.bits() != 0 {
                        WriteFrom::DirectCall
                    } else {
                        WriteFrom::Call
                    },
                };
                if manner.from == WriteFrom::DirectCall {
                    let end = asked.offset.saturating_add(u64::from(asked.size));
                    self.past_cache = Some(asked.offset..end);
                }
                let written = change.write(node, asked.offset, data, manner, &mut self.effect)?;
                self.written = u32::try_from(written).unwrap_or(asked.size);
                self.reply.push(&WriteOut {
                    size: self.written,
                    unused: 0,
                })
            }
            Opcode::ReadDir => self.list(node, &body.take()?),
            Opcode::ReadDirPlus => self.list_plus(node, &body.take()?),
            Opcode::StatFs => self.statfs(node),
            Opcode::Fsync | Opcode::FsyncDir => {
                let FsyncIn { flags, .. } = body.take()?;
                let of = if opcode == Opcode::Fsync {
                    Operation::Fsync
                } else {
                    Operation::FsyncDir
                };
                server.sync(node, flags & FSYNC_FDATASYNC != 0, of)
            }
            Opcode::SetXattr => self.set_xattr(change, node, body),
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
            Opcode::RemoveXattr => change.remove_xattr(node, body.name()?, &mut self.effect),
            Opcode::Ioctl => {
                let asked: IoctlIn = body.take()?;
                let input = body.bytes(asked.in_size)?;
                let answer = ioctl::carry_out(server, caller, node, asked.command, input)?;
                if sets_flags(asked.command) {
                    self.effect = Effect::Unforeseen(node);
                }
                self.changed_name = answer.changed;
                let output = answer.output?;
                let len = output.len().min(asked.out_size as usize);
                self.reply.push(&IoctlOut::new_zeroed())?;
                self.reply.push_bytes(&output[..len])
            }
            Opcode::Fallocate => {
                let asked: FallocateIn = body.take()?;
                let range = asked.offset..asked.offset.saturating_add(asked.length);
                let mode = fallocate_mode(asked.mode)?;
                self.changing = Some(node);
                change.allocate(node, range, mode, &mut self.effect)
            }
            Opcode::Lseek => {
                let LseekIn { offset, whence, .. } = body.take()?;
                let offset = server.seek(node, offset, seek_target(whence)?)?;
                self.reply.push(&LseekOut { offset })
            }
            // The kernel creates files with `MKNOD` instead, and then releases nothing.
            Opcode::Create => Err(server.not_needed(Operation::Create)),
            Opcode::Open => {
                let OpenIn { flags, .. } = body.take()?;
                server.open(node, OFlags::from_bits_retain(flags))?;
                self.reply.push(&OpenOut::new_zeroed())
            }
            Opcode::OpenDir => {
                server.open_dir()?;
                self.reply.push(&OpenOut::new_zeroed())
            }
            Opcode::Flush => Err(server.not_needed(Operation::Flush)),
            Opcode::Access => Err(server.not_needed(Operation::Access)),
            Opcode::CopyFileRange => {
                let mut asked: CopyFileRangeIn = body.take()?;
                asked.length = asked.length.min(COPIED_BYTES_MAX);
                let copied = self.copy_range(change, node, &asked)?;
                let size = u32::try_from(copied).map_err(|_| Errno::OVERFLOW)?;
                self.reply.push(&WriteOut { size, unused: 0 })
            }
            Opcode::CopyFileRange64 => {
                let bytes = self.copy_range(change, node, &body.take()?)?;
                self.reply.push(&CopyFileRangeOut { bytes })
            }
            Opcode::Release => {
                let ReleaseIn { flags, .. } = body.take()?;
                server.release(node, OFlags::from_bits_retain(flags));
                Ok(())
            }
            Opcode::ReleaseDir => {
                server.release_dir();
                Ok(())
            }
            // Most requests are answered soon. Defragmentation asks between its steps whether its caller was killed.
            Opcode::Interrupt | Opcode::Init => Err(Errno::NOSYS),
            Opcode::Destroy | Opcode::Forget | Opcode::BatchForget => Ok(()),
        }
    }

    fn look_up(&mut self, dir: NodeId, name: &[u8]) -> Answer<()> {
        match self.server.lookup(dir, name)? {
            Looked::Found(entry) => self.reply_entry(&entry),
            // Node 0 is a negative dentry with a timeout.
            Looked::Missing(Validity::Always) => {
                let mut entry = EntryOut::new_zeroed();
                entry.entry_valid = ALWAYS;
                self.reply.push(&entry)
            }
            Looked::Missing(Validity::Never) => Err(Errno::NOENT),
        }
    }

    /// Replies with an inode, as for a lookup.
    fn reply_entry(&mut self, entry: &EntryParam) -> Answer<()> {
        self.reply.hold(entry.node);
        let at = self.reply.len() + offset_of!(EntryOut, attr_valid);
        self.reply.record_version(at, entry.version);
        self.reply.push(&EntryOut::new(entry))
    }

    fn reply_attr(&mut self, read: &ReadAttr) -> Answer<()> {
        let at = self.reply.len() + offset_of!(AttrOut, attr_valid);
        self.reply.record_version(at, read.version);
        self.reply.push(&AttrOut::new(&read.attr))
    }

    fn statx(&mut self, node: NodeId) -> Answer<()> {
        let ReadAttr { attr, version } = self.server.extended_attributes(node)?;
        let at = self.reply.len() + offset_of!(StatxOut, attr_valid);
        self.reply.record_version(at, version);
        self.reply.push(&StatxOut {
            attr_valid: attr_valid(&attr),
            attr_valid_ns: 0,
            flags: 0,
            spare: [0; 2],
            stat: Statx::new(&attr),
        })
    }

    fn statfs(&mut self, node: NodeId) -> Answer<()> {
        let stat = self.server.space(node)?;
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
        server.list(node, (asked.offset, opened(asked)), |line| {
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
        server.list_plus(node, (asked.offset, opened(asked)), |line| {
            let PlusLine { name, next, file } = line;
            let (entry, inode, kind) = match file {
                PlusFile::Entry(child) => (EntryOut::new(child), child.attr.inode, child.attr.kind),
                // Without a node, the kernel treats the entry as in READDIR.
                PlusFile::Named { inode, kind } => (EntryOut::new_zeroed(), inode, kind),
            };
            let dirent = Dirent::new(inode, kind, next, name);
            let at = reply.len() + offset_of!(EntryOut, attr_valid);
            let is_full = reply.push_dirent(asked.size as usize, entry.as_bytes(), &dirent, name);
            if let (PlusFile::Entry(child), false) = (file, is_full) {
                reply.hold(child.node);
                reply.record_version(at, child.version);
            }
            is_full
        })
    }

    fn copy_range(
        &mut self,
        change: Change<'_>,
        source: NodeId,
        asked: &CopyFileRangeIn,
    ) -> Answer<u64> {
        let target = NodeId(asked.node_out);
        let end = asked.offset_in.saturating_add(asked.length);
        let from = (source, asked.offset_in..end);
        let to = (target, asked.offset_out);
        self.changing = Some(target);
        let copied = change.copy_range(from, to, &mut self.effect)?;
        self.read_here = copied.accessed.then_some(source);
        if self.agreed.contains(InitFlags::WRITEBACK_CACHE) {
            // Otherwise the kernel refreshes attributes itself.
            self.effect = Effect::Unforeseen(target);
        }
        Ok(copied.bytes)
    }

    fn set_xattr(&mut self, change: Change<'_>, node: NodeId, mut body: Body<'_>) -> Answer<()> {
        let is_extended = self.agreed.contains(InitFlags::SETXATTR_EXT);
        let asked = if is_extended {
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
        let xattr = XattrChange {
            name,
            value,
            mode: xattr_mode(asked.flags)?,
            drops_set_group: is_extended.then_some(asked.more_flags & SETXATTR_ACL_KILL_SGID != 0),
        };
        change.set_xattr(node, &xattr, &mut self.effect)
    }

    /// Replies with a value, or with its length if `size_max` is 0.
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

/// Returns the flags that the file was opened with.
fn opened(asked: &ReadIn) -> OFlags {
    OFlags::from_bits_retain(asked.flags)
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
