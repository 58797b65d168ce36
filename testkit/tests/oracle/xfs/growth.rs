//! Files that grow in turn: how many extents they have, and what of them lies beyond their end meanwhile, compared with the
//! kernel's.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use platter::{ImageSpec, MountOption, MountOptions, Volume, WriteOptions};
use platter_vfs::{Context, CreateKind, FallocateMode, Inode};
use rustix::fs::{FallocateFlags, fallocate};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::{served, tool};

use super::writing::{assert_clean, name};

const PIECE_BYTES: usize = 64 << 10;
/// Sectors of a block.
const BLOCK_SECTORS: u64 = 8;
const ROUNDS: usize = 60;
const NAMES: [&str; 2] = ["one", "two"];

/// A file that a side appends to, and the sectors that it has afterwards.
trait Appended {
    fn append(&mut self, piece: &[u8]) -> u64;

    /// Changes its space. Returns the sectors afterwards.
    fn change(&mut self, mode: FallocateMode, range: &Range<u64>) -> u64;
}

impl Appended for File {
    fn append(&mut self, piece: &[u8]) -> u64 {
        self.write_all(piece).unwrap();
        self.sync_all().unwrap();
        self.metadata().unwrap().blocks()
    }

    fn change(&mut self, mode: FallocateMode, range: &Range<u64>) -> u64 {
        let flags = match mode {
            FallocateMode::Allocate { .. } => FallocateFlags::KEEP_SIZE,
            FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateMode::ZeroRange { .. } => {
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
            }
            FallocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
            FallocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
            FallocateMode::UnshareRange { .. } => FallocateFlags::UNSHARE_RANGE,
        };
        fallocate(&*self, flags, range.start, range.end - range.start).unwrap();
        self.sync_all().unwrap();
        self.metadata().unwrap().blocks()
    }
}

impl Appended for Arc<dyn Inode> {
    fn append(&mut self, piece: &[u8]) -> u64 {
        Inode::append(&**self, piece).unwrap();
        self.sync(false).unwrap();
        self.attr().unwrap().sectors
    }

    fn change(&mut self, mode: FallocateMode, range: &Range<u64>) -> u64 {
        self.fallocate(range.clone(), mode).unwrap();
        self.sync(false).unwrap();
        self.attr().unwrap().sectors
    }
}

/// Appends to files in turn. Returns the sectors of the first after each time.
fn grow<A: Appended>(files: &mut [A]) -> Vec<u64> {
    let piece = vec![7; PIECE_BYTES];
    let mut sectors = Vec::new();
    for _ in 0..ROUNDS {
        let shown: Vec<u64> = files.iter_mut().map(|file| file.append(&piece)).collect();
        sectors.push(shown[0]);
    }
    sectors
}

fn open_in(mount: &Mount, name: &str) -> File {
    let mut options = OpenOptions::new();
    let options = options.create(true).append(true);
    options.open(mount.root().join(name)).unwrap()
}

fn grow_in_the_kernel(image: &Path, option: &str) -> Vec<u64> {
    let mount = Mount::images(FsType::Xfs, &[image], option, Access::ReadWrite).unwrap();
    let mut files: Vec<File> = NAMES.iter().map(|name| open_in(&mount, name)).collect();
    let sectors = grow(&mut files);
    drop(files);
    mount.unmount_all(&[image]).unwrap();
    sectors
}

fn volume(image: &Path, option: &str) -> Volume {
    let spec = ImageSpec::parse(image).unwrap();
    let mut options = MountOptions::new().writing(WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    });
    if !option.is_empty() {
        options = options.option(MountOption::parse(option));
    }
    options.open(&spec).unwrap()
}

fn create_here(volume: &Volume) -> Vec<Arc<dyn Inode>> {
    let root = volume.filesystem().root().unwrap();
    let create = |text: &&str| {
        let made = root.create(&Context::root(), name(text), CreateKind::Regular, 0o644);
        made.unwrap()
    };
    NAMES.iter().map(create).collect()
}

fn grow_here(image: &Path, option: &str) -> Vec<u64> {
    let volume = volume(image, option);
    let mut files = create_here(&volume);
    let sectors = grow(&mut files);
    drop(files);
    volume.filesystem().unmount().unwrap();
    sectors
}

/// What the kernel says of the files of an image: extents and sectors.
fn found(image: &Path) -> Vec<(usize, u64)> {
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadOnly).unwrap();
    let of = |name: &&str| {
        let path = mount.root().join(name);
        let listed = tool::succeed(tool::command("filefrag").arg("-v").arg(&path)).unwrap();
        let text = listed.text();
        let is_extent = |line: &&str| {
            let first = line.split(':').next().unwrap_or_default().trim();
            !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit())
        };
        let extents = text.lines().filter(is_extent).count();
        (extents, path.metadata().unwrap().blocks())
    };
    let found = NAMES.iter().map(of).collect();
    mount.unmount_all(&[image]).unwrap();
    found
}

#[test]
fn files_that_grow_in_turn_stay_whole() {
    let dir = tempfile::tempdir().unwrap();
    let images = ["kernel", "platter"].map(|name| dir.path().join(name));
    for option in ["", "allocsize=256k", "allocsize=64m"] {
        for image in &images {
            xfs::make(image, 512 << 10, &[]).unwrap();
        }
        let [theirs, ours] = &images;
        let shown = (grow_in_the_kernel(theirs, option), grow_here(ours, option));
        for (theirs, ours) in shown.0.iter().zip(&shown.1) {
            // When the kernel writes back decides whether its extents need a block of the mapping B-tree.
            let is_same = *ours == *theirs || *ours + BLOCK_SECTORS == *theirs;
            assert!(is_same, "{option}: {ours} sectors, the kernel {theirs}");
        }
        assert_clean(ours, ("grown", option));
        let (theirs, ours) = (found(theirs), found(ours));
        let sectors = (PIECE_BYTES * ROUNDS / 512) as u64;
        for (theirs, ours) in theirs.iter().zip(&ours) {
            assert_eq!(ours.1, sectors, "{option}");
            assert!(theirs.1 - sectors <= BLOCK_SECTORS, "{option}");
            assert!(ours.0 <= theirs.0, "{option}: {ours:?}, {theirs:?}");
            assert!(ours.0 <= ROUNDS / 4, "{option}: {ours:?}");
        }
    }
}

/// The sectors of what the files contain.
const CONTENTS_SECTORS: u64 = (PIECE_BYTES * ROUNDS / 512) as u64;

/// An image as a crash leaves it once both files have grown, and the sectors of the first.
fn crashed_image(dir: &Path) -> (PathBuf, u64) {
    let [image, crashed] = ["image", "crashed"].map(|name| dir.join(name));
    xfs::make(&image, 64 << 10, &[]).unwrap();
    let volume = volume(&image, "");
    let mut files = create_here(&volume);
    let shown = *grow(&mut files).last().unwrap();
    fs::copy(&image, &crashed).unwrap();
    drop(files);
    volume.close().unwrap();
    assert!(shown > CONTENTS_SECTORS, "{shown}");
    (crashed, shown)
}

/// Asserts that both files have nothing beyond their ends.
fn assert_nothing_beyond(image: &Path, context: (&str, &str)) {
    let found = found(image).into_iter();
    let sectors: Vec<u64> = found.map(|(_, sectors)| sectors).collect();
    assert_eq!(sectors, [CONTENTS_SECTORS; 2], "{context:?}");
    assert_clean(image, context);
}

/// As it does with its own: once the files have no user any more.
#[test]
fn kernel_frees_what_a_crash_left_beyond_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (crashed, shown) = crashed_image(dir.path());
    let mount = Mount::images(FsType::Xfs, &[&crashed], "", Access::ReadWrite).unwrap();
    let left = mount.root().join(NAMES[0]).metadata().unwrap().blocks();
    let other = mount.root().join(NAMES[1]).metadata().unwrap().blocks();
    mount.unmount_all(&[&crashed]).unwrap();
    assert!(left == shown && other > CONTENTS_SECTORS, "{left}, {other}");
    assert_nothing_beyond(&crashed, ("crashed", "mounted"));
}

#[test]
fn writers_free_what_a_crash_left_beyond_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (crashed, shown) = crashed_image(dir.path());
    let volume = volume(&crashed, "");
    let root = volume.filesystem().root().unwrap();
    let [closed, written] = NAMES.map(|text| root.lookup(name(text)).unwrap());
    let sectors = || closed.attr().unwrap().sectors;
    assert_eq!(sectors(), shown);
    closed.closed();
    assert_eq!(sectors(), CONTENTS_SECTORS);
    written.write_at(0, &[7; 10]).unwrap();
    drop((closed, written, root));
    volume.close().unwrap();
    assert_nothing_beyond(&crashed, ("crashed", "written"));
}

/// What is done to the space of a file, and where.
const CHANGES: &[(FallocateMode, Range<u64>)] = &[
    // Of contents and of what they grow into.
    (FallocateMode::PunchHole, 100 << 10..110 << 10),
    (FallocateMode::Allocate { keep_size: true }, 0..1 << 20),
    (FallocateMode::PunchHole, (200 << 10) + 1..(300 << 10) + 5),
    (FallocateMode::PunchHole, 120 << 10..150 << 10),
    (
        FallocateMode::ZeroRange { keep_size: true },
        1 << 20..2 << 20,
    ),
    (FallocateMode::PunchHole, 500 << 10..8 << 20),
    (FallocateMode::PunchHole, 1..40 << 10),
];

/// Changes the space of a file that has grown, and of one with blocks beyond its end that was not asked for. Returns the
/// sectors after each change.
fn change_space<A: Appended>(files: &mut [A]) -> Vec<u64> {
    let piece = vec![7; PIECE_BYTES];
    let [asked, grown] = files else {
        panic!("two files");
    };
    for _ in 0..2 {
        asked.append(&piece);
    }
    let changes = CHANGES.iter();
    let mut sectors: Vec<u64> = changes
        .map(|(mode, range)| asked.change(*mode, range))
        .collect();
    grown.append(&piece);
    sectors.push(grown.change(FallocateMode::PunchHole, &(0..8 << 20)));
    sectors
}

/// The kernel frees and keeps the same beyond the end.
#[test]
fn space_beyond_ends_is_changed_as_in_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let [theirs, ours] = ["kernel", "platter"].map(|name| dir.path().join(name));
    for image in [&theirs, &ours] {
        xfs::make(image, 512 << 10, &[]).unwrap();
    }
    let mount = Mount::images(FsType::Xfs, &[&theirs], "", Access::ReadWrite).unwrap();
    let mut files: Vec<File> = NAMES.iter().map(|name| open_in(&mount, name)).collect();
    let expected = change_space(&mut files);
    drop(files);
    mount.unmount_all(&[&theirs]).unwrap();
    let volume = volume(&ours, "");
    let mut files = create_here(&volume);
    assert_eq!(change_space(&mut files), expected);
    drop(files);
    volume.close().unwrap();
    assert_clean(&ours, ("space", "changed"));
    let sectors = |image: &Path| found(image).into_iter().map(|(_, sectors)| sectors);
    assert!(sectors(&ours).eq(sectors(&theirs)));
}

/// A mount whose kernel says what is opened also says what is closed.
#[test]
fn close_of_a_mounted_file_frees_what_is_beyond_its_end() {
    const TRIES: u32 = 500;
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    xfs::make(&image, 64 << 10, &[]).unwrap();
    let volume = volume(&image, "");
    let mut session = served::mount_volume(&volume, &mountpoint, "strictatime").unwrap();
    let mut options = OpenOptions::new();
    let path = mountpoint.join("file");
    let mut file = options.create(true).append(true).open(&path).unwrap();
    for _ in 0..2 {
        file.append(&vec![7; PIECE_BYTES]);
    }
    let root = volume.filesystem().root().unwrap();
    let found = root.lookup(name("file")).unwrap();
    let sectors = || found.attr().unwrap().sectors;
    let contents = 2 * PIECE_BYTES as u64 / 512;
    assert!(sectors() > contents);
    drop(fs::File::open(&path).unwrap());
    drop(file);
    // The kernel does not wait for the answer.
    let mut waits = (0..TRIES).map(|_| thread::sleep(Duration::from_millis(10)));
    assert!(waits.any(|()| sectors() == contents), "{}", sectors());
    drop((found, root));
    served::unmount(&mut session).unwrap();
    volume.close().unwrap();
    assert_clean(&image, ("closed", "strictatime"));
}

/// The kernel sends no request when a mount frees what is beyond the end of a file.
#[test]
fn space_beyond_the_end_is_not_cached_by_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    xfs::make(&image, 64 << 10, &[]).unwrap();
    let volume = volume(&image, "");
    let filesystem = volume.filesystem();
    let mut session = served::mount_volume(&volume, &mountpoint, "").unwrap();
    let path = mountpoint.join("file");
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).open(&path).unwrap();
    let blocks = || path.metadata().unwrap().blocks();
    let contents = 2 * PIECE_BYTES as u64 / 512;
    for _ in 0..2 {
        file.write_all(&vec![7; PIECE_BYTES]).unwrap();
        filesystem.sync().unwrap();
    }
    assert!(blocks() > contents);
    // A freeze frees it as an idle time does.
    filesystem.freeze().unwrap();
    filesystem.thaw().unwrap();
    assert_eq!(blocks(), contents);
    drop(file);
    served::unmount(&mut session).unwrap();
    volume.close().unwrap();
    assert_clean(&image, ("idle", ""));
}
