//! Modifying a directory: adding, removing and replacing entries. Spec: `ext4/directory`.
//!
//! Preconditions are checked before the first change; a later error aborts the transaction. A
//! directory with a corrupt index is refused with checksums, and converted to a linear one without
//! them.

mod grow;
mod index;
mod linear;
mod inline;
#[cfg(test)]
mod tests;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Name, Result};

use super::contents::verifier;
use super::{Directory, Found, ParentSlot, Slot, Vacancy};
use crate::FsContext;
use crate::mapping::{BlockMap, BlockSource};
use crate::ondisk::dir_entry::{EntryFormat, TAIL_BYTES, split_new_tail};
use crate::ondisk::htree::HtreeRule;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeNr};
use crate::txn::Handle;

/// Maximum number of directory blocks modified by one operation on a name: two leaves, two blocks
/// for each of two levels of the index, and the root.
pub const CHANGE_CREDITS: u32 = 7;

/// Returns the credits of adding a name: the directory's blocks, and growth.
#[must_use]
pub fn insert_credits(map: &BlockMap) -> u32 {
    CHANGE_CREDITS.saturating_add(grow::growth_credits(map))
}

/// A directory opened for modification. The caller holds the inode lock exclusively, and stores the
/// inode afterwards.
pub struct DirectoryMut<'a, 'h> {
    fs: &'a FsContext,
    space: &'a dyn BlockSource,
    handle: &'a mut Handle<'h>,
    inode: &'a mut Inode,
    map: &'a mut BlockMap,
    format: EntryFormat,
}

impl<'a, 'h> DirectoryMut<'a, 'h> {
    /// Opens the directory `inode` with the block mapping `map`. New blocks come from `space`.
    ///
    /// # Errors
    /// `NotDirectory`, and `NoKey` for one whose names are encrypted.
    pub fn open(
        fs: &'a FsContext,
        space: &'a dyn BlockSource,
        handle: &'a mut Handle<'h>,
        inode: &'a mut Inode,
        map: &'a mut BlockMap,
    ) -> Result<Self> {
        let directory = Self::open_without_key(fs, space, handle, inode, map)?;
        if directory.inode.is_encrypted() {
            return Err(Condition::NoKey.into());
        }
        Ok(directory)
    }

    /// Like [`open`](Self::open), also for an encrypted directory: only its parent may be changed.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub fn open_without_key(
        fs: &'a FsContext,
        space: &'a dyn BlockSource,
        handle: &'a mut Handle<'h>,
        inode: &'a mut Inode,
        map: &'a mut BlockMap,
    ) -> Result<Self> {
        if inode.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        let format = EntryFormat::new(&fs.geometry, false);
        Ok(Self {
            fs,
            space,
            handle,
            inode,
            map,
            format,
        })
    }

    /// Initializes a new directory without entries: in its inode if the format and other inline
    /// contents allow it, else in a block.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn begin(&mut self, parent: InodeNr) -> Result<()> {
        if inline::may_begin(self) {
            return inline::begin(self, parent);
        }
        let number = self.inode.number;
        grow::grow(self, 1)?;
        let format = self.format;
        let written = self.write_leaf(FileBlock(0), |content| {
            format.begin(content, number, parent);
        });
        self.abort_on_error(written)
    }

    /// Frees what [`begin`](Self::begin) allocated.
    pub fn undo_begin(&mut self) -> Result<()> {
        grow::empty(self, FileBlock(0)..self.block_count())
    }

    /// Adds a name.
    ///
    /// # Errors
    /// `Exists`; `NoSpace`, also if the index is full; `Corrupt` if a corrupt part may contain the
    /// name.
    pub fn insert(&mut self, name: Name<'_>, inode: InodeNr, kind: FileKind) -> Result<()> {
        let vacancy = match self.view()?.vacancy(name) {
            Ok(vacancy) => vacancy,
            // Without checksums, all blocks were searched.
            Err(Error::Corrupt(_)) if !self.has_checksums() => Vacancy { gap: None },
            Err(error) => return Err(error),
        };
        self.insert_at(vacancy, name, inode, kind)
    }

    /// Adds a name at a location found before.
    ///
    /// # Errors
    /// Those of [`insert`](Self::insert).
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
        if inline::is_inline(self) {
            return inline::insert(self, &new);
        }
        if !self.is_indexed() {
            return linear::insert(self, &new);
        }
        match index::insert(self, &new) {
            // Without checksums, a corrupt index is dropped.
            Err(Error::Corrupt(_)) if !self.has_checksums() => linear::insert(self, &new),
            result => result,
        }
    }

    /// Removes a name, and returns what it referred to.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn remove(&mut self, name: Name<'_>) -> Result<Found> {
        let slot = self.view()?.locate(name)?;
        self.remove_at(&slot)?;
        Ok(slot.found)
    }

    /// Removes the entry at a location found before.
    pub fn remove_at(&mut self, slot: &Slot) -> Result<()> {
        let format = self.format;
        self.edit_chunk(slot.chunk, |content| {
            format.remove_after(content, slot.before, slot.offset);
        })
    }

    /// Changes the inode of an existing name, and returns what it referred to before.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn replace(&mut self, name: Name<'_>, inode: InodeNr, kind: FileKind) -> Result<Found> {
        let slot = self.view()?.locate(name)?;
        self.replace_at(&slot, inode, kind)?;
        Ok(slot.found)
    }

    /// Changes the inode of `..`, whose location was found before.
    pub fn set_parent(&mut self, slot: &ParentSlot, parent: InodeNr) -> Result<()> {
        match slot {
            ParentSlot::Inode => {
                inline::set_parent(self, parent);
                Ok(())
            }
            ParentSlot::Entry(slot) => self.replace_at(slot, parent, FileKind::Directory),
        }
    }

    fn replace_at(&mut self, slot: &Slot, inode: InodeNr, kind: FileKind) -> Result<()> {
        let (format, offset) = (self.format, slot.offset);
        self.edit_chunk(slot.chunk, |content| {
            format.replace(content, offset, inode, kind);
        })
    }

    /// Returns the directory for reading.
    fn view(&self) -> Result<Directory<'_>> {
        Directory::open(self.fs, self.inode, self.map)
    }

    fn is_indexed(&self) -> bool {
        self.view().is_ok_and(|view| view.is_indexed())
    }

    fn has_checksums(&self) -> bool {
        self.fs.geometry.features.has_metadata_csum()
    }

    /// Modifies a block of entries, or a region of the inode.
    fn edit_chunk(&mut self, chunk: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        if inline::is_inline(self) {
            inline::edit_region(self, chunk, change);
            return Ok(());
        }
        self.edit_block(FileBlock(chunk), |content| {
            change(content);
            Ok(())
        })
    }

    /// Modifies a block, without the tail of a block of entries.
    fn edit_block(
        &mut self,
        block: FileBlock,
        change: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let verifier = verifier(self.fs, self.inode, block);
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

    /// Overwrites a block of entries.
    fn write_leaf(&mut self, block: FileBlock, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = self.blank();
        if self.has_checksums() {
            fill(split_new_tail(&mut bytes));
        } else {
            fill(&mut bytes);
        }
        self.write_block(block, bytes)
    }

    /// Overwrites a block, with its tail if it has one.
    fn write_block(&mut self, block: FileBlock, bytes: Vec<u8>) -> Result<()> {
        let verifier = verifier(self.fs, self.inode, block);
        let place = self.place(block)?;
        let written = self.handle.create(place, &verifier, bytes);
        written.map(|_| ())
    }

    fn blank(&self) -> Vec<u8> {
        vec![0; self.fs.geometry.block_bytes as usize]
    }

    fn place(&self, block: FileBlock) -> Result<BlockNr> {
        let place = self.map.block(self.fs, block)?;
        place.ok_or_else(|| self.broken_index(block, HtreeRule::Block))
    }

    /// Returns the number of blocks.
    fn block_count(&self) -> FileBlock {
        let bits = self.fs.geometry.block_bits;
        let count = u32::try_from(self.inode.size_bytes >> bits);
        FileBlock(count.unwrap_or(u32::MAX))
    }

    /// Aborts the transaction on an error after the first change.
    fn abort_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.handle.abort(error))
    }

    fn broken_index(&self, block: FileBlock, rule: HtreeRule) -> Error {
        let bits = self.fs.geometry.block_bits;
        let number = u64::from(self.inode.number.get());
        let locus = Locus::inode(number).at_offset(u64::from(block.0) << bits);
        Corrupt::new(locus, rule).into()
    }
}

/// A name to be added.
struct NewName<'n> {
    name: Name<'n>,
    inode: InodeNr,
    kind: FileKind,
}

impl NewName<'_> {
    fn len(&self) -> usize {
        self.name.as_bytes().len()
    }

    /// Inserts it into a block known to have space.
    fn put(&self, format: EntryFormat, content: &mut [u8]) {
        let is_in = format.insert(content, self.name.as_bytes(), self.inode, self.kind);
        debug_assert!(is_in, "space was found before");
    }
}

impl std::fmt::Debug for DirectoryMut<'_, '_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("DirectoryMut")
            .field(&self.inode.number)
            .finish()
    }
}
