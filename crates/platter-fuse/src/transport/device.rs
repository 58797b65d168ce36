//! Serving over the FUSE device: every read is a request, every write an answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::clone::clone;
use super::connection::Connection;
use super::exchange::{Exchange, Outcome};
use super::notice::{self, Asker, Notice, Notices};
use super::protocol::{OUT_HEADER_BYTES, REQUEST_OVERHEAD_BYTES};
use super::reply::REPLY_BYTES_MIN;
use super::request::Request;
use crate::server::Server;

/// With `io_uring`, only `FORGET` requests arrive at the device. They can be delayed, and are
/// batched by the kernel meanwhile.
const FORGET_PAUSE: Duration = Duration::from_millis(2);

/// How often a thread that has answered polls for the next request before it sleeps: for some 50 us on an idle
/// processor.
pub(super) const POLLS_MAX: u32 = 96;

/// The requests that arrive at the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Every request.
    All,
    /// Those that do not arrive through the rings.
    Forgets,
}

/// Serves requests until the mount is gone.
pub(super) fn work(connection: &Connection, share: Share, notices: &Notices) -> io::Result<()> {
    let mut queue = Queue::of(connection.device())?;
    let device = Arc::clone(&queue.device);
    let mut exchange = Exchange::new(connection);
    let mut incoming = vec![0; request_bytes(connection.server())];
    let read_max = connection.server().options().request_bytes_max as usize;
    let mut answer = vec![0; OUT_HEADER_BYTES + read_max.max(REPLY_BYTES_MIN)];
    while let Some(request) = queue.next(&mut incoming)? {
        let Some(request) = Request::whole(request) else {
            continue;
        };
        let answered = match exchange.answer(request, &mut answer[OUT_HEADER_BYTES..]) {
            Outcome::Answer(answered) => answered,
            Outcome::Nothing => {
                if share == Share::Forgets {
                    std::thread::sleep(FORGET_PAUSE);
                }
                continue;
            }
            Outcome::Later(later) => {
                if later.is_mostly_short()
                    && connection.while_others_serve(|| {
                        notice::finish(connection.server(), device.as_fd(), &later);
                    })
                {
                    continue;
                }
                notices.add(Notice::Later(later, Asker::Device(Arc::clone(&device))));
                continue;
            }
        };
        answer[..OUT_HEADER_BYTES].copy_from_slice(answered.header().as_bytes());
        match send(
            device.as_fd(),
            &answer[..OUT_HEADER_BYTES + answered.body_bytes()],
        ) {
            Ok(()) => queue.polls = share == Share::All,
            // The caller was interrupted and no longer waits.
            Err(Errno::NOENT) => exchange.lost(),
            Err(Errno::NODEV) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if let Some(notice) = exchange.take_notice() {
            notices.add(notice);
        }
    }
    Ok(())
}

/// The descriptor of a serving thread.
struct Queue {
    device: Arc<OwnedFd>,
    /// Whether no other thread reads from it.
    is_own: bool,
    is_nonblocking: bool,
    /// Whether the next request is likely to come soon.
    polls: bool,
}

impl Queue {
    fn of(shared: BorrowedFd<'_>) -> io::Result<Self> {
        // Sharing one queue only costs speed.
        let own = clone(shared);
        Ok(Self {
            is_own: own.is_ok(),
            device: Arc::new(own.or_else(|_| shared.try_clone_to_owned())?),
            is_nonblocking: false,
            polls: false,
        })
    }

    /// Reads the next request; `None` when the mount is gone. After an answer the thread polls for a while, and
    /// yields in between: to wake it on an idle processor takes longer than most requests.
    fn next<'b>(&mut self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        if std::mem::take(&mut self.polls) && self.is_own {
            self.set_nonblocking(true)?;
            for _ in 0..POLLS_MAX {
                match rustix::io::read(&*self.device, &mut *buffer) {
                    Ok(len) => return Ok(Some(&buffer[..len])),
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    Err(Errno::INTR | Errno::NOENT) => {}
                    Err(Errno::NODEV) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.set_nonblocking(false)?;
        receive(self.device.as_fd(), buffer)
    }

    fn set_nonblocking(&mut self, is_nonblocking: bool) -> io::Result<()> {
        if self.is_nonblocking != is_nonblocking {
            let mut flags = OFlags::RDWR;
            flags.set(OFlags::NONBLOCK, is_nonblocking);
            rustix::fs::fcntl_setfl(&*self.device, flags)?;
            self.is_nonblocking = is_nonblocking;
        }
        Ok(())
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
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(len) => return Ok(Some(&buffer[..len])),
            // Interrupted, or the request was cancelled before it was read.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn send(device: BorrowedFd<'_>, answer: &[u8]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::write(device, answer)).map(|_| ())
}
