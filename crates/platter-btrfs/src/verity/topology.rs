//! Where the blocks of a Merkle tree lie.

use crate::ondisk::verity::FsVerity;

/// The most levels, as in the kernel.
const LEVELS_MAX: usize = 8;

/// The levels of a Merkle tree, which lie one after the other, the root first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topology {
    /// Where each level begins, in blocks; the first is that above the data.
    starts: Vec<u64>,
    block_bytes: u64,
}

impl Topology {
    /// The levels of a file's tree; `None` if they are too many. A file of one block has none: its hash is that of
    /// the root.
    pub(super) fn of(verity: &FsVerity) -> Option<Self> {
        let block_bytes = u64::from(verity.block_bytes);
        let per_block = block_bytes / verity.algorithm.digest_bytes() as u64;
        let mut counts = Vec::new();
        let mut blocks = verity.data_bytes.div_ceil(block_bytes);
        while blocks > 1 {
            if counts.len() == LEVELS_MAX {
                return None;
            }
            blocks = blocks.div_ceil(per_block);
            counts.push(blocks);
        }
        let mut start = 0u64;
        let mut starts: Vec<u64> = Vec::new();
        for count in counts.iter().rev() {
            starts.push(start);
            start = start.checked_add(*count)?;
        }
        // All of the tree has an address.
        start.checked_mul(block_bytes)?;
        starts.reverse();
        Some(Self {
            starts,
            block_bytes,
        })
    }

    /// How many levels there are.
    pub(super) fn levels(&self) -> usize {
        self.starts.len()
    }

    /// Where a block of a level begins.
    pub(super) fn offset(&self, level: usize, number: u64) -> u64 {
        let start = self.starts.get(level).copied().unwrap_or_default();
        start
            .saturating_add(number)
            .saturating_mul(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::verity::HashAlgorithm;

    fn of(data_bytes: u64, block_bytes: u32, algorithm: HashAlgorithm) -> Option<Topology> {
        Topology::of(&FsVerity {
            algorithm,
            block_bytes,
            salt: Vec::new(),
            data_bytes,
            root_hash: [0; 64],
        })
    }

    #[test]
    fn levels_lie_from_the_root_down() {
        let levels = |bytes| of(bytes, 4096, HashAlgorithm::Sha256).unwrap().levels();
        assert_eq!([levels(0), levels(1), levels(4096)], [0, 0, 0]);
        assert_eq!([levels(4097), levels(128 * 4096)], [1, 1]);
        let two = of(129 * 4096, 4096, HashAlgorithm::Sha256).unwrap();
        assert_eq!(two.levels(), 2);
        // The root, then the two blocks below it.
        assert_eq!(
            (two.offset(1, 0), two.offset(0, 0), two.offset(0, 1)),
            (0, 4096, 8192)
        );
    }

    #[test]
    fn levels_are_bounded() {
        assert!(of(u64::MAX, 4096, HashAlgorithm::Sha256).is_some());
        assert_eq!(of(u64::MAX, 1024, HashAlgorithm::Sha512), None);
    }
}
