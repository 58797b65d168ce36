//! Superblocks: each copy on each device is that of the last commit.

use platter_block::BlockDevice;
use platter_ondisk::Locus;
use zerocopy::IntoBytes;

use super::{Flow, Scrubber};
use crate::chunk::Member;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags,
};
use crate::ondisk::{Superblock, TreeId};
use crate::txn::{WriteContext, log_trees, superblocks};

/// Compares all superblocks. On devices that missed commits they are written last: until then the device is not
/// taken for whole.
pub(super) fn scrub(scrubber: &mut Scrubber<'_>) -> Flow {
    let context = scrubber.context;
    let store = context.blocks.store();
    if scrubber.repairs {
        store.flush()?;
    }
    let members = store.members();
    for member in members.iter() {
        scrub_member(scrubber, member)?;
    }
    if scrubber.repairs {
        store.flush()?;
    }
    Ok(())
}

/// Compares all superblocks of a filesystem that is being written with that of the last commit, while it stays the last
/// one. A copy that is bad is written again from another one of its device.
pub(super) fn scrub_mounted(scrubber: &mut Scrubber<'_>, fs: &WriteContext) -> Flow {
    let handle = superblocks::keep(fs, 0)?;
    let durable = fs.committed();
    let members = fs.blocks().store().members();
    for member in members.iter() {
        let Some(device) = &member.device else {
            continue;
        };
        let mut good = None;
        let mut bad = Vec::new();
        for (copy, at) in places(member, &**device) {
            match read(&**device, at) {
                Some((found, disk)) if found.generation == durable => good = Some((found, disk)),
                _ => bad.push((copy, at)),
            }
        }
        for (copy, at) in bad {
            scrubber.counts.super_errors += 1;
            let locus = Locus::UNKNOWN.on_member(member.id.0).of_copy(copy);
            scrubber.found("superblock", locus.at_offset(at), 0, NOT_LAST)?;
            let is_corrected = good.as_ref().is_some_and(|(good, disk)| {
                // The first one alone leads to a log, and another one of them does not say to which.
                let is_first = at == SUPERBLOCK_OFFSETS[0];
                let superblock = Superblock {
                    log_root: log_trees::durable_root(fs).filter(|_| is_first),
                    ..good.clone()
                };
                let disk = superblock.encode(disk, at);
                !scrubber.repairs || device.write_at(at, disk.as_bytes()).is_ok()
            });
            scrubber.counts.add_outcome(is_corrected);
        }
    }
    drop(handle);
    if scrubber.repairs {
        fs.blocks().store().flush()?;
    }
    Ok(())
}

/// What a superblock is that is found bad.
const NOT_LAST: &str = "is not that of the last commit";

/// The number and place of each copy that a device has space for.
fn places(member: &Member, device: &dyn BlockDevice) -> impl Iterator<Item = (u16, u64)> + use<> {
    let len_bytes = device.geometry().len_bytes;
    let len_bytes = member.total_bytes.map_or(len_bytes, |it| it.min(len_bytes));
    let places = SUPERBLOCK_OFFSETS.into_iter();
    let places = places.filter(move |at| at + (SUPERBLOCK_BYTES as u64) < len_bytes);
    (0u16..).zip(places)
}

/// The superblock at an offset, if it is valid.
fn read(device: &dyn BlockDevice, at: u64) -> Option<(Superblock, DiskSuperblock)> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(at, &mut bytes).ok()?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    Some((Superblock::decode(&disk, at).ok()?, disk))
}

fn scrub_member(scrubber: &mut Scrubber<'_>, member: &Member) -> Flow {
    let Some(device) = &member.device else {
        return Ok(());
    };
    let newest = &scrubber.context.superblock;
    if member.fsid != newest.fsid || newest.flags.contains(SuperblockFlags::SEEDING) {
        return Ok(());
    }
    let mut own = None;
    let mut bad = Vec::new();
    for (copy, at) in places(member, &**device) {
        match read(&**device, at) {
            Some((found, disk)) => {
                if found.generation != newest.generation || found.fsid != newest.fsid {
                    bad.push((copy, at));
                }
                own = own.or(Some((found, disk)));
            }
            None => bad.push((copy, at)),
        }
    }
    let is_stale = scrubber.stale.contains(&member.id);
    let is_whole = !is_stale || scrubber.is_whole();
    for (copy, at) in bad {
        let own = own.as_ref().filter(|_| is_whole);
        let is_corrected = own.is_some_and(|(found, disk)| {
            let superblock = Superblock {
                dev_item: device_item(scrubber, found.dev_item),
                ..scrubber.context.superblock.clone()
            };
            let disk = superblock.encode(disk, at);
            !scrubber.repairs || device.write_at(at, disk.as_bytes()).is_ok()
        });
        // A new device has none of the last commit until now.
        let mut target = scrubber.distrusted.not_copied.iter();
        if is_corrected && target.any(|(target, _)| *target == member.id) {
            continue;
        }
        scrubber.counts.super_errors += 1;
        scrubber.counts.add_outcome(is_corrected);
        let locus = Locus::UNKNOWN.on_member(member.id.0).of_copy(copy);
        scrubber.found("superblock", locus.at_offset(at), 0, NOT_LAST)?;
    }
    Ok(())
}

/// The item of a device as the chunk tree has it.
fn device_item(scrubber: &Scrubber<'_>, own: DevItem) -> DevItem {
    let context = scrubber.context;
    let key = crate::ondisk::Key::new(
        crate::ondisk::types::DEV_ITEMS_OBJECT,
        crate::ondisk::key::ItemKind::DEV_ITEM,
        own.id.0,
    );
    let tree = context.chunk_tree();
    debug_assert_eq!(tree.id, TreeId::CHUNK);
    let found = context.find(tree, key, |data| {
        Ok(DevItem::decode(key, data, tree.locus(key))?)
    });
    found.ok().flatten().unwrap_or(own)
}
