//! Where the bytes of a file lie, found first, so that no lock on its map is held while they are
//! read.

use std::io::IoSliceMut;

use platter_block::BlockDevice;
use platter_vfs::Result;

/// Where bytes of a file in a row come from. Behind them there are zeros.
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

/// Bytes of a file in a row with one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub(super) len_bytes: u64,
    /// Offset on the device in bytes; `None` for zeros.
    pub(super) device: Option<u64>,
}

impl Sources {
    /// Fills `bufs` with the bytes, and zeros behind them.
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
            let (mut target, behind) = split(left, piece.len_bytes);
            match piece.device {
                Some(at) if !target.is_empty() => device.read_vectored_at(at, &mut target)?,
                Some(_) | None => target.iter_mut().for_each(|buf| buf.fill(0)),
            }
            left = behind;
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
        let (inside, behind) = buf.split_at_mut(now.len());
        inside.copy_from_slice(now);
        behind.fill(0);
        bytes = later;
    }
}

pub(super) fn total_len(bufs: &[IoSliceMut<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Cuts a row of buffers behind its first `count` bytes.
fn split(bufs: Vec<&mut [u8]>, count: u64) -> (Vec<IoSliceMut<'_>>, Vec<&mut [u8]>) {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    for buf in bufs {
        let (head, tail) = buf.split_at_mut(left.min(buf.len()));
        left -= head.len();
        if !head.is_empty() {
            before.push(IoSliceMut::new(head));
        }
        if !tail.is_empty() {
            behind.push(tail);
        }
    }
    (before, behind)
}
