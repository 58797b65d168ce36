//! Removal of block groups that nothing is in: other types can use their space after the next commit.

use platter_vfs::Result;

use super::{Handle, WriteContext};
use crate::block_group::BlockGroup;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::CHUNK_OBJECT;
use crate::ondisk::{Generation, Key, TreeId};

/// Tree blocks that the removal of a group changes at most.
const REMOVE_CREDITS: u32 = 128;

impl WriteContext {
    /// Removes the block groups without extents, but for one of each type and profile, and those that
    /// reservations count on. Returns how many. The caller has no handle.
    pub fn remove_unused_groups(&self) -> Result<usize> {
        let mut removed = 0;
        for group in self.groups.iter() {
            if group.holds(BlockGroupFlags::SYSTEM) || !group.is_unused() {
                continue;
            }
            // What is kept for commits is enough for it.
            let handle = self.begin_unreserved(REMOVE_CREDITS)?;
            if self.withdraw(&group) {
                self.remove_group(&handle, &group)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn remove_group(&self, handle: &Handle<'_>, group: &BlockGroup) -> Result<()> {
        let result = self.remove_items(handle.generation(), group);
        result.inspect_err(|error| self.abort(error))
    }

    fn remove_items(&self, generation: Generation, group: &BlockGroup) -> Result<()> {
        let (start, len_bytes) = (group.start(), group.len_bytes());
        let item_key = Key::new(start.0, ItemKind::BLOCK_GROUP_ITEM, len_bytes);
        self.edit(generation, self.group_tree(), |editor| {
            editor.remove(item_key)
        })?;
        if self.has_free_space_tree() {
            let first = Key::new(start.0, ItemKind(0), 0);
            let last = Key::new(group.end().0 - 1, ItemKind(u8::MAX), u64::MAX);
            self.edit(generation, TreeId::FREE_SPACE, |editor| {
                editor.remove_range(first, last)
            })?;
        }
        let map = self.blocks().store().map();
        let chunk: ChunkItem = map.find(start)?.clone();
        for stripe in &chunk.stripes {
            let key = Key::new(stripe.device.0, ItemKind::DEV_EXTENT, stripe.offset.0);
            self.edit(generation, TreeId::DEV, |editor| editor.remove(key))?;
        }
        let chunk_key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, start.0);
        self.edit(generation, TreeId::CHUNK, |editor| editor.remove(chunk_key))?;
        self.remove_chunk(&chunk);
        self.update_devices(generation, &chunk)
    }
}
