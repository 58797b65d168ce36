//! Removal of block groups that nothing is in: other types can use their space after the next commit.

use platter_vfs::Result;

use super::{Handle, WriteContext, chunks, space, trees};
use crate::block_group::BlockGroup;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::CHUNK_OBJECT;
use crate::ondisk::{Generation, Key, TreeId};

/// Tree blocks that the removal of a group changes at most.
const REMOVE_CREDITS: u32 = 128;

/// Removes the block groups without extents, but for one of each type and profile, and those that
/// reservations count on. Returns how many. The caller has no handle.
pub(crate) fn remove_groups(fs: &WriteContext) -> Result<usize> {
    let mut removed = 0;
    for group in fs.groups.iter() {
        if group.holds(BlockGroupFlags::SYSTEM) || !group.is_unused() {
            continue;
        }
        // What is kept for commits is enough for it.
        let handle = fs.begin_unreserved(REMOVE_CREDITS)?;
        if space::withdraw(fs, &group) {
            remove_group(fs, &handle, &group)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes the group of a chunk that is held, and that nothing is in. Returns whether it did: something may be in it.
pub(super) fn remove_held(fs: &WriteContext, group: &BlockGroup) -> Result<bool> {
    let handle = fs.begin_unreserved(REMOVE_CREDITS)?;
    let is_removed = fs.groups.withdraw_held(group);
    if is_removed {
        remove_group(fs, &handle, group)?;
    }
    Ok(is_removed)
}

fn remove_group(fs: &WriteContext, handle: &Handle<'_>, group: &BlockGroup) -> Result<()> {
    let result = remove_items(fs, handle.generation(), group);
    result.inspect_err(|error| fs.abort(error))
}

fn remove_items(fs: &WriteContext, generation: Generation, group: &BlockGroup) -> Result<()> {
    let (start, len_bytes) = (group.start(), group.len_bytes());
    let item_key = Key::new(start.0, ItemKind::BLOCK_GROUP_ITEM, len_bytes);
    fs.edit(generation, trees::block_group_tree(fs), |editor| {
        editor.remove(item_key)
    })?;
    if trees::has_free_space_tree(fs) {
        let first = Key::new(start.0, ItemKind(0), 0);
        let last = Key::new(group.end().0 - 1, ItemKind(u8::MAX), u64::MAX);
        fs.edit(generation, TreeId::FREE_SPACE, |editor| {
            editor.remove_range(first, last)
        })?;
    }
    let map = fs.blocks().store().map();
    let chunk: ChunkItem = map.find(start)?.clone();
    for stripe in &chunk.stripes {
        let key = Key::new(stripe.device.0, ItemKind::DEV_EXTENT, stripe.offset.0);
        fs.edit(generation, TreeId::DEV, |editor| editor.remove(key))?;
    }
    let chunk_key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, start.0);
    fs.edit(generation, TreeId::CHUNK, |editor| editor.remove(chunk_key))?;
    chunks::remove_chunk(fs, &chunk);
    chunks::update_devices(fs, generation, &chunk)
}
