//! Requests whose answer has to wait until the kernel has written or invalidated pages.

use std::ops::Range;

use platter_vfs::SeekTarget;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::meaning::seek_target;
use super::protocol::{InHeader, IoctlIn, LseekIn, LseekOut, Opcode, WriteOut};
use super::request::Body;
use crate::ioctl::sets_flags;
use crate::node::NodeId;
use crate::server::{Answer, Caller, ChangedName, Server};

/// A request that needs an action of the kernel before it is answered.
pub(super) struct Later {
    pub(super) unique: u64,
    pub(super) node: NodeId,
    pub(super) action: Action,
}

/// The kinds of deferred requests.
pub(super) enum Action {
    /// A write past the kernel's page cache: it was performed, with this result, but for an
    /// asynchronous caller the kernel does not invalidate the pages of the range itself.
    WrittenPastCache {
        range: Range<u64>,
        result: Answer<WriteOut>,
    },
    Seek {
        offset: u64,
        target: SeekTarget,
    },
    /// An ioctl that was carried out, with this body of an answer or error: the caller has to see the name that it
    /// changed.
    NameChanged {
        name: ChangedName,
        body: Answer<Vec<u8>>,
    },
    /// A change of the flags of a regular file: data written before a flag that forbids it must not be refused.
    Ioctl {
        caller: Caller,
        command: u32,
        input: Vec<u8>,
    },
}

impl Later {
    /// Returns `None` for requests that are answered immediately.
    pub(super) fn decode(
        server: &Server,
        opcode: Opcode,
        header: &InHeader,
        mut body: Body<'_>,
    ) -> Answer<Option<Self>> {
        let node = NodeId(header.node);
        let action = if opcode == Opcode::Lseek {
            let LseekIn { offset, whence, .. } = body.take()?;
            let target = seek_target(whence)?;
            Action::Seek { offset, target }
        } else if opcode == Opcode::Ioctl {
            let asked: IoctlIn = body.take()?;
            if !sets_flags(asked.command) || !server.may_have_pages(node) {
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
            node,
            action,
        }))
    }

    /// Whether an answer as good as any can be given [immediately](Self::at_once).
    pub(super) fn has_answer_at_once(&self) -> bool {
        !matches!(self.action, Action::Ioctl { .. })
    }

    /// Whether the kernel takes the lock of a directory for it.
    pub(super) fn is_of_name(&self) -> bool {
        matches!(self.action, Action::NameChanged { .. })
    }

    /// Whether the kernel usually has nothing to write first.
    pub(super) fn is_mostly_short(&self) -> bool {
        matches!(self.action, Action::WrittenPastCache { .. })
    }

    /// Returns the answer without an action of the kernel: everything may be data, flags cannot be changed, and the
    /// kernel may not know yet of a name that changed.
    pub(super) fn at_once(&self, server: &Server) -> Answer<Vec<u8>> {
        match &self.action {
            Action::Seek { offset, target } => {
                let offset =
                    server.guarded(|server| server.seek_as_if_full(self.node, *offset, *target))?;
                Ok(LseekOut { offset }.as_bytes().to_vec())
            }
            Action::WrittenPastCache { result, .. } => result.map(|out| out.as_bytes().to_vec()),
            Action::NameChanged { body, .. } => body.clone(),
            Action::Ioctl { .. } => Err(Errno::AGAIN),
        }
    }
}
