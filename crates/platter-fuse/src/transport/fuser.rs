//! The FUSE crate as transport: requests come as its types and are answered through its replies.
//!
//! What it lacks is listed in `docs/design/mount.md`.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::fuser::{
    AccessFlags, BsdFileFlags, Config, CopyFileRangeFlags, FileAttr, FileHandle, FileType,
    Filesystem, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    Session, SessionACL, TimeOrNow, WriteFlags,
};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{
    Attr, FallocateMode, FileKind, RenameMode, SeekTarget, SetTime, Timestamp, XattrMode,
};
use rustix::io::Errno;

use super::Connection;
use crate::Operation;
use crate::attach::device_can_be_opened;
use crate::node::NodeId;
use crate::server::{
    Answer, Caller, Changes, DirLine, Looked, MakeKind, PlusFile, PlusLine, Server, Told, Validity,
};

/// As good as for ever, and still a number the kernel can add to its clock.
const ALWAYS: Duration = Duration::from_secs(1 << 32);

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

fn errno(errno: Errno) -> ::fuser::Errno {
    ::fuser::Errno::from_i32(errno.raw_os_error())
}

fn validity(validity: Validity) -> Duration {
    match validity {
        Validity::Always => ALWAYS,
        Validity::Never => Duration::ZERO,
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// The attributes with the number the crate takes for node and inode alike.
fn file_attr(number: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: attr.size_bytes,
        blocks: attr.sectors,
        atime: system_time(attr.accessed),
        mtime: system_time(attr.modified),
        ctime: system_time(attr.changed),
        crtime: system_time(attr.created.unwrap_or_default()),
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.permissions & 0o7777).unwrap_or(0),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.device),
        blksize: attr.io_block_bytes,
        flags: 0,
    }
}

/// Attributes of a file of which nothing but number and kind is known.
fn bare_attr(number: u64, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// A device number in the 32 bits of the protocol: the minor's upper bits lie above the major.
fn encode_device(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

fn decode_device(encoded: u32) -> DeviceNumber {
    DeviceNumber {
        major: (encoded >> 8) & 0xfff,
        minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(nanoseconds))
        .unwrap_or(UNIX_EPOCH)
}

/// The time of a request. For times before 1970 the crate takes the nanoseconds away from the
/// seconds instead of adding them; this undoes it.
fn requested_time(time: SystemTime) -> Timestamp {
    let (sign, distance) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (1, after),
        Err(before) => (-1, before.duration()),
    };
    Timestamp {
        seconds: sign * i64::try_from(distance.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: distance.subsec_nanos(),
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(requested_time(time)),
    }
}

fn rename_mode(flags: RenameFlags) -> Answer<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else if flags == RenameFlags::RENAME_WHITEOUT {
        Ok(RenameMode::Whiteout)
    } else {
        Err(Errno::INVAL)
    }
}

/// The mode bits of `fallocate(2)`.
fn fallocate_mode(mode: i32) -> Answer<FallocateMode> {
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
fn xattr_mode(flags: i32) -> Answer<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(8, 1), (0, 0), (259, 70_000), (0xfff, 0xf_ffff)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(decode_device(encode_device(device)), device);
        }
        let disk = DeviceNumber { major: 8, minor: 1 };
        assert_eq!(encode_device(disk), 0x801);
    }

    #[test]
    fn times_before_1970_come_and_go_right() {
        let time = Timestamp {
            seconds: -2,
            nanoseconds: 750_000_000,
        };
        let before = UNIX_EPOCH - Duration::from_millis(1_250);
        assert_eq!(system_time(time), before);
        // The way the crate hands over -2 s and 750 ms.
        let handed_over = UNIX_EPOCH - Duration::new(2, 750_000_000);
        assert_eq!(requested_time(handed_over), time);
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert!(rename_mode(RenameFlags::all()).is_err());
        assert!(fallocate_mode(0x28).is_err());
        assert!(xattr_mode(3).is_err());
    }
}
