//! What users see of a filesystem that is corrupt or out of the ordinary.

use std::fs;
use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use platter_fuse::{ErrorSink, MountOptions, Operation};

use platter_memfs::{HookedInode, Hooks, MemFs, MemFsLimits};
use platter_vfs::lock::Mutex;
use platter_vfs::{
    Attr, Condition, Context, Corruption, CreateKind, Description, DirCursor, DirEntry, DirSink,
    FallocateMode, Filesystem, Inode, InodeId, Locus, Name, Result, SetAttr, StatFs, SystemClock,
};
use rustix::fs::{
    CWD, Dir, FallocateFlags, FileType, Mode, OFlags, RenameFlags, fallocate, renameat_with,
};
use rustix::io::Errno;

use crate::mounted::{Mounted, plant, soon};

/// What is wrong with a filesystem.
#[derive(Debug, Clone, Default)]
struct Bends {
    /// Inodes that cannot be read.
    unreadable: Vec<u64>,
    /// Contents that cannot be read.
    unreadable_contents: Vec<u64>,
    /// Inodes whose contents make the driver panic.
    panicking_contents: Vec<u64>,
    /// Listings break off after so many entries.
    listed_at_most: Option<usize>,
    /// Entries do not contain the kind of file.
    missing_kinds: bool,
    /// Inodes that are truncated, and get or lose space, and return this error then.
    failing_late: Vec<(u64, platter_vfs::Error)>,
}

/// The memory filesystem, bent.
#[derive(Debug)]
struct Bent {
    fs: Arc<MemFs>,
    bends: Arc<Bends>,
}

fn corrupt(number: u64) -> platter_vfs::Error {
    Corruption::new("inode", Locus::inode(number), "checksum is wrong").into()
}

impl Filesystem for Bent {
    fn describe(&self) -> Description {
        self.fs.describe()
    }

    fn is_read_only(&self) -> bool {
        self.bends.failing_late.is_empty()
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        bend(self.fs.root()?, &self.bends)
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        bend(self.fs.inode(id)?, &self.bends)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        Err(corrupt(0))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

fn bend(inode: Arc<dyn Inode>, bends: &Arc<Bends>) -> Result<Arc<dyn Inode>> {
    let number = inode.id().number;
    if bends.unreadable.contains(&number) {
        return Err(corrupt(number));
    }
    Ok(Arc::new(HookedInode::new(inode, Arc::clone(bends))))
}

impl Bends {
    fn fail_late(&self, inode: &dyn Inode) -> Result<()> {
        let number = inode.id().number;
        let mut failing = self.failing_late.iter();
        match failing.find(|(it, _)| *it == number) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl Hooks for Bends {
    fn lookup(self: &Arc<Self>, inode: &dyn Inode, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        bend(inode.lookup(name)?, self)
    }

    fn read_dir(&self, inode: &dyn Inode, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let limit = self.listed_at_most;
        let limit = limit.map_or(u64::MAX, |limit| limit as u64);
        let mut broken = false;
        inode.read_dir(from, &mut |entry| {
            broken = entry.next.0 > limit;
            if broken {
                return ControlFlow::Break(());
            }
            let kind = entry.kind.filter(|_| !self.missing_kinds);
            sink(DirEntry { kind, ..entry })
        })?;
        if broken {
            Err(corrupt(inode.id().number))
        } else {
            Ok(())
        }
    }

    fn read_at(&self, inode: &dyn Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let number = inode.id().number;
        if self.unreadable_contents.contains(&number) {
            return Err(corrupt(number));
        }
        assert!(
            !self.panicking_contents.contains(&number),
            "a bug in the driver"
        );
        inode.read_at(offset, buf)
    }

    fn set_attr(&self, inode: &dyn Inode, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let attr = inode.set_attr(context, changes)?;
        self.fail_late(inode)?;
        Ok(attr)
    }

    fn fallocate(&self, inode: &dyn Inode, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        inode.fallocate(range, mode)?;
        self.fail_late(inode)
    }
}

/// Mounts ten files, the directory `d` and the link `l`, bent as `bend` says, and collects what is
/// reported as errors.
fn mounted(bend: impl FnOnce(&MemFs) -> Bends) -> (Mounted, Arc<Mutex<Vec<String>>>) {
    let fs = Arc::new(MemFs::new(
        Arc::new(SystemClock::new()),
        MemFsLimits::default(),
    ));
    for number in 0..10 {
        plant(&fs, &format!("f{number}"), b"contents");
    }
    fs.plant(b"d", CreateKind::Directory, 0o755).unwrap();
    fs.plant(b"l", CreateKind::Symlink(b"f1".to_vec()), 0o777)
        .unwrap();
    let bends = Arc::new(bend(&fs));
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = {
        let reported = Arc::clone(&reported);
        ErrorSink::new(move |error| reported.lock().push(error.to_string()))
    };
    let options = MountOptions {
        on_error: Some(sink),
        ..MountOptions::default()
    };
    let bent = Bent {
        fs: Arc::clone(&fs),
        bends,
    };
    (Mounted::serving(Arc::new(bent), fs, options), reported)
}

fn number_of(fs: &MemFs, path: &str) -> u64 {
    platter_vfs::PathWalk::new(fs)
        .resolve(path.as_bytes())
        .unwrap()
        .id()
        .number
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(
        Errno::from_io_error(&result.unwrap_err()),
        Some(Errno::UCLEAN)
    );
}

#[test]
fn an_unreadable_inode_is_listed_and_hides_nothing_else() {
    let (mounted, reported) = mounted(|fs| Bends {
        unreadable: vec![number_of(fs, "f3")],
        ..Bends::default()
    });
    for _ in 0..2 {
        let entries = fs::read_dir(mounted.root()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), 12, "{names:?}");
        assert_corrupt(fs::metadata(mounted.path("f3")));
        assert_corrupt(fs::read(mounted.path("f3")));
    }
    assert_eq!(fs::read(mounted.path("f4")).unwrap(), b"contents");
    assert_eq!(fs::read(mounted.path("l")).unwrap(), b"contents");
    let reported = reported.lock().join("\n");
    assert!(
        reported.contains("inode at inode") && reported.contains("checksum is wrong"),
        "{reported}"
    );
    mounted.unmount();
}

#[test]
fn a_listing_that_breaks_off_returns_what_came_before() {
    let (mounted, _) = mounted(|_| Bends {
        listed_at_most: Some(7),
        ..Bends::default()
    });
    let mut entries = fs::read_dir(mounted.root()).unwrap();
    let names: Vec<_> = entries
        .by_ref()
        .map_while(std::result::Result::ok)
        .collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert_corrupt(
        fs::read_dir(mounted.root())
            .unwrap()
            .collect::<std::io::Result<Vec<_>>>(),
    );
    assert_eq!(fs::read(mounted.path("f9")).unwrap(), b"contents");
    drop((entries, names));
    mounted.unmount();
}

#[test]
fn unreadable_contents_are_an_error_for_their_reader_only() {
    let (mounted, reported) = mounted(|fs| Bends {
        unreadable_contents: vec![number_of(fs, "f3")],
        ..Bends::default()
    });
    let error = fs::read(mounted.path("f3")).unwrap_err();
    assert!(
        matches!(
            Errno::from_io_error(&error),
            Some(Errno::UCLEAN | Errno::IO)
        ),
        "{error}"
    );
    assert!(!reported.lock().is_empty());
    assert_eq!(fs::metadata(mounted.path("f3")).unwrap().size(), 8);
    assert_eq!(fs::read(mounted.path("f4")).unwrap(), b"contents");
    assert!(rustix::fs::statvfs(mounted.root()).is_err());
    mounted.unmount();
}

#[test]
fn a_bug_in_the_driver_costs_its_caller_the_answer_only() {
    let (mounted, _) = mounted(|fs| Bends {
        panicking_contents: vec![number_of(fs, "f3")],
        ..Bends::default()
    });
    // More often than there are threads that could be lost by it.
    for _ in 0..40 {
        let error = fs::read(mounted.path("f3")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
    }
    assert_eq!(fs::read(mounted.path("f4")).unwrap(), b"contents");
    mounted.unmount();
}

#[test]
fn ordinary_refusals_are_not_reported_as_errors() {
    let (mounted, reported) = mounted(|_| Bends::default());
    let missing = fs::metadata(mounted.path("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(fs::read_dir(mounted.path("f1")).is_err());
    assert!(reported.lock().is_empty());
    mounted.unmount();
}

#[test]
fn kinds_that_entries_lack_are_read_from_the_inodes() {
    let (mounted, _) = mounted(|_| Bends {
        missing_kinds: true,
        ..Bends::default()
    });
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = rustix::fs::open(mounted.root(), flags, Mode::empty()).unwrap();
    let kinds = Dir::new(root).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (
            entry.file_name().to_str().unwrap().to_owned(),
            entry.file_type(),
        )
    });
    for (name, kind) in kinds {
        let expected = match name.as_str() {
            "." | ".." | "d" => FileType::Directory,
            "l" => FileType::Symlink,
            _ => FileType::RegularFile,
        };
        assert_eq!(kind, expected, "{name}");
    }
    mounted.unmount();
}

#[test]
fn change_that_fails_half_done_is_seen() {
    let (mounted, _) = mounted(|fs| {
        let (first, second) = (number_of(fs, "f1"), number_of(fs, "f2"));
        Bends {
            // That of a journal that is aborted, too.
            failing_late: vec![
                (first, corrupt(first)),
                (second, Condition::ReadOnly.into()),
            ],
            ..Bends::default()
        }
    });
    for name in ["f1", "f2"] {
        let path = mounted.path(name);
        let file = fs::File::options().read(true).write(true).open(&path);
        let file = file.unwrap();
        let becomes = |contents: &[u8]| {
            // The notice follows the answer.
            for _ in 0..2000 {
                if fs::read(&path).unwrap() == contents {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(fs::read(&path).unwrap(), contents);
            assert_eq!(file.metadata().unwrap().len(), contents.len() as u64);
        };
        becomes(b"contents");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 1, 2).unwrap_err();
        becomes(b"c\0\0tents");
        file.set_len(4).unwrap_err();
        becomes(b"c\0\0t");
    }
    mounted.unmount();
}

/// Makes a directory whose names fold, with a file.
fn plant_folding(fs: &MemFs) {
    let set = SetAttr {
        flags: Some(0x4000_0000),
        ..SetAttr::default()
    };
    let dir = fs.plant(b"d", CreateKind::Directory, 0o755).unwrap();
    dir.set_attr(&Context::root(), &set).unwrap();
    plant(fs, "d/f", b"");
}

#[test]
fn names_in_folding_directories_are_not_kept() {
    let look = |mounted: &Mounted| {
        fs::metadata(mounted.path("d")).unwrap();
        let looks = |name: &str| {
            let requests = mounted.requests_of(|| drop(fs::metadata(mounted.path(name))));
            requests.of(Operation::Lookup)
        };
        [looks("d/f"), looks("d/f"), looks("d/F"), looks("d/F")]
    };
    let mounted = Mounted::with("", plant_folding);
    assert_eq!(
        look(&mounted),
        [1, 1, 1, 1],
        "another name may change with this one"
    );
    mounted.unmount();
    let mounted = Mounted::with("ro", plant_folding);
    assert_eq!(look(&mounted), [1, 0, 1, 0], "nothing changes at all");
    mounted.unmount();
}

#[test]
fn name_moved_into_a_folding_directory_is_not_kept() {
    let mounted = Mounted::with("", |fs| {
        plant_folding(fs);
        plant(fs, "plain", b"");
        plant(fs, "exchanged", b"");
    });
    let path = |name| mounted.path(name);
    fs::metadata(path("plain")).unwrap();
    fs::rename(path("plain"), path("d/moved")).unwrap();
    let (from, to) = (path("d/f"), path("exchanged"));
    renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).unwrap();
    for name in ["d/moved", "d/f"] {
        let looks = || {
            let requests = mounted.requests_of(|| {
                fs::metadata(path(name)).unwrap();
            });
            requests.of(Operation::Lookup)
        };
        // The notice follows the answer.
        assert!(soon(|| looks() == 1), "{name}");
        assert_eq!(looks(), 1, "{name}");
    }
    mounted.unmount();
}
