//! An answer while it is put together, in the space its transport has for what follows the header.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::protocol::{Dirent, OUT_HEADER_BYTES, OutHeader};
use crate::node::NodeId;
use crate::server::Answer;

/// What there has to be room for besides the data of a read.
pub(super) const ROOM_MIN: usize = 1 << 16;

/// What follows the header of an answer.
pub(super) struct Reply<'r> {
    space: &'r mut [u8],
    len: usize,
    /// Inodes the kernel is told of: it holds each once more when the answer reaches it.
    held: &'r mut Vec<NodeId>,
}

impl<'r> Reply<'r> {
    /// An empty one.
    pub(super) fn new(space: &'r mut [u8], held: &'r mut Vec<NodeId>) -> Self {
        held.clear();
        Self {
            space,
            len: 0,
            held,
        }
    }

    /// Bytes there are so far.
    pub(super) fn len(&self) -> usize {
        self.len
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
        let space = self.space.get_mut(self.len..end).ok_or(Errno::OVERFLOW)?;
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
        if self.len + padded > size_max.min(self.space.len()) {
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
}

/// The answer to a request; what follows its header is in the space that was given for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    unique: u64,
    answer: Answer<usize>,
}

impl Answered {
    /// The answer to the request `unique`: the bytes that follow, or why it failed.
    pub(super) fn new(unique: u64, answer: Answer<usize>) -> Self {
        Self { unique, answer }
    }

    /// Bytes that follow the header.
    pub(super) fn body_bytes(self) -> usize {
        self.answer.unwrap_or(0)
    }

    pub(super) fn header(self) -> OutHeader {
        let len = OUT_HEADER_BYTES + self.body_bytes();
        OutHeader {
            len: u32::try_from(len).unwrap_or(u32::MAX),
            error: self.answer.err().map_or(0, |errno| -errno.raw_os_error()),
            unique: self.unique,
        }
    }
}
