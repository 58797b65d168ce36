//! Commands on the devices of the filesystem. They take long, so each runs in a thread of its own, and callers ask how far
//! it has come.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use platter_vfs::devices::{Balance, Moved, NewLength, Resized, Scrubbed};
use platter_vfs::lock::{Mutex, rank};
use platter_vfs::{
    BlockDevice, CheckProgress, CheckSink, Condition, Devices, Error, Filesystem, Finding,
    FindingRanges,
};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::{Answer, Server};
use crate::DeviceOpener;
use crate::ioctl::{
    CANCELLED, DeviceAction, DeviceCommand, DeviceStatus, DevicesCommand, ENDED, FORCED,
    HAS_DEVICE, LARGER, OF_DATA, OF_METADATA, OF_SYSTEM, REPAIRS, argument, put_part,
};

/// What was found and not asked for, at most.
const FOUND_MAX: usize = 1000;

/// The command that runs, or ran last.
#[derive(Debug, Default)]
pub(super) struct LastJob {
    /// With its number.
    job: Mutex<(u64, Option<Arc<Job>>), { rank(0, 3) }>,
}

/// A command.
#[derive(Debug, Default)]
struct Job {
    is_cancelled: AtomicBool,
    /// How far it is.
    state: Mutex<JobState>,
}

#[derive(Debug, Default)]
struct JobState {
    done: u64,
    total: u64,
    found: VecDeque<String>,
    outcome: Option<Result<Outcome, Failure>>,
}

/// Why something failed that its caller asks for later.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) errno: Errno,
    /// In words.
    pub(super) message: String,
}

impl Failure {
    /// That of a panic, which is a bug, and costs the caller the answer.
    pub(super) fn of_a_panic() -> Self {
        Self {
            errno: Errno::IO,
            message: "the thread panicked (a bug in platter)".to_owned(),
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error: Error = error.into();
        Self {
            errno: error.errno(),
            message: error.to_string(),
        }
    }
}

#[derive(Debug, Clone)]
enum Outcome {
    Moved(Moved),
    Resized(Resized),
    Scrubbed(Scrubbed),
    Added(u64),
}

/// Carries out an ioctl about commands on devices.
pub(super) fn carry_out(server: &Server, command: DevicesCommand, input: &[u8]) -> Answer<Vec<u8>> {
    server.fs.devices().ok_or(Errno::NOTTY)?;
    match command {
        DevicesCommand::Start => start(server, &argument(input)?),
        DevicesCommand::Status => status(server, argument::<DeviceStatus>(input)?.job),
        DevicesCommand::Cancel => {
            if let Some(job) = &server.devices.job.lock().1 {
                job.is_cancelled.store(true, Ordering::Relaxed);
            }
            Ok(Vec::new())
        }
    }
}

fn start(server: &Server, command: &DeviceCommand) -> Answer<Vec<u8>> {
    let action = DeviceAction::decode(command.action).ok_or(Errno::INVAL)?;
    server.must_not_be_shut_down()?;
    if action != DeviceAction::Scrub || command.flags & REPAIRS != 0 {
        server.must_be_mounted_writable()?;
    }
    let request = Request {
        fs: Arc::clone(&server.fs),
        opener: server.options.open_device.clone(),
        action,
        command: *command,
    };
    let mut last = server.devices.job.lock();
    let has_ended = |job: &Arc<Job>| job.state.lock().outcome.is_some();
    if !last.1.as_ref().is_none_or(has_ended) {
        return Err(Errno::BUSY);
    }
    let job = Arc::new(Job::default());
    let run = {
        let job = Arc::clone(&job);
        move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| request.run(&job)));
            let outcome = outcome.unwrap_or_else(|_| Err(Failure::of_a_panic()));
            job.state.lock().outcome = Some(outcome);
        }
    };
    let thread = thread::Builder::new().name("platter-devices".to_owned());
    thread.spawn(run).map_err(|_| Errno::AGAIN)?;
    *last = (last.0 + 1, Some(job));
    let answer = DeviceCommand {
        job: last.0,
        ..*command
    };
    Ok(answer.as_bytes().to_vec())
}

/// # Errors
/// `ESTALE` where another one was given meanwhile.
fn status(server: &Server, number: u64) -> Answer<Vec<u8>> {
    let last = server.devices.job.lock();
    let job = last.1.as_ref().filter(|_| last.0 == number);
    let job = job.ok_or(Errno::STALE)?;
    let mut state = job.state.lock();
    let mut status = DeviceStatus {
        job: number,
        done: state.done,
        total: state.total,
        ..DeviceStatus::new_zeroed()
    };
    let mut at = 0;
    while let Some(line) = state.found.front()
        && at + line.len() + 2 <= status.found.len()
    {
        let end = at + line.len();
        status.found[at..end].copy_from_slice(line.as_bytes());
        status.found[end] = b'\n';
        at = end + 1;
        state.found.pop_front();
    }
    if !state.found.is_empty() {
        return Ok(status.as_bytes().to_vec());
    }
    match &state.outcome {
        None => {}
        Some(Err(failure)) => {
            status.flags |= ENDED;
            status.errno = failure.errno.raw_os_error().unsigned_abs();
            put_part(&mut status.error, failure.message.as_bytes());
        }
        Some(Ok(outcome)) => {
            status.flags |= ENDED;
            put_outcome(&mut status, outcome);
        }
    }
    Ok(status.as_bytes().to_vec())
}

fn put_outcome(status: &mut DeviceStatus, outcome: &Outcome) {
    let moved = match outcome {
        Outcome::Moved(moved) => *moved,
        Outcome::Resized(resized) => {
            status.before_bytes = resized.before_bytes;
            status.after_bytes = resized.after_bytes;
            resized.moved
        }
        Outcome::Scrubbed(scrubbed) => {
            status.errors = scrubbed.errors;
            status.uncorrectable = scrubbed.uncorrectable;
            if scrubbed.is_cancelled {
                status.flags |= CANCELLED;
            }
            if scrubbed.repairs {
                status.flags |= REPAIRS;
            }
            for (place, (name, count)) in status.counter.iter_mut().zip(&scrubbed.counters) {
                put_part(&mut place.name, name.as_bytes());
                place.count = *count;
                status.counters += 1;
            }
            Moved::default()
        }
        Outcome::Added(device) => {
            status.device = *device;
            Moved::default()
        }
    };
    status.considered = moved.considered;
    status.moved = moved.moved;
    status.removed = moved.removed;
    if moved.is_cancelled {
        status.flags |= CANCELLED;
    }
}

/// A command that was asked for.
struct Request {
    fs: Arc<dyn Filesystem>,
    opener: Option<DeviceOpener>,
    action: DeviceAction,
    command: DeviceCommand,
}

impl Request {
    fn run(&self, job: &Job) -> Result<Outcome, Failure> {
        let devices = self.fs.devices().ok_or(Condition::NotSupported)?;
        let command = &self.command;
        let has = |flag| command.flags & flag != 0;
        let device = command.device;
        let moving = &mut |done, total| job.update(done, total);
        Ok(match self.action {
            DeviceAction::Scrub => {
                let mut sink = Listener::new(job, false);
                let scrubbed = devices.scrub(has(REPAIRS), &mut sink);
                sink.finish();
                Outcome::Scrubbed(scrubbed?)
            }
            DeviceAction::Balance => {
                let invalid = |_| Error::from(Condition::InvalidArgument);
                let texts: [&[u8]; 3] = command.texts().map_err(invalid)?;
                let filters = |flag, index: usize| {
                    let text = texts.get(index).filter(|_| has(flag));
                    text.map(|text| String::from_utf8_lossy(text).into_owned())
                };
                let balance = Balance {
                    data: filters(OF_DATA, 0),
                    metadata: filters(OF_METADATA, 1),
                    system: filters(OF_SYSTEM, 2),
                    is_forced: has(FORCED),
                };
                Outcome::Moved(devices.balance(&balance, moving)?)
            }
            DeviceAction::Add => self.add(devices)?,
            DeviceAction::Remove => Outcome::Moved(devices.remove_device(device, moving)?),
            DeviceAction::Replace => {
                let target = self.open()?;
                let mut sink = Listener::new(job, true);
                Outcome::Scrubbed(devices.replace_device(device, &target, &mut sink)?)
            }
            DeviceAction::Resize => {
                let device = has(HAS_DEVICE).then_some(device);
                let length = match command.len_bytes {
                    u64::MAX => NewLength::Whole,
                    bytes if has(LARGER) => NewLength::Larger(bytes),
                    bytes => NewLength::Bytes(bytes),
                };
                Outcome::Resized(devices.resize_device(device, length, moving)?)
            }
        })
    }

    fn add(&self, devices: &dyn Devices) -> Result<Outcome, Failure> {
        let device = self.open()?;
        Ok(Outcome::Added(devices.add_device(&device)?))
    }

    /// Opens the device that the caller names, which may do what the server may.
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Failure> {
        let invalid = |_| Failure::from(Condition::InvalidArgument);
        let [path]: [&[u8]; 1] = self.command.texts().map_err(invalid)?;
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        if !path.is_absolute() {
            return Err(Condition::InvalidArgument.into());
        }
        let opener = self.opener.as_ref().ok_or(Condition::NotSupported)?;
        let opened = opener.open(path, self.command.flags & FORCED != 0);
        opened.map_err(|error| Failure {
            errno: Errno::from_io_error(&error).unwrap_or(Errno::INVAL),
            message: error.to_string(),
        })
    }
}

impl Job {
    fn update(&self, done: u64, total: u64) -> ControlFlow<()> {
        let mut state = self.state.lock();
        (state.done, state.total) = (done, total);
        if self.is_cancelled.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Keeps what is found for the caller.
struct Listener<'j> {
    job: &'j Job,
    /// What is found is to be expected.
    is_silent: bool,
    ranges: FindingRanges,
    /// Lines that there was no space for.
    left_out: u64,
}

impl<'j> Listener<'j> {
    fn new(job: &'j Job, is_silent: bool) -> Self {
        Self {
            job,
            is_silent,
            ranges: FindingRanges::default(),
            left_out: 0,
        }
    }

    fn add(&mut self, line: impl fmt::Display) {
        let mut state = self.job.state.lock();
        if state.found.len() < FOUND_MAX {
            state.found.push_back(line.to_string());
        } else {
            self.left_out += 1;
        }
    }

    /// Adds what is left.
    fn finish(mut self) {
        while let Some(range) = self.ranges.next_left() {
            self.add(range);
        }
        if self.left_out > 0 {
            let line = format!("and in {} more places", self.left_out);
            self.job.state.lock().found.push_back(line);
        }
    }
}

impl CheckSink for Listener<'_> {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        if !self.is_silent
            && let Some(range) = self.ranges.add(finding)
        {
            self.add(range);
        }
        ControlFlow::Continue(())
    }

    fn progress(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        self.job.update(progress.done, progress.total)
    }
}
