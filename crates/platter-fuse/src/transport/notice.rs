//! Notices to the kernel, which it did not ask for: that attributes it has are stale, and to write or to
//! drop what it holds of a file. It may have to wait for answers of ours before it takes a notice of
//! pages, so those who answer leave that to a thread of its own, or to one of them while another
//! answers. A notice of attributes of an inode that a request in progress is for waits for nothing.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::later::{Action, Later};
use super::protocol::{
    DeleteOut, InvalidateEntryOut, InvalidateOut, IoctlOut, LseekOut, NOTIFY_DELETE,
    NOTIFY_INVALIDATE, NOTIFY_INVALIDATE_ENTRY, OUT_HEADER_BYTES, OutHeader,
};
use super::reply::Answered;
use crate::node::NodeId;
use crate::server::{Answer, Server};

/// How long the kernel may go without learning that attributes are stale: who writes and writes is
/// not asked to fetch them in between.
const CHANGED_DELAY: Duration = Duration::from_millis(50);
/// After so many, it learns of all.
const CHANGED_MAX: usize = 64;

/// Something for the thread that gives notices.
pub(super) enum Notice {
    /// The kernel has attributes of this node that are stale.
    Changed(NodeId),
    /// The kernel has contents of this node that must not be written.
    Refused(NodeId),
    /// An answer that needs what the kernel has not written yet.
    Later(Later, Asker),
}

/// Where a request came from that is answered later.
pub(super) enum Asker {
    /// This descriptor of the device.
    Device(Arc<OwnedFd>),
    /// A thread that waits to hand it on: what follows the header, or why it failed.
    Thread(Sender<Answer<Vec<u8>>>),
}

/// Gives notices to the kernel until nobody is left who sends any. What the kernel does not take
/// concerns an inode that it has forgotten, or a mount that is gone.
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
                // It may have learned of the change by an answer of its own.
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
            Notice::Refused(node) => invalidate(device, node, 0, 0),
            Notice::Later(later, asker) => {
                match asker {
                    Asker::Device(device) => settle(server, device.as_fd(), &later),
                    Asker::Thread(thread) => {
                        let done = server.guarded(|server| carry_out(server, device, &later));
                        // Who does not wait any more is at the end of the mount.
                        drop(thread.send(done));
                    }
                }
            }
        }
    }
}

/// Has the kernel do what it has to, and answers the request, which came by `device`.
pub(super) fn settle(server: &Server, device: BorrowedFd<'_>, later: &Later) {
    let done = server.guarded(|server| carry_out(server, device, later));
    let answer = done.as_ref().map(Vec::len).map_err(|errno| *errno);
    let header = Answered::new(later.unique, answer).header();
    send(device, header, &done.unwrap_or_default());
}

/// Has the kernel ask for the attributes of an inode when it needs them next.
pub(super) fn drop_attributes(device: BorrowedFd<'_>, node: NodeId) {
    invalidate(device, node, -1, 0);
}

/// Has the kernel forget what it knows of a name in a directory, and of the directory itself. It waits
/// for requests in progress that change the directory.
pub(crate) fn drop_entry(device: BorrowedFd<'_>, dir: NodeId, name: &[u8]) {
    let out = InvalidateEntryOut {
        parent: dir.0,
        name_len: u32::try_from(name.len()).unwrap_or(u32::MAX),
        flags: 0,
    };
    notify(
        device,
        NOTIFY_INVALIDATE_ENTRY,
        &[out.as_bytes(), name, &[0]].concat(),
    );
    invalidate(device, dir, 0, 0);
}

/// Has the kernel take a name in a directory for removed, with the inode that it named: watchers learn of
/// that. It waits for requests in progress that change the directory.
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

fn carry_out(server: &Server, device: BorrowedFd<'_>, later: &Later) -> Answer<Vec<u8>> {
    let node = later.node;
    match &later.action {
        Action::WrittenPastCache { range, result } => {
            drop_pages(device, node, range.clone());
            result.map(|out| out.as_bytes().to_vec())
        }
        Action::Seek { offset, target } => {
            let settle_range = |bytes| drop_pages(device, node, bytes);
            let offset = server.seek_settled(node, *offset, *target, settle_range)?;
            Ok(LseekOut { offset }.as_bytes().to_vec())
        }
        Action::Ioctl {
            caller,
            command,
            input,
        } => {
            invalidate(device, node, 0, 0);
            server.ioctl(*caller, node, *command, input)?;
            drop_attributes(device, node);
            Ok(IoctlOut::new_zeroed().as_bytes().to_vec())
        }
    }
}

/// Has the kernel write and drop the pages of a range of bytes.
fn drop_pages(device: BorrowedFd<'_>, node: NodeId, bytes: Range<u64>) {
    let offset = i64::try_from(bytes.start).unwrap_or(i64::MAX);
    // No length stands for all up to the end.
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
