//! Multiple mount protection: hosts that share a device announce in the MMP block that they have it
//! mounted for writing. Spec: `ext4/mmp`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::BlockDevice;
use platter_cache::commit::{BackgroundWorker, NextRun};
use platter_ondisk::{Corrupt, Verify};
use platter_vfs::{Clock, Condition, Result};
use zerocopy::FromBytes;

use super::MountOptions;
use crate::FsContext;
use crate::ondisk::BlockNr;
use crate::ondisk::features::Incompat;
use crate::ondisk::mmp::{self, DiskMmp, MmpRule, MmpRules, MmpUse};
use crate::ops::{self, SuperBlock};

/// Seconds between two updates where the superblock asks for none.
const UPDATE_SECONDS: u16 = 5;
/// Another mount is taken for lost after this many of its updates were left out...
const CHECK_UPDATES: u64 = 2;
/// ...and never earlier than this.
const CHECK_SECONDS_MIN: u64 = 5;
/// The longest that is waited beyond the interval of checks, in seconds.
const WAIT_SECONDS_MORE: u64 = 60;

/// The right to write a filesystem, which others see as long as this lives.
pub(super) struct Guard {
    place: Place,
    /// The number that was written last: as long as it is there, the right is this mount's.
    sequence: Arc<AtomicU32>,
    worker: Option<BackgroundWorker>,
    is_given_up: bool,
}

/// What a mount knows the block by as long as it has the right.
pub(super) struct Own {
    place: Place,
    sequence: Arc<AtomicU32>,
}

/// The block, past all caches: another host may write it.
#[derive(Clone)]
struct Place {
    device: Arc<dyn BlockDevice>,
    block: BlockNr,
    block_bytes: usize,
    rules: MmpRules,
    clock: Arc<dyn Clock>,
    node_name: Vec<u8>,
    update_interval: Duration,
}

impl Guard {
    /// Takes the right to write `fs`; `None` where it asks for no such protection. When the
    /// previous mount ended in a crash, this waits until it is certain that no host updates the block.
    ///
    /// # Errors
    /// `Busy` where another host has it mounted, or checks it.
    pub(super) fn take(
        fs: &FsContext,
        options: &MountOptions,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Self>> {
        let geometry = &fs.geometry;
        if !geometry.features.incompat.contains(Incompat::MMP) {
            return Ok(None);
        }
        let seconds = match fs.superblock.mmp_interval {
            0 => UPDATE_SECONDS,
            seconds => seconds,
        };
        let has_checksum = geometry.features.has_metadata_csum();
        let place = Place {
            device: Arc::clone(fs.device()),
            block: BlockNr(fs.superblock.mmp_block),
            block_bytes: geometry.block_bytes as usize,
            rules: MmpRules {
                checksum_seed: has_checksum.then_some(geometry.checksum_seed),
            },
            clock: Arc::clone(clock),
            node_name: options.node_name.clone(),
            update_interval: Duration::from_secs(seconds.into()),
        };
        if !geometry.contains(place.block, 1) {
            return Err(place.broken(MmpRule::Place).into());
        }
        let sequence = place.claim(&mut thread::sleep)?;
        Ok(Some(Self::new(place, sequence)))
    }

    fn new(place: Place, sequence: u32) -> Self {
        Self {
            place,
            sequence: Arc::new(AtomicU32::new(sequence)),
            worker: None,
            is_given_up: false,
        }
    }

    /// Updates the MMP block from now on, so that others see the mount is alive. When another host turns
    /// out to write it as well, this one writes nothing any more.
    pub(super) fn keep(&mut self, sb: &Arc<SuperBlock>) -> Result<()> {
        let (place, sb) = (self.place.clone(), Arc::downgrade(sb));
        let mut last = place.clock.monotonic();
        let sequence = Arc::clone(&self.sequence);
        self.worker = Some(
            BackgroundWorker::start("ext4-mmp", NextRun::In(place.update_interval), move || {
                let Some(sb) = sb.upgrade() else {
                    return NextRun::Never;
                };
                // Frozen, nothing is written; a host that took it meanwhile is found after the thaw.
                let Some(_writer) = sb.writers.try_enter() else {
                    return NextRun::In(place.update_interval);
                };
                let now = place.clock.monotonic();
                let is_late = now.saturating_sub(last) > place.check_interval();
                let expected = sequence.load(Ordering::Acquire);
                let updated = place.update(is_late.then_some(expected));
                match updated {
                    Ok(disk) => {
                        last = now;
                        sequence.store(disk.sequence.get(), Ordering::Release);
                        NextRun::In(place.update_interval)
                    }
                    Err(error) => {
                        ops::end_writing(&sb, &error);
                        NextRun::Never
                    }
                }
            })
            .map_err(|_| Condition::WouldBlock)?,
        );
        Ok(())
    }

    /// What shows whether the right is still this mount's.
    pub(super) fn own(&self) -> Own {
        Own {
            place: self.place.clone(),
            sequence: Arc::clone(&self.sequence),
        }
    }

    /// Marks the filesystem as no longer mounted.
    ///
    /// # Errors
    /// `Busy` where another host has taken it meanwhile: then nothing is written.
    pub(super) fn release(mut self) -> Result<()> {
        self.give_up()
    }

    fn give_up(&mut self) -> Result<()> {
        self.is_given_up = true;
        self.worker = None;
        let own = self.sequence.load(Ordering::Acquire);
        self.place.refuse_changed(own)?;
        self.place.change(DiskMmp::mark_clean)?;
        Ok(())
    }
}

impl Own {
    /// Checks that no other host took the filesystem while this one was silent. No update may be in progress.
    ///
    /// # Errors
    /// `Busy` where one has.
    pub(super) fn check(&self) -> Result<()> {
        let own = self.sequence.load(Ordering::Acquire);
        self.place.refuse_changed(own)
    }
}

/// A failed mount does not lock other hosts out.
impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_given_up {
            // Where the write fails, other hosts find out by waiting.
            let _ = self.give_up();
        }
    }
}

impl Place {
    fn broken(&self, rule: MmpRule) -> Corrupt<MmpRule> {
        Corrupt::new(platter_ondisk::Locus::block(self.block.0), rule)
    }

    fn offset(&self) -> u64 {
        self.block.0.saturating_mul(self.block_bytes as u64)
    }

    fn read_block(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes];
        self.device.read_at(self.offset(), &mut bytes)?;
        self.rules.verify(self.block.0, &bytes)?;
        Ok(bytes)
    }

    fn read(&self) -> Result<DiskMmp> {
        let bytes = self.read_block()?;
        let disk = DiskMmp::read_from_prefix(&bytes);
        Ok(disk.map_err(|_| self.broken(MmpRule::Magic))?.0)
    }

    fn change(&self, change: impl FnOnce(&mut DiskMmp)) -> Result<DiskMmp> {
        let mut bytes = self.read_block()?;
        let (disk, _) =
            DiskMmp::mut_from_prefix(&mut bytes).map_err(|_| self.broken(MmpRule::Magic))?;
        change(disk);
        let device_name = self.device.name().as_bytes();
        disk.sign(&self.node_name, device_name, self.clock.now());
        let changed = *disk;
        self.rules.seal(self.block.0, &mut bytes);
        self.device.write_at(self.offset(), &bytes)?;
        self.device.flush()?;
        Ok(changed)
    }

    /// How long a mount may be silent until it is taken for lost.
    fn check_interval(&self) -> Duration {
        let seconds = self.update_interval.as_secs().saturating_mul(CHECK_UPDATES);
        Duration::from_secs(seconds.max(CHECK_SECONDS_MIN))
    }

    /// Takes the block, and returns the number that was written there.
    fn claim(&self, wait: &mut dyn FnMut(Duration)) -> Result<u32> {
        let before = self.read()?;
        let bytes = self.read_block()?;
        let silence = match mmp::decode(&bytes) {
            MmpUse::Checking => return Err(Condition::Busy.into()),
            MmpUse::Clean => Duration::ZERO,
            MmpUse::Mounted => {
                let own = self.check_interval().as_secs();
                let theirs = u64::from(before.check_interval.get()).max(own);
                let doubled = theirs.saturating_mul(2).saturating_add(1);
                Duration::from_secs(doubled.min(theirs.saturating_add(WAIT_SECONDS_MORE)))
            }
        };
        if !silence.is_zero() {
            wait(silence);
            self.refuse_changed(before.sequence.get())?;
        }
        let interval = u16::try_from(self.check_interval().as_secs()).unwrap_or(u16::MAX);
        let random = self.clock.random_u64();
        let claimed = self.change(|disk| {
            disk.mark_mounted(random);
            disk.check_interval = interval.into();
        })?;
        if !silence.is_zero() {
            wait(silence);
        }
        self.refuse_changed(claimed.sequence.get())?;
        Ok(claimed.sequence.get())
    }

    fn refuse_changed(&self, sequence: u32) -> Result<()> {
        if self.read()?.sequence.get() == sequence {
            return Ok(());
        }
        Err(Condition::Busy.into())
    }

    /// Says that the filesystem is still mounted; `expected` is what the block must hold when that
    /// was not said for so long that others may have taken the filesystem.
    fn update(&self, expected: Option<u32>) -> Result<DiskMmp> {
        if let Some(sequence) = expected {
            self.refuse_changed(sequence)?;
        }
        self.change(DiskMmp::mark_again)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Guard")
            .field("block", &self.place.block)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Own")
            .field("block", &self.place.block)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use platter_block::MemoryDevice;
    use platter_vfs::{FixedClock, Timestamp};

    use super::*;

    /// The block of a filesystem whose last mount ended as `sequence` says.
    fn place(change: impl FnOnce(&mut DiskMmp)) -> Place {
        let device = Arc::new(MemoryDevice::new("memory", vec![0; 4096]));
        let place = Place {
            device,
            block: BlockNr(2),
            block_bytes: 1024,
            rules: MmpRules {
                checksum_seed: Some(7),
            },
            clock: Arc::new(FixedClock::new(Timestamp::default(), 1)),
            node_name: b"here".to_vec(),
            update_interval: Duration::from_secs(5),
        };
        let mut bytes = vec![0; 1024];
        let (disk, _) = DiskMmp::mut_from_prefix(&mut bytes).unwrap();
        disk.magic.set(0x004d_4d50);
        change(disk);
        place.rules.seal(2, &mut bytes);
        place.device.write_at(2048, &bytes).unwrap();
        place
    }

    #[test]
    fn a_clean_filesystem_is_taken_at_once_and_given_back() {
        let place = place(DiskMmp::mark_clean);
        let mut waits = 0;
        place.claim(&mut |_| waits += 1).unwrap();
        assert_eq!(waits, 0);
        let taken = place.read().unwrap();
        assert_eq!(&taken.node_name[..5], b"here\0");
        assert_eq!(taken.check_interval.get(), 10);
        let next = place.update(Some(taken.sequence.get())).unwrap();
        assert_ne!(next.sequence.get(), taken.sequence.get());
        let guard = Guard::new(place.clone(), next.sequence.get());
        guard.release().unwrap();
        let bytes = place.read_block().unwrap();
        assert_eq!(mmp::decode(&bytes), MmpUse::Clean);
    }

    #[test]
    fn a_mount_that_fails_gives_the_filesystem_back() {
        let place = place(DiskMmp::mark_clean);
        let own = place.claim(&mut |_| ()).unwrap();
        drop(Guard::new(place.clone(), own));
        let bytes = place.read_block().unwrap();
        assert_eq!(mmp::decode(&bytes), MmpUse::Clean);
    }

    #[test]
    fn what_another_host_took_is_not_given_back() {
        let place = place(DiskMmp::mark_clean);
        let guard = Guard::new(place.clone(), place.claim(&mut |_| ()).unwrap());
        guard.own().check().unwrap();
        place.change(|disk| disk.mark_mounted(77)).unwrap();
        assert!(guard.own().check().is_err());
        assert!(guard.release().is_err());
        assert_eq!(place.read().unwrap().sequence.get(), 78);
    }

    #[test]
    fn a_silent_mount_is_waited_for_and_taken_over() {
        let place = place(|disk| disk.mark_mounted(9));
        let mut waits = Vec::new();
        place.claim(&mut |wait| waits.push(wait.as_secs())).unwrap();
        assert_eq!(waits, [21, 21]);
    }

    #[test]
    fn a_mount_that_lives_keeps_others_out() {
        for write_at in [1, 2] {
            let place = place(|disk| disk.mark_mounted(9));
            let mut waits = 0;
            let claimed = place.claim(&mut |_| {
                waits += 1;
                if waits == write_at {
                    place.update(None).unwrap();
                }
            });
            assert!(claimed.is_err());
            assert_eq!(waits, write_at);
        }
    }

    #[test]
    fn a_check_keeps_others_out() {
        let place = place(|disk| disk.sequence.set(0xe24d_4d50));
        assert!(place.claim(&mut |_| ()).is_err());
    }

    #[test]
    fn a_late_update_does_not_overwrite_another_mount() {
        let place = place(DiskMmp::mark_clean);
        place.claim(&mut |_| ()).unwrap();
        let own = place.read().unwrap().sequence.get();
        place.change(|disk| disk.mark_mounted(77)).unwrap();
        assert!(place.update(Some(own)).is_err());
    }
}
