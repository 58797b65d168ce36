//! Where the memory filesystem keeps pages of file contents.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use platter_block::lock::Mutex;
use platter_block::{IoError, Operation};

use platter_vfs::file::copy_into;

/// The unit in which files take memory, in bytes.
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const PAGE: u64 = PAGE_BYTES as u64;
pub(super) const PAGE_BITS: u32 = 12;
/// The same, as attributes show it.
pub(super) const BLOCK_BYTES: u32 = 4096;
const _: () = assert!(BLOCK_BYTES as usize == PAGE_BYTES && PAGE == 1 << PAGE_BITS);

/// Pages of all files. Their addresses are bytes, as on a device.
///
/// # Invariants
/// An address is never used twice, so that no access to a page that was freed goes unseen.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// The pages that were written.
    pages: Mutex<Pages>,
    /// Whether every write fails.
    fails: AtomicBool,
}

#[derive(Debug, Default)]
struct Pages {
    next: u64,
    written: HashMap<u64, Box<[u8; PAGE_BYTES]>>,
}

/// A page of files, which is freed when it is dropped.
#[derive(Debug)]
pub(super) struct Frame {
    disk: Arc<Disk>,
    number: u64,
}

impl Disk {
    /// Allocates consecutive pages. Returns the address of the first.
    pub(super) fn allocate(&self, count: u64) -> u64 {
        let mut pages = self.pages.lock();
        let first = pages.next;
        pages.next += count;
        first << PAGE_BITS
    }

    /// Makes every write fail from now on, or none any more.
    pub(super) fn fail_writes(&self, fails: bool) {
        self.fails.store(fails, Ordering::Release);
    }

    /// Writes whole pages from an address on.
    ///
    /// # Errors
    /// EIO while [writes fail](Self::fail_writes).
    pub(super) fn write(&self, address: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        if self.fails.load(Ordering::Acquire) {
            let len = bufs.iter().map(|buf| buf.len() as u64).sum();
            let error = io::Error::from(io::ErrorKind::Other);
            return Err(IoError::new(
                &"memory".into(),
                Operation::Write,
                address,
                len,
                error,
            ));
        }
        let mut pages = self.pages.lock();
        let mut number = address >> PAGE_BITS;
        let mut page = Box::new([0; PAGE_BYTES]);
        let mut filled = 0;
        for mut bytes in bufs.iter().map(|buf| &**buf) {
            while !bytes.is_empty() {
                let (now, later) = bytes.split_at(bytes.len().min(PAGE_BYTES - filled));
                page[filled..filled + now.len()].copy_from_slice(now);
                filled += now.len();
                bytes = later;
                if filled == PAGE_BYTES {
                    let full = std::mem::replace(&mut page, Box::new([0; PAGE_BYTES]));
                    pages.written.insert(number, full);
                    number += 1;
                    filled = 0;
                }
            }
        }
        assert_eq!(filled, 0, "pages are written as a whole");
        Ok(())
    }

    /// Fills `bufs` with pages at their byte offsets in them, and with zeros where there is none.
    pub(super) fn read(&self, frames: &[(u64, u64)], bufs: &mut [IoSliceMut<'_>]) {
        for buf in &mut *bufs {
            buf.fill(0);
        }
        let pages = self.pages.lock();
        for &(offset, address) in frames {
            let page = pages.written.get(&(address >> PAGE_BITS));
            copy_into(
                bufs,
                offset,
                &**page.expect("a page is read while a file has it"),
            );
        }
    }

    /// Frees pages from an address on.
    pub(super) fn free(&self, address: u64, count: u64) {
        let first = address >> PAGE_BITS;
        self.forget(first..first + count);
    }

    #[cfg(test)]
    pub(super) fn page_count(&self) -> usize {
        self.pages.lock().written.len()
    }

    fn forget(&self, numbers: Range<u64>) {
        let mut pages = self.pages.lock();
        for number in numbers {
            pages.written.remove(&number);
        }
    }
}

impl Frame {
    /// The page at an address that was allocated.
    pub(super) fn new(disk: &Arc<Disk>, address: u64) -> Self {
        Self {
            disk: Arc::clone(disk),
            number: address >> PAGE_BITS,
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.number * PAGE
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.disk.forget(self.number..self.number + 1);
    }
}
