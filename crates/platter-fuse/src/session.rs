//! A mounted filesystem from the mount to its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use platter_vfs::lock::{Mutex, rank};
use platter_vfs::{Error, Filesystem, InodeId, MountedDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::attach::{self, AttachError, Attachment, WhenBusy};
use crate::server::Server;
use crate::{MountOptions, OptionError, Statistics, transport};

/// How long the users of a mount that was detached by a signal have to finish.
const GRACE: Duration = Duration::from_secs(2);

/// How often a session that is waited for asks whether the kernel is gone, which all its threads may miss.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Why a filesystem was not mounted, or not unmounted in order.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The options contradict each other.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The directory cannot be mounted on or freed.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The filesystem itself failed.
    #[error(transparent)]
    Filesystem(#[from] Error),
    /// The connection to the kernel broke.
    #[error("the connection to the kernel broke: {0}")]
    Connection(#[source] io::Error),
    /// A signal handler or a thread could not be set up.
    #[error("cannot serve: {0}")]
    Setup(#[source] io::Error),
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was unmounted.
    Unmounted,
    /// This signal ended it.
    Signal(i32),
}

enum Event {
    Served(io::Result<()>),
    Signal(i32),
}

/// A filesystem being served. Dropping it unmounts.
#[derive(Debug)]
pub struct Session {
    server: Arc<Server>,
    attachment: Arc<Attachment>,
    /// The kernel's end of the connection.
    device: OwnedFd,
    /// Locked only so that a session can be shared.
    events: Mutex<Receiver<Event>, { rank(0, 0) }>,
    sender: Sender<Event>,
    stage: Stage,
    uses_io_uring: bool,
    _signals: Option<SignalThread>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Mounted, but requests are not answered yet.
    Attached,
    Serving,
    Offline,
}

/// Unmounts a session from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    attachment: Arc<Attachment>,
}

/// Mounts `fs` on the directory `mountpoint` and serves it on threads of its own.
///
/// A read-only filesystem is mounted read-only whatever the options say.
pub fn mount(
    fs: Arc<dyn Filesystem>,
    mountpoint: &Path,
    mut options: MountOptions,
) -> Result<Session, MountError> {
    options.validate()?;
    options.read_only |= fs.is_read_only();
    let checks_permissions = !options.no_permission_checks;
    let server = Arc::new(Server::new(fs, options)?);
    let (sender, events) = channel();
    let signals = server
        .options()
        .end_on_signals
        .then(|| SignalThread::start(sender.clone()));
    let signals = signals.transpose().map_err(MountError::Setup)?;
    let (device, attachment) = attach::attach(mountpoint, server.options(), checks_permissions)?;
    server.set_device(attachment.device());
    let watched = match device.try_clone() {
        Ok(watched) => watched,
        Err(error) => {
            // Unmounting may need a descriptor.
            drop(device);
            let _ = attachment.detach(WhenBusy::Detach);
            return Err(MountError::Setup(error));
        }
    };
    // From here on its drop undoes the mount.
    let mut session = Session {
        server,
        attachment: Arc::new(attachment),
        device: watched,
        events: Mutex::new(events),
        sender,
        stage: Stage::Attached,
        uses_io_uring: false,
        _signals: signals,
    };
    let connection = transport::connect(Arc::clone(&session.server), device);
    let connection = connection.map_err(MountError::Connection)?;
    session.uses_io_uring = connection.uses_rings();
    let sender = session.sender.clone();
    let (begin, begun) = channel();
    let serve = move || {
        // The session may have given up waiting.
        let _ = sender.send(Event::Served(connection.serve(&begin)));
    };
    let thread = thread::Builder::new().name("platter-fuse".to_owned());
    thread.spawn(serve).map_err(MountError::Setup)?;
    session.stage = Stage::Serving;
    if begun.recv().is_err() {
        session.wait()?;
        let ended = io::ErrorKind::Interrupted.into();
        return Err(MountError::Setup(ended));
    }
    session.attachment.raise_readahead();
    Ok(session)
}

impl Session {
    /// Serves until the filesystem is unmounted, or a signal comes where the options say so, then brings the
    /// filesystem to rest.
    pub fn join(mut self) -> Result<Ended, MountError> {
        self.wait()
    }

    /// Unmounts and brings the filesystem to rest.
    ///
    /// # Errors
    /// When files are in use, it stays mounted and goes on being served.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        self.attachment.detach(WhenBusy::Refuse)?;
        self.thaw();
        self.wait().map(|_| ())
    }

    /// Something to unmount it by from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            attachment: Arc::clone(&self.attachment),
        }
    }

    /// Returns a notifier, by which changes made without the kernel are reported to it.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Ok(Notifier {
            server: Arc::clone(&self.server),
            device: self.device.try_clone()?,
        })
    }

    /// Something to ask whether the kernel has still mounted it, from another thread.
    pub fn watch(&self) -> io::Result<Watch> {
        self.device.try_clone().map(Watch)
    }

    /// The number of the mounted filesystem, major and minor, as `stat(2)` gives it.
    #[must_use]
    pub fn device_number(&self) -> (u32, u32) {
        let MountedDevice { major, minor } = self.attachment.device();
        (major, minor)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        self.attachment.mountpoint()
    }

    /// Whether requests come over `io_uring(7)`.
    #[must_use]
    pub fn uses_io_uring(&self) -> bool {
        self.uses_io_uring
    }

    /// The requests so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.server.counters().snapshot()
    }

    /// How many inodes the kernel holds besides the root.
    #[must_use]
    pub fn nodes_held(&self) -> usize {
        self.server.nodes_held()
    }

    fn wait(&mut self) -> Result<Ended, MountError> {
        let (served, ended) = match self.next_event() {
            Event::Served(result) => (Some(result), Ended::Unmounted),
            Event::Signal(signal) => {
                self.detach();
                (self.served_within(GRACE), Ended::Signal(signal))
            }
        };
        let rest = self.rest();
        served.unwrap_or(Ok(())).map_err(MountError::Connection)?;
        rest?;
        Ok(ended)
    }

    /// Waits for an event, and thaws the filesystem once the kernel is gone.
    fn next_event(&mut self) -> Event {
        loop {
            match self.events.get_mut().recv_timeout(WATCH_INTERVAL) {
                Ok(event) => return event,
                Err(RecvTimeoutError::Timeout) => {
                    if !is_connected(self.device.as_fd()) {
                        self.thaw();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the session itself holds a sender")
                }
            }
        }
    }

    /// Thaws the filesystem if it is frozen: threads that serve may wait for that, with no caller left to ask for it.
    fn thaw(&self) {
        // An error that ends all writing is returned by the unmount.
        let _ = self.server.fs().thaw();
    }

    /// Detaches the mount, even while it is in use if need be.
    fn detach(&self) {
        if self.attachment.detach(WhenBusy::Refuse).is_err() {
            // What can be done about a mount that cannot even be detached is done by the kernel
            // when our end of the connection closes.
            let _ = self.attachment.detach(WhenBusy::Detach);
        }
        self.thaw();
    }

    /// The outcome of serving, unless it takes longer than `limit` or a further signal comes.
    fn served_within(&mut self, limit: Duration) -> Option<io::Result<()>> {
        match self.events.get_mut().recv_timeout(limit) {
            Ok(Event::Served(result)) => Some(result),
            Ok(Event::Signal(_)) | Err(_) => None,
        }
    }

    /// Brings the filesystem to rest after serving, and takes off a mount that lost its server.
    fn rest(&mut self) -> Result<(), Error> {
        self.stage = Stage::Offline;
        let _ = self.attachment.detach(WhenBusy::Detach);
        // Inodes that are dropped may be deleted.
        self.thaw();
        self.server.kernel_gone();
        self.server.fs().unmount()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        match self.stage {
            Stage::Attached => self.detach(),
            Stage::Serving => {
                self.detach();
                self.served_within(GRACE);
                // No caller is left to return an error to; `join` and `unmount` do return it.
                let _ = self.rest();
            }
            Stage::Offline => {}
        }
    }
}

impl Unmounter {
    /// Unmounts, unless files are in use.
    pub fn unmount(&self) -> Result<(), MountError> {
        Ok(self.attachment.detach(WhenBusy::Refuse)?)
    }

    /// Whether it is mounted where it was, and nothing over it. It may be mounted elsewhere as well,
    /// in another namespace.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.attachment.is_attached()
    }

    /// Takes the mount out of sight; files in use are served until they are closed.
    pub fn detach(&self) -> Result<(), MountError> {
        Ok(self.attachment.detach(WhenBusy::Detach)?)
    }
}

/// Notifies the kernel of names that changed without it: it remembers names, found or not, for as long as
/// it is mounted. Not to be used while a request is answered: the kernel may wait for the answer first.
#[derive(Debug)]
pub struct Notifier {
    server: Arc<Server>,
    device: OwnedFd,
}

impl Notifier {
    /// `name` in the directory `dir` names something else than before: it was made, removed or replaced.
    pub fn name_changed(&self, dir: InodeId, name: &[u8]) {
        // What it does not hold it has no names of.
        if let Some(dir) = self.server.held(dir) {
            transport::drop_entry(self.device.as_fd(), dir, name);
        }
    }

    /// Notifies the kernel, and programs that watch the file, that `name` in the directory `dir` no longer
    /// names `child`.
    pub fn name_removed(&self, dir: InodeId, name: &[u8], child: InodeId) {
        match (self.server.held(dir), self.server.held(child)) {
            (Some(dir), Some(child)) => {
                transport::drop_child(self.device.as_fd(), dir, name, child);
            }
            (Some(_), None) => self.name_changed(dir, name),
            (None, _) => {}
        }
    }
}

/// Reports whether the kernel still has a filesystem mounted. Its descriptor polls with an error from
/// the moment on that the last mount of it is gone.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Whether it is mounted, or its mount is detached and in use.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        is_connected(self.0.as_fd())
    }
}

fn is_connected(device: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&device, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now)));
    found.is_ok() && !polled[0].revents().contains(PollFlags::ERR)
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends signals to a session as events.
#[derive(Debug)]
struct SignalThread {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalThread {
    fn start(sender: Sender<Event>) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let thread = thread::Builder::new().name("platter-signals".to_owned());
        let thread = thread.spawn(move || {
            for signal in signals.forever() {
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It only sends; a panic there would have nothing to report.
            let _ = thread.join();
        }
    }
}
