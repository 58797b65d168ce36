//! Devices that come and go, and their sizes.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Corrupt;
use platter_vfs::{Condition, Result};
use zerocopy::IntoBytes;

use super::{WriteContext, superblocks};
use crate::chunk::Member;
use crate::context::TreesRule;
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::types::DEV_ITEMS_OBJECT;
use crate::ondisk::{DeviceId, Generation, Key, Superblock, TreeId};
use crate::tree::Cursor;

/// Tree blocks that the change of a device's items copies at most.
const CREDITS: u32 = 64;
/// The beginning of a device, which is cleared when it is added.
const CLEARED_BYTES: usize = 1 << 20;

/// The chunks that have a stripe on a device.
#[must_use]
pub(crate) fn chunks_on(fs: &WriteContext, device: DeviceId) -> Vec<ChunkItem> {
    let map = fs.blocks().store().map();
    let has_stripe = |chunk: &&ChunkItem| chunk.stripes.iter().any(|it| it.device == device);
    map.iter().filter(has_stripe).cloned().collect()
}

/// Adds a device, whose contents are lost.
pub(crate) fn add(fs: &WriteContext, device: &Arc<dyn BlockDevice>, item: DevItem) -> Result<()> {
    fs.sync()?;
    device.write_at(0, &vec![0; CLEARED_BYTES])?;
    // The superblock of a commit that is not durable would lead to nothing after a crash.
    let handle = superblocks::keep(fs, CREDITS)?;
    let (durable, template) = durable_superblock(fs)?;
    // A device whose item is in no commit is left out of a mount.
    let superblock = Superblock {
        dev_item: item,
        log_root: None,
        ..durable
    };
    superblocks::write(&**device, &superblock, &template, item.total_bytes)?;
    let key = Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, item.id.0);
    handle.edit(TreeId::CHUNK, |editor| {
        editor.insert(key, item.encode().as_bytes())
    })?;
    {
        let mut superblock = fs.superblock.lock();
        superblock.device_count = superblock.device_count.saturating_add(1);
        superblock.total_bytes = superblock.total_bytes.saturating_add(item.total_bytes);
    }
    // Each commit writes its superblocks from this one on.
    fs.blocks().store().change_members(|members| {
        let last = members.iter().map(|member| member.index).max();
        members.add(Member {
            id: item.id,
            uuid: item.uuid,
            fsid: item.fsid,
            total_bytes: Some(item.total_bytes),
            generation: None,
            index: last.map_or(0, |last| last.saturating_add(1)),
            device: Some(Arc::clone(device)),
        });
    });
    drop(handle);
    fs.sync()
}

/// Removes a device on which no chunk has a stripe. Nothing is written to it from then on.
pub(crate) fn remove(fs: &WriteContext, device: DeviceId) -> Result<()> {
    let handle = fs.begin_unreserved(CREDITS)?;
    let total = change_item(fs, handle.generation(), device, None)?;
    let key = Key::new(0, ItemKind::PERSISTENT_ITEM, device.0);
    handle.edit(TreeId::DEV, |editor| editor.remove(key))?;
    {
        let mut superblock = fs.superblock.lock();
        superblock.device_count = superblock.device_count.saturating_sub(1);
        superblock.total_bytes = superblock.total_bytes.saturating_sub(total);
    }
    fs.chunks.removed_devices.lock().push(device);
    drop(handle);
    fs.sync()?;
    let mut gone = None;
    let store = fs.blocks().store();
    store.change_members(|members| {
        let known = members.find_mut(device);
        gone = known.and_then(|member| member.device.take());
        members.remove(device);
    });
    fs.chunks.removed_devices.lock().clear();
    match gone {
        Some(device) => superblocks::clear(&*device),
        None => Ok(()),
    }
}

/// Whether a chunk has a stripe on a device that does not end in its first `total_bytes`.
#[must_use]
pub(crate) fn is_beyond(chunk: &ChunkItem, device: DeviceId, total_bytes: u64) -> bool {
    let len_bytes = chunk.stripe_len_bytes();
    chunk.stripes.iter().any(|stripe| {
        let end = stripe.offset.0.saturating_add(len_bytes);
        stripe.device == device && end > total_bytes
    })
}

/// Changes the length of a device.
///
/// # Errors
/// `Busy` where a chunk has a stripe beyond it.
pub(crate) fn set_size(fs: &WriteContext, device: DeviceId, total_bytes: u64) -> Result<()> {
    let map = fs.blocks().store().map();
    if map
        .iter()
        .any(|chunk| is_beyond(chunk, device, total_bytes))
    {
        return Err(Condition::Busy.into());
    }
    drop(map);
    let handle = fs.begin_unreserved(CREDITS)?;
    let before = change_item(fs, handle.generation(), device, Some(total_bytes))?;
    {
        let mut superblock = fs.superblock.lock();
        let others = superblock.total_bytes.saturating_sub(before);
        superblock.total_bytes = others.saturating_add(total_bytes);
    }
    fs.blocks().store().change_members(|members| {
        if let Some(member) = members.find_mut(device) {
            member.total_bytes = Some(total_bytes);
        }
    });
    drop(handle);
    fs.sync()
}

/// Sets the length in the item of a device, or removes it. Returns the length that it had.
fn change_item(
    fs: &WriteContext,
    generation: Generation,
    device: DeviceId,
    total_bytes: Option<u64>,
) -> Result<u64> {
    let key = Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, device.0);
    let changed = fs.edit(generation, TreeId::CHUNK, |editor| {
        let locus = editor.tree().locus(key);
        let missing = || Corrupt::new(locus, TreesRule::MissingTree);
        let data = editor.get(key)?.ok_or_else(missing)?;
        let item = DevItem::decode(key, &data, locus)?;
        match total_bytes {
            Some(total_bytes) => {
                let new = DevItem {
                    total_bytes,
                    ..item
                };
                editor.set(key, new.encode().as_bytes())?;
            }
            None => drop(editor.remove(key)?),
        }
        Ok(item.total_bytes)
    });
    changed.inspect_err(|error| fs.abort(error))
}

/// The item of a device.
pub(crate) fn item(fs: &WriteContext, device: DeviceId) -> Result<DevItem> {
    let open = fs.tree(TreeId::CHUNK)?;
    let tree = open.view().now.tree;
    let key = Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, device.0);
    let mut cursor = Cursor::new(fs.blocks(), tree);
    cursor.seek(key)?;
    let found = cursor.item().filter(|(found, _)| *found == key);
    let (_, data) = found.ok_or(Condition::NotFound)?;
    Ok(DevItem::decode(key, data, tree.locus(key))?)
}

/// The superblock of the last commit, which is [kept](superblocks::keep), as one of the devices has it.
fn durable_superblock(fs: &WriteContext) -> Result<(Superblock, DiskSuperblock)> {
    let members = fs.blocks().store().members();
    let present = members.iter().find_map(|member| member.device.as_ref());
    let device = present.ok_or(Condition::NotFound)?;
    superblocks::stored(&**device, fs.superblock().metadata_uuid)
}
