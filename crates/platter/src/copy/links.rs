//! What files with several names have become, so that their next names can be linked to it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use platter_block::lock::Mutex;
use platter_vfs::InodeId;

use super::place::Remembered;
use crate::host_file::HostFileId;

/// An inode of a volume.
pub(super) type Key = (Arc<str>, InodeId);

/// The files with several names that were copied. All threads of a copy share it.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// What inodes have become.
    state: Mutex<LinkMap>,
}

#[derive(Debug, Default)]
struct LinkMap {
    /// Where an inode was copied to first; nothing while it is being copied, where that failed, and where the
    /// copy was overwritten since.
    copied: HashMap<Key, Option<Arc<Remembered>>>,
    /// Of which inode a file of the host is the copy.
    sources: HashMap<HostFileId, Key>,
}

impl Links {
    /// Whether no name of an inode was copied before the one that is going to be.
    pub(super) fn begin(&self, key: Key) -> bool {
        let mut map = self.state.lock();
        match map.copied.entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(first) => {
                first.insert(None);
                true
            }
        }
    }

    /// Takes in where an inode was copied to.
    pub(super) fn remember(&self, key: Key, copy: Remembered) {
        let mut map = self.state.lock();
        map.sources.insert(copy.file, key.clone());
        map.copied.insert(key, Some(Arc::new(copy)));
    }

    /// The copy of an inode that its next name can be linked to.
    pub(super) fn first(&self, key: &Key) -> Option<Arc<Remembered>> {
        self.state.lock().copied.get(key)?.clone()
    }

    /// Forgets a file of the host before it is overwritten or removed: the copy that it was, and
    /// its number, which another file may get.
    pub(super) fn forget(&self, file: HostFileId) {
        let mut map = self.state.lock();
        if let Some(key) = map.sources.remove(&file) {
            map.copied.insert(key, None);
        }
    }

    /// Whether a file is still a copy of the inode that it was remembered for.
    pub(super) fn is_known(&self, copy: &Remembered) -> bool {
        self.state.lock().sources.contains_key(&copy.file)
    }
}
