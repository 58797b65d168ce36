//! Which of the devices that were given belong together.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus, Uuid};
use platter_vfs::Result;

use super::devices::{identity, newest_copy, read};
use crate::chunk::{Member, Members};
use crate::ondisk::Superblock;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::superblock::{SUPERBLOCK_OFFSETS, SuperblockFlags, SuperblockRule};
use crate::ondisk::tree_block::SEEDS_MAX;
use crate::pool::unsupported;

/// A device that was given, and its superblock.
#[derive(Debug, Clone)]
pub(super) struct Given {
    /// Its position among those that were given.
    index: u16,
    device: Arc<dyn BlockDevice>,
    pub(super) superblock: Superblock,
}

/// The devices that were given: those of the filesystem, and others, which it may have grown out of.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The newest superblock of the filesystem's devices.
    pub(super) superblock: Superblock,
    own: Vec<Given>,
    others: Vec<Given>,
}

/// Reads the superblocks of all devices. The first names the filesystem; where it is a seed, the one
/// device of another filesystem that is none does.
pub(super) fn find(devices: &[Arc<dyn BlockDevice>], offset: Option<u64>) -> Result<Found> {
    let mut given = Vec::new();
    for (index, device) in (0u16..).zip(devices) {
        let superblock = superblock(&**device, given.first(), offset)?;
        given.push(Given::new(index, device, superblock));
    }
    group(given)
}

/// The superblock of one device: of the first at `offset`, of others the first, or the newest copy where that is not
/// valid.
pub(super) fn superblock(
    device: &dyn BlockDevice,
    first: Option<&Given>,
    offset: Option<u64>,
) -> Result<Superblock> {
    let Some(first) = first else {
        return read(device, offset.unwrap_or(SUPERBLOCK_OFFSETS[0]));
    };
    read(device, SUPERBLOCK_OFFSETS[0])
        .or_else(|error| newest_copy(device, &first.superblock).ok_or(error))
}

pub(super) fn is_seed(superblock: &Superblock) -> bool {
    superblock.flags.contains(SuperblockFlags::SEEDING)
}

/// Divides devices into those of the filesystem and others.
pub(super) fn group(given: Vec<Given>) -> Result<Found> {
    let none = || Corrupt::new(Locus::UNKNOWN, SuperblockRule::Magic);
    let first = &given.first().ok_or_else(none)?.superblock;
    let sprout = given.iter().find(|it| !is_seed(&it.superblock));
    let named = match sprout {
        Some(sprout) if is_seed(first) => identity(&sprout.superblock),
        _ => identity(first),
    };
    let (own, others): (Vec<_>, Vec<_>) = given
        .into_iter()
        .partition(|it| identity(&it.superblock) == named);
    // A log that was about to be written when the power failed may be known to one device alone.
    let age = |it: &Given| (it.superblock.generation, it.superblock.log_root.is_some());
    let newest = |best: &Given, next: &Given| age(best) < age(next);
    let superblock = own
        .iter()
        .reduce(|best, next| if newest(best, next) { next } else { best });
    let superblock = superblock.ok_or_else(none)?;
    Ok(Found {
        superblock: superblock.superblock.clone(),
        own,
        others,
    })
}

impl Given {
    pub(super) fn new(index: u16, device: &Arc<dyn BlockDevice>, superblock: Superblock) -> Self {
        Self {
            index,
            device: Arc::clone(device),
            superblock,
        }
    }

    fn member(&self) -> Member {
        let item = &self.superblock.dev_item;
        Member {
            id: item.id,
            uuid: item.uuid,
            fsid: item.fsid,
            total_bytes: Some(item.total_bytes),
            generation: Some(self.superblock.generation),
            index: self.index,
            device: Some(Arc::clone(&self.device)),
        }
    }

    /// Whether `item` is of this device.
    fn is_named_by(&self, item: &DevItem) -> bool {
        let own = &self.superblock.dev_item;
        item.id == own.id && item.uuid == own.uuid && item.fsid == own.fsid
    }
}

impl Found {
    /// All devices, as long as the items are not known that name those of the filesystem.
    pub(super) fn all(&self) -> Members {
        let all = self.newest_first().chain(&self.others);
        Members::new(all.map(Given::member).collect())
    }

    /// The devices of the filesystem alone.
    pub(super) fn own(&self) -> Members {
        Members::new(self.newest_first().map(Given::member).collect())
    }

    /// The devices of the filesystem. Of two states of one device, the newer one counts.
    fn newest_first(&self) -> impl Iterator<Item = &Given> {
        let mut own: Vec<&Given> = self.own.iter().collect();
        own.sort_by_key(|it| std::cmp::Reverse(it.superblock.generation));
        own.into_iter()
    }

    /// The metadata UUIDs of the seeds among the devices.
    pub(super) fn seeds(&self) -> Vec<Uuid> {
        let seeds = self.others.iter().map(|it| it.superblock.metadata_uuid);
        unique(seeds)
    }

    /// The devices that `items` of the chunk tree name, those that are missing too.
    ///
    /// # Errors
    /// `Unsupported` for a device of another filesystem that is no seed of this one.
    pub(super) fn members(&self, items: &[DevItem]) -> Result<Members> {
        for other in &self.others {
            refuse_foreign(other, items)?;
        }
        Ok(self.named(items))
    }

    /// The devices of the filesystem that none of the items names.
    pub(super) fn unnamed(&self, items: &[DevItem]) -> Vec<Member> {
        let is_named = |given: &&Given| items.iter().any(|item| given.is_named_by(item));
        let unnamed = self.newest_first().filter(|given| !is_named(given));
        unnamed.map(Given::member).collect()
    }

    /// The devices that `items` name, as far as they were given.
    pub(super) fn named(&self, items: &[DevItem]) -> Members {
        let member = |item: &DevItem| {
            let mut given = self.newest_first().chain(&self.others);
            let given = given.find(|given| given.is_named_by(item));
            let member = given.map_or_else(|| missing(item), Given::member);
            Member {
                total_bytes: Some(item.total_bytes),
                ..member
            }
        };
        Members::new(items.iter().map(member).collect())
    }
}

/// Refuses a device of another filesystem that is no seed which `items` name.
fn refuse_foreign(other: &Given, items: &[DevItem]) -> Result<()> {
    let superblock = &other.superblock;
    let name = format!(
        "{}, a device of the filesystem {}",
        other.device.name(),
        superblock.fsid
    );
    let item = items.iter().find(|item| other.is_named_by(item));
    let Some(item) = item.filter(|_| is_seed(superblock)) else {
        let reason = "all devices must belong to one filesystem";
        return Err(unsupported(name, Some(reason)));
    };
    if item.generation != superblock.generation {
        let reason = "the seed was changed after the filesystem grew out of it";
        return Err(unsupported(name, Some(reason)));
    }
    Ok(())
}

fn missing(item: &DevItem) -> Member {
    Member {
        id: item.id,
        uuid: item.uuid,
        fsid: item.fsid,
        total_bytes: None,
        generation: None,
        index: 0,
        device: None,
    }
}

/// The metadata UUIDs of other filesystems than `own` whose devices `items` name: its seeds.
pub(super) fn seeds_of(items: &[DevItem], own: Uuid) -> Vec<Uuid> {
    let others = items.iter().map(|item| item.fsid);
    unique(others.filter(|fsid| *fsid != own))
}

/// Each of them once; no more than one beyond what is accepted.
fn unique(uuids: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
    let mut list = Vec::new();
    for uuid in uuids {
        if list.len() <= SEEDS_MAX && !list.contains(&uuid) {
            list.push(uuid);
        }
    }
    list
}
