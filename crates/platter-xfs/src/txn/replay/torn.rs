//! Blocks that were torn when they were written back. Spec: `xfs/metadata_integrity`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::buffer::Part;
use crate::ondisk::BasicBlock;
use crate::ondisk::log::Stamp;

/// Bytes of torn blocks in memory at most: more than are written back at a time.
const HELD_BYTES_MAX: usize = 16 << 20;

/// Blocks whose first sector, with LSN and checksum, reached the device, and another one did not: they seem to be as new as
/// items of the log of whose changes they lack a part. The log has all that was changed since the write before, so that
/// the items up to that LSN make them what the checksum is of.
#[derive(Debug, Default)]
pub(super) struct TornBlocks {
    held: BTreeMap<BasicBlock, Vec<u8>>,
    held_bytes: usize,
}

impl TornBlocks {
    /// Applies an item to the block that is on the device as `torn`. Returns the block once it has the checksum that it
    /// stores; what never has is rotten, and stays as it is, as does what there is no memory for.
    pub(super) fn apply(
        &mut self,
        block: BasicBlock,
        (stamp, torn): (Stamp, &[u8]),
        parts: &[Part<'_>],
    ) -> Option<Vec<u8>> {
        let held = match self.held.entry(block) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(vacant) => {
                let held_bytes = self.held_bytes.saturating_add(torn.len());
                if held_bytes > HELD_BYTES_MAX {
                    return None;
                }
                self.held_bytes = held_bytes;
                vacant.insert(torn.to_vec())
            }
        };
        for (range, part) in parts {
            if let Some(slot) = held.get_mut(range.clone()) {
                slot.copy_from_slice(part);
            }
        }
        stamp.copy(held, torn);
        let is_whole = held.len() == torn.len() && stamp.is_sealed(held);
        let whole = is_whole.then(|| self.held.remove(&block)).flatten();
        self.held_bytes -= whole.as_ref().map_or(0, Vec::len);
        whole
    }
}
