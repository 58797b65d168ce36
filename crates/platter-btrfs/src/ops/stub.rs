//! The empty directories that stand for subvolumes in snapshots of the subvolume that holds them.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use hashbrown::HashMap;
use platter_block::lock::RwLock;
use platter_vfs::{
    Attr, Condition, DirCursor, DirEntry, DirSink, ExtentSink, FileKind, Inode, InodeId, Name,
    Result, SeekTarget,
};

use super::SuperBlock;
use crate::ondisk::TreeId;

/// No tree has this number; identities of stubs have it.
const STUB_TREE: u64 = 0;

/// Where a stub is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StubPlace {
    /// The directory that has the entry.
    pub(super) dir: InodeId,
    /// The subvolume that the entry names.
    pub(super) child: TreeId,
}

/// The stubs that were found so far. Each keeps its identity while the filesystem is mounted.
#[derive(Debug, Default)]
pub(super) struct Stubs {
    /// Names of subvolumes that were looked up.
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    places: Vec<StubPlace>,
    numbers: HashMap<StubPlace, u64>,
}

impl Stubs {
    /// The identity of the stub at a place.
    pub(super) fn id(&self, place: StubPlace) -> InodeId {
        let known = self.known.read().numbers.get(&place).copied();
        let number = known.unwrap_or_else(|| {
            let mut known = self.known.write();
            let next = known.places.len() as u64;
            let number = *known.numbers.entry(place).or_insert(next);
            if number == next {
                known.places.push(place);
            }
            number
        });
        InodeId {
            tree: STUB_TREE,
            number,
        }
    }

    /// The place of the stub with this identity, if it is one.
    pub(super) fn place(&self, id: InodeId) -> Option<StubPlace> {
        if id.tree != STUB_TREE {
            return None;
        }
        let index = usize::try_from(id.number).ok()?;
        self.known.read().places.get(index).copied()
    }
}

/// An empty directory that is not stored.
pub(super) struct StubDir {
    fs: Arc<SuperBlock>,
    id: InodeId,
    place: StubPlace,
}

impl StubDir {
    pub(super) fn new(fs: Arc<SuperBlock>, id: InodeId, place: StubPlace) -> Self {
        Self { fs, id, place }
    }

    fn dir(&self) -> Result<Arc<dyn Inode>> {
        let found = self.fs.find(self.place.dir)?;
        Ok(found.ok_or(Condition::Stale)?)
    }
}

impl Inode for StubDir {
    fn id(&self) -> InodeId {
        self.id
    }

    fn attr(&self) -> Result<Attr> {
        let dir = self.dir()?.attr()?;
        let now = self.fs.mounted_at;
        Ok(Attr {
            inode: self.fs.shown(self.id),
            generation: 0,
            permissions: 0o755,
            links: 1,
            size_bytes: 0,
            sectors: 0,
            space_is_estimated: false,
            flags: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: Some(now),
            ..dir
        })
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        match name.as_bytes() {
            b"." => Ok(self.fs.find(self.id)?.ok_or(Condition::Stale)?),
            b".." => self.dir(),
            _ => Err(Condition::NotFound.into()),
        }
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let dots: [(u64, &[u8], InodeId); 2] = [(0, b".", self.id), (1, b"..", self.place.dir)];
        for (index, name, id) in dots.into_iter().filter(|(index, ..)| *index >= from.0) {
            let entry = DirEntry {
                name: Name::new(name)?,
                id,
                kind: Some(FileKind::Directory),
                next: DirCursor(index + 1),
            };
            if sink(entry) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Condition::InvalidArgument.into())
    }

    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        Err(Condition::IsDirectory.into())
    }

    fn seek(&self, _offset: u64, _target: SeekTarget) -> Result<u64> {
        Err(Condition::IsDirectory.into())
    }

    fn extents(&self, _range: Range<u64>, _sink: &mut ExtentSink<'_>) -> Result<()> {
        Ok(())
    }

    fn get_xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Condition::NoAttribute.into())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
}

impl fmt::Debug for StubDir {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StubDir")
            .field("id", &self.id)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
