//! Shutdown of a mount: nothing is written to the device afterwards, even by inodes still in use.

use std::io::IoSlice;

use platter_vfs::Result;

use super::SuperBlock;
use crate::txn::Log;

impl SuperBlock {
    /// Whether its mount has ended: nothing is written any more.
    pub(super) fn is_closed(&self) -> bool {
        self.writes.is_closed()
    }

    /// Writes data that no transaction has to `offset` of the device, in bytes.
    ///
    /// # Errors
    /// `ReadOnly` when the mount has ended: its blocks may be another mount's by now. What ended all
    /// writing, if something did: that may be another host that mounted it.
    pub(super) fn write_data(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.writes.write(|| {
            if let Some(error) = self.fs.log().and_then(Log::failure) {
                return Err(error);
            }
            Ok(self.fs.device().write_vectored_at(offset, bufs)?)
        })
    }

    /// Ends all writing, and returns when neither data nor a commit is under way. What was not
    /// written is lost, as by a power cut.
    pub(crate) fn cut(&self) {
        self.writes.close();
        if let Some(log) = self.fs.log() {
            log.cut();
        }
    }

    /// Ends all writing, and releases all unused inodes, now and from now on.
    pub fn close(&self) {
        self.cut();
        drop(self.dirty.take());
        self.unstored.clear();
        self.nodes.release_all();
    }
}
