//! Commits of a mount under random writes, with items of block groups compared and not: `btrfs check` finds each right.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_btrfs::txn::{CommitTotals, WriteContext, WriteOptions};
use platter_btrfs::{Btrfs, MountOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{Filesystem, SystemClock};
use rustix::fs::OFlags;
use testkit::oracle::btrfs;
use testkit::prng::Prng;
use testkit::served;

use super::image::Pool;

const FILE_BLOCKS: u64 = 4096;
const BLOCK_BYTES: usize = 4096;
/// Writes of a commit.
const WRITES: u64 = 64;
/// Commits of a normal run; `PLATTER_BTRFS_COMMITS` has another number.
const COMMITS: u64 = 6;

fn commits() -> Result<u64> {
    let given = std::env::var("PLATTER_BTRFS_COMMITS").ok();
    Ok(given.map_or(Ok(COMMITS), |text| text.parse())?)
}

/// Demands that `btrfs check` finds nothing in what is durable.
fn check(pool: &Pool) -> Result<()> {
    let (verdict, text) = btrfs::report(&pool.paths())?;
    ensure!(verdict.is_clean(), "{text}");
    Ok(())
}

/// A file on the mount that is written past the page cache.
fn direct(path: &std::path::Path) -> Result<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(flags)
        .open(path)?;
    Ok(file)
}

/// Writes blocks of a file through a mount and commits, again and again. Returns what the commits came to.
fn write_randomly(pool: &Pool, skips_unchanged_groups: bool) -> Result<CommitTotals> {
    let options = MountOptions {
        transactions: WriteOptions {
            skips_unchanged_groups,
            ..WriteOptions::default()
        },
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(32 << 20));
    let clock = Arc::new(SystemClock::new());
    let devices = pool.writable_devices()?;
    let fs = Arc::new(Btrfs::mount_writable(&devices, &options, budget, clock)?);
    let dir = tempfile::tempdir()?;
    let mut session = platter_fuse::mount(
        Arc::clone(&fs) as _,
        dir.path(),
        platter_fuse::MountOptions::default(),
    )?;
    let file = direct(&dir.path().join("file"))?;
    // Direct I/O wants bytes at a multiple of the block.
    let mut buffer = vec![0; 2 * BLOCK_BYTES];
    let start = buffer.as_ptr().align_offset(BLOCK_BYTES) % BLOCK_BYTES;
    let block = &mut buffer[start..start + BLOCK_BYTES];
    for at in 0..FILE_BLOCKS {
        file.write_all_at(block, at * BLOCK_BYTES as u64)?;
    }
    let mut random = Prng::new(1);
    for commit in 0..commits()? {
        block.fill(u8::try_from(commit % 250)?);
        for _ in 0..WRITES {
            file.write_all_at(block, random.below(FILE_BLOCKS) * BLOCK_BYTES as u64)?;
        }
        fs.sync()?;
        check(pool)?;
    }
    let totals = fs.super_block().writing().map(WriteContext::commit_totals);
    drop(file);
    served::unmount(&mut session)?;
    drop(fs);
    check(pool)?;
    Ok(totals.unwrap_or_default())
}

#[test]
fn every_commit_of_a_mount_is_clean_however_groups_are_compared() -> Result<()> {
    for has_group_tree in [false, true] {
        for skips in [false, true] {
            let pool = Pool::make(1, 512 << 10, &["-m", "single"])?;
            if has_group_tree {
                pool.convert_to_group_tree()?;
            }
            let CommitTotals {
                commits, groups, ..
            } = write_randomly(&pool, skips)?;
            println!("group tree {has_group_tree}, skips {skips}: {commits} commits, {groups:?}");
            ensure!(
                commits >= self::commits()? && groups.written > 0,
                "{groups:?}"
            );
            ensure!(skips == (groups.skipped > 0), "{groups:?}");
        }
    }
    Ok(())
}
