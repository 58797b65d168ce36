//! An allocation group under change: its headers, its free list, its trees. Spec:
//! `xfs/allocation_groups`.

mod rules;
mod record;
mod blocks;
mod tree;
mod space;
mod rmap;
mod refcount;
mod inodes;

use std::collections::VecDeque;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::FromBytes;

use crate::ondisk::agf::{Agf, DiskAgf};
use crate::ondisk::agfl::Agfl;
use crate::ondisk::agi::{Agi, DiskAgi};
use crate::ondisk::{AgBlock, AgNr, Geometry};

pub use blocks::Blocks;
pub use record::{Order, TreeRecord};
pub use rules::GroupRule;

/// An allocation group under change. What is changed reaches the blocks when it is [closed](Self::close).
#[derive(Debug)]
pub struct Group<'b> {
    geometry: Geometry,
    ag: AgNr,
    blocks: &'b mut Blocks,
    agf: Agf,
    agi: Agi,
    free_list: VecDeque<AgBlock>,
}

/// The headers, by their sector.
const AGF_SECTOR: u64 = 1;
const AGI_SECTOR: u64 = 2;
const AGFL_SECTOR: u64 = 3;

impl<'b> Group<'b> {
    /// Reads the headers and the free list.
    pub fn open(geometry: &Geometry, ag: AgNr, blocks: &'b mut Blocks) -> Result<Self> {
        let locus = Locus::group(ag.0.into());
        let read = |sector| blocks.read(header_at(geometry, ag, sector), geometry.sector_bytes());
        let agf = Agf::decode(&read(AGF_SECTOR)?, geometry, ag);
        let agf = agf.map_err(|rule| Corrupt::new(locus, rule))?;
        let agi = Agi::decode(&read(AGI_SECTOR)?, geometry, ag);
        let agi = agi.map_err(|rule| Corrupt::new(locus, rule))?;
        let sector = read(AGFL_SECTOR)?;
        let list = Agfl::decode(&sector, geometry, ag).map_err(|rule| Corrupt::new(locus, rule))?;
        let mut free_list = VecDeque::new();
        for block in list.blocks(&agf) {
            free_list.push_back(block.map_err(|rule| Corrupt::new(locus, rule))?);
        }
        Ok(Self {
            geometry: *geometry,
            ag,
            blocks,
            agf,
            agi,
            free_list,
        })
    }

    /// The inode header.
    #[must_use]
    pub fn agi(&self) -> &Agi {
        &self.agi
    }

    /// Writes the headers and the free list into their blocks.
    pub fn close(mut self) -> Result<()> {
        let geometry = self.geometry;
        let is_v5 = geometry.features.is_v5();
        let sector = self.header(AGFL_SECTOR)?;
        let list =
            crate::ondisk::agfl::encode(&sector, &geometry, self.free_list.make_contiguous());
        let (first, last) = list.range;
        self.agf.free_list_first = first;
        self.agf.free_list_last = last;
        self.agf.free_list_count = u32::try_from(self.free_list.len()).unwrap_or(u32::MAX);
        self.write_header(AGFL_SECTOR, list.sector);
        let mut sector = self.header(AGF_SECTOR)?;
        if let Ok((disk, _)) = DiskAgf::mut_from_prefix(&mut sector) {
            self.agf.store(disk);
        }
        if is_v5 {
            crate::ondisk::checksum::seal(&mut sector, DiskAgf::CHECKSUM_OFFSET);
        }
        self.write_header(AGF_SECTOR, sector);
        let mut sector = self.header(AGI_SECTOR)?;
        if let Ok((disk, _)) = DiskAgi::mut_from_prefix(&mut sector) {
            self.agi.store(disk);
        }
        if is_v5 {
            crate::ondisk::checksum::seal(&mut sector, DiskAgi::CHECKSUM_OFFSET);
        }
        self.write_header(AGI_SECTOR, sector);
        Ok(())
    }

    fn header(&self, sector: u64) -> Result<Vec<u8>> {
        let at = header_at(&self.geometry, self.ag, sector);
        self.blocks.read(at, self.geometry.sector_bytes())
    }

    fn write_header(&mut self, sector: u64, bytes: Vec<u8>) {
        let at = header_at(&self.geometry, self.ag, sector);
        self.blocks.write(at, bytes);
    }
}

fn header_at(geometry: &Geometry, ag: AgNr, sector: u64) -> u64 {
    geometry.ag_offset(ag) + sector * u64::from(geometry.sector_bytes())
}

#[cfg(test)]
impl Group<'_> {
    /// Makes an inode the first one of an unlinked list.
    pub(crate) fn set_unlinked(&mut self, list: usize, inode: crate::ondisk::AgInode) {
        self.agi.unlinked[list] = Some(inode);
    }

    /// Compares the counters of the header.
    fn check_totals(&self, free_blocks: u32, longest: u32) {
        assert_eq!(
            (self.agf.free_blocks, self.agf.longest),
            (free_blocks, longest)
        );
    }
}

#[cfg(test)]
pub(crate) mod tests;
