//! A request whose answer waits for what the kernel has to write first.

use platter_vfs::SeekTarget;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::meaning::seek_target;
use super::protocol::{InHeader, IoctlIn, LseekIn, LseekOut, Opcode};
use super::request::Body;
use crate::node::NodeId;
use crate::server::{Answer, Caller, Server, sets_flags};

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
        matches!(self.action, Action::Seek { .. })
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
            Action::Ioctl { .. } => Err(Errno::AGAIN),
        }
    }
}
