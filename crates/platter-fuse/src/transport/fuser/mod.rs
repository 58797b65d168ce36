//! The FUSE crate as transport: requests come as its types and are answered through its replies.
//!
//! What it lacks is listed in `docs/design/mount.md`.

mod convert;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use ::fuser::{
    AccessFlags, BsdFileFlags, Config, CopyFileRangeFlags, FileHandle, Filesystem, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL,
    TimeOrNow, WriteFlags,
};
use platter_vfs::{Attr, FileKind, SeekTarget};
use rustix::io::Errno;

use self::convert::{
    ALWAYS, bare_attr, decode_device, errno, fallocate_mode, file_attr, file_type, rename_mode,
    requested_time, set_time, validity, xattr_mode,
};
use super::Connection;
use crate::Operation;
use crate::attach::device_can_be_opened;
use crate::node::NodeId;
use crate::server::{
    Answer, Caller, Changes, DirLine, Looked, MakeKind, PlusFile, PlusLine, Server, Told, Validity,
};

/// Requests the kernel may have under way on its own account, such as readahead.
const BACKGROUND_MAX: u16 = 64;

/// The most threads that are started unasked.
const THREADS_MAX: usize = 16;

pub(super) fn connect(server: Arc<Server>, device: OwnedFd) -> io::Result<Box<dyn Connection>> {
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let threads = server
        .options()
        .threads
        .unwrap_or(processors.clamp(2, THREADS_MAX));
    let mut config = Config::default();
    config.n_threads = Some(threads.max(1));
    config.clone_fd = device_can_be_opened();
    // The kernel keeps others out unless the mount says otherwise.
    let session = Session::from_fd(Adapter { server }, device, SessionACL::All, config)?;
    Ok(Box::new(FuserConnection { session }))
}

struct FuserConnection {
    session: Session<Adapter>,
}

impl std::fmt::Debug for FuserConnection {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("FuserConnection")
    }
}

impl Connection for FuserConnection {
    fn serve(self: Box<Self>) -> io::Result<()> {
        self.session.run()
    }
}

struct Adapter {
    server: Arc<Server>,
}

thread_local! {
    /// Where reads of this thread go on their way to the kernel.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
    }
}

fn reply_told(reply: ReplyEntry, told: Answer<Told>) {
    match told {
        Ok(told) => {
            let attr = file_attr(told.node.0, &told.attr);
            let generation = Generation(told.attr.generation);
            reply.entry_with_ttls(&ALWAYS, &validity(told.validity), &attr, generation);
        }
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// The root shows its own inode number; all others show the node's, as where names are looked up.
fn reply_attr(reply: ReplyAttr, node: INodeNo, answer: Answer<Attr>) {
    match answer {
        Ok(attr) => {
            let number = if node == INodeNo::ROOT {
                attr.inode
            } else {
                node.0
            };
            reply.attr(&ALWAYS, &file_attr(number, &attr));
        }
        Err(error) => reply.error(errno(error)),
    }
}

/// A value whose length is asked for with size 0.
fn reply_value(reply: ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Ok(value) => match u32::try_from(value.len()) {
            Ok(len) if size == 0 => reply.size(len),
            Ok(len) if len <= size => reply.data(&value),
            Ok(_) | Err(_) => reply.error(::fuser::Errno::ERANGE),
        },
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        let options = self.server.options();
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_HAS_IOCTL_DIR
            | InitFlags::FUSE_DONT_MASK
            // Without it the kernel asks for file capabilities before every single write.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, !options.read_only);
        wanted.set(InitFlags::FUSE_POSIX_ACL, self.server.uses_acls());
        // What this kernel does not know is left out; all of it only saves requests.
        let _ = kernel.add_capabilities(wanted & kernel.capabilities());
        let _ = kernel.set_max_write(options.request_bytes_max);
        let _ = kernel.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self
            .server
            .guarded(|server| server.lookup(NodeId(parent.0), name.as_bytes()))
        {
            Ok(Looked::Found(told)) => reply_told(reply, Ok(told)),
            // Node 0 says that there is no such file, and for how long.
            Ok(Looked::Missing(Validity::Always)) => {
                let attr = bare_attr(0, FileKind::Regular);
                reply.entry(&ALWAYS, &attr, Generation(0));
            }
            Ok(Looked::Missing(Validity::Never)) => reply.error(::fuser::Errno::ENOENT),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        let forgotten = self.server.guarded(|server| {
            server.forget(NodeId(node.0), lookups);
            Ok(())
        });
        // A request without an answer has nobody to tell.
        let _ = forgotten;
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply_attr(
            reply,
            node,
            self.server
                .guarded(|server| server.attributes(NodeId(node.0))),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            permissions: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size_bytes: size,
            accessed: accessed.map(set_time),
            modified: modified.map(set_time),
            changed: changed.map(requested_time),
            flags: None,
            project: None,
        };
        let answer = self
            .server
            .guarded(|server| server.set_attributes(caller(request), NodeId(node.0), &changes));
        reply_attr(reply, node, answer);
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self
            .server
            .guarded(|server| server.link_target(NodeId(node.0)))
        {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = MakeKind::OfMode(mode, decode_device(device));
        let (parent, name) = (NodeId(parent.0), name.as_bytes());
        reply_told(
            reply,
            self.server
                .guarded(|server| server.make(caller(request), parent, name, kind, mode, umask)),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (parent, name, kind) = (NodeId(parent.0), name.as_bytes(), MakeKind::Directory);
        reply_told(
            reply,
            self.server
                .guarded(|server| server.make(caller(request), parent, name, kind, mode, umask)),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let kind = MakeKind::Symlink(target.as_os_str().as_bytes());
        let (parent, name) = (NodeId(parent.0), name.as_bytes());
        reply_told(
            reply,
            self.server
                .guarded(|server| server.make(caller(request), parent, name, kind, 0o777, 0)),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (NodeId(parent.0), name.as_bytes());
        reply_empty(
            reply,
            self.server
                .guarded(|server| server.unlink(caller(request), parent, name)),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (NodeId(parent.0), name.as_bytes());
        reply_empty(
            reply,
            self.server
                .guarded(|server| server.remove_dir(caller(request), parent, name)),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = (NodeId(parent.0), name.as_bytes());
        let to = (NodeId(new_parent.0), new_name.as_bytes());
        let rename = |mode| {
            self.server
                .guarded(|server| server.rename(caller(request), from, to, mode))
        };
        reply_empty(reply, rename_mode(flags).and_then(rename));
    }

    fn link(
        &self,
        request: &Request,
        target: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (target, parent) = (NodeId(target.0), NodeId(parent.0));
        reply_told(
            reply,
            self.server
                .guarded(|server| server.link(caller(request), target, parent, name.as_bytes())),
        );
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(errno(self.server.not_needed(Operation::Open)));
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buffer = &mut buffer[..size];
            match self
                .server
                .guarded(|server| server.read(NodeId(node.0), offset, buffer))
            {
                Ok(len) => reply.data(&buffer[..len]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drops_set_ids = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let (caller, node) = (caller(request), NodeId(node.0));
        let write = |server: &Server| server.write(caller, node, offset, data, drops_set_ids);
        match self.server.guarded(write) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(errno(self.server.not_needed(Operation::Flush)));
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        reply_empty(
            reply,
            self.server
                .guarded(|server| server.sync(NodeId(node.0), data, Operation::Fsync)),
        );
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(errno(self.server.not_needed(Operation::OpenDir)));
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        from: u64,
        mut reply: ReplyDirectory,
    ) {
        let listing = self.server.guarded(|server| {
            server.list(NodeId(node.0), from, |line| {
                let DirLine {
                    name,
                    inode,
                    kind,
                    next,
                } = line;
                reply.add(
                    INodeNo(inode),
                    next,
                    file_type(kind),
                    OsStr::from_bytes(name),
                )
            })
        });
        match listing {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut add = |line: PlusLine<'_>| {
            let (attr, valid, generation) = match line.file {
                PlusFile::Told(told) => {
                    let attr = file_attr(told.node.0, &told.attr);
                    (attr, validity(told.validity), told.attr.generation)
                }
                PlusFile::Known { inode } => {
                    (bare_attr(inode, FileKind::Directory), Duration::ZERO, 0)
                }
                PlusFile::Unreadable { node, kind } => (bare_attr(node.0, kind), Duration::ZERO, 0),
            };
            let name = OsStr::from_bytes(line.name);
            reply.add(
                attr.ino,
                line.next,
                name,
                &valid,
                &attr,
                Generation(generation),
            )
        };
        match self
            .server
            .guarded(|server| server.list_plus(NodeId(node.0), from, &mut add))
        {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        reply_empty(
            reply,
            self.server
                .guarded(|server| server.sync(NodeId(node.0), data, Operation::FsyncDir)),
        );
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.server.guarded(Server::space) {
            Ok(stat) => reply.statfs(
                stat.blocks,
                stat.blocks_free,
                stat.blocks_available,
                stat.inodes,
                stat.inodes_free,
                stat.block_bytes,
                stat.name_len_max,
                stat.block_bytes,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (node, name) = (NodeId(node.0), name.as_bytes());
        let set = |mode| {
            self.server
                .guarded(|server| server.set_xattr(caller(request), node, name, value, mode))
        };
        reply_empty(reply, xattr_mode(flags).and_then(set));
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_value(
            reply,
            size,
            self.server
                .guarded(|server| server.xattr(NodeId(node.0), name.as_bytes())),
        );
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        reply_value(
            reply,
            size,
            self.server
                .guarded(|server| server.xattr_names(NodeId(node.0), caller(request))),
        );
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (node, name) = (NodeId(node.0), name.as_bytes());
        reply_empty(
            reply,
            self.server
                .guarded(|server| server.remove_xattr(caller(request), node, name)),
        );
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(errno(self.server.not_needed(Operation::Access)));
    }

    /// The kernel makes the file with `mknod` instead, and has nothing to release afterwards.
    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(errno(self.server.not_needed(Operation::Create)));
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        output_bytes: u32,
        reply: ReplyIoctl,
    ) {
        match self
            .server
            .guarded(|server| server.ioctl(caller(request), NodeId(node.0), command, input))
        {
            Ok(output) => {
                let len = output.len().min(output_bytes as usize);
                reply.ioctl(0, &output[..len]);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let range = offset..offset.saturating_add(len);
        let allocate = |mode| {
            self.server
                .guarded(|server| server.allocate(caller(request), NodeId(node.0), range, mode))
        };
        reply_empty(reply, fallocate_mode(mode).and_then(allocate));
    }

    fn lseek(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let target = match whence {
            SEEK_DATA => Ok(SeekTarget::Data),
            SEEK_HOLE => Ok(SeekTarget::Hole),
            _ => Err(Errno::INVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO);
        let found = target.and_then(|target| {
            self.server
                .guarded(|server| server.seek(NodeId(node.0), offset?, target))
        });
        match found.and_then(|found| i64::try_from(found).map_err(|_| Errno::OVERFLOW)) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(errno(self.server.not_needed(Operation::CopyFileRange)));
    }
}
