//! Writing parts of an image together, in a process of its own: a command that is killed, even with
//! SIGKILL and in this moment, does not leave half of its changes in the image.
//!
//! The batch is a stream of pieces, each an offset and a length of eight bytes and the bytes, and at
//! the end, where no piece can be, the mark of completeness. The process writes nothing before it
//! has seen that, and nothing for a command that is gone by then: so after a kill the image does not
//! change any more, except for the moment that a few writes take.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use platter::block::{BatchPiece, BatchWriter, BlockDevice, FileDevice, IoError, Operation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The name under which this program calls itself.
const COMMAND: &str = "write-batch";
/// The offset and the length of the piece that is none.
const COMPLETE: [u8; 16] = [0xff; 16];
/// Longer pieces are taken apart, so that no length is believed before its bytes are there.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The exit status when nothing was done, for which no process waits.
const ABANDONED: u8 = 1;

/// Write a batch, which comes on standard input, to the image that is standard output
#[derive(Debug, clap::Args)]
pub(crate) struct WriteBatch {}

impl WriteBatch {
    pub(crate) fn run() -> anyhow::Result<u8> {
        let pieces = read_batch(&mut io::stdin().lock())?;
        let image = crate::console::raw_stdout()?;
        // What follows is not interrupted by others then, if it can be helped.
        std::thread::yield_now();
        if is_abandoned()? {
            return Ok(ABANDONED);
        }
        for (offset, bytes) in &pieces {
            image.write_all_at(bytes, *offset)?;
        }
        Ok(0)
    }
}

/// Whether no process is left that could send more.
fn is_abandoned() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&now))?;
    Ok(polled[0].revents().contains(PollFlags::HUP))
}

/// Starts the process for each batch.
#[derive(Debug)]
pub(super) struct Worker {
    name: Arc<str>,
    /// The open image with its lock, if the process can be given one.
    image: io::Result<OwnedFd>,
}

impl Worker {
    pub(super) fn new(file: &FileDevice) -> Self {
        Self {
            name: Arc::clone(file.name()),
            image: file.as_fd().try_clone_to_owned(),
        }
    }

    /// Has a process of its own write to the image.
    fn write_apart(image: &OwnedFd, pieces: &[BatchPiece]) -> io::Result<()> {
        let mut child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(image.try_clone()?)
            .stderr(Stdio::piped())
            // An interrupt from the terminal is not for this one.
            .process_group(0)
            .spawn()?;
        // Open until the end, which says that this process is there.
        let mut pipe = child.stdin.take();
        let sent = pipe
            .as_mut()
            .map_or(Ok(()), |pipe| send_batch(pipe, pieces));
        if sent.is_err() {
            drop(pipe.take());
        }
        let output = child.wait_with_output()?;
        if output.status.success() {
            return sent;
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim_end().trim_start_matches("platter: ");
        // What it writes to is the image.
        let message = message.trim_start_matches("standard output: ");
        if message.is_empty() {
            let status = output.status;
            return Err(io::Error::other(format!(
                "the writing process ended: {status}"
            )));
        }
        Err(io::Error::other(message.to_owned()))
    }
}

impl BatchWriter for Worker {
    fn write(&self, pieces: &[BatchPiece]) -> Result<(), IoError> {
        let written = match &self.image {
            // One piece within a page arrives whole.
            Ok(image) if is_whole(pieces) => write_here(image, pieces),
            Ok(image) => Self::write_apart(image, pieces),
            Err(error) => Err(io::Error::from(error.kind())),
        };
        written.map_err(|error| {
            let offset = pieces.first().map_or(0, |(offset, _)| *offset);
            let length = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            IoError::new(&self.name, Operation::Write, offset, length, error)
        })
    }
}

/// Whether no process can see a part of it: the kernel checks for signals between pages only.
fn is_whole(pieces: &[BatchPiece]) -> bool {
    const PAGE_BYTES: u64 = 4096;
    let [(offset, bytes)] = pieces else {
        return false;
    };
    let last = offset + (bytes.len() as u64).saturating_sub(1);
    offset / PAGE_BYTES == last / PAGE_BYTES
}

fn write_here(image: &OwnedFd, pieces: &[BatchPiece]) -> io::Result<()> {
    let image = File::from(image.try_clone()?);
    pieces
        .iter()
        .try_for_each(|(offset, bytes)| image.write_all_at(bytes, *offset))
}

fn send_batch(pipe: &mut dyn Write, pieces: &[BatchPiece]) -> io::Result<()> {
    for (offset, bytes) in pieces {
        let mut at = *offset;
        for part in bytes.chunks(PIECE_BYTES_MAX) {
            pipe.write_all(&at.to_le_bytes())?;
            pipe.write_all(&(part.len() as u64).to_le_bytes())?;
            pipe.write_all(part)?;
            at += part.len() as u64;
        }
    }
    pipe.write_all(&COMPLETE)
}

fn read_batch(pipe: &mut dyn Read) -> io::Result<Vec<BatchPiece>> {
    let mut pieces = Vec::new();
    loop {
        let mut head = [0; 16];
        pipe.read_exact(&mut head)?;
        if head == COMPLETE {
            return Ok(pieces);
        }
        let (offset, length) = head.split_at(8);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
        };
        let length = usize::try_from(number(length)).ok();
        let length = length.filter(|&length| length <= PIECE_BYTES_MAX);
        let mut bytes = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
        pipe.read_exact(&mut bytes)?;
        pieces.push((number(offset), bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_arrives_whole_or_not_at_all() {
        let pieces = [(4096, vec![1; PIECE_BYTES_MAX + 5]), (1 << 40, vec![2])];
        let mut stream = Vec::new();
        send_batch(&mut stream, &pieces).unwrap();
        let read = read_batch(&mut &stream[..]).unwrap();
        let places: Vec<_> = read.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        let second = 4096 + PIECE_BYTES_MAX as u64;
        assert_eq!(places, [(4096, PIECE_BYTES_MAX), (second, 5), (1 << 40, 1)]);
        for end in (0..stream.len()).step_by(1009) {
            assert!(read_batch(&mut &stream[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn piece_within_a_page_is_whole() {
        assert!(is_whole(&[(1024, vec![0; 1024])]));
        assert!(is_whole(&[(4096, vec![0; 4096])]));
        assert!(!is_whole(&[(4095, vec![0; 2])]));
        assert!(!is_whole(&[(0, vec![0]), (1, vec![0])]));
    }
}
