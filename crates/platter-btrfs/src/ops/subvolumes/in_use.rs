//! Subvolumes with inodes in memory: what all of these share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use platter_block::lock::Mutex;
use platter_vfs::InodeId;

use crate::context::Subvolume;
use crate::ondisk::TreeId;
use crate::tree::Tree;

/// A subvolume that has inodes in memory.
#[derive(Debug)]
pub(in crate::ops) struct InUse {
    subvolume: Subvolume,
    is_read_only: AtomicBool,
    is_deleted: AtomicBool,
    /// Send streams that are made with it.
    sends: AtomicUsize,
    /// A snapshot that still has files without names.
    is_being_made: AtomicBool,
}

/// A read-only subvolume that a send stream is made with: meanwhile it is not deleted, and takes no changes.
#[derive(Debug)]
pub(in crate::ops) struct SendInProgress(Arc<InUse>);

impl SendInProgress {
    /// The caller keeps the subvolume from being changed as a whole.
    pub(in crate::ops) fn begin(subvolume: Arc<InUse>) -> Self {
        subvolume.sends.fetch_add(1, Ordering::AcqRel);
        Self(subvolume)
    }
}

impl Drop for SendInProgress {
    fn drop(&mut self) {
        self.0.sends.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A snapshot whose files without names are deleted: no send stream is begun with it meanwhile.
#[derive(Debug)]
pub(in crate::ops) struct SnapshotInMaking(Arc<InUse>);

impl SnapshotInMaking {
    /// The caller keeps the snapshot from being sent.
    pub(in crate::ops) fn begin(snapshot: Arc<InUse>) -> Self {
        snapshot.is_being_made.store(true, Ordering::Release);
        Self(snapshot)
    }
}

impl Drop for SnapshotInMaking {
    fn drop(&mut self) {
        self.0.is_being_made.store(false, Ordering::Release);
    }
}

impl InUse {
    /// Its number.
    pub(in crate::ops) fn id(&self) -> TreeId {
        self.subvolume.id
    }

    /// Its tree.
    pub(in crate::ops) fn tree(&self) -> Tree {
        self.subvolume.tree()
    }

    /// Its root directory.
    pub(in crate::ops) fn root(&self) -> InodeId {
        root_of(&self.subvolume)
    }

    /// Whether its inodes may be changed.
    pub(in crate::ops) fn takes_changes(&self) -> bool {
        !self.is_read_only.load(Ordering::Acquire) && !self.is_deleted()
    }

    /// Says whether it refuses changes.
    pub(in crate::ops) fn set_read_only(&self, read_only: bool) {
        self.is_read_only.store(read_only, Ordering::Release);
    }

    /// Whether it was deleted: its inodes in use are still read, and not changed.
    pub(in crate::ops) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// Whether it is a snapshot that is [being made](SnapshotInMaking).
    pub(in crate::ops) fn is_being_made(&self) -> bool {
        self.is_being_made.load(Ordering::Acquire)
    }
}

/// The root directory of a subvolume.
pub(in crate::ops) fn root_of(subvolume: &Subvolume) -> InodeId {
    InodeId {
        tree: subvolume.id.0,
        number: subvolume.root_dir(),
    }
}

/// The subvolumes with inodes in memory.
#[derive(Debug, Default)]
pub(in crate::ops) struct SubvolumesInUse {
    /// Those without users go when another comes.
    table: Mutex<BTreeMap<TreeId, Weak<InUse>>>,
}

/// So many entries are looked through when one is added.
const SWEPT_MAX: usize = 64;

impl SubvolumesInUse {
    /// What inodes of the subvolume share.
    pub(in crate::ops) fn get_or_add(&self, subvolume: &Subvolume) -> Arc<InUse> {
        let mut table = self.table.lock();
        if let Some(known) = table.get(&subvolume.id).and_then(Weak::upgrade) {
            return known;
        }
        if table.len() > SWEPT_MAX {
            table.retain(|_, known| known.strong_count() > 0);
        }
        let added = Arc::new(InUse {
            subvolume: *subvolume,
            is_read_only: AtomicBool::new(subvolume.is_read_only()),
            is_deleted: AtomicBool::new(false),
            sends: AtomicUsize::new(0),
            is_being_made: AtomicBool::new(false),
        });
        table.insert(subvolume.id, Arc::downgrade(&added));
        added
    }

    /// The subvolume, if it has inodes in memory.
    pub(in crate::ops) fn get(&self, id: TreeId) -> Option<Arc<InUse>> {
        self.table.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Whether a send stream is made with the subvolume. None is begun while the caller keeps it from being changed
    /// as a whole.
    pub(in crate::ops) fn is_sent(&self, id: TreeId) -> bool {
        let known = self.get(id);
        known.is_some_and(|known| known.sends.load(Ordering::Acquire) > 0)
    }

    /// Says that a subvolume refuses changes, or takes them.
    pub(in crate::ops) fn set_read_only(&self, id: TreeId, read_only: bool) {
        if let Some(known) = self.get(id) {
            known.set_read_only(read_only);
        }
    }

    /// Says that a subvolume was deleted.
    pub(in crate::ops) fn set_deleted(&self, id: TreeId) {
        if let Some(known) = self.get(id) {
            known.is_deleted.store(true, Ordering::Release);
        }
    }
}
