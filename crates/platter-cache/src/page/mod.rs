//! The page cache: a file's contents by page index.

use std::io::IoSliceMut;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::MemoryBudget;

/// What a mapping is filled from: the driver's side of one file.
pub trait AddressSpace {
    /// The driver's error. A clone reaches every reader that waited for the failed page.
    type Error: Clone + Send + Sync + 'static;

    /// The file's size in bytes at this moment.
    fn size_bytes(&self) -> u64;

    /// Fills `bufs`, which lie one after the other in the file from byte `offset`, with what the
    /// file holds: holes and bytes beyond the end of the file are zeros. `offset` is a multiple of
    /// the page size and so is the length of every buffer.
    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Self::Error>;
}

/// The cached pages of one file, whose driver fails with `E`.
#[derive(Debug)]
pub struct Mapping<E> {
    budget: Arc<MemoryBudget>,
    error: PhantomData<fn() -> E>,
}

impl<E: Clone + Send + Sync + 'static> Mapping<E> {
    /// An empty mapping whose pages are charged to `budget`.
    #[must_use]
    pub fn new(budget: Arc<MemoryBudget>) -> Self {
        Self {
            budget,
            error: PhantomData,
        }
    }

    /// The budget its pages are charged to.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Reads up to `buf.len()` bytes at `offset`, from the cache or from `source`.
    ///
    /// Returns how many bytes there were before the end of the file.
    pub fn read_at<S: AddressSpace<Error = E>>(
        &self,
        source: &S,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, E> {
        let end = source
            .size_bytes()
            .min(offset.saturating_add(buf.len() as u64));
        let Some(count) = end.checked_sub(offset).filter(|&count| count > 0) else {
            return Ok(0);
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(buf.len());
        let first = offset - offset % 4096;
        let skip = usize::try_from(offset - first).unwrap_or_default();
        let mut pages = vec![0; (skip + count).next_multiple_of(4096)];
        source.read_folios(first, &mut [IoSliceMut::new(&mut pages)])?;
        buf[..count].copy_from_slice(&pages[skip..skip + count]);
        Ok(count)
    }
}
