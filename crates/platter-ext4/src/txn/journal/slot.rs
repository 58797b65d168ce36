//! The superblock of a journal that is being written.

use platter_block::lock::{Mutex, rank};
use platter_vfs::Result;

use super::{JournalMap, disk_superblock};
use crate::ondisk::jbd2::LogBlock;
use crate::ondisk::jbd2::superblock::DiskJournalSuperblock;

/// A journal superblock in memory and its place.
#[derive(Debug)]
pub(crate) struct SuperblockSlot {
    map: JournalMap,
    place: LogBlock,
    /// Its whole block. Held over the write, so that a later change cannot be overtaken.
    bytes: Mutex<Vec<u8>, { rank(15, 0) }>,
}

impl SuperblockSlot {
    pub(super) fn new(map: JournalMap, place: LogBlock, bytes: Vec<u8>) -> Self {
        Self {
            map,
            place,
            bytes: Mutex::new(bytes),
        }
    }

    /// Where the blocks of the journal lie.
    pub(crate) fn map(&self) -> &JournalMap {
        &self.map
    }

    /// Changes the superblock and writes it. Durable after a flush of the journal's device.
    ///
    /// All that ever changes lies in its first 512 bytes, which a power cut does not tear.
    pub(crate) fn write(&self, change: impl FnOnce(&mut DiskJournalSuperblock)) -> Result<()> {
        let mut bytes = self.bytes.lock();
        change(disk_superblock(&mut bytes));
        self.map.write(self.place, &bytes)
    }
}
