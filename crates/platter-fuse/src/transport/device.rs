//! The FUSE device: every read is a request, every write an answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::io::Errno;

use super::clone::clone;
use super::exchange::{Exchange, Outcome};
use super::greeting::{Greeting, greet};
use super::notice::{self, Notice};
use super::protocol::{InitFlags, InitOut, OUT_HEADER_BYTES, OutHeader, REQUEST_OVERHEAD_BYTES};
use crate::server::Server;
use zerocopy::IntoBytes;

/// The most threads that are started unasked.
const THREADS_MAX: usize = 16;

/// A connection to the kernel that was greeted and can serve.
#[derive(Debug)]
pub(crate) struct Connection {
    server: Arc<Server>,
    device: OwnedFd,
    agreed: InitFlags,
}

impl Connection {
    pub(super) fn greet(server: Arc<Server>, device: OwnedFd) -> io::Result<Self> {
        let mut buffer = vec![0; request_bytes(&server)];
        loop {
            let Some(request) = receive(device.as_fd(), &mut buffer)? else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            match greet(&server, request)? {
                Greeting::Again(unique, out) => answer_greeting(&device, unique, &out)?,
                Greeting::Agreed(unique, out, agreed) => {
                    answer_greeting(&device, unique, &out)?;
                    return Ok(Self {
                        server,
                        device,
                        agreed,
                    });
                }
            }
        }
    }

    /// Serves until the mount is gone.
    pub(crate) fn serve(&self) -> io::Result<()> {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let asked = self.server.options().threads;
        let threads = asked.unwrap_or(processors.clamp(2, THREADS_MAX)).max(1);
        let (notices, to_give) = channel();
        thread::scope(|scope| {
            let giver = thread::Builder::new().name("platter-notices".to_owned());
            let server = &*self.server;
            giver.spawn_scoped(scope, move || {
                notice::give(server, self.device.as_fd(), &to_give);
            })?;
            let mut others = Vec::new();
            for number in 1..threads {
                let worker = thread::Builder::new().name(format!("platter-fuse-{number}"));
                let notices = notices.clone();
                others.push(worker.spawn_scoped(scope, move || self.work(&notices))?);
            }
            let mut result = self.work(&notices);
            drop(notices);
            for other in others {
                let panicked = || Err(io::Error::other("a serving thread broke down"));
                result = result.and(other.join().unwrap_or_else(|_| panicked()));
            }
            result
        })
    }

    /// Answers requests until the mount is gone.
    fn work(&self, notices: &Sender<Notice>) -> io::Result<()> {
        // Sharing one queue is slower, and nothing else.
        let own = clone(self.device.as_fd()).or_else(|_| self.device.try_clone())?;
        let device = Arc::new(own);
        let mut exchange = Exchange::new(&self.server, self.agreed);
        let mut buffer = vec![0; request_bytes(&self.server)];
        while let Some(request) = receive(device.as_fd(), &mut buffer)? {
            let answer = match exchange.answer(request) {
                Outcome::Answer(answer) => answer,
                Outcome::Nothing => continue,
                Outcome::Later(later) => {
                    give(notices, Notice::Later(later, Arc::clone(&device)));
                    continue;
                }
            };
            match send(device.as_fd(), answer) {
                Ok(()) => {}
                // The caller was interrupted and waits no more.
                Err(Errno::NOENT) => exchange.lost(),
                Err(Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if let Some(notice) = exchange.take_notice() {
                give(notices, notice);
            }
        }
        Ok(())
    }
}

/// Leaves a notice to the thread that gives them, which is there as long as there are others.
fn give(notices: &Sender<Notice>, notice: Notice) {
    let sent = notices.send(notice);
    debug_assert!(sent.is_ok(), "the thread ends after those who send");
}

/// Bytes that the longest request has.
fn request_bytes(server: &Server) -> usize {
    server.options().request_bytes_max as usize + REQUEST_OVERHEAD_BYTES
}

/// The next request; `None` when the mount is gone.
fn receive<'b>(device: BorrowedFd<'_>, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(len) => return Ok(Some(&buffer[..len])),
            // Interrupted, or the request was taken back before it was read.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn send(device: BorrowedFd<'_>, answer: &[u8]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::write(device, answer)).map(|_| ())
}

fn answer_greeting(device: &OwnedFd, unique: u64, out: &InitOut) -> io::Result<()> {
    let len = OUT_HEADER_BYTES + size_of::<InitOut>();
    let header = OutHeader {
        len: u32::try_from(len).unwrap_or(u32::MAX),
        error: 0,
        unique,
    };
    let mut answer = header.as_bytes().to_vec();
    answer.extend_from_slice(out.bytes());
    Ok(send(device.as_fd(), &answer)?)
}
