//! Requests that overlap: what one of them read is not kept once another one has changed it.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use platter_fuse::MountOptions;
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::lock::Mutex;
use platter_vfs::{
    Attr, Context, CreateKind, Description, DirCursor, DirSink, ExtentSink, Filesystem, Inode,
    InodeId, Name, Result, SeekTarget, StatFs, SystemClock,
};

use crate::mounted::Mounted;

/// No step takes nearly as long.
const LIMIT: Duration = Duration::from_secs(20);

/// What a thread reports when it has read attributes, and what it waits for before it returns them.
type Delay = (Sender<()>, Receiver<()>);

/// The memory filesystem, with a root directory whose attributes are returned late, once.
#[derive(Debug)]
struct Late {
    fs: Arc<MemFs>,
    root: Arc<LateRoot>,
}

#[derive(Debug)]
struct LateRoot {
    inode: Arc<dyn Inode>,
    delay: Mutex<Option<Delay>>,
}

impl Filesystem for Late {
    fn describe(&self) -> Description {
        self.fs.describe()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        Ok(Arc::<LateRoot>::clone(&self.root))
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        self.fs.inode(id)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.fs.stat_fs()
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    fn unmount(&self) -> Result<()> {
        self.fs.unmount()
    }
}

impl Inode for LateRoot {
    fn id(&self) -> InodeId {
        self.inode.id()
    }

    fn attr(&self) -> Result<Attr> {
        let attr = self.inode.attr()?;
        let delay = self.delay.lock().take();
        if let Some((is_read, goes_on)) = delay {
            is_read.send(()).unwrap();
            goes_on.recv_timeout(LIMIT).unwrap();
        }
        Ok(attr)
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        self.inode.lookup(name)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.inode.read_dir(from, sink)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.inode.read_link()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.inode.read_at(offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.inode.seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.inode.extents(range, sink)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.inode.get_xattr(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.inode.list_xattrs()
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn Inode>> {
        self.inode.create(context, name, kind, permissions)
    }
}

/// The kernel does not see by itself that these are out of date: a change of names leaves its own version of a
/// directory's attributes as it is.
#[test]
fn attributes_that_a_change_overtook_are_asked_for_again() {
    let limits = MemFsLimits::default();
    let fs = Arc::new(MemFs::new(Arc::new(SystemClock::new()), limits));
    let root = Arc::new(LateRoot {
        inode: fs.root().unwrap(),
        delay: Mutex::new(None),
    });
    let late = Late {
        fs: Arc::clone(&fs),
        root: Arc::clone(&root),
    };
    let options = MountOptions {
        // Checking them, the kernel would ask for the attributes in between.
        no_permission_checks: true,
        ..MountOptions::default()
    };
    let mounted = Mounted::serving(Arc::new(late), fs, options);
    let path = mounted.root();
    let links = || u64::from(root.inode.attr().unwrap().links);
    fs::create_dir(path.join("first")).unwrap();
    let (is_read, was_read) = channel();
    let (go_on, goes_on) = channel();
    *root.delay.lock() = Some((is_read, goes_on));
    thread::scope(|scope| {
        let asking = scope.spawn(|| fs::metadata(&path).unwrap().nlink());
        was_read.recv_timeout(LIMIT).unwrap();
        fs::create_dir(path.join("second")).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(asking.join().unwrap(), links() - 1);
    });
    assert_eq!(fs::metadata(&path).unwrap().nlink(), links());
    mounted.unmount();
}
