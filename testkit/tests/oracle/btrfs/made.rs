//! Filesystems made by platter compared with those of `mkfs.btrfs`: superblocks and chunks, `btrfs check`, and a
//! kernel that writes to them.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use platter::make::NewFilesystem;
use platter::{DeviceRole, FormatOptions, ImageSpec};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, btrfs};
use testkit::tool;

use super::image::Pool;

const MIB_KIB: u64 = 1 << 10;
const GIB_KIB: u64 = MIB_KIB << 10;

/// Options of both.
#[derive(Debug, Clone, Copy)]
struct Asked {
    devices: usize,
    size_kib: u64,
    features: &'static [(&'static str, bool)],
    words: &'static [(&'static str, &'static str)],
    node_bytes: u64,
    options: &'static [&'static str],
}

const PLAIN: Asked = Asked {
    devices: 1,
    size_kib: GIB_KIB,
    features: &[],
    words: &[],
    node_bytes: 0,
    options: &[],
};

const fn profiles(
    devices: usize,
    words: &'static [(&'static str, &'static str)],
    options: &'static [&'static str],
) -> Asked {
    Asked {
        devices,
        words,
        options,
        ..PLAIN
    }
}

const fn feature(
    features: &'static [(&'static str, bool)],
    options: &'static [&'static str],
) -> Asked {
    Asked {
        features,
        options,
        ..PLAIN
    }
}

/// Sizes in KiB that are made with the defaults.
const SIZES: [u64; 9] = [
    109 * MIB_KIB,
    123_457,
    512 * MIB_KIB,
    1_234_567,
    3 * GIB_KIB,
    49 * GIB_KIB,
    51 * GIB_KIB,
    300 * GIB_KIB,
    2048 * GIB_KIB,
];

const SETS: [Asked; 21] = [
    Asked {
        node_bytes: 4096,
        options: &["-n", "4k"],
        ..PLAIN
    },
    Asked {
        node_bytes: 65536,
        options: &["-n", "64k"],
        ..PLAIN
    },
    feature(&[("mixed-bg", true)], &["-M"]),
    feature(&[("no-holes", false)], &["-O", "^no-holes"]),
    feature(&[("skinny-metadata", false)], &["-O", "^skinny-metadata"]),
    feature(
        &[("free-space-tree", false), ("extref", false)],
        &["-R", "^free-space-tree", "-O", "^extref"],
    ),
    feature(&[("raid1c34", true)], &["-O", "raid1c34"]),
    feature(&[("quota", true)], &["-R", "quota"]),
    profiles(1, &[("csum", "xxhash")], &["--csum", "xxhash"]),
    profiles(1, &[("csum", "sha256")], &["--csum", "sha256"]),
    profiles(1, &[("csum", "blake2")], &["--csum", "blake2"]),
    profiles(1, &[("metadata", "single")], &["-m", "single"]),
    profiles(1, &[("data", "dup")], &["-d", "dup"]),
    profiles(2, &[], &[]),
    profiles(
        2,
        &[("data", "raid0"), ("metadata", "raid0")],
        &["-d", "raid0", "-m", "raid0"],
    ),
    profiles(
        2,
        &[("data", "raid1"), ("metadata", "raid1")],
        &["-d", "raid1", "-m", "raid1"],
    ),
    profiles(
        3,
        &[("data", "raid1c3"), ("metadata", "raid1c3")],
        &["-d", "raid1c3", "-m", "raid1c3"],
    ),
    profiles(
        4,
        &[("data", "raid10"), ("metadata", "raid1c4")],
        &["-d", "raid10", "-m", "raid1c4"],
    ),
    profiles(
        4,
        &[("data", "raid1"), ("metadata", "raid10")],
        &["-d", "raid1", "-m", "raid10"],
    ),
    profiles(
        3,
        &[("data", "raid5"), ("metadata", "raid1")],
        &["-d", "raid5", "-m", "raid1"],
    ),
    profiles(
        4,
        &[("data", "raid6"), ("metadata", "raid1c3")],
        &["-d", "raid6", "-m", "raid1c3"],
    ),
];

fn new(asked: &Asked) -> NewFilesystem {
    let mut new = NewFilesystem::of_type("btrfs").unwrap();
    for &(name, on) in asked.features {
        new.set_feature(name, on).unwrap();
    }
    for &(name, value) in asked.words {
        new.set_word(name, value).unwrap();
    }
    if asked.node_bytes > 0 {
        new.set_number("node-size", asked.node_bytes).unwrap();
    }
    new.set_label("a label").unwrap();
    new
}

/// A filesystem on new images.
fn make(asked: &Asked) -> Result<Pool> {
    let pool = Pool::empty(asked.devices)?;
    let mut options = FormatOptions::new(new(asked)).size_bytes(asked.size_kib << 10);
    for other in pool.images.iter().skip(1) {
        options = options.target(DeviceRole::Data, ImageSpec::new(other));
    }
    options.make(&ImageSpec::new(&pool.images[0]))?;
    Ok(pool)
}

/// Lines of a report, of which `wanted` chooses some.
fn lines(command: &[&str], image: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut btrfs = tool::command("btrfs");
    btrfs.arg("inspect-internal").args(command).arg(image);
    let text = tool::succeed(&mut btrfs)?.text();
    let squeezed = text.lines().map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.join(" ")
    });
    let is_wanted = |line: &String| !line.is_empty() && wanted(line);
    Ok(squeezed.filter(is_wanted).collect())
}

/// What the superblock says, but for identity, and what depends on the order of work.
fn superblock(image: &Path) -> Result<Vec<String>> {
    const VARYING: [&str; 16] = [
        "superblock:",
        "csum ",
        "fsid",
        "metadata_uuid",
        "generation",
        "root ",
        "chunk_root",
        "uuid_tree_generation",
        "dev_item.uuid",
        "dev_item.fsid",
        "dev_item.bytes_used",
        "backup",
        "csum_root:",
        "dev_uuid",
        "stripe ",
        "root_level",
    ];
    lines(&["dump-super", "-f"], image, |line| {
        !VARYING.iter().any(|it| line.starts_with(it))
    })
}

/// Chunks and devices: types, lengths and logical addresses; places on devices where there is one. They are read from
/// the first image that has a whole chunk tree, which is the same one of both.
fn chunks(pool: &Pool) -> Result<(usize, Vec<String>)> {
    let has_one_device = pool.images.len() == 1;
    let wanted = |line: &str| {
        let is_chunk = line.contains("CHUNK_ITEM") || line.starts_with("length ");
        let is_shape = line.starts_with("io_align ") || line.starts_with("num_stripes ");
        let is_place = line.starts_with("stripe ") || line.starts_with("devid ");
        is_chunk || is_shape || has_one_device && is_place
    };
    // Not where the item lies in its leaf.
    let without = |line: String| line.split(" itemoff").next().unwrap_or("").to_owned();
    for (index, image) in pool.images.iter().enumerate() {
        // Of several devices, some may have nothing of the tree.
        let found = lines(&["dump-tree", "-t", "chunk"], image, wanted);
        match found {
            Ok(found) if found.len() > 5 => {
                return Ok((index, found.into_iter().map(without).collect()));
            }
            Err(error) if has_one_device => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    bail!("no image has the chunk tree")
}

fn assert_equal(asked: &Asked) -> Result<()> {
    let ours = make(asked)?;
    let theirs = Pool::empty(asked.devices)?;
    let mut options = asked.options.to_vec();
    options.extend(["-L", "a label"]);
    btrfs::make(&theirs.paths(), asked.size_kib, &options)?;
    for (our, their) in ours.images.iter().zip(&theirs.images) {
        let found = superblock(our)?;
        assert!(found.len() > 30, "{asked:?}: {found:?}");
        assert_eq!(found, superblock(their)?, "{asked:?}");
    }
    assert_eq!(chunks(&ours)?, chunks(&theirs)?, "{asked:?}");
    assert_clean(&ours, asked)
}

fn assert_clean(pool: &Pool, asked: &Asked) -> Result<()> {
    let (verdict, report) = btrfs::report(&pool.paths())?;
    assert_eq!(verdict, Verdict::Clean, "{asked:?}: {report}");
    Ok(())
}

#[test]
fn made_filesystems_have_the_chunks_of_mkfs_btrfs() -> Result<()> {
    for size_kib in SIZES {
        assert_equal(&Asked { size_kib, ..PLAIN })?;
    }
    Ok(())
}

#[test]
fn options_make_what_those_of_mkfs_btrfs_make() -> Result<()> {
    SETS.iter().try_for_each(assert_equal)
}

/// A filesystem that `mkfs.btrfs` here does not make, or not so small.
const OTHERS: [Asked; 5] = [
    feature(&[("block-group-tree", true)], &[]),
    Asked {
        size_kib: 32 * MIB_KIB,
        ..PLAIN
    },
    profiles(4, &[("data", "raid5"), ("metadata", "raid6")], &[]),
    Asked {
        size_kib: 24 * MIB_KIB,
        node_bytes: 4096,
        ..PLAIN
    },
    Asked {
        size_kib: 40 * MIB_KIB,
        devices: 3,
        words: &[("metadata", "raid1c3"), ("data", "raid0")],
        ..PLAIN
    },
];

#[test]
fn kernel_writes_to_made_filesystems() -> Result<()> {
    for asked in SETS.iter().chain(&OTHERS) {
        let pool = make(asked)?;
        pool.run(
            "",
            "set -e; cd $1; for number in $(seq 100); do mkdir -p d$((number % 7)); \
             head -c $((number * 50)) /dev/zero | tr '\\0' x > d$((number % 7))/$number; done; \
             ln -s d1 link; mkdir e; mv d2 e; rm -r d3; sync",
        )?;
        assert_clean(&pool, asked)?;
        let mount = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
        assert_eq!(fs::read_dir(mount.root())?.count(), 7, "{asked:?}");
        mount.unmount_all(&pool.paths())?;
    }
    Ok(())
}

#[test]
fn nothing_of_an_older_filesystem_is_left() -> Result<()> {
    let pool = Pool::empty(1)?;
    fs::write(&pool.images[0], vec![0x5a; 120 << 20])?;
    let spec = ImageSpec::new(&pool.images[0]);
    let options = FormatOptions::new(new(&PLAIN)).overwrite(true);
    options.clone().make(&spec)?;
    assert_clean(&pool, &PLAIN)?;
    pool.run("", "echo text > $1/file")?;
    options.make(&spec)?;
    assert_clean(&pool, &PLAIN)?;
    let mount = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    assert_eq!(fs::read_dir(mount.root())?.count(), 0);
    mount.unmount_all(&pool.paths())
}
