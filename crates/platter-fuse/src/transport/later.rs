//! A request whose answer waits for what the kernel has to write or to drop first.

use std::ops::Range;

use platter_vfs::SeekTarget;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::meaning::seek_target;
use super::protocol::{InHeader, IoctlIn, LseekIn, LseekOut, Opcode, WriteOut};
use super::request::Body;
use crate::node::NodeId;
use crate::server::{Answer, Caller, Server, sets_flags};

/// A request that needs the kernel to do something before it is answered.
pub(super) struct Later {
    pub(super) unique: u64,
    pub(super) node: NodeId,
    pub(super) action: Action,
}

/// What is asked for later.
pub(super) enum Action {
    /// A write that went past the kernel's page cache: it has been carried out, with this result, and
    /// the kernel does not drop the pages of the range by itself when the caller did not wait.
    WrittenPastCache {
        range: Range<u64>,
        result: Answer<WriteOut>,
    },
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
    pub(super) fn decode(
        opcode: Opcode,
        header: &InHeader,
        mut body: Body<'_>,
    ) -> Answer<Option<Self>> {
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

    /// Whether anything but a refusal can be said [at once](Self::at_once).
    pub(super) fn has_answer_at_once(&self) -> bool {
        !matches!(self.action, Action::Ioctl { .. })
    }

    /// Whether the kernel mostly has nothing to do first.
    pub(super) fn is_mostly_short(&self) -> bool {
        matches!(self.action, Action::WrittenPastCache { .. })
    }

    /// What can be said without what the kernel has not written: all may be data, and flags cannot be
    /// changed now.
    pub(super) fn at_once(&self, server: &Server) -> Answer<Vec<u8>> {
        match &self.action {
            Action::Seek { offset, target } => {
                let offset =
                    server.guarded(|server| server.seek_as_if_full(self.node, *offset, *target))?;
                Ok(LseekOut { offset }.as_bytes().to_vec())
            }
            Action::WrittenPastCache { result, .. } => result.map(|out| out.as_bytes().to_vec()),
            Action::Ioctl { .. } => Err(Errno::AGAIN),
        }
    }
}
