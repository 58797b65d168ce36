//! How a mount ended, from the process that served it to `platter umount`.
//!
//! The server listens on a socket in the abstract namespace, which goes with the process, under the
//! number of the mounted filesystem. A process that is going to unmount connects before, and reads how it
//! ended: a digit, 0 for well, and a text. A server that was killed says nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use platter::Escaped;
use platter::escape::unescape;
use platter::vfs::lock::Mutex;
use platter_fuse::Watch;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

/// The number of a mounted filesystem, major and minor.
pub(super) type DeviceNumber = (u32, u32);

/// The longest text that is sent.
const TEXT_BYTES_MAX: usize = 4096;
/// How many may wait at once; further ones learn nothing.
const WAITING_MAX: usize = 64;

/// How often the name is asked for while the server of an earlier mount has it, which gives it up as
/// soon as that mount is gone.
const BIND_TRIES_MAX: u32 = 50;
const BIND_TRY_PAUSE: Duration = Duration::from_millis(20);

const ENDED_WELL: u8 = b'0';
const FAILED: u8 = b'1';

/// How a mount ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All is in the image.
    Complete,
    /// Something may be missing: why.
    Failed(String),
    /// The server was killed, or is another program.
    Unknown,
}

/// The processes that wait for the end of a mount.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Until the mount is gone.
    listener: Option<UnixListener>,
    waiting: Vec<UnixStream>,
}

impl Waiting {
    /// Lets others wait for the end of the mount with this number.
    ///
    /// # Errors
    /// Where there is no such socket to be had, they learn nothing.
    pub(super) fn listen(number: DeviceNumber, mount: Watch) -> io::Result<Self> {
        let address = address(number)?;
        let mut tries = 0;
        let listener = loop {
            tries += 1;
            match UnixListener::bind_addr(&address) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && tries < BIND_TRIES_MAX => {
                    sleep(BIND_TRY_PAUSE);
                }
                bound => break bound?,
            }
        };
        listener.set_nonblocking(true)?;
        let polled = listener.try_clone()?;
        let state = Arc::new(Mutex::new(State {
            listener: Some(listener),
            waiting: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        let accept = move || {
            loop {
                let mut events = [
                    PollFd::new(&polled, PollFlags::IN),
                    PollFd::new(&mount, PollFlags::empty()),
                ];
                let is_ended = match poll(&mut events, None) {
                    Ok(_) => events[1].revents().contains(PollFlags::ERR),
                    Err(Errno::INTR) => continue,
                    Err(_) => true,
                };
                let mut state = shared.lock();
                state.accept();
                if is_ended {
                    state.listener = None;
                }
                if state.listener.is_none() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("platter-outcome".to_owned())
            .spawn(accept)?;
        Ok(Self(state))
    }

    /// Sends how the mount ended. It is final for a waiting process once this process has exited.
    pub(super) fn send(&self, outcome: &Outcome) {
        let (word, text) = match outcome {
            Outcome::Complete => (ENDED_WELL, ""),
            Outcome::Failed(text) => (FAILED, text.as_str()),
            Outcome::Unknown => return,
        };
        let mut message = vec![word];
        message.extend(text.bytes().take(TEXT_BYTES_MAX));
        let mut state = self.0.lock();
        state.accept();
        state.listener = None;
        for stream in &mut state.waiting {
            // It takes that much, or its other end is closed.
            let _ = stream.write_all(&message);
        }
    }
}

impl State {
    /// Accepts all pending connections, and drops those that the other side has closed.
    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.waiting.retain_mut(|stream| {
            let read = stream.read(&mut [0]);
            matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        while let Ok((stream, _)) = listener.accept() {
            let own = rustix::process::geteuid();
            let is_allowed =
                socket_peercred(&stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == own);
            let is_ready = stream.set_nonblocking(true).is_ok();
            if is_allowed && is_ready && self.waiting.len() < WAITING_MAX {
                self.waiting.push(stream);
            }
        }
    }
}

/// The server of a mount that still is there.
#[derive(Debug)]
pub(super) struct Server(UnixStream);

impl Server {
    /// Connects to the server of the mount with this number, which belongs to the user `owner`.
    ///
    /// # Errors
    /// `ConnectionRefused` where there is none: it was killed, or runs where it cannot be reached.
    pub(super) fn connect(number: DeviceNumber, owner: Option<u32>) -> io::Result<Self> {
        let stream = UnixStream::connect_addr(&address(number)?)?;
        // Any user may have taken the name.
        let peer = socket_peercred(&stream)?.uid.as_raw();
        if peer != 0 && Some(peer) != owner {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Ok(Self(stream))
    }

    /// Waits until the server has ended, and returns how the mount ended.
    ///
    /// # Errors
    /// `WouldBlock` when that takes longer than `limit`.
    pub(super) fn wait(mut self, limit: Duration) -> io::Result<Outcome> {
        self.0.set_read_timeout(Some(limit))?;
        let mut message = Vec::new();
        let read = (&mut self.0)
            .take(TEXT_BYTES_MAX as u64 + 1)
            .read_to_end(&mut message);
        match read {
            Ok(_) => {}
            // A caller that was refused, or whose server was killed, reads nothing.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => return Err(error),
        }
        let text = message.get(1..).unwrap_or_default();
        // Names in it are escaped, where the server is an honest one.
        let text = unescape(&String::from_utf8_lossy(text));
        let text = Escaped(&text).to_string();
        Ok(match message.first() {
            Some(&ENDED_WELL) => Outcome::Complete,
            Some(&FAILED) => Outcome::Failed(text),
            _ => Outcome::Unknown,
        })
    }
}

pub(super) fn address((major, minor): DeviceNumber) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("platter/{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn state(number: DeviceNumber) -> Waiting {
        let listener = UnixListener::bind_addr(&address(number).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        Waiting(Arc::new(Mutex::new(State {
            listener: Some(listener),
            waiting: Vec::new(),
        })))
    }

    #[test]
    fn outcome_has_no_control_characters() {
        for (salt, sent, received) in [
            (4, "a\\nb: \\\\: \\033: full", "a\\nb: \\\\: \\033: full"),
            (5, "\u{1b}[31m\n", "\\033[31m\\n"),
        ] {
            let waiting = state(number(salt));
            let own = rustix::process::geteuid().as_raw();
            let server = Server::connect(number(salt), Some(own)).unwrap();
            waiting.send(&Outcome::Failed(sent.into()));
            drop(waiting);
            let outcome = server.wait(LIMIT).unwrap();
            assert_eq!(outcome, Outcome::Failed(received.into()));
        }
    }

    /// No filesystem has such a number.
    fn number(salt: u32) -> DeviceNumber {
        (std::process::id() | 1 << 31, salt)
    }

    #[test]
    fn waiting_process_receives_the_outcome() {
        for (salt, outcome) in [
            (1, Outcome::Complete),
            (2, Outcome::Failed("disk.img: flush: No space left".into())),
            (3, Outcome::Unknown),
        ] {
            let waiting = state(number(salt));
            let own = rustix::process::geteuid().as_raw();
            let first = Server::connect(number(salt), Some(own)).unwrap();
            let second = Server::connect(number(salt), Some(own)).unwrap();
            waiting.0.lock().accept();
            drop(second);
            let third = Server::connect(number(salt), Some(own)).unwrap();
            waiting.send(&outcome);
            assert!(waiting.0.lock().waiting.len() <= 2);
            drop(waiting);
            assert_eq!(first.wait(LIMIT).unwrap(), outcome);
            assert_eq!(third.wait(LIMIT).unwrap(), outcome);
            let gone = Server::connect(number(salt), Some(own)).unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::ConnectionRefused);
        }
    }
}
