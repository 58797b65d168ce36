//! Requests that overlap: what one of them read is not kept once another one has changed it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use platter_fuse::MountOptions;
use platter_memfs::{HookedRoot, Hooks, MemFs, MemFsLimits};
use platter_vfs::lock::Mutex;
use platter_vfs::{Attr, Filesystem, Inode, Result, SystemClock};

use crate::mounted::Mounted;

/// No step takes nearly as long.
const LIMIT: Duration = Duration::from_secs(20);

/// What a thread reports when it has read attributes, and what it waits for before it returns them.
type Delay = (Sender<()>, Receiver<()>);

/// A root directory whose attributes are returned late, once.
#[derive(Debug, Default)]
struct Late(Mutex<Option<Delay>>);

impl Hooks for Late {
    fn attr(&self, inode: &dyn Inode) -> Result<Attr> {
        let attr = inode.attr()?;
        let delay = self.0.lock().take();
        if let Some((is_read, goes_on)) = delay {
            is_read.send(()).unwrap();
            goes_on.recv_timeout(LIMIT).unwrap();
        }
        Ok(attr)
    }
}

/// The kernel does not see by itself that these are out of date: a change of names leaves its own version of a
/// directory's attributes as it is.
#[test]
fn attributes_that_a_change_overtook_are_asked_for_again() {
    let limits = MemFsLimits::default();
    let fs = Arc::new(MemFs::new(Arc::new(SystemClock::new()), limits));
    let late = Arc::new(Late::default());
    let hooked = HookedRoot {
        fs: Arc::clone(&fs),
        hooks: Arc::clone(&late),
    };
    let root = fs.root().unwrap();
    let options = MountOptions {
        // Checking them, the kernel would ask for the attributes in between.
        no_permission_checks: true,
        ..MountOptions::default()
    };
    let mounted = Mounted::serving(Arc::new(hooked), fs, options);
    let path = mounted.root();
    let links = || u64::from(root.attr().unwrap().links);
    fs::create_dir(path.join("first")).unwrap();
    let (is_read, was_read) = channel();
    let (go_on, goes_on) = channel();
    *late.0.lock() = Some((is_read, goes_on));
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
