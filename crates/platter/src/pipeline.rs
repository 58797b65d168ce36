//! Jobs done by several threads whose results come out in the order the jobs went in.

use std::collections::VecDeque;

use platter_block::lock::{Condvar, Mutex};

/// How many jobs wait at most for a thread.
const QUEUE_JOBS_MAX: usize = 16;

/// A result takes memory until it is taken.
pub(crate) trait Footprint {
    /// How many bytes of memory.
    fn size_bytes(&self) -> usize;
}

/// One side pushes jobs, several threads do them, one side takes the results in order.
///
/// # Invariants
/// The oldest unfinished job is always with a thread or free to be started, so a caller that takes
/// results makes progress however full the pipeline is.
#[derive(Debug)]
pub(crate) struct Pipeline<J, R> {
    /// Jobs and results.
    state: Mutex<State<J, R>>,
    /// Results beyond this many bytes keep threads from starting further jobs.
    ready_bytes_max: usize,
    /// A job may be startable, or there will be none.
    work: Condvar,
    /// The oldest job's result may be there, or there will be none.
    ready: Condvar,
    /// The queue may have space.
    not_full: Condvar,
}

#[derive(Debug)]
struct State<J, R> {
    queue: VecDeque<J>,
    /// One slot for each job that was pushed and whose result was not taken, oldest first.
    results: VecDeque<Option<R>>,
    /// The number of the job in the first slot.
    oldest: u64,
    ready_bytes: usize,
    /// No further jobs will be pushed.
    closed: bool,
    /// Everyone gives up.
    stopped: bool,
}

impl<J, R: Footprint> State<J, R> {
    fn take_oldest(&mut self) -> Option<R> {
        let result = self.results.front_mut().and_then(Option::take)?;
        self.results.pop_front();
        self.oldest += 1;
        self.ready_bytes -= result.size_bytes();
        Some(result)
    }
}

/// A job in the hands of a thread.
#[derive(Debug)]
pub(crate) struct Ticket(u64);

impl<J, R: Footprint> Pipeline<J, R> {
    /// A pipeline whose results wait with about so many bytes at most.
    pub(crate) fn new(ready_bytes_max: usize) -> Self {
        Self {
            ready_bytes_max,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                results: VecDeque::new(),
                oldest: 0,
                ready_bytes: 0,
                closed: false,
                stopped: false,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            not_full: Condvar::new(),
        }
    }

    /// Adds a job, waiting for space. Returns whether the pipeline still runs.
    pub(crate) fn push(&self, job: J) -> bool {
        let mut state = self.state.lock();
        while state.queue.len() >= QUEUE_JOBS_MAX && !state.stopped {
            self.not_full.wait(&mut state);
        }
        if state.stopped {
            return false;
        }
        state.queue.push_back(job);
        state.results.push_back(None);
        drop(state);
        self.work.notify_one();
        true
    }

    /// Adds a job, or returns it where the queue is full or the pipeline was stopped: for a side that takes
    /// the results, too.
    pub(crate) fn try_push(&self, job: J) -> Result<(), J> {
        let mut state = self.state.lock();
        if state.stopped || state.queue.len() >= QUEUE_JOBS_MAX {
            return Err(job);
        }
        state.queue.push_back(job);
        state.results.push_back(None);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Says that no further jobs come.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
        self.ready.notify_all();
    }

    /// Makes everyone give up; what is unfinished is lost.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.ready.notify_all();
        self.not_full.notify_all();
    }

    /// The next job to do, or `None` when there will be no more.
    pub(crate) fn start(&self) -> Option<(Ticket, J)> {
        let mut state = self.state.lock();
        loop {
            if state.stopped || (state.closed && state.queue.is_empty()) {
                return None;
            }
            let started = (state.results.len() - state.queue.len()) as u64;
            if (state.ready_bytes < self.ready_bytes_max || started == 0)
                && let Some(job) = state.queue.pop_front()
            {
                let ticket = Ticket(state.oldest + started);
                drop(state);
                self.not_full.notify_one();
                return Some((ticket, job));
            }
            self.work.wait(&mut state);
        }
    }

    /// Hands in the result of a job.
    pub(crate) fn finish(&self, ticket: &Ticket, result: R) {
        let mut state = self.state.lock();
        state.ready_bytes += result.size_bytes();
        let slot = usize::try_from(ticket.0 - state.oldest).unwrap_or(usize::MAX);
        if let Some(slot) = state.results.get_mut(slot) {
            *slot = Some(result);
        }
        let is_oldest = slot == 0;
        drop(state);
        if is_oldest {
            self.ready.notify_one();
        }
    }

    /// The result of the oldest job, or `None` when all were taken or the pipeline was stopped.
    pub(crate) fn take(&self) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(result) = state.take_oldest() {
                drop(state);
                self.work.notify_all();
                return Some(result);
            }
            if state.closed && state.results.is_empty() {
                return None;
            }
            self.ready.wait(&mut state);
        }
    }

    /// The result of the oldest job, if it is there already.
    pub(crate) fn try_take(&self) -> Option<R> {
        let mut state = self.state.lock();
        let result = state.take_oldest()?;
        drop(state);
        self.work.notify_all();
        Some(result)
    }

    /// Stops the pipeline if the thread panics while this lives, so that no one waits for it.
    pub(crate) fn stop_on_panic(&self) -> StopOnPanic<'_, J, R> {
        StopOnPanic(self)
    }
}

/// See [`Pipeline::stop_on_panic`].
pub(crate) struct StopOnPanic<'a, J, R: Footprint>(&'a Pipeline<J, R>);

impl<J, R: Footprint> Drop for StopOnPanic<'_, J, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const READY_BYTES_MAX: usize = 16 << 20;

    #[derive(Debug, PartialEq)]
    struct Done(u64, usize);

    impl Footprint for Done {
        fn size_bytes(&self) -> usize {
            self.1
        }
    }

    fn run(threads: usize, jobs: u64, size_bytes: usize) -> Vec<u64> {
        let pipeline = Pipeline::new(READY_BYTES_MAX);
        thread::scope(|scope| {
            let producer = thread::Builder::new().spawn_scoped(scope, || {
                for job in 0..jobs {
                    assert!(pipeline.push(job));
                }
                pipeline.close();
            });
            for _ in 0..threads {
                thread::Builder::new()
                    .spawn_scoped(scope, || {
                        while let Some((ticket, job)) = pipeline.start() {
                            if job % 7 == 0 {
                                thread::yield_now();
                            }
                            pipeline.finish(&ticket, Done(job, size_bytes));
                        }
                    })
                    .unwrap();
            }
            let mut taken = Vec::new();
            while let Some(Done(job, _)) = pipeline.take() {
                taken.push(job);
            }
            producer.unwrap().join().unwrap();
            taken
        })
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        for threads in [1, 2, 5] {
            assert!(run(threads, 2_000, 1).into_iter().eq(0..2_000));
        }
        assert!(run(3, 0, 1).is_empty());
    }

    #[test]
    fn one_thread_pushes_and_takes() {
        let pipeline = Pipeline::new(READY_BYTES_MAX);
        thread::scope(|scope| {
            for _ in 0..2 {
                let work = || {
                    while let Some((ticket, job)) = pipeline.start() {
                        pipeline.finish(&ticket, Done(job, READY_BYTES_MAX / 4));
                    }
                };
                thread::Builder::new().spawn_scoped(scope, work).unwrap();
            }
            let mut taken = Vec::new();
            for job in 0..1000 {
                while pipeline.try_push(job).is_err() {
                    taken.extend(pipeline.take());
                }
                taken.extend(pipeline.try_take());
            }
            pipeline.close();
            taken.extend(std::iter::from_fn(|| pipeline.take()));
            assert!(taken.iter().map(|done| done.0).eq(0..1000));
        });
        assert!(pipeline.try_take().is_none());
        pipeline.stop();
        assert!(pipeline.try_push(0).is_err());
    }

    #[test]
    fn results_larger_than_the_limit_still_pass_one_by_one() {
        let taken = run(4, 300, READY_BYTES_MAX);
        assert!(taken.into_iter().eq(0..300));
    }

    #[test]
    fn a_stopped_pipeline_lets_everyone_go() {
        let pipeline: Pipeline<u32, Done> = Pipeline::new(READY_BYTES_MAX);
        thread::scope(|scope| {
            let producer = thread::Builder::new()
                .spawn_scoped(scope, || while pipeline.push(0) {})
                .unwrap();
            let taker = thread::Builder::new()
                .spawn_scoped(scope, || pipeline.take())
                .unwrap();
            let (_ticket, _job) = pipeline.start().unwrap();
            pipeline.stop();
            producer.join().unwrap();
            assert_eq!(taker.join().unwrap(), None);
        });
        assert!(pipeline.start().is_none());
    }

    #[test]
    fn a_panicking_thread_stops_the_pipeline() {
        let pipeline: Pipeline<u32, Done> = Pipeline::new(READY_BYTES_MAX);
        thread::scope(|scope| {
            let panicking = thread::Builder::new()
                .spawn_scoped(scope, || {
                    let _guard = pipeline.stop_on_panic();
                    panic!("as intended");
                })
                .unwrap();
            assert!(panicking.join().is_err());
        });
        assert_eq!(pipeline.take(), None);
    }
}
