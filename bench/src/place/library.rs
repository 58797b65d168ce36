//! A directory of a filesystem that this process has mounted for itself.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use platter::vfs::{
    self, Context, CreateKind, DirCursor, FileKind, Filesystem, Inode, InodeId, Name, XattrMode,
};

use super::{Directory, Document, Entry, Mapped, Mode};

/// A directory by its inode.
#[derive(Debug)]
pub(crate) struct LibraryDir {
    fs: Arc<dyn Filesystem>,
    inode: Arc<dyn Inode>,
    context: Context,
}

#[derive(Debug)]
struct LibraryFile {
    inode: Arc<dyn Inode>,
    mode: Mode,
}

impl LibraryDir {
    /// The root.
    pub(crate) fn root(fs: &Arc<dyn Filesystem>) -> Result<Self> {
        Ok(Self::new(fs, fs.root()?))
    }

    fn new(fs: &Arc<dyn Filesystem>, inode: Arc<dyn Inode>) -> Self {
        Self {
            fs: Arc::clone(fs),
            inode,
            context: Context::root(),
        }
    }

    fn make(&self, name: &str, kind: CreateKind, permissions: u32) -> vfs::Result<Arc<dyn Inode>> {
        let name = Name::new(name.as_bytes())?;
        self.inode.create(&self.context, name, kind, permissions)
    }

    fn lookup(&self, name: &str) -> vfs::Result<Arc<dyn Inode>> {
        self.inode.lookup(Name::new(name.as_bytes())?)
    }
}

impl Directory for LibraryDir {
    fn make_dir(&self, name: &str) -> Result<Box<dyn Directory>> {
        let inode = self.make(name, CreateKind::Directory, 0o755)?;
        Ok(Box::new(Self::new(&self.fs, inode)))
    }

    fn make_subvolume(&self, name: &str) -> Result<Box<dyn Directory>> {
        let subvolumes = self
            .fs
            .subvolumes()
            .context("a filesystem with subvolumes")?;
        let made = Name::new(name.as_bytes())?;
        let root = subvolumes.create(&self.context, self.inode.id(), made)?;
        Ok(Box::new(Self::new(&self.fs, root)))
    }

    fn snapshot(&self, source: &str, name: &str) -> Result<()> {
        let subvolumes = self
            .fs
            .subvolumes()
            .context("a filesystem with subvolumes")?;
        let source = self.lookup(source)?.id().tree;
        let (parent, name) = (self.inode.id(), Name::new(name.as_bytes())?);
        subvolumes.snapshot(&self.context, source, parent, name, false)?;
        Ok(())
    }

    fn dir(&self, name: &str) -> Result<Box<dyn Directory>> {
        Ok(Box::new(Self::new(&self.fs, self.lookup(name)?)))
    }

    fn create(&self, name: &str) -> Result<Box<dyn Document>> {
        let inode = self.make(name, CreateKind::Regular, 0o644)?;
        let mode = Mode::Write;
        Ok(Box::new(LibraryFile { inode, mode }))
    }

    fn open(&self, name: &str, mode: Mode) -> Result<Box<dyn Document>> {
        let inode = self.lookup(name)?;
        Ok(Box::new(LibraryFile { inode, mode }))
    }

    fn size_bytes(&self, name: &str) -> Result<u64> {
        Ok(self.lookup(name)?.attr()?.size_bytes)
    }

    fn size_bytes_of(&self, entry: &Entry) -> Result<u64> {
        let id = InodeId {
            tree: self.inode.id().tree,
            number: entry.inode,
        };
        Ok(self.fs.inode(id)?.attr()?.size_bytes)
    }

    fn unlink(&self, name: &str) -> Result<()> {
        let name = Name::new(name.as_bytes())?;
        Ok(self.inode.unlink(&self.context, name)?)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.inode.read_dir(DirCursor::START, &mut |entry| {
            if !entry.name.is_dot_or_dotdot() {
                entries.push(Entry {
                    name: String::from_utf8_lossy(entry.name.as_bytes()).into_owned(),
                    is_dir: entry.kind == Some(FileKind::Directory),
                    inode: entry.id.number,
                });
            }
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.inode.sync(false)?)
    }
}

impl Document for LibraryFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.inode.read_at(offset, buffer)?)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        match self.mode {
            Mode::WriteDirect => self.inode.write_through(offset, data)?,
            Mode::Read | Mode::Write => self.inode.write_at(offset, data)?,
        }
        Ok(())
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        let context = Context::root();
        Ok(self
            .inode
            .set_xattr(&context, name.as_bytes(), value, XattrMode::Set)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.inode.sync(false)?)
    }

    fn read_mapped(&self, _: u64) -> Result<Option<Mapped>> {
        Ok(None)
    }
}
