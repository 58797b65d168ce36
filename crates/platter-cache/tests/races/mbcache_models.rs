//! Sharing blocks: who shares, who frees, who rewrites, and the clock's hand, at once.
//!
//! The models follow the rules of a filesystem: a block has a count of its users, changed under the
//! block's lock, and whoever frees or rewrites it takes its entry out first.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::thread;

use crate::Model;
use crate::mbcache::{Fingerprint, MbCache, Removal};

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "a_block_being_shared_is_not_freed",
        schedules: 2000,
        run: share_against_free,
    },
    Model {
        name: "a_block_being_shared_is_not_rewritten",
        schedules: 2000,
        run: share_against_rewrite,
    },
    Model {
        name: "the_clock_takes_no_entry_from_a_lookup",
        schedules: 2000,
        run: shrink_against_lookup,
    },
    Model {
        name: "referenced_and_reusable_race_without_loss",
        schedules: 2000,
        run: touch_against_full,
    },
];

const USERS_MAX: u32 = 2;
const VALUE: u64 = 1;

fn of(contents: u64) -> Fingerprint {
    Fingerprint { key: 7, contents }
}

/// A block that files share.
struct Block {
    users: u32,
    contents: u64,
}

struct Disk {
    cache: MbCache,
    block: Mutex<Block>,
}

impl Disk {
    /// One file has the block.
    fn new() -> Arc<Self> {
        let cache = MbCache::new(4);
        cache.create(of(5), VALUE, true).unwrap();
        let block = Block {
            users: 1,
            contents: 5,
        };
        Arc::new(Self {
            cache,
            block: Mutex::new(block),
        })
    }

    /// Shares the block if it holds `contents`. Whether it did.
    fn share(&self, contents: u64) -> bool {
        let Some(entry) = self.cache.find_first(of(contents)) else {
            return false;
        };
        {
            let block = self.block.lock().unwrap();
            assert!(
                block.users > 0,
                "nobody frees a block whose entry is in hand"
            );
            assert_eq!(block.contents, contents, "nor rewrites it");
        }
        let mut block = self.block.lock().unwrap();
        if block.users >= USERS_MAX {
            return false;
        }
        block.users += 1;
        if block.users == USERS_MAX {
            entry.set_reusable(false);
        }
        entry.touch();
        true
    }

    /// One user less; the last frees the block.
    fn release(&self) {
        loop {
            let mut block = self.block.lock().unwrap();
            if block.users > 1 {
                block.users -= 1;
                if block.users == USERS_MAX - 1
                    && let Some(entry) = self.cache.get(7, VALUE)
                {
                    entry.set_reusable(true);
                }
                return;
            }
            match self.cache.delete_or_get(7, VALUE) {
                Removal::Deleted => {
                    block.users = 0;
                    return;
                }
                Removal::InUse(entry) => {
                    drop(block);
                    entry.wait_unused();
                }
            }
        }
    }

    /// Rewrites the block in place, if its file is the only one, or leaves it to the others.
    fn rewrite(&self, contents: u64) {
        let mut block = self.block.lock().unwrap();
        if block.users > 1 {
            block.users -= 1;
            return;
        }
        match self.cache.delete_or_get(7, VALUE) {
            Removal::Deleted => {
                block.contents = contents;
                self.cache.create(of(contents), VALUE, true).unwrap();
            }
            // Somebody is about to share it: a copy is made instead.
            Removal::InUse(entry) => {
                drop(block);
                drop(entry);
                self.release();
            }
        }
    }
}

fn all(disk: &Arc<Disk>, threads: Vec<fn(&Disk)>) {
    let run = |work: fn(&Disk)| {
        let disk = Arc::clone(disk);
        thread::spawn(move || work(&disk))
    };
    let running: Vec<_> = threads.into_iter().map(run).collect();
    for thread in running {
        thread.join().unwrap();
    }
}

fn sharer(disk: &Disk) {
    if disk.share(5) {
        disk.release();
    }
}

fn share_against_free() {
    let disk = Disk::new();
    all(&disk, vec![sharer, sharer, Disk::release]);
    assert_eq!(disk.block.lock().unwrap().users, 0);
    assert!(disk.cache.is_empty());
}

fn share_against_rewrite() {
    let disk = Disk::new();
    all(&disk, vec![sharer, |disk| disk.rewrite(6)]);
    let block = disk.block.lock().unwrap();
    let is_indexed = disk.cache.get(7, VALUE).is_some();
    assert_eq!(is_indexed, block.users > 0);
}

fn shrink_against_lookup() {
    let disk = Disk::new();
    let shrinker = |disk: &Disk| {
        while disk.cache.shrink() > 0 {}
    };
    let reader = |disk: &Disk| {
        if let Some(entry) = disk.cache.find_first(of(5)) {
            assert_eq!(entry.value(), VALUE);
            assert!(disk.cache.get(7, VALUE).is_some(), "it stays while in hand");
        }
    };
    all(&disk, vec![shrinker, reader, reader]);
    assert!(disk.cache.len() <= 1);
}

fn touch_against_full() {
    let disk = Disk::new();
    let toucher = |disk: &Disk| {
        if let Some(entry) = disk.cache.get(7, VALUE) {
            entry.touch();
        }
    };
    let filler = |disk: &Disk| assert!(disk.share(5));
    all(&disk, vec![toucher, filler, toucher]);
    let entry = disk.cache.get(7, VALUE).unwrap();
    assert!(!entry.is_reusable(), "a full block is not suggested");
    drop(entry);
    disk.release();
    assert!(disk.cache.find_first(of(5)).is_some());
}
