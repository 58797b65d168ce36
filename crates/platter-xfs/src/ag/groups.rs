//! The groups of a filesystem under change. Headers stay decoded from one change to the next.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::BufferCache;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Result};
use zerocopy::FromBytes;

use super::{AgExtent, BlockChanges, Blocks, Group, GroupRule, alloc, space};
use super::{reserved_blocks, tree_limits};
use crate::ondisk::agf::{Agf, DiskAgf};
use crate::ondisk::agfl::{self, Agfl};
use crate::ondisk::agi::{Agi, DiskAgi};
use crate::ondisk::{AgNr, Geometry, checksum};
use crate::sorted::SortedMap;
use crate::space::{Claim, Headers, Held, Space};
use crate::txn::Log;

/// The headers, by their sector.
const AGF_SECTOR: u64 = 1;
const AGI_SECTOR: u64 = 2;
const AGFL_SECTOR: u64 = 3;
/// As many changed blocks, and groups, are kept between changes.
const BLOCKS_MAX: usize = 1024;
const GROUPS_MAX: usize = 64;

/// The groups of a filesystem under change. What is changed reaches the device when it is
/// [written](Self::write_all).
#[derive(Debug)]
pub struct Groups {
    geometry: Geometry,
    blocks: Blocks,
    open: SortedMap<AgNr, Open>,
    freed: Vec<AgExtent>,
    unshared: Vec<AgExtent>,
    /// Of a mount: where the groups come from.
    space: Option<Arc<Space>>,
    /// A group that another thread had, while this one had groups with higher numbers.
    conflict: Option<AgNr>,
    /// Claims whose blocks were taken.
    taken: Vec<Claim>,
    /// Blocks that are freed, and which nothing may have before that is durable.
    withheld: Vec<Claim>,
    /// Busy blocks were left out of a search.
    left_busy: bool,
    /// Blocks that were freed before the change was begun are not busy any more: it waited for them.
    has_waited: bool,
}

/// What the superblock counts of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupCounts {
    /// Free blocks, those of the free lists and of the free space B-trees included.
    pub free_blocks: i64,
    /// Inodes that exist.
    pub inodes: i64,
    /// Inodes that exist and are free.
    pub free_inodes: i64,
    /// Those of the free blocks that reservations of space leave to the B-trees.
    pub kept: i64,
}

/// A group as it is, and as it is stored.
#[derive(Debug)]
struct Open {
    headers: Arc<Headers>,
    stored: Arc<Headers>,
    /// Blocks that are free and about to be allocated by others.
    claims: RangeSet<u32>,
    /// The group itself, of a mount.
    held: Option<Held>,
}

fn counts_of(headers: &Headers) -> GroupCounts {
    let (agf, agi) = (&headers.agf, &headers.agi);
    let list = i64::try_from(headers.free_list.len()).unwrap_or(i64::MAX);
    GroupCounts {
        free_blocks: i64::from(agf.free_blocks) + i64::from(agf.btree_blocks) + list,
        inodes: agi.count.into(),
        free_inodes: agi.free_count.into(),
        kept: i64::try_from(reserved_blocks(agf, agi, &headers.limits)).unwrap_or(i64::MAX),
    }
}

impl Groups {
    /// Nothing is changed yet.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, geometry: &Geometry) -> Self {
        Self::over(Blocks::new(device), geometry, None)
    }

    /// The groups of a mount, for a transaction, which has each from the first look at it on: the blocks that
    /// are claimed are not allocated, nor those that B-trees may come to need.
    #[must_use]
    pub fn of_mount(buffers: Arc<BufferCache>, geometry: &Geometry, space: &Arc<Space>) -> Self {
        let space = Some(Arc::clone(space));
        Self::over(Blocks::of_buffers(buffers), geometry, space)
    }

    fn over(blocks: Blocks, geometry: &Geometry, space: Option<Arc<Space>>) -> Self {
        Self {
            geometry: geometry.clone(),
            blocks,
            open: SortedMap::default(),
            freed: Vec::new(),
            unshared: Vec::new(),
            space,
            conflict: None,
            taken: Vec::new(),
            withheld: Vec::new(),
            left_busy: false,
            has_waited: false,
        }
    }

    /// Waits for these groups, before any other is looked at.
    pub fn lock_all(&mut self, groups: &BTreeSet<AgNr>) -> Result<()> {
        groups.iter().try_for_each(|ag| self.open(*ag))
    }

    /// The groups to wait for before this change is tried again; `None` if none was missing.
    #[must_use]
    pub fn missing(&self) -> Option<BTreeSet<AgNr>> {
        let missing = self.conflict?;
        Some(self.open.keys().chain([missing]).collect())
    }

    /// Whether there may be space for what was not found once the checkpoints that freed blocks are durable.
    pub(crate) fn has_left_busy(&self) -> bool {
        self.left_busy
    }

    /// Says that a group that was looked at has no space: there may be some once what is withheld is not any more.
    pub(crate) fn note_full(&mut self) {
        let mut held = self.open.values().filter_map(|open| open.held.as_ref());
        self.left_busy |= held.any(Held::has_withheld);
    }

    /// Says that the change waited for blocks that were freed before it was begun.
    pub(crate) fn note_waited(&mut self) {
        self.has_waited = true;
    }

    /// Whether the change waited for blocks that were freed before it was begun; it does so once.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Releases a group that was not changed.
    pub fn leave(&mut self, ag: AgNr) {
        let is_same = |open: &Open| open.headers == open.stored;
        if self.space.is_some() && self.open.get(ag).is_some_and(is_same) {
            self.open.remove(ag);
        }
    }

    /// Takes the blocks of a claim out of free space; without an owner yet.
    pub fn take_claim(&mut self, claim: Claim) -> Result<()> {
        space::fill_free_list(&mut self.get(claim.ag)?)?;
        if let Some(open) = self.open.get_mut(claim.ag) {
            let end = claim.start.0.saturating_add(claim.count);
            open.claims.remove(claim.start.0..end);
        }
        alloc::take(&mut self.get(claim.ag)?, claim.start, claim.count)?;
        self.taken.push(claim);
        Ok(())
    }

    /// Withholds blocks that are about to be freed from all allocations, until the checkpoint that frees them is
    /// durable.
    pub fn withhold(&mut self, blocks: Claim) -> Result<()> {
        self.open(blocks.ag)?;
        if let Some(open) = self.open.get_mut(blocks.ag) {
            let end = blocks.start.0.saturating_add(blocks.count);
            open.claims.insert(blocks.start.0..end);
        }
        self.withheld.push(blocks);
        Ok(())
    }

    /// Looks for freed blocks of a group that may be allocated again.
    pub(crate) fn finish_freed(&mut self, ag: AgNr, log: &Log) -> Result<()> {
        self.open(ag)?;
        let Some(open) = self.open.get_mut(ag) else {
            return Ok(());
        };
        let released = open.held.as_mut().map(|held| held.finish(log));
        for blocks in released.into_iter().flatten() {
            open.claims.remove(blocks);
        }
        Ok(())
    }

    /// What the superblock counts of a group.
    pub fn counts(&mut self, ag: AgNr) -> Result<GroupCounts> {
        self.get(ag)?;
        let open = self.open.get(ag);
        Ok(open
            .map(|open| counts_of(&open.headers))
            .unwrap_or_default())
    }

    /// How the counts have changed.
    #[must_use]
    pub fn changed_counts(&self) -> GroupCounts {
        let mut counts = GroupCounts::default();
        for open in self.open.values() {
            if Arc::ptr_eq(&open.headers, &open.stored) {
                continue;
            }
            let (after, before) = (counts_of(&open.headers), counts_of(&open.stored));
            counts.free_blocks += after.free_blocks - before.free_blocks;
            counts.inodes += after.inodes - before.inodes;
            counts.free_inodes += after.free_inodes - before.free_inodes;
            counts.kept += after.kept - before.kept;
        }
        counts
    }

    /// Takes all changed blocks, those of headers included, and how the counts have changed.
    pub fn take_changes(&mut self) -> Result<(BlockChanges, GroupCounts)> {
        let counts = self.changed_counts();
        self.store_all()?;
        Ok((self.blocks.take_changes(), counts))
    }

    /// What was changed is committed in a checkpoint. Returns the groups back.
    pub fn committed(&mut self, sequence: u64) {
        let freed = std::mem::take(&mut self.freed);
        let unshared = std::mem::take(&mut self.unshared);
        let taken = std::mem::take(&mut self.taken);
        let withheld = std::mem::take(&mut self.withheld);
        for (ag, open) in self.open.take() {
            let Some(mut held) = open.held else { continue };
            held.holds().headers = Some(open.stored);
            for claim in taken.iter().filter(|claim| claim.ag == ag) {
                held.unclaim(claim.start, claim.count);
            }
            for freed in freed.iter().filter(|freed| freed.ag == ag) {
                held.note_freed(sequence, freed.start, freed.count);
            }
            for blocks in unshared.iter().filter(|blocks| blocks.ag == ag) {
                held.note_unshared(sequence, blocks.start, blocks.count);
            }
            for blocks in withheld.iter().filter(|blocks| blocks.ag == ag) {
                held.withhold(sequence, blocks.start, blocks.count);
            }
        }
    }

    /// Sizes and counts of the filesystem.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The blocks, for what lies outside the trees of the groups.
    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The blocks, to change what lies outside the trees of the groups.
    pub fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// A group, to change it.
    ///
    /// # Errors
    /// `Busy` if another thread has it, and may wait for one that this thread has: the change has to be begun
    /// again with [these](Self::missing).
    pub fn get(&mut self, ag: AgNr) -> Result<Group<'_>> {
        self.open(ag)?;
        let open = self.open.get_mut(ag);
        let open =
            open.ok_or_else(|| Corrupt::new(Locus::group(ag.0.into()), GroupRule::DoubleFree))?;
        let headers = Arc::make_mut(&mut open.headers);
        let is_replayed = self.space.as_ref().is_some_and(|space| !space.keeps_old());
        let held = open.held.as_ref().filter(|_| is_replayed);
        Ok(Group {
            geometry: &self.geometry,
            ag,
            blocks: &mut self.blocks,
            agf: &mut headers.agf,
            agi: &mut headers.agi,
            free_list: &mut headers.free_list,
            limits: &mut headers.limits,
            claims: &open.claims,
            freed: &mut self.freed,
            busy: held.map(Held::freed),
            left_busy: &mut self.left_busy,
            unshared: &mut self.unshared,
            keeps_reserve: self.space.is_some(),
        })
    }

    fn open(&mut self, ag: AgNr) -> Result<()> {
        if self.open.contains_key(ag) {
            return Ok(());
        }
        let mut held = None;
        if let Some(space) = &self.space {
            let is_next = self.open.last_key().is_none_or(|last| last < ag);
            held = if is_next {
                Some(space.lock(ag))
            } else {
                space.try_lock(ag)
            };
            if held.is_none() {
                self.conflict = Some(ag);
                return Err(Condition::Busy.into());
            }
        }
        let holds = held.as_mut().map(Held::holds);
        let kept = holds.as_ref().and_then(|holds| holds.headers.clone());
        let claims = holds.map(|holds| holds.claims.clone());
        let stored = match kept {
            Some(kept) => kept,
            None => Arc::new(self.read(ag)?),
        };
        let open = Open {
            headers: Arc::clone(&stored),
            stored,
            claims: claims.unwrap_or_default(),
            held,
        };
        self.open.insert(ag, open);
        Ok(())
    }

    /// Whether the change holds this group already.
    #[must_use]
    pub fn has(&self, ag: AgNr) -> bool {
        self.open.contains_key(ag)
    }

    /// The group itself, to claim blocks of it; `None` if it was not looked at.
    pub(crate) fn held(&mut self, ag: AgNr) -> Option<&mut Held> {
        self.open.get_mut(ag)?.held.as_mut()
    }

    fn read(&self, ag: AgNr) -> Result<Headers> {
        let locus = Locus::group(ag.0.into());
        let agf = Agf::decode(&self.header(ag, AGF_SECTOR)?, &self.geometry, ag);
        let agf = agf.map_err(|rule| Corrupt::new(locus, rule))?;
        let agi = Agi::decode(&self.header(ag, AGI_SECTOR)?, &self.geometry, ag);
        let agi = agi.map_err(|rule| Corrupt::new(locus, rule))?;
        let sector = self.header(ag, AGFL_SECTOR)?;
        let list = Agfl::decode(&sector, &self.geometry, ag);
        let list = list.map_err(|rule| Corrupt::new(locus, rule))?;
        let mut free_list = VecDeque::new();
        for block in list.blocks(&agf) {
            free_list.push_back(block.map_err(|rule| Corrupt::new(locus, rule))?);
        }
        Ok(Headers {
            limits: tree_limits(&self.geometry, agf.length),
            agf,
            agi,
            free_list: Arc::new(free_list),
        })
    }

    /// Ends one of many changes: writes what was changed if it is much.
    pub fn checkpoint(&mut self) -> Result<()> {
        if self.blocks.len() < BLOCKS_MAX && self.open.len() < GROUPS_MAX {
            return Ok(());
        }
        self.write_all()
    }

    /// Writes all that was changed.
    pub fn write_all(&mut self) -> Result<()> {
        self.store_all()?;
        self.open.clear();
        self.blocks.write_all()
    }

    /// Writes the headers of all groups into their blocks.
    fn store_all(&mut self) -> Result<()> {
        let mut all = self.open.take();
        let stored = all.iter_mut().try_for_each(|(ag, open)| {
            if !Arc::ptr_eq(&open.headers, &open.stored) {
                self.store(*ag, open)?;
            }
            Ok(())
        });
        self.open.put_back(all);
        stored
    }

    /// Writes the headers and the free list of a group into their blocks, as far as they changed.
    fn store(&mut self, ag: AgNr, open: &mut Open) -> Result<()> {
        let is_sealed_here = self.geometry.features.is_v5() && !self.blocks.seals_later();
        let (headers, stored) = (Arc::make_mut(&mut open.headers), &open.stored);
        if headers.free_list != stored.free_list {
            let sector = self.header(ag, AGFL_SECTOR)?;
            let list = Arc::make_mut(&mut headers.free_list).make_contiguous();
            let list = agfl::encode(&sector, &self.geometry, list);
            let agf = &mut headers.agf;
            (agf.free_list_first, agf.free_list_last) = list.range;
            agf.free_list_count = u32::try_from(headers.free_list.len()).unwrap_or(u32::MAX);
            self.write_header(ag, AGFL_SECTOR, list.sector);
        }
        if headers.agf != stored.agf {
            let sector = self.edit_header(ag, AGF_SECTOR)?;
            if let Ok((disk, _)) = DiskAgf::mut_from_prefix(sector) {
                headers.agf.store(disk);
            }
            if is_sealed_here {
                checksum::seal(sector, DiskAgf::CHECKSUM_OFFSET);
            }
        }
        if headers.agi != stored.agi {
            let sector = self.edit_header(ag, AGI_SECTOR)?;
            if let Ok((disk, _)) = DiskAgi::mut_from_prefix(sector) {
                headers.agi.store(disk);
            }
            if is_sealed_here {
                checksum::seal(sector, DiskAgi::CHECKSUM_OFFSET);
            }
        }
        open.stored = Arc::clone(&open.headers);
        Ok(())
    }

    fn header_at(&self, ag: AgNr, sector: u64) -> u64 {
        self.geometry.ag_offset(ag) + sector * u64::from(self.geometry.sector_bytes())
    }

    fn header(&self, ag: AgNr, sector: u64) -> Result<Vec<u8>> {
        let len = self.geometry.sector_bytes();
        self.blocks.read(self.header_at(ag, sector), len)
    }

    fn edit_header(&mut self, ag: AgNr, sector: u64) -> Result<&mut Vec<u8>> {
        let (at, len) = (self.header_at(ag, sector), self.geometry.sector_bytes());
        self.blocks.edit_header(at, len)
    }

    fn write_header(&mut self, ag: AgNr, sector: u64, bytes: Vec<u8>) {
        let at = self.header_at(ag, sector);
        self.blocks.write(at, bytes);
    }
}
