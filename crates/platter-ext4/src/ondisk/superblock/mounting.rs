//! What a mount for writing leaves in the superblock, at its beginning and at its end.

use platter_vfs::Timestamp;

use super::DiskSuperblock;
use super::disk::split_time;
use crate::ondisk::features::Incompat;

/// `s_state`: it was unmounted.
const STATE_CLEAN: u16 = 0x1;

/// What a filesystem needs when it is found in the middle of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The replay of its journal.
    Replay,
    /// A check.
    Check,
}

/// `s_first_ino` and `s_inode_size` of revision 0.
const REVISION_0_FIRST_INODE: u32 = 11;
const REVISION_0_INODE_BYTES: u16 = 128;

impl DiskSuperblock {
    /// Makes a filesystem of revision 0 one of revision 1, which alone has features: with the sizes
    /// that the former is bound to.
    pub fn leave_revision_0(&mut self) {
        if self.revision.get() == 0 {
            self.revision.set(1);
            self.first_inode.set(REVISION_0_FIRST_INODE);
            self.inode_size.set(REVISION_0_INODE_BYTES);
        }
    }

    /// Says that the filesystem is mounted for writing. Until it is unmounted it is not clean: its
    /// journal may need a replay, and without one it may need a check.
    pub fn begin_mount(&mut self, now: Timestamp) {
        (self.mount_time_lo, self.mount_time_hi) = split_time(now);
        self.set_write_time(now);
        self.mount_count = self.mount_count.get().saturating_add(1).into();
        self.begin_change(if self.features().has_journal() {
            Remedy::Replay
        } else {
            Remedy::Check
        });
    }

    /// Says what the filesystem needs when a change that now begins is cut short.
    pub fn begin_change(&mut self, remedy: Remedy) {
        match remedy {
            Remedy::Replay => {
                let incompat = self.feature_incompat.get() | Incompat::RECOVER.bits();
                self.feature_incompat.set(incompat);
            }
            Remedy::Check => self.state = (self.state.get() & !STATE_CLEAN).into(),
        }
    }

    /// Counts what was written to the filesystem.
    pub fn add_kbytes_written(&mut self, more: u64) {
        self.kbytes_written = self.kbytes_written.get().saturating_add(more).into();
    }

    /// Says that the filesystem is at rest. It is as clean as it was before it was mounted.
    pub fn end_mount(&mut self, now: Timestamp, was_clean: bool) {
        self.set_write_time(now);
        self.end_change(was_clean);
    }

    /// Says that a change is done. The filesystem is as clean as it was before.
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
    fn a_mount_without_a_journal_is_not_clean_until_its_end() {
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
    fn a_mount_with_a_journal_asks_for_its_replay_until_its_end() {
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
