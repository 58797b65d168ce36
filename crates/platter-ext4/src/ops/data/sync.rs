//! Contents on their way to where they survive a power cut.

use std::sync::atomic::Ordering;

use platter_vfs::{FileKind, Result};

use super::super::Node;
use super::FileEnd;

impl Node {
    /// Writes the dirty pages of a file. An error is told to whoever syncs the file next.
    pub(in crate::ops) fn write_back(&self) -> Result<()> {
        let end = self.end();
        self.data.is_replaced.store(false, Ordering::Release);
        let written = self.pages.write_back(self, 0..u64::MAX);
        self.end_write_back(written, end)
    }

    /// Takes note of what became of dirty pages up to `end`, the file's before they were looked for.
    pub(super) fn end_write_back(&self, written: Result<()>, end: FileEnd) -> Result<()> {
        // The end of the file may be a hole, of which there was nothing to write.
        let written = written.and_then(|()| self.extend_on_medium(end));
        // What became dirty meanwhile, too, is to be written by somebody.
        if written.is_err() || self.pages.is_dirty() {
            self.note_dirty();
        }
        if let Err(error) = &written {
            self.tree.dirty.record_failure(error);
        }
        written
    }

    /// Returns when contents, and what is needed to reach them, survive a power cut; without
    /// `data_only`, all of the inode. Asks nothing of the device if that is so already.
    pub(in crate::ops) fn sync_contents(&self, data_only: bool) -> Result<()> {
        if self.kind == FileKind::Regular {
            self.data
                .sync
                .write_back(&self.pages, || self.write_back())?;
        }
        let Some(log) = self.volume().log() else {
            return Ok(());
        };
        let transaction = {
            let core = self.core.read();
            if data_only { core.data_sync } else { core.sync }
        };
        let writes = &self.data.sync.writes;
        writes.sync(|| log.commit(transaction), || log.sync(transaction))
    }
}
