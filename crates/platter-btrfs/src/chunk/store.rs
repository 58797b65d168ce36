//! Reading of logical addresses: from any copy, or reconstructed from parity.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, OnceLock};

use platter_block::lock::RwLock;
use platter_block::{BlockDevice, IoError, Operation};
use platter_cache::{BufferError, MetadataStore};
use platter_ondisk::Corrupt;

use super::layout::{Placement, Segment};
use super::map::{ChunkMap, ChunkMapRule, FormerReaders, wait_until_unshared};
use super::members::{Member, Members};
use super::parity;
use super::rows::{RowLocks, RowWrite};
use crate::ondisk::chunk_item::{ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::tree_block::TreeBlockFormat;
use crate::ondisk::{DeviceAddr, DeviceId, LogicalAddr};

/// The devices of a filesystem as one space of logical addresses.
///
/// Copies are counted from 0. Those on devices that are present come first, in the order of the
/// stripes. Where parity protects, the first copy is the data itself if its device is present; the
/// others are reconstructed from the rest of the row, then from the rest without one more of its
/// devices.
pub struct ChunkStore {
    name: Arc<str>,
    /// Replaced as a whole when a chunk is added.
    map: RwLock<Arc<ChunkMap>>,
    /// Replaced as a whole when a device comes, goes or has another length.
    members: RwLock<Arc<Members>>,
    rows: RowLocks,
    /// What tree blocks in it have in common, once that is known.
    format: OnceLock<TreeBlockFormat>,
}

impl ChunkStore {
    /// The space of `map` on `members`; `name` is that of errors.
    #[must_use]
    pub fn new(name: Arc<str>, map: ChunkMap, members: Members) -> Self {
        Self {
            name,
            map: RwLock::new(Arc::new(map)),
            members: RwLock::new(Arc::new(members)),
            rows: RowLocks::default(),
            format: OnceLock::new(),
        }
    }

    /// Says what all tree blocks in it have in common.
    pub fn set_format(&self, format: TreeBlockFormat) {
        let _ = self.format.set(format);
    }

    pub(super) fn format(&self) -> Option<&TreeBlockFormat> {
        self.format.get()
    }

    pub(super) fn rows(&self) -> &RowLocks {
        &self.rows
    }

    /// The name of the filesystem in errors.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The chunks as they are now.
    #[must_use]
    pub fn map(&self) -> Arc<ChunkMap> {
        Arc::clone(&self.map.read())
    }

    /// Adds a chunk.
    pub fn add_chunk(&self, chunk: ChunkItem) -> Result<(), Corrupt<ChunkMapRule>> {
        let mut map = self.map.write();
        *map = Arc::new(map.with(chunk)?);
        Ok(())
    }

    /// Puts a chunk in the place of the one with its addresses. What is being read or written goes on with the former
    /// one: its stripes are used by something else only after these readers were waited for.
    pub fn replace_chunk(&self, chunk: ChunkItem) -> Result<FormerReaders, Corrupt<ChunkMapRule>> {
        let mut map = self.map.write();
        let readers = map.readers();
        *map = Arc::new(map.replacing(chunk)?);
        Ok(readers)
    }

    /// Removes the chunk at an address.
    pub fn remove_chunk(&self, start: LogicalAddr) {
        let mut map = self.map.write();
        *map = Arc::new(map.without(start));
    }

    /// The devices as they are now.
    #[must_use]
    pub fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read())
    }

    /// Changes what is known of the devices. Returns when nothing looks at them as they were, nor reads or writes what
    /// they were then; the caller does not.
    pub fn change_members(&self, change: impl FnOnce(&mut Members)) {
        let former = {
            let mut members = self.members.write();
            let mut changed = (**members).clone();
            change(&mut changed);
            std::mem::replace(&mut *members, Arc::new(changed))
        };
        wait_until_unshared(&former);
        let readers = {
            let mut map = self.map.write();
            let readers = map.readers();
            *map = Arc::new(map.renewed());
            readers
        };
        readers.wait();
    }

    /// How many copies the range has that could differ: the most of any of its segments.
    #[must_use]
    pub fn copies(&self, logical: LogicalAddr, len_bytes: u64) -> u16 {
        let mut most = 1;
        let mut at = logical;
        let mut left = len_bytes;
        let map = self.map();
        while left > 0 {
            let Ok(chunk) = map.find(at) else { break };
            let segment = chunk.segment(at, left);
            most = most.max(self.ways(chunk, &segment).len());
            at = LogicalAddr(at.0 + segment.len_bytes);
            left -= segment.len_bytes;
        }
        u16::try_from(most).unwrap_or(u16::MAX)
    }

    /// The device that a copy of the address is read from, and where; `None` if it is reconstructed.
    #[must_use]
    pub fn location(&self, logical: LogicalAddr, copy: u16) -> Option<(Member, DeviceAddr)> {
        let map = self.map();
        let chunk = map.find(logical).ok()?;
        let segment = chunk.segment(logical, 1);
        match self.ways(chunk, &segment).get(usize::from(copy))? {
            Way::Direct(stripe) => {
                let members = self.members();
                let member = members.of_stripe(chunk.stripes.get(*stripe)?)?;
                Some((member.clone(), chunk.device_addr(*stripe, segment.offset)))
            }
            Way::Rebuilt { .. } => None,
        }
    }

    /// What a copy of the address is reconstructed from; none if a device has it as it is.
    #[must_use]
    pub fn rebuilt_from(&self, logical: LogicalAddr, copy: u16) -> Vec<Source> {
        let map = self.map();
        let Ok(chunk) = map.find(logical) else {
            return Vec::new();
        };
        let segment = chunk.segment(logical, 1);
        let ways = self.ways(chunk, &segment);
        let Some(Way::Rebuilt { row, data, without }) = ways.get(usize::from(copy)) else {
            return Vec::new();
        };
        let whole = RowWrite {
            store: self,
            chunk,
            row: *row,
        };
        let place = |role| whole.source(role, segment.offset % STRIPE_BYTES);
        let roles = Rebuild::roles(chunk, *data, without).into_iter();
        roles.filter_map(place).collect()
    }

    /// Fills `bufs` with what follows `logical`, from one copy; of segments that have fewer copies,
    /// from the last they have.
    pub fn read(
        &self,
        logical: LogicalAddr,
        copy: u16,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<(), BufferError> {
        let mut left: Vec<&mut [u8]> = bufs.iter_mut().map(|buf| &mut **buf).collect();
        let mut at = logical;
        let map = self.map();
        while !left.is_empty() {
            let chunk = map.find(at).map_err(platter_ondisk::Corruption::from)?;
            let wanted: u64 = left.iter().map(|buf| buf.len() as u64).sum();
            let segment = chunk.segment(at, wanted);
            let (mut target, rest) = split(left, segment.len_bytes);
            self.read_segment(chunk, &segment, copy, &mut target)?;
            left = rest;
            at = LogicalAddr(at.0.saturating_add(segment.len_bytes));
        }
        Ok(())
    }

    fn read_segment(
        &self,
        chunk: &ChunkItem,
        segment: &Segment,
        copy: u16,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<(), BufferError> {
        let ways = self.ways(chunk, segment);
        let way = ways.get(usize::from(copy)).or(ways.last());
        match way {
            Some(Way::Direct(stripe)) => self.read_stripe(chunk, *stripe, segment.offset, bufs),
            Some(Way::Rebuilt { row, data, without }) => {
                let len_bytes = usize::try_from(segment.len_bytes).unwrap_or(usize::MAX);
                let rebuild = Rebuild {
                    store: self,
                    chunk,
                    row: *row,
                    offset: segment.offset,
                    len_bytes,
                };
                let _stay = self.rows.read(chunk, *row);
                let bytes = rebuild.data(*data, without)?;
                copy_into(&bytes, bufs);
                Ok(())
            }
            None => Err(self.all_missing(chunk, segment)),
        }
    }

    pub(super) fn read_stripe(
        &self,
        chunk: &ChunkItem,
        stripe: usize,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<(), BufferError> {
        let at = chunk.device_addr(stripe, offset).0;
        match (self.device(chunk, stripe), bufs) {
            (Some(device), [buf]) => Ok(device.read_at(at, buf)?),
            (Some(device), bufs) => Ok(device.read_vectored_at(at, bufs)?),
            (None, bufs) => {
                let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
                Err(self
                    .missing(chunk, stripe, Operation::Read, at, len_bytes)
                    .into())
            }
        }
    }

    pub(super) fn device(&self, chunk: &ChunkItem, stripe: usize) -> Option<Arc<dyn BlockDevice>> {
        let members = self.members.read();
        let member = members.of_stripe(chunk.stripes.get(stripe)?)?;
        member.device.clone()
    }

    /// The error of a stripe on a device that is missing.
    pub(super) fn missing(
        &self,
        chunk: &ChunkItem,
        stripe: usize,
        operation: Operation,
        at: u64,
        len_bytes: u64,
    ) -> IoError {
        let device = chunk.stripes.get(stripe).map_or(0, |it| it.device.0);
        let source = io::Error::new(
            io::ErrorKind::NotFound,
            format!("device {device} is missing"),
        );
        IoError::new(&self.name, operation, at, len_bytes, source)
    }

    /// The error of a segment that no device that is present can give.
    pub(super) fn all_missing(&self, chunk: &ChunkItem, segment: &Segment) -> BufferError {
        let stripe = match segment.placement {
            Placement::Copies { first, .. } => first,
            Placement::Parity { row, data } => chunk.stripe_of_role(row, data),
        };
        let at = chunk.device_addr(stripe, segment.offset).0;
        self.missing(chunk, stripe, Operation::Read, at, segment.len_bytes)
            .into()
    }

    /// The ways to read a segment, in the order in which they are tried.
    pub(super) fn ways(&self, chunk: &ChunkItem, segment: &Segment) -> Vec<Way> {
        let is_present = |stripe: &usize| self.device(chunk, *stripe).is_some();
        let (row, data) = match segment.placement {
            Placement::Copies { first, count } => {
                let present = (first..first + count).filter(is_present);
                return present.map(Way::Direct).collect();
            }
            Placement::Parity { row, data } => (row, data),
        };
        let roles = chunk.stripes.len();
        let stripe = |role| chunk.stripe_of_role(row, role);
        let missing: Vec<usize> = (0..roles)
            .filter(|&role| role != data && !is_present(&stripe(role)))
            .collect();
        let mut ways = Vec::new();
        if is_present(&stripe(data)) {
            ways.push(Way::Direct(stripe(data)));
        }
        let tolerated = usize::from(chunk.profile.tolerated_failures());
        if missing.len() < tolerated {
            ways.push(Way::Rebuilt {
                row,
                data,
                without: missing.clone(),
            });
        }
        if missing.len() + 1 < tolerated {
            // One more device of the row may hold what it should not, and which one is not known.
            let others = (0..roles).filter(|role| *role != data && !missing.contains(role));
            ways.extend(others.map(|role| Way::Rebuilt {
                row,
                data,
                without: [&missing[..], &[role]].concat(),
            }));
        }
        ways
    }
}

impl MetadataStore for ChunkStore {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn len_bytes(&self) -> u64 {
        self.map().end().0
    }

    fn copies(&self, at: u64, len_bytes: u32) -> u16 {
        self.copies(LogicalAddr(at), len_bytes.into())
    }

    fn read(&self, at: u64, copy: u16, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BufferError> {
        self.read(LogicalAddr(at), copy, bufs)
    }

    fn write(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        self.write(LogicalAddr(at), bufs)
    }

    fn repair(&self, at: u64, _copy: u16, bytes: &[u8]) -> Result<(), BufferError> {
        let len_bytes = bytes.len() as u64;
        Err(IoError::read_only(&self.name, Operation::Write, at, len_bytes).into())
    }
}

/// A part of a row from which another one is reconstructed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The device that the part is on.
    pub device: DeviceId,
    /// Its address on the device.
    pub place: DeviceAddr,
    /// The logical address of data; `None` for parity, and beyond the end of the chunk.
    pub data: Option<LogicalAddr>,
}

/// A way to read a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// From this stripe.
    Direct(usize),
    /// From the others of its row, but for those with the roles `without`.
    Rebuilt {
        row: u64,
        data: usize,
        without: Vec<usize>,
    },
}

/// A range of a row that is reconstructed.
pub(super) struct Rebuild<'s> {
    pub(super) store: &'s ChunkStore,
    pub(super) chunk: &'s ChunkItem,
    pub(super) row: u64,
    pub(super) offset: u64,
    pub(super) len_bytes: usize,
}

impl Rebuild<'_> {
    /// The roles that [`data`](Self::data) reads: of parity, as much as is needed.
    fn roles(chunk: &ChunkItem, lost: usize, without: &[usize]) -> Vec<usize> {
        let count = chunk.data_stripes();
        let is_read = |role: &usize| *role != lost && !without.contains(role);
        let needed = 1 + without.iter().filter(|role| **role < count).count();
        let parity = (count..chunk.stripes.len()).filter(is_read);
        let data = (0..count).filter(is_read);
        data.chain(parity.take(needed)).collect()
    }

    /// The data number `lost`, without the use of the roles `without`.
    pub(super) fn data(&self, lost: usize, without: &[usize]) -> Result<Vec<u8>, BufferError> {
        let count = self.chunk.data_stripes();
        let (p_role, q_role) = (count, count + 1);
        let other = without.iter().copied().find(|&role| role < count);
        let has_p = !without.contains(&p_role);
        let has_q = self.chunk.profile == Profile::Raid6 && !without.contains(&q_role);
        if let Some(other) = other {
            if !has_p || !has_q {
                return Err(self.unrecoverable(lost));
            }
            let mut p = self.read(p_role)?;
            let mut q = self.read(q_role)?;
            for role in (0..count).filter(|&role| role != lost && role != other) {
                let data = self.read(role)?;
                parity::add(&mut p, &data);
                parity::add_weighted(&mut q, &data, role);
            }
            parity::recover_two(&mut p, &q, lost, other);
            return Ok(p);
        }
        if has_p {
            let mut sum = self.read(p_role)?;
            for role in (0..count).filter(|&role| role != lost) {
                parity::add(&mut sum, &self.read(role)?);
            }
            return Ok(sum);
        }
        if !has_q {
            return Err(self.unrecoverable(lost));
        }
        let mut sum = self.read(q_role)?;
        for role in (0..count).filter(|&role| role != lost) {
            parity::add_weighted(&mut sum, &self.read(role)?, role);
        }
        parity::recover_from_q(&mut sum, lost);
        Ok(sum)
    }

    fn read(&self, role: usize) -> Result<Vec<u8>, BufferError> {
        let mut bytes = vec![0; self.len_bytes];
        let stripe = self.chunk.stripe_of_role(self.row, role);
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        self.store
            .read_stripe(self.chunk, stripe, self.offset, bufs)?;
        Ok(bytes)
    }

    fn unrecoverable(&self, lost: usize) -> BufferError {
        let stripe = self.chunk.stripe_of_role(self.row, lost);
        let at = self.chunk.device_addr(stripe, self.offset).0;
        let len_bytes = self.len_bytes as u64;
        self.store
            .missing(self.chunk, stripe, Operation::Read, at, len_bytes)
            .into()
    }
}

impl fmt::Debug for ChunkStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChunkStore")
            .field("name", &self.name)
            .field("chunks", &self.map().iter().count())
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

/// Splits a list of buffers after its first `count` bytes.
fn split(bufs: Vec<&mut [u8]>, count: u64) -> (Vec<IoSliceMut<'_>>, Vec<&mut [u8]>) {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for buf in bufs {
        let (head, tail) = buf.split_at_mut(left.min(buf.len()));
        left -= head.len();
        if !head.is_empty() {
            before.push(IoSliceMut::new(head));
        }
        if !tail.is_empty() {
            after.push(tail);
        }
    }
    (before, after)
}

/// Copies bytes into buffers one after the other.
fn copy_into(mut bytes: &[u8], bufs: &mut [IoSliceMut<'_>]) {
    for buf in bufs {
        let (now, later) = bytes.split_at(bytes.len().min(buf.len()));
        buf[..now.len()].copy_from_slice(now);
        bytes = later;
    }
}
