//! A filesystem some of whose inodes are corrupt.

use std::ops::Range;
use std::sync::Arc;

use platter_memfs::MemFs;
use platter_ondisk::{Corruption, Locus};
use platter_vfs::path::PathWalk;
use platter_vfs::{
    Attr, Description, DirCursor, DirEntry, DirSink, ExtentSink, Filesystem, Inode, InodeId, Name,
    SeekTarget, StatFs,
};

/// What is wrong with an inode.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    Inode,
    /// No byte of this range can be read.
    Data(Range<u64>),
    Extents,
    Link,
    Xattrs,
    /// The listing breaks off in the middle.
    Listing,
    /// The directory also names this inode, as `loop`.
    Entry(InodeId),
}

/// A filesystem some of whose inodes are corrupt.
#[derive(Debug)]
pub(crate) struct CorruptFs {
    inner: Arc<MemFs>,
    faults: Vec<(InodeId, Fault)>,
}

#[derive(Debug)]
struct CorruptInode {
    inner: Arc<dyn Inode>,
    fault: Option<Fault>,
}

fn corrupt() -> platter_vfs::Error {
    Corruption::new("test", Locus::default(), "broken on purpose").into()
}

impl CorruptFs {
    pub(crate) fn new(inner: &Arc<MemFs>, faults: &[(&[u8], Fault)]) -> Arc<Self> {
        let walk = PathWalk::new(&**inner);
        let faults = faults
            .iter()
            .map(|(path, fault)| (walk.resolve_no_follow(path).unwrap().id(), fault.clone()))
            .collect();
        let inner = Arc::clone(inner);
        Arc::new(Self { inner, faults })
    }

    fn wrap(&self, inner: Arc<dyn Inode>) -> Arc<dyn Inode> {
        let fault = self.faults.iter().find(|(id, _)| *id == inner.id());
        let fault = fault.map(|(_, fault)| fault.clone());
        Arc::new(CorruptInode { inner, fault })
    }
}

impl Filesystem for CorruptFs {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn root(&self) -> platter_vfs::Result<Arc<dyn Inode>> {
        Ok(self.wrap(self.inner.root()?))
    }

    fn inode(&self, id: InodeId) -> platter_vfs::Result<Arc<dyn Inode>> {
        let is_broken = |(broken, fault): &(_, _)| *broken == id && matches!(fault, Fault::Inode);
        if self.faults.iter().any(is_broken) {
            return Err(corrupt());
        }
        Ok(self.wrap(self.inner.inode(id)?))
    }

    fn stat_fs(&self) -> platter_vfs::Result<StatFs> {
        self.inner.stat_fs()
    }

    fn sync(&self) -> platter_vfs::Result<()> {
        Ok(())
    }

    fn unmount(&self) -> platter_vfs::Result<()> {
        Ok(())
    }
}

impl Inode for CorruptInode {
    fn id(&self) -> InodeId {
        self.inner.id()
    }

    fn attr(&self) -> platter_vfs::Result<Attr> {
        self.inner.attr()
    }

    fn lookup(&self, name: Name<'_>) -> platter_vfs::Result<Arc<dyn Inode>> {
        self.inner.lookup(name)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> platter_vfs::Result<()> {
        if let Some(Fault::Entry(id)) = &self.fault {
            let _ = sink(DirEntry {
                name: Name::new(b"loop")?,
                id: *id,
                kind: None,
                next: from,
            });
        }
        self.inner.read_dir(from, sink)?;
        match self.fault {
            Some(Fault::Listing) => Err(corrupt()),
            _ => Ok(()),
        }
    }

    fn read_link(&self) -> platter_vfs::Result<Vec<u8>> {
        match self.fault {
            Some(Fault::Link) => Err(corrupt()),
            _ => self.inner.read_link(),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> platter_vfs::Result<usize> {
        if let Some(Fault::Data(range)) = &self.fault
            && offset < range.end
            && range.start < offset + buf.len() as u64
        {
            buf.fill(0xee);
            return Err(corrupt());
        }
        self.inner.read_at(offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> platter_vfs::Result<u64> {
        self.inner.seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> platter_vfs::Result<()> {
        match self.fault {
            Some(Fault::Extents) => Err(corrupt()),
            _ => self.inner.extents(range, sink),
        }
    }

    fn get_xattr(&self, name: &[u8]) -> platter_vfs::Result<Vec<u8>> {
        self.inner.get_xattr(name)
    }

    fn list_xattrs(&self) -> platter_vfs::Result<Vec<Vec<u8>>> {
        match self.fault {
            Some(Fault::Xattrs) => Err(corrupt()),
            _ => self.inner.list_xattrs(),
        }
    }
}
