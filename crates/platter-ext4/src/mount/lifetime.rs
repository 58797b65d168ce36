//! How much was ever written to the filesystem, which its superblock keeps.

use std::sync::Arc;
use std::time::Duration;

use platter_block::lock::Mutex;
use platter_block::{BlockDevice, CountingDevice};
use platter_vfs::Result;

use crate::FsContext;
use crate::ondisk::superblock::DiskSuperblock;
use crate::superblock;

/// Minimum interval of superblock updates while the filesystem is mounted, as in Linux.
const INTERVAL: Duration = Duration::from_hours(1);
/// ...and after how much, at least.
const KIB_MIN: u64 = 16 << 10;

/// What is written during a mount.
#[derive(Debug)]
pub(super) struct Lifetime {
    device: Arc<CountingDevice>,
    /// What was recorded last, and when.
    recorded: Mutex<Recorded>,
}

#[derive(Debug)]
struct Recorded {
    kib: u64,
    /// On the monotonic clock.
    at: Duration,
}

impl Lifetime {
    /// Counts what is written to `device`, through [`device`](Self::device).
    pub(super) fn new(device: Arc<dyn BlockDevice>, now: Duration) -> Self {
        Self {
            device: Arc::new(CountingDevice::new(device)),
            recorded: Mutex::new(Recorded { kib: 0, at: now }),
        }
    }

    /// The device that counts.
    pub(super) fn device(&self) -> Arc<dyn BlockDevice> {
        let device: Arc<CountingDevice> = Arc::clone(&self.device);
        device
    }

    /// Adds what was written since the last time to the superblock.
    pub(super) fn note(&self, disk: &mut DiskSuperblock, now: Duration) {
        let mut recorded = self.recorded.lock();
        let kib = self.kib();
        disk.add_kbytes_written(kib.saturating_sub(recorded.kib));
        *recorded = Recorded { kib, at: now };
    }

    /// As [`note`](Self::note), in a transaction, if enough was written since the last time and that
    /// was long ago.
    pub(super) fn note_when_due(&self, fs: &FsContext, now: Duration) -> Result<()> {
        let is_due = {
            let recorded = self.recorded.lock();
            now.saturating_sub(recorded.at) >= INTERVAL && self.kib() >= recorded.kib + KIB_MIN
        };
        if is_due {
            let mut handle = fs.begin(1)?;
            superblock::edit(fs, &mut handle, |disk| self.note(disk, now))?;
        }
        Ok(())
    }

    fn kib(&self) -> u64 {
        self.device.counts().write_bytes >> 10
    }
}

#[cfg(test)]
mod tests {
    use platter_block::MemoryDevice;

    use super::*;
    use crate::ondisk::superblock::tests::sample;

    #[test]
    fn what_was_written_is_recorded_once() {
        let memory = Arc::new(MemoryDevice::new("memory", vec![0; 8192]));
        let lifetime = Lifetime::new(memory, Duration::ZERO);
        let mut disk = sample();
        disk.kbytes_written.set(7);
        lifetime.device().write_at(0, &[1; 4096]).unwrap();
        lifetime.note(&mut disk, Duration::ZERO);
        assert_eq!(disk.kbytes_written.get(), 11);
        lifetime.note(&mut disk, Duration::ZERO);
        assert_eq!(disk.kbytes_written.get(), 11);
    }
}
