//! Writing checkpoints to the log, record by record, and the record that ends it.

use platter_vfs::Result;

use super::item::{Content, ItemKey, Regions};
use super::lists::Closed;
use super::record::{Bodies, Body, Place};
use super::{Log, write_back};
use crate::ondisk::log::operation::{UNMOUNT_TID, unmount_data};
use crate::ondisk::log::record::{RECORDS_IN_FLIGHT_MAX, SECTOR_BYTES};
use crate::ondisk::log::{Client, OpFlags, Operation};
use crate::ondisk::{Geometry, Lsn};
use crate::txn::LogPosition;

/// Where the next record goes.
#[derive(Debug)]
pub(super) struct Position {
    head: u32,
    cycle: u32,
    /// The record before.
    last: u32,
}

impl Position {
    pub(super) fn new(position: &LogPosition) -> Self {
        Self {
            head: position.head,
            cycle: position.cycle,
            last: position.last,
        }
    }

    #[cfg(test)]
    pub(super) fn has_wrapped(&self) -> bool {
        self.cycle > 1
    }

    fn lsn(&self) -> Lsn {
        Lsn::new(self.cycle, self.head)
    }

    fn advance(&mut self, sectors: u32, end: u32) {
        self.last = self.head;
        self.head += sectors;
        if self.head >= end {
            self.head -= end;
            self.cycle = self.cycle.wrapping_add(1);
        }
    }
}

/// Verifies the blocks of a checkpoint that commits did not verify, in the version that is written to the log, and
/// later to its place.
fn verify(closed: &Closed, geometry: &Geometry) -> Result<()> {
    for (key, content, _) in &closed.items {
        if let (ItemKey::Block(at, _), Content::Block { what, version }) = (key, content)
            && what.is_changed_in_place()
        {
            what.verifier(geometry, |verifier| verifier.verify_sealed(at.0, version))?;
        }
    }
    Ok(())
}

impl Log {
    /// Writes the running checkpoint, if it holds anything. Returns the number of the last one that is closed
    /// and durable then, and whether the data device was flushed.
    pub(super) fn write_checkpoint(&self) -> Result<(u64, bool)> {
        let mut position = self.position.lock();
        let (closed, tail) = {
            let mut lists = self.lists.lock();
            let Some(closed) = lists.close() else {
                return Ok((lists.sequence() - 1, false));
            };
            (closed, lists.tail())
        };
        verify(&closed, &self.geometry)?;
        let start = position.lsn();
        let tail = tail.unwrap_or(start);
        // What has left the tail, and the data that the checkpoint refers to, is in its place.
        self.data.flush()?;
        let bodies = self.bodies(&closed, start);
        let last = bodies.len().saturating_sub(1);
        for (index, body) in bodies.into_iter().enumerate() {
            // No more records are in flight than recovery expects, and none with the last one.
            let in_flight = RECORDS_IN_FLIGHT_MAX as usize - 1;
            if index > 0 && (index == last || index.is_multiple_of(in_flight)) {
                self.device.flush()?;
            }
            self.write_record(&mut position, body, tail)?;
        }
        self.device.flush()?;
        self.finish(closed, start, position.lsn());
        let sequence = self.lists.lock().sequence();
        Ok((sequence - 1, true))
    }

    /// The records of a checkpoint that begins at `start`.
    fn bodies(&self, closed: &Closed, start: Lsn) -> Vec<Body> {
        let mut regions = Regions::with_capacity(closed.log_bytes);
        for (key, content, dirty) in &closed.items {
            content.log(*key, dirty, &self.geometry, &mut regions);
        }
        let count = u32::try_from(regions.count()).unwrap_or(u32::MAX);
        // No two checkpoints in the live part of the log begin in one sector: the live part may hold the first records
        // of one that a crash cut, which has no end. No log is so long that this is the id of an unmount record.
        let mut bodies = Bodies::begin(self.shape, start.block(), count);
        for region in regions.iter() {
            bodies.region(region);
        }
        bodies.end()
    }

    fn write_record(&self, position: &mut Position, body: Body, tail: Lsn) -> Result<()> {
        let place = Place {
            head: position.head,
            cycle: position.cycle,
            last: position.last,
            tail,
        };
        let record = body.encode(self.shape, &place, &self.device);
        self.device.write(position.head, &record)?;
        let sectors = u32::try_from(record.len() / SECTOR_BYTES).unwrap_or(u32::MAX);
        position.advance(sectors, self.device.sectors());
        Ok(())
    }

    /// A checkpoint is durable in the log from `start` to `head`.
    fn finish(&self, closed: Closed, start: Lsn, head: Lsn) {
        let log_bytes = closed.log_bytes;
        let freed = {
            let mut lists = self.lists.lock();
            let freed = lists.committed(closed, start);
            self.grants.lock().written(log_bytes, head, lists.tail());
            freed
        };
        write_back::forget(self, &freed);
        self.space.notify_all();
    }

    pub(super) fn write_unmount_record(&self) -> Result<()> {
        let mut position = self.position.lock();
        let data = unmount_data();
        let body = Body::of_operation(&Operation {
            tid: UNMOUNT_TID,
            client: Client::Log,
            flags: OpFlags::UNMOUNT,
            data: &data,
        });
        let tail = position.lsn();
        self.write_record(&mut position, body, tail)?;
        self.device.flush()
    }
}
