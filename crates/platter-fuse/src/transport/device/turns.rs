//! The loop of a thread that takes turns with the other readers of the device.

use std::io;
use std::time::Duration;

use platter_vfs::{Clock, SystemClock};

use super::patience::{Look, Patience};
use super::reader_cpu::ReaderCpu;
use super::readers::{InVain, Looks, Reader, Readers, Rest, Taken};
use super::timer::Timer;
use super::{Received, Served, Worker};

/// A request that took longer keeps others waiting.
const LONG: Duration = Duration::from_micros(100);
/// Length of a read from which it is likely readahead, whose caller does not wait.
const BULK_BYTES: u32 = 128 << 10;

/// A thread that takes turns.
struct Turns<'t> {
    worker: Worker<'t>,
    readers: &'t Readers<Timer>,
    reader: Reader<'t, Timer>,
    clock: SystemClock,
    patience: Patience,
    cpu: ReaderCpu,
    /// When it has answered or read last.
    since: Duration,
}

/// Serves requests until the mount is gone.
pub(super) fn take<'t>(
    worker: Worker<'t>,
    readers: &'t Readers<Timer>,
    reader: Reader<'t, Timer>,
) -> io::Result<()> {
    let mut turns = Turns {
        worker,
        readers,
        reader,
        clock: SystemClock::new(),
        patience: Patience::new(),
        cpu: ReaderCpu::new(),
        since: Duration::ZERO,
    };
    let served = turns.serve();
    turns.cpu.release(readers);
    served
}

impl Turns<'_> {
    fn serve(&mut self) -> io::Result<()> {
        let mut looks = self.reader.begin();
        while let Some(len) = self.next(looks)? {
            let begin = self.since;
            let reader = &self.reader;
            let served = self.worker.serve(len, || reader.before_wait())?;
            if served == Served::Gone {
                break;
            }
            self.since = self.clock.monotonic();
            looks = self.reader.come(self.since.saturating_sub(begin) >= LONG);
        }
        self.readers.end();
        Ok(())
    }

    /// Returns the length of the next request; `None` when the mount is gone.
    fn next(&mut self, mut looks: Looks) -> io::Result<Option<usize>> {
        loop {
            let in_vain = match looks {
                _ if !self.patience.is_left() => InVain::Impatient,
                Looks::None => InVain::Impatient,
                Looks::One => InVain::LookedOnce,
                Looks::Many => InVain::LookedOut,
            };
            if in_vain != InVain::Impatient {
                match self.look(in_vain == InVain::LookedOut)? {
                    Received::Request(len) => return Ok(Some(len)),
                    Received::Nothing => {}
                    Received::Gone => return Ok(None),
                }
            }
            self.cpu.release(self.readers);
            match self.reader.rest(in_vain) {
                Rest::Block => {
                    let Received::Request(len) = self.worker.receive(true)? else {
                        return Ok(None);
                    };
                    let elapsed = self.take(len, false);
                    self.patience.blocked(elapsed);
                    return Ok(Some(len));
                }
                Rest::Called(next) => {
                    looks = next;
                    self.since = self.clock.monotonic();
                }
                Rest::End => return Ok(None),
            }
        }
    }

    /// Reads a request if there is one, and goes on looking for one if `looks_out` is set.
    fn look(&mut self, looks_out: bool) -> io::Result<Received> {
        let mut looks = 0;
        loop {
            match self.worker.receive(false)? {
                Received::Nothing => {}
                Received::Request(len) => {
                    let elapsed = self.take(len, looks == 0);
                    if looks_out {
                        let (caller, _) = self.worker.origin(len);
                        self.patience.found(elapsed);
                        self.cpu.found(looks, caller, self.readers);
                    }
                    return Ok(Received::Request(len));
                }
                Received::Gone => return Ok(Received::Gone),
            }
            if !looks_out {
                return Ok(Received::Nothing);
            }
            looks += 1;
            let elapsed = self.clock.monotonic().saturating_sub(self.since);
            if Patience::after(looks, elapsed) == Look::Enough {
                self.patience.missed(elapsed);
                return Ok(Received::Nothing);
            }
            // A thread that blocks at once is woken on another, idle processor, which takes longer than the request.
            // A runnable one on the caller's processor keeps the caller there.
            std::thread::yield_now();
        }
    }

    /// Counts the thread as serving a request. Returns the time since its last answer.
    fn take(&mut self, len: usize, was_there: bool) -> Duration {
        let (caller, bytes) = self.worker.origin(len);
        self.reader.take(Taken {
            caller,
            was_there,
            is_bulk: bytes >= BULK_BYTES,
        });
        let now = self.clock.monotonic();
        let elapsed = now.saturating_sub(self.since);
        self.since = now;
        elapsed
    }
}
