//! Checkpoints in the form of the log: operations, in records of the size of a log buffer. A region that
//! does not fit into a record goes on in the next one.

use crate::ondisk::Lsn;
use crate::ondisk::log::operation::CHECKPOINT;
use crate::ondisk::log::record::{HEADER_COVERS_BYTES, RECORD_BYTES_MAX, SECTOR_BYTES, pack};
use crate::ondisk::log::{
    Client, LogByteOrder, OpFlags, Operation, RecordHeader, TransactionHeader,
};
use crate::txn::LogDevice;

/// The header of an operation.
pub(super) const OPERATION_BYTES: u64 = 12;
const OPERATION_LEN: usize = 12;
/// Start and end of a transaction, and its header.
const FRAME_BYTES: u64 = 3 * OPERATION_BYTES + 16;
/// What a region that goes on in another record costs there, and what a record may leave unused.
const SPLIT_BYTES: u64 = 3 * OPERATION_BYTES;
/// The smallest log buffer (`logbsize`).
const BUFFER_BYTES_MIN: u32 = 16 << 10;

/// The sizes of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Size of a log buffer, its header included.
    size: u32,
    /// What records are padded to.
    unit: u32,
}

/// The operations of one record.
#[derive(Debug, Default)]
pub(super) struct Body {
    bytes: Vec<u8>,
    operations: u32,
}

/// Where a record goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) head: u32,
    pub(super) cycle: u32,
    /// The record before.
    pub(super) last: u32,
    /// What recovery has to begin with.
    pub(super) tail: Lsn,
}

impl Shape {
    pub(super) fn of(log: &LogDevice) -> Self {
        let unit = log.record_unit_bytes();
        let size = if unit > HEADER_COVERS_BYTES {
            RECORD_BYTES_MAX
        } else {
            HEADER_COVERS_BYTES
        };
        Self { size, unit }
    }

    /// The sizes of records that go on after those with this `h_size`: Linux recovers all records with that of the first,
    /// and with as many sectors of headers. `None` where it is the size of no log buffer.
    pub(super) fn following(log: &LogDevice, size: u32) -> Option<Self> {
        let unit = log.record_unit_bytes();
        let is_buffer = (BUFFER_BYTES_MIN..=RECORD_BYTES_MAX).contains(&size) && unit <= size;
        is_buffer.then_some(Self { size, unit })
    }

    fn header_bytes(self) -> u32 {
        self.size.div_ceil(HEADER_COVERS_BYTES) * 512
    }

    /// The most bytes of a record, with its padding: no more than the buffer has.
    fn record_bytes(self) -> u32 {
        self.size - self.size % self.unit
    }

    /// The most bytes of operations in a record.
    fn body_bytes(self) -> usize {
        (self.record_bytes() - self.header_bytes()) as usize
    }

    /// The most bytes of the log that a checkpoint takes whose items have `bytes`.
    pub(super) fn log_bytes(self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let bytes = bytes + FRAME_BYTES;
        let header = u64::from(self.header_bytes());
        let usable = u64::from(self.record_bytes()) - header - SPLIT_BYTES;
        let records = bytes.div_ceil(usable);
        bytes + records * (header + SPLIT_BYTES) + u64::from(self.unit)
    }

    /// The most that a transaction adds to a checkpoint if its own items have `bytes`.
    pub(super) fn reservation(self, bytes: u64) -> u64 {
        self.log_bytes(bytes) + u64::from(self.header_bytes()) + SPLIT_BYTES
    }
}

/// The records of a checkpoint.
#[derive(Debug)]
pub(super) struct Bodies {
    shape: Shape,
    tid: u32,
    done: Vec<Body>,
    body: Body,
}

impl Bodies {
    /// Begins transaction `tid` of so many regions.
    pub(super) fn begin(shape: Shape, tid: u32, regions: u32) -> Self {
        let mut bodies = Self {
            shape,
            tid,
            done: Vec::new(),
            body: Body::default(),
        };
        bodies.operation(OpFlags::START, &[]);
        let header = TransactionHeader {
            kind: CHECKPOINT,
            tid,
            items: regions,
        };
        bodies.region(&header.encode());
        bodies
    }

    /// Adds a region, in parts if need be.
    pub(super) fn region(&mut self, region: &[u8]) {
        let mut rest = region;
        let mut is_first = true;
        loop {
            let free = self.free();
            let (part, after) = rest.split_at(rest.len().min(free));
            let mut flags = OpFlags::empty();
            if !is_first {
                flags |= OpFlags::WAS_CONTINUED;
            }
            if after.is_empty() {
                if !is_first {
                    flags |= OpFlags::END;
                }
                return self.operation(flags, part);
            }
            self.operation(flags | OpFlags::CONTINUE, part);
            self.finish_body();
            (rest, is_first) = (after, false);
        }
    }

    /// Ends the transaction. Returns its records.
    pub(super) fn end(mut self) -> Vec<Body> {
        self.operation(OpFlags::COMMIT, &[]);
        self.finish_body();
        self.done
    }

    /// Bytes of a region that fit into the record, at least a word: else into the next one.
    fn free(&mut self) -> usize {
        const LEAST: usize = 4;
        let used = self.body.bytes.len() + OPERATION_LEN;
        let free = self.shape.body_bytes().saturating_sub(used);
        if free >= LEAST {
            return free - free % LEAST;
        }
        self.finish_body();
        self.shape.body_bytes() - OPERATION_LEN
    }

    fn operation(&mut self, flags: OpFlags, data: &[u8]) {
        if self.body.bytes.len() + OPERATION_LEN + data.len() > self.shape.body_bytes() {
            self.finish_body();
        }
        let operation = Operation {
            tid: self.tid,
            client: Client::Transaction,
            flags,
            data,
        };
        operation.encode(&mut self.body.bytes);
        self.body.operations += 1;
    }

    fn finish_body(&mut self) {
        let body = std::mem::take(&mut self.body);
        if body.operations > 0 {
            self.done.push(body);
        }
    }
}

impl Body {
    /// The body of an unmount record.
    pub(super) fn of_operation(operation: &Operation<'_>) -> Self {
        let mut body = Self::default();
        operation.encode(&mut body.bytes);
        body.operations = 1;
        body
    }

    /// The sectors of the record.
    pub(super) fn encode(mut self, shape: Shape, place: &Place, log: &LogDevice) -> Vec<u8> {
        let header_bytes = shape.header_bytes() as usize;
        let len = (header_bytes + self.bytes.len()).next_multiple_of(shape.unit as usize);
        self.bytes.resize(len - header_bytes, 0);
        let header = RecordHeader {
            cycle: place.cycle,
            version: log.version(),
            len: u32::try_from(self.bytes.len()).unwrap_or(u32::MAX),
            lsn: Lsn::new(place.cycle, place.head),
            tail_lsn: place.tail,
            crc: 0,
            prev_block: place.last,
            operations: self.operations,
            byte_order: LogByteOrder::LinuxLittle,
            uuid: log.uuid(),
            size: shape.size,
        };
        let mut sectors = header.encode();
        debug_assert_eq!(sectors.len(), header_bytes);
        let to_end = (log.sectors() - place.head) as usize;
        pack(&mut sectors, &mut self.bytes, place.cycle, Some(to_end));
        sectors.extend_from_slice(&self.bytes);
        debug_assert!(sectors.len().is_multiple_of(SECTOR_BYTES));
        sectors
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Locus;

    use super::*;
    use crate::ondisk::log::Operations;

    const SHAPES: [Shape; 10] = [
        shape(16 << 10, 512),
        shape(16 << 10, 16 << 10),
        shape(64 << 10, 512),
        shape(32 << 10, 512),
        shape(32 << 10, 12 << 10),
        shape(32 << 10, 28 << 10),
        shape(32 << 10, 32 << 10),
        shape(256 << 10, 96 << 10),
        shape(256 << 10, 160 << 10),
        shape(256 << 10, 256 << 10),
    ];

    const fn shape(size: u32, unit: u32) -> Shape {
        Shape { size, unit }
    }

    /// Puts the regions of records together again.
    fn joined(bodies: &[Body]) -> Vec<Vec<u8>> {
        let mut regions: Vec<Vec<u8>> = Vec::new();
        for body in bodies {
            let operations = Operations::new(&body.bytes, body.operations, Locus::UNKNOWN);
            for operation in operations {
                let operation = operation.unwrap();
                if operation.flags.intersects(OpFlags::START | OpFlags::COMMIT) {
                    assert!(operation.data.is_empty());
                } else if operation.flags.contains(OpFlags::WAS_CONTINUED) {
                    let last = regions.last_mut().unwrap();
                    last.extend_from_slice(operation.data);
                } else {
                    regions.push(operation.data.to_vec());
                }
            }
        }
        regions
    }

    #[test]
    fn regions_of_any_length_are_split_and_stay_whole() {
        for shape in SHAPES {
            for shift in 0..40_usize {
                let lens = [
                    4 * shift + 4,
                    40_000 + 4 * shift,
                    4,
                    4096,
                    60_000,
                    8,
                    27_000,
                ];
                let regions: Vec<Vec<u8>> =
                    (1..).zip(lens).map(|(fill, len)| vec![fill; len]).collect();
                let mut bodies = Bodies::begin(shape, 7, 7);
                for region in &regions {
                    bodies.region(region);
                }
                let bodies = bodies.end();
                assert!(
                    bodies
                        .iter()
                        .all(|body| body.bytes.len() <= shape.body_bytes())
                );
                assert_eq!(joined(&bodies)[1..], regions);
                let header = u64::from(shape.header_bytes());
                let unit = u64::from(shape.unit);
                let len = |body: &Body| (header + body.bytes.len() as u64).next_multiple_of(unit);
                let longest = bodies.iter().map(len).max().unwrap();
                assert!(longest <= u64::from(shape.size), "{shape:?} {longest}");
                let total: u64 = bodies.iter().map(len).sum();
                let items = regions
                    .iter()
                    .map(|region| region.len() as u64 + OPERATION_BYTES);
                assert!(total <= shape.log_bytes(items.sum()), "{shape:?} {shift}");
            }
        }
    }

    #[test]
    fn log_space_grows_with_items_and_by_no_more_than_reserved() {
        for shape in SHAPES {
            for before in [0, 100, 31_000, 32_000, 500_000] {
                for bytes in [12, 5_000, 100_000, 600_000] {
                    let grown = shape.log_bytes(before + bytes) - shape.log_bytes(before);
                    assert!(
                        grown <= shape.reservation(bytes),
                        "{shape:?} {before} {bytes}"
                    );
                }
            }
        }
    }
}
