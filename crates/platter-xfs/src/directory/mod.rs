//! Directories in all their forms: a name looked up by its hash, and names listed in the order of
//! their entries.

mod blocks;
pub mod list;
mod search;
pub mod change;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, DirCursor, FileKind, Name, Result};

use crate::context::FsContext;
use crate::mapping::ForkMap;
use crate::ondisk::dir::short::ShortDir;
use crate::ondisk::{ForkFormat, Inode, InodeNr, da, dir};

rules! {
    /// What a directory as a whole must hold to.
    pub enum DirectoryRule of "directory" {
        /// It has a fork of a possible form.
        Form => "bad directory form",
        /// It has a block of entries where its size or a leaf says so.
        Missing => "data block is not mapped",
        /// It is not larger than the part of the fork for entries.
        Size => "bad size",
        /// Free indexes are of blocks in the part of the fork for entries.
        FreeIndex => "free index of blocks that no directory has",
    }
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub inode: InodeNr,
    /// The type, where entries hold it.
    pub kind: Option<FileKind>,
}

/// Where a search for a name ended in a directory with a hash tree, valid while the directory does not change; in
/// others, nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamePlace {
    /// The first leaf that may hold its hash.
    pub leaf: Option<LeafPlace>,
    /// The block of entries that has the name, and the first byte of its entry there.
    pub entry: Option<(u32, usize)>,
}

/// The leaf of a hash tree that a hash leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafPlace {
    /// The hash.
    pub hash: u32,
    /// The leaf's block of the fork.
    pub block: u32,
    /// The greatest hash that its node has of it; `None` of a leaf that is the root.
    pub greatest: Option<u32>,
}

/// A block of entries of a directory whose regions were validated by a walk, and whose header has the longest free ones.
/// All changes of names keep it so; it is set and looked at under the inode lock, and forgotten where a change is undone.
#[derive(Debug, Default)]
pub struct SoundBlock {
    /// One more than its number; zero if there is none.
    after: AtomicU32,
}

impl SoundBlock {
    fn is(&self, block: u32) -> bool {
        block.checked_add(1) == Some(self.after.load(Ordering::Relaxed))
    }

    fn set(&self, block: u32) {
        let after = block.checked_add(1).unwrap_or_default();
        self.after.store(after, Ordering::Relaxed);
    }

    /// No block is known to be sound: a change that found one, and made another name there, was undone.
    pub fn forget(&self) {
        self.after.store(0, Ordering::Relaxed);
    }
}

/// The form of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Entries in the inode.
    Short,
    /// One block with entries and leaf entries.
    Block,
    /// Blocks of entries, and one leaf.
    Leaf,
    /// Blocks of entries, leaves below a hash tree, and free indexes.
    Node,
}

/// A directory that is read.
#[derive(Debug, Clone, Copy)]
pub struct Directory<'a> {
    context: &'a FsContext,
    inode: &'a Inode,
    map: &'a ForkMap,
}

impl<'a> Directory<'a> {
    /// The directory of an inode, whose data fork has these mappings.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub fn open(context: &'a FsContext, inode: &'a Inode, map: &'a ForkMap) -> Result<Self> {
        if inode.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        Ok(Self {
            context,
            inode,
            map,
        })
    }

    /// Which form it has: by the last block of its data fork.
    pub fn form(&self) -> Result<Form> {
        match self.inode.data_format {
            ForkFormat::Local => return Ok(Form::Short),
            ForkFormat::Extents | ForkFormat::Btree => {}
            ForkFormat::Device | ForkFormat::MetaBtree => {
                return Err(self.corrupt(DirectoryRule::Form));
            }
        }
        let geometry = self.context.geometry();
        let end = self.map.end(self.context)?;
        let block = u64::from(geometry.dir_block_blocks());
        let leaf = dir::leaf_start(geometry);
        Ok(if end.0 == block {
            Form::Block
        } else if end.0 == leaf.0 + block {
            Form::Leaf
        } else if end > leaf {
            Form::Node
        } else {
            return Err(self.corrupt(DirectoryRule::Form));
        })
    }

    /// What `name` stands for; `.` and `..` included.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn lookup(&self, name: Name<'_>) -> Result<Found> {
        let (found, _) = self.locate(name)?;
        found.ok_or_else(|| Condition::NotFound.into())
    }

    /// The same, and where the search ended; `None` of a name that is not there.
    pub fn locate(&self, name: Name<'_>) -> Result<(Option<Found>, NamePlace)> {
        if &*name == b"." {
            return Ok((Some(self.itself()), NamePlace::default()));
        }
        let found = match self.form()? {
            Form::Short => self.find_short(&name)?,
            Form::Block => search::in_block(self, &name)?,
            Form::Leaf => search::in_leaf(self, &name)?,
            Form::Node => return search::in_tree(self, &name),
        };
        Ok((found, NamePlace::default()))
    }

    /// Whether it has no names but `.` and `..`.
    pub fn is_empty(&self) -> Result<bool> {
        let mut is_empty = true;
        list::read(self, DirCursor::START, &mut |entry| {
            is_empty = entry.name.is_dot_or_dotdot();
            if is_empty {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(is_empty)
    }

    fn itself(&self) -> Found {
        Found {
            inode: self.inode.number,
            kind: Some(FileKind::Directory),
        }
    }

    pub(crate) fn short(&self) -> Result<ShortDir<'a>> {
        let bytes = self.inode.local_data().unwrap_or_default();
        let short = ShortDir::decode(bytes, self.context.geometry());
        Ok(short.map_err(|rule| Corrupt::new(self.locus(), rule))?)
    }

    fn find_short(&self, name: &[u8]) -> Result<Option<Found>> {
        let short = self.short()?;
        if name == b".." {
            return Ok(Some(Found {
                inode: short.parent,
                kind: Some(FileKind::Directory),
            }));
        }
        let mut best = None;
        for entry in short.entries(self.context.geometry()) {
            let entry = entry.map_err(|rule| Corrupt::new(self.locus(), rule))?;
            let found = Found {
                inode: entry.inode,
                kind: entry.kind,
            };
            if entry.name == name {
                return Ok(Some(found));
            }
            if best.is_none() && self.is_same(entry.name, name) {
                best = Some(found);
            }
        }
        Ok(best)
    }

    /// Whether two names stand for one file here.
    fn is_same(&self, stored: &[u8], wanted: &[u8]) -> bool {
        if !self.context.geometry().features.has_ascii_ci() {
            return stored == wanted;
        }
        stored.len() == wanted.len() && self.folded(stored) == self.folded(wanted)
    }

    /// A name without what does not distinguish names here.
    pub(crate) fn folded(&self, name: &[u8]) -> Vec<u8> {
        if !self.context.geometry().features.has_ascii_ci() {
            return name.to_vec();
        }
        name.iter().map(|&byte| da::fold_case(byte)).collect()
    }

    /// The hash of a name here.
    pub(crate) fn hash(&self, name: &[u8]) -> u32 {
        if self.context.geometry().features.has_ascii_ci() {
            da::hash_ascii_ci(name)
        } else {
            da::hash(name)
        }
    }

    fn locus(&self) -> Locus {
        Locus::inode(self.inode.number.get())
    }

    fn corrupt(&self, rule: DirectoryRule) -> platter_vfs::Error {
        Corrupt::new(self.locus(), rule).into()
    }
}
