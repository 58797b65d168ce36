//! Decides what goes into the archive and in which order, and announces what will be read.
//!
//! Directories are walked depth first with their entries sorted by name. Inodes are loaded a
//! window at a time in the order of their numbers, and the contents of a group of files are
//! announced to the device in the order they lie there, so that a cold image is read in long
//! stretches whatever the names are.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corruption, Locus};
use platter_vfs::inode::OwnedDirEntry;
use platter_vfs::tree_walk::DirListing;
use platter_vfs::{Attr, Condition, FileKind, Filesystem, Inode, InodeId, NameBuf, WalkOrder};

use super::job::{Chunk, Job, Piece, PlannedBody};
use super::pipeline::Pipeline;
use super::sparse::DataMap;
use super::{Effect, Problem, TarOptions};

/// How many inodes are loaded and not planned at most, over all directories the walk is in. The
/// share of one directory is half of what those above it leave, and the same goes for entries.
const LOADED_INODES_MAX: usize = 8192;

/// How many inodes are loaded together at least.
const WINDOW_INODES_MIN: usize = 8;

/// How many bytes of listed entries are in memory.
const LISTED_BYTES_MAX: usize = 32 << 20;

/// How many bytes of contents are announced together.
const ANNOUNCED_BYTES: u64 = 32 << 20;

/// In how many ranges they lie at most.
const ANNOUNCED_RANGES_MAX: usize = 1 << 16;

/// Contents beyond this are announced as they are read.
const HEAD_BYTES: u64 = 1 << 20;

/// Announced ranges that lie at most this far apart are read as one.
const GAP_BYTES_MAX: u64 = 64 << 10;

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
    fs: &'a dyn Filesystem,
    device: Option<&'a dyn BlockDevice>,
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
    listed_bytes_left: usize,
    loaded_inodes_left: usize,
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
    listing: DirListing,
    window: VecDeque<Loaded>,
    window_inodes: usize,
    /// How many of the window's first have been announced.
    announced: usize,
}

/// An entry whose inode was looked at.
struct Loaded {
    name: NameBuf,
    file: platter_vfs::Result<(Arc<dyn Inode>, Attr)>,
    map: Option<platter_vfs::Result<DataMap>>,
}

/// The pipeline was stopped.
struct Stopped;

impl<'a> Planner<'a> {
    pub(super) fn new(
        (fs, device): (&'a dyn Filesystem, Option<&'a dyn BlockDevice>),
        options: &'a TarOptions,
        pipeline: &'a Pipeline<Job, Chunk>,
    ) -> Self {
        Self {
            fs,
            device,
            options,
            pipeline,
            job: Job::default(),
            job_bytes: 0,
            dirs: Vec::new(),
            first_names: HashMap::new(),
            contents_path: None,
            listed_bytes_left: LISTED_BYTES_MAX,
            loaded_inodes_left: LOADED_INODES_MAX,
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
            Err(error) => return self.problem(Problem::new(&path, Effect::Omitted, error)),
        };
        if attr.kind != FileKind::Directory {
            let map = (attr.kind == FileKind::Regular)
                .then(|| DataMap::read(&*inode, attr.size_bytes, 0, &mut |_| {}));
            return self.plan_file((None, &path), &path, inode, attr, map);
        }
        let mut visited = HashSet::from([id]);
        let dir = self.add_dir(None, &path);
        path.push(b'/');
        self.add_member(&path, inode.clone(), attr, PlannedBody::None)?;
        let mut frames = vec![self.open_dir(inode, dir, path.len())];
        while let Some(frame) = frames.last_mut() {
            path.truncate(frame.path_len);
            let Some(loaded) = self.next_entry(frame, &path)? else {
                self.listed_bytes_left += frame.listing.share_bytes();
                self.loaded_inodes_left += frame.window_inodes;
                frames.pop();
                continue;
            };
            let parent = frame.dir;
            if let Some(frame) = self.plan_entry(parent, &mut path, loaded, &mut visited)? {
                frames.push(frame);
            }
        }
        Ok(())
    }

    /// Plans one entry of the directory at `path`; returns the frame of a directory to go on with.
    fn plan_entry(
        &mut self,
        parent: DirIndex,
        path: &mut Vec<u8>,
        loaded: Loaded,
        visited: &mut HashSet<InodeId>,
    ) -> Result<Option<Frame>, Stopped> {
        let Loaded { name, file, map } = loaded;
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
                let locus = Locus::inode(inode.id().number);
                Corruption::new("directory", locus, "it has more than one name").into()
            }
            Ok((inode, attr)) => {
                let place = (Some(parent), &*name);
                self.plan_file(place, path, inode, attr, map)?;
                return Ok(None);
            }
        };
        self.problem(Problem::new(path, Effect::Omitted, error))?;
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
            return self.problem(Problem {
                path: path.to_vec(),
                effect: Effect::SocketIgnored,
                error: None,
            });
        }
        if attr.links > 1 {
            if let Some((dir, name)) = self.first_names.get(&inode.id()) {
                let first = self.path_of(*dir, name);
                let first = self.job.add_text(&first);
                self.job_bytes += first.len() as u64;
                return self.add_member(path, inode, attr, PlannedBody::HardLink(first));
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
        if attr.flags & FLAG_ENCRYPTED != 0
            && let Err(error) = inode.read_at(0, &mut [0])
        {
            return self.problem(Problem::new(path, Effect::Omitted, error));
        }
        let map = match map {
            Some(Ok(map)) => map,
            None => DataMap::dense(size_bytes),
            // Reading it will tell the error again, together with what is missing.
            Some(Err(_)) if size_bytes <= HEAD_BYTES => DataMap::dense(size_bytes),
            Some(Err(error)) => {
                let effect = Effect::ZeroFilled { bytes: size_bytes };
                self.problem(Problem::new(path, effect, error))?;
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

    fn problem(&mut self, problem: Problem) -> Result<(), Stopped> {
        self.add_piece(Piece::Problem(problem), 0)
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
        let share_bytes = self.listed_bytes_left / 2;
        self.listed_bytes_left -= share_bytes;
        let window_inodes = self.loaded_inodes_left / 2;
        self.loaded_inodes_left -= window_inodes;
        Frame {
            dir,
            path_len,
            listing: DirListing::new(inode, share_bytes, WalkOrder::Name),
            window: VecDeque::new(),
            window_inodes,
            announced: 0,
        }
    }

    /// The next entry of the directory at `path`, its inode loaded and its contents announced.
    fn next_entry(&mut self, frame: &mut Frame, path: &[u8]) -> Result<Option<Loaded>, Stopped> {
        if frame.window.is_empty() {
            let count = frame.window_inodes.max(WINDOW_INODES_MIN);
            let mut entries = Vec::new();
            for entry in frame.listing.by_ref().take(count) {
                match entry {
                    Ok(entry) => entries.push(entry),
                    Err(error) => self.problem(Problem::new(path, Effect::EntriesLost, error))?,
                }
            }
            frame.window = self.load(entries);
        }
        if frame.announced == 0 {
            frame.announced = self.announce(&mut frame.window);
        }
        let loaded = frame.window.pop_front();
        frame.announced = frame.announced.saturating_sub(1);
        Ok(loaded)
    }

    /// Loads the inodes of entries, in the order of their numbers.
    fn load(&self, entries: Vec<OwnedDirEntry>) -> VecDeque<Loaded> {
        let load = |id| -> platter_vfs::Result<_> {
            let inode = self.fs.inode(id)?;
            let attr = inode.attr()?;
            Ok((inode, attr))
        };
        let mut order: Vec<(usize, OwnedDirEntry)> = entries.into_iter().enumerate().collect();
        order.sort_unstable_by_key(|(_, entry)| entry.id);
        let mut loaded: Vec<(usize, Loaded)> = order
            .into_iter()
            .map(|(place, entry)| {
                let file = load(entry.id);
                let (name, map) = (entry.name, None);
                (place, Loaded { name, file, map })
            })
            .collect();
        loaded.sort_unstable_by_key(|(place, _)| *place);
        loaded.into_iter().map(|(_, loaded)| loaded).collect()
    }

    /// Finds out where the contents of the window's first files lie and announces them. Returns
    /// how many entries that were.
    fn announce(&self, window: &mut VecDeque<Loaded>) -> usize {
        let mut ranges = Vec::new();
        let (mut total_bytes, mut total_ranges) = (0, 0);
        let mut count = 0;
        for Loaded { file, map, .. } in window.iter_mut() {
            count += 1;
            let Ok((inode, attr)) = file else { continue };
            if attr.kind == FileKind::Regular && attr.size_bytes > 0 {
                let mut announce = |range| ranges.push(range);
                *map = Some(DataMap::read(
                    &**inode,
                    attr.size_bytes,
                    HEAD_BYTES,
                    &mut announce,
                ));
                total_bytes += attr.size_bytes.min(HEAD_BYTES);
            }
            let map_ranges = map
                .as_ref()
                .map_or(0, |map| map.as_ref().map_or(0, DataMap::len));
            total_ranges += map_ranges;
            if total_bytes >= ANNOUNCED_BYTES
                || total_ranges.max(ranges.len()) >= ANNOUNCED_RANGES_MAX
            {
                break;
            }
        }
        if let Some(device) = self.device {
            for range in joined(ranges) {
                device.will_need(range);
            }
        }
        count
    }
}

/// Sorts ranges and joins those that lie close together.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_BYTES_MAX) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    joined
}
