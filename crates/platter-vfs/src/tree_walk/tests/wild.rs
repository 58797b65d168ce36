//! Trees of directories for tests, also ones no filesystem should have.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_block::lock::Mutex;

use crate::attr::DeviceNumber;
use crate::{
    Attr, Condition, Description, DirCursor, DirEntry, DirSink, ExtentSink, FileKind, Filesystem,
    Inode, InodeId, Name, Result, SeekTarget, StatFs, Timestamp,
};

/// A filesystem of directories whose entries are given, right or wrong.
#[derive(Debug)]
pub(in super::super) struct Wild {
    /// The names and inode numbers in each directory; the numbers are their places here.
    pub(super) dirs: Vec<Vec<(String, u64)>>,
    /// Listing this one fails after its entries.
    pub(super) broken: Option<u64>,
    /// The directories that readahead was requested of.
    pub(in super::super) requested: Mutex<Vec<InodeId>>,
}

impl Wild {
    pub(in super::super) fn new(dirs: Vec<Vec<(String, u64)>>) -> Self {
        Self {
            dirs,
            broken: None,
            requested: Mutex::default(),
        }
    }
}

#[derive(Debug)]
struct WildDir {
    entries: Vec<(String, u64)>,
    number: u64,
    broken: bool,
}

impl Filesystem for Wild {
    fn describe(&self) -> Description {
        unreachable!("no walk asks for it")
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        self.inode(InodeId { tree: 0, number: 0 })
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        let entries = self.dirs.get(usize::try_from(id.number).unwrap());
        Ok(Arc::new(WildDir {
            entries: entries.ok_or(Condition::Stale)?.clone(),
            number: id.number,
            broken: self.broken == Some(id.number),
        }))
    }

    fn read_ahead_dir(&self, dir: InodeId) {
        self.requested.lock().push(dir);
    }

    fn stat_fs(&self) -> Result<StatFs> {
        Err(Condition::NotSupported.into())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

impl Inode for WildDir {
    fn id(&self) -> InodeId {
        let number = self.number;
        InodeId { tree: 0, number }
    }

    fn attr(&self) -> Result<Attr> {
        let time = Timestamp::default();
        Ok(Attr {
            inode: self.number,
            generation: 0,
            kind: FileKind::Directory,
            permissions: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            project: 0,
            size_bytes: 0,
            sectors: 0,
            space_is_estimated: false,
            io_block_bytes: 4096,
            device: DeviceNumber::default(),
            accessed: time,
            modified: time,
            changed: time,
            created: None,
            flags: 0,
        })
    }

    fn lookup(&self, _: Name<'_>) -> Result<Arc<dyn Inode>> {
        Err(Condition::NotFound.into())
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        for (place, (name, number)) in (1..).zip(&self.entries) {
            if place <= from.0 {
                continue;
            }
            let entry = DirEntry {
                name: Name::new(name.as_bytes())?,
                id: InodeId {
                    tree: 0,
                    number: *number,
                },
                kind: Some(FileKind::Directory),
                next: DirCursor(place),
            };
            if sink(entry) == ControlFlow::Break(()) {
                return Ok(());
            }
        }
        if self.broken {
            return Err(Condition::NoKey.into());
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Condition::InvalidArgument.into())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Condition::IsDirectory.into())
    }

    fn seek(&self, _: u64, _: SeekTarget) -> Result<u64> {
        Err(Condition::IsDirectory.into())
    }

    fn extents(&self, _: Range<u64>, _: &mut ExtentSink<'_>) -> Result<()> {
        Err(Condition::IsDirectory.into())
    }

    fn get_xattr(&self, _: &[u8]) -> Result<Vec<u8>> {
        Err(Condition::NoAttribute.into())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
}
