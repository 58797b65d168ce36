//! Simple quotas: what owns an extent is stored with it, and counted.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use platter::make::NewFilesystem;
use platter::{FormatOptions, ImageSpec};
use platter_btrfs::MountOptions;
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::{Features, Key, TreeId};
use platter_btrfs::qgroup::Stored;
use platter_vfs::Finding;
use testkit::fs_type::FsType;
use testkit::ioctl;
use testkit::loopdev::{Access, Mount};
use testkit::prng::Prng;

use super::super::check;
use super::super::corrupt::Corpus;
use super::super::image::{Pool, RULES, mount, mount_writable};
use super::{Kernel, Ours, Shape, Side, file_name, fill};

/// `BTRFS_IOC_QUOTA_CTL`, and its commands.
const QUOTA_CTL: u32 = 0xc010_9428;
const ENABLE_SIMPLE: u64 = 4;
const DISABLE: u64 = 2;

fn control(mounted: &Mount, command: u64) -> Result<()> {
    let argument = [command.to_le_bytes(), [0; 8]].concat();
    let done = ioctl::call(mounted.root(), 0, QUOTA_CTL, &argument)?;
    done.expect("the kernel has simple quotas");
    Ok(())
}

/// Changes after quotas are enabled: extents of two subvolumes and of their snapshots.
const CHANGES: &str = r"
set -e
btrfs subvolume create sub
seq 100000 > sub/text
btrfs subvolume snapshot sub snap
seq 200000 > snap/text
cp --reflink=always sub/text clone
head -c 300000 /dev/urandom > random
sync -f .
rm sub/text
";

#[test]
fn simple_quotas_are_counted_as_by_the_kernel() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &[])?;
    pool.run("", "seq 1000 > $1/before")?;
    let mounted = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadWrite)?;
    control(&mounted, ENABLE_SIMPLE)?;
    mounted.unmount_all(&pool.paths())?;
    pool.run_at_path("", CHANGES)?;
    let outcome = pool.compare(&MountOptions::default(), "", RULES)?;
    assert_eq!(outcome.differences, 0, "{outcome}");
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    let features: &Features = &ours.superblock().features;
    assert!(features.incompat_names().contains(&"squota"));
    check::is_clean_for_platter(&pool.paths())?;

    // What the kernel counted is what is counted here: more is found, and two counts that differ.
    for id in [5, 256, 257] {
        for places in [&[8][..], &[24], &[11, 27]] {
            let key = Key::new(0, ItemKind::QGROUP_INFO, id);
            let change = Corpus::new(&pool)?.change_data(TreeId::QUOTA, key, |data| {
                for at in places {
                    data[*at] ^= 1;
                }
            });
            let undo = change?.apply(&pool.images)?;
            let errors = check::check(&pool.paths())?.1.errors();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("qgroup"), "{errors:?}");
            undo.apply(&pool.images)?;
        }
    }
    // Less may be what an older kernel left.
    let key = Key::new(0, ItemKind::QGROUP_INFO, 256);
    let change = Corpus::new(&pool)?.change_data(TreeId::QUOTA, key, |data| {
        data[8..16].fill(0);
        data[24..32].fill(0);
    });
    let undo = change?.apply(&pool.images)?;
    let (report, findings) = check::check(&pool.paths())?;
    assert!(report.is_clean(), "{findings:?}");
    let is_reported = |finding: &Finding| finding.corruption.to_string().contains("qgroup");
    assert_eq!(findings.0.iter().filter(|it| is_reported(it)).count(), 1);
    undo.apply(&pool.images)?;
    check::is_clean_for_platter(&pool.paths())
}

/// What is there before simple quotas are enabled, and does not count.
const BEFORE: &str = r#"
btrfs subvolume create "$1"/old
head -c 300000 /dev/urandom > "$1"/old/first
head -c 300000 /dev/urandom > "$1"/old/second
head -c 100000 /dev/urandom > "$1"/top
"#;

/// A subvolume in a group, and one in that of another level.
const AFTER: &str = r#"
btrfs subvolume create "$1"/one
btrfs subvolume create "$1"/two
btrfs qgroup create 1/0 "$1"
btrfs qgroup create 2/0 "$1"
btrfs qgroup assign --no-rescan 0/257 1/0 "$1"
btrfs qgroup assign --no-rescan 1/0 2/0 "$1"
btrfs qgroup limit 20M 1/0 "$1"
sync -f "$1"
"#;

fn pool() -> Result<Pool> {
    let pool = Pool::make(1, 300 << 10, &["-m", "single"])?;
    pool.run("", BEFORE)?;
    let mounted = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadWrite)?;
    control(&mounted, ENABLE_SIMPLE)?;
    mounted.unmount_all(&pool.paths())?;
    pool.run("", AFTER)?;
    Ok(pool)
}

/// Changes in each way that allocates, shares and frees extents.
fn run(side: &mut dyn Side) -> Result<()> {
    let mut random = Prng::new(1);
    let mut write = |side: &mut dyn Side, dir: &str, at: u64, len: usize| {
        let is_added = side.add(dir, Shape::Buffered, at, &random.bytes(len));
        is_added.map(|is_added| assert!(is_added, "{dir}"))
    };
    write(side, "one", 0, 200_000)?;
    write(side, "two", 0, 50_000)?;
    side.sync()?;
    assert!(side.subvolume("one/inner")?);
    write(side, "one/inner", 0, 70_000)?;
    assert!(side.snapshot("one", "one/snapshot")?);
    assert!(side.snapshot("one", "outer")?);
    side.sync()?;
    // What is written anew is that of the snapshot, and the rest that of its source.
    write(side, "outer", 8192, 16384)?;
    write(side, "one", 0, 32768)?;
    let file = file_name(Shape::Buffered, 0);
    side.clone_file(&format!("one/{file}"), "", "clone")?;
    side.sync()?;
    // Allocated, shared and gone in one transaction.
    let direct = file_name(Shape::Direct, 0);
    assert!(side.add("two", Shape::Direct, 0, &random_bytes(2))?);
    side.clone_file(&format!("two/{direct}"), "one", "kept")?;
    side.remove("two", &direct)?;
    side.sync()?;
    side.remove("one", &file)?;
    assert!(side.add("one", Shape::Preallocated, 0, &vec![0; 131_072])?);
    side.remove("old", "first")?;
    write(side, "old", 0, 10_000)?;
    side.sync()?;
    side.delete_subvolume("one/inner")?;
    side.delete_subvolume("outer")?;
    side.sync()?;
    assert!(side.snapshot("two", "one/later")?);
    write(side, "one/later", 4096, 4096)?;
    side.sync()?;
    side.delete_subvolume("two")?;
    side.sync()
}

fn random_bytes(seed: u64) -> Vec<u8> {
    Prng::new(seed).bytes(262_144)
}

/// What quota groups hold in the last commit: usage and limits by group, and members. Without transactions.
type Groups = (
    BTreeMap<u64, ([u64; 4], u64, u64)>,
    BTreeMap<u64, std::collections::BTreeSet<u64>>,
);

fn groups(pool: &Pool) -> Result<Groups> {
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    let context = ours.super_block().context();
    let tree = context.tree(TreeId::QUOTA)?.context("a quota tree")?;
    let stored = Stored::read(&context.blocks, tree, 1000)?;
    let limits = &stored.limits;
    let of = |(id, info): (&u64, &platter_btrfs::ondisk::qgroup::QgroupInfo)| {
        let limit = limits.get(id).copied().unwrap_or_default();
        let (referenced, exclusive) = (info.referenced, info.exclusive);
        let usage = [referenced.0, referenced.1, exclusive.0, exclusive.1];
        (*id, (usage, limit.flags, limit.referenced_max))
    };
    Ok((stored.infos.iter().map(of).collect(), stored.members))
}

/// Removes all files and subvolumes but those that were there before quotas.
const REMOVE: &str = r#"
cd "$1"
rm -rf one/* clone top old/*
btrfs filesystem sync .
btrfs subvolume sync .
sync -f .
"#;

#[test]
fn simple_quotas_are_written_as_by_the_kernel() -> Result<()> {
    let pool = pool()?;
    let copy = pool.copy()?;
    let mounted = Mount::images(FsType::Btrfs, &copy.paths(), "", Access::ReadWrite)?;
    run(&mut Kernel(mounted.root().to_owned()))?;
    mounted.unmount_all(&copy.paths())?;
    let mut side = Ours(mount_writable(&pool)?);
    run(&mut side)?;
    side.unmount()?;
    let (ours, theirs) = (groups(&pool)?, groups(&copy)?);
    assert_eq!(ours, theirs);
    println!("{ours:#?}");
    let outcome = pool.compare(&MountOptions::default(), "", RULES)?;
    assert_eq!(outcome.differences, 0, "{outcome}");
    for pool in [&pool, &copy] {
        check::is_clean_for_platter(&pool.paths())?;
        // The kernel takes off what was added by either.
        pool.run("", REMOVE)?;
        check::is_clean_for_platter(&pool.paths())?;
    }
    let (ours, theirs) = (groups(&pool)?, groups(&copy)?);
    assert_eq!(ours, theirs);
    let used = |id: u64| ours.0.get(&id).map(|(usage, ..)| usage[0]);
    for id in [5, 256, 257] {
        assert_eq!(used(id), Some(16384), "{ours:?}");
    }
    Ok(())
}

#[test]
fn limits_hold_with_simple_quotas() -> Result<()> {
    let pool = pool()?;
    let copy = pool.copy()?;
    let run = |side: &mut dyn Side| -> Result<[u64; 2]> {
        assert!(side.subvolume("one/inner")?);
        let first = fill(side, "one", Shape::Buffered)?;
        assert!(!side.add("one/inner", Shape::Buffered, 0, &vec![1; 65536])?);
        side.remove("one", &file_name(Shape::Buffered, 0))?;
        Ok([first, fill(side, "one/inner", Shape::Direct)?])
    };
    let mounted = Mount::images(FsType::Btrfs, &copy.paths(), "", Access::ReadWrite)?;
    let theirs = run(&mut Kernel(mounted.root().to_owned()))?;
    mounted.unmount_all(&copy.paths())?;
    let mut side = Ours(mount_writable(&pool)?);
    let ours = run(&mut side)?;
    side.unmount()?;
    println!("ours {ours:?}, kernel {theirs:?}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!(ours.abs_diff(theirs) <= 1 << 20, "{ours}, kernel {theirs}");
    }
    let (groups, _) = groups(&pool)?;
    let (usage, _, most) = groups[&(1 << 48)];
    assert!(usage[0] <= most && usage[0] > most / 2, "{groups:?}");
    check::is_clean_for_platter(&pool.paths())
}

#[test]
fn owners_stay_when_simple_quotas_are_disabled() -> Result<()> {
    let pool = pool()?;
    let mounted = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadWrite)?;
    assert!(Kernel(mounted.root().to_owned()).add("one", Shape::Direct, 0, &random_bytes(1))?);
    control(&mounted, DISABLE)?;
    mounted.unmount_all(&pool.paths())?;
    let mut side = Ours(mount_writable(&pool)?);
    let direct = file_name(Shape::Direct, 0);
    // References next to an owner, and extents without one.
    side.clone_file(&format!("one/{direct}"), "two", "clone")?;
    assert!(side.add("two", Shape::Buffered, 0, &random_bytes(2))?);
    side.sync()?;
    side.remove("one", &direct)?;
    side.unmount()?;
    check::is_clean_for_platter(&pool.paths())?;
    let outcome = pool.compare(&MountOptions::default(), "", RULES)?;
    assert_eq!(outcome.differences, 0, "{outcome}");
    pool.run("", "rm -rf \"$1\"/one/* \"$1\"/two/*; sync -f \"$1\"")?;
    check::is_clean_for_platter(&pool.paths())
}

#[test]
fn made_simple_quotas_count_from_the_start() -> Result<()> {
    let pool = Pool::empty(1)?;
    let mut new = NewFilesystem::of_type("btrfs").context("btrfs")?;
    new.set_feature("squota", true)?;
    let options = FormatOptions::new(new).size_bytes(200 << 20);
    options.make(&ImageSpec::new(&pool.images[0]))?;
    check::is_clean_for_platter(&pool.paths())?;
    let used = |pool: &Pool| -> Result<u64> {
        let (groups, _) = groups(pool)?;
        Ok(groups[&TreeId::FS.0].0[0])
    };
    assert_eq!(used(&pool)?, 16384);
    pool.run(
        "",
        "head -c 409600 /dev/urandom > \"$1\"/file; sync -f \"$1\"",
    )?;
    check::is_clean_for_platter(&pool.paths())?;
    assert_eq!(used(&pool)?, 16384 + 409_600);
    let mut side = Ours(mount_writable(&pool)?);
    side.remove("", "file")?;
    assert!(side.add("", Shape::Direct, 0, &random_bytes(3))?);
    side.unmount()?;
    check::is_clean_for_platter(&pool.paths())?;
    assert_eq!(used(&pool)?, 16384 + 262_144);
    Ok(())
}
