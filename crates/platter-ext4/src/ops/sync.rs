//! Making changes durable: of one inode, and of all.

use std::ops::Range;

use platter_vfs::{Error, Result};

use super::{Node, Tree};
use crate::ondisk::BlockNr;
use crate::superblock;
use crate::txn::{CommitClient, Handle};

impl Tree {
    /// Makes all that was done so far durable.
    pub fn sync(&self) -> Result<()> {
        match self.volume.log() {
            Some(log) => self.noted(log.commit_all()),
            None => Ok(()),
        }
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

impl Node {
    /// Makes the inode durable; with `data_only`, what is needed to read its contents.
    pub(super) fn make_durable(&self, data_only: bool) -> Result<()> {
        let Some(log) = self.volume().log() else {
            return Ok(());
        };
        let transaction = {
            let core = self.core.read();
            if data_only { core.data_sync } else { core.sync }
        };
        self.tree.noted(log.commit(transaction))
    }
}
