//! Changing a directory: names come, go, and come to name something else. Spec: `ext4/directory`.
//!
//! What can be refused is refused before the first change; an error behind that aborts the
//! transaction. A directory whose index is damaged is not changed where checksums tell of damage,
//! and goes on without its index where there are none.

mod grow;
mod linear;
mod inline;
mod index;
#[cfg(test)]
mod tests;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Name, Result};

use super::contents::{Contents, verifier};
use super::{DirEntryRule, Directory, Found, Slot, Vacancy};
use crate::Volume;
use crate::mapping::{BlockMap, BlockSource};
use crate::ondisk::dir_entry::{EntryFormat, TAIL_BYTES, split_new_tail};
use crate::ondisk::htree::HtreeRule;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeNr};
use crate::txn::Handle;

/// Blocks of a directory that one change of a name changes at most: two leaves, two blocks each of
/// two levels of the index, and the root.
pub const CHANGE_CREDITS: u32 = 7;

/// Blocks that adding a name changes at most: those of the directory, and what growing takes.
#[must_use]
pub fn insert_credits(map: &BlockMap) -> u32 {
    CHANGE_CREDITS.saturating_add(grow::growth_credits(map))
}

/// A directory opened for changing. The caller keeps all others out of it, and stores the inode
/// afterwards.
pub struct DirectoryMut<'a, 'h> {
    volume: &'a Volume,
    space: &'a dyn BlockSource,
    handle: &'a mut Handle<'h>,
    inode: &'a mut Inode,
    map: &'a mut BlockMap,
    format: EntryFormat,
}

impl<'a, 'h> DirectoryMut<'a, 'h> {
    /// The directory `inode`, whose blocks lie where `map` says. New ones come from `space`.
    ///
    /// # Errors
    /// `NotDirectory`, and `NoKey` for one whose names are encrypted.
    pub fn open(
        volume: &'a Volume,
        space: &'a dyn BlockSource,
        handle: &'a mut Handle<'h>,
        inode: &'a mut Inode,
        map: &'a mut BlockMap,
    ) -> Result<Self> {
        if inode.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        if inode.is_encrypted() {
            return Err(Condition::NoKey.into());
        }
        let format = EntryFormat::new(&volume.geometry, false);
        Ok(Self {
            volume,
            space,
            handle,
            inode,
            map,
            format,
        })
    }

    /// Makes a new directory, which has no contents yet, one without names: in its inode where the
    /// format and what else lies there allow it, or else in a block.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn begin(&mut self, parent: InodeNr) -> Result<()> {
        if self.may_begin_inline() {
            return self.begin_inline(parent);
        }
        let number = self.inode.number;
        self.grow(1)?;
        let format = self.format;
        let written = self.write_leaf(FileBlock(0), |content| {
            format.begin(content, number, parent);
        });
        self.abort_on_error(written)
    }

    /// Gives back what [`begin`](Self::begin) took.
    pub fn undo_begin(&mut self) -> Result<()> {
        self.empty(FileBlock(0)..self.block_count())
    }

    /// Adds a name.
    ///
    /// # Errors
    /// `Exists`; `NoSpace`, also where the index can take no more names; `Corrupt` where something is
    /// damaged that might hold the name.
    pub fn insert(&mut self, name: Name<'_>, inode: InodeNr, kind: FileKind) -> Result<()> {
        let vacancy = match self.view()?.vacancy(name) {
            Ok(vacancy) => vacancy,
            // Where an index may be done without, all blocks were looked through.
            Err(Error::Corrupt(_)) if !self.has_checksums() => Vacancy { gap: None },
            Err(error) => return Err(error),
        };
        self.insert_at(vacancy, name, inode, kind)
    }

    /// Adds a name where it was found to go.
    ///
    /// # Errors
    /// As of [`insert`](Self::insert).
    pub fn insert_at(
        &mut self,
        vacancy: Vacancy,
        name: Name<'_>,
        inode: InodeNr,
        kind: FileKind,
    ) -> Result<()> {
        let (new, format) = (NewName { name, inode, kind }, self.format);
        if let Some((chunk, gap)) = vacancy.gap {
            return self.edit_chunk(chunk, |content| {
                format.insert_at(content, gap, name.as_bytes(), inode, kind);
            });
        }
        if self.is_inline() {
            return self.insert_inline(&new);
        }
        if !self.is_indexed() {
            return self.insert_linear(&new);
        }
        match self.insert_indexed(&new) {
            // Without checksums a directory may do without its damaged index.
            Err(Error::Corrupt(_)) if !self.has_checksums() => self.insert_linear(&new),
            result => result,
        }
    }

    /// Removes a name, and tells what it named.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn remove(&mut self, name: Name<'_>) -> Result<Found> {
        let slot = self.view()?.locate(name)?;
        self.remove_at(&slot)?;
        Ok(slot.found)
    }

    /// Removes the name at a place where it was found.
    pub fn remove_at(&mut self, slot: &Slot) -> Result<()> {
        let format = self.format;
        self.edit_chunk(slot.chunk, |content| {
            format.remove_after(content, slot.before, slot.offset);
        })
    }

    /// Makes a name that is there name another inode, and tells what it named before.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn replace(&mut self, name: Name<'_>, inode: InodeNr, kind: FileKind) -> Result<Found> {
        let slot = self.view()?.locate(name)?;
        self.replace_at(&slot, inode, kind)?;
        Ok(slot.found)
    }

    /// Makes `..` name another directory.
    pub fn set_parent(&mut self, parent: InodeNr) -> Result<()> {
        if self.is_inline() {
            self.set_inline_parent(parent);
            return Ok(());
        }
        let slot = self.view()?.locate_dotdot()?;
        self.replace_at(&slot, parent, FileKind::Directory)
    }

    fn replace_at(&mut self, slot: &Slot, inode: InodeNr, kind: FileKind) -> Result<()> {
        let (format, offset) = (self.format, slot.offset);
        self.edit_chunk(slot.chunk, |content| {
            format.replace(content, offset, inode, kind);
        })
    }

    /// The directory as it is.
    fn view(&self) -> Result<Directory<'_>> {
        Directory::open(self.volume, self.inode, self.map)
    }

    fn is_indexed(&self) -> bool {
        self.view().is_ok_and(|view| view.is_indexed())
    }

    fn has_checksums(&self) -> bool {
        self.volume.geometry.features.has_metadata_csum()
    }

    /// Changes a block of names, or a region of the inode.
    fn edit_chunk(&mut self, chunk: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        if self.is_inline() {
            self.edit_region(chunk, change);
            return Ok(());
        }
        self.edit_block(FileBlock(chunk), |content| {
            change(content);
            Ok(())
        })
    }

    /// Changes a block; of one of names, all but its tail.
    fn edit_block(
        &mut self,
        block: FileBlock,
        change: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let verifier = verifier(self.volume, self.inode, block);
        let place = self.place(block)?;
        let has_checksums = self.has_checksums();
        self.handle.edit(place, &verifier, |bytes| {
            let tail = if has_checksums && !verifier.is_index_block(bytes) {
                TAIL_BYTES
            } else {
                0
            };
            let end = bytes.len().saturating_sub(tail);
            change(bytes.get_mut(..end).unwrap_or_default())
        })
    }

    /// Writes a block of names anew.
    fn write_leaf(&mut self, block: FileBlock, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = self.blank();
        if self.has_checksums() {
            fill(split_new_tail(&mut bytes));
        } else {
            fill(&mut bytes);
        }
        self.write_block(block, bytes)
    }

    /// Writes a block anew, with its tail if it has one.
    fn write_block(&mut self, block: FileBlock, bytes: Vec<u8>) -> Result<()> {
        let verifier = verifier(self.volume, self.inode, block);
        let place = self.place(block)?;
        let written = self.handle.create(place, &verifier, bytes);
        written.map(|_| ())
    }

    fn blank(&self) -> Vec<u8> {
        vec![0; self.volume.geometry.block_bytes as usize]
    }

    fn place(&self, block: FileBlock) -> Result<BlockNr> {
        let place = self.map.block(self.volume, block)?;
        place.ok_or_else(|| self.broken_index(block, HtreeRule::Block))
    }

    /// The number of blocks.
    fn block_count(&self) -> FileBlock {
        let bits = self.volume.geometry.block_bits;
        let count = u32::try_from(self.inode.size_bytes >> bits);
        FileBlock(count.unwrap_or(u32::MAX))
    }

    /// What happens to an error behind the first change.
    fn abort_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.handle.abort(error))
    }

    fn broken_index(&self, block: FileBlock, rule: HtreeRule) -> Error {
        let bits = self.volume.geometry.block_bits;
        let number = u64::from(self.inode.number.get());
        let locus = Locus::inode(number).at_offset(u64::from(block.0) << bits);
        Corrupt::new(locus, rule).into()
    }
}

/// A name to add.
struct NewName<'n> {
    name: Name<'n>,
    inode: InodeNr,
    kind: FileKind,
}

impl NewName<'_> {
    fn len(&self) -> usize {
        self.name.as_bytes().len()
    }

    /// Puts it into a block that has room for it.
    fn put(&self, format: EntryFormat, content: &mut [u8]) {
        let is_in = format.insert(content, self.name.as_bytes(), self.inode, self.kind);
        debug_assert!(is_in, "room was found before");
    }
}

impl Directory<'_> {
    fn locate_dotdot(&self) -> Result<Slot> {
        let broken = || self.broken_entry(0, (0, DirEntryRule::Dots));
        let first = match &self.contents {
            Contents::Blocks(_) => self.contents.read(0)?.ok_or_else(broken)?,
            Contents::Inline(_) => return Err(broken()),
        };
        let entry = self.format.entries(&first).nth(1).ok_or_else(broken)?;
        let entry = entry.map_err(|broken| self.broken_entry(0, broken))?;
        let inode = entry.inode.filter(|_| entry.name == b"..");
        Ok(Slot {
            found: Found {
                inode: inode.ok_or_else(broken)?,
                kind: entry.kind,
            },
            chunk: 0,
            before: Some(0),
            offset: entry.offset,
        })
    }
}

impl std::fmt::Debug for DirectoryMut<'_, '_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("DirectoryMut")
            .field(&self.inode.number)
            .finish()
    }
}
