//! The subvolumes that a stream refers to by their UUIDs.

use std::collections::BTreeMap;

use platter_ondisk::Uuid;
use platter_vfs::{Condition, Result};

use crate::context::{FsContext, Subvolume};
use crate::ondisk::TreeId;
use crate::ondisk::send_stream::Source;

/// UUIDs kept in memory.
const KNOWN_MAX: usize = 1024;

/// Subvolumes that were found.
#[derive(Debug, Default)]
pub(super) struct Sources {
    known: BTreeMap<(Uuid, u64), TreeId>,
}

impl Sources {
    /// Forgets what was found, after a subvolume was made.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// The subvolume that was received from `source`, or is that.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) fn find(&mut self, context: &FsContext, source: Source) -> Result<TreeId> {
        let key = (source.uuid, source.generation.0);
        if let Some(found) = self.known.get(&key) {
            return Ok(*found);
        }
        if source.uuid.is_nil() {
            return Err(Condition::NotFound.into());
        }
        let all = context.subvolumes()?;
        let best = all.iter().max_by_key(|subvolume| rank(subvolume, source));
        let best = best.filter(|subvolume| rank(subvolume, source) > 0);
        let id = best.ok_or(Condition::NotFound)?.id;
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, id);
        Ok(id)
    }
}

/// How well a subvolume matches; 0 if it does not.
fn rank(subvolume: &Subvolume, source: Source) -> u32 {
    let history = &subvolume.item.history;
    let (is_it, generation) = if history.received_uuid == source.uuid {
        (4, history.send_transaction)
    } else if history.uuid == source.uuid {
        (2, history.change_transaction)
    } else {
        return 0;
    };
    let same = u32::from(generation == source.generation);
    let read_only = u32::from(subvolume.is_read_only());
    is_it * 4 + same * 2 + read_only
}
