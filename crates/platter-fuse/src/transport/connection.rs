//! A connection to the kernel, from `FUSE_INIT` to the end of the mount, and its serving threads:
//! over `io_uring` if the kernel offers it, else over the device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use zerocopy::IntoBytes;

use super::device::{self, Share, receive, request_bytes, send};
use super::greeting::{Greeting, greet};
use super::notice::{self, Notice, Notices};
use super::protocol::{InitFlags, InitOut, OUT_HEADER_BYTES, OutHeader};
use super::ring::Rings;
use crate::server::Server;

/// Maximum number of threads started by default.
const THREADS_MAX: usize = 16;

/// An initialized connection to the kernel.
#[derive(Debug)]
pub(crate) struct Connection {
    server: Arc<Server>,
    device: OwnedFd,
    agreed: InitFlags,
    /// Set if the kernel agreed to use them.
    rings: Option<Rings>,
    /// Number of threads of the device that may block in the kernel: one must remain that does not.
    may_wait: AtomicUsize,
}

impl Connection {
    pub(super) fn greet(server: Arc<Server>, device: OwnedFd) -> io::Result<Self> {
        let mut buffer = vec![0; request_bytes(&server)];
        loop {
            let Some(request) = receive(device.as_fd(), &mut buffer)? else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let mut rings = None;
            let make_rings = || {
                // Without permission for io_uring, the device is used.
                rings = Rings::new(&server).ok();
                rings.is_some()
            };
            match greet(&server, request, make_rings)? {
                Greeting::Again(unique, out) => answer_greeting(&device, unique, &out)?,
                Greeting::Agreed(unique, out, agreed) => {
                    answer_greeting(&device, unique, &out)?;
                    return Ok(Self {
                        server,
                        device,
                        agreed,
                        rings,
                        may_wait: AtomicUsize::new(0),
                    });
                }
            }
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    pub(super) fn agreed(&self) -> InitFlags {
        self.agreed
    }

    /// Whether requests arrive through `io_uring(7)`.
    pub(crate) fn uses_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// Calls `wait`, which blocks in the kernel, if another thread serves the device meanwhile.
    /// Returns whether it was called.
    pub(super) fn while_others_serve(&self, wait: impl FnOnce()) -> bool {
        let one_less = |threads: usize| threads.checked_sub(1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        if self.may_wait.fetch_update(set, fetch, one_less).is_err() {
            return false;
        }
        wait();
        self.may_wait.fetch_add(1, set);
        true
    }

    /// Serves until the mount is gone, and signals `begin` at the start.
    pub(crate) fn serve(&self, begin: &Sender<()>) -> io::Result<()> {
        let (notices, [of_pages, of_names]) = Notices::new();
        let announces_names = self.server.announces_names();
        // The notice threads end when the last sender is dropped.
        thread::scope(move |scope| {
            let start = |name: &str, to_give: Receiver<Notice>| {
                let giver = thread::Builder::new().name(name.to_owned());
                let give = move || notice::give(&self.server, self.device.as_fd(), &to_give);
                giver.spawn_scoped(scope, give).map(drop)
            };
            start("platter-notices", of_pages)?;
            if announces_names {
                let started = start("platter-names", of_names);
                // Without it, only names that were moved to where case folds are kept too long.
                if self.server.has_subvolumes() {
                    started?;
                }
            }
            // The receiver may have given up.
            let _ = begin.send(());
            let Some(rings) = &self.rings else {
                return self.serve_device(&notices);
            };
            let left = rings.serve(self, scope, &notices);
            device::work(self, left, &notices)
        })
    }

    fn serve_device(&self, notices: &Notices) -> io::Result<()> {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let asked = self.server.options().threads;
        let threads = asked.unwrap_or(processors.clamp(2, THREADS_MAX)).max(1);
        thread::scope(|scope| {
            let mut others = Vec::new();
            for number in 1..threads {
                let worker = thread::Builder::new().name(format!("platter-fuse-{number}"));
                let notices = notices.clone();
                let work = move || device::work(self, Share::All, &notices);
                // Fewer threads only cost speed.
                others.extend(worker.spawn_scoped(scope, work).ok());
            }
            self.may_wait.store(others.len(), Ordering::Release);
            let mut result = device::work(self, Share::All, notices);
            for other in others {
                let panicked = || Err(io::Error::other("a serving thread broke down"));
                result = result.and(other.join().unwrap_or_else(|_| panicked()));
            }
            result
        })
    }
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
