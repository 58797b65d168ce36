//! Devices, chunks, device extents and block groups against each other.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::{
    BlockGroupUseRule, Checker, ChunkUseRule, DevExtentUseRule, DeviceUseRule, Flow,
    SuperblockUseRule,
};
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::dev_extent::DevExtent;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{DeviceAddr, DeviceId, Key, LogicalAddr, TreeId};

/// What chunk tree, device tree and block groups say.
#[derive(Debug, Default)]
pub(super) struct Devices {
    items: Vec<DevItem>,
    chunks: Vec<ChunkItem>,
    extents: Vec<DevExtent>,
    /// In ascending order, as they are in their tree.
    pub(super) groups: Vec<BlockGroupItem>,
}

impl Devices {
    /// The block group that an address is in.
    pub(super) fn group_of(&self, logical: u64) -> Option<&BlockGroupItem> {
        let after = self
            .groups
            .partition_point(|group| group.start.0 <= logical);
        let group = self.groups.get(after.checked_sub(1)?)?;
        (logical - group.start.0 < group.len_bytes).then_some(group)
    }
}

/// Records an item of the chunk tree.
pub(super) fn note_chunk_item(checker: &mut Checker<'_>, key: Key, data: &[u8], locus: Locus) {
    match key.kind {
        ItemKind::DEV_ITEM => {
            if let Ok(item) = DevItem::decode(key, data, locus) {
                checker.devices.items.push(item);
            }
        }
        ItemKind::CHUNK_ITEM => {
            let start = LogicalAddr(key.offset);
            let decoded = ChunkItem::decode(data, start, checker.format.sector_bytes, locus);
            if let Ok(chunk) = decoded {
                checker.devices.chunks.push(chunk);
            }
        }
        ItemKind(_) => {}
    }
}

/// Records an item of the device tree.
pub(super) fn note_dev_extent(checker: &mut Checker<'_>, key: Key, data: &[u8], locus: Locus) {
    if key.kind == ItemKind::DEV_EXTENT
        && let Ok(extent) = DevExtent::decode(key, data, checker.format.sector_bytes, locus)
    {
        checker.devices.extents.push(extent);
    }
}

/// Compares what the trees say of devices.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let mut devices = std::mem::take(&mut checker.devices);
    devices.groups.sort_by_key(|group| group.start);
    let checked = compare(checker, &devices);
    checker.devices = devices;
    checked
}

fn compare(checker: &mut Checker<'_>, devices: &Devices) -> Flow {
    check_dev_items(checker, devices)?;
    check_chunks(checker, devices)?;
    for group in &devices.groups {
        let starts = devices
            .chunks
            .binary_search_by_key(&group.start, |chunk| chunk.start);
        if starts.is_err() {
            let locus = Locus::group(group.start.0).at_block(group.start.0);
            checker.found(locus, BlockGroupUseRule::NoChunk)?;
        }
    }
    check_dev_extents(checker, devices)
}

fn check_dev_items(checker: &mut Checker<'_>, devices: &Devices) -> Flow {
    let context = checker.context;
    let superblock = &context.superblock;
    let mut total = 0u64;
    let mut used: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for extent in &devices.extents {
        let sum = used.entry(extent.device).or_default();
        *sum = sum.saturating_add(extent.len_bytes);
    }
    let members = context.blocks.store().members();
    let present: HashMap<_, _> = members
        .iter()
        .filter_map(|member| Some(((member.id, member.uuid), member.device.as_ref()?)))
        .collect();
    for item in &devices.items {
        total = total.saturating_add(item.total_bytes);
        let locus = Locus::tree(TreeId::CHUNK.0).on_member(item.id.0);
        if used.get(&item.id).copied().unwrap_or_default() != item.bytes_used {
            checker.found(locus, DeviceUseRule::BytesUsed)?;
        }
        match present.get(&(item.id, item.uuid)) {
            None => checker.noticed(locus, DeviceUseRule::Missing)?,
            Some(device) if device.geometry().len_bytes < item.total_bytes => {
                checker.found(locus, DeviceUseRule::Size)?;
            }
            Some(_) => {}
        }
    }
    for id in members.unlisted() {
        let locus = Locus::tree(TreeId::CHUNK.0).on_member(id.0);
        checker.found(locus, DeviceUseRule::NoItem)?;
    }
    let locus = Locus::UNKNOWN;
    if superblock.device_count != devices.items.len() as u64 {
        checker.found(locus, SuperblockUseRule::DeviceCount)?;
    }
    match superblock.total_bytes.cmp(&total) {
        // The kernel refuses the one and accepts the other.
        Ordering::Less => checker.found(locus, SuperblockUseRule::TotalBytes)?,
        Ordering::Greater => checker.noticed(locus, SuperblockUseRule::TotalBytes)?,
        Ordering::Equal => {}
    }
    let own = &superblock.dev_item;
    let is_own = |item: &&DevItem| (item.id, item.uuid) == (own.id, own.uuid);
    let listed = devices.items.iter().find(is_own);
    let is_same =
        |item: &DevItem| item.total_bytes == own.total_bytes && item.bytes_used == own.bytes_used;
    if !listed.is_some_and(is_same) {
        checker.noticed(locus, SuperblockUseRule::DevItem)?;
    }
    let is_system = |chunk: &&ChunkItem| chunk.flags.contains(BlockGroupFlags::SYSTEM);
    let mut array: Vec<_> = superblock.sys_chunks.iter().collect();
    array.sort_by_key(|chunk| chunk.start);
    if !array
        .into_iter()
        .eq(devices.chunks.iter().filter(is_system))
    {
        checker.noticed(locus, SuperblockUseRule::SysArray)?;
    }
    Ok(())
}

/// Each chunk has a block group, and each of its stripes a device extent.
fn check_chunks(checker: &mut Checker<'_>, devices: &Devices) -> Flow {
    let stripes: BTreeMap<(DeviceId, DeviceAddr), &DevExtent> = devices
        .extents
        .iter()
        .map(|extent| ((extent.device, extent.start), extent))
        .collect();
    let known: HashSet<_> = devices.items.iter().map(|it| (it.id, it.uuid)).collect();
    for chunk in &devices.chunks {
        let locus = Locus::tree(TreeId::CHUNK.0).at_block(chunk.start.0);
        match devices.group_of(chunk.start.0) {
            Some(group) if group.start == chunk.start => {
                if group.len_bytes != chunk.len_bytes || group.flags != chunk.flags {
                    checker.found(locus, ChunkUseRule::Mismatch)?;
                }
            }
            Some(_) | None => checker.found(locus, ChunkUseRule::NoBlockGroup)?,
        }
        let len_bytes = chunk.stripe_len_bytes();
        for stripe in &chunk.stripes {
            if !known.contains(&(stripe.device, stripe.device_uuid)) {
                let locus = locus.on_member(stripe.device.0);
                checker.found(locus, ChunkUseRule::NoDevice)?;
            }
            let extent = stripes.get(&(stripe.device, stripe.offset));
            let is_it =
                |extent: &&DevExtent| extent.chunk == chunk.start && extent.len_bytes == len_bytes;
            if !extent.is_some_and(is_it) {
                let locus = locus.on_member(stripe.device.0);
                let locus = locus.at_offset(stripe.offset.0);
                checker.found(locus, ChunkUseRule::NoDevExtent)?;
            }
        }
    }
    Ok(())
}

/// Each device extent is a stripe of its chunk and within its device, and none overlap.
fn check_dev_extents(checker: &mut Checker<'_>, devices: &Devices) -> Flow {
    let items = devices.items.iter();
    let sizes: BTreeMap<DeviceId, u64> = items.map(|item| (item.id, item.total_bytes)).collect();
    let mut last: Option<DevExtent> = None;
    for extent in &devices.extents {
        let locus = Locus::tree(TreeId::DEV.0).on_member(extent.device.0);
        let locus = locus.at_offset(extent.start.0);
        let end = extent.start.0.saturating_add(extent.len_bytes);
        match sizes.get(&extent.device) {
            None => checker.found(locus, DevExtentUseRule::NoDevice)?,
            Some(total) if end > *total => {
                checker.found(locus, DevExtentUseRule::OutsideDevice)?;
            }
            Some(_) => {}
        }
        let overlaps = last.is_some_and(|last| {
            last.device == extent.device
                && last.start.0.saturating_add(last.len_bytes) > extent.start.0
        });
        if overlaps {
            checker.found(locus, DevExtentUseRule::Overlap)?;
        }
        let index = devices
            .chunks
            .binary_search_by_key(&extent.chunk, |chunk| chunk.start);
        let chunk = index.ok().and_then(|index| devices.chunks.get(index));
        let has_stripe = chunk.is_some_and(|chunk| {
            let mut stripes = chunk.stripes.iter();
            stripes.any(|it| (it.device, it.offset) == (extent.device, extent.start))
        });
        if !has_stripe {
            checker.found(locus, DevExtentUseRule::NoChunk)?;
        }
        last = Some(*extent);
    }
    Ok(())
}
