//! The groups of a filesystem under change. Headers stay decoded from one change to the next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::BufferCache;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use platter_vfs::writing::RangeSet;
use zerocopy::FromBytes;

use super::{BlockChanges, Blocks, Group, GroupRule};
use crate::ondisk::agf::{Agf, DiskAgf};
use crate::ondisk::agfl::{self, Agfl};
use crate::ondisk::agi::{Agi, DiskAgi};
use crate::ondisk::{AgBlock, AgNr, Geometry, checksum};

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
    open: BTreeMap<AgNr, Open>,
    claims: BTreeMap<AgNr, RangeSet<u32>>,
    unclaimed: RangeSet<u32>,
    freed: Vec<Freed>,
    keeps_reserve: bool,
}

/// Blocks that were freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// The group.
    pub ag: AgNr,
    /// The first block.
    pub start: AgBlock,
    /// How many.
    pub count: u32,
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
    /// Blocks of the free space B-trees, which count as free.
    pub tree_blocks: i64,
}

/// A group as it is, and as it is stored.
#[derive(Debug)]
struct Open {
    headers: Headers,
    stored: Headers,
}

/// The headers and the free list of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Headers {
    agf: Agf,
    agi: Agi,
    free_list: VecDeque<AgBlock>,
}

impl Headers {
    fn counts(&self) -> GroupCounts {
        let (agf, agi) = (&self.agf, &self.agi);
        let list = i64::try_from(self.free_list.len()).unwrap_or(i64::MAX);
        GroupCounts {
            free_blocks: i64::from(agf.free_blocks) + i64::from(agf.btree_blocks) + list,
            inodes: agi.count.into(),
            free_inodes: agi.free_count.into(),
            tree_blocks: i64::from(agf.btree_blocks) - i64::from(agf.rmap_blocks),
        }
    }
}

impl Groups {
    /// Nothing is changed yet.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, geometry: &Geometry) -> Self {
        Self {
            geometry: geometry.clone(),
            blocks: Blocks::new(device),
            open: BTreeMap::new(),
            claims: BTreeMap::new(),
            unclaimed: RangeSet::default(),
            freed: Vec::new(),
            keeps_reserve: false,
        }
    }

    /// The groups of a mount, for a transaction: the blocks that are claimed are not allocated, nor those
    /// that B-trees may come to need.
    #[must_use]
    pub fn of_mount(
        buffers: Arc<BufferCache>,
        geometry: &Geometry,
        claims: BTreeMap<AgNr, RangeSet<u32>>,
    ) -> Self {
        Self {
            geometry: geometry.clone(),
            blocks: Blocks::of_buffers(buffers),
            open: BTreeMap::new(),
            claims,
            unclaimed: RangeSet::default(),
            freed: Vec::new(),
            keeps_reserve: true,
        }
    }

    /// No blocks of a group are claimed any more, since they are about to be taken.
    pub fn unclaim(&mut self, ag: AgNr, start: AgBlock, count: u32) {
        if let Some(claims) = self.claims.get_mut(&ag) {
            claims.remove(start.0..start.0.saturating_add(count));
        }
    }

    /// What the superblock counts of a group.
    pub fn counts(&mut self, ag: AgNr) -> Result<GroupCounts> {
        self.get(ag)?;
        let open = self.open.get(&ag);
        Ok(open.map(|open| open.headers.counts()).unwrap_or_default())
    }

    /// Takes what was freed.
    pub fn take_freed(&mut self) -> Vec<Freed> {
        std::mem::take(&mut self.freed)
    }

    /// Takes all changed blocks, those of headers included, and how the counts have changed.
    pub fn take_changes(&mut self) -> Result<(BlockChanges, GroupCounts)> {
        let mut counts = GroupCounts::default();
        for (ag, open) in std::mem::take(&mut self.open) {
            if open.headers != open.stored {
                let (after, before) = (open.headers.counts(), open.stored.counts());
                counts.free_blocks += after.free_blocks - before.free_blocks;
                counts.inodes += after.inodes - before.inodes;
                counts.free_inodes += after.free_inodes - before.free_inodes;
                counts.tree_blocks += after.tree_blocks - before.tree_blocks;
                self.store(ag, open.headers)?;
            }
        }
        Ok((self.blocks.take_changes(), counts))
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
    pub fn get(&mut self, ag: AgNr) -> Result<Group<'_>> {
        if !self.open.contains_key(&ag) {
            let headers = self.read(ag)?;
            let stored = headers.clone();
            self.open.insert(ag, Open { headers, stored });
        }
        let open = self.open.get_mut(&ag);
        let open =
            open.ok_or_else(|| Corrupt::new(Locus::group(ag.0.into()), GroupRule::DoubleFree))?;
        let headers = &mut open.headers;
        Ok(Group {
            geometry: self.geometry.clone(),
            ag,
            blocks: &mut self.blocks,
            agf: &mut headers.agf,
            agi: &mut headers.agi,
            free_list: &mut headers.free_list,
            claims: self.claims.get(&ag).unwrap_or(&self.unclaimed),
            freed: &mut self.freed,
            keeps_reserve: self.keeps_reserve,
        })
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
            agf,
            agi,
            free_list,
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
        for (ag, open) in std::mem::take(&mut self.open) {
            if open.headers != open.stored {
                self.store(ag, open.headers)?;
            }
        }
        self.blocks.write_all()
    }

    /// Writes the headers and the free list of a group into their blocks.
    fn store(&mut self, ag: AgNr, mut headers: Headers) -> Result<()> {
        let is_v5 = self.geometry.features.is_v5();
        let sector = self.header(ag, AGFL_SECTOR)?;
        let list = headers.free_list.make_contiguous();
        let list = agfl::encode(&sector, &self.geometry, list);
        let agf = &mut headers.agf;
        (agf.free_list_first, agf.free_list_last) = list.range;
        agf.free_list_count = u32::try_from(headers.free_list.len()).unwrap_or(u32::MAX);
        self.write_header(ag, AGFL_SECTOR, list.sector);
        let mut sector = self.header(ag, AGF_SECTOR)?;
        if let Ok((disk, _)) = DiskAgf::mut_from_prefix(&mut sector) {
            headers.agf.store(disk);
        }
        if is_v5 {
            checksum::seal(&mut sector, DiskAgf::CHECKSUM_OFFSET);
        }
        self.write_header(ag, AGF_SECTOR, sector);
        let mut sector = self.header(ag, AGI_SECTOR)?;
        if let Ok((disk, _)) = DiskAgi::mut_from_prefix(&mut sector) {
            headers.agi.store(disk);
        }
        if is_v5 {
            checksum::seal(&mut sector, DiskAgi::CHECKSUM_OFFSET);
        }
        self.write_header(ag, AGI_SECTOR, sector);
        Ok(())
    }

    fn header_at(&self, ag: AgNr, sector: u64) -> u64 {
        self.geometry.ag_offset(ag) + sector * u64::from(self.geometry.sector_bytes())
    }

    fn header(&self, ag: AgNr, sector: u64) -> Result<Vec<u8>> {
        let len = self.geometry.sector_bytes();
        self.blocks.read(self.header_at(ag, sector), len)
    }

    fn write_header(&mut self, ag: AgNr, sector: u64, bytes: Vec<u8>) {
        let at = self.header_at(ag, sector);
        self.blocks.write(at, bytes);
    }
}
