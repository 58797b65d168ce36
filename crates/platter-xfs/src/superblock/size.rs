//! How long a filesystem can be, and copies of the superblock that say something else than the primary one.

use platter_block::BlockDevice;
use platter_ondisk::{Locus, Uuid};
use platter_vfs::{Condition, Result};

use crate::ondisk::features::{Compat, Incompat, RoCompat};
use crate::ondisk::{AgNr, FsSize, Geometry, Superblock};

/// The fewest blocks of a last group (`XFS_MIN_AG_BLOCKS`).
const GROUP_BLOCKS_MIN: u64 = 64;

/// The size next to so many blocks that a filesystem of `now` can have: up to them where it becomes longer, and from
/// them on where it becomes shorter.
///
/// # Errors
/// `NoSpace` for more groups than there are numbers.
pub fn fitting(now: FsSize, ag_blocks: u32, blocks: u64) -> Result<FsSize> {
    let group = u64::from(ag_blocks).max(1);
    let mut data_blocks = blocks;
    let last = blocks % group;
    if last > 0 && last < GROUP_BLOCKS_MIN {
        if blocks > now.data_blocks {
            data_blocks = (blocks - last).max(now.data_blocks);
        } else {
            data_blocks = (blocks - last + GROUP_BLOCKS_MIN).min(now.data_blocks);
        }
    }
    let ag_count = u32::try_from(data_blocks.div_ceil(group));
    Ok(FsSize {
        ag_count: ag_count.map_err(|_| Condition::NoSpace)?,
        data_blocks,
    })
}

/// Makes the copies of the superblock say the size, the UUID and the features that the primary one does, which a crash or a
/// failed write may have kept from that. Those that are corrupt or cannot be read are left to a repair.
///
/// # Errors
/// Those of the device.
pub fn renew_copies(device: &dyn BlockDevice, primary: &Superblock) -> Result<()> {
    let geometry = Geometry::new(primary);
    let sector = super::read_sector(device, 0, Locus::group(0))?;
    write_copies(device, &geometry, &sector, |ag| {
        is_stale(device, primary, &geometry, ag)
    })
}

/// Writes the copies of the superblock that are `wanted`, durably: the first one once the others are durable, so that all
/// are current where it is.
///
/// # Errors
/// Those of the device.
pub fn write_copies(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    sector: &[u8],
    wanted: impl Fn(AgNr) -> bool,
) -> Result<()> {
    for ag in (1..geometry.ag_count()).rev().map(AgNr) {
        if !wanted(ag) {
            continue;
        }
        if ag.0 == 1 {
            device.flush()?;
        }
        device.write_at(geometry.ag_offset(ag), sector)?;
    }
    Ok(device.flush()?)
}

/// Whether the first copy says what the primary superblock does: it is [written](write_copies) last.
pub fn is_first_copy_current(device: &dyn BlockDevice, primary: &Superblock) -> bool {
    let geometry = Geometry::new(primary);
    let first = geometry.groups().nth(1);
    first.is_none_or(|first| !is_stale(device, primary, &geometry, first))
}

/// What copies are written for when it changes.
#[derive(Debug, PartialEq, Eq)]
struct Renewed {
    data_blocks: u64,
    ag_count: u32,
    uuid: Uuid,
    compat: Compat,
    ro_compat: RoCompat,
    incompat: Incompat,
}

impl Renewed {
    fn of(superblock: &Superblock) -> Self {
        let features = &superblock.features;
        Self {
            data_blocks: superblock.data_blocks,
            ag_count: superblock.ag_count,
            uuid: superblock.uuid,
            compat: features.compat,
            ro_compat: features.ro_compat,
            // Copies do not say that the filesystem must be repaired.
            incompat: features.incompat.difference(Incompat::NEEDSREPAIR),
        }
    }
}

/// Whether a copy of this filesystem says something else than the primary superblock.
fn is_stale(device: &dyn BlockDevice, primary: &Superblock, geometry: &Geometry, ag: AgNr) -> bool {
    let mut copy = vec![0; geometry.sector_bytes() as usize];
    if device.read_at(geometry.ag_offset(ag), &mut copy).is_err() {
        return false;
    }
    let copy = Superblock::decode_backup(&copy, Locus::group(ag.0.into()));
    copy.is_ok_and(|copy| {
        copy.meta_uuid == primary.meta_uuid && Renewed::of(&copy) != Renewed::of(primary)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_group_has_enough_blocks_or_is_left_out() {
        let now = FsSize {
            ag_count: 3,
            data_blocks: 2500,
        };
        for (asked, ag_count, data_blocks) in [
            (2600, 3, 2600),
            (3000, 3, 3000),
            (3063, 3, 3000),
            (3064, 4, 3064),
            (2500, 3, 2500),
            (2063, 3, 2064),
            (2000, 2, 2000),
        ] {
            let found = fitting(now, 1000, asked).unwrap();
            let expected = FsSize {
                ag_count,
                data_blocks,
            };
            assert_eq!(found, expected, "{asked}");
        }
        // A filesystem whose last group is as short as it can be does not become shorter when it is to grow.
        let shortest = FsSize {
            ag_count: 3,
            data_blocks: 2050,
        };
        assert_eq!(fitting(shortest, 1000, 2060).unwrap(), shortest);
        assert!(fitting(now, 1000, u64::MAX).is_err());
    }
}
