//! Subvolumes, snapshots and the choice of the root.

use anyhow::Result;
use platter_btrfs::{MountOptions, SubvolumeChoice};
use platter_vfs::inode::read_dir_all;
use platter_vfs::{Filesystem, Name};
use testkit::compare::Rules;

use super::image::{Pool, RULES, mount};

const SCRIPT: &str = r#"
set -e
cd "$1"
btrfs subvolume create sub
echo one > sub/file
mkdir sub/dir
btrfs subvolume create sub/dir/inner
head -c 300000 /dev/urandom > sub/dir/inner/data
btrfs subvolume snapshot sub snap
btrfs subvolume snapshot -r sub/dir/inner sub/ro
echo two >> snap/file
btrfs subvolume snapshot snap sub/again
btrfs subvolume create gone
echo x > gone/x
rm gone/x
rmdir gone
btrfs subvolume create outer
mkdir outer/plain
echo three > outer/three
ln outer/three outer/plain/hard
btrfs subvolume create default
echo default > default/file
btrfs subvolume set-default default
"#;

fn pool() -> Result<Pool> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    pool.run("", SCRIPT)?;
    Ok(pool)
}

fn of(subvolume: SubvolumeChoice) -> MountOptions {
    MountOptions {
        subvolume,
        ..MountOptions::default()
    }
}

#[test]
fn root_is_that_which_is_asked_for() -> Result<()> {
    let pool = pool()?;
    for (choice, kernel) in [
        (SubvolumeChoice::Default, ""),
        (SubvolumeChoice::Path(b"/".to_vec()), "subvol=/"),
        (
            SubvolumeChoice::Path(b"sub/dir/inner".to_vec()),
            "subvol=sub/dir/inner",
        ),
        (SubvolumeChoice::Path(b"/outer".to_vec()), "subvol=/outer"),
        (SubvolumeChoice::Id(256), "subvolid=256"),
    ] {
        // The times of directories that stand for subvolumes are those of the mount, and they have no
        // flags.
        let rules = Rules {
            times: false,
            layout: false,
            ..RULES
        };
        let outcome = pool.compare(&of(choice), kernel, rules)?;
        assert!(outcome.files > 1, "{kernel}: {outcome}");
        assert_eq!(outcome.differences, 0, "{kernel}: {outcome}");
    }
    Ok(())
}

#[test]
fn root_that_does_not_exist_is_refused() -> Result<()> {
    let pool = pool()?;
    let devices = pool.devices()?;
    for (choice, expected) in [
        (SubvolumeChoice::Id(9999), "no such file"),
        (SubvolumeChoice::Path(b"none".to_vec()), "no such file"),
        (
            SubvolumeChoice::Path(b"outer/plain".to_vec()),
            "invalid argument",
        ),
    ] {
        let error = mount(&devices, &of(choice)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    Ok(())
}

#[test]
fn inode_numbers_are_unique_in_the_mount() -> Result<()> {
    let pool = pool()?;
    let btrfs = mount(&pool.devices()?, &of(SubvolumeChoice::Id(5)))?;
    let mut pending = vec![btrfs.root()?];
    let mut numbers = Vec::new();
    while let Some(dir) = pending.pop() {
        for entry in read_dir_all(&*dir)? {
            let inode = dir.lookup(Name::new(&entry.name)?)?;
            let attr = inode.attr()?;
            assert_eq!(inode.id(), entry.id);
            assert_eq!(btrfs.shown_number(entry.id), attr.inode);
            assert_eq!(btrfs.inode_shown_as(attr.inode), Some(entry.id));
            assert_eq!(btrfs.inode(entry.id)?.attr()?, attr);
            if attr.kind == platter_vfs::FileKind::Directory {
                let above = inode.lookup(Name::new(b"..")?)?;
                assert_eq!(above.id(), dir.id());
                pending.push(inode);
            }
            if attr.links == 1 {
                numbers.push(attr.inode);
            }
        }
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(count > 15 && numbers.len() == count, "{numbers:?}");
    Ok(())
}
