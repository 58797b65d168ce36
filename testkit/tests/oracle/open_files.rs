//! Files that are open, or have no name, through a mount whose filesystem keeps few inodes in memory:
//! they stay what they are while thousands of others come and go, and leave nothing allocated.
//!
//! The same is asserted of the kernel's own filesystem, so what is expected is what Linux does.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use platter::{MemoryBudget, MountOptions, WriteOptions};
use platter_ext4::orphan::Orphans;
use platter_fuse::{Operation, Session};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{e2fsck, mke2fs};
use testkit::prng::Prng;
use testkit::served;

use crate::image::Image;

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
];
const IMAGE_KIB: u64 = 24 << 10;

/// The memory for all caches.
const BUDGET_BYTES: u64 = 1 << 20;
/// Files that come and go together.
///
/// Unused inodes get an eighth of the budget, and each counts for its object and 512 bytes, so
/// fewer than 256 are kept. Each of these files is read in twice, and an inode goes at the latest when
/// twice as many others as are kept have come: of those before, none is left.
const CHURN_FILES: usize = 800;
/// Contents of each: together they are more than the budget, so what was written before has been
/// written out.
const CHURN_BYTES: usize = 3000;

/// Contents of a file that is held: not so few that an inode maps them alone in blocks of 1 KiB.
const HELD_BYTES: usize = 20_000;
const ADDED_BYTES: usize = 7_000;

/// Where everything is.
const TOP: &str = "top";

/// Between two looks whether the kernel has forgotten, and how many there are.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const LOOKS_MAX: u32 = 2000;

/// Files and their contents.
type Named = BTreeMap<&'static str, Vec<u8>>;

/// A file that is open.
struct Held {
    what: &'static str,
    file: File,
    links: u32,
    contents: Vec<u8>,
}

impl Held {
    fn new(what: &'static str, file: File, links: u32) -> Self {
        let contents = contents(what, HELD_BYTES);
        file.write_all_at(&contents, 0).unwrap();
        Self {
            what,
            file,
            links,
            contents,
        }
    }

    /// It is as it should be by word of the filesystem, whatever the kernel has kept.
    fn verify(&self) {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
        let mut found = vec![0; self.contents.len() + 1];
        let read_bytes = self.file.read_at(&mut found, 0).unwrap();
        assert!(found[..read_bytes] == self.contents, "{}", self.what);
        let expected = (self.links, self.contents.len() as u64);
        assert_eq!(links_and_size(&self.file), expected, "{}", self.what);
    }

    /// Writes over some of it, and at its end.
    fn write(&mut self) {
        let added = contents("added", ADDED_BYTES);
        let end = self.contents.len();
        let middle = end / 2;
        for at in [middle, end] {
            self.file.write_all_at(&added, at as u64).unwrap();
        }
        self.contents[middle..middle + ADDED_BYTES].copy_from_slice(&added);
        self.contents.extend(added);
    }
}

fn contents(what: &str, bytes: usize) -> Vec<u8> {
    Prng::named(what.as_bytes()).bytes(bytes)
}

fn links_and_size(file: &File) -> (u32, u64) {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let found = rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS).unwrap();
    (found.stx_nlink, found.stx_size)
}

/// One open file of each kind, most of which have no name any more.
fn hold(root: &Path) -> Vec<Held> {
    let make = |what: &'static str, links| {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        Held::new(what, options.open(root.join(what)).unwrap(), links)
    };
    let (named, named_first) = (make("named", 1), make("named first", 1));
    let unlinked = make("unlinked", 0);
    fs::remove_file(root.join("unlinked")).unwrap();
    let replaced = make("replaced", 0);
    fs::write(root.join("new"), contents("new", HELD_BYTES)).unwrap();
    fs::rename(root.join("new"), root.join("replaced")).unwrap();
    let linked = make("linked", 0);
    fs::hard_link(root.join("linked"), root.join("link")).unwrap();
    fs::remove_file(root.join("linked")).unwrap();
    fs::remove_file(root.join("link")).unwrap();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let unnamed = rustix::fs::open(root, flags, Mode::from_raw_mode(0o600)).unwrap();
    let unnamed = Held::new("unnamed", unnamed.into(), 0);
    vec![named, named_first, unlinked, replaced, linked, unnamed]
}

/// A directory that was removed has nothing in it, and nothing gets into it.
fn verify_removed(dir: &File) {
    assert_eq!(links_and_size(dir), (0, 0));
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(dir, &mut buffer);
    assert_eq!(entries.next().unwrap().err(), Some(Errno::NOENT));
    let mode = Mode::from_raw_mode(0o600);
    let created = rustix::fs::openat(dir, "file", OFlags::CREATE | OFlags::WRONLY, mode);
    assert_eq!(created.err(), Some(Errno::NOENT));
    let made = rustix::fs::mkdirat(dir, "dir", mode);
    assert_eq!(made.err(), Some(Errno::NOENT));
    dir.sync_all().unwrap();
}

/// Makes files, looks at them after the kernel was made to `forget`, and removes them for good. Returns
/// the numbers of their inodes.
fn churn(dir: &Path, forget: &dyn Fn()) -> HashSet<u64> {
    let paths: Vec<_> = (0..CHURN_FILES)
        .map(|number| dir.join(number.to_string()))
        .collect();
    for path in &paths {
        fs::write(path, [0x5a; CHURN_BYTES]).unwrap();
    }
    forget();
    let metadata = paths.iter().map(|path| fs::metadata(path).unwrap());
    let numbers = metadata.map(|found| found.ino()).collect();
    for path in &paths {
        fs::remove_file(path).unwrap();
    }
    // Only then are they free for others.
    File::open(dir).unwrap().sync_all().unwrap();
    numbers
}

/// Holds files while others come and go, and leaves those in [`TOP`] that it gives.
fn play(root: &Path, forget: &dyn Fn()) -> Named {
    // Below it, the inodes of all are taken from one group.
    let root = &root.join(TOP);
    let others = root.join("others");
    fs::create_dir_all(&others).unwrap();
    let dirs = ["dir", "dir named first"].map(|name| {
        fs::create_dir(root.join(name)).unwrap();
        File::open(root.join(name)).unwrap()
    });
    fs::remove_dir(root.join("dir")).unwrap();
    let mut held = hold(root);
    fs::write(root.join("closed"), contents("closed", HELD_BYTES)).unwrap();

    let churned = [churn(&others, forget), churn(&others, forget)];
    assert!(
        !churned[0].is_disjoint(&churned[1]),
        "numbers are used again"
    );
    for held in &held {
        let number = held.file.metadata().unwrap().ino();
        let is_free = churned.iter().any(|numbers| numbers.contains(&number));
        assert!(!is_free, "{}", held.what);
        held.verify();
    }
    verify_removed(&dirs[0]);
    let closed = File::open(root.join("closed")).unwrap();
    let closed = Held {
        what: "closed",
        file: closed,
        links: 1,
        contents: contents("closed", HELD_BYTES),
    };
    closed.verify();

    fs::remove_dir(root.join("dir named first")).unwrap();
    for held in &mut held {
        held.write();
        match held.what {
            "named first" => {
                fs::remove_file(root.join(held.what)).unwrap();
                held.links = 0;
            }
            "unnamed" => {
                let by_descriptor = format!("/proc/self/fd/{}", held.file.as_raw_fd());
                let (path, flags) = (root.join(held.what), AtFlags::SYMLINK_FOLLOW);
                rustix::fs::linkat(CWD, by_descriptor, CWD, path, flags).unwrap();
                held.links = 1;
            }
            _ => {}
        }
    }
    churn(&others, forget);
    fs::remove_dir(&others).unwrap();
    for held in &held {
        held.verify();
        held.file.sync_all().unwrap();
        held.verify();
    }
    dirs.iter().for_each(verify_removed);

    let named = held.into_iter().chain([closed]);
    let named = named.filter(|held| held.links > 0);
    let mut named: Named = named.map(|held| (held.what, held.contents)).collect();
    named.insert("replaced", contents("new", HELD_BYTES));
    named
}

/// Makes the kernel evict unused inodes, as it does when it is short of memory: remounting does.
fn forget(session: &Session) {
    let flags = MountFlags::empty();
    rustix::mount::mount_remount(session.mountpoint(), flags, c"").unwrap();
    for _ in 0..LOOKS_MAX {
        // Of files, only those that are held.
        if session.nodes_held() < CHURN_FILES / 10 {
            return;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    panic!("the kernel holds {} inodes", session.nodes_held());
}

fn by_the_kernel(image: &Path) -> Named {
    let mount = Mount::image(image, "", Access::ReadWrite).unwrap();
    let named = play(mount.root(), &|| ());
    mount.unmount(image).unwrap();
    named
}

fn by_platter(image: &Path, mountpoint: &Path) -> Named {
    let open = MountOptions::new()
        .writing(WriteOptions::default())
        .budget(Arc::new(MemoryBudget::new(BUDGET_BYTES)));
    let mut session = served::mount(image, &open, mountpoint, "").unwrap();
    let named = play(mountpoint, &|| forget(&session));
    served::unmount(&mut session).unwrap();
    // Six files that are held were read three times, and one that was closed.
    assert!(session.statistics().count(Operation::Read) > 6 * 3);
    named
}

/// Nothing is wrong with an image, and it has no orphans. Returns what it takes: files and blocks.
fn taken(image: &Path) -> String {
    let (verdict, report) = e2fsck::report(image).unwrap();
    assert!(verdict.is_clean(), "{report}");
    let orphans = Orphans::collect(&Image::open(image).volume).unwrap();
    assert!(orphans.all().is_empty(), "{orphans:?}");
    let mut lines = report.lines();
    let counts = lines.find(|line| line.contains(" non-contiguous")).unwrap();
    let word = |at| counts.split_whitespace().nth(at).unwrap();
    [word(1), word(5)].join(" ")
}

#[test]
fn open_files_outlive_their_names_and_what_memory_keeps_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name);
    let [kernels, ours, plain] = ["kernels", "ours", "plain"].map(path);
    for layout in LAYOUTS {
        mke2fs::make(&kernels, IMAGE_KIB, layout, None).unwrap();
        mke2fs::make(&ours, IMAGE_KIB, layout, None).unwrap();
        let kernel_named = by_the_kernel(&kernels);
        let named = by_platter(&ours, &path("mount"));
        assert!(kernel_named == named, "{layout:?}");

        let source = tempfile::tempdir().unwrap();
        let top = source.path().join(TOP);
        fs::create_dir(&top).unwrap();
        for (name, contents) in &named {
            fs::write(top.join(name), contents).unwrap();
        }
        mke2fs::make(&plain, IMAGE_KIB, layout, Some(source.path())).unwrap();
        for image in [&ours, &kernels] {
            assert_eq!(taken(image), taken(&plain), "{layout:?}: {image:?}");
        }

        let mount = Mount::image(&ours, "", Access::ReadOnly).unwrap();
        let top = mount.root().join(TOP);
        assert_eq!(fs::read_dir(&top).unwrap().count(), named.len());
        for (name, contents) in &named {
            assert!(fs::read(top.join(name)).unwrap() == *contents, "{name}");
        }
        mount.unmount(&ours).unwrap();
    }
}
