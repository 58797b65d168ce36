//! Decides what goes into the archive and in which order, and announces what will be read.
//!
//! Directories are walked depth first with their entries sorted by name.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use platter_vfs::tree_walk::second_name;
use platter_vfs::{Attr, Condition, FileKind, Inode, InodeId, WalkOrder};

use super::TarOptions;
use super::job::{Chunk, Hitch, Job, Piece, PlannedBody};
use crate::Effect;
use crate::data_map::DataMap;
use crate::entries::{DirEntries, EntrySource, HEAD_BYTES, LoadedEntry, Shares};
use crate::pipeline::Pipeline;

/// The longest path of a member.
const PATH_BYTES_MAX: usize = 64 << 10;

/// A job is handed on when it has this many bytes of contents,
const JOB_BYTES: u64 = 1 << 20;

/// or this many pieces.
const JOB_PIECES: usize = 256;

/// `FS_ENCRYPT_FL` of `FS_IOC_GETFLAGS`.
const FLAG_ENCRYPTED: u32 = 0x800;

/// Walks a filesystem and fills a pipeline with jobs.
pub(super) struct Planner<'a> {
    source: EntrySource<'a>,
    options: &'a TarOptions,
    pipeline: &'a Pipeline<Job, Chunk>,
    job: Job,
    job_bytes: u64,
    /// All directories that became members, for building paths again.
    dirs: Vec<Dir>,
    /// The directory and name under which an inode with several names was first seen.
    first_names: HashMap<InodeId, (Option<DirIndex>, Box<[u8]>)>,
    /// Where the text of the job holds the path of the file whose contents are being added.
    contents_path: Option<Range<usize>>,
    shares: Shares,
}

/// A place in [`Planner::dirs`].
#[derive(Debug, Clone, Copy)]
struct DirIndex(usize);

#[derive(Debug)]
struct Dir {
    parent: Option<DirIndex>,
    /// The name, or for a directory without parent the path; without a slash at the end.
    name: Box<[u8]>,
}

/// A directory that is being walked.
struct Frame {
    dir: DirIndex,
    /// How much of the path is this directory's, with a slash at the end.
    path_len: usize,
    entries: DirEntries,
}

/// The pipeline was stopped.
struct Stopped;

impl<'a> Planner<'a> {
    pub(super) fn new(
        source: EntrySource<'a>,
        options: &'a TarOptions,
        pipeline: &'a Pipeline<Job, Chunk>,
    ) -> Self {
        Self {
            source,
            options,
            pipeline,
            job: Job::default(),
            job_bytes: 0,
            dirs: Vec::new(),
            first_names: HashMap::new(),
            contents_path: None,
            shares: Shares::default(),
        }
    }

    /// Plans the members that `roots` name, each with all that is below it, and closes the
    /// pipeline.
    pub(super) fn run(mut self, roots: Vec<(Vec<u8>, Arc<dyn Inode>)>) {
        for (path, inode) in roots {
            if self.plan_root(path, inode).is_err() {
                return;
            }
        }
        if self.hand_on().is_ok() {
            self.pipeline.close();
        }
    }

    fn plan_root(&mut self, mut path: Vec<u8>, inode: Arc<dyn Inode>) -> Result<(), Stopped> {
        let id = inode.id();
        let attr = match inode.attr() {
            Ok(attr) => attr,
            Err(error) => return self.report(&path, Effect::Omitted, error),
        };
        if attr.kind != FileKind::Directory {
            let map = (attr.kind == FileKind::Regular)
                .then(|| DataMap::read(&*inode, attr.size_bytes, 0, &mut |_, _| {}));
            return self.plan_file((None, &path), &path, inode, attr, map);
        }
        let mut visited = HashSet::from([id]);
        let dir = self.add_dir(None, &path);
        path.push(b'/');
        self.add_member(&path, inode.clone(), attr, PlannedBody::None)?;
        let mut frames = vec![self.open_dir(inode, dir, path.len())];
        while let Some(frame) = frames.last_mut() {
            path.truncate(frame.path_len);
            match frame.entries.next(&self.source) {
                None => {
                    self.shares.close(&frame.entries);
                    frames.pop();
                }
                Some(Err(error)) => {
                    self.report(&path, Effect::EntriesLost, error)?;
                }
                Some(Ok(entry)) => {
                    let parent = frame.dir;
                    let below = self.plan_entry(parent, &mut path, entry, &mut visited)?;
                    frames.extend(below);
                }
            }
        }
        Ok(())
    }

    /// Plans one entry of the directory at `path`; returns the frame of a directory to go on with.
    fn plan_entry(
        &mut self,
        parent: DirIndex,
        path: &mut Vec<u8>,
        entry: LoadedEntry,
        visited: &mut HashSet<InodeId>,
    ) -> Result<Option<Frame>, Stopped> {
        let LoadedEntry { entry, file, map } = entry;
        let name = entry.name;
        path.extend_from_slice(&name);
        let error = match file {
            Err(error) => error,
            Ok(_) if path.len() > PATH_BYTES_MAX => Condition::NameTooLong.into(),
            Ok((inode, attr)) if attr.kind == FileKind::Directory => {
                if visited.insert(inode.id()) {
                    let dir = self.add_dir(Some(parent), &name);
                    path.push(b'/');
                    self.add_member(path, inode.clone(), attr, PlannedBody::None)?;
                    return Ok(Some(self.open_dir(inode, dir, path.len())));
                }
                second_name(inode.id()).into()
            }
            Ok((inode, attr)) => {
                let place = (Some(parent), &*name);
                self.plan_file(place, path, inode, attr, map)?;
                return Ok(None);
            }
        };
        self.report(path, Effect::Omitted, error)?;
        Ok(None)
    }

    /// Plans what is no directory. `place` is its directory and its name in it.
    fn plan_file(
        &mut self,
        place: (Option<DirIndex>, &[u8]),
        path: &[u8],
        inode: Arc<dyn Inode>,
        attr: Attr,
        map: Option<platter_vfs::Result<DataMap>>,
    ) -> Result<(), Stopped> {
        if attr.kind == FileKind::Socket {
            return self.add_piece(
                Piece::Hitch(Hitch::new(path, Effect::SocketIgnored, None)),
                0,
            );
        }
        if attr.links > 1 {
            if let Some((dir, name)) = self.first_names.get(&inode.id()) {
                let first = self.path_of(*dir, name);
                let first = self.job.add_text(&first);
                self.job_bytes += first.len() as u64;
                return self.add_member(path, inode, attr, PlannedBody::HardLink(first));
            }
            // What is left out is left out under all of its names.
            if let Err(error) = check_readable(&*inode, &attr) {
                return self.report(path, Effect::Omitted, error);
            }
            self.first_names
                .insert(inode.id(), (place.0, place.1.into()));
        }
        match attr.kind {
            FileKind::Regular => self.plan_regular(path, &inode, attr, map),
            FileKind::Symlink => self.add_member(path, inode, attr, PlannedBody::Symlink),
            FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Directory
            | FileKind::Socket => self.add_member(path, inode, attr, PlannedBody::None),
        }
    }

    fn plan_regular(
        &mut self,
        path: &[u8],
        inode: &Arc<dyn Inode>,
        attr: Attr,
        map: Option<platter_vfs::Result<DataMap>>,
    ) -> Result<(), Stopped> {
        let size_bytes = attr.size_bytes;
        if let Err(error) = check_readable(&**inode, &attr) {
            return self.report(path, Effect::Omitted, error);
        }
        let map = match map {
            Some(Ok(map)) => map,
            None => DataMap::dense(size_bytes),
            // Reading it returns the error again, together with what is missing.
            Some(Err(_)) if size_bytes <= HEAD_BYTES => DataMap::dense(size_bytes),
            Some(Err(error)) => {
                let effect = Effect::ZeroFilled { bytes: size_bytes };
                self.report(path, effect, error)?;
                DataMap::hole(size_bytes)
            }
        };
        if self.options.sparse && map.is_sparse() {
            let ranges = map.data().to_vec();
            let data_bytes = map.data_bytes();
            self.add_member(path, Arc::clone(inode), attr, PlannedBody::Sparse(map))?;
            for range in ranges {
                self.add_data(path, inode, range)?;
            }
            // The map in front of the data fills whole blocks.
            return self.add_piece(Piece::End(data_bytes), 0);
        }
        self.add_member(path, Arc::clone(inode), attr, PlannedBody::Dense)?;
        self.add_data(path, inode, 0..size_bytes)?;
        self.add_piece(Piece::End(size_bytes), 0)
    }

    /// Adds the bytes of `range`, in pieces.
    fn add_data(
        &mut self,
        path: &[u8],
        inode: &Arc<dyn Inode>,
        range: Range<u64>,
    ) -> Result<(), Stopped> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(JOB_BYTES));
            if at >= HEAD_BYTES {
                inode.will_need(at..end);
            }
            let text = match &self.contents_path {
                Some(text) => text.clone(),
                None => self.job.add_text(path),
            };
            self.contents_path = Some(text.clone());
            let piece = Piece::Data {
                path: text,
                inode: Arc::clone(inode),
                range: at..end,
            };
            self.add_piece(piece, end - at)?;
            at = end;
        }
        Ok(())
    }

    fn add_member(
        &mut self,
        path: &[u8],
        inode: Arc<dyn Inode>,
        attr: Attr,
        body: PlannedBody,
    ) -> Result<(), Stopped> {
        let text = self.job.add_text(path);
        self.contents_path = Some(text.clone());
        let piece = Piece::Member {
            path: text,
            inode,
            attr: Box::new(attr),
            body,
        };
        self.add_piece(piece, path.len() as u64)
    }

    fn report(
        &mut self,
        path: &[u8],
        effect: Effect,
        error: platter_vfs::Error,
    ) -> Result<(), Stopped> {
        self.add_piece(Piece::Hitch(Hitch::new(path, effect, Some(error))), 0)
    }

    fn add_piece(&mut self, piece: Piece, len_bytes: u64) -> Result<(), Stopped> {
        self.job.pieces.push(piece);
        self.job_bytes += len_bytes;
        if self.job_bytes >= JOB_BYTES || self.job.pieces.len() >= JOB_PIECES {
            return self.hand_on();
        }
        Ok(())
    }

    fn hand_on(&mut self) -> Result<(), Stopped> {
        self.job_bytes = 0;
        self.contents_path = None;
        let job = std::mem::take(&mut self.job);
        if job.pieces.is_empty() || self.pipeline.push(job) {
            return Ok(());
        }
        Err(Stopped)
    }

    fn add_dir(&mut self, parent: Option<DirIndex>, name: &[u8]) -> DirIndex {
        self.dirs.push(Dir {
            parent,
            name: name.into(),
        });
        DirIndex(self.dirs.len() - 1)
    }

    /// The path of `name` in `dir`.
    fn path_of(&self, dir: Option<DirIndex>, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut above = dir;
        while let Some(DirIndex(index)) = above {
            let dir = &self.dirs[index];
            names.push(&dir.name);
            above = dir.parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// A frame for a directory whose path, with a slash at the end, has `path_len` bytes.
    fn open_dir(&mut self, inode: Arc<dyn Inode>, dir: DirIndex, path_len: usize) -> Frame {
        Frame {
            dir,
            path_len,
            entries: self.shares.open(inode, WalkOrder::Name),
        }
    }
}

/// Refuses what cannot become a member: an encrypted file, a symbolic link without a target.
fn check_readable(inode: &dyn Inode, attr: &Attr) -> platter_vfs::Result<()> {
    match attr.kind {
        FileKind::Regular if attr.flags & FLAG_ENCRYPTED != 0 => {
            inode.read_at(0, &mut [0]).map(drop)
        }
        FileKind::Symlink => inode.read_link().map(drop),
        FileKind::Regular
        | FileKind::Directory
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => Ok(()),
    }
}
