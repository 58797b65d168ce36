//! Error information in the superblock: the count, the first and the last error. Spec:
//! `ext4/super`.

use platter_ondisk::endian::{Le32, Le64};
use platter_vfs::Timestamp;

use super::DiskSuperblock;
use super::disk::split_time;
use crate::ondisk::InodeNr;

/// `s_state`: errors were detected.
const STATE_ERRORS: u16 = 0x2;

/// An error to be recorded in the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorNote {
    /// Time of the error.
    pub time: Timestamp,
    /// Kind of the error.
    pub code: ErrorCode,
    /// Function or structure of the error; at most 32 bytes are stored.
    pub place: &'static str,
    /// The inode, if known.
    pub inode: Option<InodeNr>,
    /// The block, if known.
    pub block: Option<u64>,
}

/// `s_first_error_errcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorCode {
    /// Any other error.
    Unknown = 1,
    /// An I/O error of the device.
    Io = 2,
    /// A checksum does not match.
    Checksum = 4,
    /// Another rule of the format is broken.
    Corrupt = 5,
}

/// Counts an error, and sets the error flag in `s_state`.
pub fn note_error(disk: &mut DiskSuperblock, note: &ErrorNote) {
    note_errors(disk, note, 1);
}

/// Like [`note_error`], for `count` errors of which `note` is the last.
pub fn note_errors(disk: &mut DiskSuperblock, note: &ErrorNote, count: u32) {
    mark_errors(disk);
    let (time_lo, time_hi) = split_time(note.time);
    let mut place = [0; 32];
    for (to, from) in place.iter_mut().zip(note.place.bytes()) {
        *to = from;
    }
    let inode = Le32::new(note.inode.map_or(0, InodeNr::get));
    let block = Le64::new(note.block.unwrap_or(0));
    if disk.first_error_time_lo.get() == 0 && disk.first_error_time_hi == 0 {
        disk.first_error_time_lo = time_lo;
        disk.first_error_time_hi = time_hi;
        disk.first_error_func = place;
        disk.first_error_line = Le32::new(0);
        disk.first_error_inode = inode;
        disk.first_error_block = block;
        disk.first_error_code = note.code as u8;
    }
    disk.last_error_time_lo = time_lo;
    disk.last_error_time_hi = time_hi;
    disk.last_error_func = place;
    disk.last_error_line = Le32::new(0);
    disk.last_error_inode = inode;
    disk.last_error_block = block;
    disk.last_error_code = note.code as u8;
    disk.error_count = disk.error_count.get().saturating_add(count).into();
}

/// Sets the error flag in `s_state`.
fn mark_errors(disk: &mut DiskSuperblock) {
    disk.state = (disk.state.get() | STATE_ERRORS).into();
}

/// Copies the errors of `earlier`, an earlier state of this superblock, if it has recorded
/// more: errors are recorded outside transactions, so the replayed superblock may lack them.
pub fn keep_errors(disk: &mut DiskSuperblock, earlier: &DiskSuperblock) {
    if earlier.state.get() & STATE_ERRORS != 0 {
        mark_errors(disk);
    }
    if earlier.error_count.get() <= disk.error_count.get() {
        return;
    }
    disk.error_count = earlier.error_count;
    disk.first_error_time_lo = earlier.first_error_time_lo;
    disk.first_error_time_hi = earlier.first_error_time_hi;
    disk.first_error_func = earlier.first_error_func;
    disk.first_error_line = earlier.first_error_line;
    disk.first_error_inode = earlier.first_error_inode;
    disk.first_error_block = earlier.first_error_block;
    disk.first_error_code = earlier.first_error_code;
    disk.last_error_time_lo = earlier.last_error_time_lo;
    disk.last_error_time_hi = earlier.last_error_time_hi;
    disk.last_error_func = earlier.last_error_func;
    disk.last_error_line = earlier.last_error_line;
    disk.last_error_inode = earlier.last_error_inode;
    disk.last_error_block = earlier.last_error_block;
    disk.last_error_code = earlier.last_error_code;
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    fn note(seconds: i64) -> ErrorNote {
        ErrorNote {
            time: Timestamp {
                seconds,
                nanoseconds: 0,
            },
            code: ErrorCode::Corrupt,
            place: "multiple mount protection block and more",
            inode: InodeNr::new(12),
            block: Some(7),
        }
    }

    #[test]
    fn first_and_last_error_are_recorded() {
        let mut disk = sample();
        for seconds in [5, 6, 1 << 33] {
            note_error(&mut disk, &note(seconds));
        }
        assert_eq!(disk.error_count.get(), 3);
        assert_eq!(disk.first_error_time_lo.get(), 5);
        assert_eq!(
            (disk.last_error_time_lo.get(), disk.last_error_time_hi),
            (0, 2)
        );
        assert_eq!(&disk.first_error_func[28..], b"ock ");
        assert_eq!(disk.last_error_inode.get(), 12);
        assert_eq!(disk.last_error_block.get(), 7);
        assert_eq!((disk.last_error_code, disk.state.get()), (5, 2));
    }

    #[test]
    fn errors_survive_a_replay() {
        let before = sample();
        let mut recorded = before;
        note_error(&mut recorded, &note(5));
        let mut replayed = before;
        keep_errors(&mut replayed, &recorded);
        assert_eq!(replayed.error_count.get(), 1);
        assert_eq!(replayed.first_error_time_lo.get(), 5);
        assert_eq!(replayed.state.get(), 2);
        let mut newer = recorded;
        note_error(&mut newer, &note(6));
        keep_errors(&mut newer, &recorded);
        assert_eq!(newer.error_count.get(), 2);
    }
}
