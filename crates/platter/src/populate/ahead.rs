//! The contents of files, read by threads of their own before they are written: the order in which
//! they are given does not depend on them.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::thread;

use super::Contents;
use crate::Cause;
use crate::pipeline::{Footprint, Pipeline};

/// Bytes that are read as one job,
const JOB_BYTES: u64 = 1 << 20;
/// in no more steps than this.
const JOB_STEPS: usize = 512;
/// What is read and waits for the writer, in bytes.
const READY_BYTES_MAX: usize = 2 << 20;
/// Threads that read at most: what is written waits for the writer more often than for them.
const READERS_MAX: usize = 4;

/// The contents of files in their order, as they are taken.
pub(super) struct Pieces<'p> {
    next_chunk: &'p dyn Fn() -> Option<Chunk>,
    chunk: Chunk,
    /// How many steps of the chunk were taken, and how many bytes of it.
    taken: (usize, usize),
}

/// A part of a file that may hold data.
pub(super) struct Piece<'p> {
    pub(super) offset: u64,
    pub(super) bytes: &'p [u8],
}

/// What is read by one thread.
#[derive(Debug, Default)]
struct Job<'p> {
    steps: Vec<Step<(&'p Contents, Range<u64>)>>,
    len_bytes: u64,
}

/// What was read.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    steps: Vec<Step<Range<u64>>>,
}

/// A step on the way through all contents.
#[derive(Debug)]
enum Step<P> {
    Piece(P),
    /// The file ends.
    End,
    Failure(Option<Cause>),
}

impl Footprint for Chunk {
    fn size_bytes(&self) -> usize {
        self.bytes.capacity() + self.steps.capacity() * size_of::<Step<Range<u64>>>()
    }
}

/// Has `take` take the contents of files, which are read ahead of it.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn read<'p, R>(
    files: impl Iterator<Item = &'p Contents> + Send,
    take: impl FnOnce(Pieces<'_>) -> R,
) -> std::io::Result<R> {
    let pipeline = Pipeline::new(READY_BYTES_MAX);
    let plan = || {
        let _guard = pipeline.stop_on_panic();
        if plan(files, &pipeline).is_some() {
            pipeline.close();
        }
    };
    let read = || {
        let _guard = pipeline.stop_on_panic();
        while let Some((ticket, job)) = pipeline.start() {
            pipeline.finish(&ticket, job.read());
        }
    };
    let readers = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    thread::scope(|scope| {
        let start = |name: String| thread::Builder::new().name(name);
        let spawned = start("mkfs-plan".into())
            .spawn_scoped(scope, plan)
            .and_then(|_| {
                (0..readers.get().min(READERS_MAX)).try_for_each(|number| {
                    start(format!("mkfs-read-{number}"))
                        .spawn_scoped(scope, read)
                        .map(drop)
                })
            });
        let taken = spawned.map(|()| {
            let _guard = pipeline.stop_on_panic();
            take(Pieces {
                next_chunk: &|| pipeline.take(),
                chunk: Chunk::default(),
                taken: (0, 0),
            })
        });
        pipeline.stop();
        taken
    })
}

/// Fills the pipeline; `None` once it is stopped.
fn plan<'p>(
    files: impl Iterator<Item = &'p Contents>,
    pipeline: &Pipeline<Job<'p>, Chunk>,
) -> Option<()> {
    let mut job = Job::default();
    for contents in files {
        let end = match contents.chunks() {
            Ok(chunks) => {
                for chunk in chunks {
                    job.len_bytes += chunk.end - chunk.start;
                    job.add(Step::Piece((contents, chunk)), pipeline)?;
                }
                Step::End
            }
            Err(cause) => Step::Failure(Some(cause)),
        };
        job.add(end, pipeline)?;
    }
    pipeline.push(job).then_some(())
}

impl<'p> Job<'p> {
    /// Adds a step, and gives the job to the pipeline once it is long enough.
    fn add(
        &mut self,
        step: Step<(&'p Contents, Range<u64>)>,
        pipeline: &Pipeline<Self, Chunk>,
    ) -> Option<()> {
        self.steps.push(step);
        let is_full = self.len_bytes >= JOB_BYTES || self.steps.len() >= JOB_STEPS;
        if !is_full || pipeline.push(std::mem::take(self)) {
            return Some(());
        }
        None
    }

    fn read(self) -> Chunk {
        let mut bytes = Vec::with_capacity(usize::try_from(self.len_bytes).unwrap_or_default());
        let steps = self.steps.into_iter().map(|step| match step {
            Step::Piece((contents, chunk)) => match contents.read(&chunk, &mut bytes) {
                Ok(()) => Step::Piece(chunk),
                Err(cause) => Step::Failure(Some(cause)),
            },
            Step::End => Step::End,
            Step::Failure(cause) => Step::Failure(cause),
        });
        let steps = steps.collect();
        Chunk { bytes, steps }
    }
}

impl Pieces<'_> {
    /// The next piece of the file at hand; `None` at its end, behind which the next file begins.
    pub(super) fn next(&mut self) -> Result<Option<Piece<'_>>, Cause> {
        while self.taken.0 == self.chunk.steps.len() {
            let Some(chunk) = (self.next_chunk)() else {
                return Ok(None);
            };
            (self.chunk, self.taken) = (chunk, (0, 0));
        }
        let (step, start) = self.taken;
        self.taken.0 += 1;
        match &mut self.chunk.steps[step] {
            Step::Piece(range) => {
                let end = start + usize::try_from(range.end - range.start).unwrap_or_default();
                self.taken.1 = end;
                Ok(Some(Piece {
                    offset: range.start,
                    bytes: &self.chunk.bytes[start..end],
                }))
            }
            Step::End => Ok(None),
            Step::Failure(cause) => cause.take().map_or(Ok(None), Err),
        }
    }
}
