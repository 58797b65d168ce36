//! Filesystems made by platter compared with those of `mkfs.xfs`: what `xfs_db` says of both, `xfs_repair`, and a
//! kernel that writes to them.

use std::fs;
use std::path::Path;

use platter::make::NewFilesystem;
use platter::populate::Content;
use platter::{FormatOptions, ImageSpec};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, LoopDevice, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::tool;

const MIB_KIB: u64 = 1 << 10;
const GIB_KIB: u64 = MIB_KIB << 10;
const TIB_KIB: u64 = GIB_KIB << 10;

/// Lengths in KiB that are made with the defaults.
const SIZES: [u64; 20] = [
    300 * MIB_KIB,
    307_203,
    400_001,
    512 * MIB_KIB,
    777 * MIB_KIB,
    1_234_567,
    GIB_KIB,
    2 * GIB_KIB,
    3_333_333,
    5_000_001,
    8 * GIB_KIB,
    17 * GIB_KIB,
    33 * GIB_KIB,
    100 * GIB_KIB,
    200 * GIB_KIB,
    500 * GIB_KIB,
    TIB_KIB,
    3 * TIB_KIB,
    4 * TIB_KIB,
    8 * TIB_KIB,
];

/// Lengths in KiB that are made only as unsupported ones.
const SHORT_SIZES: [u64; 12] = [
    16 * MIB_KIB,
    17_003,
    31 * MIB_KIB,
    32 * MIB_KIB,
    48_001,
    64 * MIB_KIB,
    65 * MIB_KIB,
    100 * MIB_KIB,
    128 * MIB_KIB,
    200 * MIB_KIB,
    299 * MIB_KIB,
    300 * MIB_KIB,
];

/// What makes unsupported ones.
const UNSUPPORTED: &[(&str, u64)] = &[("unsupported", 1)];

/// Options of both.
struct Asked {
    size_kib: u64,
    features: &'static [(&'static str, bool)],
    numbers: &'static [(&'static str, u64)],
    options: &'static [&'static str],
}

const fn asked(
    size_kib: u64,
    features: &'static [(&'static str, bool)],
    numbers: &'static [(&'static str, u64)],
    options: &'static [&'static str],
) -> Asked {
    Asked {
        size_kib,
        features,
        numbers,
        options,
    }
}

const SETS: [Asked; 14] = [
    asked(GIB_KIB, &[], &[("block-size", 1024)], &["-b", "size=1024"]),
    asked(
        GIB_KIB,
        &[],
        &[("block-size", 65536)],
        &["-b", "size=65536"],
    ),
    asked(GIB_KIB, &[("rmapbt", true)], &[], &["-m", "rmapbt=1"]),
    asked(
        GIB_KIB,
        &[("finobt", false), ("reflink", false)],
        &[],
        &["-m", "finobt=0,reflink=0"],
    ),
    asked(
        GIB_KIB,
        &[("sparse", false), ("bigtime", false), ("nrext64", true)],
        &[],
        &["-m", "bigtime=0", "-i", "sparse=0,nrext64=1"],
    ),
    asked(GIB_KIB, &[], &[("inode-size", 2048)], &["-i", "size=2048"]),
    asked(GIB_KIB, &[], &[("sector-size", 4096)], &["-s", "size=4096"]),
    asked(
        GIB_KIB,
        &[("rmapbt", true)],
        &[("sector-size", 2048)],
        &["-s", "size=2048", "-m", "rmapbt=1"],
    ),
    asked(
        GIB_KIB,
        &[],
        &[("dir-block-size", 65536)],
        &["-n", "size=65536"],
    ),
    asked(
        GIB_KIB,
        &[],
        &[("ag-count", 5), ("log-size", 100 << 20)],
        &["-d", "agcount=5", "-l", "size=100m"],
    ),
    asked(
        GIB_KIB,
        &[],
        &[("ag-size", 200 << 20), ("inode-percent", 50)],
        &["-d", "agsize=200m", "-i", "maxpct=50"],
    ),
    asked(
        GIB_KIB,
        &[],
        &[("log-stripe-unit", 65536)],
        &["-l", "su=64k"],
    ),
    asked(
        GIB_KIB,
        &[("rmapbt", true)],
        &[("stride", 256), ("stripe-width", 512)],
        &["-d", "su=1m,sw=2", "-m", "rmapbt=1"],
    ),
    asked(
        1_234_567,
        &[("reflink", false), ("rmapbt", true)],
        &[("stride", 16), ("stripe-width", 64)],
        &["-d", "su=64k,sw=4", "-m", "reflink=0,rmapbt=1"],
    ),
];

/// Those of filesystems that are made only as unsupported ones.
const SHORT_SETS: [Asked; 5] = [
    asked(16 * MIB_KIB, &[], UNSUPPORTED, &["--unsupported"]),
    asked(
        40 * MIB_KIB,
        &[("rmapbt", true)],
        UNSUPPORTED,
        &["--unsupported", "-m", "rmapbt=1"],
    ),
    asked(
        64 * MIB_KIB,
        &[("finobt", false), ("reflink", false)],
        UNSUPPORTED,
        &["--unsupported", "-m", "finobt=0,reflink=0"],
    ),
    asked(
        100 * MIB_KIB,
        &[("rmapbt", true)],
        &[("unsupported", 1), ("ag-count", 1), ("log-size", 20 << 20)],
        &[
            "--unsupported",
            "-m",
            "rmapbt=1",
            "-d",
            "agcount=1",
            "-l",
            "size=20m",
        ],
    ),
    asked(
        GIB_KIB,
        &[],
        &[("unsupported", 1), ("log-size", 12 << 20)],
        &["--unsupported", "-l", "size=12m"],
    ),
];

fn new(asked: &Asked) -> NewFilesystem {
    let mut new = NewFilesystem::of_type("xfs").unwrap();
    for &(name, on) in asked.features {
        new.set_feature(name, on).unwrap();
    }
    for &(name, value) in asked.numbers {
        new.set_number(name, value).unwrap();
    }
    new.set_label("a label").unwrap();
    new
}

fn make(path: &Path, asked: &Asked) {
    fs::File::create(path).unwrap();
    let spec = ImageSpec::parse(path).unwrap();
    let options = FormatOptions::new(new(asked)).size_bytes(asked.size_kib << 10);
    let options = options.overwrite(true);
    options.make(&spec).unwrap();
}

/// What `xfs_db` prints, but for identity and checksum.
fn shown(image: &Path) -> Vec<String> {
    let mut command = tool::command("xfs_db");
    command
        .args(["-c", "sb 0", "-c", "p", "-c", "info"])
        .arg(image);
    let text = tool::succeed(&mut command).unwrap().text();
    let is_shared = |line: &&str| !["uuid", "crc = "].iter().any(|it| line.starts_with(it));
    let name = image.to_str().unwrap();
    let lines = text.lines().filter(is_shared);
    lines.map(|line| line.replace(name, "IMAGE")).collect()
}

fn assert_equal(dir: &Path, asked: &Asked) {
    let (ours, theirs) = (dir.join("made"), dir.join("mkfs"));
    make(&ours, asked);
    let mut options = asked.options.to_vec();
    options.extend(["-L", "a label"]);
    let file = fs::File::create(&theirs).unwrap();
    file.set_len(asked.size_kib << 10).unwrap();
    let mut mkfs = tool::command("mkfs.xfs");
    mkfs.args(["-q", "-f"]).args(&options).arg(&theirs);
    tool::succeed(&mut mkfs).unwrap();
    let named = (asked.size_kib, asked.options);
    let lines = shown(&ours);
    assert!(lines.len() > 60, "{named:?}");
    assert_eq!(lines, shown(&theirs), "{named:?}");
    assert_clean(&ours, asked);
}

/// Of one group, `xfs_repair` has no copy of the superblock to compare with, and wants to be asked for its verdict.
fn assert_clean(image: &Path, asked: &Asked) {
    let has_one_group = shown(image).iter().any(|line| line == "agcount = 1");
    let verdict = if has_one_group {
        xfs::check_single_group(image).unwrap()
    } else {
        xfs::check(&[image]).unwrap()
    };
    let named = (asked.size_kib, asked.options);
    assert_eq!(verdict, Verdict::Clean, "{named:?}");
}

#[test]
fn made_filesystems_have_the_sizes_of_mkfs_xfs() {
    let dir = tempfile::tempdir().unwrap();
    for size_kib in SIZES {
        assert_equal(dir.path(), &asked(size_kib, &[], &[], &[]));
    }
}

#[test]
fn options_make_what_those_of_mkfs_xfs_make() {
    let dir = tempfile::tempdir().unwrap();
    for set in &SETS {
        assert_equal(dir.path(), set);
    }
}

#[test]
fn short_filesystems_have_the_sizes_of_mkfs_xfs() {
    let dir = tempfile::tempdir().unwrap();
    for size_kib in SHORT_SIZES {
        let short = asked(size_kib, &[], UNSUPPORTED, &["--unsupported"]);
        assert_equal(dir.path(), &short);
    }
}

#[test]
fn options_make_short_filesystems_as_those_of_mkfs_xfs() {
    let dir = tempfile::tempdir().unwrap();
    for set in &SHORT_SETS {
        assert_equal(dir.path(), set);
    }
}

/// What `mkfs.xfs` says is the shortest log, in blocks.
fn shortest_log(image: &Path, features: &str) -> u64 {
    let mut mkfs = tool::command("mkfs.xfs");
    mkfs.args([
        "-N",
        "-f",
        "--unsupported",
        "-l",
        "size=512b",
        "-m",
        features,
    ]);
    let text = tool::finish(mkfs.arg(image)).unwrap().text();
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.windows(3).find(|words| words[..2] == ["size", "is"]);
    at.unwrap()[2].parse().unwrap()
}

#[test]
fn short_logs_are_as_short_as_those_of_mkfs_xfs() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let switches = [false, true];
    for size_kib in [64 * MIB_KIB, 8 * TIB_KIB] {
        for (reflink, rmapbt) in switches
            .into_iter()
            .flat_map(|it| switches.map(|to| (it, to)))
        {
            for finobt in switches {
                fs::File::create(&image)
                    .unwrap()
                    .set_len(size_kib << 10)
                    .unwrap();
                let number = u8::from;
                let text = format!(
                    "reflink={},rmapbt={},finobt={}",
                    number(reflink),
                    number(rmapbt),
                    number(finobt)
                );
                let shortest = shortest_log(&image, &text);
                let make = |blocks: u64| {
                    let mut new = NewFilesystem::of_type("xfs").unwrap();
                    for (name, on) in [("reflink", reflink), ("rmapbt", rmapbt), ("finobt", finobt)]
                    {
                        new.set_feature(name, on).unwrap();
                    }
                    new.set_number("unsupported", 1).unwrap();
                    new.set_number("log-size", blocks * 4096).unwrap();
                    let spec = ImageSpec::parse(&image).unwrap();
                    FormatOptions::new(new).overwrite(true).make(&spec)
                };
                if size_kib < TIB_KIB {
                    make(shortest).unwrap();
                    assert!(xfs::check(&[&image]).unwrap() == Verdict::Clean, "{text}");
                }
                let error = make(shortest - 1).unwrap_err().to_string();
                assert!(error.contains("a log of"), "{text}: {error}");
            }
        }
    }
}

#[test]
fn kernel_writes_to_made_filesystems() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for set in SETS.iter().chain(&SHORT_SETS) {
        make(&image, set);
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
        for number in 0..300 {
            let directory = mount.root().join(format!("{}", number % 7));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(format!("{number}")), vec![7; number * 50]).unwrap();
        }
        mount.unmount(&image).unwrap();
        assert_clean(&image, set);
    }
}

#[test]
fn what_was_on_the_device_is_not_taken_for_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::write(&image, vec![0x5a; 310 << 20]).unwrap();
    let spec = ImageSpec::parse(&image).unwrap();
    let new = new(&SETS[2]);
    let options = FormatOptions::new(new).overwrite(true);
    options.make(&spec).unwrap();
    let (verdict, report) = xfs::report(&[&image]).unwrap();
    assert_eq!(verdict, Verdict::Clean, "{report}");
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    fs::write(mount.root().join("file"), b"text").unwrap();
    mount.unmount(&image).unwrap();
    let (verdict, report) = xfs::report(&[&image]).unwrap();
    assert_eq!(verdict, Verdict::Clean, "{report}");
}

#[test]
fn sizes_below_the_sectors_of_a_device_are_refused_as_by_mkfs() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image)
        .unwrap()
        .set_len(400 << 20)
        .unwrap();
    let device = LoopDevice::with_sectors(&image, 4096, Access::ReadWrite).unwrap();
    let spec = ImageSpec::parse(device.path()).unwrap();
    for (name, bytes, option) in [
        ("sector-size", 512, ["-s", "size=512"]),
        ("block-size", 1024, ["-b", "size=1024"]),
    ] {
        let mut new = NewFilesystem::of_type("xfs").unwrap();
        new.set_number(name, bytes).unwrap();
        let made = FormatOptions::new(new).overwrite(true).make(&spec);
        let error = made.unwrap_err().to_string();
        assert!(error.contains(&format!("s of {bytes} bytes")), "{error}");
        let mut mkfs = tool::command("mkfs.xfs");
        mkfs.args(["-q", "-f"]).args(option).arg(device.path());
        assert!(tool::succeed(&mut mkfs).is_err(), "{name}");
    }
    let new = NewFilesystem::of_type("xfs").unwrap();
    let made = FormatOptions::new(new).overwrite(true).make(&spec);
    made.unwrap();
    let devices = [device.path()];
    let mount = Mount::devices(FsType::Xfs, &devices, "", Access::ReadWrite).unwrap();
    fs::write(mount.root().join("file"), b"text").unwrap();
    drop(mount);
    device.detach(&image).unwrap();
}

#[test]
fn made_filesystem_holds_the_directory_it_was_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    for number in 0..400_usize {
        let directory = tree.join(format!("{}", number % 11));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{number}")), vec![3; number * 90]).unwrap();
    }
    std::os::unix::fs::symlink("0/11", tree.join("link")).unwrap();
    let image = dir.path().join("image");
    let spec = ImageSpec::parse(&image).unwrap();
    let options = FormatOptions::new(new(&SETS[2])).content(Content::of_dir(&tree).unwrap());
    options.size_of_content().make(&spec).unwrap();
    let (verdict, report) = xfs::report(&[&image]).unwrap();
    assert_eq!(verdict, Verdict::Clean, "{report}");
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadOnly).unwrap();
    let mut diff = tool::command("diff");
    diff.arg("-r").arg(&tree).arg(mount.root());
    tool::succeed(&mut diff).unwrap();
    mount.unmount(&image).unwrap();
}
