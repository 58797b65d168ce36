//! An image read by the ext4 driver's own layers, below mounting.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ext4::directory::Directory;
use platter_ext4::mapping::BlockMap;
use platter_ext4::ondisk::superblock::DiskSuperblock;
use platter_ext4::ondisk::{Geometry, Inode, InodeNr, Superblock};
use platter_ext4::{FsContext, inode};
use platter_vfs::{DirCursor, FileKind, Name, Result};
use zerocopy::FromBytes;

/// Cache for one image.
const BUDGET_BYTES: u64 = 16 << 20;

/// An opened image.
pub(crate) struct Image {
    pub(crate) volume: FsContext,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    pub(crate) kind: Option<FileKind>,
}

/// A directory with its inode and map.
pub(crate) struct Opened<'a> {
    pub(crate) image: &'a Image,
    pub(crate) inode: Inode,
    pub(crate) map: BlockMap,
}

impl Image {
    pub(crate) fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        Self::of_bytes(bytes).expect("superblock")
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Option<Self> {
        let disk = DiskSuperblock::read_from_bytes(bytes.get(1024..2048)?).ok()?;
        let superblock = Superblock::decode(&disk).ok()?;
        let geometry = Geometry::decode(&disk, &superblock).ok()?;
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", bytes));
        let budget = Arc::new(MemoryBudget::new(BUDGET_BYTES));
        let volume = FsContext::new(device, superblock, geometry, budget);
        Some(Self { volume })
    }

    pub(crate) fn inode(&self, number: InodeNr) -> Result<Inode> {
        inode::read(&self.volume, number)
    }

    pub(crate) fn open_number(&self, number: InodeNr) -> Result<Opened<'_>> {
        let inode = self.inode(number)?;
        let map = BlockMap::decode(&self.volume, &inode)?;
        Ok(Opened {
            image: self,
            inode,
            map,
        })
    }

    /// The inode at a path of plain names.
    pub(crate) fn at(&self, path: &str) -> Opened<'_> {
        let mut at = self.open_number(InodeNr::ROOT).unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = at.lookup(name.as_bytes()).unwrap();
            at = self.open_number(InodeNr::new(found).unwrap()).unwrap();
        }
        at
    }
}

impl Opened<'_> {
    pub(crate) fn directory(&self) -> Result<Directory<'_>> {
        Directory::open(&self.image.volume, &self.inode, &self.map)
    }

    pub(crate) fn lookup(&self, name: &[u8]) -> Result<u32> {
        let found = self.directory()?.lookup(Name::new(name)?)?;
        Ok(found.inode.get())
    }

    /// All entries and what the listing ended with.
    pub(crate) fn list(&self) -> (Vec<Listed>, Result<()>) {
        let mut entries = Vec::new();
        let result = self.directory().and_then(|directory| {
            directory.read(DirCursor::START, &mut |entry| {
                entries.push(Listed {
                    name: entry.name.as_bytes().to_vec(),
                    inode: entry.id.number,
                    kind: entry.kind,
                });
                ControlFlow::Continue(())
            })
        });
        (entries, result)
    }

    /// All entries, taken up again after every `step` of them, as a mount would.
    pub(crate) fn list_in_steps(&self, step: usize) -> (Vec<Listed>, Result<()>) {
        let mut entries = Vec::new();
        let mut cursor = DirCursor::START;
        loop {
            let before = entries.len();
            let result = self.directory().and_then(|directory| {
                directory.read(cursor, &mut |entry| {
                    entries.push(Listed {
                        name: entry.name.as_bytes().to_vec(),
                        inode: entry.id.number,
                        kind: entry.kind,
                    });
                    assert!(entry.next > cursor, "a cursor goes forward");
                    cursor = entry.next;
                    if entries.len() == before + step {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
            });
            if entries.len() == before {
                return (entries, result);
            }
        }
    }
}
