//! Corruption that is found while the filesystem may be written: it is recorded in the superblock,
//! and ends all writing where that is asked for.

use platter_block::Operation;
use platter_block::lock::Mutex;
use platter_vfs::{Condition, Error, Result};

use super::SuperBlock;
use crate::ondisk::InodeNr;
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::superblock::{ErrorCode, ErrorNote, note_error, note_errors};
use crate::superblock;
use crate::txn::Handle;

/// What to do about corruption that is found while the filesystem may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Record it in the superblock and go on (`errors=continue`).
    Continue,
    /// Record it and change nothing any more (`errors=remount-ro`).
    ReadOnly,
}

impl OnError {
    /// What `s_errors` of a superblock asks for. To bring the machine down is not for one program
    /// of many: where that is asked for, nothing is changed any more.
    #[must_use]
    pub fn of_superblock(errors: u16) -> Self {
        match errors {
            2 | 3 => Self::ReadOnly,
            _ => Self::Continue,
        }
    }
}

/// Errors that a transaction records: the first one at once, the others together when it closes,
/// however many there are.
#[derive(Debug, Default)]
pub(super) struct ErrorNotes {
    /// What was recorded of the errors encountered.
    state: Mutex<Recorded>,
}

#[derive(Debug, Default)]
struct Recorded {
    /// The transaction that recorded some already.
    transaction: Option<Sequence>,
    /// How many it has not recorded yet, and the last of those.
    more: u32,
    last: Option<ErrorNote>,
}

impl Recorded {
    /// Leaves an error to a transaction that closes.
    fn note_later(&mut self, note: ErrorNote) {
        self.more = self.more.saturating_add(1);
        self.last = Some(note);
    }
}

impl SuperBlock {
    /// Records the error of a finished operation if it reports corruption. Called without a handle
    /// or a lock.
    pub(crate) fn record_error(&self, error: Error) -> Error {
        let Some(log) = self.fs.log() else {
            return error;
        };
        if let Error::Corrupt(_) = &error {
            if self.on_error == OnError::ReadOnly {
                log.abort(&error);
            } else if log.failure().is_none() {
                self.note_in_transaction(&error);
            }
        }
        error
    }

    /// Returns the result of an operation, and records its error.
    pub(crate) fn recorded<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.record_error(error))
    }

    /// Records an error after which writing goes on.
    fn note_in_transaction(&self, error: &Error) {
        let Some(note) = self.note_of(error) else {
            return;
        };
        if self.writers.is_frozen() {
            // Reading goes on, and is not to wait for the thaw.
            self.error_notes.state.lock().note_later(note);
            return;
        }
        // An error that cannot be recorded was returned to the caller in any case.
        let Ok(mut handle) = self.fs.begin(1) else {
            return;
        };
        {
            let mut recorded = self.error_notes.state.lock();
            let transaction = Some(handle.transaction());
            if recorded.transaction == transaction {
                recorded.note_later(note);
                return;
            }
            recorded.transaction = transaction;
        }
        let _ = superblock::edit(&self.fs, &mut handle, |disk| note_error(disk, &note));
    }

    /// Records the errors that were found while the filesystem was frozen.
    pub(crate) fn note_pending(&self) {
        let is_pending = self.error_notes.state.lock().last.is_some();
        // An error that cannot be recorded was returned to the caller in any case.
        if is_pending && let Ok(mut handle) = self.fs.begin(1) {
            let _ = self.note_the_rest(&mut handle);
        }
    }

    /// Records in a transaction that closes the errors that were not recorded yet.
    pub(super) fn note_the_rest(&self, handle: &mut Handle<'_>) -> Result<()> {
        let (more, last) = {
            let mut recorded = self.error_notes.state.lock();
            (std::mem::take(&mut recorded.more), recorded.last.take())
        };
        let Some(last) = last else {
            return Ok(());
        };
        superblock::edit(&self.fs, handle, |disk| {
            note_errors(disk, &last, more);
        })
    }

    /// `None` for what is no error of the filesystem: such as its end by unmounting it.
    pub(super) fn note_of(&self, error: &Error) -> Option<ErrorNote> {
        let mut note = ErrorNote {
            time: self.clock.now(),
            code: ErrorCode::Unknown,
            place: "transaction",
            inode: None,
            block: None,
        };
        match error {
            Error::Corrupt(corruption) => {
                let is_sum = corruption.rule.contains("checksum");
                note.code = if is_sum {
                    ErrorCode::Checksum
                } else {
                    ErrorCode::Corrupt
                };
                note.place = corruption.structure;
                let place = corruption.locus.parts();
                note.inode = place
                    .inode
                    .and_then(|inode| InodeNr::new(u32::try_from(inode).ok()?));
                note.block = place.block;
            }
            Error::Io(error) => {
                note.code = ErrorCode::Io;
                note.place = match error.operation {
                    Operation::Read => "device read",
                    Operation::Write => "device write",
                    Operation::Flush => "device flush",
                    Operation::Open | Operation::Discard => "device",
                };
                note.block = Some(error.offset >> self.fs.geometry.block_bits);
            }
            Error::Condition(Condition::ReadOnly) => return None,
            Error::Condition(_) | Error::Refused(_) | Error::Unsupported(_) => {}
        }
        Some(note)
    }
}

#[cfg(test)]
mod tests {
    use platter_block::BlockDevice;
    use platter_ondisk::Locus;
    use zerocopy::{FromZeros, IntoBytes};

    use super::super::data::tests::mount;
    use crate::alloc::SpaceRule;
    use crate::alloc::tests::sample::{Sample, Shape};
    use crate::ondisk::superblock::DiskSuperblock;
    use platter_ondisk::Corrupt;

    #[test]
    fn a_transaction_counts_all_errors_encountered() {
        let device = Sample::new(Shape::PLAIN).device;
        let sb = mount(&device);
        let read = || {
            let mut disk = DiskSuperblock::new_zeroed();
            device.read_at(1024, disk.as_mut_bytes()).unwrap();
            (disk.error_count.get(), disk.last_error_block.get())
        };
        let encounter = |block| {
            let corruption = Corrupt::new(Locus::block(block), SpaceRule::FreeClusters);
            sb.record_error(corruption.into());
        };
        let log = sb.fs.log().unwrap();
        (1..=5).for_each(encounter);
        log.commit_all().unwrap();
        assert_eq!(read(), (5, 5));
        (6..=8).for_each(encounter);
        log.commit_all().unwrap();
        assert_eq!(read(), (8, 8));
    }

    #[test]
    fn error_found_while_frozen_is_recorded_after_the_thaw() {
        let device = Sample::new(Shape::PLAIN).device;
        let sb = mount(&device);
        let log = sb.fs.log().unwrap();
        let encounter = |block| {
            let corruption = Corrupt::new(Locus::block(block), SpaceRule::FreeClusters);
            sb.record_error(corruption.into());
        };
        sb.writers.freeze().unwrap();
        log.freeze().unwrap();
        encounter(1);
        encounter(2);
        log.thaw();
        sb.note_pending();
        sb.writers.thaw().unwrap();
        log.commit_all().unwrap();
        let mut disk = DiskSuperblock::new_zeroed();
        device.read_at(1024, disk.as_mut_bytes()).unwrap();
        assert_eq!(disk.error_count.get(), 2);
    }
}
