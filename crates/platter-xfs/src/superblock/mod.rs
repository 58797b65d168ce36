//! Reading the superblock: the primary one, or a copy at the start of another allocation group.
//! Spec: `xfs/allocation_groups`, "Superblocks".

mod copies;
mod size;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Result, Unsupported};

use crate::ondisk::{DiskSuperblock, Features, Superblock, SuperblockRule};

pub use copies::{find as find_copy, is_copy};
pub use size::{fitting as fitting_size, is_first_copy_current, renew_copies, write_copies};

/// The least that is read of a device to find its superblock.
const SECTOR_BYTES_MIN: usize = 512;

/// The primary superblock.
pub fn read(device: &dyn BlockDevice) -> Result<Superblock> {
    let locus = Locus::group(0);
    Ok(Superblock::decode(&read_sector(device, 0, locus)?, locus)?)
}

/// The sector of a superblock, as long as that says.
fn read_sector(device: &dyn BlockDevice, at: u64, locus: Locus) -> Result<Vec<u8>> {
    let mut sector = vec![0; SECTOR_BYTES_MIN];
    let read = |sector: &mut Vec<u8>| -> Result<()> {
        let end = at.checked_add(sector.len() as u64);
        if end.is_none_or(|end| end > device.geometry().len_bytes) {
            return Err(Corrupt::new(locus, SuperblockRule::Magic).into());
        }
        Ok(device.read_at(at, sector)?)
    };
    read(&mut sector)?;
    let len = Superblock::sector_bytes(&sector).unwrap_or(SECTOR_BYTES_MIN);
    if len > sector.len() {
        sector.resize(len, 0);
        read(&mut sector)?;
    }
    Ok(sector)
}

/// The device with a copy of the superblock in the place of the primary one, in memory.
pub fn with_copy(device: Arc<dyn BlockDevice>, at: u64) -> Result<Arc<dyn BlockDevice>> {
    let locus = Locus::UNKNOWN.at_offset(at);
    let mut sector = read_sector(&*device, at, locus)?;
    Superblock::decode_copy(&sector, locus)?;
    DiskSuperblock::make_primary(&mut sector);
    let overlay = OverlayDevice::new(device, OverlayOptions::default());
    overlay.write_at(0, &sector)?;
    Ok(Arc::new(overlay))
}

/// Refuses features that this driver does not read, by name.
pub fn refuse_unreadable(features: &Features) -> Result<()> {
    let names = features.unreadable();
    if names.is_empty() {
        return Ok(());
    }
    Err(Unsupported {
        filesystem: "xfs",
        feature: names.join(", "),
        reason: None,
    }
    .into())
}
