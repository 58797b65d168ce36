//! What `Control` asks of a mount, and what the kernel sees of it.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use platter_fuse::{Control, MountOptions};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::subvolumes::{Subvolume, SubvolumeSink};
use platter_vfs::{
    Condition, Context, CreateKind, Defragment, Description, Extent, Filesystem, Inode, InodeId,
    Name, Result, Subvolumes, SystemClock, Timestamp, Trim, Uuid,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::mounted::{Mounted, refused, stands_on};

/// Directories of a filesystem in memory as subvolumes. All have one tree, so the one made last is the one whose root
/// directory is found.
#[derive(Debug)]
struct Directories {
    fs: Arc<MemFs>,
    last: Mutex<Option<InodeId>>,
    /// Whether changes fail when they are done.
    fails_late: AtomicBool,
}

impl Directories {
    fn over(fs: &Arc<MemFs>) -> Self {
        Self {
            fs: Arc::clone(fs),
            last: Mutex::default(),
            fails_late: AtomicBool::new(false),
        }
    }

    fn end(&self) -> Result<()> {
        if self.fails_late.load(Ordering::Relaxed) {
            return Err(Condition::NoSpace.into());
        }
        Ok(())
    }

    fn last(&self) -> Result<InodeId> {
        Ok(self.last.lock().unwrap().ok_or(Condition::NotFound)?)
    }
}

impl Filesystem for Directories {
    fn describe(&self) -> Description {
        self.fs.describe()
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        Some(self)
    }

    stands_on!(fs);
}

impl Subvolumes for Directories {
    fn list(&self, sink: &mut SubvolumeSink<'_>) -> Result<()> {
        if let Ok(last) = self.last() {
            let _: ControlFlow<()> = sink(self.get(last.number)?);
        }
        Ok(())
    }

    fn get(&self, id: u64) -> Result<Subvolume> {
        Ok(Subvolume {
            id,
            parent: Some(5),
            parent_dir: Some(1),
            path: b"dir/name".to_vec(),
            uuid: Uuid::from_u128(id.into()),
            parent_uuid: None,
            received_uuid: None,
            generation: 3,
            changed_generation: 2,
            changed: Timestamp::default(),
            created_generation: 1,
            created: Timestamp::default(),
            read_only: false,
            sent: None,
            received: None,
        })
    }

    fn next(&self, id: u64) -> Result<Option<Subvolume>> {
        let last = self.last()?;
        let found = (id <= last.number).then(|| self.get(last.number));
        found.transpose()
    }

    fn root(&self, _: u64) -> Result<InodeId> {
        self.last()
    }

    fn default_id(&self) -> Result<u64> {
        Ok(self.last()?.number)
    }

    fn create(&self, context: &Context, parent: InodeId, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        let dir = self.fs.inode(parent)?;
        let made = dir.create(context, name, CreateKind::Directory, 0o777)?;
        *self.last.lock().unwrap() = Some(made.id());
        self.end().map(|()| made)
    }

    fn snapshot(
        &self,
        context: &Context,
        _: u64,
        parent: InodeId,
        name: Name<'_>,
        _: bool,
    ) -> Result<Arc<dyn Inode>> {
        self.create(context, parent, name)
    }

    fn delete(
        &self,
        context: &Context,
        parent: InodeId,
        name: Name<'_>,
        root: Option<InodeId>,
    ) -> Result<()> {
        assert_eq!(root, Some(self.last()?));
        self.fs.inode(parent)?.remove_dir(context, name)?;
        self.end()
    }
}

fn memory() -> Arc<MemFs> {
    let limits = MemFsLimits::default();
    Arc::new(MemFs::new(Arc::new(SystemClock::new()), limits))
}

fn mounted() -> Mounted {
    let fs = memory();
    let served = Directories::over(&fs);
    Mounted::serving(Arc::new(served), fs, MountOptions::default())
}

#[test]
fn subvolumes_come_and_go_before_the_eyes_of_the_kernel() {
    let mounted = mounted();
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let control = Control::open(&dir).unwrap();
    for round in 0..20 {
        let path = dir.join("name");
        assert!(!path.exists());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        let before = fs::metadata(&dir).unwrap();
        control.create_subvolume(b"name").unwrap();
        assert!(path.is_dir(), "in round {round}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(fs::metadata(&dir).unwrap().nlink(), before.nlink() + 1);
        refused(control.create_subvolume(b"name"), Errno::EXIST);
        let held = fs::File::open(&path).unwrap();
        control.delete_subvolume(b"name").unwrap();
        assert!(!path.exists(), "in round {round}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert_eq!(fs::metadata(&dir).unwrap().nlink(), before.nlink());
        assert_eq!(held.metadata().unwrap().nlink(), 0);
        refused(control.delete_subvolume(b"name"), Errno::NOENT);
    }
    drop(control);
    mounted.unmount();
}

#[test]
fn snapshot_is_of_a_directory_of_the_same_mount() {
    let mounted = mounted();
    let control = Control::open(&mounted.root()).unwrap();
    control.create_subvolume(b"source").unwrap();
    let source = Control::open(&mounted.path("source")).unwrap();
    assert_eq!(
        control.next_subvolume(0).unwrap().unwrap().0.path,
        b"dir/name"
    );
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Control::open(elsewhere.path()).unwrap();
    refused(control.snapshot(&other, b"snapshot", false), Errno::XDEV);
    refused(control.snapshot(&control, b"snapshot", false), Errno::INVAL);
    assert!(!mounted.path("snapshot").exists());
    control.snapshot(&source, b"snapshot", true).unwrap();
    assert!(mounted.path("snapshot").is_dir());
    drop((control, source));
    mounted.unmount();
}

#[test]
fn subvolume_belongs_to_its_maker_as_the_umask_says() {
    let mounted = mounted();
    let control = Control::open(&mounted.root()).unwrap();
    control.create_subvolume(b"name").unwrap();
    let made = fs::metadata(mounted.path("name")).unwrap();
    fs::create_dir(mounted.path("directory")).unwrap();
    let directory = fs::metadata(mounted.path("directory")).unwrap();
    assert_eq!(made.permissions().mode(), directory.permissions().mode());
    assert_eq!((made.uid(), made.gid()), (directory.uid(), directory.gid()));
    drop(control);
    mounted.unmount();
}

#[test]
fn what_names_no_subvolume_is_refused() {
    let mounted = mounted();
    fs::create_dir(mounted.path("plain")).unwrap();
    fs::write(mounted.path("file"), b"").unwrap();
    let control = Control::open(&mounted.root()).unwrap();
    let long = vec![b'x'; 256];
    for (name, errno) in [
        (&b"a/b"[..], Errno::INVAL),
        (b"", Errno::NOENT),
        (b".", Errno::EXIST),
        (b"..", Errno::EXIST),
        (&long, Errno::NAMETOOLONG),
        (b"plain", Errno::EXIST),
    ] {
        refused(control.create_subvolume(name), errno);
    }
    control.create_subvolume(b"name").unwrap();
    for name in ["plain", "file", ".."] {
        refused(control.delete_subvolume(name.as_bytes()), Errno::INVAL);
    }
    assert!(mounted.path("plain").exists() && mounted.path("file").exists());
    refused(control.set_read_only(true), Errno::INVAL);
    refused(control.set_default_subvolume(1), Errno::OPNOTSUPP);
    drop(control);
    mounted.unmount();
}

#[test]
fn filesystem_without_subvolumes_says_so() {
    let mounted = Mounted::new();
    let control = Control::open(&mounted.root()).unwrap();
    refused(control.create_subvolume(b"name"), Errno::NOTTY);
    refused(control.subvolume_id(), Errno::NOTTY);
    let all = Trim {
        start_bytes: 0,
        len_bytes: u64::MAX,
        min_bytes: 0,
    };
    refused(control.trim(&all), Errno::OPNOTSUPP);
    refused(control.set_label(&[b'x'; 256]), Errno::INVAL);
    let synced = mounted.requests_of(|| control.sync().unwrap());
    assert_eq!(synced.all(), [("IOCTL", 1)]);
    drop(control);
    mounted.unmount();
}

#[test]
fn extents_are_those_of_the_filesystem() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    let file = fs::File::create_new(&path).unwrap();
    let root = mounted.fs.root().unwrap();
    let inode = root.lookup(Name::new(b"file").unwrap()).unwrap();
    let listed = || {
        let mut found = Vec::new();
        let listed = Control::extents(&file, &mut |extent| {
            found.push(extent);
            ControlFlow::Continue(())
        });
        listed.map(|()| found)
    };
    assert!(listed().unwrap().is_empty());
    // One list, one that is full, and several.
    for count in [1, 256, 257, 700] {
        for nth in 0..count {
            file.write_all_at(&[1; 4096], nth * 8192).unwrap();
        }
        file.sync_all().unwrap();
        let mut expected = Vec::new();
        let of_filesystem = inode.extents(0..u64::MAX, &mut |extent| {
            let place = None;
            expected.push(Extent { place, ..extent });
            ControlFlow::Continue(())
        });
        of_filesystem.unwrap();
        assert_eq!(expected.len() as u64, count);
        assert_eq!(listed().unwrap(), expected);
    }
    let mut seen = 0;
    let interrupted = Control::extents(&file, &mut |_| {
        seen += 1;
        ControlFlow::Break(())
    });
    interrupted.unwrap();
    assert_eq!(seen, 1);
    let dir = fs::File::open(mounted.root()).unwrap();
    let elsewhere = tempfile::tempfile().unwrap();
    for (other, errno) in [(&dir, Errno::ISDIR), (&elsewhere, Errno::NOTTY)] {
        let refusal = Control::extents(other, &mut |_| ControlFlow::Continue(()));
        refused(refusal, errno);
    }
    drop((file, dir));
    mounted.unmount();
}

#[test]
fn defragmentation_that_cannot_be_is_refused() {
    let mounted = Mounted::new();
    fs::write(mounted.path("file"), b"contents").unwrap();
    let open = |path: &std::path::Path| fs::File::open(path).unwrap();
    let (file, dir) = (open(&mounted.path("file")), open(&mounted.root()));
    let all = Defragment::default();
    refused(Control::defragment(&file, &all), Errno::OPNOTSUPP);
    refused(Control::defragment(&dir, &all), Errno::ISDIR);
    let long = Defragment {
        compression: Some("x".repeat(32)),
        ..all.clone()
    };
    refused(Control::defragment(&file, &long), Errno::NAMETOOLONG);
    refused(Control::subvolume_of(&file), Errno::NOTTY);
    mount_remount(mounted.root(), MountFlags::RDONLY, c"").unwrap();
    refused(Control::defragment(&file, &all), Errno::ROFS);
    drop((file, dir));
    mounted.unmount();
}

#[test]
fn read_only_mount_takes_no_subvolume() {
    for is_remounted in [false, true] {
        let fs = memory();
        let served = Directories::over(&fs);
        let options = MountOptions {
            read_only: !is_remounted,
            ..MountOptions::default()
        };
        let mounted = Mounted::serving(Arc::new(served), fs, options);
        let control = Control::open(&mounted.root()).unwrap();
        if is_remounted {
            control.create_subvolume(b"name").unwrap();
            mount_remount(mounted.root(), MountFlags::RDONLY, c"").unwrap();
        }
        refused(control.create_subvolume(b"new"), Errno::ROFS);
        refused(control.delete_subvolume(b"name"), Errno::ROFS);
        refused(control.set_default_subvolume(1), Errno::ROFS);
        refused(control.set_label(b"label"), Errno::ROFS);
        assert!(!mounted.path("new").exists());
        drop(control);
        mounted.unmount();
    }
}

#[test]
fn change_that_fails_late_is_seen_at_once() {
    let fs = memory();
    let served = Arc::new(Directories::over(&fs));
    let mounted = Mounted::serving(Arc::clone(&served) as _, fs, MountOptions::default());
    let control = Control::open(&mounted.root()).unwrap();
    let path = mounted.path("name");
    served.fails_late.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        assert!(!path.exists());
        refused(control.create_subvolume(b"name"), Errno::NOSPC);
        assert!(path.is_dir());
        refused(control.delete_subvolume(b"name"), Errno::NOSPC);
    }
    assert!(!path.exists());
    drop(control);
    mounted.unmount();
}

/// Sets a flag when a test is over, however it ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Callers of flags, of holes and of a removal hold locks of the directory and the file while they wait for an answer,
/// or for the kernel to write pages back; a name is announced under the lock of the directory.
#[test]
fn names_are_announced_while_callers_hold_the_directory() {
    let mounted = mounted();
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let path = dir.join("file");
    let is_over = AtomicBool::new(false);
    let until_over = |act: &dyn Fn()| {
        while !is_over.load(Ordering::Relaxed) {
            act();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let dir = fs::File::open(&dir).unwrap();
            until_over(&|| {
                let flags = rustix::fs::ioctl_getflags(&dir).unwrap();
                // Refused or not: the lock is held.
                let set = rustix::fs::ioctl_setflags(&dir, flags);
                assert_ne!(set, Err(Errno::AGAIN));
            });
        });
        scope.spawn(|| {
            until_over(&|| {
                if let Ok(file) = fs::File::open(&path) {
                    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
                    let set = rustix::fs::ioctl_setflags(&file, flags);
                    assert_ne!(set, Err(Errno::AGAIN));
                }
            });
        });
        scope.spawn(|| {
            until_over(&|| {
                fs::write(&path, [1; 10_000]).unwrap();
                fs::remove_file(&path).unwrap();
            });
        });
        scope.spawn(|| {
            until_over(&|| {
                if let Ok(file) = fs::File::open(&path) {
                    // What was there may be shorter by now.
                    let _ = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
                }
            });
        });
        let _over = Over(&is_over);
        let control = Control::open(&dir).unwrap();
        let name = dir.join("name");
        for _ in 0..300 {
            assert!(!name.exists());
            control.create_subvolume(b"name").unwrap();
            assert!(name.exists());
            control.delete_subvolume(b"name").unwrap();
        }
    });
    mounted.unmount();
}
