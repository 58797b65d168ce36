//! An answer while it is put together: its header, and what follows it, in one buffer.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::protocol::{Dirent, OUT_HEADER_BYTES, OutHeader};
use crate::node::NodeId;
use crate::server::Answer;

/// What an answer has room for besides the data of a read.
const ROOM_MIN: usize = 1 << 16;

/// The buffer of one serving thread.
pub(super) struct Reply {
    buffer: Box<[u8]>,
    len: usize,
    /// Inodes the kernel is told of: it holds each once more when the answer reaches it.
    held: Vec<NodeId>,
}

impl Reply {
    /// With room for reads of `read_max` bytes.
    pub(super) fn new(read_max: usize) -> Self {
        let room = OUT_HEADER_BYTES + read_max.max(ROOM_MIN);
        Self {
            buffer: vec![0; room].into_boxed_slice(),
            len: OUT_HEADER_BYTES,
            held: Vec::new(),
        }
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.len = OUT_HEADER_BYTES;
        self.held.clear();
    }

    /// Adds a structure.
    pub(super) fn push(&mut self, structure: &(impl IntoBytes + Immutable)) -> Answer<()> {
        self.push_bytes(structure.as_bytes())
    }

    /// Adds bytes as they are.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        self.fill(bytes.len(), |space| {
            space.copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    /// Adds as many of `size` bytes as `write` says it wrote.
    pub(super) fn fill(
        &mut self,
        size: usize,
        write: impl FnOnce(&mut [u8]) -> Answer<usize>,
    ) -> Answer<()> {
        let end = self.len.checked_add(size).ok_or(Errno::OVERFLOW)?;
        let space = self.buffer.get_mut(self.len..end).ok_or(Errno::OVERFLOW)?;
        self.len += write(space)?.min(size);
        Ok(())
    }

    /// Adds a line of a listing, `entry` in front of it, to an answer of at most `size_max` bytes.
    /// Whether it was full.
    pub(super) fn push_dirent(
        &mut self,
        size_max: usize,
        entry: &[u8],
        dirent: &Dirent,
        name: &[u8],
    ) -> bool {
        let line = size_of::<Dirent>() + name.len();
        let padded = entry.len() + line.next_multiple_of(8);
        let size_max = size_max.min(self.buffer.len() - OUT_HEADER_BYTES);
        if self.len - OUT_HEADER_BYTES + padded > size_max {
            return true;
        }
        let padding = [0; 7];
        let parts = [
            entry,
            dirent.as_bytes(),
            name,
            &padding[..padded - entry.len() - line],
        ];
        parts.iter().any(|part| self.push_bytes(part).is_err())
    }

    /// Notes that the kernel is told of a node.
    pub(super) fn hold(&mut self, node: NodeId) {
        self.held.push(node);
    }

    /// The nodes of an answer that did not reach the kernel.
    pub(super) fn take_held(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.held)
    }

    /// The whole answer to the request `unique`; of a failed one, the header alone.
    pub(super) fn finish(&mut self, unique: u64, answer: Answer<()>) -> &[u8] {
        let error = match answer {
            Ok(()) => 0,
            Err(error) => {
                self.len = OUT_HEADER_BYTES;
                -error.raw_os_error()
            }
        };
        let header = OutHeader {
            len: u32::try_from(self.len).unwrap_or(u32::MAX),
            error,
            unique,
        };
        self.buffer[..OUT_HEADER_BYTES].copy_from_slice(header.as_bytes());
        &self.buffer[..self.len]
    }
}
