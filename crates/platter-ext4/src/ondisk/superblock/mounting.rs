//! The superblock fields that a read-write mount sets at its beginning and at its end.

use platter_vfs::Timestamp;

use super::DiskSuperblock;
use super::disk::split_time;
use crate::ondisk::features::Incompat;

/// `s_state`: cleanly unmounted.
const STATE_CLEAN: u16 = 0x1;

/// What a filesystem needs after a crash during a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// Replay of its journal.
    Replay,
    /// A check with e2fsck.
    Check,
}

/// `s_first_ino` and `s_inode_size` of revision 0.
const REVISION_0_FIRST_INODE: u32 = 11;
const REVISION_0_INODE_BYTES: u16 = 128;

impl DiskSuperblock {
    /// Upgrades a filesystem from revision 0 to revision 1, which has features, with the sizes that
    /// revision 0 implies.
    pub fn leave_revision_0(&mut self) {
        if self.revision.get() == 0 {
            self.revision.set(1);
            self.first_inode.set(REVISION_0_FIRST_INODE);
            self.inode_size.set(REVISION_0_INODE_BYTES);
        }
    }

    /// Marks the filesystem as mounted for writing. Until it is unmounted it is not clean: it needs
    /// recovery, or without a journal a check.
    pub fn begin_mount(&mut self, now: Timestamp) {
        (self.mount_time_lo, self.mount_time_hi) = split_time(now);
        self.set_write_time(now);
        self.mount_count = self.mount_count.get().saturating_add(1).into();
        self.begin_writing();
    }

    /// Marks what the filesystem needs if it is not unmounted.
    pub fn begin_writing(&mut self) {
        self.begin_change(if self.features().has_journal() {
            Remedy::Replay
        } else {
            Remedy::Check
        });
    }

    /// Marks what the filesystem needs if the change that now begins is interrupted.
    pub fn begin_change(&mut self, remedy: Remedy) {
        match remedy {
            Remedy::Replay => {
                let incompat = self.feature_incompat.get() | Incompat::RECOVER.bits();
                self.feature_incompat.set(incompat);
            }
            Remedy::Check => self.state = (self.state.get() & !STATE_CLEAN).into(),
        }
    }

    /// Adds to `s_kbytes_written`.
    pub fn add_kbytes_written(&mut self, more: u64) {
        self.kbytes_written = self.kbytes_written.get().saturating_add(more).into();
    }

    /// Marks the filesystem as unmounted. It is as clean as it was before it was mounted.
    pub fn end_mount(&mut self, now: Timestamp, was_clean: bool) {
        self.set_write_time(now);
        self.end_change(was_clean);
    }

    /// Marks the end of a change. The filesystem is as clean as it was before.
    pub fn end_change(&mut self, was_clean: bool) {
        let incompat = self.feature_incompat.get() & !Incompat::RECOVER.bits();
        self.feature_incompat.set(incompat);
        if was_clean {
            self.state = (self.state.get() | STATE_CLEAN).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::ondisk::features::Compat;

    fn at(seconds: i64) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds: 0,
        }
    }

    #[test]
    fn mount_without_journal_clears_the_clean_flag() {
        for was_clean in [true, false] {
            let mut disk = sample();
            disk.state.set(u16::from(was_clean));
            disk.begin_mount(at(7));
            assert_eq!(disk.state.get(), 0);
            assert_eq!(disk.feature_incompat.get() & Incompat::RECOVER.bits(), 0);
            assert_eq!((disk.mount_count.get(), disk.mount_time_lo.get()), (1, 7));
            disk.end_mount(at(8), was_clean);
            assert_eq!(disk.state.get(), u16::from(was_clean));
            assert_eq!((disk.mount_time_lo.get(), disk.write_time_lo.get()), (7, 8));
        }
    }

    #[test]
    fn mount_with_journal_sets_needs_recovery() {
        let mut disk = sample();
        disk.feature_compat.set(Compat::HAS_JOURNAL.bits());
        disk.state.set(1);
        let before = disk;
        disk.begin_mount(at(7));
        assert_eq!(disk.state.get(), 1);
        assert!(disk.features().incompat.contains(Incompat::RECOVER));
        disk.end_mount(at(8), true);
        assert_eq!(disk.features(), before.features());
    }
}
