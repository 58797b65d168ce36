//! Send streams of subvolumes. Each is made by a thread of its own, which waits while its caller leaves much of it
//! unread. Callers read what is there in pieces; no thread that serves waits for more.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use platter_vfs::lock::{Condvar, Mutex, MutexGuard, rank};
use platter_vfs::subvolumes::Cancellation;
use platter_vfs::{Clock, Condition, Error, Inode, SystemClock};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::caller::Process;
use super::devices::Failure;
use super::subvolumes::rooted;
use super::{Answer, Caller, Server, report};
use crate::ErrorSink;
use crate::ioctl::{ENDED, SendCommand, SendPiece, SendStart, argument};

/// Streams at once.
const STREAMS_MAX: usize = 16;

/// Bytes of a stream that wait for its caller.
const UNREAD_BYTES_MAX: usize = 512 << 10;

/// What `WouldBlock` means: any of the subvolumes may be the one.
const CHANGED: &str =
    "a subvolume of the stream changed while it was sent, or is being made; send it again";

/// How often a thread looks whether its caller ended.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The send streams of a mount.
#[derive(Debug, Default)]
pub(super) struct SendStreams {
    /// Streams that are running or not fully read.
    table: Arc<Mutex<Table, { rank(0, 3) }>>,
}

#[derive(Debug, Default)]
struct Table {
    /// By their numbers. Each is removed by its thread.
    running: BTreeMap<u64, Running>,
    /// The number of the stream that was begun last.
    last: u64,
    /// No other one is begun.
    is_closed: bool,
}

#[derive(Debug)]
struct Running {
    stream: Arc<Stream>,
    thread: JoinHandle<()>,
}

/// A stream between its thread and its caller.
#[derive(Debug)]
struct Stream {
    caller: Process,
    is_cancelled: AtomicBool,
    /// Begins with it.
    clock: SystemClock,
    /// When its thread looked for the caller last, in milliseconds.
    looked_at: AtomicU64,
    /// What was made and not read.
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StreamState {
    unread: VecDeque<u8>,
    /// Bytes that were read.
    read_bytes: u64,
    outcome: Option<Result<(), Failure>>,
    /// The caller knows the outcome.
    is_read: bool,
}

/// Carries out an ioctl about a stream; one is begun of the subvolume whose root directory `inode` is.
pub(super) fn carry_out(
    server: &Server,
    caller: Caller,
    inode: &dyn Inode,
    command: SendCommand,
    input: &[u8],
) -> Answer<Vec<u8>> {
    match command {
        SendCommand::Start => start(server, caller, inode, &argument(input)?),
        SendCommand::Read => {
            server.must_not_be_shut_down()?;
            let [stream, offset] = argument(input)?;
            let mut piece = SendPiece::request(stream, offset);
            server.sends.get(stream)?.read(&mut piece)?;
            Ok(piece.as_bytes().to_vec())
        }
        SendCommand::End => {
            server.sends.get(argument(input)?)?.cancel();
            Ok(Vec::new())
        }
    }
}

fn start(server: &Server, caller: Caller, inode: &dyn Inode, asked: &SendStart) -> Answer<Vec<u8>> {
    let subvolumes = server.fs.subvolumes().ok_or(Errno::NOTTY)?;
    server.must_not_be_shut_down()?;
    let id = rooted(server, subvolumes, inode)?;
    let mut options = asked.options()?;
    let fs = Arc::clone(&server.fs);
    let sink = server.options.on_error.clone();
    let number = server.sends.start(caller.process()?, move |stream| {
        options.cancellation = Some(Arc::<Stream>::clone(stream));
        let subvolumes = fs.subvolumes().ok_or(Condition::NotSupported)?;
        let sent = subvolumes.send(id, &options, &mut Output(stream));
        outcome(sent, stream, sink.as_ref())
    })?;
    let answer = SendStart {
        stream: number,
        ..*asked
    };
    Ok(answer.as_bytes().to_vec())
}

/// What became of a stream. An error that is more than an ordinary refusal is reported, unless the stream was cancelled.
fn outcome(
    sent: platter_vfs::Result<()>,
    stream: &Stream,
    sink: Option<&ErrorSink>,
) -> Result<(), Failure> {
    sent.map_err(|error| {
        if !stream.has_ended() {
            report(sink, &error);
        }
        failure(error)
    })
}

/// Why a stream was not made, in words that say what to do where that is known.
fn failure(error: Error) -> Failure {
    let is_changed = matches!(error, Error::Condition(Condition::WouldBlock));
    let mut failure = Failure::from(error);
    if is_changed {
        CHANGED.clone_into(&mut failure.message);
    }
    failure
}

impl SendStreams {
    /// Begins a stream for a process, which `make` makes. Returns its number.
    ///
    /// # Errors
    /// `EBUSY` while there are too many; `ESHUTDOWN` after [`cancel_all`](Self::cancel_all).
    fn start<F>(&self, caller: Process, make: F) -> Answer<u64>
    where
        F: FnOnce(&Arc<Stream>) -> Result<(), Failure> + Send + 'static,
    {
        let stream = Arc::new(Stream {
            caller,
            is_cancelled: AtomicBool::new(false),
            clock: SystemClock::new(),
            looked_at: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut table = self.table.lock();
        if table.is_closed {
            return Err(Errno::SHUTDOWN);
        }
        if table.running.len() >= STREAMS_MAX {
            return Err(Errno::BUSY);
        }
        let number = table.last + 1;
        let run = {
            let (all, stream) = (Arc::clone(&self.table), Arc::clone(&stream));
            move || {
                let made = catch_unwind(AssertUnwindSafe(|| make(&stream)));
                let made = made.unwrap_or_else(|_| Err(Failure::of_a_panic()));
                stream.state.lock().outcome = Some(made);
                stream.wait_until_read();
                all.lock().running.remove(&number);
            }
        };
        let thread = thread::Builder::new().name("platter-send".to_owned());
        let thread = thread.spawn(run).map_err(|_| Errno::AGAIN)?;
        table.running.insert(number, Running { stream, thread });
        table.last = number;
        Ok(number)
    }

    /// A stream.
    ///
    /// # Errors
    /// `ESTALE` for one that ended.
    fn get(&self, number: u64) -> Answer<Arc<Stream>> {
        let table = self.table.lock();
        let running = table.running.get(&number).map(|it| &it.stream);
        let stream = running.filter(|stream| !stream.has_ended());
        stream.map(Arc::clone).ok_or(Errno::STALE)
    }

    /// Whether all streams ended, and none begins.
    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        self.table.lock().is_closed
    }

    /// Cancels all streams, and lets none begin.
    pub(super) fn cancel_all(&self) {
        let streams: Vec<_> = {
            let mut table = self.table.lock();
            table.is_closed = true;
            let running = table.running.values();
            running.map(|it| Arc::clone(&it.stream)).collect()
        };
        for stream in streams {
            stream.cancel();
        }
    }

    /// The same, and waits until nothing is read for them any more.
    pub(super) fn end_all(&self) {
        self.cancel_all();
        let running = std::mem::take(&mut self.table.lock().running);
        for running in running.into_values() {
            // What it could panic with has no caller any more.
            let _ = running.thread.join();
        }
    }
}

impl Stream {
    /// Whether it ended early.
    fn has_ended(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Cancels the stream.
    fn cancel(&self) {
        let _state = self.state.lock();
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until the caller reads, and cancels the stream if that ended.
    fn wait(&self, state: &mut MutexGuard<'_, StreamState>) {
        let is_over = self.changed.wait_for(state, WATCH_INTERVAL);
        if is_over {
            self.look_for_caller();
        }
    }

    fn look_for_caller(&self) {
        if self.caller.has_ended() {
            self.is_cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until the caller knows the outcome, or does not want it any more.
    fn wait_until_read(&self) {
        let mut state = self.state.lock();
        while !state.is_read && !self.has_ended() {
            self.wait(&mut state);
        }
    }

    /// Moves as much as there is into an empty piece; without any, the outcome.
    ///
    /// # Errors
    /// `ESTALE` where the caller has more or less of the stream than was read: it is not the only one that reads, or
    /// did not get a piece.
    fn read(&self, piece: &mut SendPiece) -> Answer<()> {
        let state = &mut *self.state.lock();
        if piece.offset != state.read_bytes {
            return Err(Errno::STALE);
        }
        let (front, back) = state.unread.as_slices();
        let count = piece.fill(front) + piece.fill(back);
        state.unread.drain(..count);
        state.read_bytes += count as u64;
        match &state.outcome {
            Some(Ok(())) if state.unread.is_empty() => {
                piece.flags |= ENDED;
                state.is_read = true;
            }
            Some(Err(failure)) if count == 0 => {
                piece.flags |= ENDED;
                piece.errno = failure.errno.raw_os_error().unsigned_abs();
                piece.fill(failure.message.as_bytes());
                state.is_read = true;
            }
            Some(_) | None => {}
        }
        // The thread is woken for much at once.
        if state.is_read || state.unread.len() <= UNREAD_BYTES_MAX / 2 {
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl Cancellation for Stream {
    /// Its thread asks this between two blocks that it reads: it may write nothing for long.
    fn is_cancelled(&self) -> bool {
        let now = u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let looked_at = self.looked_at.load(Ordering::Relaxed);
        if Duration::from_millis(now.saturating_sub(looked_at)) >= WATCH_INTERVAL {
            self.looked_at.store(now, Ordering::Relaxed);
            self.look_for_caller();
        }
        self.has_ended()
    }
}

/// What a stream is written to.
struct Output<'s>(&'s Stream);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state.lock();
        loop {
            if self.0.has_ended() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let space = UNREAD_BYTES_MAX.saturating_sub(state.unread.len());
            let count = bytes.len().min(space);
            if count > 0 || bytes.is_empty() {
                state.unread.extend(&bytes[..count]);
                return Ok(count);
            }
            self.0.wait(&mut state);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use platter_vfs::Unsupported;

    use super::*;

    /// A process, as the caller of requests.
    fn process(pid: u32) -> Process {
        let caller = Caller {
            uid: 0,
            gid: 0,
            pid,
        };
        caller.process().unwrap()
    }

    /// Makes a stream.
    type Make = Box<dyn FnOnce(&Arc<Stream>) -> Result<(), Failure> + Send>;

    /// Begins a stream of this process.
    fn begin<F>(streams: &SendStreams, make: F) -> u64
    where
        F: FnOnce(&Arc<Stream>) -> Result<(), Failure> + Send + 'static,
    {
        streams.start(process(std::process::id()), make).unwrap()
    }

    /// Makes a stream without an end. What is returned has another owner as long as it is made.
    fn endless() -> (Arc<()>, impl FnOnce(&Arc<Stream>) -> Result<(), Failure>) {
        let made = Arc::new(());
        let owned = Arc::clone(&made);
        let make = move |stream: &Arc<Stream>| {
            while Output(stream).write_all(&[7; 10_000]).is_ok() {}
            drop(owned);
            Ok(())
        };
        (made, make)
    }

    /// The next piece, for a caller that has all before it.
    fn piece(streams: &SendStreams, number: u64) -> SendPiece {
        let stream = streams.get(number).unwrap();
        let offset = stream.state.lock().read_bytes;
        let mut piece = SendPiece::request(number, offset);
        stream.read(&mut piece).unwrap();
        piece
    }

    /// Reads to the end.
    fn read(streams: &SendStreams, number: u64) -> (Vec<u8>, SendPiece) {
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            let piece = piece(streams, number);
            if piece.is_last() {
                return (bytes, piece);
            }
            bytes.extend(piece.bytes().unwrap());
            thread::yield_now();
        }
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let mut attempts = 0;
        while !is_so() {
            attempts += 1;
            assert!(attempts < 30_000);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_over(streams: &SendStreams) -> bool {
        streams.table.lock().running.is_empty()
    }

    #[test]
    fn stream_waits_for_its_caller_and_is_read_whole() {
        let streams = SendStreams::default();
        let expected: Vec<u8> = (0..3_000_001_u32).map(|it| (it % 251) as u8).collect();
        let written = expected.clone();
        let number = begin(&streams, move |stream| {
            for part in written.chunks(99_991) {
                Output(stream).write_all(part).unwrap();
            }
            Ok(())
        });
        let stream = streams.get(number).unwrap();
        let unread = || stream.state.lock().unread.len();
        wait_until(|| unread() == UNREAD_BYTES_MAX);
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            assert!(unread() <= UNREAD_BYTES_MAX);
            let piece = piece(&streams, number);
            bytes.extend(piece.bytes().unwrap());
            if piece.is_last() {
                assert_eq!(piece.errno, 0);
                break;
            }
        }
        assert!(bytes == expected);
        wait_until(|| is_over(&streams));
        assert_eq!(streams.get(number).map(drop), Err(Errno::STALE));
    }

    #[test]
    fn piece_is_read_by_a_caller_that_has_those_before() {
        let streams = SendStreams::default();
        let number = begin(&streams, |stream| {
            Output(stream).write_all(b"begun").unwrap();
            Ok(())
        });
        let stream = streams.get(number).unwrap();
        wait_until(|| stream.state.lock().outcome.is_some());
        let read = |offset| {
            let mut piece = SendPiece::request(number, offset);
            stream.read(&mut piece).map(|()| piece)
        };
        assert_eq!(read(1).map(drop), Err(Errno::STALE));
        let piece = read(0).unwrap();
        assert_eq!((piece.bytes(), piece.is_last()), (Ok(&b"begun"[..]), true));
        assert_eq!(read(0).map(drop), Err(Errno::STALE));
        wait_until(|| is_over(&streams));
    }

    #[test]
    fn failure_comes_after_what_was_made_before() {
        let streams = SendStreams::default();
        let number = begin(&streams, |stream| {
            Output(stream).write_all(b"begun").unwrap();
            Err(Condition::NotPermitted.into())
        });
        let (bytes, last) = read(&streams, number);
        assert_eq!(bytes, b"begun");
        assert_eq!(last.errno, Errno::PERM.raw_os_error().unsigned_abs());
        assert_eq!(last.bytes(), Ok(&b"operation not permitted"[..]));
        let number = begin(&streams, |_| panic!("as a test"));
        let (_, last) = read(&streams, number);
        assert_eq!(last.errno, Errno::IO.raw_os_error().unsigned_abs());
        wait_until(|| is_over(&streams));
    }

    #[test]
    fn failure_says_that_a_subvolume_changed() {
        let changed = failure(Condition::WouldBlock.into());
        assert_eq!(changed.errno, Errno::AGAIN);
        assert_eq!(changed.message, CHANGED);
        let refused = failure(Condition::NotPermitted.into());
        assert_eq!(refused.errno, Errno::PERM);
        assert_eq!(refused.message, "operation not permitted");
    }

    #[test]
    fn errors_of_streams_are_reported_unless_cancelled() {
        let reported = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&reported);
        let sink = ErrorSink::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let streams = SendStreams::default();
        let number = begin(&streams, |_| Ok(()));
        let stream = streams.get(number).unwrap();
        let fail = |error: Error| {
            assert!(outcome(Err(error), &stream, Some(&sink)).is_err());
            reported.load(Ordering::Relaxed)
        };
        let unsupported = || -> Error {
            Unsupported {
                filesystem: "btrfs",
                feature: "a test".to_owned(),
                reason: None,
            }
            .into()
        };
        assert_eq!(fail(Condition::NotPermitted.into()), 0);
        assert_eq!(fail(unsupported()), 1);
        stream.cancel();
        assert_eq!(fail(unsupported()), 1);
        wait_until(|| is_over(&streams));
    }

    #[test]
    fn stream_that_is_ended_frees_its_thread() {
        let streams = SendStreams::default();
        let (made, make) = endless();
        let number = begin(&streams, make);
        wait_until(|| piece(&streams, number).count > 0);
        streams.get(number).unwrap().cancel();
        assert_eq!(streams.get(number).map(drop), Err(Errno::STALE));
        wait_until(|| is_over(&streams));
        assert_eq!(Arc::strong_count(&made), 1);
        // Also one that is complete and not read.
        let number = begin(&streams, |_| Ok(()));
        streams.get(number).unwrap().cancel();
        wait_until(|| is_over(&streams));
    }

    #[test]
    fn stream_ends_with_the_process_of_its_caller() {
        let streams = SendStreams::default();
        let (made, make) = endless();
        let start = |make: Make| -> Child {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            streams.start(process(child.id()), make).unwrap();
            child
        };
        let children = [start(Box::new(make)), start(Box::new(|_| Ok(())))];
        thread::sleep(2 * WATCH_INTERVAL);
        assert_eq!(streams.table.lock().running.len(), 2);
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        wait_until(|| is_over(&streams));
        assert_eq!(Arc::strong_count(&made), 1);
    }

    #[test]
    fn stream_without_output_ends_with_its_caller_too() {
        let streams = SendStreams::default();
        let silent = |stream: &Arc<Stream>| -> Result<(), Failure> {
            while !Cancellation::is_cancelled(&**stream) {
                thread::sleep(Duration::from_millis(1));
            }
            Err(Condition::Stale.into())
        };
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        streams.start(process(child.id()), silent).unwrap();
        thread::sleep(2 * WATCH_INTERVAL);
        assert!(!is_over(&streams));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until(|| is_over(&streams));
        let number = begin(&streams, silent);
        streams.get(number).unwrap().cancel();
        wait_until(|| is_over(&streams));
        let number = begin(&streams, silent);
        let stream = streams.get(number).unwrap();
        streams.end_all();
        assert!(stream.state.lock().outcome.is_some());
    }

    #[test]
    fn streams_are_limited_and_end_with_the_mount() {
        let streams = SendStreams::default();
        let all: Vec<_> = (0..STREAMS_MAX).map(|_| endless()).collect();
        let mut owners = Vec::new();
        for (made, make) in all {
            begin(&streams, make);
            owners.push(made);
        }
        let one_more = || streams.start(process(std::process::id()), |_| Ok(()));
        assert_eq!(one_more(), Err(Errno::BUSY));
        streams.cancel_all();
        assert_eq!(one_more(), Err(Errno::SHUTDOWN));
        wait_until(|| is_over(&streams));
        streams.end_all();
        assert!(owners.iter().all(|made| Arc::strong_count(made) == 1));
        assert_eq!(one_more(), Err(Errno::SHUTDOWN));
    }
}
