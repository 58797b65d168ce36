//! Writeback of a file, and `fsync(2)`.

use std::sync::Arc;

use super::{FileBlocks, FileEnd};
use crate::Result;

/// Writes the dirty pages of a file back. An error is reported by the next sync of the file.
///
/// # Errors
/// Those of the device and of the driver.
pub fn write_back<F: FileBlocks>(file: &F) -> Result<()> {
    let end = file.data().end();
    file.data().set_replaced(false);
    let written = file.pages().write_back(file, 0..u64::MAX);
    end_write_back(file, written, end)
}

/// Writes those of the files in use back that are dirty still after a sync, which leaves files without a name: once the
/// filesystem is frozen, nothing of them may be left to write. No lock is held, and no handle.
///
/// # Errors
/// That of the first file that could not be written.
pub fn write_back_unnamed<F: FileBlocks>(in_use: Vec<Arc<F>>) -> Result<()> {
    let mut dirty = in_use.into_iter().filter(|file| file.pages().is_dirty());
    dirty.try_for_each(|file| write_back(&*file))
}

/// Ends writing back dirty pages up to `end`, the file's before they were looked for.
pub(super) fn end_write_back<F: FileBlocks>(
    file: &F,
    written: Result<()>,
    end: FileEnd,
) -> Result<()> {
    // The end of the file may be a hole, of which there was nothing to write.
    let written = written.and_then(|()| file.extend_on_disk(end));
    // What became dirty meanwhile is to be written, too.
    if written.is_err() || file.pages().is_dirty() {
        file.note_dirty();
    }
    if let Err(error) = &written {
        file.note_failure(error);
    }
    written
}

/// Makes the contents of a regular file, and what is needed to reach them, durable; without `data_only`,
/// all of the inode. Asks nothing of the device if that is so already.
///
/// # Errors
/// Those of writeback that no sync has reported yet, and of the commit.
pub fn sync_data<F: FileBlocks>(file: &F, data_only: bool) -> Result<()> {
    let sync = &file.data().sync;
    sync.write_back(file.pages(), || write_back(file))?;
    // What a truncation took out of the cache before it was written is in the mapping still as it was earlier.
    drop(file.data().invalidation.read());
    file.commit(data_only)
}
