//! A layer that reads announced ranges which lie close together with one request.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::{Condvar, Mutex, rank};

use crate::device::total_len;
use crate::{BlockDevice, Geometry, IoError};

/// The most that is read with one request.
const GROUP_BYTES_MAX: u64 = 1 << 20;
/// Longer ranges are read by requests of their own.
const RANGE_BYTES_MAX: u64 = 128 << 10;
/// Ranges that lie further apart are not read together: what lies between them is read in vain.
const GAP_BYTES_MAX: u64 = 8 << 10;
/// Readers ask for whole blocks of so many bytes, whatever part of the last one is announced.
const BLOCK_BYTES: u64 = 4096;
/// The groups that are known at once. The oldest are forgotten.
const GROUPS_MAX: usize = 4096;
/// What was read and is kept until it is asked for. The oldest is forgotten.
const KEPT_BYTES_MAX: u64 = 8 << 20;
/// Memory of groups that is used again for others.
const SPARE_MAX: usize = 2;

/// Passes every request to the device below, but reads short ranges that were
/// [announced](Self::announce) together with their neighbours, once. What is never announced is read as it is
/// asked for.
#[derive(Debug)]
pub struct GatheringDevice {
    base: Arc<dyn BlockDevice>,
    /// What was announced.
    groups: Mutex<ReadGroups, { rank(16, 7) }>,
    /// How many groups there are, so that most requests need no lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct ReadGroups {
    by_start: BTreeMap<u64, Arc<ReadGroup>>,
    /// Where groups begin, the oldest first. Some may be forgotten.
    announced: VecDeque<u64>,
    /// Groups that were read, the oldest first. Some may be forgotten.
    read: VecDeque<Arc<ReadGroup>>,
    kept_bytes: u64,
    /// Memory of as many bytes as the largest group has.
    spare: Vec<Vec<u8>>,
}

/// Ranges that are read together.
#[derive(Debug)]
struct ReadGroup {
    range: Range<u64>,
    /// What it holds.
    state: Mutex<State, { rank(16, 8) }>,
    /// Signalled when it is no longer being read.
    is_read: Condvar,
}

/// A group to be.
#[derive(Debug)]
struct Plan {
    range: Range<u64>,
    /// The ranges in it, one after the other; some may be announced more than once.
    len_bytes: u64,
    count: usize,
}

impl Plan {
    fn accepts(&self, range: &Range<u64>) -> bool {
        let near = self.range.start..=self.range.end.saturating_add(GAP_BYTES_MAX);
        near.contains(&range.start) && range.end - self.range.start <= GROUP_BYTES_MAX
    }
}

#[derive(Debug)]
struct State {
    contents: Contents,
    /// Bytes that will still be asked for.
    left_bytes: u64,
}

#[derive(Debug)]
enum Contents {
    Unread,
    /// A caller reads it; others wait.
    Reading,
    Read(Arc<Vec<u8>>),
    /// It cannot be read as a whole.
    Failed,
}

impl GatheringDevice {
    /// Passes requests to `base`.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            groups: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Says that each of these ranges, which are in ascending order, will be read once. A hint.
    pub fn announce(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let device_bytes = self.geometry().len_bytes;
        let mut groups = self.groups.lock();
        let mut open: Option<Plan> = None;
        for range in ranges {
            let end = range.end.checked_next_multiple_of(BLOCK_BYTES);
            let range = range.start..end.unwrap_or(u64::MAX).min(device_bytes);
            if range.is_empty() || range.end - range.start > RANGE_BYTES_MAX {
                continue;
            }
            let len_bytes = range.end - range.start;
            match &mut open {
                Some(plan) if plan.accepts(&range) => {
                    plan.range.end = plan.range.end.max(range.end);
                    plan.len_bytes += len_bytes;
                    plan.count += 1;
                }
                _ => {
                    let start = range.start;
                    let count = 1;
                    let before = open.replace(Plan {
                        range,
                        len_bytes,
                        count,
                    });
                    if let Some(mut plan) = before {
                        // A range may be announced longer than it is.
                        plan.range.end = plan.range.end.min(start.max(plan.range.start));
                        groups.add(plan);
                    }
                }
            }
        }
        if let Some(plan) = open {
            groups.add(plan);
        }
        self.count.store(groups.by_start.len(), Ordering::Release);
    }

    /// Forgets all that was announced, and what was read.
    pub fn forget(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut groups = self.groups.lock();
        let forgotten = std::mem::take(&mut *groups);
        self.count.store(0, Ordering::Release);
        drop(groups);
        drop(forgotten);
    }

    /// Fills `bufs` from a group that has all of it. Returns `false` if there is none.
    fn read_group(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let len_bytes = total_len(bufs) as u64;
        let Some(end) = offset.checked_add(len_bytes) else {
            return false;
        };
        if len_bytes == 0 || len_bytes > RANGE_BYTES_MAX {
            return false;
        }
        let Some(group) = self.groups.lock().holding(offset..end) else {
            return false;
        };
        let Some((contents, is_done)) = self.contents(&group, len_bytes) else {
            return false;
        };
        let inside = usize::try_from(offset - group.range.start).unwrap_or(usize::MAX);
        let mut rest = contents.get(inside..).unwrap_or_default();
        for buf in bufs {
            let Some((now, later)) = rest.split_at_checked(buf.len()) else {
                return false;
            };
            buf.copy_from_slice(now);
            rest = later;
        }
        if is_done {
            // A reader that comes now reads below.
            group.state.lock().contents = Contents::Failed;
            let mut groups = self.groups.lock();
            groups.remove(&group);
            groups.keep_memory(contents);
            self.count.store(groups.by_start.len(), Ordering::Release);
        }
        true
    }

    /// What a group holds, and whether all of it was asked for once `len_bytes` of it are. `None` if it
    /// cannot be read.
    fn contents(&self, group: &Arc<ReadGroup>, len_bytes: u64) -> Option<(Arc<Vec<u8>>, bool)> {
        let mut state = group.state.lock();
        loop {
            match &state.contents {
                Contents::Read(bytes) => {
                    let bytes = Arc::clone(bytes);
                    state.left_bytes = state.left_bytes.saturating_sub(len_bytes);
                    return Some((bytes, state.left_bytes == 0));
                }
                Contents::Failed => return None,
                Contents::Reading => group.is_read.wait(&mut state),
                Contents::Unread => {
                    state.contents = Contents::Reading;
                    drop(state);
                    self.fill(group);
                    state = group.state.lock();
                }
            }
        }
    }

    /// Reads a group. No lock is held meanwhile.
    fn fill(&self, group: &Arc<ReadGroup>) {
        // Left as failed by a panic below.
        let mut filled = Filled(group, Contents::Failed);
        let len = usize::try_from(group.len_bytes()).unwrap_or_default();
        let spare = if is_large(len) {
            self.groups.lock().spare.pop()
        } else {
            None
        };
        let mut bytes = spare.unwrap_or_else(|| vec![0; memory_of(len)]);
        let read = bytes.get_mut(..len);
        let read = read.is_some_and(|part| self.base.read_at(group.range.start, part).is_ok());
        if read {
            filled.1 = Contents::Read(Arc::new(bytes));
            let mut groups = self.groups.lock();
            groups.keep(group);
            self.count.store(groups.by_start.len(), Ordering::Release);
        }
    }
}

/// Whether a group takes as much memory as the largest.
fn is_large(len: usize) -> bool {
    len as u64 > GROUP_BYTES_MAX / 8 * 7
}

/// How much memory a group takes.
fn memory_of(len: usize) -> usize {
    if is_large(len) {
        len.max(usize::try_from(GROUP_BYTES_MAX).unwrap_or(len))
    } else {
        len
    }
}

/// The end of a read of a group.
struct Filled<'w>(&'w ReadGroup, Contents);

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        self.0.state.lock().contents = std::mem::replace(&mut self.1, Contents::Failed);
        self.0.is_read.notify_all();
    }
}

impl ReadGroups {
    /// Adds a group of several ranges, in place of those that it overlaps.
    fn add(&mut self, plan: Plan) {
        let range = plan.range;
        if plan.count < 2 || range.is_empty() {
            return;
        }
        while let Some(group) = self.last_before(range.end)
            && group.range.end > range.start
        {
            self.remove(&group);
        }
        if self.by_start.len() >= GROUPS_MAX {
            let by_start = &self.by_start;
            self.announced.retain(|start| by_start.contains_key(start));
            if let Some(oldest) = self.announced.pop_front()
                && let Some(group) = self.by_start.get(&oldest).cloned()
            {
                self.remove(&group);
            }
        }
        if self.announced.len() >= 2 * GROUPS_MAX {
            let by_start = &self.by_start;
            self.announced.retain(|start| by_start.contains_key(start));
        }
        self.announced.push_back(range.start);
        let state = State {
            contents: Contents::Unread,
            left_bytes: plan.len_bytes,
        };
        let group = ReadGroup {
            range: range.clone(),
            state: Mutex::new(state),
            is_read: Condvar::new(),
        };
        self.by_start.insert(range.start, Arc::new(group));
    }

    fn last_before(&self, end: u64) -> Option<Arc<ReadGroup>> {
        let (_, group) = self.by_start.range(..end).next_back()?;
        Some(Arc::clone(group))
    }

    fn holding(&self, range: Range<u64>) -> Option<Arc<ReadGroup>> {
        self.last_before(range.end)
            .filter(|group| group.range.start <= range.start && range.end <= group.range.end)
    }

    /// Keeps what was read, and forgets what was read long ago.
    fn keep(&mut self, group: &Arc<ReadGroup>) {
        if !self.has(group) {
            return;
        }
        self.kept_bytes += group.len_bytes();
        self.read.push_back(Arc::clone(group));
        while self.kept_bytes > KEPT_BYTES_MAX {
            let Some(oldest) = self.read.front().cloned() else {
                break;
            };
            self.remove(&oldest);
        }
    }

    /// Keeps the memory of a group that no reader needs any more.
    fn keep_memory(&mut self, contents: Arc<Vec<u8>>) {
        if let Some(bytes) = Arc::into_inner(contents)
            && self.spare.len() < SPARE_MAX
            && bytes.len() as u64 == GROUP_BYTES_MAX
        {
            self.spare.push(bytes);
        }
    }

    fn has(&self, group: &Arc<ReadGroup>) -> bool {
        let found = self.by_start.get(&group.range.start);
        found.is_some_and(|found| Arc::ptr_eq(found, group))
    }

    fn remove(&mut self, group: &Arc<ReadGroup>) {
        if self.has(group) {
            self.by_start.remove(&group.range.start);
        }
        let place = self.read.iter().position(|it| Arc::ptr_eq(it, group));
        if place.and_then(|place| self.read.remove(place)).is_some() {
            self.kept_bytes -= group.len_bytes();
        }
    }
}

impl ReadGroup {
    fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl BlockDevice for GatheringDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        if self.read_group(offset, &mut [IoSliceMut::new(buf)]) {
            return Ok(());
        }
        self.base.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        if self.read_group(offset, bufs) {
            return Ok(());
        }
        self.base.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.forget();
        let written = self.base.write_at(offset, buf);
        self.forget();
        written
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        self.forget();
        let written = self.base.write_vectored_at(offset, bufs);
        self.forget();
        written
    }

    fn flush(&self) -> Result<(), IoError> {
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.forget();
        let discarded = self.base.discard(range);
        self.forget();
        discarded
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.base.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{CountingDevice, MemoryDevice};

    const LEN_BYTES: u64 = 16 << 20;

    fn byte_at(at: u64) -> u8 {
        (at / 512).to_le_bytes()[0]
    }

    fn gathering() -> (GatheringDevice, Arc<CountingDevice>) {
        let bytes = (0..LEN_BYTES).map(byte_at).collect();
        let base = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::new("m", bytes))));
        (GatheringDevice::new(base.clone()), base)
    }

    fn read(device: &GatheringDevice, range: Range<u64>) {
        let mut buf = vec![0; usize::try_from(range.end - range.start).unwrap()];
        let (left, right) = buf.split_at_mut(100);
        let bufs = &mut [IoSliceMut::new(left), IoSliceMut::new(right)];
        device.read_vectored_at(range.start, bufs).unwrap();
        assert!(buf.iter().zip(range).all(|(&byte, at)| byte == byte_at(at)));
    }

    fn files(count: u64, step: u64) -> Vec<Range<u64>> {
        let starts = (0..count).map(|index| index * step);
        starts.map(|start| start..start + 4096).collect()
    }

    #[test]
    fn announced_ranges_are_read_together_once() {
        let (device, base) = gathering();
        let files = files(1000, 8192);
        device.announce(files.clone());
        thread::scope(|scope| {
            for part in files.chunks(250) {
                let device = &device;
                scope.spawn(move || part.iter().for_each(|file| read(device, file.clone())));
            }
        });
        let counts = base.counts();
        assert_eq!(counts.reads, 1000_u64.div_ceil(128));
        assert!(counts.read_bytes <= 1000 * 8192);
        read(&device, 0..4096);
        assert!(base.counts().reads <= counts.reads + 1);
    }

    #[test]
    fn ranges_far_apart_and_long_ones_are_read_alone() {
        let (device, base) = gathering();
        device.announce(files(10, 64 << 10));
        let long = (2 << 20)..(3 << 20);
        device.announce([
            (2 << 20) - 4096..2 << 20,
            long.clone(),
            3 << 20..(3 << 20) + 4096,
        ]);
        for file in files(10, 64 << 10) {
            read(&device, file);
        }
        read(&device, long);
        let counts = base.counts();
        assert_eq!(
            (counts.reads, counts.read_bytes),
            (11, 10 * 4096 + (1 << 20))
        );
    }

    #[test]
    fn range_announced_several_times_is_read_once() {
        let (device, base) = gathering();
        // Files may share an extent, and end inside their last block.
        device.announce(vec![8192..11_192; 50]);
        for _ in 0..50 {
            read(&device, 8192..12_288);
        }
        assert_eq!(base.counts().reads, 1);
        assert!(device.groups.lock().by_start.is_empty());
    }

    #[test]
    fn group_read_to_its_end_is_not_kept() {
        let (device, _) = gathering();
        let files = files(256, 4096);
        device.announce(files.clone());
        for file in files {
            read(&device, file);
        }
        let groups = device.groups.lock();
        assert_eq!((groups.by_start.len(), groups.read.len()), (0, 0));
        assert_eq!(groups.kept_bytes, 0);
    }

    #[test]
    fn memory_is_bounded_whatever_is_announced() {
        let (device, base) = gathering();
        device.announce(files(LEN_BYTES / 4096, 4096));
        // One file of each group.
        for start in (0..LEN_BYTES).step_by(1 << 20) {
            read(&device, start..start + 4096);
        }
        assert!(device.groups.lock().kept_bytes <= KEPT_BYTES_MAX);
        let reads = base.counts().reads;
        // Forgotten: read again, alone.
        read(&device, 4096..8192);
        assert_eq!(base.counts().reads, reads + 1);
        for round in 0..3 * GROUPS_MAX as u64 {
            let start = round % 1024 * 12_288;
            device.announce([start..start + 512, start + 512..start + 1024]);
        }
        let groups = device.groups.lock();
        assert!(groups.by_start.len() <= GROUPS_MAX);
        assert!(groups.announced.len() <= 2 * GROUPS_MAX);
    }

    #[test]
    fn writes_are_seen_by_reads_after_them() {
        let (device, _) = gathering();
        device.announce(files(8, 4096));
        read(&device, 0..4096);
        device.write_at(4096, &[0xAA; 4096]).unwrap();
        let mut buf = [0; 4096];
        device.read_at(4096, &mut buf).unwrap();
        assert_eq!(buf, [0xAA; 4096]);
    }

    #[test]
    fn range_beyond_the_device_is_refused_as_below() {
        let (device, _) = gathering();
        device.announce([LEN_BYTES - 512..LEN_BYTES + 512, LEN_BYTES..u64::MAX]);
        device.announce([LEN_BYTES - 1024..LEN_BYTES - 512, LEN_BYTES - 512..u64::MAX]);
        assert!(device.read_at(LEN_BYTES - 512, &mut [0; 1024]).is_err());
        read(&device, LEN_BYTES - 512..LEN_BYTES);
    }
}
