//! Making changes durable: of one inode, and of all.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_vfs::{Condition, Error, Result};

use super::{OnError, Tree};
use crate::ondisk::BlockNr;
use crate::superblock;
use crate::txn::{CommitClient, Handle};

impl Tree {
    /// Makes all that was done so far durable. Of files that cannot be written, their own syncs tell
    /// as well.
    pub fn sync(&self) -> Result<()> {
        let Some(log) = self.volume.log() else {
            return Ok(());
        };
        let written = self.write_dirty();
        // Data over blocks that were a file's before is in no transaction.
        let overwrites = self.dirty.overwrites.load(Ordering::Acquire);
        let is_flushed = self.dirty.flushed.load(Ordering::Acquire) >= overwrites;
        let durable = if is_flushed {
            log.commit_all()
        } else {
            log.sync_all()
        };
        if durable.is_ok() {
            self.dirty.flushed.fetch_max(overwrites, Ordering::AcqRel);
        }
        self.noted(written.and(durable))
    }

    /// Ends all writing because of `error`. Where that is another host, which took the filesystem, it
    /// is noted nowhere: the journal and the superblock are that host's by now.
    pub(crate) fn end_writing(&self, error: &Error) {
        let Some(log) = self.volume.log() else {
            return;
        };
        if matches!(error, Error::Condition(Condition::Busy)) {
            log.leave(error);
        } else {
            log.abort(error);
        }
    }
}

impl CommitClient for Tree {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        let Some(space) = &self.space else {
            return Ok(());
        };
        if let Some(damage) = space.take_damage() {
            if self.on_error == OnError::ReadOnly {
                return Err(damage);
            }
            if let Some(note) = self.note_of(&damage) {
                superblock::edit(&self.volume, handle, |disk| disk.note_error(&note))?;
            }
        }
        self.note_the_rest(handle)?;
        self.store_kept(handle)?;
        space.closing(handle)
    }

    fn committed(&self, freed: &[Range<BlockNr>]) {
        if let Some(space) = &self.space {
            space.committed(freed);
        }
    }

    fn failed(&self, error: &Error) {
        if let Some(note) = self.note_of(error) {
            // The device may be what failed.
            let _ = superblock::rewrite(&self.volume, |disk| disk.note_error(&note));
        }
    }
}
