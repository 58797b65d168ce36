//! The images that mutation starts from, compared with a kernel mount, or with what `xfs_db` prints.

use anyhow::{Result, ensure};
use testkit::compare::{Rules, compare};
use testkit::fixtures::{Fixture, catalogue};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::volume;

use super::check::errors_in;
use super::printed::Printed;

/// Those that this kernel does not mount.
const UNMOUNTABLE: [&str; 2] = ["seed_xfs_4", "seed_xfs_4_small"];
/// Those that it mounts.
const MOUNTABLE: usize = 9;

fn is_mountable(fixture: &Fixture) -> bool {
    !UNMOUNTABLE.contains(&fixture.name)
}

/// The kernel replays the log of a copy.
fn compare_with_the_kernel(fixture: &Fixture) -> Result<()> {
    let built = fixture.build()?;
    let dir = tempfile::tempdir()?;
    let copy = built.copy_to(dir.path())?;
    let mount = Mount::images(FsType::Xfs, &[&copy.image], "", Access::Replay)?;
    let volume = volume::open(&built)?;
    let rules = Rules {
        // The kernel makes the identity of the device number.
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    let outcome = compare(&**volume.filesystem(), mount.root(), rules)?;
    outcome.assert_equal();
    ensure!(outcome.files > 5, "{outcome}");
    Ok(())
}

fn compare_with_xfs_db(fixture: &Fixture) -> Result<()> {
    let built = fixture.build()?;
    let volume = volume::open(&built)?;
    let compared = Printed::of(&built.image, None)?.compare(&**volume.filesystem())?;
    ensure!(compared.inodes > 5, "{compared:?}");
    Ok(())
}

#[test]
fn xfs_seeds_are_read_as_in_the_kernel() {
    let seeds = || catalogue::others().filter(|fixture| fixture.fs_type == FsType::Xfs);
    let mut mounted = 0;
    for fixture in seeds() {
        let compared = if is_mountable(fixture) {
            mounted += 1;
            compare_with_the_kernel(fixture)
        } else {
            compare_with_xfs_db(fixture)
        };
        compared.unwrap_or_else(|error| panic!("{}: {error:#}", fixture.name));
        if !fixture.is_dirty {
            let image = fixture.build().unwrap().image;
            let verdict = xfs::check_single_group(&image).unwrap();
            assert_eq!(verdict, Verdict::Clean, "{}", fixture.name);
            let errors = errors_in(&image).unwrap();
            assert_eq!(errors, [""; 0], "{}", fixture.name);
        }
    }
    assert_eq!(
        (mounted, seeds().count()),
        (MOUNTABLE, MOUNTABLE + UNMOUNTABLE.len())
    );
}
