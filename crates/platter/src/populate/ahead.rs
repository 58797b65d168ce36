//! The contents of files, read by threads of their own before they are written: the order in which
//! they are given does not depend on them.

use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::thread;

use platter_block::lock::Mutex;

use super::Contents;
use super::contents::Nearby;
use crate::Cause;
use crate::pipeline::{Footprint, Pipeline};

/// Bytes that are read as one job,
const JOB_BYTES: u64 = 1 << 20;
/// into memory whose length is a multiple of this,
const BUFFER_UNIT_BYTES: usize = 128 << 10;
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
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: Part,
}

/// Bytes that stay where they were read to.
pub(super) struct Part {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

/// The buffer of a job. It is reused by further jobs once it has no reader: fresh memory costs
/// about as much as what it is filled with.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    spares: Arc<Spares>,
}

/// Memory that was read to before.
type Spares = Mutex<Vec<Vec<u8>>>;

/// What is read by one thread.
#[derive(Debug, Default)]
struct Job<'p> {
    steps: Vec<Step<(&'p Contents, Range<u64>)>>,
    len_bytes: u64,
}

/// What was read.
#[derive(Debug, Default)]
struct Chunk {
    buffer: Arc<Buffer>,
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
        self.buffer.bytes.capacity() + self.steps.capacity() * size_of::<Step<Range<u64>>>()
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
    let spares = Arc::<Spares>::default();
    let plan = || {
        let _guard = pipeline.stop_on_panic();
        if plan(files, &pipeline).is_some() {
            pipeline.close();
        }
    };
    let read = || {
        let _guard = pipeline.stop_on_panic();
        while let Some((ticket, job)) = pipeline.start() {
            pipeline.finish(&ticket, job.read(&spares));
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

    fn read(self, spares: &Arc<Spares>) -> Chunk {
        let len = usize::try_from(self.len_bytes).unwrap_or_default();
        let mut buffer = Buffer::new(len, spares);
        let mut nearby = Nearby::default();
        let mut rest = &mut buffer.bytes[..];
        let steps = self.steps.into_iter().map(|step| match step {
            Step::Piece((contents, chunk)) => {
                let len = usize::try_from(chunk.end - chunk.start).unwrap_or_default();
                let (bytes, after) = std::mem::take(&mut rest).split_at_mut(len);
                rest = after;
                match contents.read(chunk.start, bytes, &mut nearby) {
                    Ok(()) => Step::Piece(chunk),
                    Err(cause) => Step::Failure(Some(cause)),
                }
            }
            Step::End => Step::End,
            Step::Failure(cause) => Step::Failure(cause),
        });
        let steps = steps.collect();
        let buffer = Arc::new(buffer);
        Chunk { buffer, steps }
    }
}

impl Buffer {
    /// At least so long.
    fn new(len: usize, spares: &Arc<Spares>) -> Self {
        let mut bytes = spares.lock().pop().unwrap_or_default();
        if bytes.len() < len {
            bytes = vec![0; len.next_multiple_of(BUFFER_UNIT_BYTES)];
        }
        Self {
            bytes,
            spares: Arc::clone(spares),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            self.spares.lock().push(bytes);
        }
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes[self.range.clone()]
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        let spares = Arc::default();
        let buffer = Arc::new(Buffer { bytes, spares });
        Self { buffer, range }
    }
}

impl Pieces<'_> {
    /// The next piece of the file at hand; `None` at its end, after which the next file begins.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, Cause> {
        while self.taken.0 == self.chunk.steps.len() {
            let Some(chunk) = (self.next_chunk)() else {
                return Ok(None);
            };
            (self.chunk, self.taken) = (chunk, (0, 0));
        }
        let (step, start) = self.taken;
        self.taken.0 += 1;
        match &mut self.chunk.steps[step] {
            Step::Piece(piece) => {
                let end = start + usize::try_from(piece.end - piece.start).unwrap_or_default();
                self.taken.1 = end;
                let buffer = Arc::clone(&self.chunk.buffer);
                let range = start..end;
                Ok(Some(Piece {
                    offset: piece.start,
                    bytes: Part { buffer, range },
                }))
            }
            Step::End => Ok(None),
            Step::Failure(cause) => cause.take().map_or(Ok(None), Err),
        }
    }

    /// All of the next file, which has so many bytes.
    pub(super) fn whole(&mut self, size_bytes: u64) -> Result<Part, Cause> {
        let size = usize::try_from(size_bytes).unwrap_or_default();
        let mut next = self.next()?;
        if let Some(Piece { offset: 0, bytes }) = next.take_if(|piece| piece.bytes.len() == size) {
            while self.next()?.is_some() {}
            return Ok(bytes);
        }
        let mut whole = vec![0; size];
        while let Some(piece) = next {
            let at = usize::try_from(piece.offset).unwrap_or(size).min(size);
            let target = &mut whole[at..];
            let count = target.len().min(piece.bytes.len());
            target[..count].copy_from_slice(&piece.bytes[..count]);
            next = self.next()?;
        }
        Ok(whole.into())
    }
}
