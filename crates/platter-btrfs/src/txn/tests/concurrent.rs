//! Handles of several threads, commits among them, and transactions that fill up.

use std::thread;

use super::Random;
use super::image::Pool;
use super::xattrs::{Xattrs, assert_kernel_agrees, set};
use crate::txn::WriteOptions;

#[test]
fn commit_waits_for_a_walk_over_references() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    let walk = fs.delayed_refs().begin_walk();
    set(&fs, "user.one", Some(b"value"));
    thread::scope(|scope| {
        let commit = scope.spawn(|| fs.sync());
        while fs.delayed_refs().is_empty() {
            thread::yield_now();
        }
        fs.delayed_refs().end_walk(walk);
        commit.join().unwrap().unwrap();
    });
    assert!(fs.delayed_refs().is_empty());
    drop(fs);
    pool.assert_clean();
}

#[test]
fn threads_share_transactions_and_commits() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions {
        blocks_max: 64,
        heads_max: 20,
        ..WriteOptions::default()
    });
    let first = fs.superblock().generation.0;
    let mut all = Xattrs::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let fs = &fs;
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let mut xattrs = Xattrs::new();
                    for round in 0..300 {
                        let name = format!("user.{thread}.{}", random.below(200));
                        let len = random.below(900);
                        let value = random.bytes(len);
                        set(fs, &name, Some(&value));
                        xattrs.insert(name, value);
                        if round % 40 == thread * 7 {
                            fs.sync().unwrap();
                        }
                    }
                    xattrs
                })
            })
            .collect();
        for thread in threads {
            all.extend(thread.join().unwrap());
        }
    });
    fs.sync().unwrap();
    assert!(fs.superblock().generation.0 > first + 8, "several commits");
    drop(fs);
    pool.assert_clean();
    assert_kernel_agrees(&pool, &all);
}
