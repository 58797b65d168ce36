//! Direct I/O: transfers that bypass the host's page cache (`O_DIRECT`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};

use crate::lock::{Mutex, RwLock, rank};
use rustix::io::{Errno, pread};

use super::transfer;
use crate::device::total_len;

/// The size of a bounce buffer, and so of the largest request that needs one.
const BOUNCE_BYTES: usize = 1 << 20;
/// Number of bounce buffers kept for later requests.
const BOUNCE_KEPT_MAX: usize = 4;
/// The largest supported alignment in bytes. Real devices require 512 bytes to 64 KiB.
pub(super) const ALIGN_BYTES_MAX: u32 = 1 << 20;

/// The descriptor for direct I/O and its alignment.
///
/// The kernel accepts only aligned offsets, lengths and memory. A read is widened to the alignment
/// and uses an aligned bounce buffer if the caller's is not aligned. A write cannot be widened
/// without racing against writes to adjacent bytes, so a write of partial blocks goes through the
/// page cache.
#[derive(Debug)]
pub(super) struct DirectFile {
    file: OwnedFd,
    /// A power of two.
    align: usize,
    /// Shared by direct writes, exclusive for a write through the page cache: the kernel keeps the
    /// two coherent only if they do not run concurrently on one page.
    pages: RwLock<(), { rank(16, 5) }>,
    /// Aligned buffers for reuse.
    spare: Mutex<Vec<AlignedBuffer>>,
}

impl DirectFile {
    /// Sets up direct I/O on `file`, whose offsets and memory must be aligned to `align_bytes`.
    ///
    /// # Panics
    /// If the alignment is not a power of two, or above [`ALIGN_BYTES_MAX`].
    pub(super) fn new(file: OwnedFd, align_bytes: u32) -> Self {
        assert!(align_bytes.is_power_of_two(), "alignment {align_bytes}");
        assert!(align_bytes <= ALIGN_BYTES_MAX, "alignment {align_bytes}");
        Self {
            file,
            align: align_bytes as usize,
            pages: RwLock::new(()),
            spare: Mutex::default(),
        }
    }

    /// Fills `bufs` one after the other from `offset`.
    pub(super) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        if self.is_aligned(offset) && bufs.iter().all(|buf| self.is_aligned_memory(buf)) {
            return transfer::read_vectored(&self.file, offset, bufs);
        }
        self.with_bounce(|bounce| self.read_bounced(offset, bufs, bounce))
    }

    /// Writes `bufs` one after the other at `offset`; `cached` is a descriptor of the same file
    /// that uses the page cache.
    pub(super) fn write(
        &self,
        cached: impl AsFd,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> io::Result<()> {
        if !self.is_aligned(offset) || !self.is_aligned(total_len(bufs) as u64) {
            let _alone = self.pages.write();
            return transfer::write_vectored(cached, offset, bufs);
        }
        let _shared = self.pages.read();
        if bufs.iter().all(|buf| self.is_aligned_memory(buf)) {
            return transfer::write_vectored(&self.file, offset, bufs);
        }
        self.with_bounce(|bounce| self.write_bounced(offset, bufs, bounce))
    }

    fn read_bounced(
        &self,
        mut offset: u64,
        bufs: &mut [IoSliceMut<'_>],
        bounce: &mut [u8],
    ) -> io::Result<()> {
        let mut left = total_len(bufs);
        let mut targets = bufs.iter_mut();
        let mut target: &mut [u8] = &mut [];
        while left > 0 {
            let skip = self.misalignment(offset);
            let count = left.min(BOUNCE_BYTES - skip);
            self.fill(offset - skip as u64, skip + count, bounce)?;
            let mut bytes = &bounce[skip..skip + count];
            while !bytes.is_empty() {
                if target.is_empty() {
                    target = targets.next().map_or(&mut [], |buf| &mut **buf);
                    continue;
                }
                let both = bytes.len().min(target.len());
                let (now, later) = bytes.split_at(both);
                let (filled, open) = mem::take(&mut target).split_at_mut(both);
                filled.copy_from_slice(now);
                (bytes, target) = (later, open);
            }
            offset += count as u64;
            left -= count;
        }
        Ok(())
    }

    fn write_bounced(
        &self,
        mut offset: u64,
        bufs: &[IoSlice<'_>],
        bounce: &mut [u8],
    ) -> io::Result<()> {
        let mut used = 0;
        for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(BOUNCE_BYTES - used));
                bounce[used..used + now.len()].copy_from_slice(now);
                used += now.len();
                rest = later;
                if used == BOUNCE_BYTES {
                    transfer::write(&self.file, offset, bounce)?;
                    offset += used as u64;
                    used = 0;
                }
            }
        }
        transfer::write(&self.file, offset, &bounce[..used])
    }

    /// Reads at least the first `needed` bytes of `bounce` from the aligned offset `offset`.
    fn fill(&self, offset: u64, needed: usize, bounce: &mut [u8]) -> io::Result<()> {
        let widened = needed.next_multiple_of(self.align);
        let mut done = 0;
        while done < needed {
            // A transfer ends early at the end of the file, and may elsewhere; the next one must
            // begin at an aligned offset again.
            done -= done % self.align;
            match pread(&self.file, &mut bounce[done..widened], offset + done as u64) {
                Ok(count) if count < self.align && done + count < needed => {
                    return Err(transfer::shrunk());
                }
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn with_bounce<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let spare = self.spare.lock().pop();
        let mut buffer = spare.unwrap_or_else(|| AlignedBuffer::new(self.align));
        let result = work(buffer.bytes());
        let mut spare = self.spare.lock();
        if spare.len() < BOUNCE_KEPT_MAX {
            spare.push(buffer);
        }
        result
    }

    fn misalignment(&self, offset: u64) -> usize {
        // The alignment is at most 1 MiB, and so is the remainder.
        usize::try_from(offset % self.align as u64).unwrap_or_default()
    }

    fn is_aligned(&self, offset: u64) -> bool {
        self.misalignment(offset) == 0
    }

    fn is_aligned_memory(&self, buf: &[u8]) -> bool {
        buf.as_ptr().addr().is_multiple_of(self.align) && buf.len().is_multiple_of(self.align)
    }
}

/// [`BOUNCE_BYTES`] of memory at an aligned address.
#[derive(Debug)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    fn new(align: usize) -> Self {
        let memory = vec![0; BOUNCE_BYTES + align];
        let address = memory.as_ptr().addr();
        let start = address.next_multiple_of(align) - address;
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..BOUNCE_BYTES]
    }
}
