//! A filesystem without space: what it accepted is written by the next sync, however little is left.

use std::sync::Arc;

use platter_vfs::{
    Condition, Context, CreateKind, Error, FallocateMode, Filesystem, Inode, Result,
};

use super::Btrfs;
use super::write_tests::{mount, name, read};
use crate::txn::tests::image::Pool;

/// The length of files that take all space for data.
const LARGE: usize = 300_000;
const SECTOR: u64 = 4096;

pub(super) fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Condition(Condition::NoSpace)))
}

fn create(root: &dyn Inode, path: &str) -> Result<Arc<dyn Inode>> {
    root.create(&Context::root(), name(path), CreateKind::Regular, 0o600)
}

/// Writes files until one is refused. Returns how many were written whole.
pub(super) fn fill(root: &dyn Inode, kind: &str, len: usize) -> usize {
    let mut count = 0;
    loop {
        let created = create(root, &format!("{kind}{count}"));
        let done = created.and_then(|file| file.write_at(0, &vec![7; len]));
        if is_full(&done) {
            return count;
        }
        done.unwrap();
        count += 1;
    }
}

pub(super) fn unlink(root: &dyn Inode, path: &str) {
    root.unlink(&Context::root(), name(path)).unwrap();
}

/// A filesystem whose space for data is taken, as the last commit has it.
fn full(pool: &Pool) -> (Btrfs, Arc<dyn Inode>) {
    let mounted = mount(pool);
    let root = mounted.root().unwrap();
    assert!(fill(&*root, "large", LARGE) > 20);
    fill(&*root, "rest", 4000);
    mounted.sync().unwrap();
    (mounted, root)
}

fn end(pool: &Pool, mounted: Btrfs, root: Arc<dyn Inode>) {
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn scattered_sectors_take_what_was_accepted() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let (mounted, root) = full(&pool);
    unlink(&*root, "large0");
    mounted.sync().unwrap();
    let count = fill(&*root, "sector", 4000);
    mounted.sync().unwrap();
    for number in (0..count).step_by(2) {
        unlink(&*root, &format!("sector{number}"));
    }
    mounted.sync().unwrap();
    // Each in two pieces.
    let pairs = fill(&*root, "pair", 8000);
    assert!(pairs > 10, "{pairs}");
    mounted.sync().unwrap();
    let file = root.lookup(name("pair0")).unwrap();
    assert_eq!(read(&*file), [7; 8000]);
    end(&pool, mounted, root);
}

#[test]
fn refused_holes_reserve_nothing() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let (mounted, root) = full(&pool);
    let files: Vec<_> = (0..20)
        .map(|number| root.lookup(name(&format!("large{number}"))).unwrap())
        .collect();
    for file in &files {
        // The sectors at its ends are to be written anew.
        let mode = FallocateMode::PunchHole;
        assert!(is_full(&file.fallocate(100..3 * SECTOR, mode)));
    }
    create(&*root, "new").unwrap();
    mounted.sync().unwrap();
    drop(files);
    end(&pool, mounted, root);
}
