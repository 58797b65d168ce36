//! Limits of quota groups: platter and the kernel refuse what exceeds them after about the same bytes, and go on once
//! some are freed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use platter_vfs::{Context, FallocateMode, Filesystem, SetAttr};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, btrfs};
use testkit::prng::Prng;

use super::super::check;
use super::super::image::{Pool, mount_writable};
use super::{Kernel, Ours, Shape, Side, file_name, fill, is_allowed, name, shown};

const MIB: u64 = 1 << 20;

/// Two subvolumes in a group, with limits of one of them, of its exclusive usage in a snapshot, and of the group.
const GROUPS: &str = r#"
btrfs quota enable "$1"
btrfs subvolume create "$1"/s0
btrfs subvolume create "$1"/s1
btrfs subvolume create "$1"/s2
btrfs subvolume create "$1"/s3
btrfs subvolume create "$1"/free
head -c 9000000 /dev/urandom > "$1"/s2/old
sync -f "$1"
until btrfs quota rescan -w "$1"; do
    sleep 0.1
done
btrfs qgroup create 1/0 "$1"
btrfs qgroup assign --no-rescan 0/256 1/0 "$1" || true
btrfs qgroup assign --no-rescan 0/257 1/0 "$1" || true
btrfs qgroup limit 20M "$1"/s0
btrfs qgroup limit 30M 1/0 "$1"
btrfs qgroup limit 12M "$1"/s2
btrfs qgroup limit -e 8M "$1"/s3
until btrfs quota rescan -w "$1"; do
    sleep 0.1
done
sync -f "$1"
"#;

/// What a course of changes came to, by name.
type Course = BTreeMap<&'static str, u64>;

/// Fills subvolumes with limits in several ways, and frees some of what is in them.
fn run(side: &mut dyn Side) -> Result<Course> {
    let mut course = Course::new();
    for (what, shape) in [
        ("small", Shape::Small),
        ("buffered", Shape::Buffered),
        ("direct", Shape::Direct),
        ("preallocated", Shape::Preallocated),
    ] {
        course.insert(what, fill(side, "s0", shape)?);
        // Nothing else is possible, either.
        let is_added = side.add("s0", Shape::Direct, 100 * MIB, &vec![1; 262_144])?;
        assert!(!is_added, "{what}");
        if shape == Shape::Small {
            assert!(!side.subvolume("s0/inner")?);
            assert!(!side.snapshot("free", "s0/snapshot")?);
        }
        if shape != Shape::Preallocated {
            side.remove("s0", &file_name(shape, 0))?;
        }
        if shape == Shape::Small {
            side.sync()?;
        }
    }
    // The group of both has a limit of its own; one that no limit is set for is not refused.
    course.insert("hierarchy", fill(side, "s1", Shape::Buffered)?);
    assert!(side.add("free", Shape::Buffered, 0, &vec![1; 4 << 20])?);
    side.remove("s0", &file_name(Shape::Preallocated, 0))?;
    course.insert("hierarchy after removal", {
        let mut at = course["hierarchy"];
        let bytes = Prng::new(77).bytes(64 << 10);
        while side.add("s1", Shape::Buffered, at, &bytes)? {
            at += bytes.len() as u64;
        }
        at
    });
    // A snapshot has the limits of its source, and what both refer to counts for each.
    assert!(side.snapshot("s2", "snapshot")?);
    course.insert("snapshot", fill(side, "snapshot", Shape::Buffered)?);
    course.insert("source", fill(side, "s2", Shape::Buffered)?);
    course.insert("exclusive", fill(side, "s3", Shape::Buffered)?);
    side.sync()?;
    // What replaces itself is within the limit, if not together with what it replaces.
    side.remove("s3", &file_name(Shape::Buffered, 0))?;
    let mut random = Prng::new(99);
    for round in 0..6 {
        for at in 0..5 {
            let bytes = random.bytes(1 << 20);
            let is_added = side.add("s3", Shape::Buffered, at * MIB, &bytes)?;
            assert!(is_added, "round {round}, MiB {at}");
        }
    }
    side.remove("s3", &file_name(Shape::Buffered, 0))?;
    side.sync()?;
    course.insert("files", fill(side, "s3", Shape::Files)?);
    for file in 0..course["files"] {
        side.remove("s3", &file_name(Shape::Files, file))?;
    }
    side.sync()?;
    assert!(side.add("s3", Shape::Buffered, 0, &random.bytes(1 << 20))?);
    side.sync()?;
    Ok(course)
}

fn is_within_limits(groups: &BTreeMap<String, Vec<u64>>) {
    for (id, numbers) in groups {
        let [referenced, exclusive, referenced_max, exclusive_max] = numbers[..] else {
            panic!("{id}: {numbers:?}");
        };
        assert!(referenced <= referenced_max, "{id}: {numbers:?}");
        assert!(exclusive <= exclusive_max, "{id}: {numbers:?}");
    }
}

#[test]
fn limits_refuse_about_what_the_kernel_refuses() -> Result<()> {
    let pool = Pool::make(1, 600 << 10, &["-m", "single"])?;
    pool.run("", GROUPS)?;
    let copy = pool.copy()?;
    let theirs = {
        let mounted = Mount::images(FsType::Btrfs, &copy.paths(), "", Access::ReadWrite)?;
        let course = run(&mut Kernel(mounted.root().to_owned()))?;
        mounted.unmount_all(&copy.paths())?;
        course
    };
    let ours = {
        let mut side = Ours(mount_writable(&pool)?);
        let course = run(&mut side)?;
        side.unmount()?;
        course
    };
    println!("ours {ours:#?}\nkernel {theirs:#?}");
    for (what, count) in &ours {
        let other = theirs[what];
        // Files are those in 8 MiB of tree blocks.
        let most = if *what == "files" { other / 3 } else { MIB };
        assert!(
            count.abs_diff(other) <= most,
            "{what}: {count}, kernel {other}"
        );
    }
    let paths: Vec<&Path> = pool.paths();
    assert_eq!(btrfs::check(&paths)?, Verdict::Clean);
    check::is_clean_for_platter(&paths)?;
    let groups = shown(&pool, false)?;
    is_within_limits(&groups);
    assert_eq!(shown(&pool, true)?, groups);
    // The kernel goes on with it.
    pool.run(
        "",
        "echo more > \"$1\"/s0/more; rm \"$1\"/s0/*; sync -f \"$1\"",
    )?;
    assert_eq!(btrfs::check(&paths)?, Verdict::Clean);
    Ok(())
}

#[test]
fn limits_do_not_refuse_a_commit_nor_a_deletion() -> Result<()> {
    let pool = Pool::make(1, 300 << 10, &["-m", "single"])?;
    pool.run("", GROUPS)?;
    // Below what there is: nothing can be written, all can be removed.
    let lower =
        "btrfs qgroup limit 1M \"$1\"/s2; btrfs subvolume snapshot \"$1\"/s2 \"$1\"/snapshot";
    pool.run("", lower)?;
    let mut side = Ours(mount_writable(&pool)?);
    for dir in ["s2", "snapshot"] {
        assert!(!side.add(dir, Shape::Buffered, 0, &[1; 4096])?);
        assert!(!side.add(dir, Shape::Files, 0, &[])?);
        let old = side.dir(dir)?.lookup(name("old"))?;
        assert!(!is_allowed(old.write_at(4096, &[1; 4096]))?, "{dir}");
        let shorter = SetAttr {
            size_bytes: Some((5 << 20) + 1),
            ..SetAttr::default()
        };
        old.set_attr(&Context::root(), &shorter)?;
        let punch = FallocateMode::PunchHole;
        old.fallocate(0..1 << 20, punch)?;
        side.sync()?;
    }
    let root = side.0.root()?;
    let ops = side.0.subvolumes().context("subvolumes")?;
    ops.delete(&Context::root(), root.id(), name("snapshot"), None)?;
    side.remove("s2", "old")?;
    side.sync()?;
    assert!(side.add("s2", Shape::Buffered, 0, &vec![1; 65536])?);
    drop(root);
    side.unmount()?;
    assert_eq!(btrfs::check(&pool.paths())?, Verdict::Clean);
    let groups = shown(&pool, false)?;
    is_within_limits(&groups);
    assert_eq!(shown(&pool, true)?, groups);
    Ok(())
}
