//! Making a filesystem: chooses its first chunks, and writes the trees of an empty filesystem, all of one transaction.

mod options;
mod layout;
mod blocks;
mod trees;
mod free;

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;
use platter_vfs::{Clock, Condition, Result};
use zerocopy::{FromZeros, IntoBytes};

use crate::chunk::{ChunkMap, ChunkStore, Member, Members};
use crate::ondisk::features::CompatRo;
use crate::ondisk::header::{Header, HeaderFlags};
use crate::ondisk::superblock::{
    DiskSuperblock, RootBackup, RootPointer, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags,
};
use crate::ondisk::tree_block::TreeBlockFormat;
use crate::ondisk::types::ROOT_TREE_DIR;
use crate::ondisk::{Generation, LogicalAddr, Superblock, TreeId};
use layout::{Layout, NewDevice};
use options::SECTOR_BYTES;
use trees::{Contents, PlacedTree};

pub use crate::ondisk::superblock::LABEL_LEN_MAX;
pub use free::free_bytes;
pub use options::MkfsOptions;

/// The transaction that makes a filesystem.
const GENERATION: Generation = Generation(1);
/// Signatures of other filesystems lie within so many bytes of the start and the end.
const SIGNATURE_BYTES: (u64, u64) = (1 << 20, 128 << 10);
/// Zeros that are written at once.
const ZEROS_BYTES: u64 = 1 << 20;

/// What a filesystem is made on.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// The devices, all of which are used, in the order of their numbers.
    pub devices: &'t [Arc<dyn BlockDevice>],
    /// They contain only zeros, as new files do: then no zeros are written.
    pub is_zero: bool,
}

/// Refuses what [`mkfs`] would refuse for devices of these lengths, before anything is changed.
///
/// # Errors
/// Those of `mkfs`.
pub fn check(lens_bytes: &[u64], options: &MkfsOptions) -> Result<()> {
    let devices: Vec<_> = lens_bytes.iter().map(|&len| (len, Uuid::nil())).collect();
    plan(&devices, options)?;
    Ok(())
}

/// Makes a filesystem. The same options, time and seed give the same bytes.
///
/// # Errors
/// `NoSpace` on devices that are too small, `Unsupported`, by name, for what cannot be made.
pub fn mkfs(target: &Target<'_>, options: &MkfsOptions, clock: &dyn Clock) -> Result<()> {
    let devices = target.devices.iter().map(|device| {
        let len_bytes = device.geometry().len_bytes;
        (len_bytes, clock.random_uuid())
    });
    let (choice, layout) = plan(&devices.collect::<Vec<_>>(), options)?;
    let contents = Contents {
        layout: &layout,
        choice: &choice,
        header: Header {
            fsid: options.uuid,
            logical: LogicalAddr(0),
            flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
            chunk_tree_uuid: clock.random_uuid(),
            generation: GENERATION,
            owner: TreeId::ROOT,
            item_count: 0,
            level: 0,
        },
        subvolume_uuid: clock.random_uuid(),
        root_owner: options.root_owner,
        now: clock.now(),
    };
    let trees = contents.place()?;
    let superblock = superblock(options, &contents, &trees)?;
    if !target.is_zero {
        clear(target.devices)?;
    }
    let store = store(target.devices, &layout, options.uuid)?;
    write_trees(&store, &superblock, &contents.header, &trees)?;
    store.flush()?;
    // Superblocks last: before them, there is no filesystem.
    for (device, new) in target.devices.iter().zip(&layout.devices) {
        let dev_item = contents.dev_item(new.id).ok_or(Condition::NoSpace)?;
        let own = Superblock {
            dev_item,
            ..superblock.clone()
        };
        write_superblocks(&**device, &own, new)?;
    }
    store.flush()?;
    Ok(())
}

/// What is made on devices of these lengths, with these UUIDs.
fn plan(devices: &[(u64, Uuid)], options: &MkfsOptions) -> Result<(options::Choice, Layout)> {
    let choice = options.choose(devices.len())?;
    let layout = Layout::choose(devices, &choice)?;
    Ok((choice, layout))
}

/// The superblock, with the item of the first device.
fn superblock(
    options: &MkfsOptions,
    contents: &Contents<'_>,
    trees: &[PlacedTree],
) -> Result<Superblock> {
    let (layout, choice) = (contents.layout, contents.choice);
    let root = |id: TreeId| -> RootPointer {
        let placed = trees.iter().find(|placed| placed.tree.id == id);
        placed.map_or_else(RootPointer::default, |placed| {
            placed.tree.root(&placed.addresses, &contents.header)
        })
    };
    let first = layout.devices.first().ok_or(Condition::InvalidArgument)?;
    let blocks = trees.iter().map(|placed| placed.addresses.len() as u64);
    let sizes = layout.devices.iter().map(|device| device.total_bytes);
    let total_bytes = sizes.fold(0, u64::saturating_add);
    let bytes_used = blocks.sum::<u64>() * u64::from(choice.node_bytes);
    let device_count = layout.devices.len() as u64;
    let backup = RootBackup {
        tree_root: root(TreeId::ROOT),
        chunk_root: root(TreeId::CHUNK),
        extent_root: root(TreeId::EXTENT),
        fs_root: root(TreeId::FS),
        dev_root: root(TreeId::DEV),
        csum_root: root(TreeId::CSUM),
        total_bytes,
        bytes_used,
        device_count,
    };
    let mut backups = [RootBackup::default(); 4];
    backups[0] = backup;
    let compat_ro = choice.features.compat_ro;
    Ok(Superblock {
        fsid: options.uuid,
        metadata_uuid: options.uuid,
        flags: SuperblockFlags::WRITTEN,
        generation: GENERATION,
        root: backup.tree_root,
        chunk_root: backup.chunk_root,
        log_root: None,
        total_bytes,
        bytes_used,
        root_dir: ROOT_TREE_DIR,
        device_count,
        sector_bytes: SECTOR_BYTES,
        node_bytes: choice.node_bytes,
        stripe_bytes: SECTOR_BYTES,
        features: choice.features,
        checksum_kind: options.checksum_kind,
        dev_item: contents.dev_item(first.id).ok_or(Condition::NoSpace)?,
        label: options.label.clone(),
        cache_generation: if compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            0
        } else {
            u64::MAX
        },
        // The tree of UUIDs is complete.
        uuid_tree_generation: GENERATION.0,
        sys_chunks: layout.system(),
        backups,
    })
}

/// The devices with the new chunks.
fn store(devices: &[Arc<dyn BlockDevice>], layout: &Layout, fsid: Uuid) -> Result<ChunkStore> {
    let name = devices.first().ok_or(Condition::InvalidArgument)?.name();
    let member = |((index, device), new): ((u16, &Arc<dyn BlockDevice>), &NewDevice)| Member {
        id: new.id,
        uuid: new.uuid,
        fsid,
        total_bytes: Some(new.total_bytes),
        generation: None,
        index,
        device: Some(Arc::clone(device)),
    };
    let members = (0..).zip(devices).zip(&layout.devices).map(member);
    let map = ChunkMap::new(layout.chunks.clone())?;
    Ok(ChunkStore::new(
        Arc::clone(name),
        map,
        Members::new(members.collect()),
    ))
}

fn write_trees(
    store: &ChunkStore,
    superblock: &Superblock,
    header: &Header,
    trees: &[PlacedTree],
) -> Result<()> {
    let format = TreeBlockFormat::of(superblock);
    let mut bytes = vec![0; superblock.node_bytes as usize];
    for placed in trees {
        for (index, &logical) in placed.addresses.iter().enumerate() {
            if !placed
                .tree
                .encode(index, &placed.addresses, header, &mut bytes)
            {
                return Err(Condition::NoSpace.into());
            }
            format.seal(&mut bytes);
            format.verify(logical, &bytes)?;
            store.write(logical, &[IoSlice::new(&bytes)])?;
        }
    }
    Ok(())
}

/// Writes the copies that the device has space for.
fn write_superblocks(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    new: &NewDevice,
) -> Result<()> {
    let blank = DiskSuperblock::new_zeroed();
    // The first one last, for which a device is looked at.
    for offset in SUPERBLOCK_OFFSETS.into_iter().rev() {
        if offset + (SUPERBLOCK_BYTES as u64) < new.total_bytes {
            let disk = superblock.encode(&blank, offset);
            device.write_at(offset, disk.as_bytes())?;
        }
    }
    Ok(())
}

/// Overwrites the signatures of other filesystems, and superblocks that were there.
fn clear(devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    let (front, back) = SIGNATURE_BYTES;
    for device in devices {
        let len = device.geometry().len_bytes;
        fill_zero(&**device, 0..front.min(len))?;
        for offset in SUPERBLOCK_OFFSETS {
            let end = offset + SUPERBLOCK_BYTES as u64;
            if end <= len {
                fill_zero(&**device, offset..end)?;
            }
        }
        device.flush()?;
        fill_zero(&**device, len.saturating_sub(back)..len)?;
    }
    Ok(())
}

/// Writes zeros, where there may be anything else.
fn fill_zero(device: &dyn BlockDevice, range: Range<u64>) -> Result<()> {
    let zeros = vec![0; usize::try_from(ZEROS_BYTES).unwrap_or_default()];
    let mut at = range.start;
    while let Some(data) = device.next_data(at)? {
        at = data.start.max(at);
        let end = data.end.min(range.end);
        if at >= end {
            break;
        }
        while at < end {
            let step = (end - at).min(ZEROS_BYTES);
            let zeros = zeros.get(..usize::try_from(step).unwrap_or_default());
            device.write_at(at, zeros.unwrap_or_default())?;
            at += step;
        }
    }
    Ok(())
}
