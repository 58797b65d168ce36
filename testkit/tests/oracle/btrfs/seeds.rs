//! The small fixtures that are mutated: each is clean for both checkers, and read as by the kernel.

use anyhow::{Context, Result, ensure};
use platter_btrfs::MountOptions;
use testkit::compare::compare;
use testkit::fixtures::{Fixture, catalogue};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};

use super::check::is_clean;
use super::image::{Pool, RULES, mount};

/// How many there are.
const SEEDS: usize = 16;

fn seeds() -> impl Iterator<Item = &'static Fixture> {
    catalogue::others().filter(|fixture| fixture.fs_type == FsType::Btrfs)
}

/// Compares a fixture with a kernel mount of a copy, which may replay its log.
fn walk(fixture: &Fixture) -> Result<()> {
    let pool = Pool::of_fixture(fixture)?;
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    ensure!(ours.superblock().log_root.is_some() == fixture.is_dirty);
    let copy = Pool::of_fixture(fixture)?;
    let (rules, access) = if fixture.is_dirty {
        (copy.replay_rules()?, Access::Replay)
    } else {
        (RULES, Access::ReadOnly)
    };
    let kernel = Mount::images(FsType::Btrfs, &copy.paths(), "", access)?;
    let outcome = compare(&ours, kernel.root(), rules)?;
    ensure!(outcome.differences == 0 && outcome.files > 3, "{outcome}");
    Ok(())
}

#[test]
fn seeds_are_clean() -> Result<()> {
    let mut count = 0;
    for fixture in seeds() {
        is_clean(&Pool::of_fixture(fixture)?.paths())?;
        count += 1;
    }
    assert_eq!(count, SEEDS);
    Ok(())
}

#[test]
fn seeds_are_read_as_by_the_kernel() -> Result<()> {
    let mut count = 0;
    for fixture in seeds() {
        walk(fixture).context(fixture.name)?;
        count += 1;
    }
    assert_eq!(count, SEEDS);
    Ok(())
}
