//! Adding entries to a quota file, and removing them.

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;
use zerocopy::{FromBytes, IntoBytes};

use super::QuotaFile;
use crate::FsContext;
use crate::alloc::{Allocator, RECORD_CREDITS, Reserve};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{BlockMap, BlockSource, MapChange};
use crate::ondisk::quota::{
    DiskQuotaEntry, DiskQuotaHead, DiskQuotaLeafHead, ENTRIES_PER_LEAF, QUOTA_BLOCK_BYTES,
    QUOTA_ROOT_BLOCK, QUOTA_TREE_LEVELS, QuotaKind, QuotaRule, entries, reference_index,
    references, unused_slot,
};
use crate::ondisk::{BlockNr, FileBlock, Inode};
use crate::quota::{EntryPlace, QuotaTable};
use crate::txn::Handle;

/// Blocks that an entry needs at most: three of the tree, and a leaf.
const NEW_BLOCKS_MAX: u32 = QUOTA_TREE_LEVELS;
/// Blocks that removing an entry modifies: the header, four of the tree, a leaf, its neighbours in the
/// list, and the first of the list.
const REMOVE_CREDITS: u32 = 1 + QUOTA_TREE_LEVELS + 1 + 3;
/// Credits of [`QuotaFile::begin`].
pub const NEW_FILE_CREDITS: u32 = 16;

/// The references of the tree to an id: a block of each level.
type Path = Vec<u32>;

impl QuotaFile {
    /// Makes `inode` an empty file of one kind, and stores it.
    ///
    /// # Errors
    /// `NoSpace`, and those of the handle: the filesystem is being made, and is then discarded.
    pub fn begin(
        fs: &FsContext,
        space: &Allocator,
        handle: &mut Handle<'_>,
        kind: QuotaKind,
        mut inode: Inode,
    ) -> Result<Self> {
        let mut file = Self {
            map: BlockMap::begin(fs, &mut inode),
            inode,
            head: DiskQuotaHead::new(kind),
        };
        file.extend(fs, space, handle, QUOTA_ROOT_BLOCK + 1)?;
        file.write_head(fs, handle)?;
        Ok(file)
    }

    /// Adds an entry for an id that has none. Takes [`add_credits`](Self::add_credits).
    ///
    /// # Errors
    /// `NoSpace`: nothing was added. After others, the handle was aborted.
    pub fn add_owner(
        &mut self,
        fs: &FsContext,
        space: &Allocator,
        handle: &mut Handle<'_>,
        table: &QuotaTable,
        (kind, id): (QuotaKind, u32),
    ) -> Result<()> {
        self.grow(fs, space, handle, id)?;
        let added = self
            .add(fs, handle, id)
            .and_then(|place| table.add_entry(handle, kind, id, place));
        added.map_err(|error| handle.abort(error))
    }

    /// Returns the credits of [`add_owner`](Self::add_owner).
    #[must_use]
    pub fn add_credits(&self) -> u32 {
        let of_block = self.map.step_credits() + RECORD_CREDITS + 1;
        // The header, a tree block that gets a reference, and two leaves.
        NEW_BLOCKS_MAX * of_block + STORE_CREDITS + 4
    }

    pub(super) fn remove_credits() -> u32 {
        REMOVE_CREDITS
    }

    /// Ensures that the file has the blocks that an entry of `id` needs.
    ///
    /// # Errors
    /// `NoSpace`, and `Corrupt`: the file is at most longer.
    pub(super) fn grow(
        &mut self,
        fs: &FsContext,
        space: &Allocator,
        handle: &mut Handle<'_>,
        id: u32,
    ) -> Result<()> {
        let known = self.path(fs, id)?.len();
        let missing = QUOTA_TREE_LEVELS.saturating_sub(u32::try_from(known).unwrap_or(u32::MAX));
        let leaf = u32::from(self.head.free_entry.get() == 0);
        let end = self.head.blocks.get().max(QUOTA_ROOT_BLOCK + 1);
        self.extend(fs, space, handle, end.saturating_add(missing + leaf))
    }

    /// Extends the file to `blocks` quota blocks.
    fn extend(
        &mut self,
        fs: &FsContext,
        space: &Allocator,
        handle: &mut Handle<'_>,
        blocks: u32,
    ) -> Result<()> {
        let geometry = &fs.geometry;
        let size = u64::from(blocks) * QUOTA_BLOCK_BYTES as u64;
        if size <= self.inode.size_bytes {
            return Ok(());
        }
        let block = |size: u64| u32::try_from(size.div_ceil(u64::from(geometry.block_bytes)));
        let (Ok(start), Ok(end)) = (block(self.inode.size_bytes), block(size)) else {
            return Err(self.broken(blocks, QuotaRule::Length).into());
        };
        for block in (start..end).map(FileBlock) {
            if self.map.block(fs, block)?.is_some() {
                continue;
            }
            let goal = self.goal(fs, space, block)?;
            let source = space.portion(Reserve::Privileged);
            let mut change = MapChange {
                fs,
                space: &source,
                handle,
                inode: &mut self.inode,
            };
            let place = self.map.fill_hole(&mut change, block, |change| {
                source.alloc(fs, change.handle, goal)
            })?;
            let zeros = vec![0; geometry.block_bytes as usize];
            let created = handle.create(place, &Unverified, zeros);
            created.map_err(|error| handle.abort(error))?;
        }
        self.inode.size_bytes = size;
        let stored = inode::store(fs, handle, &self.inode);
        stored.map_err(|error| handle.abort(error))
    }

    fn goal(&self, fs: &FsContext, space: &Allocator, block: FileBlock) -> Result<BlockNr> {
        let before = match block.0.checked_sub(1) {
            Some(before) => self.map.block(fs, FileBlock(before))?,
            None => None,
        };
        let first = || space.first_goal(self.inode.number, self.inode.kind);
        Ok(before.map_or_else(first, |before| BlockNr(before.0.saturating_add(1))))
    }

    /// Adds an entry for an id that has none, in a file that [has grown](Self::grow) for it. Its slot is
    /// reserved, and written by the caller.
    ///
    /// # Errors
    /// `Corrupt`. The file may be half changed then.
    pub(super) fn add(
        &mut self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        id: u32,
    ) -> Result<EntryPlace> {
        let path = self.path(fs, id)?;
        let leaf = match self.head.free_entry.get() {
            0 => {
                let new = self.take_block(fs, handle)?;
                self.head.free_entry.set(new);
                new
            }
            listed => self.within(listed, QuotaRule::FreeList)?,
        };
        let bytes = self.read(fs, leaf)?;
        let offset = unused_slot(&bytes).ok_or_else(|| self.broken(leaf, QuotaRule::FreeList))?;
        let mut leaf_head = leaf_head(&bytes);
        let count = leaf_head.entries.get().saturating_add(1);
        leaf_head.entries.set(count);
        if usize::from(count) >= ENTRIES_PER_LEAF {
            self.unlink(fs, handle, &mut leaf_head)?;
        }
        self.write(fs, handle, leaf, |bytes| put(bytes, &leaf_head))?;
        let mut below = leaf;
        let levels = u32::try_from(path.len()).unwrap_or(QUOTA_TREE_LEVELS);
        // New blocks of the tree come before the reference to them.
        for level in (levels..QUOTA_TREE_LEVELS).rev() {
            let new = self.take_block(fs, handle)?;
            self.set_reference(fs, handle, (new, level), id, below)?;
            below = new;
        }
        let last = path.last().copied().unwrap_or(QUOTA_ROOT_BLOCK);
        let level = levels.saturating_sub(1);
        if self.reference(fs, (last, level), id)? != 0 {
            return Err(self.broken(last, QuotaRule::Reference).into());
        }
        self.set_reference(fs, handle, (last, level), id, below)?;
        self.write_head(fs, handle)?;
        self.place(fs, leaf, offset)
    }

    /// Removes the entry of an id.
    ///
    /// # Errors
    /// `Corrupt`. The file may be half changed then.
    pub(super) fn remove(
        &mut self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        id: u32,
    ) -> Result<()> {
        let path = self.path(fs, id)?;
        let Some(&last) = path.get(QUOTA_TREE_LEVELS as usize - 1) else {
            return Err(self.broken(QUOTA_ROOT_BLOCK, QuotaRule::Reference).into());
        };
        let leaf = self.reference(fs, (last, QUOTA_TREE_LEVELS - 1), id)?;
        let leaf = self.within(leaf, QuotaRule::Reference)?;
        let bytes = self.read(fs, leaf)?;
        let own = entries(&bytes).find(|(_, entry)| entry.id.get() == id);
        let (offset, _) = own.ok_or_else(|| self.broken(leaf, QuotaRule::Reference))?;
        let mut leaf_head = leaf_head(&bytes);
        let was_full = usize::from(leaf_head.entries.get()) >= ENTRIES_PER_LEAF;
        let left = leaf_head.entries.get().saturating_sub(1);
        leaf_head.entries.set(left);
        if left == 0 {
            if !was_full {
                self.unlink(fs, handle, &mut leaf_head)?;
            }
            self.free_block(fs, handle, leaf)?;
        } else {
            if was_full {
                self.link(fs, handle, leaf, &mut leaf_head)?;
            }
            self.write(fs, handle, leaf, |bytes| {
                put(bytes, &leaf_head);
                let slot = bytes.get_mut(offset..).unwrap_or_default();
                put(slot, &DiskQuotaEntry::default());
            })?;
        }
        for (level, &block) in (0..QUOTA_TREE_LEVELS).zip(&path).rev() {
            self.set_reference(fs, handle, (block, level), id, 0)?;
            let is_empty = references(&self.read(fs, block)?).next().is_none();
            if !is_empty || block == QUOTA_ROOT_BLOCK {
                break;
            }
            self.free_block(fs, handle, block)?;
        }
        self.write_head(fs, handle)
    }

    /// Returns the tree blocks that lead to an id, from the root on, as far as there are any.
    fn path(&self, fs: &FsContext, id: u32) -> Result<Path> {
        let mut path = vec![QUOTA_ROOT_BLOCK];
        for level in 0..QUOTA_TREE_LEVELS - 1 {
            let at = path.last().copied().unwrap_or(QUOTA_ROOT_BLOCK);
            let below = self.reference(fs, (at, level), id)?;
            if below == 0 {
                break;
            }
            path.push(self.within(below, QuotaRule::Reference)?);
        }
        Ok(path)
    }

    /// Returns the reference of a tree block for an id; 0 if there is none.
    fn reference(&self, fs: &FsContext, (block, level): (u32, u32), id: u32) -> Result<u32> {
        let bytes = self.read(fs, block)?;
        let references = <[Le32]>::ref_from_bytes(&bytes).unwrap_or_default();
        let reference = references.get(reference_index(id, level));
        Ok(reference.map_or(0, |reference| reference.get()))
    }

    fn set_reference(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        (block, level): (u32, u32),
        id: u32,
        to: u32,
    ) -> Result<()> {
        self.write(fs, handle, block, |bytes| {
            let references = <[Le32]>::mut_from_bytes(bytes).unwrap_or_default();
            if let Some(reference) = references.get_mut(reference_index(id, level)) {
                reference.set(to);
            }
        })
    }

    /// Checks that a block is one of those after the root.
    fn within(&self, block: u32, rule: QuotaRule) -> Result<u32> {
        if block > QUOTA_ROOT_BLOCK && block < self.head.blocks.get() {
            return Ok(block);
        }
        Err(self.broken(block, rule).into())
    }

    /// Takes a free block, or one after the last, and fills it with zeros.
    fn take_block(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<u32> {
        let block = match self.head.free_block.get() {
            0 => {
                let block = self.head.blocks.get().max(QUOTA_ROOT_BLOCK + 1);
                if u64::from(block) >= self.len_blocks() {
                    return Err(self.broken(block, QuotaRule::Length).into());
                }
                self.head.blocks.set(block + 1);
                block
            }
            listed => {
                let listed = self.within(listed, QuotaRule::FreeList)?;
                let free = leaf_head(&self.read(fs, listed)?);
                self.head.free_block = free.next_free;
                listed
            }
        };
        self.write(fs, handle, block, |bytes| bytes.fill(0))?;
        Ok(block)
    }

    /// Adds a block to the list of free ones.
    fn free_block(&mut self, fs: &FsContext, handle: &mut Handle<'_>, block: u32) -> Result<()> {
        let next = self.head.free_block;
        self.head.free_block.set(block);
        self.write(fs, handle, block, |bytes| {
            bytes.fill(0);
            let free = DiskQuotaLeafHead {
                next_free: next,
                ..DiskQuotaLeafHead::default()
            };
            put(bytes, &free);
        })
    }

    /// Adds a leaf to the list of those with unused slots.
    fn link(
        &mut self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        leaf: u32,
        leaf_head: &mut DiskQuotaLeafHead,
    ) -> Result<()> {
        let next = self.head.free_entry;
        leaf_head.next_free = next;
        leaf_head.prev_free.set(0);
        if next.get() != 0 {
            self.edit_leaf_head(fs, handle, next.get(), |head| head.prev_free.set(leaf))?;
        }
        self.head.free_entry.set(leaf);
        Ok(())
    }

    /// Removes a leaf from the list of those with unused slots.
    fn unlink(
        &mut self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        leaf_head: &mut DiskQuotaLeafHead,
    ) -> Result<()> {
        let (next, prev) = (leaf_head.next_free, leaf_head.prev_free);
        if next.get() != 0 {
            self.edit_leaf_head(fs, handle, next.get(), |head| head.prev_free = prev)?;
        }
        match prev.get() {
            0 => self.head.free_entry = next,
            prev => self.edit_leaf_head(fs, handle, prev, |head| head.next_free = next)?,
        }
        (leaf_head.next_free, leaf_head.prev_free) = (0.into(), 0.into());
        Ok(())
    }

    fn edit_leaf_head(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        leaf: u32,
        change: impl FnOnce(&mut DiskQuotaLeafHead),
    ) -> Result<()> {
        let leaf = self.within(leaf, QuotaRule::FreeList)?;
        self.write(fs, handle, leaf, |bytes| {
            let mut head = leaf_head(bytes);
            change(&mut head);
            put(bytes, &head);
        })
    }

    fn write_head(&self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        self.write(fs, handle, 0, |bytes| put(bytes, &self.head))
    }

    /// Changes a block.
    fn write(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        block: u32,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let place = self.place(fs, block, 0)?;
        handle.edit(place.block, &Unverified, |bytes| {
            let end = place.offset + QUOTA_BLOCK_BYTES;
            change(bytes.get_mut(place.offset..end).unwrap_or_default());
            Ok(())
        })
    }
}

fn leaf_head(bytes: &[u8]) -> DiskQuotaLeafHead {
    let head = DiskQuotaLeafHead::read_from_prefix(bytes);
    head.map(|(head, _)| head).unwrap_or_default()
}

/// Puts a structure at the start of `bytes`.
fn put<T: IntoBytes + zerocopy::Immutable>(bytes: &mut [u8], value: &T) {
    for (to, from) in bytes.iter_mut().zip(value.as_bytes()) {
        *to = *from;
    }
}
