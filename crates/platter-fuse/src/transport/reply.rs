//! Encoding an answer into the space after its header.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::protocol::{Dirent, OUT_HEADER_BYTES, OutHeader};
use crate::attr_versions::AttrVersion;
use crate::node::NodeId;
use crate::server::Answer;

/// Minimum space for an answer other than the data of a read.
pub(super) const REPLY_BYTES_MIN: usize = 1 << 16;

/// The body of an answer.
pub(super) struct Reply<'r> {
    space: &'r mut [u8],
    len: usize,
    inodes: &'r mut ReplyInodes,
}

/// The inodes in an answer.
#[derive(Debug, Default)]
pub(super) struct ReplyInodes {
    /// Their lookup counts increase when it reaches the kernel.
    pub(super) held: Vec<NodeId>,
    /// The versions of their attributes, and where in the answer it is how long those are valid.
    pub(super) versions: Vec<(usize, AttrVersion)>,
}

impl<'r> Reply<'r> {
    /// Creates an empty body.
    pub(super) fn new(space: &'r mut [u8], inodes: &'r mut ReplyInodes) -> Self {
        inodes.held.clear();
        inodes.versions.clear();
        Self {
            space,
            len: 0,
            inodes,
        }
    }

    /// Returns the length so far in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a structure.
    pub(super) fn push(&mut self, structure: &(impl IntoBytes + Immutable)) -> Answer<()> {
        self.push_bytes(structure.as_bytes())
    }

    /// Appends bytes.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        self.fill(bytes.len(), |space| {
            space.copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    /// Appends up to `size` bytes, as many as `write` returns.
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

    /// Appends a directory entry, preceded by `entry`, to an answer of at most `size_max` bytes.
    /// Returns whether it was full.
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

    /// Records that the answer contains a node.
    pub(super) fn hold(&mut self, node: NodeId) {
        self.inodes.held.push(node);
    }

    /// Records the version of attributes that are valid as long as the 64 bits at byte `at` of the answer say.
    pub(super) fn record_version(&mut self, at: usize, version: AttrVersion) {
        self.inodes.versions.push((at, version));
    }
}

/// The answer to a request; its body is in the space given for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    unique: u64,
    answer: Answer<usize>,
}

impl Answered {
    /// Creates the answer to the request `unique`: the length of its body, or an error.
    pub(super) fn new(unique: u64, answer: Answer<usize>) -> Self {
        Self { unique, answer }
    }

    /// Returns the length of the body.
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
