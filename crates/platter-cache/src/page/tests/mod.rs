//! Mappings over a file in memory that counts, fails, waits and panics.

mod evicting;
mod model;
mod reading;
mod stress;
mod units;
mod writing;

use std::collections::HashSet;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use super::{AddressSpace, Mapping, PAGE_BYTES, WritableSpace};
use crate::MemoryBudget;
use crate::xarray::{Content, Order};

const PAGE: u64 = PAGE_BYTES as u64;

/// Which page could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bad(u64);

#[derive(Default)]
struct File {
    bytes: Mutex<Vec<u8>>,
    size: AtomicU64,
    reads: Mutex<Vec<Range<u64>>>,
    writes: Mutex<Vec<Range<u64>>>,
    /// Pages that cannot be read, and those that cannot be written.
    unreadable: Mutex<HashSet<u64>>,
    unwritable: Mutex<HashSet<u64>>,
    panics: AtomicBool,
    /// Each read waits at it, where set.
    gate: Option<Barrier>,
    /// Pages of a block, of which only whole ones are written; zero stands for one.
    block_pages: u64,
}

impl File {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            size: AtomicU64::new(bytes.len() as u64),
            bytes: Mutex::new(bytes),
            ..Self::default()
        }
    }

    /// A file of pages, each filled with its number.
    fn of_pages(pages: u64) -> Self {
        let number = |page: u64| u8::try_from(page % 251).unwrap();
        Self::new(
            (0..pages)
                .flat_map(|page| [number(page); PAGE_BYTES])
                .collect(),
        )
    }

    /// A file that is one hole.
    fn sparse(size: u64) -> Self {
        let file = Self::default();
        file.size.store(size, Ordering::Relaxed);
        file
    }

    fn reads(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }

    fn writes(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    fn check(bad: &Mutex<HashSet<u64>>, pages: &Range<u64>) -> Result<(), Bad> {
        let bad = bad.lock().unwrap();
        let found = pages.clone().find(|page| bad.contains(page));
        found.map_or(Ok(()), |page| Err(Bad(page)))
    }
}

impl AddressSpace for File {
    type Error = Bad;

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Bad> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        assert_eq!((offset % PAGE, len % PAGE_BYTES), (0, 0));
        let pages = offset / PAGE..(offset + len as u64) / PAGE;
        self.reads.lock().unwrap().push(pages.clone());
        if let Some(gate) = &self.gate {
            gate.wait();
        }
        assert!(!self.panics.load(Ordering::Relaxed), "the driver has a bug");
        Self::check(&self.unreadable, &pages)?;
        let bytes = self.bytes.lock().unwrap();
        let mut at = usize::try_from(offset).unwrap();
        let size = usize::try_from(self.size_bytes()).unwrap().min(bytes.len());
        for buf in bufs {
            let there = bytes[..size].get(at..).unwrap_or_default();
            let count = there.len().min(buf.len());
            buf[..count].copy_from_slice(&there[..count]);
            buf[count..].fill(0);
            at += buf.len();
        }
        Ok(())
    }
}

impl WritableSpace for File {
    fn extend(&self, end: u64) {
        self.size.fetch_max(end, Ordering::Relaxed);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Bad> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let block = self.block_pages.max(1) * PAGE;
        let end = offset + len as u64;
        assert!(offset.is_multiple_of(block), "from a block on");
        assert!(
            end.is_multiple_of(block) || end == self.size_bytes(),
            "whole blocks"
        );
        let pages = offset / PAGE..end.div_ceil(PAGE);
        self.writes.lock().unwrap().push(pages.clone());
        Self::check(&self.unwritable, &pages)?;
        let mut bytes = self.bytes.lock().unwrap();
        let mut at = usize::try_from(offset).unwrap();
        for buf in bufs {
            if bytes.len() < at + buf.len() {
                bytes.resize(at + buf.len(), 0);
            }
            bytes[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }
}

/// One request.
fn one(pages: Range<u64>) -> [Range<u64>; 1] {
    [pages]
}

fn mapping(limit_bytes: u64) -> (Mapping<Bad>, Arc<MemoryBudget>) {
    let budget = Arc::new(MemoryBudget::new(limit_bytes));
    (Mapping::new(Arc::clone(&budget)), budget)
}

/// A mapping of blocks of `2^order` pages.
fn mapping_of_blocks(order: u8, limit_bytes: u64) -> (Mapping<Bad>, Arc<MemoryBudget>) {
    let budget = Arc::new(MemoryBudget::new(limit_bytes));
    let order = Order::new(order).unwrap();
    (Mapping::with_min_order(Arc::clone(&budget), order), budget)
}

/// Checks that every folio holds whole blocks of `2^order` pages.
fn assert_whole_blocks(mapping: &Mapping<Bad>, order: u8) {
    let mut locked = mapping.core().pages.lock();
    let mut cursor = locked.cursor(0, Order::ZERO);
    let mut found = cursor.find(u64::MAX);
    while let Some(entry) = found {
        if let Content::Item(item) = entry.content {
            let folio = item.try_get().unwrap();
            assert!(folio.order().get() >= order, "at page {}", entry.index);
            assert!(folio.index().is_multiple_of(folio.order().span()));
        }
        found = cursor.find_next(u64::MAX);
    }
}

fn read(mapping: &Mapping<Bad>, file: &File, offset: u64, len: usize) -> Result<Vec<u8>, Bad> {
    let mut buf = vec![0xee; len];
    let count = mapping.read_at(file, offset, &mut buf)?;
    assert!(
        buf[count..].iter().all(|&byte| byte == 0xee),
        "nothing is written beyond the end"
    );
    buf.truncate(count);
    Ok(buf)
}

/// The first byte of a page.
fn byte(mapping: &Mapping<Bad>, file: &File, page: u64) -> Result<u8, Bad> {
    read(mapping, file, page * PAGE, 1).map(|bytes| bytes[0])
}
