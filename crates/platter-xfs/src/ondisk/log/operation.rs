//! Operations of a record, and what starts and ends transactions and the log itself.
//! Spec: `xfs/journaling_log`, "Log Operations".

use bitflags::bitflags;
use platter_ondisk::endian::{Be32, Le16, Le32};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogRule;

/// `th_magic`: `TRAN`.
pub const TRANSACTION_MAGIC: u32 = 0x5452_414e;
/// `th_type` of all transactions of delayed logging: `XFS_TRANS_CHECKPOINT`.
pub const CHECKPOINT: u32 = 40;
/// The magic number of an unmount record: `Un`.
pub const UNMOUNT_MAGIC: u16 = 0x556e;
/// The transaction id of an unmount record.
pub const UNMOUNT_TID: u32 = 0xb0c0_d0d0;

/// The header of an operation. Spec: `xfs/journaling_log`, `struct xlog_op_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskOperation {
    /// `oh_tid`.
    pub tid: Be32,
    /// `oh_len`.
    pub len: Be32,
    /// `oh_clientid`.
    pub client: u8,
    /// `oh_flags`.
    pub flags: u8,
    /// `oh_res2`.
    pub reserved: [u8; 2],
}

/// The first region of a transaction. Spec: `xfs/journaling_log`, `struct xfs_trans_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskTransactionHeader {
    /// `th_magic`.
    pub magic: Le32,
    /// `th_type`.
    pub kind: Le32,
    /// `th_tid`.
    pub tid: Le32,
    /// `th_num_items`.
    pub items: Le32,
}

/// The data of an unmount record. Spec: `xfs/journaling_log`, `struct xfs_unmount_log_format`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskUnmount {
    /// `magic`.
    pub magic: Le16,
    /// `pad1`.
    pub pad1: Le16,
    /// `pad2`.
    pub pad2: Le32,
}

const _: () = assert!(size_of::<DiskOperation>() == 12);
const _: () = assert!(size_of::<DiskTransactionHeader>() == 16);
const _: () = assert!(size_of::<DiskUnmount>() == 8);

bitflags! {
    /// `oh_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OpFlags: u8 {
        /// `XLOG_START_TRANS`.
        const START = 0x01;
        /// `XLOG_COMMIT_TRANS`.
        const COMMIT = 0x02;
        /// `XLOG_CONTINUE_TRANS`: the region goes on in the next record.
        const CONTINUE = 0x04;
        /// `XLOG_WAS_CONT_TRANS`: the region began in an earlier record.
        const WAS_CONTINUED = 0x08;
        /// `XLOG_END_TRANS`: the last part of a region of several parts.
        const END = 0x10;
        /// `XLOG_UNMOUNT_TRANS`.
        const UNMOUNT = 0x20;
    }
}

/// `oh_clientid`: what logged an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// `XFS_TRANSACTION`.
    Transaction,
    /// `XFS_LOG`.
    Log,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation<'r> {
    /// Its transaction.
    pub tid: u32,
    /// What logged it.
    pub client: Client,
    /// What it does.
    pub flags: OpFlags,
    /// Its region, or the part of it in this record.
    pub data: &'r [u8],
}

/// The operations of a record's body, whose words are back in place.
#[derive(Debug)]
pub struct Operations<'r> {
    rest: &'r [u8],
    count: u32,
    locus: Locus,
}

/// The first region of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionHeader {
    /// The type of the transaction.
    pub kind: u32,
    /// Its id.
    pub tid: u32,
    /// Number of regions.
    pub items: u32,
}

impl<'r> Operations<'r> {
    /// The operations in `body`, which has `count` of them.
    #[must_use]
    pub fn new(body: &'r [u8], count: u32, locus: Locus) -> Self {
        Self {
            rest: body,
            count,
            locus,
        }
    }

    fn decode_next(&mut self) -> Result<Operation<'r>, LogRule> {
        let (disk, rest) =
            DiskOperation::ref_from_prefix(self.rest).map_err(|_| LogRule::OperationCount)?;
        let client = match disk.client {
            0x69 => Client::Transaction,
            0xaa => Client::Log,
            _ => return Err(LogRule::OperationClient),
        };
        let flags = OpFlags::from_bits(disk.flags).ok_or(LogRule::OperationFlags)?;
        let len = usize::try_from(disk.len.get()).map_err(|_| LogRule::OperationLength)?;
        let (data, rest) = rest.split_at_checked(len).ok_or(LogRule::OperationLength)?;
        self.rest = rest;
        Ok(Operation {
            tid: disk.tid.get(),
            client,
            flags,
            data,
        })
    }
}

impl<'r> Iterator for Operations<'r> {
    type Item = Result<Operation<'r>, Corrupt<LogRule>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.count = self.count.checked_sub(1)?;
        let operation = self.decode_next();
        if operation.is_err() {
            self.count = 0;
        }
        Some(operation.map_err(|rule| Corrupt::new(self.locus, rule)))
    }
}

impl Operation<'_> {
    /// Appends the operation to the body of a record.
    ///
    /// # Panics
    /// When the region is longer than the format can say.
    pub fn encode(&self, body: &mut Vec<u8>) {
        let disk = DiskOperation {
            tid: self.tid.into(),
            len: u32::try_from(self.data.len())
                .expect("a region fits into a record")
                .into(),
            client: match self.client {
                Client::Transaction => 0x69,
                Client::Log => 0xaa,
            },
            flags: self.flags.bits(),
            reserved: [0; 2],
        };
        body.extend_from_slice(disk.as_bytes());
        body.extend_from_slice(self.data);
    }
}

impl TransactionHeader {
    /// Validates the first region of a transaction.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let Ok((disk, _)) = DiskTransactionHeader::ref_from_prefix(region) else {
            return Err(Corrupt::new(locus, LogRule::ItemLength));
        };
        if disk.magic.get() != TRANSACTION_MAGIC {
            return Err(Corrupt::new(locus, LogRule::TransactionMagic));
        }
        Ok(Self {
            kind: disk.kind.get(),
            tid: disk.tid.get(),
            items: disk.items.get(),
        })
    }

    /// The region of this header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskTransactionHeader {
            magic: TRANSACTION_MAGIC.into(),
            kind: self.kind.into(),
            tid: self.tid.into(),
            items: self.items.into(),
        };
        disk.as_bytes().to_vec()
    }
}

/// The data of an unmount record.
#[must_use]
pub fn unmount_data() -> [u8; size_of::<DiskUnmount>()] {
    let disk = DiskUnmount {
        magic: UNMOUNT_MAGIC.into(),
        pad1: 0.into(),
        pad2: 0.into(),
    };
    zerocopy::transmute!(disk)
}

/// Whether the first operation of a record's body says that the log was unmounted cleanly.
#[must_use]
pub fn is_unmount(body: &[u8]) -> bool {
    let operation = DiskOperation::ref_from_prefix(body).ok();
    operation.is_some_and(|(operation, _)| operation.flags & OpFlags::UNMOUNT.bits() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(data: &[u8]) -> Operation<'_> {
        Operation {
            tid: 0x1234,
            client: Client::Transaction,
            flags: OpFlags::WAS_CONTINUED | OpFlags::END,
            data,
        }
    }

    #[test]
    fn operations_decode_as_they_were_encoded() {
        let mut body = Vec::new();
        sample(b"first").encode(&mut body);
        sample(b"").encode(&mut body);
        let found: Result<Vec<_>, _> = Operations::new(&body, 2, Locus::UNKNOWN).collect();
        assert_eq!(found.unwrap(), [sample(b"first"), sample(b"")]);
    }

    #[test]
    fn operations_that_break_a_rule_end_the_record() {
        let mut body = Vec::new();
        sample(b"data").encode(&mut body);
        let rule = |body: &[u8], count| {
            let mut operations = Operations::new(body, count, Locus::UNKNOWN);
            let rule = operations.find_map(|one| one.err().map(|corrupt| corrupt.rule));
            assert!(operations.next().is_none());
            rule
        };
        assert_eq!(rule(&body, 1), None);
        assert_eq!(rule(&body, 2), Some(LogRule::OperationCount));
        assert_eq!(rule(&body[..15], 1), Some(LogRule::OperationLength));
        let mut bad = body.clone();
        bad[8] = 1;
        assert_eq!(rule(&bad, 1), Some(LogRule::OperationClient));
        body[9] = 0x40;
        assert_eq!(rule(&body, 1), Some(LogRule::OperationFlags));
    }

    #[test]
    fn transaction_header_has_its_magic() {
        let header = TransactionHeader {
            kind: CHECKPOINT,
            tid: 5,
            items: 9,
        };
        let mut region = header.encode();
        assert_eq!(
            TransactionHeader::decode(&region, Locus::UNKNOWN),
            Ok(header)
        );
        region[0] ^= 1;
        let refused = TransactionHeader::decode(&region, Locus::UNKNOWN).unwrap_err();
        assert_eq!(refused.rule, LogRule::TransactionMagic);
        let refused = TransactionHeader::decode(&region[..8], Locus::UNKNOWN).unwrap_err();
        assert_eq!(refused.rule, LogRule::ItemLength);
    }

    #[test]
    fn unmount_record_is_recognised() {
        let mut body = Vec::new();
        let data = unmount_data();
        let unmount = Operation {
            tid: UNMOUNT_TID,
            client: Client::Log,
            flags: OpFlags::UNMOUNT,
            data: &data,
        };
        unmount.encode(&mut body);
        assert!(is_unmount(&body) && body[12..14] == *b"nU");
        assert!(!is_unmount(&[0; 12]) && !is_unmount(&[]));
    }
}
