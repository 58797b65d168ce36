//! A device that takes the place of another one while that is written.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use platter_block::{BlockDevice, Geometry, IoError};

use crate::ondisk::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};

/// Writes go to a device and to its replacement, reads to the device. Superblocks stay as they are on the replacement:
/// without one it belongs to no filesystem.
///
/// # Invariants
/// What could not be written to the replacement is either found by [`rely`](Self::rely), or an error of the write.
#[derive(Debug)]
pub struct MirrorDevice {
    device: Arc<dyn BlockDevice>,
    replacement: Arc<dyn BlockDevice>,
    /// What the replacement is: it changes once.
    state: AtomicU8,
}

/// The replacement has what was written so far.
const WRITTEN: u8 = 0;
/// Something could not be written to the replacement. Nothing is any more.
const FAILED: u8 = 1;
/// The replacement is about to be the device.
const RELIED_ON: u8 = 2;

impl MirrorDevice {
    /// The device and its replacement, which is at least as long.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, replacement: Arc<dyn BlockDevice>) -> Self {
        Self {
            device,
            replacement,
            state: AtomicU8::new(WRITTEN),
        }
    }

    /// Whether something could not be written to the replacement: writers do not see that, until it is relied on.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == FAILED
    }

    /// From now on what cannot be written to the replacement is an error of the write. Returns `false` if something could
    /// not be written before: then nothing changes.
    #[must_use]
    pub fn rely(&self) -> bool {
        self.become_from_written(RELIED_ON)
    }

    /// Writes nothing to the replacement from now on, unless it is [relied on](Self::rely).
    pub fn forsake(&self) {
        let _ = self.become_from_written(FAILED);
    }

    fn become_from_written(&self, state: u8) -> bool {
        let order = Ordering::SeqCst;
        let before = self.state.compare_exchange(WRITTEN, state, order, order);
        before.is_ok()
    }

    fn mirror(
        &self,
        write: impl FnOnce(&dyn BlockDevice) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        if self.has_failed() {
            return Ok(());
        }
        write(&*self.replacement).or_else(|error| {
            self.forsake();
            if self.has_failed() {
                Ok(())
            } else {
                Err(error)
            }
        })
    }
}

/// Whether a write is that of a superblock: nothing else is written at its place.
fn is_superblock(offset: u64, len: usize) -> bool {
    SUPERBLOCK_OFFSETS.contains(&offset) && len == SUPERBLOCK_BYTES
}

impl BlockDevice for MirrorDevice {
    fn name(&self) -> &Arc<str> {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.device.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.device.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        if !is_superblock(offset, buf.len()) {
            let mirrored = self.mirror(|replacement| replacement.write_at(offset, buf));
            return self.device.write_at(offset, buf).and(mirrored);
        }
        self.device.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        let mirrored = self.mirror(|replacement| replacement.write_vectored_at(offset, bufs));
        self.device.write_vectored_at(offset, bufs).and(mirrored)
    }

    fn flush(&self) -> Result<(), IoError> {
        let mirrored = self.mirror(|replacement| replacement.flush());
        self.device.flush().and(mirrored)
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.device.discard(range)
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.device.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.device.will_need(range);
    }
}

#[cfg(test)]
mod tests {
    use platter_block::sim::{Effect, Fault, FaultDevice, When};
    use platter_block::{MemoryDevice, Operation};

    use super::*;

    #[test]
    fn failed_write_is_found_when_relied_on_or_an_error_later() {
        let memory = || Arc::new(MemoryDevice::new("memory", vec![0; 1 << 20]));
        let device = memory();
        let failing = || {
            let faults = FaultDevice::new(memory());
            faults.arm(Fault {
                operation: Operation::Write,
                when: When::Always,
                effect: Effect::Tear { seed: 0 },
            });
            MirrorDevice::new(device.clone(), Arc::new(faults))
        };
        let before = failing();
        before.write_at(4096, &[1; 512]).unwrap();
        assert!(before.has_failed());
        assert!(!before.rely());
        // Writers do not meet its errors afterwards either.
        before.write_at(4096, &[1; 512]).unwrap();
        let forsaken = failing();
        forsaken.forsake();
        forsaken.write_at(4096, &[1; 512]).unwrap();
        assert!(!forsaken.rely());
        let after = failing();
        assert!(after.rely());
        after.write_at(8192, &[2; 512]).unwrap_err();
        // The device itself has both.
        let mut bytes = [0; 512];
        for (at, byte) in [(4096, 1), (8192, 2)] {
            device.read_at(at, &mut bytes).unwrap();
            assert_eq!(bytes, [byte; 512]);
        }
    }
}
