//! The counters of the superblock. With lazy counters, transactions leave them alone: after a crash they
//! are added up from the group headers. Spec: `xfs/allocation_groups`, "Superblocks".

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::FromBytes;

use crate::ondisk::agf::Agf;
use crate::ondisk::agi::Agi;
use crate::ondisk::{AgNr, DiskSuperblock, Geometry, Superblock, SuperblockRule};

/// Sums of the group headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Allocated inodes.
    pub inodes: u64,
    /// Those of them that are free.
    pub free_inodes: u64,
    /// Free blocks, those of the free lists and of the free space B-trees included.
    pub free_blocks: u64,
}

impl Counters {
    /// Adds the headers of all groups up.
    pub fn read(device: &dyn BlockDevice, geometry: &Geometry) -> Result<Self> {
        let mut sums = Self::default();
        for ag in geometry.groups() {
            let (agf, agi) = read_headers(device, geometry, ag)?;
            sums.inodes += u64::from(agi.count);
            sums.free_inodes += u64::from(agi.free_count);
            let free = [agf.free_blocks, agf.free_list_count, agf.btree_blocks];
            sums.free_blocks += free.into_iter().map(u64::from).sum::<u64>();
        }
        Ok(sums)
    }

    /// Sets the sums in a superblock in memory.
    pub fn set(&self, superblock: &mut Superblock) {
        superblock.inode_count = self.inodes;
        superblock.free_inodes = self.free_inodes;
        superblock.free_data_blocks = self.free_blocks;
    }

    /// Stores the sums in the primary superblock.
    pub fn store(&self, device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
        let mut sector = vec![0; geometry.sector_bytes() as usize];
        device.read_at(0, &mut sector)?;
        let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(&mut sector) else {
            return Err(Corrupt::new(Locus::group(0), SuperblockRule::SectorSize).into());
        };
        disk.inode_count.set(self.inodes);
        disk.free_inodes.set(self.free_inodes);
        disk.free_data_blocks.set(self.free_blocks);
        if geometry.features.is_v5() {
            DiskSuperblock::seal(&mut sector);
        }
        Ok(device.write_at(0, &sector)?)
    }
}

/// The headers of a group, from its second and third sector.
pub(super) fn read_headers(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    ag: AgNr,
) -> Result<(Agf, Agi)> {
    let sector_bytes = u64::from(geometry.sector_bytes());
    let mut sectors = vec![0; geometry.sector_bytes() as usize * 2];
    device.read_at(geometry.ag_offset(ag) + sector_bytes, &mut sectors)?;
    let (agf, agi) = sectors.split_at(geometry.sector_bytes() as usize);
    let locus = Locus::group(ag.0.into());
    let agf = Agf::decode(agf, geometry, ag).map_err(|rule| Corrupt::new(locus, rule))?;
    let agi = Agi::decode(agi, geometry, ag).map_err(|rule| Corrupt::new(locus, rule))?;
    Ok((agf, agi))
}
