//! Requests over `io_uring(7)`: each processor has its own queue, served by threads that stay on
//! it, so that a request and its answer do not change processors unless their caller does. `FORGET`
//! and notifications still use the device.

mod entry;
mod affinity;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, Scope};
use std::time::Duration;

use platter_vfs::lock::Mutex;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use self::affinity::CpuAffinity;
use self::entry::{Command, Entry, Ring};
use super::connection::Connection;
use super::device::{self, Share};
use super::exchange::{Exchange, Outcome};
use super::later::Later;
use super::notice::{Asker, Notice, Notices};
use super::protocol::InHeader;
use super::reply::{Answered, REPLY_BYTES_MIN};
use super::request::Request;
use crate::server::{Answer, Server};

/// The kernel requires a queue for each possible processor, and uses none before all are
/// registered. On larger machines that is too much for one mount.
const QUEUES_MAX: usize = 64;
/// The list of possible processors, as in `0-3,8`.
const PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// Minimum number of threads for each queue: one may wait for a device, a lock, or the kernel.
const THREADS: usize = 2;
/// How many more there are where ioctls change names: one waits until the kernel knows of a name, another may have to
/// wait before it answers a caller that holds that up.
const NAME_THREADS: usize = 2;

/// How long the last thread of a queue waits for another to be free, and the polling interval.
const FREE_WAIT: Duration = Duration::from_millis(5);
const FREE_WAITS_MAX: u32 = 100;

/// Rings for all queues, created before `FUSE_INIT` is answered.
#[derive(Debug)]
pub(super) struct Rings(Vec<Queue>);

/// The queue of one processor.
#[derive(Debug)]
struct Queue {
    /// The processor's number.
    number: u16,
    /// The rings, until they are passed to their threads.
    rings: Mutex<Vec<Ring>>,
    /// Threads not blocked in the kernel. The kernel may need one to complete what the others wait
    /// for.
    serving: AtomicUsize,
    /// Threads, the last that serve, that wait for another to be free.
    in_need: AtomicUsize,
}

/// A thread of a queue, and its context.
struct Worker<'env> {
    queue: &'env Queue,
    connection: &'env Connection,
    notices: Notices,
}

impl Rings {
    /// Creates rings; fails if they are not wanted or not permitted.
    pub(super) fn new(server: &Server) -> io::Result<Self> {
        let options = server.options();
        let queues = count(&std::fs::read_to_string(PROCESSORS)?);
        let queues = queues.filter(|queues| (1..=QUEUES_MAX).contains(queues));
        // With writeback caching, too many answers depend on a writeback by the kernel.
        let queues = queues.filter(|_| options.io_uring && !options.writeback);
        let queues = queues.ok_or(io::ErrorKind::Unsupported)?;
        let payload_bytes = (options.request_bytes_max as usize).max(REPLY_BYTES_MIN);
        let of_names = if server.has_subvolumes() {
            NAME_THREADS
        } else {
            0
        };
        let least = THREADS + of_names;
        let threads = options.threads.unwrap_or(least).max(least);
        let queue = |number: usize| {
            let rings = (0..threads).map(|_| Ring::new(payload_bytes));
            Ok(Queue {
                number: u16::try_from(number).unwrap_or(u16::MAX),
                rings: Mutex::new(rings.collect::<io::Result<_>>()?),
                serving: AtomicUsize::new(threads),
                in_need: AtomicUsize::new(0),
            })
        };
        Ok(Self((0..queues).map(queue).collect::<io::Result<_>>()?))
    }

    /// Starts the serving threads, as many as the system permits. Returns the requests left for the
    /// device.
    pub(super) fn serve<'scope, 'env>(
        &'env self,
        connection: &'env Connection,
        scope: &'scope Scope<'scope, 'env>,
        notices: &Notices,
    ) -> Share {
        let mut left = Share::Forgets;
        for queue in &self.0 {
            for ring in std::mem::take(&mut *queue.rings.lock()) {
                let worker = Worker {
                    queue,
                    connection,
                    notices: notices.clone(),
                };
                let thread = Builder::new().name(format!("platter-ring-{}", queue.number));
                let started = thread.spawn_scoped(scope, move || worker.serve(ring));
                if started.is_err() && queue.leave(connection.device()) == Share::All {
                    left = Share::All;
                }
            }
        }
        left
    }
}

impl Worker<'_> {
    fn serve(&self, ring: Ring) {
        let mut affinity = CpuAffinity::take(self.queue.number);
        if self.work(ring, &mut affinity).is_err() {
            self.queue.leave(self.connection.device());
            // Connection errors are reported by the thread that always serves the device.
            let _ = device::work(self.connection, Share::All, &self.notices);
        }
    }

    /// Serves requests until the mount is gone.
    fn work(&self, mut ring: Ring, affinity: &mut CpuAffinity) -> io::Result<()> {
        let device = self.connection.device();
        let mut exchange = Exchange::new(self.connection);
        let mut spare = vec![0; REPLY_BYTES_MIN];
        ring.enable()?;
        let mut command = Command::Register;
        while let ControlFlow::Continue(entry) = ring.fetch(device, self.queue.number, command)? {
            affinity.finish(entry.asks_for_much());
            let answered = self.answer(&mut exchange, entry, &mut spare)?;
            let header = answered.header();
            entry.fixed.header[..size_of_val(&header)].copy_from_slice(header.as_bytes());
            entry.fixed.payload_bytes = u32::try_from(answered.body_bytes()).unwrap_or(u32::MAX);
            if let Some(notice) = exchange.take_notice() {
                self.notices.add(notice);
            }
            command = Command::Commit(entry.fixed.commit);
        }
        Ok(())
    }

    /// Processes the request of an entry, and stores the body of the answer there.
    fn answer(
        &self,
        exchange: &mut Exchange<'_>,
        entry: &mut Entry,
        spare: &mut [u8],
    ) -> io::Result<Answered> {
        let fixed = &entry.fixed;
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let (header, _) = InHeader::read_from_prefix(&fixed.header).map_err(|_| broken())?;
        let payload_bytes = fixed.payload_bytes as usize;
        let structure_bytes = (header.len as usize)
            .checked_sub(size_of::<InHeader>() + payload_bytes)
            .filter(|&bytes| bytes <= fixed.structure.len());
        let structure_bytes = structure_bytes.ok_or_else(broken)?;
        let structure = &fixed.structure[..structure_bytes];
        // Names and data share the buffer with the answer.
        let outcome = if payload_bytes == 0 {
            let request = Request::parts(header, structure, &[]);
            exchange.answer(request, &mut entry.payload)
        } else {
            let payload = entry.payload.get(..payload_bytes);
            let payload = payload.ok_or_else(broken)?;
            let outcome = exchange.answer(Request::parts(header, structure, payload), spare);
            if let Outcome::Answer(answered) = outcome {
                let bytes = answered.body_bytes();
                entry.payload[..bytes].copy_from_slice(&spare[..bytes]);
            }
            outcome
        };
        Ok(match outcome {
            Outcome::Answer(answered) => answered,
            // The kernel expects a commit for every request of a ring.
            Outcome::Nothing => Answered::new(header.unique, Ok(0)),
            Outcome::Later(later) => self.wait(later, &mut entry.payload),
        })
    }

    /// Waits for an answer that depends on an action of the kernel, which may use this queue, and
    /// proceeds only when a thread completes another request: so the last thread that is not
    /// waiting does not begin to.
    fn wait(&self, later: Later, payload: &mut [u8]) -> Answered {
        let unique = later.unique;
        let answer = if later.is_of_name() {
            self.wait_for_name(later)
        } else if self.queue.lets_wait(&later) {
            let answer = self.ask(later).recv().unwrap_or(Err(Errno::IO));
            self.queue.end_wait();
            answer
        } else {
            later.at_once(self.connection.server())
        };
        let answer = answer.and_then(|body| {
            let space = payload.get_mut(..body.len()).ok_or(Errno::OVERFLOW)?;
            space.copy_from_slice(&body);
            Ok(body.len())
        });
        Answered::new(unique, answer)
    }

    /// Waits until the kernel knows of a name that changed. It takes the lock of the directory for that, from callers
    /// that may wait for this very thread: where no other is free, their requests go before.
    fn wait_for_name(&self, later: Later) -> Answer<Vec<u8>> {
        let answer = later.at_once(self.connection.server());
        let others_serve = self.queue.begin_wait();
        let announced = self.ask(later);
        let goes_on = || others_serve && self.queue.in_need.load(Ordering::Acquire) == 0;
        while announced.recv_timeout(FREE_WAIT) == Err(RecvTimeoutError::Timeout) && goes_on() {}
        if others_serve {
            self.queue.end_wait();
        }
        answer
    }

    /// Has a notice thread find the answer.
    fn ask(&self, later: Later) -> Receiver<Answer<Vec<u8>>> {
        let (sender, answer) = channel();
        self.notices
            .add(Notice::Later(later, Asker::Thread(sender)));
        answer
    }
}

impl Queue {
    /// Counts a thread that stops serving. With the last one, the kernel must fall back to the
    /// device, which it does when it cannot use an entry: it gets one with an empty buffer. Returns
    /// the requests left for the device.
    fn leave(&self, device: BorrowedFd<'_>) -> Share {
        if self.serving.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Share::Forgets;
        }
        if let Ok(mut useless) = Ring::new(0)
            && useless.enable().is_ok()
        {
            let _ = useless.fetch(device, self.number, Command::Register);
        }
        Share::All
    }

    /// Whether one of its threads may wait, which is then counted as waiting. If the request has no
    /// immediate answer, another thread gets some time to become free.
    fn lets_wait(&self, later: &Later) -> bool {
        if self.begin_wait() {
            return true;
        }
        if later.has_answer_at_once() {
            return false;
        }
        self.in_need.fetch_add(1, Ordering::AcqRel);
        let is_free = (0..FREE_WAITS_MAX).any(|_| {
            std::thread::sleep(FREE_WAIT);
            self.begin_wait()
        });
        self.in_need.fetch_sub(1, Ordering::AcqRel);
        is_free
    }

    /// Counts a thread as waiting, unless it is the last that serves. Returns whether it was counted.
    fn begin_wait(&self) -> bool {
        let others_serve = |serving: usize| (serving > 1).then(|| serving - 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.serving.fetch_update(set, fetch, others_serve).is_ok()
    }

    /// Counts a thread as serving again.
    fn end_wait(&self) {
        self.serving.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns the number of processors in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |sum: usize, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_list_is_counted() {
        for (list, processors) in [("0\n", 1), ("0-3\n", 4), ("0-3,8,10-11", 7)] {
            assert_eq!(count(list), Some(processors), "{list}");
        }
        for list in ["", "3-1", "a", "0-"] {
            assert_eq!(count(list), None, "{list}");
        }
    }
}
