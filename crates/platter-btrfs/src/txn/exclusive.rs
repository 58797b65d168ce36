//! Data that is written where it is: extents to which one file alone refers, and that stay so meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use platter_block::lock::{Condvar, Mutex};
use platter_vfs::Result;

use super::extents::Extent;
use super::{FileRange, WriteContext};
use crate::delayed_refs::{ExtentKind, RefKey};
use crate::ondisk::extent_item::{ExtentItem, ExtentRef};
use crate::ondisk::file_extent::ExtentPlace;
use crate::ondisk::{Generation, TreeId};
use crate::tree::Cursor;

/// Keeps writing in place apart from what makes extents shared without the files being locked, that is snapshots,
/// and from reading extents that must not change meanwhile, to move or scrub a group.
#[derive(Debug, Default, Clone)]
pub struct InPlaceGate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    /// The threads inside, and those that wait.
    threads: Mutex<GateThreads>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateThreads {
    /// Those that write in place, one for each file that they write.
    writing: Vec<Writing>,
    /// How many keep others from it.
    excluding: u32,
    /// The addresses of a group that is held.
    held: Option<Range<u64>>,
    /// How often a group was held, and let go.
    released: u64,
}

impl GateThreads {
    fn is_held(&self, range: &Range<u64>) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| overlaps(held, range))
    }

    /// Whether a thread may not begin to write in a range, as a group is held. One that writes there already is waited
    /// for.
    fn keeps_out(&self, thread: ThreadId, range: &Range<u64>) -> bool {
        let mut writing = self.writing.iter();
        self.is_held(range) && !writing.any(|it| it.0 == thread && self.is_held(&it.1))
    }
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A thread, and the logical addresses that it may write.
#[derive(Debug)]
struct Writing(ThreadId, Range<u64>);

/// A thread writes in place. It may end in another one.
#[derive(Debug)]
pub struct InPlaceTurn {
    gate: Arc<GateState>,
    thread: ThreadId,
    range: Range<u64>,
    /// How often groups had been let go when it began.
    released: u64,
}

/// No thread writes in place.
#[derive(Debug)]
pub struct NoneInPlace(Arc<GateState>);

/// No thread writes in place in a group.
#[derive(Debug)]
pub struct NoneInGroup(Arc<GateState>);

impl InPlaceGate {
    /// Begins to write in place: from before the extent is found to be exclusive until the write is done. May wait
    /// for a snapshot, so the caller has no handle.
    #[must_use]
    pub fn enter(&self) -> InPlaceTurn {
        let own = thread::current().id();
        let mut threads = self.0.threads.lock();
        // One that writes several files is waited for until it has written all.
        while threads.excluding > 0 && !threads.writing.iter().any(|it| it.0 == own) {
            self.0.changed.wait(&mut threads);
        }
        threads.writing.push(Writing(own, 0..0));
        InPlaceTurn {
            gate: Arc::clone(&self.0),
            thread: own,
            range: 0..0,
            released: threads.released,
        }
    }

    /// Whether a range is being written in place.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let threads = self.0.threads.lock();
        let covers = |it: &Writing| it.1.start <= range.start && range.end <= it.1.end;
        threads.writing.iter().any(covers)
    }

    /// Waits for all that is being written in place, and lets nothing else begin. The caller has no handle.
    #[must_use]
    pub fn exclude(&self) -> NoneInPlace {
        let mut threads = self.0.threads.lock();
        threads.excluding += 1;
        while !threads.writing.is_empty() {
            self.0.changed.wait(&mut threads);
        }
        NoneInPlace(Arc::clone(&self.0))
    }

    /// Waits for what is being written in place in a group, and lets nothing else begin there. One thread does so at
    /// a time; it has no handle, and no other has data that it allocated in the group.
    #[must_use]
    pub fn exclude_from(&self, group: Range<u64>) -> NoneInGroup {
        let mut threads = self.0.threads.lock();
        threads.held = Some(group.clone());
        // Those that have not said where they write find out that it is held.
        let is_inside = |it: &Writing| it.1.is_empty() || overlaps(&it.1, &group);
        while threads.writing.iter().any(is_inside) {
            self.0.changed.wait(&mut threads);
        }
        NoneInGroup(Arc::clone(&self.0))
    }

    /// Returns when a range is in no group that is held, or the caller writes in place there. It has no handle.
    pub fn wait_for(&self, range: &Range<u64>) {
        let own = thread::current().id();
        let mut threads = self.0.threads.lock();
        while threads.keeps_out(own, range) {
            self.0.changed.wait(&mut threads);
        }
    }
}

impl InPlaceTurn {
    /// Says which addresses are written, if they are found to be exclusive: what is there does not move from now on.
    /// `None` if they are in a group that is held, or one was let go since the turn began, and they may have moved: then
    /// that is [waited for](InPlaceGate::wait_for), and they are looked up again.
    #[must_use]
    pub fn covering(mut self, range: Range<u64>) -> Option<Self> {
        let mut threads = self.gate.threads.lock();
        let may_have_moved = threads.released != self.released;
        if may_have_moved || threads.keeps_out(self.thread, &range) {
            drop(threads);
            return None;
        }
        let own = |it: &&mut Writing| it.0 == self.thread && it.1 == self.range;
        if let Some(own) = threads.writing.iter_mut().find(own) {
            own.1 = range.clone();
        }
        drop(threads);
        self.gate.changed.notify_all();
        self.range = range;
        Some(self)
    }
}

impl Drop for InPlaceTurn {
    fn drop(&mut self) {
        let mut threads = self.gate.threads.lock();
        let own = |it: &Writing| it.0 == self.thread && it.1 == self.range;
        let own = threads.writing.iter().position(own);
        threads.writing.swap_remove(own.expect("it was added"));
        drop(threads);
        self.gate.changed.notify_all();
    }
}

impl Drop for NoneInPlace {
    fn drop(&mut self) {
        self.0.threads.lock().excluding -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for NoneInGroup {
    fn drop(&mut self) {
        let mut threads = self.0.threads.lock();
        threads.held = None;
        threads.released += 1;
        drop(threads);
        self.0.changed.notify_all();
    }
}

/// Whether a file extent of this generation is all that refers to its data, and that may be written.
pub(crate) fn is_exclusive(
    fs: &WriteContext,
    range: FileRange,
    place: &ExtentPlace,
    generation: Generation,
) -> Result<bool> {
    if generation <= fs.tree(range.tree)?.view().now.last_snapshot {
        return Ok(false);
    }
    let own = RefKey::Data {
        tree: range.tree,
        inode: range.inode,
        offset: range.offset.wrapping_sub(place.offset),
    };
    let extent = Extent {
        address: place.logical,
        len_bytes: place.disk_bytes,
        kind: ExtentKind::Data,
    };
    let extent_tree = fs.tree(TreeId::EXTENT)?;
    loop {
        let tree = extent_tree.lock();
        let Ok((is_own, must_insert)) = fs.refs.pending_of(place.logical, own) else {
            drop(tree);
            fs.refs.wait_for(place.logical);
            continue;
        };
        if !is_own || must_insert {
            return Ok(is_own);
        }
        let key = extent.item_key();
        let mut cursor = Cursor::new(fs.blocks(), tree.now.tree);
        cursor.seek(key)?;
        let Some((_, data)) = cursor.item().filter(|(found, _)| *found == key) else {
            return Ok(false);
        };
        let item = ExtentItem::decode(key, data, tree.now.tree.locus(key))?;
        let of_own = item.inline.iter().map(|reference| {
            let &ExtentRef::Data {
                tree,
                inode,
                offset,
                count,
            } = reference
            else {
                return 0;
            };
            let key = RefKey::Data {
                tree,
                inode,
                offset,
            };
            if key == own { u64::from(count) } else { 0 }
        });
        return Ok(item.refs > 0 && of_own.sum::<u64>() == item.refs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_from_before_a_release_are_looked_up_again() {
        let gate = InPlaceGate::default();
        let held = gate.exclude_from(0..100);
        let turn = gate.enter();
        drop(held);
        assert!(turn.covering(10..20).is_none());
        assert!(gate.enter().covering(10..20).is_some());
    }

    #[test]
    fn thread_that_is_waited_for_waits_for_nothing() {
        let gate = InPlaceGate::default();
        let first = gate.exclude_from(0..100);
        let written = gate
            .enter()
            .covering(110..120)
            .expect("nothing is held there");
        let second = gate.enter();
        drop(first);
        thread::scope(|scope| {
            let holding = scope.spawn(|| gate.exclude_from(100..200));
            while gate.0.threads.lock().held.is_none() {
                thread::yield_now();
            }
            assert!(second.covering(120..130).is_none());
            gate.wait_for(&(120..130));
            assert!(gate.enter().covering(120..130).is_some());
            assert!(!holding.is_finished());
            drop(written);
            drop(holding.join().unwrap());
        });
    }
}
