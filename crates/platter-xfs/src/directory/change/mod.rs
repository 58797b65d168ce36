//! Directories under change, in all their forms: names added, replaced and removed, and the conversions
//! between the forms both ways. Spec: `xfs/directories`.
//!
//! Entries stay where they are, so that a listing that is under way neither misses names nor gives them twice.
//! Leaves have no stale entries: what is removed is taken out.

mod place;
mod blocks;
mod short;
mod tree;
mod node;
mod leaf;
mod single;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Result};

use super::DirectoryRule;
use crate::change::Change;
use crate::fork::{ForkEdit, InodeEdit};
use crate::mapping::ForkMap;
use crate::ondisk::inode::edit;
use crate::ondisk::{FileBlock, ForkFormat, ForkKind, Geometry, InodeNr, da, dir};

use super::{Form, NamePlace, SoundBlock};
use place::DirPlace;

/// A directory under change.
#[derive(Debug)]
pub struct DirectoryChange<'c, 'f> {
    change: &'c mut Change<'f>,
    edit: InodeEdit,
    fork: DataFork<'c>,
    known: KnownMappings,
    sound: Option<&'c SoundBlock>,
}

/// The data fork of a directory.
#[derive(Debug)]
enum DataFork<'c> {
    /// The entries are in the inode.
    Local,
    /// Mappings as they were before, and are.
    Unchanged(&'c ForkMap),
    /// Mappings that may be changed.
    Open(ForkEdit),
}

/// More blocks than most changes look at.
const KNOWN_BLOCKS_MAX: usize = 16;

/// What was looked up of the mappings, which most changes leave as they are.
#[derive(Debug, Default)]
struct KnownMappings {
    /// Directory blocks by their first file block, and where they lie.
    blocks: Vec<(FileBlock, DirPlace)>,
    /// The file block after the last one that is mapped.
    end: Option<u64>,
}

/// What an entry says.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'n> {
    /// The name.
    pub name: &'n [u8],
    /// The inode.
    pub inode: InodeNr,
    /// Its kind.
    pub kind: FileKind,
}

/// An entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Located {
    /// Its block of entries.
    block: u32,
    /// Its first byte there.
    offset: usize,
}

impl<'c, 'f> DirectoryChange<'c, 'f> {
    /// The directory of an inode, which [`finish`](Self::finish) stores. `map` is that of its mappings before the change,
    /// where it is at hand.
    pub fn open(
        change: &'c mut Change<'f>,
        edit: InodeEdit,
        map: Option<&'c ForkMap>,
    ) -> Result<Self> {
        let inode = edit.inode();
        let map = map.filter(|_| !change.is_remapped(inode.number));
        let fork = match (inode.data_format, map) {
            (ForkFormat::Local, _) => DataFork::Local,
            (ForkFormat::Extents | ForkFormat::Btree, Some(map)) => DataFork::Unchanged(map),
            (ForkFormat::Extents | ForkFormat::Btree, None) => {
                let fork = inode.data_fork();
                DataFork::Open(ForkEdit::open(&fork, inode.number, change.geometry())?)
            }
            (ForkFormat::Device | ForkFormat::MetaBtree, _) => {
                let locus = Locus::inode(inode.number.get());
                return Err(Corrupt::new(locus, DirectoryRule::Form).into());
            }
        };
        Ok(Self {
            change,
            edit,
            fork,
            known: KnownMappings::default(),
            sound: None,
        })
    }

    /// Uses, and records, which block of entries of the directory is sound.
    pub fn remember(&mut self, sound: &'c SoundBlock) {
        self.sound = Some(sound);
    }

    /// The directory's inode, to change its core.
    pub fn inode_mut(&mut self) -> &mut InodeEdit {
        &mut self.edit
    }

    /// Makes an inode without contents an empty directory in `parent`.
    pub fn make(change: &'c mut Change<'f>, mut edit: InodeEdit, parent: InodeNr) -> Result<Self> {
        let bytes = dir::short::encode(parent, &[], change.geometry());
        short::store(&mut edit, &bytes.unwrap_or_default())?;
        edit.refresh(change.geometry())?;
        Self::open(change, edit, None)
    }

    /// Stores the directory's inode.
    pub fn finish(mut self) -> Result<()> {
        if let DataFork::Open(fork) = self.fork {
            fork.store(&mut self.edit)?;
        }
        self.change.put(self.edit);
        Ok(())
    }

    /// Adds a name that is not there.
    ///
    /// # Errors
    /// `NoSpace`; the directory is of no use any more.
    pub fn insert(&mut self, entry: &NewEntry<'_>) -> Result<()> {
        self.insert_at(entry, &NamePlace::default())
    }

    /// The same, where a search for the name ended at `place`. The directory was not changed since.
    ///
    /// # Errors
    /// `NoSpace`; the directory is of no use any more.
    pub fn insert_at(&mut self, entry: &NewEntry<'_>, place: &NamePlace) -> Result<()> {
        match self.form()? {
            Form::Short => short::insert(self, entry),
            Form::Block => single::insert(self, entry),
            Form::Leaf => leaf::insert(self, entry),
            Form::Node => node::insert(self, entry, place.leaf),
        }
    }

    /// Makes a name that is there, `..` included, name another inode.
    pub fn replace(&mut self, entry: &NewEntry<'_>) -> Result<()> {
        if self.form()? == Form::Short {
            if short::replace(self, entry)? {
                return Ok(());
            }
            short::leave(self)?;
        }
        let found = self.find(entry.name)?.ok_or(Condition::NotFound)?;
        let kind = self.data_kind()?;
        let geometry = self.geometry();
        let named = (entry.inode, Some(entry.kind));
        let replaced = self.edit_data(found.block, kind, |bytes, within| {
            dir::build::set_entry(bytes, within, kind, found.offset, named, geometry)
        })?;
        replaced.ok_or_else(|| self.broken())
    }

    /// Moves entries that are in the inode to a block.
    pub fn leave_inode(&mut self) -> Result<()> {
        if !matches!(self.fork, DataFork::Local) {
            return Ok(());
        }
        short::leave(self)
    }

    /// Removes a name that is there.
    pub fn remove(&mut self, name: &[u8]) -> Result<()> {
        self.remove_at(name, &NamePlace::default())
    }

    /// The same, where a search for the name ended at `place`. The directory was not changed since.
    pub fn remove_at(&mut self, name: &[u8], place: &NamePlace) -> Result<()> {
        match self.form()? {
            Form::Short => short::remove(self, name),
            Form::Block => single::remove(self, name),
            Form::Leaf => leaf::remove(self, name),
            Form::Node => node::remove(self, name, place),
        }
    }

    /// Whether a block of entries is known to be sound.
    fn is_sound(&self, block: u32) -> bool {
        self.sound.is_some_and(|sound| sound.is(block))
    }

    /// Records that a block of entries is sound: as it was committed last, and as changes make it.
    fn set_sound(&self, block: u32) {
        if let Some(sound) = self.sound {
            sound.set(block);
        }
    }

    fn geometry(&self) -> &'f Geometry {
        self.change.geometry()
    }

    fn owner(&self) -> InodeNr {
        self.edit.inode().number
    }

    fn broken(&self) -> Error {
        let locus = Locus::inode(self.owner().get());
        Corrupt::new(locus, DirectoryRule::Missing).into()
    }

    fn form(&mut self) -> Result<Form> {
        if matches!(self.fork, DataFork::Local) {
            return Ok(Form::Short);
        }
        let geometry = self.geometry();
        let end = self.end()?;
        let block = u64::from(geometry.dir_block_blocks());
        let leaf = dir::leaf_start(geometry).0;
        Ok(if end == block {
            Form::Block
        } else if end == leaf + block {
            Form::Leaf
        } else if end > leaf {
            Form::Node
        } else {
            let locus = Locus::inode(self.owner().get());
            return Err(Corrupt::new(locus, DirectoryRule::Form).into());
        })
    }

    /// Where the entry with this name lies, in a directory that has blocks.
    fn find(&mut self, name: &[u8]) -> Result<Option<Located>> {
        let hash = da::hash(name);
        match self.form()? {
            Form::Short => Ok(None),
            Form::Block => {
                let leaves = single::leaves(self)?;
                self.find_among(&leaves, hash, name)
            }
            Form::Leaf => {
                let (entries, _) = leaf::read(self)?;
                self.find_among(&entries, hash, name)
            }
            Form::Node => node::find(self, hash, name),
        }
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.edit.change(|bytes| edit::set_size(bytes, size))
    }

    fn area_bytes(&self) -> Result<usize> {
        Ok(self.edit.fork(ForkKind::Data)?.bytes.len())
    }
}
