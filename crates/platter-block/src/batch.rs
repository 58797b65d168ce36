//! A device that holds writes back until the next flush and then submits them as one batch.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::lock::{RwLock, rank};

use crate::device::check_span;
use crate::{BlockDevice, Geometry, IoError, Operation, OverlayDevice, OverlayOptions};

/// Granularity of held writes in bytes: the smallest block size of a filesystem.
const CHUNK_BYTES: u32 = 1024;

/// One contiguous run: its byte offset on the device and its bytes.
pub type BatchPiece = (u64, Vec<u8>);

/// Writes a batch in such a way that killing this process does not interrupt it.
pub trait BatchWriter: Send + Sync + std::fmt::Debug {
    /// Writes all pieces, which are in ascending order and do not overlap.
    fn write(&self, pieces: &[BatchPiece]) -> Result<(), IoError>;
}

/// A device that passes the writes since the last flush to the device below together, at the flush.
///
/// When this process is killed, the device below holds the state of one of the flushes.
#[derive(Debug)]
pub struct BatchDevice {
    base: Arc<dyn BlockDevice>,
    held: OverlayDevice,
    writer: Arc<dyn BatchWriter>,
    /// Shared by writers; exclusive for the duration of a flush.
    turns: RwLock<(), { rank(16, 1) }>,
}

impl BatchDevice {
    /// Creates a device over `base` whose batches are written by `writer`.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>, writer: Arc<dyn BatchWriter>) -> Self {
        let options = OverlayOptions {
            chunk_bytes: CHUNK_BYTES,
            limit_bytes: u64::MAX,
        };
        Self {
            held: OverlayDevice::new(Arc::clone(&base), options),
            base,
            writer,
            turns: RwLock::new(()),
        }
    }

    /// Returns the held writes, with adjacent chunks merged.
    fn batch(&self) -> Vec<BatchPiece> {
        let mut pieces: Vec<BatchPiece> = Vec::new();
        for (offset, chunk) in self.held.held() {
            match pieces.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == offset => {
                    bytes.extend_from_slice(&chunk);
                }
                _ => pieces.push((offset, chunk.to_vec())),
            }
        }
        pieces
    }
}

impl BlockDevice for BatchDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.held.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.held.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let _turn = self.turns.read();
        self.held.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        let _turn = self.turns.read();
        self.held.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        let _turn = self.turns.write();
        let batch = self.batch();
        if !batch.is_empty() {
            self.writer.write(&batch)?;
            self.held.discard(0..self.geometry().len_bytes)?;
        }
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        // Held writes of the range are still submitted: a discard is a hint.
        check_span(self, Operation::Discard, &range)
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.held.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests {
    use crate::lock::Mutex;

    use super::*;
    use crate::MemoryDevice;

    #[derive(Debug)]
    struct Writer {
        device: Arc<MemoryDevice>,
        batches: Mutex<Vec<Vec<(u64, usize)>>>,
    }

    impl BatchWriter for Writer {
        fn write(&self, pieces: &[BatchPiece]) -> Result<(), IoError> {
            let places = pieces.iter().map(|(offset, bytes)| (*offset, bytes.len()));
            self.batches.lock().push(places.collect());
            for (offset, bytes) in pieces {
                self.device.write_at(*offset, bytes)?;
            }
            Ok(())
        }
    }

    #[test]
    fn writes_arrive_together_at_the_flush() {
        let device = Arc::new(MemoryDevice::new("disk", vec![0; 8192]));
        let writer = Arc::new(Writer {
            device: Arc::clone(&device),
            batches: Mutex::default(),
        });
        let burst = BatchDevice::new(
            Arc::<MemoryDevice>::clone(&device),
            Arc::<Writer>::clone(&writer),
        );
        burst.write_at(1024, &[1; 2048]).unwrap();
        burst.write_at(7000, &[2; 8]).unwrap();
        let mut bytes = [0; 8];
        burst.read_at(7000, &mut bytes).unwrap();
        assert_eq!(bytes, [2; 8]);
        assert!(device.snapshot() == vec![0; 8192]);
        burst.flush().unwrap();
        burst.flush().unwrap();
        assert_eq!(*writer.batches.lock(), [vec![(1024, 2048), (6144, 1024)]]);
        let found = device.snapshot();
        assert!(found[1024..3072] == [1; 2048] && found[7000..7008] == [2; 8]);
        assert!(burst.write_at(8192, &[0]).is_err());
    }
}
