//! The live part of the log: the transactions that a replay would find, and which of their blocks
//! are not checkpointed yet.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use platter_cache::Buffer;

use super::ring::Ring;
use super::transaction::Closed;
use crate::ondisk::jbd2::{LogBlock, Sequence};

/// A committed transaction.
#[derive(Debug)]
struct Logged {
    sequence: Sequence,
    start: LogBlock,
    len_blocks: u32,
    blocks: Vec<u64>,
    /// How many blocks have their newest committed version in this transaction, not checkpointed.
    left: usize,
    /// On the monotonic clock.
    committed_at: Duration,
}

/// A committed version that is not checkpointed.
#[derive(Debug)]
struct Pending {
    buffer: Buffer,
    /// The transaction whose copy a replay would write.
    sequence: Sequence,
}

/// Where the log begins and ends, and what it is kept for.
///
/// # Invariants
/// - Transactions have consecutive numbers, and follow each other up to the head.
/// - A block that is not checkpointed is counted by the transaction that holds its newest committed version.
/// - A block has a last copy exactly while a transaction that is not released, or the one being
///   committed, holds one.
#[derive(Debug)]
pub(super) struct Live {
    ring: Ring,
    /// Where the next transaction goes, and its number.
    head: LogBlock,
    next: Sequence,
    used_blocks: u32,
    transactions: VecDeque<Logged>,
    last_copies: BTreeMap<u64, Sequence>,
    pending: BTreeMap<u64, Pending>,
    /// The versions of the transaction being committed.
    committing: BTreeMap<u64, Buffer>,
    /// Blocks being checkpointed at this moment, in ascending order.
    pub(super) in_flight: Vec<u64>,
    pub(super) is_checkpointing: bool,
}

impl Live {
    pub(super) fn new(ring: Ring, head: LogBlock, next: Sequence) -> Self {
        Self {
            ring,
            head,
            next,
            used_blocks: 0,
            transactions: VecDeque::new(),
            last_copies: BTreeMap::new(),
            pending: BTreeMap::new(),
            committing: BTreeMap::new(),
            in_flight: Vec::new(),
            is_checkpointing: false,
        }
    }

    /// Where the next transaction goes.
    pub(super) fn head(&self) -> LogBlock {
        self.head
    }

    /// The number of the next transaction.
    pub(super) fn next(&self) -> Sequence {
        self.next
    }

    /// Blocks of the log that may be written.
    pub(super) fn free_blocks(&self) -> u32 {
        self.ring.len_blocks() - self.used_blocks
    }

    /// How many blocks are not checkpointed, with versions in memory.
    pub(super) fn pending_blocks(&self) -> u64 {
        self.pending.len() as u64
    }

    /// The blocks of `range` that a replay might write an old copy over.
    pub(super) fn copies(&self, range: Range<u64>) -> Vec<u64> {
        let copies = self.last_copies.range(range);
        copies.map(|(&block, _)| block).collect()
    }

    /// Takes in a transaction that no handle is part of any more, and completes what it revokes by
    /// the blocks it frees.
    pub(super) fn close(&mut self, transaction: &mut Closed) {
        for freed in &transaction.freed {
            let copies = self.copies(freed.start.0..freed.end.0);
            transaction.revoked.extend(copies);
        }
        let sequence = transaction.sequence;
        let blocks = transaction.blocks.keys();
        self.last_copies
            .extend(blocks.map(|&block| (block, sequence)));
        self.committing = transaction.blocks.clone();
    }

    /// The closed transaction is durable in `len_blocks` blocks from the head on. Returns the versions
    /// that will not be checkpointed, as their blocks were freed.
    pub(super) fn commit(
        &mut self,
        transaction: &Closed,
        len_blocks: u32,
        now: Duration,
    ) -> Vec<(u64, Buffer)> {
        let sequence = transaction.sequence;
        debug_assert_eq!(sequence, self.next, "transactions are committed in order");
        self.transactions.push_back(Logged {
            sequence,
            start: self.head,
            len_blocks,
            blocks: transaction.blocks.keys().copied().collect(),
            left: transaction.blocks.len(),
            committed_at: now,
        });
        self.head = self.ring.after(self.head, len_blocks);
        self.next = sequence.next();
        self.used_blocks += len_blocks;
        for (block, buffer) in std::mem::take(&mut self.committing) {
            let pending = Pending { buffer, sequence };
            if let Some(older) = self.pending.insert(block, pending) {
                self.uncount(older.sequence);
            }
        }
        // Of the freed blocks, those with copies are among the revoked ones.
        let mut doomed = Vec::new();
        for &block in &transaction.revoked {
            if let Some(pending) = self.pending.remove(&block) {
                self.uncount(pending.sequence);
                doomed.push((block, pending.buffer));
            }
        }
        doomed
    }

    /// Up to `count` blocks from `from` on whose newest committed version is from `last` or before,
    /// in ascending order. They are in flight from now on.
    pub(super) fn take_off(
        &mut self,
        from: u64,
        last: Sequence,
        count: usize,
    ) -> Vec<(u64, Buffer)> {
        let batch: Vec<_> = self
            .pending
            .range(from..)
            .filter(|(_, pending)| !last.is_before(pending.sequence))
            .take(count)
            .map(|(&block, pending)| (block, pending.buffer.clone()))
            .collect();
        self.in_flight = batch.iter().map(|&(block, _)| block).collect();
        batch
    }

    /// Records that the blocks in flight are checkpointed.
    pub(super) fn land(&mut self, batch: &[(u64, Buffer)]) {
        self.in_flight.clear();
        for (block, buffer) in batch {
            let is_current = |pending: &Pending| pending.buffer.is_same_version(buffer);
            if self.pending.get(block).is_some_and(is_current)
                && let Some(pending) = self.pending.remove(block)
            {
                self.uncount(pending.sequence);
            }
        }
    }

    /// The first transaction that the log is still needed for and where it begins; the next one if
    /// it is needed for none.
    pub(super) fn tail(&self) -> (LogBlock, Sequence) {
        let needed = self.transactions.iter().find(|logged| logged.left > 0);
        needed.map_or((self.head, self.next), |logged| {
            (logged.start, logged.sequence)
        })
    }

    /// Whether the log begins with a transaction that it is not needed for.
    pub(super) fn has_slack(&self) -> bool {
        self.transactions
            .front()
            .is_some_and(|logged| logged.left == 0)
    }

    /// The log begins with transaction `tail` now, durably: the blocks before are free.
    pub(super) fn release(&mut self, tail: Sequence) {
        while let Some(logged) = self
            .transactions
            .pop_front_if(|logged| logged.sequence.is_before(tail))
        {
            self.used_blocks -= logged.len_blocks;
            for block in logged.blocks {
                if self.last_copies.get(&block) == Some(&logged.sequence) {
                    self.last_copies.remove(&block);
                }
            }
        }
    }

    /// The last of the transactions that have to go for `wanted` blocks of the log to be free.
    pub(super) fn last_to_release(&self, wanted: u32) -> Option<Sequence> {
        let mut free = self.free_blocks();
        let mut last = None;
        for logged in &self.transactions {
            if free >= wanted {
                break;
            }
            free += logged.len_blocks;
            last = Some(logged.sequence);
        }
        last
    }

    /// The last transaction that was committed at `moment` or before.
    pub(super) fn last_committed_by(&self, moment: Duration) -> Option<Sequence> {
        let old = self.transactions.iter().rev();
        let mut old = old.skip_while(|logged| logged.committed_at > moment);
        old.next().map(|logged| logged.sequence)
    }

    /// The last committed transaction that is not released.
    pub(super) fn last(&self) -> Option<Sequence> {
        self.transactions.back().map(|logged| logged.sequence)
    }

    /// The newest versions of the blocks of `range` that are not checkpointed.
    pub(super) fn newest(&self, range: Range<u64>) -> BTreeMap<u64, Buffer> {
        let pending = self.pending.range(range.clone());
        let pending = pending.map(|(&block, pending)| (block, pending.buffer.clone()));
        let mut newest: BTreeMap<_, _> = pending.collect();
        let committing = self.committing.range(range);
        newest.extend(committing.map(|(&block, buffer)| (block, buffer.clone())));
        newest
    }

    fn uncount(&mut self, sequence: Sequence) {
        let Some(front) = self.transactions.front() else {
            return;
        };
        let index = sequence.0.wrapping_sub(front.sequence.0) as usize;
        if let Some(logged) = self.transactions.get_mut(index) {
            logged.left -= 1;
        }
    }
}
