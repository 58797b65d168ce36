//! The orphan file: blocks with slots for inode numbers, so that concurrent orphans do not contend
//! for one block.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_vfs::Result;

use super::super::ORPHAN_FILE_BLOCKS_MAX;
use crate::FsContext;
use crate::file::Contents;
use crate::inode;
use crate::mapping::BlockMap;
use crate::ondisk::features::RoCompat;
use crate::ondisk::orphan::{OrphanBlockRules, places, set_place};
use crate::ondisk::{BlockNr, FileBlock, InodeNr};
use crate::superblock;
use crate::txn::Handle;

/// The orphan file.
#[derive(Debug)]
pub(super) struct OrphanFile {
    rules: OrphanBlockRules,
    /// The orphan file.
    state: Mutex<State, { rank(8, 3) }>,
    /// Number of orphans, as of the last change: read without the lock to skip an empty file.
    len: AtomicUsize,
}

#[derive(Debug)]
struct State {
    blocks: Vec<Block>,
    /// Location of each orphan: the index of the block, and the slot in it.
    orphans: HashMap<InodeNr, (usize, u32)>,
    /// The block that is tried next.
    turn: usize,
    /// `orphan_present` is set in the superblock.
    is_announced: bool,
}

#[derive(Debug)]
struct Block {
    at: BlockNr,
    free: Vec<u32>,
}

impl OrphanFile {
    /// Opens the orphan file of the filesystem, if it has one.
    pub(super) fn open(fs: &FsContext) -> Result<Option<Self>> {
        let Some(number) = fs.superblock.orphan_file_inode else {
            return Ok(None);
        };
        let inode = inode::read(fs, number)?;
        let map = BlockMap::decode(fs, &inode)?;
        let has_checksum = fs.geometry.features.has_metadata_csum();
        let rules = OrphanBlockRules {
            inode_seed: has_checksum.then_some(inode.checksum_seed),
        };
        let features = fs.superblock.features.ro_compat;
        let mut state = State {
            blocks: Vec::new(),
            orphans: HashMap::new(),
            turn: 0,
            is_announced: features.contains(RoCompat::ORPHAN_PRESENT),
        };
        let contents = Contents {
            fs,
            inode: &inode,
            map: &map,
        };
        let size_blocks = inode.size_bytes >> fs.geometry.block_bits;
        let end = u32::try_from(size_blocks).unwrap_or(u32::MAX);
        let blocks = FileBlock(0)..FileBlock(end.min(ORPHAN_FILE_BLOCKS_MAX));
        let mut taken = Ok(());
        contents.runs(blocks, &mut |run| {
            let mut places = run.places();
            taken = places.try_for_each(|at| state.take(fs, rules, at));
            if taken.is_err() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        taken?;
        let len = AtomicUsize::new(state.orphans.len());
        Ok(Some(Self {
            rules,
            state: Mutex::new(state),
            len,
        }))
    }

    pub(super) fn all(&self) -> Vec<InodeNr> {
        self.state.lock().orphans.keys().copied().collect()
    }

    pub(super) fn contains(&self, number: InodeNr) -> bool {
        !self.is_empty() && self.state.lock().orphans.contains_key(&number)
    }

    /// Adds an inode, if there is a free slot.
    pub(super) fn add(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        number: InodeNr,
    ) -> Result<bool> {
        let (at, place) = {
            let mut state = self.state.lock();
            let Some((index, place)) = state.take_place() else {
                return Ok(false);
            };
            state.orphans.insert(number, (index, place));
            self.len.store(state.orphans.len(), Ordering::Release);
            if !state.is_announced {
                announce(fs, handle, true)?;
                state.is_announced = true;
            }
            (state.blocks.get(index).map(|block| block.at), place)
        };
        self.put(handle, at, place, Some(number))?;
        Ok(true)
    }

    /// Removes an inode; returns whether it was found.
    pub(super) fn remove(&self, handle: &mut Handle<'_>, number: InodeNr) -> Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        let found = self.state.lock().orphans.get(&number).copied();
        let Some((index, place)) = found else {
            return Ok(false);
        };
        let block = self.state.lock().blocks.get(index).map(|block| block.at);
        self.put(handle, block, place, None)?;
        // From here on other threads may use the slot.
        let mut state = self.state.lock();
        state.orphans.remove(&number);
        self.len.store(state.orphans.len(), Ordering::Release);
        if let Some(block) = state.blocks.get_mut(index) {
            block.free.push(place);
        }
        Ok(true)
    }

    pub(super) fn close(&self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_announced && state.orphans.is_empty() {
            announce(fs, handle, false)?;
            state.is_announced = false;
        }
        Ok(())
    }

    /// Whether there are no orphans. A thread that added one and has not removed it gets `false`.
    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    fn put(
        &self,
        handle: &mut Handle<'_>,
        block: Option<BlockNr>,
        place: u32,
        orphan: Option<InodeNr>,
    ) -> Result<()> {
        let Some(block) = block else {
            return Ok(());
        };
        handle.edit(block, &self.rules, |bytes| {
            set_place(bytes, place, orphan);
            Ok(())
        })
    }
}

impl State {
    /// Reads a block of the file into the state.
    fn take(&mut self, fs: &FsContext, rules: OrphanBlockRules, at: BlockNr) -> Result<()> {
        let bytes = fs.read_block(at, &rules)?;
        let (index, mut free) = (self.blocks.len(), Vec::new());
        for (place, orphan) in (0..).zip(places(&bytes)) {
            match orphan {
                Some(number) => {
                    self.orphans.insert(number, (index, place));
                }
                None => free.push(place),
            }
        }
        // The first slots are used first.
        free.reverse();
        self.blocks.push(Block { at, free });
        Ok(())
    }

    /// Returns a free slot, from the blocks in turn.
    fn take_place(&mut self) -> Option<(usize, u32)> {
        let count = self.blocks.len();
        for _ in 0..count {
            let index = self.turn % count;
            self.turn = index + 1;
            let place = self.blocks.get_mut(index)?.free.pop();
            if let Some(place) = place {
                return Some((index, place));
            }
        }
        None
    }
}

fn announce(fs: &FsContext, handle: &mut Handle<'_>, present: bool) -> Result<()> {
    superblock::edit(fs, handle, |disk| {
        let mut features = RoCompat::from_bits_retain(disk.feature_ro_compat.get());
        features.set(RoCompat::ORPHAN_PRESENT, present);
        disk.feature_ro_compat.set(features.bits());
    })
}
