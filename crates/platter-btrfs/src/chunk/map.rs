//! The chunks of a filesystem by logical address.

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
        Ok(Self { chunks })
    }

    /// The map with one more chunk.
    pub fn with(&self, chunk: ChunkItem) -> Result<Self, Corrupt<ChunkMapRule>> {
        Self::new(self.chunks.iter().cloned().chain([chunk]).collect())
    }

    /// The map without the chunk at an address.
    #[must_use]
    pub fn without(&self, start: LogicalAddr) -> Self {
        let others = self.chunks.iter().filter(|chunk| chunk.start != start);
        Self {
            chunks: others.cloned().collect(),
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
