//! Concurrent sharing, freeing and rewriting of blocks, with the clock's hand running.
//!
//! The models follow the rules of a filesystem: a block has a count of its users, changed under the
//! block's lock, and a thread that frees or rewrites it takes its entry out first.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::thread;

use crate::mbcache::{Design, Fingerprint, MbCache, Removal};
use crate::{MemoryBudget, Model};

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
        name: "two_threads_that_take_each_others_block_do_not_deadlock",
        schedules: 2000,
        run: exchange,
    },
    Model {
        name: "an_entry_that_comes_back_knows_whether_its_block_is_full",
        schedules: 2000,
        run: shrink_and_read_against_release,
    },
    Model {
        name: "an_entry_is_freed_once",
        schedules: 2000,
        run: create_against_delete,
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
/// Two blocks, and a third for a copy.
const BLOCKS: usize = 3;
/// Looks at blocks to share before the contents get one of their own, as a filesystem has them.
const ATTEMPTS_MAX: u32 = 8;

fn of(contents: u64) -> Fingerprint {
    Fingerprint { key: 7, contents }
}

/// A block that files share. Without users, it is free.
#[derive(Default)]
struct Block {
    users: u32,
    contents: u64,
}

struct Disk {
    cache: MbCache,
    blocks: [Mutex<Block>; BLOCKS],
}

impl Disk {
    /// The first `files` blocks have a user each, and these contents.
    fn with(contents: &[u64]) -> Arc<Self> {
        let cache = MbCache::with_limit(Design::default(), 4, Arc::new(MemoryBudget::new(1 << 20)));
        let mut blocks: [Block; BLOCKS] = Default::default();
        for (at, &contents) in contents.iter().enumerate() {
            blocks[at].users = 1;
            blocks[at].contents = contents;
            cache.create(of(contents), at as u64, true).unwrap();
        }
        Arc::new(Self {
            cache,
            blocks: blocks.map(Mutex::new),
        })
    }

    fn new() -> Arc<Self> {
        Self::with(&[5])
    }

    /// Shares a block that holds `contents`, if there is one.
    fn share(&self, contents: u64) -> Option<usize> {
        let mut found = self.cache.find_first(of(contents));
        for _ in 0..ATTEMPTS_MAX {
            let entry = found?;
            let at = usize::try_from(entry.value()).unwrap();
            {
                let block = self.blocks[at].lock().unwrap();
                assert!(
                    block.users > 0,
                    "a block whose entry is in use is not freed"
                );
                assert_eq!(
                    block.contents, contents,
                    "a block whose entry is in use is not rewritten"
                );
            }
            let mut block = self.blocks[at].lock().unwrap();
            if block.users < USERS_MAX {
                block.users += 1;
                if block.users == USERS_MAX {
                    entry.set_reusable(false);
                }
                entry.touch();
                return Some(at);
            }
            // Whatever the flag says: a full block is not looked at for ever.
            entry.set_reusable(false);
            drop(block);
            found = entry.find_next();
        }
        None
    }

    /// One user less; the last frees the block.
    fn release(&self, at: usize) {
        loop {
            let mut block = self.blocks[at].lock().unwrap();
            if block.users > 1 {
                block.users -= 1;
                if block.users == USERS_MAX - 1
                    && let Some(entry) = self.cache.get(7, at as u64)
                {
                    entry.set_reusable(true);
                }
                return;
            }
            match self.cache.delete_or_get(7, at as u64) {
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

    /// Writes new contents to the file that has block `at`: it shares a block that has them, or rewrites
    /// its own if it is the only user, or gets a copy. Returns its block then.
    fn rewrite(&self, at: usize, contents: u64) -> usize {
        if let Some(shared) = self.share(contents) {
            self.release(at);
            return shared;
        }
        {
            let mut block = self.blocks[at].lock().unwrap();
            // Another file may be about to share it: then a copy is made instead.
            if block.users == 1
                && let Removal::Deleted = self.cache.delete_or_get(7, at as u64)
            {
                block.contents = contents;
                self.cache.create(of(contents), at as u64, true).unwrap();
                return at;
            }
        }
        let copy = BLOCKS - 1;
        *self.blocks[copy].lock().unwrap() = Block { users: 1, contents };
        self.cache.create(of(contents), copy as u64, true).unwrap();
        self.release(at);
        copy
    }

    /// Reads a block that the caller has as its file's, and takes note of it.
    fn read(&self, at: usize) {
        if self.cache.contains(7, at as u64) {
            return;
        }
        let block = self.blocks[at].lock().unwrap();
        let is_reusable = block.users < USERS_MAX;
        let _ = self
            .cache
            .create(of(block.contents), at as u64, is_reusable);
    }

    /// Checks, when no thread runs, that each entry matches its block.
    fn check_quiet(&self) {
        for (at, block) in self.blocks.iter().enumerate() {
            let block = block.lock().unwrap();
            if let Some(entry) = self.cache.get(7, at as u64) {
                assert!(block.users > 0, "block {at} is free");
                assert_eq!(entry.fingerprint(), of(block.contents));
                assert_eq!(entry.is_reusable(), block.users < USERS_MAX);
            }
        }
        assert!(self.cache.len() <= BLOCKS);
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
    if let Some(at) = disk.share(5) {
        disk.release(at);
    }
}

fn share_against_free() {
    let disk = Disk::new();
    all(&disk, vec![sharer, sharer, |disk| disk.release(0)]);
    assert_eq!(disk.blocks[0].lock().unwrap().users, 0);
    assert!(disk.cache.is_empty());
}

fn share_against_rewrite() {
    let disk = Disk::new();
    let rewriter = |disk: &Disk| {
        disk.rewrite(0, 6);
    };
    all(&disk, vec![sharer, rewriter, sharer]);
    disk.check_quiet();
    let users = disk.blocks.iter().map(|block| block.lock().unwrap().users);
    assert_eq!(users.sum::<u32>(), 1);
}

/// Each of two files takes the contents of the other: a thread that shares one's block has to release
/// its entry before it waits for the other's.
fn exchange() {
    let disk = Disk::with(&[5, 6]);
    let one = |disk: &Disk| take(disk, 6, 0);
    let other = |disk: &Disk| take(disk, 5, 1);
    all(&disk, vec![one, other]);
    disk.check_quiet();
    let users = disk.blocks.iter().map(|block| block.lock().unwrap().users);
    assert_eq!(users.sum::<u32>(), 2);
}

fn take(disk: &Disk, contents: u64, at: usize) {
    if disk.share(contents).is_some() {
        disk.release(at);
    }
}

fn shrink_against_lookup() {
    let disk = Disk::new();
    let shrinker = |disk: &Disk| {
        while disk.cache.shrink() > 0 {}
    };
    let reader = |disk: &Disk| {
        if let Some(entry) = disk.cache.find_first(of(5)) {
            assert_eq!(entry.value(), 0);
            assert!(disk.cache.get(7, 0).is_some(), "it stays while in hand");
        }
    };
    all(&disk, vec![shrinker, reader, reader]);
    assert!(disk.cache.len() <= 1);
}

/// A full block loses its entry, and a reader adds it anew, while another file leaves it.
fn shrink_and_read_against_release() {
    let disk = Disk::new();
    assert_eq!(disk.share(5), Some(0));
    let shrinker = |disk: &Disk| {
        disk.cache.shrink();
        disk.cache.shrink();
    };
    all(
        &disk,
        vec![shrinker, |disk| disk.read(0), |disk| disk.release(0)],
    );
    disk.check_quiet();
}

/// An entry is deleted as soon as it is there, and shrunk at the same time: it goes once.
fn create_against_delete() {
    let disk = Disk::with(&[]);
    let shrinker = |disk: &Disk| {
        disk.cache.shrink();
    };
    let creator = |disk: &Disk| {
        let _ = disk.cache.create(of(5), 0, true);
    };
    let deleter = |disk: &Disk| {
        if let Removal::InUse(_) = disk.cache.delete_or_get(7, 0) {
            panic!("no thread has a reference to it");
        }
    };
    all(&disk, vec![creator, deleter, shrinker, creator]);
    assert!(disk.cache.len() <= 1);
    drop(disk.cache.delete_or_get(7, 0));
    assert!(disk.cache.is_empty());
}

fn touch_against_full() {
    let disk = Disk::new();
    let toucher = |disk: &Disk| {
        if let Some(entry) = disk.cache.get(7, 0) {
            entry.touch();
        }
    };
    let filler = |disk: &Disk| assert!(disk.share(5).is_some());
    all(&disk, vec![toucher, filler, toucher]);
    let entry = disk.cache.get(7, 0).unwrap();
    assert!(!entry.is_reusable(), "a full block is not suggested");
    drop(entry);
    disk.release(0);
    assert!(disk.cache.find_first(of(5)).is_some());
}
