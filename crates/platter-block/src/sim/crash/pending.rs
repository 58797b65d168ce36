//! The writes that are not durable, block by block.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::state::{Loss, blocks, changed_range};
use crate::sim::{Event, Request};
use crate::{BlockDevice, IoError, OverlayDevice};

/// A write or discard that no flush covers.
#[derive(Debug, Clone)]
pub(super) struct PendingWrite {
    /// Its index in the log.
    pub(super) event: usize,
    member: usize,
    pub(super) range: Range<u64>,
    /// A flush of its device failed after it: no later one can make it durable for certain.
    undefined: bool,
}

/// All pending writes, in the order of the log.
#[derive(Debug)]
pub(super) struct PendingWrites {
    /// Of each device.
    block_bytes: Vec<u64>,
    writes: Vec<PendingWrite>,
    /// The possible contents of each block, by its device and offset.
    blocks: BTreeMap<(usize, u64), Versions>,
}

/// The possible contents of one block.
#[derive(Debug, Default)]
struct Versions {
    /// Hash of its durable contents, once computed.
    durable: Option<u128>,
    /// The pending writes that overlap it, as indexes into the list, with the hash of the block
    /// after a write that covers it completely.
    writes: Vec<(usize, Option<u128>)>,
}

impl PendingWrites {
    pub(super) fn new(block_bytes: Vec<u64>) -> Self {
        Self {
            block_bytes,
            writes: Vec::new(),
            blocks: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns the log indexes of the pending writes.
    pub(super) fn events(&self) -> impl Iterator<Item = usize> {
        self.writes.iter().map(|write| write.event)
    }

    /// Returns the devices of the pending writes.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> {
        self.writes.iter().map(|write| write.member)
    }

    /// Adds the event at `index` of the log.
    pub(super) fn add(&mut self, index: usize, event: &Event) {
        let Some(range) = changed_range(event) else {
            return;
        };
        let write = PendingWrite {
            event: index,
            member: event.member,
            range,
            undefined: false,
        };
        self.index_blocks(self.writes.len(), &write, event);
        self.writes.push(write);
    }

    fn index_blocks(&mut self, which: usize, write: &PendingWrite, event: &Event) {
        let block_bytes = self.block_bytes[write.member];
        for place in blocks(&write.range, block_bytes) {
            let block = place..place + block_bytes;
            let whole = write.range.start <= block.start && block.end <= write.range.end;
            let hash = whole.then(|| match &event.request {
                Request::Write { offset, data } => hash(&data[within(*offset, &block)]),
                Request::Discard(_) | Request::Flush => {
                    hash(&vec![0u8; within(place, &block).len()][..])
                }
            });
            let versions = self.blocks.entry((write.member, place)).or_default();
            versions.writes.push((which, hash));
        }
    }

    /// Records a failed flush of a device, after which its pending writes stay undefined forever.
    pub(super) fn leave_undefined(&mut self, member: usize) {
        for write in &mut self.writes {
            write.undefined |= write.member == member;
        }
    }

    /// Returns the outcome of each when the flush at `flush` of the log returns: `Kept` for
    /// writes of its device that had returned when it began, `Dropped` for the others, which stay pending.
    pub(super) fn covered(&self, events: &[Event], flush: usize) -> Vec<Loss> {
        let covered = |write: &PendingWrite| {
            let returned = events[write.event].returned;
            let is_of_device = write.member == events[flush].member;
            is_of_device && !write.undefined && returned.is_some_and(|returned| returned <= flush)
        };
        let loss = |write| {
            if covered(write) {
                Loss::Kept
            } else {
                Loss::Dropped
            }
        };
        self.writes.iter().map(loss).collect()
    }

    /// Removes and returns those that are kept.
    pub(super) fn take_kept(&mut self, events: &[Event], losses: &[Loss]) -> Vec<PendingWrite> {
        let mut kept = Vec::new();
        for (write, &loss) in std::mem::take(&mut self.writes).into_iter().zip(losses) {
            let writes = if loss == Loss::Kept {
                &mut kept
            } else {
                &mut self.writes
            };
            writes.push(write);
        }
        self.blocks.clear();
        for (which, write) in self.writes.clone().iter().enumerate() {
            self.index_blocks(which, write, &events[write.event]);
        }
        kept
    }

    /// Returns each write of several blocks, torn in its middle in either way.
    pub(super) fn splits(&self) -> impl Iterator<Item = (usize, Loss)> {
        let writes = self.writes.iter().enumerate();
        writes.flat_map(move |(which, write)| {
            let block_bytes = self.block_bytes[write.member];
            let middle = write.range.start.midpoint(write.range.end);
            let middle = middle - middle % block_bytes;
            let torn = [Loss::Before(middle), Loss::After(middle)];
            let several = middle > write.range.start;
            torn.into_iter()
                .filter(move |_| several)
                .map(move |loss| (which, loss))
        })
    }

    /// Returns what these losses add to the fingerprint of the durable devices.
    pub(super) fn fingerprint(
        &mut self,
        events: &[Event],
        durable: &[Arc<OverlayDevice>],
        losses: &[Loss],
    ) -> Result<u128, IoError> {
        let mut sum = 0u128;
        for (&(member, place), versions) in &mut self.blocks {
            let durable = &durable[member];
            let end = durable.geometry().len_bytes;
            let block = place..(place + self.block_bytes[member]).min(end);
            let kept = |&&(which, _): &&(usize, _)| losses[which].keeps(place);
            let Some(&last) = versions.writes.iter().rfind(kept) else {
                continue;
            };
            let before = match versions.durable {
                Some(before) => before,
                None => hash(&read(durable, &block)?[..]),
            };
            versions.durable = Some(before);
            let after = if let (_, Some(after)) = last {
                after
            } else {
                let mut bytes = read(durable, &block)?;
                for (which, _) in versions.writes.iter().filter(kept) {
                    let write = &self.writes[*which];
                    overwrite(&mut bytes, &block, write, &events[write.event]);
                }
                hash(&bytes[..])
            };
            if after != before {
                sum = sum.wrapping_add(hash(&(member, place, after)));
                sum = sum.wrapping_sub(hash(&(member, place, before)));
            }
        }
        Ok(sum)
    }
}

/// Applies an event's change of a block to the block's bytes.
fn overwrite(bytes: &mut [u8], block: &Range<u64>, write: &PendingWrite, event: &Event) {
    let part = write.range.start.max(block.start)..write.range.end.min(block.end);
    let target = &mut bytes[within(block.start, &part)];
    match &event.request {
        Request::Write { offset, data } => target.copy_from_slice(&data[within(*offset, &part)]),
        Request::Discard(_) => target.fill(0),
        Request::Flush => {}
    }
}

/// Converts a range of the device into a range of a buffer that begins at `start` of it.
fn within(start: u64, range: &Range<u64>) -> Range<usize> {
    let place = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
    place(range.start)..place(range.end)
}

fn read(device: &OverlayDevice, block: &Range<u64>) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0; within(block.start, block).len()];
    device.read_at(block.start, &mut bytes)?;
    Ok(bytes)
}

fn hash(value: &(impl Hash + ?Sized)) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, value).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}
