//! A filesystem and a log in memory, written record by record.

use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_ondisk::Uuid;
use platter_vfs::{Error, Result};

use crate::ondisk::log::operation::{UNMOUNT_TID, unmount_data};
use crate::ondisk::log::record::pack;
use crate::ondisk::log::{
    BufferFlags, BufferFormat, BufferType, Client, LogByteOrder, OpFlags, Operation, RecordHeader,
    TransactionHeader,
};
use crate::ondisk::superblock::tests::sample as sample_superblock;
use crate::ondisk::{BasicBlock, Lsn, Superblock};
use crate::txn::{LogDevice, LogPosition, ReplayReport, find_position, replay, scan};

pub(super) const LOG_SECTORS: u32 = 4096;
pub(super) const DATA_BYTES: usize = 1 << 20;

/// One operation to log.
pub(super) type Op = (u32, OpFlags, Vec<u8>);

pub(super) struct Sample {
    pub(super) superblock: Superblock,
    pub(super) data: Arc<MemoryDevice>,
    pub(super) log: LogDevice,
    pub(super) disk: Arc<MemoryDevice>,
    pub(super) head: u32,
    pub(super) cycle: u32,
    pub(super) tail: Lsn,
    pub(super) byte_order: LogByteOrder,
    pub(super) uuid: Uuid,
}

impl Sample {
    /// A log that begins at `head` in `cycle`, as if it had been written up to there.
    pub(super) fn at(cycle: u32, head: u32) -> Self {
        let superblock = sample_superblock().decode().unwrap();
        let disk = Arc::new(MemoryDevice::new(
            "log",
            vec![0; LOG_SECTORS as usize * 512],
        ));
        let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&disk);
        let log = LogDevice::sample(device, superblock.uuid);
        for at in 0..LOG_SECTORS {
            let stamp = if at < head { cycle } else { cycle - 1 };
            log.write(at, &[&stamp.to_be_bytes()[..], &[0; 508]].concat())
                .unwrap();
        }
        Self {
            uuid: superblock.uuid,
            superblock,
            data: Arc::new(MemoryDevice::new("data", vec![0; DATA_BYTES])),
            log,
            disk,
            head,
            cycle,
            tail: Lsn::new(cycle, head),
            byte_order: LogByteOrder::LinuxLittle,
        }
    }

    pub(super) fn new() -> Self {
        Self::at(1, 0)
    }

    /// Writes a record and returns its place.
    pub(super) fn record(&mut self, operations: &[Op]) -> u32 {
        let mut body = Vec::new();
        for (tid, flags, data) in operations {
            let operation = Operation {
                tid: *tid,
                client: Client::Transaction,
                flags: *flags,
                data,
            };
            operation.encode(&mut body);
        }
        body.resize(body.len().next_multiple_of(512), 0);
        let header = RecordHeader {
            cycle: self.cycle,
            version: 2,
            len: u32::try_from(body.len()).unwrap(),
            lsn: Lsn::new(self.cycle, self.head),
            tail_lsn: self.tail,
            crc: 0,
            prev_block: 0,
            operations: u32::try_from(operations.len()).unwrap(),
            byte_order: self.byte_order,
            uuid: self.uuid,
            size: 32 << 10,
        };
        self.write(&header, body)
    }

    pub(super) fn write(&mut self, header: &RecordHeader, mut body: Vec<u8>) -> u32 {
        let mut sectors = header.encode();
        let to_end = (LOG_SECTORS - self.head) as usize;
        pack(&mut sectors, &mut body, self.cycle, Some(to_end));
        sectors.extend_from_slice(&body);
        self.log.write(self.head, &sectors).unwrap();
        let at = self.head;
        let end = self.head + u32::try_from(sectors.len() / 512).unwrap();
        self.cycle += u32::from(end >= LOG_SECTORS);
        self.head = end % LOG_SECTORS;
        at
    }

    pub(super) fn unmount(&mut self) -> u32 {
        self.tail = Lsn::new(self.cycle, self.head);
        let data = unmount_data().to_vec();
        self.record(&[(UNMOUNT_TID, OpFlags::UNMOUNT, data)])
    }

    /// Writes one transaction with these regions in a record of its own.
    pub(super) fn transaction(&mut self, tid: u32, regions: &[Vec<u8>]) -> u32 {
        self.record(&transaction(tid, regions))
    }

    pub(super) fn position(&self) -> Result<LogPosition> {
        find_position(&self.log, true)
    }

    pub(super) fn replay(&self) -> Result<ReplayReport> {
        let position = self.position()?;
        let scan = scan(&self.log, &position, &self.superblock)?;
        replay(&self.log, &position, &self.superblock, scan, &*self.data)
    }

    /// The text of the rule that a replay finds broken.
    pub(super) fn broken_rule(&self) -> String {
        let error = self.replay().unwrap_err();
        let Error::Corrupt(corruption) = error else {
            panic!("{error}");
        };
        corruption.rule.to_string()
    }

    pub(super) fn data_at(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.data.read_at(at, &mut bytes).unwrap();
        bytes
    }
}

/// The operations of a transaction.
pub(super) fn transaction(tid: u32, regions: &[Vec<u8>]) -> Vec<Op> {
    let mut operations = vec![
        (tid, OpFlags::START, Vec::new()),
        (tid, OpFlags::empty(), header(tid)),
    ];
    operations.extend(regions.iter().map(|r| (tid, OpFlags::empty(), r.clone())));
    operations.push((tid, OpFlags::COMMIT, Vec::new()));
    operations
}

pub(super) fn header(tid: u32) -> Vec<u8> {
    let header = TransactionHeader {
        kind: 40,
        tid,
        items: 1,
    };
    header.encode()
}

/// A buffer item of one block of 4 KiB whose second chunk is `fill`.
pub(super) fn buffer(block: u64, kind: BufferType, flags: BufferFlags, fill: u8) -> Vec<Vec<u8>> {
    let format = BufferFormat::new(BasicBlock(block), 8, kind, flags, [1]);
    vec![format.encode(), vec![fill; 128]]
}

pub(super) fn plain(block: u64, fill: u8) -> Vec<Vec<u8>> {
    buffer(block, BufferType::Unknown, BufferFlags::empty(), fill)
}

/// An item that cancels a buffer.
pub(super) fn cancel(block: u64) -> Vec<Vec<u8>> {
    let format = BufferFormat::new(
        BasicBlock(block),
        8,
        BufferType::Unknown,
        BufferFlags::CANCEL,
        [],
    );
    vec![format.encode()]
}
