//! Blocks under change, over a device or the buffers of a mount, which see none of it until all of it is
//! written.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::buffer::BlockSize;
use platter_cache::{Buffer, BufferCache};
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corruption, Locus, Verify};
use platter_vfs::{Condition, Result};

use crate::ondisk::chunks::Chunks;
use crate::ondisk::{BasicBlock, BlockKind, BlockVerifier, Geometry};
use crate::sorted::SortedMap;

/// Where blocks come from.
#[derive(Debug, Clone)]
enum Source {
    Device(Arc<dyn BlockDevice>),
    /// The newest committed versions.
    Buffers(Arc<BufferCache>),
}

impl Source {
    /// The block of `len` bytes at a place, verified.
    fn verified(&self, at: u64, len: u32, verifier: &dyn Verify) -> Result<Verified<'static>> {
        match self {
            Self::Device(device) => {
                let mut bytes = vec![0; len as usize];
                device.read_at(at, &mut bytes)?;
                verifier.verify(BasicBlock::of_byte(at).0, &bytes)?;
                Ok(Verified::Read(bytes))
            }
            Self::Buffers(buffers) => {
                let size = BlockSize::new(len).ok_or(Condition::InvalidArgument)?;
                let block = (BasicBlock::of_byte(at).0, size);
                Ok(Verified::Committed(buffers.read(block, verifier)?))
            }
        }
    }
}

/// The bytes of a block, which are what its verifier asks for.
#[derive(Debug)]
pub enum Verified<'b> {
    /// Changed.
    Changed(&'b [u8]),
    /// As it was committed last.
    Committed(Buffer),
    /// From the device.
    Read(Vec<u8>),
}

impl Deref for Verified<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Changed(bytes) => bytes,
            Self::Committed(buffer) => buffer,
            Self::Read(bytes) => bytes,
        }
    }
}

/// What a block is, and its owner: an inode, or an allocation group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRole {
    /// What it is.
    pub kind: BlockKind,
    /// The owner.
    pub owner: u64,
}

/// A changed block.
#[derive(Debug)]
pub struct ChangedBlock {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The committed version that they were made from, where one was looked at.
    pub before: Option<Buffer>,
    /// Where they were changed; anywhere, if that is not known.
    pub within: Chunks,
    /// What it was changed as; `None` for headers and inodes, which have their places, and for what was allocated and
    /// not written yet.
    pub role: Option<BlockRole>,
    /// Its contents before do not matter.
    pub is_fresh: bool,
}

impl Default for ChangedBlock {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            before: None,
            within: Chunks::ALL,
            role: None,
            is_fresh: false,
        }
    }
}

/// Changed blocks by their first byte. A range of bytes is always read and written as one block, and a block that is
/// changed as one thing is not changed as another one, nor as another owner's, before it is freed.
#[derive(Debug)]
pub struct Blocks {
    source: Source,
    changed: SortedMap<u64, ChangedBlock>,
    /// Blocks that were freed, with their lengths.
    freed: BTreeSet<(u64, u32)>,
}

/// What became of blocks, for a transaction.
#[derive(Debug, Default)]
pub struct BlockChanges {
    /// Changed blocks by their first byte, ascending.
    pub changed: Vec<(u64, ChangedBlock)>,
    /// Blocks that were freed, with their lengths.
    pub freed: BTreeSet<(u64, u32)>,
}

impl Blocks {
    /// Nothing changed yet of the blocks of a device.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self::over(Source::Device(device))
    }

    /// Nothing changed yet of the blocks of a mount.
    #[must_use]
    pub fn of_buffers(buffers: Arc<BufferCache>) -> Self {
        Self::over(Source::Buffers(buffers))
    }

    fn over(source: Source) -> Self {
        Self {
            source,
            changed: SortedMap::default(),
            freed: BTreeSet::new(),
        }
    }

    /// The block of `len` bytes at a place.
    pub fn read(&self, at: u64, len: u32) -> Result<Vec<u8>> {
        if let Some(changed) = self.changed.get(at) {
            return Ok(changed.bytes.clone());
        }
        match &self.source {
            Source::Device(device) => {
                let mut bytes = vec![0; len as usize];
                device.read_at(at, &mut bytes)?;
                Ok(bytes)
            }
            Source::Buffers(buffers) => {
                let size = BlockSize::new(len).ok_or(Condition::InvalidArgument)?;
                let block = (BasicBlock::of_byte(at).0, size);
                Ok(buffers.read(block, &Unverified)?.to_vec())
            }
        }
    }

    /// The block of `len` bytes at a place, verified: one that was changed when it was read first.
    pub fn verified(&self, at: u64, len: u32, verifier: &dyn Verify) -> Result<Verified<'_>> {
        match self.changed.get(at) {
            Some(changed) => Ok(Verified::Changed(&changed.bytes)),
            None => self.source.verified(at, len, verifier),
        }
    }

    /// The block of `len` bytes at a place, to be changed. It has a checksum only where nothing else makes one: those
    /// of a mount get theirs when they are written to their places.
    ///
    /// # Errors
    /// Those of reading it; `Corrupt` if it was changed as something else.
    pub fn edit(&mut self, at: u64, len: u32, role: BlockRole) -> Result<&mut Vec<u8>> {
        let block = self.changing(at, len, role, &Unverified)?;
        block.within = Chunks::ALL;
        Ok(&mut block.bytes)
    }

    /// The same for a block that the verifier of its role accepts: one that was changed when it was read first. `change`
    /// says what it changes.
    pub fn edit_verified<R>(
        &mut self,
        at: u64,
        len: u32,
        role: BlockRole,
        geometry: &Geometry,
        change: impl FnOnce(&mut [u8], &mut Chunks) -> R,
    ) -> Result<R> {
        let verifier = BlockVerifier::new(geometry, role.kind, role.owner);
        let block = self.changing(at, len, role, &verifier)?;
        Ok(change(&mut block.bytes, &mut block.within))
    }

    /// The header of `len` bytes at a place, to be changed.
    pub fn edit_header(&mut self, at: u64, len: u32) -> Result<&mut Vec<u8>> {
        let block = self.looked_up(at, len, &Unverified)?;
        block.within = Chunks::ALL;
        Ok(&mut block.bytes)
    }

    fn changing(
        &mut self,
        at: u64,
        len: u32,
        role: BlockRole,
        verifier: &dyn Verify,
    ) -> Result<&mut ChangedBlock> {
        changed_as(self.looked_up(at, len, verifier)?, at, role)
    }

    /// A block that is about to be changed: verified when it is looked at first.
    fn looked_up(&mut self, at: u64, len: u32, verifier: &dyn Verify) -> Result<&mut ChangedBlock> {
        let source = &self.source;
        self.changed.get_or_try_insert_with(at, || {
            let found = source.verified(at, len, verifier)?;
            let (bytes, before) = match (found, source) {
                (Verified::Committed(before), Source::Buffers(buffers)) => {
                    (buffers.copy(&before).into_vec(), Some(before))
                }
                (found, _) => (found.to_vec(), None),
            };
            Ok(ChangedBlock {
                bytes,
                within: Chunks::default(),
                before,
                ..ChangedBlock::default()
            })
        })
    }

    /// A block whose bytes are about to be replaced.
    fn changing_whole(&mut self, at: u64) -> &mut ChangedBlock {
        let made = self
            .changed
            .get_or_try_insert_with(at, || Ok::<_, Infallible>(ChangedBlock::default()));
        let Ok(block) = made;
        block
    }

    /// Whether changed blocks get their checksums later.
    #[must_use]
    pub fn seals_later(&self) -> bool {
        matches!(self.source, Source::Buffers(_))
    }

    /// Changes the block at a place, which is a header or an inode.
    pub fn write(&mut self, at: u64, bytes: Vec<u8>) {
        let block = self.changing_whole(at);
        (block.bytes, block.within) = (bytes, Chunks::ALL);
    }

    /// Changes the block at a place.
    ///
    /// # Errors
    /// `Corrupt` if it was changed as something else.
    pub fn write_as(&mut self, at: u64, role: BlockRole, bytes: Vec<u8>) -> Result<()> {
        let block = changed_as(self.changing_whole(at), at, role)?;
        (block.bytes, block.within) = (bytes, Chunks::ALL);
        Ok(())
    }

    /// Makes a new block, whatever was at its place. It becomes what it is changed as first.
    pub fn create(&mut self, at: u64, bytes: Vec<u8>) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.freed.remove(&(at, len));
        let block = ChangedBlock {
            bytes,
            is_fresh: true,
            ..ChangedBlock::default()
        };
        self.changed.insert(at, block);
    }

    /// Makes a new block with a role, whatever was at its place.
    pub fn create_as(&mut self, at: u64, role: BlockRole, bytes: Vec<u8>) {
        self.create(at, bytes);
        if let Some(block) = self.changed.get_mut(at) {
            block.role = Some(role);
        }
    }

    /// Forgets changes of a block of `len` bytes that was freed.
    pub fn forget(&mut self, at: u64, len: u32) {
        self.changed.remove(at);
        self.freed.insert((at, len));
    }

    /// Number of changed blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changed.len()
    }

    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Takes all changes, for a transaction.
    pub fn take_changes(&mut self) -> BlockChanges {
        BlockChanges {
            changed: self.changed.take(),
            freed: std::mem::take(&mut self.freed),
        }
    }

    /// Writes all changed blocks to the device.
    ///
    /// # Errors
    /// Those of the device; `ReadOnly` for the blocks of a mount, which change in transactions only.
    pub fn write_all(&mut self) -> Result<()> {
        let Source::Device(device) = self.source.clone() else {
            return Err(Condition::ReadOnly.into());
        };
        for (at, block) in self.take_changes().changed {
            device.write_at(at, &block.bytes)?;
        }
        Ok(())
    }
}

/// A changed block, as a change of what it is by this role.
fn changed_as(block: &mut ChangedBlock, at: u64, role: BlockRole) -> Result<&mut ChangedBlock> {
    if *block.role.get_or_insert(role) == role {
        return Ok(block);
    }
    let locus = Locus::block(BasicBlock::of_byte(at).0);
    Err(Corruption::new("block", locus, "multiply-claimed block").into())
}
