//! Free space as `statfs` reports it, compared with the kernel.

use anyhow::{Context, Result};
use platter_btrfs::{Btrfs, MountOptions};
use platter_vfs::{DetailValue, Filesystem};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::tool;

use super::image::{Pool, mount};

/// Compares what both mounts say of their space.
pub(super) fn same_space(ours: &Btrfs, kernel: &Mount) -> Result<()> {
    let theirs = rustix::fs::statvfs(kernel.root())?;
    let stat = ours.stat_fs()?;
    let found = (stat.blocks, stat.blocks_free, stat.blocks_available);
    let expected = (theirs.f_blocks, theirs.f_bfree, theirs.f_bavail);
    assert_eq!(found, expected, "blocks, free, available");
    assert_eq!(u64::from(stat.block_bytes), theirs.f_bsize);
    assert_eq!(stat.id, theirs.f_fsid);
    Ok(())
}

/// Compares what the description says of space with `btrfs filesystem usage`.
fn same_usage(ours: &Btrfs, kernel: &Mount) -> Result<()> {
    let mut usage = tool::command("btrfs");
    usage.args(["filesystem", "usage", "-b"]).arg(kernel.root());
    let text = tool::succeed(&mut usage)?.text();
    let of_device = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        let line = line.map(str::trim).unwrap_or_default();
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let description = ours.describe();
    for (name, key) in [
        ("Device size:", "device_bytes"),
        ("Device allocated:", "allocated_bytes"),
        ("Device unallocated:", "unallocated_bytes"),
        ("Device missing:", "missing_bytes"),
        ("Used:", "device_used_bytes"),
        ("Free (estimated):", "free_bytes"),
        ("Data ratio:", "data_ratio"),
        ("Metadata ratio:", "metadata_ratio"),
        ("Global reserve:", "reserve_bytes"),
        ("Multiple profiles:", "multiple_profiles"),
    ] {
        let found = description.detail(key).context(key)?.to_string();
        assert_eq!(found, of_device(name), "{name} {text}");
    }
    let least = description.detail("free_min_bytes").context("free")?;
    assert!(text.contains(&format!("(min: {least})")), "{least} {text}");
    let mut count = 0;
    for detail in &description.details {
        let DetailValue::Item { fields, .. } = &detail.value else {
            continue;
        };
        let value = |key: &str| {
            let field = fields.iter().find(|field| field.key == key);
            field
                .map(|field| field.value.to_string())
                .unwrap_or_default()
        };
        if detail.key == "space" {
            let kind = match &*value("kind") {
                "data" => "data",
                "metadata" => "metadata",
                "system" => "system",
                _ => "data+metadata",
            };
            let (profile, total, used) =
                (value("profile"), value("total_bytes"), value("used_bytes"));
            let line = format!("{kind},{profile}: size:{total}, used:{used} ");
            assert!(text.to_lowercase().contains(&line), "{line} in {text}");
            count += 1;
        }
    }
    assert!(count >= 2, "{text}");
    Ok(())
}

/// Makes a filesystem of devices of these sizes, and compares its free space when it is empty and when
/// it is filled.
fn space(sizes_mib: &[u64], options: &[&str]) -> Result<()> {
    let pool = Pool::of_sizes(sizes_mib, options)?;
    for script in [
        "true",
        r#"head -c 20M /dev/urandom > "$1/file"; seq 100000 > "$1/text""#,
    ] {
        pool.run("", script)?;
        // Devices that take no writes would make block groups read-only.
        let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::Replay)?;
        let ours = mount(&pool.devices()?, &MountOptions::default())?;
        same_space(&ours, &kernel).with_context(|| format!("{options:?}"))?;
        same_usage(&ours, &kernel)?;
    }
    Ok(())
}

#[test]
fn space_of_one_device_is_that_of_the_kernel() -> Result<()> {
    space(&[300], &[])?;
    space(&[300], &["-d", "dup", "-m", "dup", "-n", "4096"])?;
    space(&[300], &["-m", "single", "-R", "^free-space-tree"])?;
    space(&[120], &["-M"])
}

#[test]
fn space_of_mirrors_is_that_of_the_kernel() -> Result<()> {
    space(&[300, 200, 250], &["-d", "raid1", "-m", "raid1"])?;
    space(&[200, 300, 200], &["-d", "raid1c3", "-m", "raid1c3"])?;
    space(&[200, 300, 200, 250], &["-d", "raid1c4", "-m", "raid1"])?;
    space(&[200, 300, 200, 250], &["-d", "raid10", "-m", "raid10"])
}

#[test]
fn space_of_stripes_is_that_of_the_kernel() -> Result<()> {
    space(&[300, 200], &["-d", "single", "-m", "raid1"])?;
    space(&[300, 200, 250], &["-d", "raid0", "-m", "raid1"])?;
    space(&[300, 200, 250], &["-d", "raid5", "-m", "raid5"])?;
    space(&[300, 200, 250, 220], &["-d", "raid6", "-m", "raid6"])
}

/// With all rescue options but one, the kernel never writes, and reserves nothing.
#[test]
fn space_of_rescue_mounts_is_that_of_the_kernel() -> Result<()> {
    let pool = Pool::of_sizes(&[300], &[])?;
    pool.run("", r#"seq 100000 > "$1/text""#)?;
    for name in [
        "usebackuproot",
        "nologreplay",
        "ignorebadroots",
        "ignoredatacsums",
        "ignoremetacsums",
        "ignoresuperflags",
        "all",
    ] {
        let mut options = MountOptions::default();
        assert!(options.rescue.add(name));
        let kernel = Mount::images(
            FsType::Btrfs,
            &pool.paths(),
            &format!("rescue={name}"),
            Access::Replay,
        )?;
        let ours = mount(&pool.devices()?, &options)?;
        same_space(&ours, &kernel).context(name)?;
        same_usage(&ours, &kernel).context(name)?;
        drop(ours);
        kernel.release(&pool.paths())?;
    }
    Ok(())
}
