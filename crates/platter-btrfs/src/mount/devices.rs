//! The superblocks of devices, and which devices belong together.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result, Unsupported};

use crate::chunk::{Member, Members};
use crate::ondisk::Superblock;
use crate::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags, SuperblockRule,
};

/// Reads what the superblock of `device` says, without opening the filesystem: its features may be ones
/// that this driver does not know.
pub fn identify(device: &dyn BlockDevice) -> Result<Superblock> {
    read(device, SUPERBLOCK_OFFSETS[0])
}

/// Where a valid copy of the superblock lies.
#[must_use]
pub fn find_superblock_copy(device: &dyn BlockDevice) -> Option<u64> {
    let copies = SUPERBLOCK_OFFSETS.into_iter().skip(1);
    let valid = copies.filter_map(|at| Some((read(device, at).ok()?.generation, at)));
    // The newest; of two, the first.
    valid
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, at)| at)
}

/// The superblock at byte `at`.
pub(super) fn read(device: &dyn BlockDevice, at: u64) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let end = at.checked_add(SUPERBLOCK_BYTES as u64);
    if end.is_none_or(|end| end > device.geometry().len_bytes) {
        let locus = Locus::UNKNOWN.at_offset(at);
        return Err(Corrupt::new(locus, SuperblockRule::Magic).into());
    }
    device.read_at(at, &mut bytes)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    Ok(Superblock::decode(&disk, at)?)
}

/// The devices of a filesystem: the newest superblock, and what each device says of itself.
pub(super) struct Found {
    pub(super) superblock: Superblock,
    pub(super) members: Members,
}

/// Reads the superblocks of all devices. The first names the filesystem.
pub(super) fn find(devices: &[Arc<dyn BlockDevice>], offset: Option<u64>) -> Result<Found> {
    let at = offset.unwrap_or(SUPERBLOCK_OFFSETS[0]);
    let mut newest: Option<Superblock> = None;
    let mut members = Vec::new();
    let mut others = Vec::new();
    for (index, device) in (0u16..).zip(devices) {
        let place = if index == 0 {
            at
        } else {
            SUPERBLOCK_OFFSETS[0]
        };
        let superblock = read(&**device, place)?;
        members.push(Member {
            id: superblock.dev_item.id,
            uuid: superblock.dev_item.uuid,
            total_bytes: Some(superblock.dev_item.total_bytes),
            index,
            device: Some(Arc::clone(device)),
        });
        let Some(best) = &newest else {
            newest = Some(superblock);
            continue;
        };
        let is_same = best.fsid == superblock.fsid;
        if is_same && superblock.generation > best.generation {
            newest = Some(superblock);
        } else if !is_same {
            others.push((index, superblock));
        }
    }
    let Some(mut superblock) = newest else {
        return Err(Corrupt::new(Locus::UNKNOWN, SuperblockRule::Magic).into());
    };
    // A filesystem that grew out of a seed names the seed among its devices.
    for (index, other) in others {
        let (seed, sprout) = if is_seed(&other) {
            (other, superblock)
        } else if is_seed(&superblock) {
            (superblock, other)
        } else {
            let name = devices.get(usize::from(index)).map(|device| device.name());
            let name = name.map_or("device", |name| name);
            return Err(unsupported(
                format!("{name}, a device of the filesystem {}", other.fsid),
                Some("all devices must belong to one filesystem"),
            ));
        };
        drop(seed);
        superblock = sprout;
    }
    refuse_unreadable(&superblock)?;
    Ok(Found {
        superblock,
        members: Members::new(members),
    })
}

fn is_seed(superblock: &Superblock) -> bool {
    superblock.flags.contains(SuperblockFlags::SEEDING)
}

fn refuse_unreadable(superblock: &Superblock) -> Result<()> {
    let names = superblock.features.unreadable();
    if !names.is_empty() {
        return Err(unsupported(names.join(", "), None));
    }
    let changing = SuperblockFlags::CHANGING_FSID | SuperblockFlags::CHANGING_FSID_V2;
    if superblock.flags.intersects(changing) {
        let reason = "btrfstune was interrupted; run it again";
        let feature = "a change of the UUID that is in progress";
        return Err(unsupported(feature.to_owned(), Some(reason)));
    }
    let dumps = SuperblockFlags::METADUMP | SuperblockFlags::METADUMP_V2;
    if superblock.flags.intersects(dumps) {
        let reason = "restore it with btrfs-image";
        let feature = "a metadata dump without data";
        return Err(unsupported(feature.to_owned(), Some(reason)));
    }
    Ok(())
}

pub(super) fn unsupported(feature: String, reason: Option<&'static str>) -> Error {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature,
        reason,
    };
    unsupported.into()
}
