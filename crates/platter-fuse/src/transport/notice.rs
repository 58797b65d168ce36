//! Notifications to the kernel: stale attributes, and requests to write back or invalidate pages or
//! entries of a file. The kernel may wait for answers of this server before it completes an
//! invalidation of pages, so serving threads leave that to a separate thread, or do it only while
//! another one serves. An invalidation of attributes never waits. That of a name waits for callers that hold the
//! directory's lock and may wait for a writeback: so each has a thread of its own.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::later::{Action, Later};
use super::protocol::{
    DeleteOut, EXPIRE_ONLY, InvalidateEntryOut, InvalidateOut, IoctlOut, LseekOut, NOTIFY_DELETE,
    NOTIFY_INVALIDATE, NOTIFY_INVALIDATE_ENTRY, OUT_HEADER_BYTES, OutHeader,
};
use super::reply::Answered;
use crate::node::NodeId;
use crate::server::{Answer, ChangedName, KeptName, Server, ioctl};

/// Maximum delay of a notification of stale attributes, so that a process that keeps writing does
/// not refetch them each time.
const CHANGED_DELAY: Duration = Duration::from_millis(50);
/// Number of pending notifications after which all are sent.
const CHANGED_MAX: usize = 64;

/// Where serving threads leave notices. The threads that give them exist until the last of these is dropped. The
/// thread for names may be missing unless [names are announced](Server::announces_names).
#[derive(Clone)]
pub(super) struct Notices {
    pages: Sender<Notice>,
    names: Sender<Notice>,
}

impl Notices {
    /// Also returns what to [give]: by one thread the notices of pages and attributes, by another those of names.
    pub(super) fn new() -> (Self, [Receiver<Notice>; 2]) {
        let ((pages, of_pages), (names, of_names)) = (channel(), channel());
        (Self { pages, names }, [of_pages, of_names])
    }

    pub(super) fn add(&self, notice: Notice) {
        let queue = if notice.is_of_name() {
            &self.names
        } else {
            &self.pages
        };
        let is_needed = !matches!(notice, Notice::KeptName(_));
        let sent = queue.send(notice);
        debug_assert!(
            sent.is_ok() || !is_needed,
            "the threads outlive the senders"
        );
    }
}

/// A task of a notice thread.
pub(super) enum Notice {
    /// The kernel's attributes of this node are stale.
    Changed(NodeId),
    /// The kernel's pages of this node must not be written, or may be others than those of the file.
    StalePages(NodeId),
    /// The kernel keeps this name longer than it may.
    KeptName(KeptName),
    /// An answer that depends on an action of the kernel.
    Later(Later, Asker),
}

impl Notice {
    /// Whether the kernel takes the lock of a directory for it.
    fn is_of_name(&self) -> bool {
        match self {
            Self::KeptName(_) => true,
            Self::Later(later, _) => later.is_of_name(),
            Self::Changed(_) | Self::StalePages(_) => false,
        }
    }
}

/// The destination of a deferred answer.
pub(super) enum Asker {
    /// This descriptor of the device.
    Device(Arc<OwnedFd>),
    /// A waiting thread: receives the body of the answer, or its error.
    Thread(Sender<Answer<Vec<u8>>>),
}

/// Sends notifications until the last sender is dropped. An error of the kernel means that it has
/// dropped the inode, or that the mount is gone.
pub(super) fn give(server: &Server, device: BorrowedFd<'_>, notices: &Receiver<Notice>) {
    let mut changed: Vec<NodeId> = Vec::new();
    loop {
        let notice = if changed.is_empty() {
            notices.recv().map_err(RecvTimeoutError::from)
        } else {
            notices.recv_timeout(CHANGED_DELAY)
        };
        if changed.len() >= CHANGED_MAX || matches!(notice, Err(RecvTimeoutError::Timeout)) {
            for node in changed.drain(..) {
                // An answer may have refreshed the attributes meanwhile.
                if !server.has_fresh_attributes(node) {
                    drop_attributes(device, node);
                }
            }
        }
        let notice = match notice {
            Ok(notice) => notice,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match notice {
            Notice::Changed(node) => changed.push(node),
            Notice::StalePages(node) => invalidate(device, node, 0, 0),
            Notice::KeptName(KeptName { dir, name }) => {
                invalidate_entry(device, dir, &name, EXPIRE_ONLY);
            }
            Notice::Later(later, asker) => {
                match asker {
                    Asker::Device(device) => finish(server, device.as_fd(), &later),
                    Asker::Thread(thread) => {
                        let done = server.guarded(|server| carry_out(server, device, &later));
                        // The receiver is gone if it gave way, or if the mount ends.
                        drop(thread.send(done));
                    }
                }
            }
        }
    }
}

/// Requests the writeback, and answers the request, which arrived at `device`.
pub(super) fn finish(server: &Server, device: BorrowedFd<'_>, later: &Later) {
    let done = server.guarded(|server| carry_out(server, device, later));
    let answer = done.as_ref().map(Vec::len).map_err(|errno| *errno);
    let header = Answered::new(later.unique, answer).header();
    send(device, header, &done.unwrap_or_default());
}

/// Invalidates the kernel's attributes of an inode.
pub(super) fn drop_attributes(device: BorrowedFd<'_>, node: NodeId) {
    invalidate(device, node, -1, 0);
}

/// Invalidates an entry of a directory, and the directory's attributes. Waits for requests in
/// progress that change the directory.
pub(crate) fn drop_entry(device: BorrowedFd<'_>, dir: NodeId, name: &[u8]) {
    invalidate_entry(device, dir, name, 0);
    invalidate(device, dir, 0, 0);
}

fn invalidate_entry(device: BorrowedFd<'_>, dir: NodeId, name: &[u8], flags: u32) {
    let out = InvalidateEntryOut {
        parent: dir.0,
        name_len: u32::try_from(name.len()).unwrap_or(u32::MAX),
        flags,
    };
    notify(
        device,
        NOTIFY_INVALIDATE_ENTRY,
        &[out.as_bytes(), name, &[0]].concat(),
    );
}

/// Notifies the kernel that an entry of a directory was removed, with its inode, so that inotify
/// reports it. Waits for requests in progress that change the directory.
pub(crate) fn drop_child(device: BorrowedFd<'_>, dir: NodeId, name: &[u8], child: NodeId) {
    let out = DeleteOut {
        parent: dir.0,
        child: child.0,
        name_len: u32::try_from(name.len()).unwrap_or(u32::MAX),
        unused: 0,
    };
    notify(
        device,
        NOTIFY_DELETE,
        &[out.as_bytes(), name, &[0]].concat(),
    );
    invalidate(device, dir, 0, 0);
}

/// Notifies the kernel of a name that changed.
fn announce(device: BorrowedFd<'_>, changed: &ChangedName) {
    let ChangedName { dir, name, removed } = changed;
    match removed {
        Some(child) => {
            drop_child(device, *dir, name, *child);
            drop_attributes(device, *child);
        }
        None => drop_entry(device, *dir, name),
    }
}

fn carry_out(server: &Server, device: BorrowedFd<'_>, later: &Later) -> Answer<Vec<u8>> {
    let node = later.node;
    match &later.action {
        Action::WrittenPastCache { range, result } => {
            drop_pages(device, node, range.clone());
            result.map(|out| out.as_bytes().to_vec())
        }
        Action::Seek { offset, target } => {
            let write_back = |bytes| drop_pages(device, node, bytes);
            let offset = server.seek_written_back(node, *offset, *target, write_back)?;
            Ok(LseekOut { offset }.as_bytes().to_vec())
        }
        Action::NameChanged { name, body } => {
            announce(device, name);
            body.clone()
        }
        Action::Ioctl {
            caller,
            command,
            input,
        } => {
            invalidate(device, node, 0, 0);
            ioctl::carry_out(server, *caller, node, *command, input)?.output?;
            drop_attributes(device, node);
            Ok(IoctlOut::new_zeroed().as_bytes().to_vec())
        }
    }
}

/// Invalidates the pages of a byte range, which writes dirty ones back.
fn drop_pages(device: BorrowedFd<'_>, node: NodeId, bytes: Range<u64>) {
    let offset = i64::try_from(bytes.start).unwrap_or(i64::MAX);
    // Length 0 means up to the end.
    let len = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
    invalidate(device, node, offset, len);
}

fn invalidate(device: BorrowedFd<'_>, node: NodeId, offset: i64, len: i64) {
    let body = InvalidateOut {
        node: node.0,
        offset,
        len,
    };
    notify(device, NOTIFY_INVALIDATE, body.as_bytes());
}

fn notify(device: BorrowedFd<'_>, code: i32, body: &[u8]) {
    let header = OutHeader {
        len: u32::try_from(OUT_HEADER_BYTES + body.len()).unwrap_or(u32::MAX),
        error: code,
        unique: 0,
    };
    send(device, header, body);
}

fn send(device: BorrowedFd<'_>, header: OutHeader, body: &[u8]) {
    let message = [header.as_bytes(), body].concat();
    let _: Result<usize, Errno> = rustix::io::retry_on_intr(|| rustix::io::write(device, &message));
}
