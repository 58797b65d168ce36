//! Serving over the FUSE device: every read is a request, every write an answer.
//!
//! Its threads take `turns`: `readers` decides which of them read, `timer` watches over those that serve, `callers`
//! counts the callers that they serve; `patience` and `reader_cpu` are for looking out for requests.

mod callers;
mod patience;
mod readers;
mod timer;
mod reader_cpu;
mod turns;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use self::readers::Reader;
use super::clone::clone;
use super::connection::Connection;
use super::exchange::{Exchange, Outcome};
use super::notice::{self, Asker, Notice, Notices};
use super::protocol::{InHeader, OUT_HEADER_BYTES, Opcode, REQUEST_OVERHEAD_BYTES, ReadIn};
use super::reply::REPLY_BYTES_MIN;
use super::request::Request;
use crate::server::Server;

pub(super) use self::readers::Readers;
pub(super) use self::timer::{Timer, watch};

/// With `io_uring`, only `FORGET` requests arrive at the device. They can be delayed, and are
/// batched by the kernel meanwhile.
const FORGET_PAUSE: Duration = Duration::from_millis(2);

/// The requests that arrive at the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Every request.
    All,
    /// Those that do not arrive through the rings.
    Forgets,
}

/// A thread's descriptor of the device, and its buffers.
struct Worker<'c> {
    connection: &'c Connection,
    notices: &'c Notices,
    device: Arc<OwnedFd>,
    /// Whether reads block.
    blocks: bool,
    exchange: Exchange<'c>,
    incoming: Vec<u8>,
    answer: Vec<u8>,
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    /// A request of this length.
    Request(usize),
    /// There is none yet.
    Nothing,
    /// The mount is gone.
    Gone,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Answered,
    /// No answer was expected, or it follows later.
    Unanswered,
    /// The mount is gone.
    Gone,
}

/// Serves requests until the mount is gone, by a thread that blocks for each.
pub(super) fn work(connection: &Connection, share: Share, notices: &Notices) -> io::Result<()> {
    // Sharing one queue only costs speed.
    let shared = connection.device();
    let device = clone(shared).or_else(|_| shared.try_clone_to_owned())?;
    let mut worker = Worker::new(connection, notices, device);
    while let Received::Request(len) = worker.receive(true)? {
        match worker.serve(len, || {})? {
            Served::Unanswered if share == Share::Forgets => std::thread::sleep(FORGET_PAUSE),
            Served::Answered | Served::Unanswered => {}
            Served::Gone => break,
        }
    }
    Ok(())
}

/// Serves requests until the mount is gone, by a thread that takes turns with the other readers, if there are any.
pub(super) fn serve(
    connection: &Connection,
    turn: Option<(&Readers<Timer>, Reader<'_, Timer>)>,
    notices: &Notices,
) -> io::Result<()> {
    let Some((readers, reader)) = turn else {
        return work(connection, Share::All, notices);
    };
    // Without a description of its own, reads would not block for other threads either.
    let Ok(device) = clone(connection.device()) else {
        drop(reader);
        return work(connection, Share::All, notices);
    };
    turns::take(Worker::new(connection, notices, device), readers, reader)
}

impl<'c> Worker<'c> {
    fn new(connection: &'c Connection, notices: &'c Notices, device: OwnedFd) -> Self {
        let read_max = connection.server().options().request_bytes_max as usize;
        Self {
            connection,
            notices,
            device: Arc::new(device),
            blocks: true,
            exchange: Exchange::new(connection),
            incoming: vec![0; request_bytes(connection.server())],
            answer: vec![0; OUT_HEADER_BYTES + read_max.max(REPLY_BYTES_MIN)],
        }
    }

    /// Reads a request, and waits for one if `blocks` is set.
    fn receive(&mut self, blocks: bool) -> io::Result<Received> {
        if self.blocks != blocks {
            rustix::io::ioctl_fionbio(&self.device, !blocks)?;
            self.blocks = blocks;
        }
        read(self.device.as_fd(), &mut self.incoming, blocks)
    }

    /// Returns the thread that sent a request, 0 for the kernel itself, and the length of the data that it asks for.
    fn origin(&self, len: usize) -> (u32, u32) {
        let Some(Request { header, mut body }) = Request::whole(&self.incoming[..len]) else {
            return (0, 0);
        };
        let InHeader { opcode, pid, .. } = header;
        let is_read = Opcode::decode(opcode) == Some(Opcode::Read);
        let asked = is_read.then(|| body.take::<ReadIn>().ok()).flatten();
        (pid, asked.map_or(0, |asked| asked.size))
    }

    /// Answers a request of this length. Calls `before_wait` before it waits for the kernel.
    fn serve(&mut self, len: usize, before_wait: impl FnOnce()) -> io::Result<Served> {
        let Some(request) = Request::whole(&self.incoming[..len]) else {
            return Ok(Served::Unanswered);
        };
        let space = &mut self.answer[OUT_HEADER_BYTES..];
        let answered = match self.exchange.answer(request, space) {
            Outcome::Answer(answered) => answered,
            Outcome::Nothing => return Ok(Served::Unanswered),
            Outcome::Later(later) => {
                let waits = later.is_mostly_short()
                    && self.connection.while_others_serve(|| {
                        before_wait();
                        notice::finish(self.connection.server(), self.device.as_fd(), &later);
                    });
                if !waits {
                    let asker = Asker::Device(Arc::clone(&self.device));
                    self.notices.add(Notice::Later(later, asker));
                }
                return Ok(Served::Unanswered);
            }
        };
        self.answer[..OUT_HEADER_BYTES].copy_from_slice(answered.header().as_bytes());
        let answer = &self.answer[..OUT_HEADER_BYTES + answered.body_bytes()];
        match send(self.device.as_fd(), answer) {
            Ok(()) => {}
            // The caller was interrupted and no longer waits.
            Err(Errno::NOENT) => self.exchange.lost(),
            Err(Errno::NODEV) => return Ok(Served::Gone),
            Err(error) => return Err(error.into()),
        }
        if let Some(notice) = self.exchange.take_notice() {
            self.notices.add(notice);
        }
        Ok(Served::Answered)
    }
}

/// Returns the maximum length of a request in bytes.
pub(super) fn request_bytes(server: &Server) -> usize {
    server.options().request_bytes_max as usize + REQUEST_OVERHEAD_BYTES
}

/// Reads the next request; `None` when the mount is gone.
pub(super) fn receive<'b>(
    device: BorrowedFd<'_>,
    buffer: &'b mut [u8],
) -> io::Result<Option<&'b [u8]>> {
    match read(device, buffer, true)? {
        Received::Request(len) => Ok(Some(&buffer[..len])),
        Received::Nothing | Received::Gone => Ok(None),
    }
}

/// Reads a request, and waits for one if `blocks` is set, as it is for the descriptor.
fn read(device: BorrowedFd<'_>, buffer: &mut [u8], blocks: bool) -> io::Result<Received> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(len) => return Ok(Received::Request(len)),
            Err(Errno::AGAIN) if !blocks => return Ok(Received::Nothing),
            // Interrupted, or the request was cancelled before it was read.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(Received::Gone),
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn send(device: BorrowedFd<'_>, answer: &[u8]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::write(device, answer)).map(|_| ())
}
