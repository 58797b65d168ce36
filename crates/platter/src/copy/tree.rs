//! Going through a directory with all that is in it: the caller's thread makes directories, plans what threads do,
//! and reports what they did, in the order of the walk.

use std::collections::HashSet;
use std::fs::Permissions;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use platter_block::lock::Mutex;
use platter_vfs::tree_walk::second_name;
use platter_vfs::{Attr, Condition, FileKind, InodeId, WalkOrder};
use rustix::io::Errno;

use super::attributes::{Target, put_attributes};
use super::contents::{CHUNK_BYTES, Filling, Lost};
use super::place::{Directory, Place};
use super::worker::{Copied, Source, Stage, Worker};
use super::{Copier, CopyEvent, CopyObserver, errno, problem_of};
use crate::entries::{DirEntries, LoadedEntry, Shares};
use crate::pipeline::{Footprint, Pipeline};
use crate::problem::{Effect, Problem};
use crate::{Cause, Error, File, Result};

/// A job is handed on when it has this many bytes of contents,
const JOB_BYTES: u64 = 1 << 20;

/// or this many pieces,
const JOB_PIECES: usize = 64;

/// or so many directories, each of which is held open.
const JOB_DIRECTORIES: usize = 8;

/// A part of a job.
pub(super) enum Piece {
    /// A file to be copied.
    File(Source, Place),
    /// A range of a long file.
    Range(Arc<Long>, Range<u64>),
    /// What is done when all before it is.
    InOrder(InOrder),
}

/// What the caller's thread does in the order of the walk.
pub(super) enum InOrder {
    /// Reports a directory that was made.
    Made(File, Place),
    /// Reports a problem with an entry or a directory.
    Problem(Problem),
    /// Copies a file that has several names.
    Name(Source, Place),
    /// Reports a long file, whose ranges follow.
    Begin(Arc<Long>),
    /// Completes it.
    End(Arc<Long>),
    /// Completes a directory.
    EndOfDirectory(Box<Frame>),
}

/// A piece that was done.
pub(super) enum Done {
    File(Copied),
    Range(Arc<Long>, Result<Lost>, u64),
    InOrder(InOrder),
}

/// Pieces that a thread does one after the other.
pub(super) type Job = Vec<Piece>;

impl Footprint for Vec<Done> {
    fn size_bytes(&self) -> usize {
        // What was done takes little, but may keep directories and long files open.
        1
    }
}

/// Jobs that were done and wait to be reported.
pub(super) const READY_JOBS_MAX: usize = 16;

/// A file of more than one piece.
pub(super) struct Long {
    source: Source,
    place: Place,
    filling: Filling,
    /// What its pieces came to so far.
    state: Mutex<LongState>,
}

#[derive(Default)]
struct LongState {
    lost: Lost,
    bytes: u64,
    failed: Option<Error>,
    /// It is complete, or was given up.
    is_ended: bool,
}

impl Drop for Long {
    /// No part of a file is left where the copy ends before the file does.
    fn drop(&mut self) {
        if !self.state.get_mut().is_ended {
            // There is an error to report already.
            let _ = self.place.clear();
        }
    }
}

/// A directory that is being filled.
pub(super) struct Frame {
    source: File,
    attr: Attr,
    place: Place,
    dir: Arc<Directory>,
    entries: DirEntries,
}

/// Does the pieces of a job.
pub(super) fn work(worker: &mut Worker, job: Job) -> Vec<Done> {
    job.into_iter()
        .map(|piece| do_piece(worker, piece))
        .collect()
}

fn do_piece(worker: &mut Worker, piece: Piece) -> Done {
    match piece {
        Piece::File(source, place) => Done::File(worker.copy(source, place, None)),
        Piece::Range(long, range) => {
            let bytes = range.end - range.start;
            let host = |error| long.place.error(error);
            let filled = worker.fill(&long.source, &long.filling, range, &host);
            Done::Range(long, filled, bytes)
        }
        Piece::InOrder(step) => Done::InOrder(step),
    }
}

/// Copies a tree.
pub(super) struct Walk<'a, 'o> {
    pub(super) copier: &'a mut Copier,
    pub(super) observer: &'a mut CopyObserver<'o>,
    pub(super) pipeline: &'a Pipeline<Job, Vec<Done>>,
    /// Starts threads that do jobs. Returns whether there are any.
    pub(super) start_threads: &'a dyn Fn() -> bool,
    /// For what this thread does itself.
    pub(super) worker: Worker,
    pub(super) plan: Plan,
}

/// What is to be handed on, and what was.
#[derive(Default)]
pub(super) struct Plan {
    shares: Shares,
    job: Job,
    job_bytes: u64,
    job_directories: usize,
    /// There are threads; without them, jobs are done by the caller's.
    is_running: bool,
    /// Jobs whose results were not taken.
    jobs: usize,
}

impl Walk<'_, '_> {
    pub(super) fn run(mut self, file: &File, place: Place) -> Result<()> {
        let top = Source {
            file: file.clone(),
            attr: file.attr()?,
            map: None,
        };
        let mut entered = HashSet::from([file.inode().id()]);
        let mut frames = Vec::new();
        frames.extend(self.plan_one(top, place)?);
        while let Some(frame) = frames.last_mut() {
            self.worker.check_progress(&frame.source)?;
            let source = frame.source.volume().entry_source(true);
            let entry = match frame.entries.next(&source) {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    let error = frame.source.error(error);
                    let problem = problem_of(error, Effect::EntriesLost);
                    self.add(Piece::InOrder(InOrder::Problem(problem)), 0)?;
                    continue;
                }
                None => {
                    if let Some(frame) = frames.pop() {
                        self.plan.shares.close(&frame.entries);
                        let end = InOrder::EndOfDirectory(Box::new(frame));
                        self.add(Piece::InOrder(end), 0)?;
                    }
                    continue;
                }
            };
            let place = frame.dir.place(&entry.entry.name);
            let planned = match enter(&frame.source, entry, &mut entered) {
                Ok(source) => self.plan_one(source, place),
                Err(error) => Err(error),
            };
            match planned {
                Ok(frame) => frames.extend(frame),
                Err(error) if matches!(error.cause, Cause::Cancelled) => return Err(error),
                Err(error) => {
                    let problem = problem_of(error, Effect::Omitted);
                    self.add(Piece::InOrder(InOrder::Problem(problem)), 0)?;
                }
            }
        }
        self.complete()
    }

    /// Plans one file; a directory without what is in it, which is to be planned next.
    fn plan_one(&mut self, source: Source, place: Place) -> Result<Option<Frame>> {
        let attr = &source.attr;
        if attr.kind == FileKind::Directory {
            return self.plan_directory(source, place).map(Some);
        }
        let bytes = attr.size_bytes;
        // Where the first name was copied to is known when it is.
        if let Some(key) = self.worker.key_of(&source)
            && !self.copier.links.begin(key)
        {
            self.add(Piece::InOrder(InOrder::Name(source, place)), bytes)?;
            return Ok(None);
        }
        if attr.kind == FileKind::Regular && bytes > CHUNK_BYTES {
            self.plan_long(source, place)?;
        } else {
            self.add(Piece::File(source, place), bytes)?;
        }
        Ok(None)
    }

    fn plan_directory(&mut self, source: Source, place: Place) -> Result<Frame> {
        let Source { file, attr, .. } = source;
        if !self.worker.options.recursive {
            return Err(file.error(Condition::IsDirectory));
        }
        let mut made = place.make_dir(attr.permissions);
        if matches!(made, Err(Errno::MFILE | Errno::NFILE)) {
            // Directories that wait for their completion are open.
            self.hand_on()?;
            while self.plan.jobs > 0 {
                let done = self.pipeline.take();
                self.report(done)?;
            }
            made = place.make_dir(attr.permissions);
        }
        let dir = Arc::new(made.map_err(|error| place.error(error))?);
        self.plan.job_directories += 1;
        let reported = InOrder::Made(file.clone(), place.clone());
        self.add(Piece::InOrder(reported), 0)?;
        Ok(Frame {
            entries: (self.plan.shares).open(file.inode().clone(), WalkOrder::Name),
            source: file,
            attr,
            place,
            dir,
        })
    }

    fn plan_long(&mut self, mut source: Source, place: Place) -> Result<()> {
        if !self.worker.make_way(&source, &place)? {
            return Ok(());
        }
        let mut filling = self.worker.create(&mut source, &place)?;
        let state = LongState {
            lost: filling.take_lost(),
            ..LongState::default()
        };
        let long = Arc::new(Long {
            source,
            place,
            filling,
            state: Mutex::new(state),
        });
        self.add(Piece::InOrder(InOrder::Begin(Arc::clone(&long))), 0)?;
        for range in long.filling.ranges() {
            let bytes = range.end - range.start;
            self.add(Piece::Range(Arc::clone(&long), range), bytes)?;
        }
        self.add(Piece::InOrder(InOrder::End(long)), 0)
    }

    fn add(&mut self, piece: Piece, bytes: u64) -> Result<()> {
        let plan = &mut self.plan;
        plan.job.push(piece);
        plan.job_bytes = plan.job_bytes.saturating_add(bytes);
        if plan.job_bytes >= JOB_BYTES
            || plan.job.len() >= JOB_PIECES
            || plan.job_directories >= JOB_DIRECTORIES
        {
            return self.hand_on();
        }
        Ok(())
    }

    /// Has what is planned done by a thread.
    fn hand_on(&mut self) -> Result<()> {
        let mut job = mem::take(&mut self.plan.job);
        (self.plan.job_bytes, self.plan.job_directories) = (0, 0);
        self.plan.is_running = self.plan.is_running || (self.start_threads)();
        if !self.plan.is_running {
            return self.do_here(job);
        }
        while let Err(refused) = self.pipeline.try_push(job) {
            job = refused;
            let done = self.pipeline.take();
            self.report(done)?;
        }
        self.plan.jobs += 1;
        while let Some(done) = self.pipeline.try_take() {
            self.report(Some(done))?;
        }
        Ok(())
    }

    /// Does the rest, without threads if there were none so far, and waits until all is done.
    fn complete(mut self) -> Result<()> {
        if !self.plan.is_running {
            let job = mem::take(&mut self.plan.job);
            return self.do_here(job);
        }
        self.hand_on()?;
        while self.plan.jobs > 0 {
            let done = self.pipeline.take();
            self.report(done)?;
        }
        Ok(())
    }

    fn do_here(&mut self, job: Job) -> Result<()> {
        for piece in job {
            let done = do_piece(&mut self.worker, piece);
            self.report_one(done)?;
        }
        Ok(())
    }

    /// Reports a job, or that none will come because a thread has panicked.
    fn report(&mut self, job: Option<Vec<Done>>) -> Result<()> {
        let stopped = || Error::at_path(&"".into(), b"", Cause::Cancelled);
        self.plan.jobs = self.plan.jobs.saturating_sub(1);
        for done in job.ok_or_else(stopped)? {
            self.report_one(done)?;
        }
        Ok(())
    }

    fn report_one(&mut self, done: Done) -> Result<()> {
        match done {
            Done::File(copied) => self.report_file(copied),
            Done::Range(long, filled, bytes) => self.report_range(&long, filled, bytes),
            Done::InOrder(InOrder::Name(source, place)) => {
                let key = self.worker.key_of(&source);
                let first = key.and_then(|key| self.copier.links.first(&key));
                let copied = self.worker.copy(source, place, first.as_deref());
                self.report_file(copied)
            }
            Done::InOrder(InOrder::Made(file, place)) => {
                (self.observer)(CopyEvent::Copying(&file, &place.path()));
                self.worker.progress.add_file();
                self.copier.count_file(self.observer);
                self.worker.check_progress(&file)
            }
            Done::InOrder(InOrder::Problem(problem)) => {
                self.copier.report(self.observer, &problem);
                Ok(())
            }
            Done::InOrder(InOrder::Begin(long)) => {
                let event = CopyEvent::Copying(&long.source.file, &long.place.path());
                (self.observer)(event);
                self.worker.check_progress(&long.source.file)
            }
            Done::InOrder(InOrder::End(long)) => self.report_long(&long),
            Done::InOrder(InOrder::EndOfDirectory(frame)) => {
                for problem in finish_dir(&self.worker, &frame) {
                    self.copier.report(self.observer, &problem);
                }
                Ok(())
            }
        }
    }

    fn report_file(&mut self, copied: Copied) -> Result<()> {
        let Copied {
            source,
            place,
            stage,
            bytes,
            problems,
            remembered,
        } = copied;
        if !matches!(stage, Stage::LeftAlone | Stage::Refused(_)) {
            (self.observer)(CopyEvent::Copying(&source.file, &place.path()));
        }
        if bytes > 0 {
            self.copier.count_bytes(bytes, self.observer);
        }
        for problem in problems {
            self.copier.report(self.observer, &problem);
        }
        if let (Some(key), Some(copy)) = (self.worker.key_of(&source), remembered) {
            self.copier.links.remember(key, copy);
        }
        match stage {
            Stage::LeftAlone => {}
            Stage::Made => self.copier.count_file(self.observer),
            Stage::Refused(error) | Stage::Failed(error) => {
                if place.is_top() || matches!(error.cause, Cause::Cancelled) {
                    return Err(error);
                }
                let problem = problem_of(error, Effect::Omitted);
                self.copier.report(self.observer, &problem);
            }
        }
        self.worker.check_progress(&source.file)
    }

    fn report_range(&mut self, long: &Long, filled: Result<Lost>, bytes: u64) -> Result<()> {
        match filled {
            Ok(lost) => {
                let mut state = long.state.lock();
                state.lost.add(lost);
                state.bytes += bytes;
                drop(state);
                self.copier.count_bytes(bytes, self.observer);
            }
            Err(error) if matches!(error.cause, Cause::Cancelled) => return Err(error),
            Err(error) => {
                long.state.lock().failed.get_or_insert(error);
            }
        }
        self.worker.check_progress(&long.source.file)
    }

    fn report_long(&mut self, long: &Long) -> Result<()> {
        self.worker.check_progress(&long.source.file)?;
        let mut state = long.state.lock();
        state.is_ended = true;
        let (lost, failed) = (mem::take(&mut state.lost), state.failed.take());
        drop(state);
        let mut problems = Vec::new();
        if let Some(error) = failed {
            if long.place.is_top() {
                return Err(error);
            }
            problems.push(problem_of(error, Effect::Omitted));
        } else {
            let remembered = (self.worker).finish(
                (&long.source, &long.place),
                &long.filling,
                lost,
                &mut problems,
            );
            if let (Some(key), Some(copy)) = (self.worker.key_of(&long.source), remembered) {
                self.copier.links.remember(key, copy);
            }
            self.worker.progress.add_file();
            self.copier.count_file(self.observer);
        }
        for problem in problems {
            self.copier.report(self.observer, &problem);
        }
        Ok(())
    }
}

/// Sets the attributes of a directory once nothing more is made in it.
fn finish_dir(worker: &Worker, frame: &Frame) -> Vec<Problem> {
    let mut problems = Vec::new();
    let preserve = worker.options.preserve;
    let Frame {
        source,
        attr,
        place,
        dir,
        ..
    } = frame;
    if dir.is_new() && !preserve.mode {
        // What the umask left of the mode, without what was added to work in it.
        let limited = dir.file().metadata().and_then(|found| {
            let mode = found.mode() & 0o777 & attr.permissions;
            dir.file().set_permissions(Permissions::from_mode(mode))
        });
        if let Err(error) = limited {
            let error = place.error(errno(&error));
            problems.push(problem_of(error, Effect::AttributesLost));
        }
    }
    let target = Target::Open(dir.file(), place);
    put_attributes(preserve, false, source, attr, &target, &mut problems);
    problems
}

/// The file that an entry names, unless it is a directory that was entered before.
fn enter(dir: &File, entry: LoadedEntry, entered: &mut HashSet<InodeId>) -> Result<Source> {
    let LoadedEntry { entry, file, map } = entry;
    let (inode, attr) = match file {
        Ok(found) => found,
        Err(error) => return Err(dir.entry_error(&entry.name, error)),
    };
    if attr.kind == FileKind::Directory && !entered.insert(entry.id) {
        return Err(dir.entry_error(&entry.name, second_name(entry.id).into()));
    }
    Ok(Source {
        file: dir.entry_file(&entry.name, inode),
        attr,
        map: map.and_then(platter_vfs::Result::ok),
    })
}
