//! The chunks of a filesystem by logical address.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use platter_ondisk::{Corrupt, Locus, rules};

use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::ChunkItem;

rules! {
    /// The rules of the chunks together.
    pub enum ChunkMapRule of "chunk map" {
        /// No two chunks have an address in common.
        Overlap => "chunks overlap",
        /// What is read or written is in a chunk.
        Unmapped => "unable to find chunk map for logical address",
    }
}

/// The chunks, ordered by address.
///
/// # Invariants
/// - No two chunks overlap.
#[derive(Debug, Clone, Default)]
pub struct ChunkMap {
    chunks: Vec<ChunkItem>,
    /// Shared with the maps after it, up to the one in which a chunk has other stripes.
    stripes: Arc<()>,
}

/// The readers and writers by maps in which a chunk has its former stripes.
#[derive(Debug)]
#[must_use]
pub struct FormerReaders(Arc<()>);

impl FormerReaders {
    /// Returns when nothing is read or written by such a map any more. The caller has none.
    pub fn wait(self) {
        wait_until_unshared(&self.0);
    }
}

/// Returns when no other thread has a value that none gets any more.
pub(crate) fn wait_until_unshared<T>(value: &Arc<T>) {
    const PAUSE: Duration = Duration::from_micros(200);
    while Arc::strong_count(value) > 1 {
        thread::sleep(PAUSE);
    }
    fence(Ordering::Acquire);
}

impl ChunkMap {
    /// The map of these chunks. A chunk that is listed twice, as are those of the superblock, is one.
    pub fn new(mut chunks: Vec<ChunkItem>) -> Result<Self, Corrupt<ChunkMapRule>> {
        chunks.sort_by_key(|chunk| chunk.start);
        chunks.dedup();
        let mut end = LogicalAddr(0);
        for chunk in &chunks {
            if chunk.start < end {
                let locus = Locus::block(chunk.start.0);
                return Err(Corrupt::new(locus, ChunkMapRule::Overlap));
            }
            end = LogicalAddr(chunk.start.0.saturating_add(chunk.len_bytes));
        }
        Ok(Self {
            chunks,
            stripes: Arc::default(),
        })
    }

    /// The map with one more chunk.
    pub fn with(&self, chunk: ChunkItem) -> Result<Self, Corrupt<ChunkMapRule>> {
        Ok(Self {
            stripes: Arc::clone(&self.stripes),
            ..Self::new(self.chunks.iter().cloned().chain([chunk]).collect())?
        })
    }

    /// The map with another chunk in the place of the one with its addresses.
    pub fn replacing(&self, chunk: ChunkItem) -> Result<Self, Corrupt<ChunkMapRule>> {
        let others = self.without(chunk.start).chunks;
        Self::new(others.into_iter().chain([chunk]).collect())
    }

    /// The same chunks, as a map whose readers are not those of the maps before it.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            stripes: Arc::default(),
        }
    }

    /// The readers and writers by it, or by maps before it in which all chunks have the same stripes.
    pub fn readers(&self) -> FormerReaders {
        FormerReaders(Arc::clone(&self.stripes))
    }

    /// The map without the chunk at an address.
    #[must_use]
    pub fn without(&self, start: LogicalAddr) -> Self {
        let others = self.chunks.iter().filter(|chunk| chunk.start != start);
        Self {
            chunks: others.cloned().collect(),
            stripes: Arc::clone(&self.stripes),
        }
    }

    /// The chunk that an address is in.
    pub fn find(&self, logical: LogicalAddr) -> Result<&ChunkItem, Corrupt<ChunkMapRule>> {
        let after = self.chunks.partition_point(|chunk| chunk.start <= logical);
        let chunk = after.checked_sub(1).and_then(|at| self.chunks.get(at));
        let inside = |chunk: &&ChunkItem| logical.0 - chunk.start.0 < chunk.len_bytes;
        let missing = || Corrupt::new(Locus::block(logical.0), ChunkMapRule::Unmapped);
        chunk.filter(inside).ok_or_else(missing)
    }

    /// All chunks in order of address.
    pub fn iter(&self) -> impl Iterator<Item = &ChunkItem> {
        self.chunks.iter()
    }

    /// The address after the last chunk.
    #[must_use]
    pub fn end(&self) -> LogicalAddr {
        self.chunks.last().map_or(LogicalAddr(0), |chunk| {
            LogicalAddr(chunk.start.0 + chunk.len_bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::chunk_item::Profile;
    use crate::ondisk::chunk_item::tests::sample;

    #[test]
    fn addresses_lead_to_their_chunk() {
        let first = sample(1 << 20, Profile::Single, 1);
        let second = sample(4 << 20, Profile::Single, 1);
        let map = ChunkMap::new(vec![second.clone(), first.clone(), first.clone()]).unwrap();
        assert_eq!(map.iter().count(), 2);
        let find = |at| map.find(LogicalAddr(at)).map_err(|corrupt| corrupt.rule);
        assert_eq!(find((2 << 20) - 1), Ok(&first));
        assert_eq!(find(4 << 20), Ok(&second));
        for at in [0, 2 << 20, 5 << 20, u64::MAX] {
            assert_eq!(find(at), Err(ChunkMapRule::Unmapped));
        }
        assert_eq!(map.end(), LogicalAddr(5 << 20));
    }

    #[test]
    fn overlapping_chunks_are_refused() {
        let chunks = vec![
            sample(1 << 20, Profile::Single, 1),
            sample((2 << 20) - 4096, Profile::Single, 1),
        ];
        let corrupt = ChunkMap::new(chunks).unwrap_err();
        assert_eq!(corrupt.rule, ChunkMapRule::Overlap);
    }
}
