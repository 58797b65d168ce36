//! Readahead of directories: threads read the directories that a listing comes to next, so that it seldom
//! waits for the device.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use hashbrown::HashMap;
use platter_block::lock::{Condvar, Mutex};

use super::WalkOrder;
use crate::{DirCursor, FileKind, Filesystem, InodeId, Name, NameBuf};

/// Directories that are read at once.
const THREADS: usize = 3;

/// Directories read and not yet entered by the listing. Their blocks shall still be cached then.
const AHEAD_MAX: usize = 128;

/// So many are left when the threads go on, so that they seldom wake up.
const AHEAD_MIN: usize = AHEAD_MAX / 2;

/// Directories whose readahead is requested of the driver before they are read.
const REQUESTED_MAX: usize = 16;

/// Entries read ahead of one directory. The rest is read by the listing, in order.
const ENTRIES_MAX: usize = 4096;

/// Directories announced and not yet read; the farthest are dropped.
const ANNOUNCED_MAX: usize = 1 << 16;

/// What a recursive listing enters, and in what order.
#[derive(Debug, Clone, Copy)]
pub struct ListingOrder {
    /// The order of the directories in one; `None` if it depends on more than their names. Then only
    /// what is [announced](DirReadAhead::announce) is read ahead.
    pub order: Option<WalkOrder>,
    /// The last one comes first.
    pub is_reversed: bool,
    /// Whether a directory of this name is entered.
    pub is_listed: fn(&[u8]) -> bool,
}

/// Reads directories before a recursive listing enters them, about in its order.
///
/// It is a hint: the listing, which reads again, reports errors, and a thread that cannot be started is
/// left out. At most 128 directories, and 4096 entries of each, are read before the listing enters them.
pub struct DirReadAhead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    fs: Arc<dyn Filesystem>,
    order: ListingOrder,
    /// The directories of a listing.
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    progress: HashMap<InodeId, Progress>,
    /// The next directory is the last.
    announced: Vec<InodeId>,
    /// Directories read and not entered.
    ahead: usize,
    /// No more are read now.
    is_full: bool,
    has_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Announced,
    /// Announced, and its readahead was requested of the driver.
    Requested,
    Read,
    Entered,
}

impl State {
    fn is_waiting(&self, id: InodeId) -> bool {
        let progress = self.progress.get(&id);
        matches!(progress, Some(Progress::Announced | Progress::Requested))
    }

    /// Those of the next directories that were not requested, which they are now.
    fn request(&mut self) -> Vec<InodeId> {
        let next = self.announced.iter().rev().take(REQUESTED_MAX);
        let mut requested = Vec::new();
        for &id in next {
            if let Some(progress @ Progress::Announced) = self.progress.get_mut(&id) {
                *progress = Progress::Requested;
                requested.push(id);
            }
        }
        requested
    }
}

impl DirReadAhead {
    /// Starts without a directory.
    #[must_use]
    pub fn new(fs: Arc<dyn Filesystem>, order: ListingOrder) -> Self {
        let shared = Arc::new(Shared {
            fs,
            order,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let start = |_| {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name("dir-read-ahead".to_owned());
            thread.spawn(move || shared.work()).ok()
        };
        let threads = (0..THREADS).filter_map(start).collect();
        Self { shared, threads }
    }

    /// The listing comes to directory `id` now.
    pub fn enter(&self, id: InodeId) {
        let mut state = self.shared.state.lock();
        let before = state.progress.insert(id, Progress::Entered);
        if before == Some(Progress::Read) {
            state.ahead -= 1;
            if state.is_full && state.ahead <= AHEAD_MIN {
                state.is_full = false;
                drop(state);
                self.shared.changed.notify_all();
            }
        }
    }

    /// The listing comes to these directories next, in this order, and then to what was announced before.
    pub fn announce(&self, dirs: impl IntoIterator<Item = InodeId>) {
        self.shared.announce(dirs.into_iter().collect());
    }
}

impl Shared {
    fn announce(&self, dirs: Vec<InodeId>) {
        let mut state = self.state.lock();
        let before = state.announced.len();
        for id in dirs.into_iter().rev() {
            if !state.progress.contains_key(&id) {
                state.progress.insert(id, Progress::Announced);
                state.announced.push(id);
            }
        }
        let excess = state.announced.len().saturating_sub(ANNOUNCED_MAX);
        for id in state.announced.drain(..excess).collect::<Vec<_>>() {
            // It can be announced again.
            if state.is_waiting(id) {
                state.progress.remove(&id);
            }
        }
        let is_new = state.announced.len() > before && !state.is_full;
        drop(state);
        if is_new {
            self.changed.notify_all();
        }
    }

    fn work(&self) {
        while let Some((dir, requested)) = self.next() {
            for id in requested {
                self.fs.read_ahead_dir(id);
            }
            let below = self.read(dir);
            if !below.is_empty() {
                self.announce(below);
            }
        }
    }

    /// The directory to read now, and those of which readahead is to be requested; `None` at the end.
    fn next(&self) -> Option<(InodeId, Vec<InodeId>)> {
        let mut state = self.state.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if !state.is_full
                && let Some(&id) = state.announced.last()
            {
                if state.is_waiting(id) {
                    let requested = state.request();
                    state.announced.pop();
                    state.progress.insert(id, Progress::Read);
                    state.ahead += 1;
                    state.is_full = state.ahead >= AHEAD_MAX;
                    return Some((id, requested));
                }
                state.announced.pop();
                continue;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Reads a directory, and returns the directories in it that the listing enters.
    fn read(&self, dir: InodeId) -> Vec<InodeId> {
        let mut below: Vec<(NameBuf, InodeId)> = Vec::new();
        let mut count = 0;
        let is_entered = |name: Name<'_>| !name.is_dot_or_dotdot() && (self.order.is_listed)(&name);
        let read = self.fs.inode(dir).and_then(|dir| {
            dir.read_dir(DirCursor::START, &mut |entry| {
                if entry.kind == Some(FileKind::Directory) && is_entered(entry.name) {
                    below.push((entry.name.to_owned(), entry.id));
                }
                count += 1;
                if count < ENTRIES_MAX {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        });
        // The listing comes upon the same error.
        drop(read);
        match self.order.order {
            Some(WalkOrder::Name) => below.sort_unstable(),
            Some(WalkOrder::Driver) => {}
            None => below.clear(),
        }
        if self.order.is_reversed {
            below.reverse();
        }
        below.into_iter().map(|(_, id)| id).collect()
    }
}

impl Drop for DirReadAhead {
    fn drop(&mut self) {
        self.shared.state.lock().has_ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked only reads nothing ahead.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DirReadAhead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DirReadAhead")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Wild;
    use super::*;
    use crate::Filesystem;

    /// Directories two levels deep, `width` in each.
    fn wild(width: u64) -> Arc<Wild> {
        let below = |first: u64| {
            (0..width)
                .map(move |at| (at.to_string(), first + at))
                .collect()
        };
        let mut dirs = vec![below(1)];
        dirs.extend((1..=width).map(|number| below(1 + number * width)));
        dirs.extend((0..width * width).map(|_| Vec::new()));
        Arc::new(Wild::new(dirs))
    }

    fn tree(width: u64) -> Arc<dyn Filesystem> {
        wild(width)
    }

    const ALL: ListingOrder = ListingOrder {
        order: Some(WalkOrder::Driver),
        is_reversed: false,
        is_listed: |_| true,
    };

    /// All directories below `dir`, each entered as a listing does.
    fn list(fs: &Arc<dyn Filesystem>, read_ahead: &DirReadAhead, dir: InodeId) -> usize {
        read_ahead.enter(dir);
        let mut below = Vec::new();
        let inode = fs.inode(dir).unwrap();
        inode
            .read_dir(DirCursor::START, &mut |entry| {
                if !entry.name.is_dot_or_dotdot() {
                    below.push(entry.id);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        read_ahead.announce(below.iter().copied());
        let deeper = below.iter().map(|&dir| list(fs, read_ahead, dir));
        below.len() + deeper.sum::<usize>()
    }

    /// Waits until the threads have nothing to do.
    fn wait(read_ahead: &DirReadAhead, is_idle: impl Fn(&State) -> bool) -> usize {
        loop {
            let state = read_ahead.shared.state.lock();
            if is_idle(&state) {
                return state.ahead;
            }
            drop(state);
            thread::yield_now();
        }
    }

    #[test]
    fn directories_below_are_read_without_being_announced() {
        let fs = tree(4);
        let read_ahead = DirReadAhead::new(Arc::clone(&fs), ALL);
        let root = fs.root().unwrap().id();
        read_ahead.announce([root]);
        let all = 1 + 4 + 16;
        assert_eq!(wait(&read_ahead, |state| state.ahead == all), all);
        assert_eq!(list(&fs, &read_ahead, root), all - 1);
        assert_eq!(wait(&read_ahead, |state| state.announced.is_empty()), 0);
    }

    #[test]
    fn readahead_of_directories_is_requested_once() {
        let noting = wild(5);
        let fs: Arc<dyn Filesystem> = Arc::<Wild>::clone(&noting);
        let read_ahead = DirReadAhead::new(Arc::clone(&fs), ALL);
        read_ahead.announce([fs.root().unwrap().id()]);
        let all = 1 + 5 + 25;
        assert_eq!(wait(&read_ahead, |state| state.ahead == all), all);
        drop(read_ahead);
        let mut requested = std::mem::take(&mut *noting.requested.lock());
        assert_eq!(requested.len(), all);
        requested.sort_unstable();
        requested.dedup();
        assert_eq!(requested.len(), all);
    }

    #[test]
    fn readahead_is_requested_of_the_next_directories() {
        let mut state = State::default();
        for number in 0..100 {
            let id = InodeId { tree: 0, number };
            state.progress.insert(id, Progress::Announced);
            state.announced.push(id);
        }
        let mut expected = (100 - REQUESTED_MAX as u64..100).rev();
        let requested = state.request();
        assert!(
            requested
                .iter()
                .all(|id| Some(id.number) == expected.next())
        );
        assert_eq!(requested.len(), REQUESTED_MAX);
        state.announced.pop();
        assert_eq!(state.request().len(), 1);
    }

    #[test]
    fn readahead_stops_at_its_limit_and_goes_on_with_the_listing() {
        let fs = tree(20);
        let by_name = ListingOrder {
            order: Some(WalkOrder::Name),
            ..ALL
        };
        let read_ahead = DirReadAhead::new(Arc::clone(&fs), by_name);
        let root = fs.root().unwrap().id();
        read_ahead.announce([root]);
        assert_eq!(
            wait(&read_ahead, |state| state.ahead >= AHEAD_MAX),
            AHEAD_MAX
        );
        assert_eq!(list(&fs, &read_ahead, root), 20 + 400);
        let is_idle = |state: &State| state.announced.is_empty();
        assert_eq!(wait(&read_ahead, is_idle), 0);
    }

    #[test]
    fn directories_that_are_not_listed_are_not_read_ahead() {
        let fs = tree(4);
        let but_the_first = ListingOrder {
            is_listed: |name| name != b"0",
            ..ALL
        };
        let read_ahead = DirReadAhead::new(Arc::clone(&fs), but_the_first);
        read_ahead.announce([fs.root().unwrap().id()]);
        let all = 1 + 3 + 9;
        assert_eq!(wait(&read_ahead, |state| state.ahead == all), all);
        let is_idle = |state: &State| state.announced.is_empty();
        assert_eq!(wait(&read_ahead, is_idle), all);
    }

    #[test]
    fn only_announced_directories_are_read_in_an_unknown_order() {
        let fs = tree(4);
        let unknown = ListingOrder { order: None, ..ALL };
        let read_ahead = DirReadAhead::new(Arc::clone(&fs), unknown);
        let root = fs.root().unwrap().id();
        read_ahead.announce([root]);
        assert_eq!(wait(&read_ahead, |state| state.ahead == 1), 1);
        assert_eq!(list(&fs, &read_ahead, root), 4 + 16);
        let is_idle = |state: &State| state.announced.is_empty();
        assert_eq!(wait(&read_ahead, is_idle), 0);
    }
}
