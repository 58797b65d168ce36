//! The subvolumes that a stream refers to by their UUIDs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use platter_ondisk::Uuid;
use platter_vfs::{Condition, Result};

use crate::context::{FsContext, Subvolume};
use crate::ondisk::TreeId;
use crate::ondisk::send_stream::{Source, SourceRank};

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
        let all = context.subvolumes()?;
        // Of equal ones, that marked first: any user may mark a subvolume of their own later.
        let best = all.iter().max_by_key(|subvolume| {
            let marked = subvolume.item.history.receive_transaction;
            (rank(subvolume, source), Reverse((marked, subvolume.id)))
        });
        let best = best.filter(|subvolume| rank(subvolume, source).is_some());
        let missing = || {
            let uuid = source.uuid;
            Condition::NotFound.because(format!(
                "the subvolume {uuid} that it refers to is not here; receive that first"
            ))
        };
        let id = best.ok_or_else(missing)?.id;
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, id);
        Ok(id)
    }
}

/// How well a subvolume matches.
fn rank(subvolume: &Subvolume, source: Source) -> Option<SourceRank> {
    let history = &subvolume.item.history;
    let own = Source {
        uuid: history.uuid,
        generation: history.change_transaction,
    };
    let received = Source {
        uuid: history.received_uuid,
        generation: history.send_transaction,
    };
    source.rank(&own, &received, subvolume.is_read_only())
}
