//! What the kernel is told without having asked: that attributes it has are stale, and to write what
//! it holds of a file. It may have to wait for answers of ours before it takes such a notice, so those
//! who answer leave it to a thread of its own.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::exchange::Seek;
use super::protocol::{InvalidateOut, LseekOut, NOTIFY_INVALIDATE, OUT_HEADER_BYTES, OutHeader};
use crate::node::NodeId;
use crate::server::Server;

/// Something for the thread that gives notices.
pub(super) enum Notice {
    /// The kernel has attributes of this node that are stale.
    Changed(NodeId),
    /// An answer that needs what the kernel has not written yet; the request came from this
    /// descriptor.
    Seek(Seek, Arc<OwnedFd>),
}

/// Gives notices to the kernel until nobody is left who sends any. What the kernel does not take
/// concerns an inode that it has forgotten, or a mount that is gone.
pub(super) fn give(server: &Server, device: BorrowedFd<'_>, notices: &Receiver<Notice>) {
    for notice in notices {
        match notice {
            Notice::Changed(node) => invalidate(device, node, -1, 0),
            Notice::Seek(seek, from) => {
                let settle = |bytes: Range<u64>| {
                    let offset = i64::try_from(bytes.start).unwrap_or(i64::MAX);
                    // Up to the end is said by no length.
                    let len = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
                    invalidate(device, seek.node, offset, len);
                };
                let found = server.guarded(|server| {
                    server.seek_settled(seek.node, seek.offset, seek.target, settle)
                });
                let (offset, error) = match found {
                    Ok(offset) => (Some(LseekOut { offset }), 0),
                    Err(errno) => (None, -errno.raw_os_error()),
                };
                send(
                    &from,
                    error,
                    seek.unique,
                    offset.as_ref().map(IntoBytes::as_bytes),
                );
            }
        }
    }
}

fn invalidate(device: BorrowedFd<'_>, node: NodeId, offset: i64, len: i64) {
    let body = InvalidateOut {
        node: node.0,
        offset,
        len,
    };
    send(device, NOTIFY_INVALIDATE, 0, Some(body.as_bytes()));
}

fn send(device: impl std::os::fd::AsFd, error: i32, unique: u64, body: Option<&[u8]>) {
    let body = body.unwrap_or_default();
    let header = OutHeader {
        len: u32::try_from(OUT_HEADER_BYTES + body.len()).unwrap_or(u32::MAX),
        error,
        unique,
    };
    let message = [header.as_bytes(), body].concat();
    let _: Result<usize, Errno> =
        rustix::io::retry_on_intr(|| rustix::io::write(&device, &message));
}
