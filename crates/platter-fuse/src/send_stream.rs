//! Send streams of subvolumes of a mounted filesystem, as another process reads them.

use std::io::{self, Write};
use std::time::Duration;

use platter_vfs::subvolumes::SendOptions;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::control::Control;
use crate::ioctl::{Command, SendCommand, SendPiece, SendStart, call};
use crate::pause::Pause;
use crate::refusal::Refusal;

/// The pause between two polls of a stream.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Why a subvolume was not sent, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum SendFailure {
    /// The request failed: the stream did not start, or its state is unknown.
    #[error(transparent)]
    Asking(#[from] io::Error),
    /// The output failed.
    #[error(transparent)]
    Writing(io::Error),
    /// The filesystem refused it, or cannot go on.
    #[error(transparent)]
    Refused(Refusal),
}

impl From<Errno> for SendFailure {
    fn from(errno: Errno) -> Self {
        Self::Asking(errno.into())
    }
}

/// A stream in progress. Dropping it ends the stream.
#[derive(Debug)]
pub struct SendStream<'c> {
    control: &'c Control,
    number: u64,
}

impl Control {
    /// Begins a send stream of the subvolume whose root directory this is. The subvolume is read-only, as are those that
    /// the options name, and stays so until the stream ends. Only platter sends so.
    ///
    /// # Errors
    /// `EINVAL` where the directory is not the root directory of a subvolume; `EPERM` for callers other than the
    /// administrator; `E2BIG` for more than 1024 clone sources; `EBUSY` while too many streams are in progress, `EAGAIN`
    /// where no thread can be started for one; `ESHUTDOWN` where the filesystem is being unmounted; `ENOTTY` where it
    /// has no subvolumes.
    pub fn start_send(&self, options: &SendOptions) -> io::Result<SendStream<'_>> {
        let mut start = SendStart::new(options)?;
        let command = Command::Send(SendCommand::Start);
        call(self, command.number(), start.as_mut_bytes())?;
        Ok(SendStream {
            control: self,
            number: start.stream,
        })
    }
}

impl SendStream<'_> {
    /// Writes the whole stream to `out`.
    ///
    /// # Errors
    /// What the filesystem refused the stream for, or could not go on for, after what was made before: `EPERM` for what
    /// is not read-only, `EAGAIN` where a subvolume of the stream changed or is being made, so that it can be sent again;
    /// `ESTALE` where the stream was ended by others, or a piece of it was lost; those of `out`.
    pub fn copy_to(self, out: &mut dyn Write) -> Result<(), SendFailure> {
        let command = Command::Send(SendCommand::Read);
        let mut piece = SendPiece::request(self.number, 0);
        let (mut offset, mut pause) = (0, Pause::new(PAUSE_MIN, PAUSE_MAX));
        loop {
            piece.offset = offset;
            call(self.control, command.number(), piece.as_mut_bytes())?;
            let bytes = piece.bytes()?;
            if piece.errno != 0 {
                let refusal = Refusal::decode(piece.errno, bytes)?;
                return Err(SendFailure::Refused(refusal));
            }
            out.write_all(bytes).map_err(SendFailure::Writing)?;
            if piece.is_last() {
                return Ok(());
            }
            offset += bytes.len() as u64;
            if bytes.is_empty() {
                pause.wait();
            } else {
                pause.reset();
            }
        }
    }
}

impl Drop for SendStream<'_> {
    fn drop(&mut self) {
        let command = Command::Send(SendCommand::End);
        // One that was read to its end is gone. Of others, the filesystem sees the end of this process.
        let _ = call(self.control, command.number(), self.number.as_mut_bytes());
    }
}
