//! Where the bytes of a file are, looked up first, so that no lock on its mapping is held while they are
//! read.

use std::io::IoSliceMut;

use crate::Result;
use platter_block::BlockDevice;

/// Where consecutive bytes of a file come from. After them there are zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sources {
    /// The inode.
    Inline(Vec<u8>),
    /// The device. The common case, one piece, allocates nothing.
    Pieces {
        /// The first piece; it may be empty.
        first: Piece,
        /// Those that follow it.
        rest: Vec<Piece>,
    },
}

/// Consecutive bytes of a file with one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// How many.
    pub len_bytes: u64,
    /// Offset on the device in bytes; `None` for zeros.
    pub device: Option<u64>,
}

impl Sources {
    /// Fills `bufs` with the bytes, and zeros after them.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self, device: &dyn BlockDevice, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let (first, rest) = match self {
            Self::Inline(bytes) => {
                fill_from(bytes, bufs);
                return Ok(());
            }
            Self::Pieces { first, rest } => (first, rest),
        };
        if let Some(at) = first.device
            && first.len_bytes == total_len(bufs)
        {
            return Ok(device.read_vectored_at(at, bufs)?);
        }
        let mut left: Vec<&mut [u8]> = bufs.iter_mut().map(|buf| &mut **buf).collect();
        for piece in [first].into_iter().chain(rest) {
            let (mut target, after) = split(left, piece.len_bytes);
            match piece.device {
                Some(at) if !target.is_empty() => device.read_vectored_at(at, &mut target)?,
                Some(_) | None => target.iter_mut().for_each(|buf| buf.fill(0)),
            }
            left = after;
        }
        for buf in left {
            buf.fill(0);
        }
        Ok(())
    }
}

fn fill_from(mut bytes: &[u8], bufs: &mut [IoSliceMut<'_>]) {
    for buf in bufs {
        let (now, later) = bytes.split_at(bytes.len().min(buf.len()));
        let (inside, after) = buf.split_at_mut(now.len());
        inside.copy_from_slice(now);
        after.fill(0);
        bytes = later;
    }
}

fn total_len(bufs: &[IoSliceMut<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Cuts a row of buffers after its first `count` bytes.
fn split(bufs: Vec<&mut [u8]>, count: u64) -> (Vec<IoSliceMut<'_>>, Vec<&mut [u8]>) {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for buf in bufs {
        let (head, tail) = buf.split_at_mut(left.min(buf.len()));
        left -= head.len();
        if !head.is_empty() {
            before.push(IoSliceMut::new(head));
        }
        if !tail.is_empty() {
            after.push(tail);
        }
    }
    (before, after)
}

/// Copies bytes into consecutive buffers, from their byte `at` on.
pub fn copy_into(bufs: &mut [IoSliceMut<'_>], at: u64, mut bytes: &[u8]) {
    let mut skip = usize::try_from(at).unwrap_or(usize::MAX);
    for buf in bufs {
        let Some(target) = buf.get_mut(skip..) else {
            skip -= buf.len();
            continue;
        };
        let count = target.len().min(bytes.len());
        target[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        skip = 0;
    }
}
