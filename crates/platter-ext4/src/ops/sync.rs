//! Making changes durable: of one inode, and of all.

use std::ops::Range;

use platter_vfs::{Error, Result};

use super::Tree;
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
        let mut written = Ok(());
        for node in self.take_dirty() {
            written = written.and(node.write_back());
        }
        self.noted(written.and(log.commit_all()))
    }

    /// Ends all writing because of `error`.
    pub(crate) fn end_writing(&self, error: &Error) {
        if let Some(log) = self.volume.log() {
            log.abort(error);
        }
    }
}

impl CommitClient for Tree {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        match &self.space {
            Some(space) => space.closing(handle),
            None => Ok(()),
        }
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
