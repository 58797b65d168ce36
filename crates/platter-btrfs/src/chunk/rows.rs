//! Writing of rows with parity: whole ones at once, others after what they hold was read and verified.
//!
//! A row is locked while it is written, and while a part of it is reconstructed.

use std::ops::Range;

use platter_block::Operation;
use platter_block::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use platter_cache::BufferError;

use super::layout::{Placement, Segment};
use super::parity;
use super::store::{ChunkStore, Rebuild, Source, Way};
use crate::ondisk::chunk_item::{ChunkItem, STRIPE_BYTES};
use crate::ondisk::tree_block::TreeBlockFormat;
use crate::ondisk::{DeviceId, LogicalAddr};

const LOCKS: usize = 64;

/// Locks of rows, many rows to one lock. A thread holds one at a time.
#[derive(Debug)]
pub(super) struct RowLocks([RwLock<(), { rank(15, 0) }>; LOCKS]);

impl Default for RowLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| RwLock::default()))
    }
}

impl RowLocks {
    fn of(&self, chunk: &ChunkItem, row: u64) -> &RwLock<(), { rank(15, 0) }> {
        let number = (chunk.start.0 / STRIPE_BYTES).wrapping_add(row);
        &self.0[usize::try_from(number % LOCKS as u64).unwrap_or_default()]
    }

    /// Keeps a row as it is.
    pub(super) fn read(&self, chunk: &ChunkItem, row: u64) -> RwLockReadGuard<'_, ()> {
        self.of(chunk, row).read()
    }

    /// Locks a row to change it.
    pub(super) fn write(&self, chunk: &ChunkItem, row: u64) -> RwLockWriteGuard<'_, ()> {
        self.of(chunk, row).write()
    }
}

/// Verifies what a row holds besides what is written: new parity is made of it.
pub trait RowVerifier {
    /// The size of what is verified at once, at multiples of it.
    fn unit_bytes(&self) -> u64;

    /// Whether these are the bytes of the unit at an address; `None` if that is not known.
    fn verify(&self, logical: LogicalAddr, bytes: &[u8]) -> Option<bool>;
}

/// What is known of a unit of each data of a row, parts of which may be out of date.
pub trait RowDoubts {
    /// Whether a part of the row may be out of date, unless it passes its verification.
    fn is_doubted(&self, part: &Source) -> bool;

    /// Whether any of the unit of data at an address is in use.
    fn is_in_use(&self, at: LogicalAddr) -> bool;

    /// Whether these are the bytes of the unit of data at an address; `None` if that is not known.
    fn verify(&self, at: LogicalAddr, bytes: &[u8]) -> Option<bool>;
}

/// Finds what verifies a range of addresses. It is called with no row locked.
pub type FindVerifier<'f> = &'f dyn Fn(&Range<u64>) -> Box<dyn RowVerifier>;

/// Verifies tree blocks.
impl RowVerifier for TreeBlockFormat {
    fn unit_bytes(&self) -> u64 {
        self.node_bytes.into()
    }

    fn verify(&self, logical: LogicalAddr, bytes: &[u8]) -> Option<bool> {
        Some(Self::verify(self, logical, bytes).is_ok())
    }
}

/// Verifies nothing.
#[derive(Debug, Clone, Copy)]
pub struct Unverified;

impl RowVerifier for Unverified {
    fn unit_bytes(&self) -> u64 {
        STRIPE_BYTES
    }

    fn verify(&self, _: LogicalAddr, _: &[u8]) -> Option<bool> {
        None
    }
}

/// Parity that is not that of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongParity {
    /// The device that it is on.
    pub device: DeviceId,
    /// Whether it is right now.
    pub is_rewritten: bool,
}

/// What a comparison of parity with data came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParityCheck {
    /// Wrong parity; not looked for if data of the row is on a missing device and no part may be out of date.
    Compared(Vec<WrongParity>),
    /// What the parity is to be is not known.
    Unreadable {
        /// The data that cannot be read or reconstructed.
        data: Vec<Source>,
        /// What else of the row is on devices that are present.
        others: Vec<Source>,
    },
}

/// What a stripe has in some columns of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Addresses of data that fails its verification, which is corrupt or not in use: the restored data itself, or data
    /// from which parity is computed.
    pub wrong: Vec<LogicalAddr>,
}

/// A part of a stripe's piece of a row, and its bytes.
struct Piece {
    offset: usize,
    bytes: Vec<u8>,
}

/// A row that is written.
pub(super) struct RowWrite<'s> {
    pub(super) store: &'s ChunkStore,
    pub(super) chunk: &'s ChunkItem,
    pub(super) row: u64,
}

impl RowWrite<'_> {
    fn row_bytes(&self) -> u64 {
        self.chunk.data_stripes() as u64 * STRIPE_BYTES
    }

    /// The address of the first byte of the row.
    fn start(&self) -> u64 {
        self.chunk.start.0 + self.row * self.row_bytes()
    }

    /// Writes `bytes`, which begin `inside` the row and end in it.
    pub(super) fn write(
        &self,
        inside: u64,
        bytes: &[u8],
        find: FindVerifier<'_>,
    ) -> Result<(), BufferError> {
        let end = inside + bytes.len() as u64;
        let (first, last) = (inside / STRIPE_BYTES, (end - 1) / STRIPE_BYTES);
        // The same part of each stripe: all of it if several are written.
        let columns = if first == last {
            inside % STRIPE_BYTES..(end - 1) % STRIPE_BYTES + 1
        } else {
            0..STRIPE_BYTES
        };
        let new = self.divide(inside, bytes, &columns);
        let is_whole = new
            .iter()
            .all(|piece| piece.bytes.len() as u64 == columns.end - columns.start);
        if is_whole {
            let _turn = self.store.rows().write(self.chunk, self.row);
            return self.store_row(&columns, &new, new.iter().map(|it| &it.bytes[..]), &[]);
        }
        let row = self.start()..self.start() + self.row_bytes();
        let verifier = find(&row);
        let _turn = self.store.rows().write(self.chunk, self.row);
        let mut old = Vec::with_capacity(new.len());
        let mut repaired = Vec::new();
        for (data, piece) in new.iter().enumerate() {
            let found = self.read_data(data, &columns, piece, &*verifier)?;
            repaired.extend(found.repaired.into_iter().map(|range| (data, range)));
            old.push(found.bytes);
        }
        for (old, piece) in old.iter_mut().zip(&new) {
            if let Some(place) = old.get_mut(piece.offset..piece.offset + piece.bytes.len()) {
                place.copy_from_slice(&piece.bytes);
            }
        }
        let data = old.iter().map(|bytes| &bytes[..]);
        let repairs: Vec<_> = repaired
            .into_iter()
            .filter_map(|(data, range): (usize, Range<usize>)| {
                Some((data, range.start, old.get(data)?.get(range)?))
            })
            .collect();
        self.store_row(&columns, &new, data, &repairs)
    }

    /// What is written of each data of the row, from the beginning of the columns.
    fn divide(&self, inside: u64, bytes: &[u8], columns: &Range<u64>) -> Vec<Piece> {
        let end = inside + bytes.len() as u64;
        let to_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let piece = |data: usize| {
            let from = data as u64 * STRIPE_BYTES;
            let (start, stop) = (from + columns.start, from + columns.end);
            let (start, stop) = (start.max(inside), stop.min(end));
            if start >= stop {
                return Piece {
                    offset: 0,
                    bytes: Vec::new(),
                };
            }
            let own = bytes.get(to_usize(start - inside)..to_usize(stop - inside));
            Piece {
                offset: to_usize(start - from - columns.start),
                bytes: own.unwrap_or_default().to_vec(),
            }
        };
        (0..self.chunk.data_stripes()).map(piece).collect()
    }

    /// The columns of one data as they are, except for the piece that is written.
    fn read_data(
        &self,
        data: usize,
        columns: &Range<u64>,
        piece: &Piece,
        verifier: &dyn RowVerifier,
    ) -> Result<Found, BufferError> {
        let len = usize::try_from(columns.end - columns.start).unwrap_or_default();
        let mut found = Found {
            bytes: vec![0; len],
            repaired: Vec::new(),
            is_wrong: false,
        };
        let written = piece.offset..piece.offset + piece.bytes.len();
        if written == (0..len) {
            return Ok(found);
        }
        let is_read = self
            .read_role(data, columns.start, &mut found.bytes)
            .is_ok();
        let unit = usize::try_from(verifier.unit_bytes()).unwrap_or(len).max(1);
        let mut at = 0;
        while at < len {
            let units = at..(at + unit).min(len);
            at = units.end;
            // What is written by half is not verified: nothing is known of the other half.
            let is_new = units.start < written.end && written.start < units.end;
            if is_read && is_new || written.start <= units.start && units.end <= written.end {
                continue;
            }
            let offset = columns.start + units.start as u64;
            let logical = self.logical(data, offset);
            let Some(bytes) = found.bytes.get_mut(units.clone()) else {
                continue;
            };
            if is_read && verifier.verify(logical, bytes) != Some(false) {
                continue;
            }
            let segment = Segment {
                len_bytes: bytes.len() as u64,
                placement: Placement::Parity {
                    row: self.row,
                    data,
                },
                offset: self.row * STRIPE_BYTES + offset,
            };
            let verifier = (!is_new).then_some(verifier);
            match self.rebuild(&segment, logical, verifier) {
                Ok((good, is_right)) if is_right || !is_read => {
                    bytes.copy_from_slice(&good);
                    found.is_wrong |= !is_right;
                    found.repaired.extend(is_right.then_some(units));
                }
                Err(error) if !is_read => return Err(error),
                // It stays as it is, and is found bad by those that read it.
                Ok(_) | Err(_) => found.is_wrong = true,
            }
        }
        Ok(found)
    }

    /// What one stripe has in some columns, reconstructed where it cannot be read.
    pub(super) fn restore(
        &self,
        stripe: usize,
        columns: &Range<u64>,
        verifier: &dyn RowVerifier,
    ) -> Result<Restored, BufferError> {
        let role = self.chunk.role_of_stripe(self.row, stripe);
        let _stay = self.store.rows().read(self.chunk, self.row);
        let none_is_written = Piece {
            offset: 0,
            bytes: Vec::new(),
        };
        let read = |data| self.read_data(data, columns, &none_is_written, verifier);
        let count = self.chunk.data_stripes();
        if role < count {
            let found = read(role)?;
            let wrong = found.is_wrong.then(|| self.logical(role, columns.start));
            return Ok(Restored {
                bytes: found.bytes,
                wrong: wrong.into_iter().collect(),
            });
        }
        let data: Vec<_> = (0..count).map(read).collect::<Result<_, _>>()?;
        let len = usize::try_from(columns.end - columns.start).unwrap_or_default();
        let [p, q] = self.parity_of(len, data.iter().map(|found| &found.bytes[..]));
        let wrong = data.iter().enumerate().filter(|(_, found)| found.is_wrong);
        Ok(Restored {
            bytes: if role == count { p } else { q },
            wrong: wrong
                .map(|(role, _)| self.logical(role, columns.start))
                .collect(),
        })
    }

    /// The address of a column of data.
    fn logical(&self, role: usize, column: u64) -> LogicalAddr {
        LogicalAddr(self.start() + role as u64 * STRIPE_BYTES + column)
    }

    /// Returns the first reconstruction of a unit that passes its verification. One that cannot be verified passes
    /// unless data that it is made of fails its own. If none passes, returns the first one and `false`.
    fn rebuild(
        &self,
        segment: &Segment,
        logical: LogicalAddr,
        verifier: Option<&dyn RowVerifier>,
    ) -> Result<(Vec<u8>, bool), BufferError> {
        let mut failure = None;
        let mut wrong = None;
        for way in self.store.ways(self.chunk, segment) {
            let Way::Rebuilt { row, data, without } = way else {
                continue;
            };
            let rebuild = Rebuild {
                store: self.store,
                chunk: self.chunk,
                row,
                offset: segment.offset,
                len_bytes: usize::try_from(segment.len_bytes).unwrap_or(usize::MAX),
            };
            match rebuild.data(data, &without) {
                Ok(bytes) => {
                    let is_wrong = verifier.is_some_and(|verifier| {
                        let verdict = verifier.verify(logical, &bytes);
                        let made_of = || self.is_any_wrong(segment, (data, &without), verifier);
                        !verdict.unwrap_or_else(|| !made_of())
                    });
                    if !is_wrong {
                        return Ok((bytes, true));
                    }
                    wrong = wrong.or(Some(bytes));
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match wrong {
            Some(bytes) => Ok((bytes, false)),
            None => Err(failure.unwrap_or_else(|| self.store.all_missing(self.chunk, segment))),
        }
    }

    /// Some columns of data, reconstructed without other roles; `None` if these are too many, or something cannot be
    /// read.
    fn rebuild_without(
        &self,
        lost: usize,
        columns: &Range<u64>,
        without: &[usize],
    ) -> Option<Vec<u8>> {
        if without.len() >= usize::from(self.chunk.profile.tolerated_failures()) {
            return None;
        }
        let rebuild = Rebuild {
            store: self.store,
            chunk: self.chunk,
            row: self.row,
            offset: self.row * STRIPE_BYTES + columns.start,
            len_bytes: usize::try_from(columns.end - columns.start).unwrap_or_default(),
        };
        rebuild.data(lost, without).ok()
    }

    /// Where a column of a role is.
    pub(super) fn source(&self, role: usize, column: u64) -> Option<Source> {
        let stripe = self.chunk.stripe_of_role(self.row, role);
        let inside = role as u64 * STRIPE_BYTES + column;
        let inside = (self.row * self.row_bytes()).saturating_add(inside);
        // Of a row that is incomplete, the rest has no address.
        let is_data = role < self.chunk.data_stripes() && inside < self.chunk.len_bytes;
        Some(Source {
            device: self.chunk.stripes.get(stripe)?.device,
            place: self
                .chunk
                .device_addr(stripe, self.row * STRIPE_BYTES + column),
            data: is_data.then(|| self.logical(role, column)),
        })
    }

    /// Whether any of the data that `lost` is reconstructed from, without some roles, fails its verification.
    fn is_any_wrong(
        &self,
        segment: &Segment,
        (lost, without): (usize, &[usize]),
        verifier: &dyn RowVerifier,
    ) -> bool {
        let column = segment.offset - self.row * STRIPE_BYTES;
        let mut bytes = vec![0; usize::try_from(segment.len_bytes).unwrap_or_default()];
        let mut others =
            (0..self.chunk.data_stripes()).filter(|role| *role != lost && !without.contains(role));
        others.any(|role| {
            self.read_role(role, column, &mut bytes).is_ok()
                && verifier.verify(self.logical(role, column), &bytes) == Some(false)
        })
    }

    fn read_role(&self, role: usize, column: u64, bytes: &mut [u8]) -> Result<(), BufferError> {
        let stripe = self.chunk.stripe_of_role(self.row, role);
        let offset = self.row * STRIPE_BYTES + column;
        let bufs = &mut [std::io::IoSliceMut::new(bytes)];
        self.store.read_stripe(self.chunk, stripe, offset, bufs)
    }

    /// Writes the new pieces, what was found bad, and the parity of the columns of `data`.
    fn store_row<'d>(
        &self,
        columns: &Range<u64>,
        new: &[Piece],
        data: impl Iterator<Item = &'d [u8]>,
        repairs: &[(usize, usize, &[u8])],
    ) -> Result<(), BufferError> {
        let count = self.chunk.data_stripes();
        let len = usize::try_from(columns.end - columns.start).unwrap_or_default();
        let [p, q] = self.parity_of(len, data);
        self.refuse_loss(columns)?;
        let pieces = new.iter().enumerate();
        for (role, piece) in pieces.filter(|(_, piece)| !piece.bytes.is_empty()) {
            self.write_role(role, columns.start + piece.offset as u64, &piece.bytes)?;
        }
        for (role, offset, bytes) in repairs {
            self.write_role(*role, columns.start + *offset as u64, bytes)?;
        }
        self.write_role(count, columns.start, &p)?;
        if !q.is_empty() {
            self.write_role(count + 1, columns.start, &q)?;
        }
        Ok(())
    }

    /// P and Q of data of one length; an empty Q where there is none.
    fn parity_of<'d>(&self, len: usize, data: impl Iterator<Item = &'d [u8]>) -> [Vec<u8>; 2] {
        let has_q = self.chunk.profile.parity() > 1;
        let mut p = vec![0; len];
        let mut q = vec![0; if has_q { len } else { 0 }];
        for (index, bytes) in data.enumerate() {
            parity::add(&mut p, bytes);
            if has_q {
                parity::add_weighted(&mut q, bytes, index);
            }
        }
        [p, q]
    }

    /// Compares the parity of `columns` with the data, and rewrites it if `repairs`. With `doubts`, `columns` is one unit
    /// at most, and data on missing devices is reconstructed if a part of the row may be out of date.
    pub(super) fn check_parity(
        &self,
        columns: &Range<u64>,
        repairs: bool,
        doubts: Option<&dyn RowDoubts>,
    ) -> ParityCheck {
        let _turn = self.store.rows().write(self.chunk, self.row);
        let count = self.chunk.data_stripes();
        let len = usize::try_from(columns.end - columns.start).unwrap_or_default();
        let roles = 0..self.chunk.stripes.len();
        let missing: Vec<usize> = roles.clone().filter(|it| self.is_missing(*it)).collect();
        let is_data_missing = missing.iter().any(|role| *role < count);
        if is_data_missing && doubts.is_none() {
            return ParityCheck::Compared(Vec::new());
        }
        let mut data = Vec::with_capacity(count);
        let mut unreadable = Vec::new();
        for role in 0..count {
            let mut bytes = vec![0; len];
            let is_read = self.read_role(role, columns.start, &mut bytes).is_ok();
            if !is_read && !missing.contains(&role) {
                unreadable.push(role);
            }
            data.push(bytes);
        }
        if is_data_missing && let Some(doubts) = doubts {
            let is_doubted = |role: &usize| {
                let bytes = data.get(*role).map(Vec::as_slice);
                let bytes = bytes.filter(|_| !unreadable.contains(role));
                self.is_doubted(*role, columns, doubts, bytes)
            };
            let present = roles.clone().filter(|role| !missing.contains(role));
            let doubted: Vec<usize> = present.filter(is_doubted).collect();
            if doubted.is_empty() {
                return ParityCheck::Compared(Vec::new());
            }
            for &role in missing.iter().filter(|role| **role < count) {
                let rebuilt = self.rebuild_missing(role, columns, (&missing, &doubted), doubts);
                match (rebuilt, data.get_mut(role)) {
                    (Some(rebuilt), Some(bytes)) => *bytes = rebuilt,
                    _ => unreadable.push(role),
                }
            }
        }
        if !unreadable.is_empty() {
            let source = |role: usize| self.source(role, columns.start);
            let others = roles.filter(|role| !unreadable.contains(role) && !missing.contains(role));
            return ParityCheck::Unreadable {
                others: others.filter_map(source).collect(),
                data: unreadable.iter().copied().filter_map(source).collect(),
            };
        }
        let right = self.parity_of(len, data.iter().map(|bytes| &bytes[..]));
        ParityCheck::Compared(self.compare_parity(columns, right, repairs))
    }

    fn compare_parity(
        &self,
        columns: &Range<u64>,
        right: [Vec<u8>; 2],
        repairs: bool,
    ) -> Vec<WrongParity> {
        let mut wrong = Vec::new();
        let roles = (self.chunk.data_stripes()..).zip(right);
        for (role, right) in roles.filter(|(_, right)| !right.is_empty()) {
            if self.is_missing(role) {
                continue;
            }
            let mut bytes = vec![0; right.len()];
            if self.read_role(role, columns.start, &mut bytes).is_err() || bytes != right {
                let stripe = self.chunk.stripe_of_role(self.row, role);
                let device = self.chunk.stripes.get(stripe).map(|it| it.device);
                let is_rewritten = repairs && self.write_role(role, columns.start, &right).is_ok();
                wrong.extend(device.map(|device| WrongParity {
                    device,
                    is_rewritten,
                }));
            }
        }
        wrong
    }

    /// Whether any data of the row is on a missing device.
    pub(super) fn is_data_missing(&self) -> bool {
        (0..self.chunk.data_stripes()).any(|role| self.is_missing(role))
    }

    fn is_missing(&self, role: usize) -> bool {
        let stripe = self.chunk.stripe_of_role(self.row, role);
        self.store.device(self.chunk, stripe).is_none()
    }

    /// Whether a unit may be out of date; `bytes` are those of data that could be read.
    fn is_doubted(
        &self,
        role: usize,
        columns: &Range<u64>,
        doubts: &dyn RowDoubts,
        bytes: Option<&[u8]>,
    ) -> bool {
        let Some(part) = self.source(role, columns.start) else {
            return false;
        };
        let is_right = match (part.data, bytes) {
            (Some(at), Some(bytes)) => doubts.verify(at, bytes) == Some(true),
            _ => false,
        };
        !is_right && doubts.is_doubted(&part)
    }

    /// Reconstructs a unit of data on a missing device without the parts in doubt, if that is possible and the result does
    /// not fail its verification. Otherwise with them: the result must pass, or the unit must be unused. `None` if neither
    /// works.
    fn rebuild_missing(
        &self,
        lost: usize,
        columns: &Range<u64>,
        (missing, doubted): (&[usize], &[usize]),
        doubts: &dyn RowDoubts,
    ) -> Option<Vec<u8>> {
        let at = self.logical(lost, columns.start);
        let missing = missing.iter().copied().filter(|role| *role != lost);
        let missing: Vec<usize> = missing.collect();
        if let Some(bytes) = self.rebuild_without(lost, columns, &[&missing[..], doubted].concat())
            && doubts.verify(at, &bytes) != Some(false)
        {
            return Some(bytes);
        }
        let bytes = self.rebuild_without(lost, columns, &missing)?;
        let is_right = |bytes: &[u8]| doubts.verify(at, bytes) == Some(true);
        if is_right(&bytes) || !doubts.is_in_use(at) {
            return Some(bytes);
        }
        // With no other part missing, that was by P.
        let p_role = self.chunk.data_stripes();
        let by_q = self.rebuild_without(lost, columns, &[&missing[..], &[p_role]].concat());
        by_q.filter(|bytes| is_right(bytes))
    }

    /// Refuses to write to a row of which more devices are missing than it can do without.
    fn refuse_loss(&self, columns: &Range<u64>) -> Result<(), BufferError> {
        let stripes = 0..self.chunk.stripes.len();
        let mut missing = stripes.filter(|stripe| self.store.device(self.chunk, *stripe).is_none());
        let tolerated = usize::from(self.chunk.profile.tolerated_failures());
        let Some(stripe) = missing.nth(tolerated) else {
            return Ok(());
        };
        let at = self
            .chunk
            .device_addr(stripe, self.row * STRIPE_BYTES + columns.start);
        let len_bytes = columns.end - columns.start;
        let store = self.store;
        let error = store.missing(self.chunk, stripe, Operation::Write, at.0, len_bytes);
        Err(error.into())
    }

    /// Writes a part of the row's piece of one device, unless the device is missing.
    fn write_role(&self, role: usize, column: u64, bytes: &[u8]) -> Result<(), BufferError> {
        let stripe = self.chunk.stripe_of_role(self.row, role);
        let at = self
            .chunk
            .device_addr(stripe, self.row * STRIPE_BYTES + column);
        match self.store.device(self.chunk, stripe) {
            Some(device) => Ok(device.write_at(at.0, bytes)?),
            None => Ok(()),
        }
    }
}

/// What the columns of one data hold.
struct Found {
    bytes: Vec<u8>,
    /// What was reconstructed.
    repaired: Vec<Range<usize>>,
    /// Something is wrong, and could not be reconstructed.
    is_wrong: bool,
}
