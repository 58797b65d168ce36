//! The threads, and what must hold of them in every schedule.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shuttle::thread;

use crate::dentry::{DentryCache, Recall, Remembered};
use crate::inode_cache::{InodeCache, Seat};
use crate::{InodeId, Model, Name};

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "one_object_per_inode_at_any_time",
        run: || one_object_at_any_time(0),
    },
    Model {
        name: "one_object_per_inode_with_evictions",
        run: || one_object_at_any_time(16),
    },
    Model {
        name: "failing_loads_leave_no_waiter",
        run: failing_loads_leave_no_waiter,
    },
    Model {
        name: "no_outdated_name_is_remembered",
        run: no_outdated_name_is_remembered,
    },
    Model {
        name: "a_reused_number_is_not_found_by_its_old_name",
        run: a_reused_number_is_not_found_by_its_old_name,
    },
];

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

fn id(number: u64) -> InodeId {
    InodeId { tree: 0, number }
}

/// An object that notices whether another of its inode exists, also while it is loaded or dropped.
struct Object {
    alive: Arc<AtomicUsize>,
    _seat: Seat<Self>,
}

impl Object {
    fn load(alive: &Arc<AtomicUsize>, seat: Seat<Self>) -> Self {
        assert_eq!(
            alive.fetch_add(1, Ordering::SeqCst),
            0,
            "two objects for one inode"
        );
        thread::yield_now();
        Self {
            alive: Arc::clone(alive),
            _seat: seat,
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        thread::yield_now();
        assert_eq!(self.alive.fetch_sub(1, Ordering::SeqCst), 1);
    }
}

fn one_object_at_any_time(recent_max: usize) {
    let cache = Arc::new(InodeCache::new(recent_max));
    let alive = [Arc::default(), Arc::default()];
    let threads = (0..3).map(|number: usize| {
        let (cache, alive) = (Arc::clone(&cache), alive.clone());
        thread::spawn(move || {
            for round in 0..2 {
                let which = (number + round) % 2;
                // Neighbours are in the same part of the table, so that the two push each other out.
                let id = [id(1), id(2)][which];
                let object =
                    cache.get_or_load(id, |seat| Ok::<_, ()>(Object::load(&alive[which], seat)));
                let object = object.unwrap();
                thread::yield_now();
                assert_eq!(object.alive.load(Ordering::SeqCst), 1);
                if round == 1 {
                    cache.release(id);
                }
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    join(threads);
    cache.release_all();
    assert!(
        alive
            .iter()
            .all(|alive: &Arc<AtomicUsize>| alive.load(Ordering::SeqCst) == 0)
    );
}

fn failing_loads_leave_no_waiter() {
    let cache = Arc::new(InodeCache::<Object>::new(4));
    let alive = Arc::new(AtomicUsize::new(0));
    let threads = (0..3).map(|number| {
        let (cache, alive) = (Arc::clone(&cache), Arc::clone(&alive));
        thread::spawn(move || {
            let loaded = cache.get_or_load(id(1), |seat| {
                thread::yield_now();
                if number == 2 {
                    Ok(Object::load(&alive, seat))
                } else {
                    Err(())
                }
            });
            if number == 2 {
                assert!(loaded.is_ok());
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    join(threads);
}

/// A directory of one name, looked up and changed by many.
#[derive(Default)]
struct OneName {
    /// The file it names; 0 is none.
    file: AtomicU64,
}

fn name() -> Name<'static> {
    Name::new(b"name").unwrap()
}

fn look_up(cache: &DentryCache, dir: &OneName) -> u64 {
    match cache.recall(id(1), name()) {
        Recall::Known(Remembered::File(id)) => id.number,
        Recall::Known(Remembered::Missing) => 0,
        Recall::Unknown(ticket) => {
            let file = dir.file.load(Ordering::SeqCst);
            let found = match file {
                0 => Remembered::Missing,
                file => Remembered::File(id(file)),
            };
            cache.remember(&ticket, id(1), name(), found);
            file
        }
    }
}

fn no_outdated_name_is_remembered() {
    let (cache, dir) = (Arc::new(DentryCache::new(64)), Arc::new(OneName::default()));
    let changers = (1..=2).map(|file| {
        let (cache, dir) = (Arc::clone(&cache), Arc::clone(&dir));
        thread::spawn(move || {
            let change = cache.change(id(1), name());
            dir.file.store(file, Ordering::SeqCst);
            drop(change);
        })
    });
    let lookers = (0..2).map(|_| {
        let (cache, dir) = (Arc::clone(&cache), Arc::clone(&dir));
        thread::spawn(move || {
            look_up(&cache, &dir);
            look_up(&cache, &dir);
        })
    });
    let threads: Vec<_> = changers
        .collect::<Vec<_>>()
        .into_iter()
        .chain(lookers)
        .collect();
    join(threads);
    assert_eq!(look_up(&cache, &dir), dir.file.load(Ordering::SeqCst));
}

/// A name is removed and its file's number given to another file at once: a lookup that finds the
/// number by the name afterwards has found the wrong file.
fn a_reused_number_is_not_found_by_its_old_name() {
    let (cache, dir) = (Arc::new(DentryCache::new(64)), Arc::new(OneName::default()));
    let reused = Arc::new(AtomicU64::new(0));
    dir.file.store(7, Ordering::SeqCst);
    look_up(&cache, &dir);
    let remover = {
        let (cache, dir, reused) = (Arc::clone(&cache), Arc::clone(&dir), Arc::clone(&reused));
        thread::spawn(move || {
            let _change = cache.change(id(1), name());
            dir.file.store(0, Ordering::SeqCst);
            reused.store(1, Ordering::SeqCst);
        })
    };
    let looker = thread::spawn(move || {
        let was_reused = reused.load(Ordering::SeqCst) == 1;
        let found = look_up(&cache, &dir);
        assert!(!(was_reused && found == 7), "another file was found");
    });
    remover.join().unwrap();
    looker.join().unwrap();
}
