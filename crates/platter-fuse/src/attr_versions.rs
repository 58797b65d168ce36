//! Versions of attributes (`attr_version`), so that the kernel keeps none that a concurrent change made stale. It has
//! versions of its own, but changes of names, extended attributes and times of access leave those as they are.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use platter_vfs::InodeId;

/// Number of counters. Inodes whose numbers are multiples of it apart share one: that costs a request now and then.
const COUNTERS: u64 = 4096;

/// One change that has ended. The lower half of a counter is for changes that are under way.
const ENDED: u64 = 1 << 32;

/// Counts the changes of inodes: those under way, and those that have ended.
#[derive(Debug)]
pub(crate) struct AttrVersions(Box<[AtomicU64]>);

/// What a counter was when attributes were read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttrVersion {
    index: usize,
    value: u64,
}

/// A change of attributes that is under way until it is dropped.
#[derive(Debug)]
pub(crate) struct AttrChange<'v> {
    counter: &'v AtomicU64,
    /// What the version is once this change has ended, unless there is another one.
    after: AttrVersion,
}

impl Default for AttrVersions {
    fn default() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl AttrVersions {
    /// Begins a change of an inode's attributes.
    pub(crate) fn begin(&self, id: InodeId) -> AttrChange<'_> {
        let index = index_of(id);
        let counter = &self.0[index];
        let before = counter.fetch_add(1, Ordering::SeqCst);
        let after = AttrVersion {
            index,
            value: before.wrapping_add(ENDED),
        };
        AttrChange { counter, after }
    }

    /// Returns the version of attributes that are read next.
    pub(crate) fn version(&self, id: InodeId) -> AttrVersion {
        let index = index_of(id);
        let value = self.0[index].load(Ordering::SeqCst);
        AttrVersion { index, value }
    }

    /// Whether no change was under way when attributes of this version were read, and none has begun since.
    pub(crate) fn is_current(&self, version: AttrVersion) -> bool {
        // They were read before the counter is read again.
        fence(Ordering::Acquire);
        let AttrVersion { index, value } = version;
        value.is_multiple_of(ENDED) && self.0[index].load(Ordering::SeqCst) == value
    }
}

impl AttrChange<'_> {
    /// Ends the change. Returns the version of the attributes as it left them.
    pub(crate) fn end(self) -> AttrVersion {
        self.after
    }
}

impl Drop for AttrChange<'_> {
    fn drop(&mut self) {
        self.counter.fetch_add(ENDED - 1, Ordering::SeqCst);
    }
}

fn index_of(id: InodeId) -> usize {
    let of_tree = id.tree.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let index = id.number.wrapping_add(of_tree) % COUNTERS;
    usize::try_from(index).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> InodeId {
        InodeId { tree: 0, number }
    }

    #[test]
    fn version_is_current_until_a_change_begins() {
        let versions = AttrVersions::default();
        let before = versions.version(id(12));
        assert!(versions.is_current(before));
        let change = versions.begin(id(12));
        let meanwhile = versions.version(id(12));
        assert!(!versions.is_current(before) && !versions.is_current(meanwhile));
        drop(change);
        assert!(!versions.is_current(before) && !versions.is_current(meanwhile));
        assert!(versions.is_current(versions.version(id(12))));
    }

    #[test]
    fn change_leaves_a_version_unless_another_overlaps() {
        let versions = AttrVersions::default();
        let after = versions.begin(id(12)).end();
        assert!(versions.is_current(after));
        let (first, second) = (versions.begin(id(12)), versions.begin(id(12)));
        let after = first.end();
        assert!(!versions.is_current(after));
        // It began while the other was under way.
        assert!(!versions.is_current(second.end()));
        assert!(!versions.is_current(after));
        let outer = versions.begin(id(12));
        drop(versions.begin(id(12)));
        assert!(!versions.is_current(outer.end()));
    }

    #[test]
    fn neighbours_and_trees_have_counters_of_their_own() {
        let versions = AttrVersions::default();
        let others = [id(11), id(13), InodeId { tree: 1, ..id(12) }];
        let read = others.map(|id| versions.version(id));
        let _change = versions.begin(id(12));
        assert!(read.into_iter().all(|read| versions.is_current(read)));
    }
}
