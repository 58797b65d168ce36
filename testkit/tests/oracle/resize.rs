//! Filesystems that were made larger: `e2fsck`, a kernel that fills them, `resize2fs` for comparison, and
//! every state that a power cut can leave.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use platter_block::sim::{CrashOptions, RecordingDevice};
use platter_block::{BlockDevice, FileDevice, MemoryDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::resize::{Grown, grow};
use platter_vfs::{Clock, FixedClock, Timestamp};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{e2fsck, mke2fs};
use testkit::tool;

use crate::images::assert_clean;

/// A filesystem, its size and its new size in KiB.
struct Case {
    options: &'static [&'static str],
    before_kib: u64,
    after_kib: u64,
}

const fn case(options: &'static [&'static str], before_kib: u64, after_kib: u64) -> Case {
    Case {
        options,
        before_kib,
        after_kib,
    }
}

/// What `resize2fs` gives the same headings to.
const ALIKE: &[Case] = &[
    case(&["-t", "ext4"], 16 << 10, 100 << 10),
    case(&["-t", "ext4"], 600 << 10, 3 << 20),
    case(&["-t", "ext3"], 20 << 10, 90 << 10),
    case(&["-t", "ext2"], 20 << 10, 200 << 10),
    case(&["-t", "ext4", "-O", "^flex_bg"], 10 << 10, 60 << 10),
    case(
        &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"],
        16 << 10,
        70 << 10,
    ),
    case(
        &["-t", "ext4", "-O", "^64bit", "-m", "1"],
        64 << 10,
        100 << 10,
    ),
    case(&["-t", "ext4", "-b", "4096"], 64 << 10, 300 << 10),
    // Within the last group.
    case(&["-t", "ext4"], 10 << 10, 12 << 10),
    // A last group of 100 KiB is not worth its metadata.
    case(&["-t", "ext4"], 10 << 10, (16 << 10) + 101),
    // Many groups, and descriptors that take many of the blocks kept for them.
    case(
        &["-t", "ext4", "-g", "256", "-O", "^has_journal"],
        2 << 10,
        40 << 10,
    ),
    case(
        &["-t", "ext4", "-O", "meta_bg,^resize_inode"],
        100 << 10,
        400 << 10,
    ),
    case(
        &["-t", "ext2", "-r", "1", "-O", "^sparse_super,^resize_inode"],
        20 << 10,
        50 << 10,
    ),
];

/// What `resize2fs` lays out otherwise.
const OTHERS: &[Case] = &[
    // The table of descriptors has no space: it goes on with the groups.
    case(&["-t", "ext4", "-O", "^resize_inode"], 16 << 10, 300 << 10),
    case(&["-t", "ext4", "-E", "resize=40960"], 16 << 10, 600 << 10),
    case(
        &["-t", "ext2", "-g", "256", "-E", "resize=4096"],
        2 << 10,
        64 << 10,
    ),
    case(
        &["-t", "ext4", "-O", "sparse_super2,^resize_inode"],
        64 << 10,
        120 << 10,
    ),
    case(
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-b", "4096"],
        256 << 10,
        1 << 20,
    ),
    case(
        &["-t", "ext4", "-O", "bigalloc", "-b", "1024"],
        64 << 10,
        400 << 10,
    ),
    case(
        &["-t", "ext4", "-O", "fast_commit,orphan_file,inline_data"],
        16 << 10,
        60 << 10,
    ),
    case(
        &["-t", "ext4", "-G", "4", "-O", "metadata_csum_seed"],
        20 << 10,
        200 << 10,
    ),
];

fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(16 << 20))
}

fn clock() -> Arc<dyn Clock> {
    let now = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    Arc::new(FixedClock::new(now, 1))
}

fn source() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dir")).unwrap();
    for number in 0..30 {
        let path = dir.path().join(format!("dir/{number}"));
        fs::write(path, vec![7; number * 700]).unwrap();
    }
    dir
}

fn make(image: &Path, case: &Case, source: &Path) {
    mke2fs::make(image, case.before_kib, case.options, Some(source)).unwrap();
}

fn grow_file(image: &Path, size_kib: u64) -> Grown {
    let file = fs::File::options().write(true).open(image).unwrap();
    file.set_len(size_kib << 10).unwrap();
    let access = platter_block::Access::Write;
    let options = OpenOptions {
        access,
        direct: false,
    };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, options).unwrap());
    grow(&device, size_kib << 10, &budget(), &clock()).unwrap()
}

/// A kernel finds what was there, and has space for as much as it says is free.
fn assert_kernel_fills(image: &Path, source: &Path, what: &str) {
    let mount = Mount::image(image, "", Access::ReadWrite).unwrap();
    for number in 0..30 {
        let name = format!("dir/{number}");
        let read = |root: &Path| fs::read(root.join(&name)).unwrap();
        assert!(read(mount.root()) == read(source), "{what}: {name}");
    }
    let stat = rustix::fs::statvfs(mount.root()).unwrap();
    let free = stat.f_bfree * stat.f_frsize;
    let filler = fs::File::create(mount.root().join("filler")).unwrap();
    let piece = vec![9; 1 << 20];
    let mut written = 0;
    loop {
        let mode = rustix::fs::FallocateFlags::empty();
        let taken = match rustix::fs::fallocate(&filler, mode, written, 1 << 20) {
            // Without extents.
            Err(rustix::io::Errno::NOTSUP) => filler.write_all_at(&piece, written).is_ok(),
            taken => taken.is_ok(),
        };
        if !taken {
            break;
        }
        written += 1 << 20;
    }
    drop(filler);
    assert!(written >= free - free / 8, "{what}: {written} of {free}");
    mount.unmount(image).unwrap();
    assert_clean(image, what);
}

/// The output of `dumpe2fs`, without lines that change by themselves.
fn headings(image: &Path) -> BTreeMap<String, String> {
    const OF_EACH: [&str; 7] = [
        "Last write time",
        "Last checked",
        "Checksum",
        "Lifetime writes",
        "Mount count",
        "Free blocks",
        "Overhead clusters",
    ];
    let printed = tool::succeed(tool::command("dumpe2fs").arg("-h").arg(image)).unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let lines = printed.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .filter(|(name, _)| !OF_EACH.contains(&name.as_str()) && !name.starts_with("Journal"))
        .collect()
}

fn number_of(image: &Path, heading: &str) -> u64 {
    let printed = tool::succeed(tool::command("dumpe2fs").arg("-h").arg(image)).unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let line = printed
        .lines()
        .find(|line| line.starts_with(heading))
        .unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn grown_as_resize2fs_grows_it() {
    let (dir, source) = (tempfile::tempdir().unwrap(), source());
    for case in ALIKE {
        let what = format!(
            "{:?} {} to {}",
            case.options, case.before_kib, case.after_kib
        );
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        make(&ours, case, source.path());
        fs::copy(&ours, &theirs).unwrap();
        let grown = grow_file(&ours, case.after_kib);
        assert_eq!(grown.before_bytes, case.before_kib << 10, "{what}");
        assert!(grown.after_bytes > grown.before_bytes, "{what}");
        assert_clean(&ours, &what);
        tool::succeed(
            tool::command("resize2fs")
                .arg("-f")
                .arg(&theirs)
                .arg(format!("{}K", case.after_kib)),
        )
        .unwrap();
        let (printed, expected) = (headings(&ours), headings(&theirs));
        assert_eq!(printed, expected, "{what}");
        let free = [&ours, &theirs].map(|image| number_of(image, "Free blocks"));
        assert!(
            free[0].abs_diff(free[1]) <= free[1] / 500,
            "{what}: {free:?}"
        );
        assert_kernel_fills(&ours, source.path(), &what);
    }
}

#[test]
fn grown_where_the_table_or_the_clusters_are_others() {
    let (dir, source) = (tempfile::tempdir().unwrap(), source());
    for case in OTHERS {
        let what = format!(
            "{:?} {} to {}",
            case.options, case.before_kib, case.after_kib
        );
        let image = dir.path().join("image");
        make(&image, case, source.path());
        let grown = grow_file(&image, case.after_kib);
        assert!(
            grown.after_bytes > (case.after_kib << 10) * 9 / 10,
            "{what}"
        );
        assert_clean(&image, &what);
        // Once more, onto what it made itself.
        grow_file(&image, case.after_kib * 2);
        assert_clean(&image, &what);
        assert_kernel_fills(&image, source.path(), &what);
    }
}

#[test]
fn a_backup_brings_a_grown_filesystem_back() {
    let (dir, source) = (tempfile::tempdir().unwrap(), source());
    for case in [&ALIKE[0], &ALIKE[1], &OTHERS[1]] {
        let image = dir.path().join("image");
        make(&image, case, source.path());
        grow_file(&image, case.after_kib);
        let blocks = number_of(&image, "Block count");
        let block_bytes = number_of(&image, "Block size");
        let file = fs::File::options().write(true).open(&image).unwrap();
        let zeros = vec![0; 2 * usize::try_from(block_bytes).unwrap()];
        file.write_all_at(&zeros, 1024).unwrap();
        let first = number_of_group(block_bytes);
        let place = format!("-fyb{first}");
        let size = format!("-B{block_bytes}");
        e2fsck::repair(&image, &[&place, &size]).unwrap();
        assert_eq!(number_of(&image, "Block count"), blocks);
        assert_clean(&image, "repaired");
    }
}

/// The first block of the second group.
fn number_of_group(block_bytes: u64) -> u64 {
    block_bytes * 8 + u64::from(block_bytes == 1024)
}

#[test]
fn shrinking_and_corruption_are_refused() {
    let (dir, source) = (tempfile::tempdir().unwrap(), source());
    let image = dir.path().join("image");
    let refused = |image: &Path, len: u64| {
        let before = fs::read(image).unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", before.clone()));
        let error = grow(&device, len, &budget(), &clock()).unwrap_err();
        let mut after = vec![0; before.len()];
        device.read_at(0, &mut after).unwrap();
        assert!(before == after, "{error}");
        error.to_string()
    };
    make(&image, &ALIKE[0], source.path());
    assert!(refused(&image, 8 << 20).contains("smaller"));
    refused(&image, 1 << 40);
    fs::File::options()
        .write(true)
        .open(&image)
        .and_then(|file| file.set_len(32 << 20))
        .unwrap();
    testkit::oracle::debugfs::change(&image, &["ssv state 2"]).unwrap();
    assert!(refused(&image, 32 << 20).contains("not clean"));
}

/// States that are tried of each filesystem.
const STATES_MAX: usize = 60;

/// Small filesystems in which all that can change does: a partial last group, new backups, and
/// descriptors that take blocks kept for them.
const CUT: &[Case] = &[
    case(
        &["-t", "ext4", "-g", "512", "-J", "size=1"],
        5 << 10,
        14 << 10,
    ),
    case(
        &["-t", "ext3", "-g", "512", "-J", "size=1"],
        5 << 10,
        30 << 10,
    ),
    case(
        &[
            "-t",
            "ext4",
            "-g",
            "512",
            "-J",
            "size=1",
            "-E",
            "resize=8192",
        ],
        5 << 10,
        40 << 10,
    ),
];

#[test]
fn a_cut_leaves_the_old_or_the_new_size() {
    let (dir, source) = (tempfile::tempdir().unwrap(), source());
    let image = dir.path().join("image");
    for case in CUT {
        make(&image, case, source.path());
        let [old, new] = cut(&image, case, "-p", 1);
        assert!(old > 0 && new > 0, "{:?}: {old}, {new}", case.options);
    }
}

#[test]
fn crash_without_a_journal_is_repairable() {
    let (dir, source) = (tempfile::tempdir().unwrap(), source());
    let image = dir.path().join("image");
    let case = case(&["-t", "ext2", "-g", "512"], 5 << 10, 14 << 10);
    make(&image, &case, source.path());
    let [old, new] = cut(&image, &case, "-y", 3);
    assert!(old > 0 && new > 0);
}

/// Tries the states that a cut can leave while the image grows, has `e2fsck` bring each to rest, and
/// counts those of the old and of the new size.
fn cut(image: &Path, case: &Case, option: &str, code_max: i32) -> [u64; 2] {
    let mut bytes = fs::read(image).unwrap();
    bytes.resize(usize::try_from(case.after_kib << 10).unwrap(), 0);
    let device = MemoryDevice::new("image", bytes).with_blocks(1024);
    let recorder = Arc::new(RecordingDevice::new(Arc::new(device)));
    let device: Arc<dyn BlockDevice> = recorder.clone();
    let grown = grow(&device, case.after_kib << 10, &budget(), &clock()).unwrap();
    let recording = recorder.recording();
    let options = CrashOptions {
        mixes_per_position: 0,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let state = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let mut counts = [0; 2];
    let all: Vec<_> = recording.crash_states(options).collect();
    let step = all.len().div_ceil(STATES_MAX);
    for (number, cut) in all
        .into_iter()
        .enumerate()
        .filter(|(number, _)| number % step == 0)
    {
        let cut = cut.unwrap();
        let device = cut.device().unwrap();
        let mut bytes = vec![0; usize::try_from(case.after_kib << 10).unwrap()];
        device.read_at(0, &mut bytes).unwrap();
        fs::write(state.path(), &bytes).unwrap();
        let mut e2fsck = tool::command("e2fsck");
        let finished = tool::finish(e2fsck.arg(option).arg(state.path())).unwrap();
        let what = format!("{:?}, state {number}: {}", case.options, finished.text());
        assert!(finished.code().unwrap() <= code_max, "{what}");
        assert_clean(state.path(), &what);
        let device = MemoryDevice::new("image", fs::read(state.path()).unwrap());
        let len = platter_ext4::mkfs::len_bytes(&device).unwrap();
        let sizes = [grown.before_bytes, grown.after_bytes];
        let which = sizes.iter().position(|&size| size == len);
        counts[which.unwrap_or_else(|| panic!("{what}: {len} of {sizes:?}"))] += 1;
    }
    counts
}
