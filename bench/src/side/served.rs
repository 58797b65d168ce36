//! Our own FUSE server in a process of its own, which reports its counts on request.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use platter::Volume;
use platter::vfs::{Filesystem, SystemClock};
use platter_fuse::{MountOptions, Session};
use platter_memfs::{MemFs, MemFsLimits};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;

use super::{Asked, Ground, Live, library, mountpoint};
use crate::child;
use crate::place::{Directory, HostDir};

/// Asks a server for its counts. It exits when its input is closed.
const QUESTION: &str = "counts";
const READY: &str = "ready";
/// Only the superuser can set it, and it is off after a boot.
const RINGS_OFFERED: &str = "/sys/module/fuse/parameters/enable_uring";
const UNMOUNTS_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// An empty filesystem in memory.
    Memory,
    /// The same over the device where there are rings.
    MemoryByDevice,
    /// An image.
    Image,
    /// An image, over the device where there are rings.
    ImageByDevice,
    /// An image, with `noperm`.
    ImageUnchecked,
    /// An image, with `writeback=on`.
    ImageGathered,
}

pub(super) struct Served {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    mountpoint: PathBuf,
}

/// Input of the serving process.
#[derive(Serialize, Deserialize)]
struct Orders {
    kind: Kind,
    image: PathBuf,
    format: FsType,
    mount: Option<String>,
    dir: PathBuf,
    mountpoint: PathBuf,
    cache_bytes: u64,
}

impl Served {
    pub(super) fn start(kind: Kind, ground: &Ground) -> Result<Self> {
        let mountpoint = ground.mountpoint()?;
        let orders = Orders {
            kind,
            image: ground.image.clone(),
            format: ground.format,
            mount: ground.mount.clone(),
            dir: ground.dir.clone(),
            mountpoint: mountpoint.clone(),
            cache_bytes: ground.cache_bytes,
        };
        let mut process = child::command("serve", &orders)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt from the terminal ends the requesting process, and the server when its input is closed: it has
            // a mount and a parameter of the kernel to put back.
            .process_group(0)
            .spawn()?;
        let questions = process.stdin.take().context("a pipe")?;
        let mut answers = BufReader::new(process.stdout.take().context("a pipe")?);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(line.trim_end() == READY, "the server said '{line}'");
        Ok(Self {
            process,
            questions,
            answers,
            mountpoint,
        })
    }
}

impl Live for Served {
    fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(Box::new(HostDir::open(&self.mountpoint)?))
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.mountpoint.clone())
    }

    fn server(&self) -> Option<u32> {
        Some(self.process.id())
    }

    fn asked(&mut self) -> Result<Asked> {
        writeln!(self.questions, "{QUESTION}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn end(self: Box<Self>) -> Result<()> {
        let Self {
            mut process,
            questions,
            mountpoint,
            ..
        } = *self;
        mountpoint::take_off(&mountpoint)?;
        drop(questions);
        let status = process.wait()?;
        ensure!(status.success(), "the server ended: {status}");
        Ok(())
    }
}

/// The serving process.
pub(crate) fn serve(orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders)?;
    let (fs, volume): (Arc<dyn Filesystem>, Option<Volume>) = match orders.kind {
        Kind::Memory | Kind::MemoryByDevice => {
            let limits = MemFsLimits::default();
            let fs = MemFs::new(Arc::new(SystemClock::new()), limits);
            (Arc::new(fs), None)
        }
        Kind::Image | Kind::ImageByDevice | Kind::ImageUnchecked | Kind::ImageGathered => {
            let volume = library::open(&Ground {
                dir: orders.dir,
                image: orders.image,
                format: orders.format,
                mount: orders.mount,
                cache_bytes: orders.cache_bytes,
            })?;
            (Arc::clone(volume.filesystem()), Some(volume))
        }
    };
    let options = MountOptions {
        io_uring: !matches!(orders.kind, Kind::ImageByDevice | Kind::MemoryByDevice),
        no_permission_checks: orders.kind == Kind::ImageUnchecked,
        writeback: orders.kind == Kind::ImageGathered,
        ..MountOptions::default()
    };
    let mut session =
        with_rings_offered(|| Ok(platter_fuse::mount(fs, &orders.mountpoint, options)?))?;
    // The receiver may have exited.
    writeln!(std::io::stdout(), "{READY}")?;
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            QUESTION => println!(
                "{}",
                serde_json::to_string(&asked(&session, volume.as_ref()))?
            ),
            other => bail!("'{other}' is no question"),
        }
    }
    // The requesting process has unmounted already, or is dead.
    for _ in 0..UNMOUNTS_MAX {
        if session.unmount().is_ok() {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(session.unmount()?)
}

/// Makes the kernel offer `io_uring` to mounts meanwhile, where it knows of them.
fn with_rings_offered<T>(mount: impl FnOnce() -> Result<T>) -> Result<T> {
    let Ok(before) = std::fs::read(RINGS_OFFERED) else {
        return mount();
    };
    std::fs::write(RINGS_OFFERED, "Y").context(RINGS_OFFERED)?;
    let mounted = mount();
    std::fs::write(RINGS_OFFERED, before).context(RINGS_OFFERED)?;
    mounted
}

fn asked(session: &Session, volume: Option<&Volume>) -> Asked {
    let statistics = session.statistics();
    let named = |(operation, count): (platter_fuse::Operation, u64)| {
        let name = operation.name().to_owned();
        (name, count)
    };
    Asked {
        fuse: statistics.iter().map(named).collect(),
        device: volume.and_then(Volume::request_counts).map(Into::into),
        by_rings: Some(session.uses_io_uring()),
    }
}
