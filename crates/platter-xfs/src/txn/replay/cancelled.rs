//! Buffers whose blocks were freed later in the log: replaying them would overwrite what the blocks hold
//! now. Spec: `xfs/journaling_log`, "Buffer Log Item".

use std::collections::HashMap;

use crate::ondisk::BasicBlock;

/// The buffers that are cancelled from here on in the log, and how often.
#[derive(Debug, Default)]
pub(super) struct Cancelled(HashMap<(BasicBlock, u64), u32>);

impl Cancelled {
    /// Records a cancelling item, in the first pass.
    pub(super) fn add(&mut self, block: BasicBlock, len: u64) {
        let count = self.0.entry((block, len)).or_default();
        *count = count.saturating_add(1);
    }

    /// Whether a buffer is cancelled further on.
    pub(super) fn contains(&self, block: BasicBlock, len: u64) -> bool {
        self.0.contains_key(&(block, len))
    }

    /// Passes a cancelling item, in the second pass.
    pub(super) fn pass(&mut self, block: BasicBlock, len: u64) {
        if let Some(count) = self.0.get_mut(&(block, len)) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.0.remove(&(block, len));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_cancelled_up_to_its_last_cancelling_item() {
        let mut cancelled = Cancelled::default();
        cancelled.add(BasicBlock(8), 8);
        cancelled.add(BasicBlock(8), 8);
        assert!(cancelled.contains(BasicBlock(8), 8) && !cancelled.contains(BasicBlock(8), 16));
        cancelled.pass(BasicBlock(8), 8);
        assert!(cancelled.contains(BasicBlock(8), 8));
        cancelled.pass(BasicBlock(8), 8);
        assert!(!cancelled.contains(BasicBlock(8), 8));
        cancelled.pass(BasicBlock(8), 8);
    }
}
