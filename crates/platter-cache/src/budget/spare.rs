//! Freed blocks, kept for reuse by blocks of the same length.

use crate::block_size::BlockSize;

/// Free blocks by length; in each list, the most recently freed one is last.
#[derive(Debug, Default)]
pub(super) struct Spare {
    lists: [Vec<Box<[u8]>>; BlockSize::COUNT],
    bytes: u64,
}

impl Spare {
    /// Returns a free block of `len` bytes with unspecified contents, if there is one.
    pub(super) fn take(&mut self, len: usize) -> Option<Box<[u8]>> {
        let block = self.lists[list_of(len)?].pop()?;
        self.bytes -= block.len() as u64;
        Some(block)
    }

    /// Keeps a block, unless `bytes_max` of its length are free already. Blocks of other lengths
    /// are dropped first.
    pub(super) fn keep(&mut self, block: Box<[u8]>, bytes_max: u64) {
        let Some(list) = list_of(block.len()) else {
            return;
        };
        let len = block.len() as u64;
        while self.bytes + len > bytes_max {
            let others = self.lists.iter_mut().enumerate();
            let Some(block) = others
                .filter(|(other, _)| *other != list)
                .find_map(|(_, blocks)| blocks.pop())
            else {
                return;
            };
            self.bytes -= block.len() as u64;
        }
        self.bytes += len;
        self.lists[list].push(block);
    }
}

fn list_of(len: usize) -> Option<usize> {
    let bytes = u32::try_from(len).ok()?;
    BlockSize::new(bytes).map(BlockSize::index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(len: usize) -> Box<[u8]> {
        vec![0; len].into()
    }

    #[test]
    fn free_blocks_are_reused_by_length_within_the_limit() {
        let mut spare = Spare::default();
        for len in [4096, 16384, 4096, 512] {
            spare.keep(block(len), 32 << 10);
        }
        assert_eq!(spare.take(16384).map(|block| block.len()), Some(16384));
        assert!(spare.take(16384).is_none());
        assert!(spare.take(100).is_none());
        spare.keep(block(100), 32 << 10);
        for _ in 0..9 {
            spare.keep(block(4096), 32 << 10);
        }
        assert_eq!(spare.bytes, 32 << 10);
        assert!(spare.take(512).is_none(), "gave way to the others");
        assert_eq!(
            std::iter::from_fn(|| spare.take(4096)).count(),
            (32 << 10) / 4096
        );
        assert_eq!(spare.bytes, 0);
    }
}
