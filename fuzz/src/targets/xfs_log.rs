//! Decoders of the log of XFS: records, operations, items, and what recovery reads of blocks.

use std::hint::black_box;

use platter_ondisk::Locus;
use platter_xfs::ondisk::inode::free;
use platter_xfs::ondisk::log::buffer::{BufferFormat, BufferType};
use platter_xfs::ondisk::log::dinode::{self, LogDinode};
use platter_xfs::ondisk::log::dquot::{DquotFormat, QuotaOff};
use platter_xfs::ondisk::log::icreate::InodeCreate;
use platter_xfs::ondisk::log::inode::InodeFormat;
use platter_xfs::ondisk::log::intent::{Done, Intent};
use platter_xfs::ondisk::log::item::ItemHeader;
use platter_xfs::ondisk::log::operation::{Operations, TransactionHeader, is_unmount};
use platter_xfs::ondisk::log::record::{RecordHeader, sector_cycle, unpack};
use platter_xfs::ondisk::log::stamp::Stamp;
use platter_xfs::ondisk::{InodeNr, Lsn};

use super::xfs::shape;

pub(super) fn record(bytes: &[u8]) {
    black_box((sector_cycle(bytes), is_unmount(bytes)));
    let Ok(header) = RecordHeader::decode(bytes, Locus::UNKNOWN) else {
        return;
    };
    let len = header.header_sectors() as usize * 512;
    let Some((head, body)) = bytes.split_at_checked(len) else {
        return;
    };
    black_box(header.checksum_matches(head, body));
    let mut body = body.to_vec();
    unpack(head, &mut body);
    operations(&body, header.operations);
}

fn operations(body: &[u8], count: u32) {
    for operation in Operations::new(body, count, Locus::UNKNOWN) {
        let Ok(operation) = operation else {
            return;
        };
        black_box(TransactionHeader::decode(operation.data, Locus::UNKNOWN).is_ok());
        item(operation.data);
    }
}

pub(super) fn operation(bytes: &[u8]) {
    for count in [0, 1, 1000, u32::MAX] {
        operations(bytes, count);
    }
}

/// A region as each item, and what its bytes would do to a block.
pub(super) fn item(bytes: &[u8]) {
    let locus = Locus::UNKNOWN;
    black_box(ItemHeader::decode(bytes, locus).is_ok());
    if let Ok(format) = BufferFormat::decode(bytes, locus) {
        black_box((format.len_bytes(), format.runs().count()));
    }
    if let Ok(format) = InodeFormat::decode(bytes, locus) {
        black_box(format.regions_needed());
    }
    black_box(DquotFormat::decode(bytes, locus).is_ok());
    if let Ok(off) = QuotaOff::decode(bytes, locus) {
        black_box((off.encode(), QuotaOff::of_record(bytes)));
    }
    black_box(Done::decode(bytes, locus).is_ok());
    let halves = bytes.split_at(bytes.len() / 2);
    for regions in [
        vec![bytes.to_vec()],
        vec![halves.0.to_vec(), halves.1.to_vec(), bytes.to_vec()],
    ] {
        if let Ok(Some(intent)) = Intent::decode(&regions, locus) {
            black_box((intent.kind(), intent.id()));
        }
    }
    let Some((geometry, _)) = shape(bytes) else {
        return;
    };
    black_box(InodeCreate::decode(bytes, geometry, locus).is_ok());
    for is_v3 in [false, true] {
        let inode_bytes = geometry.inode_bytes();
        if let Ok(logged) = LogDinode::decode(bytes, is_v3, inode_bytes, locus) {
            let mut inode = vec![0; inode_bytes as usize];
            black_box(logged.flush_iteration());
            logged.store(&mut inode, Lsn(7));
        }
    }
}

/// What recovery reads of a block before it replays into it.
pub(super) fn stamped_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    black_box((
        dinode::inode_lsn(bytes),
        dinode::inode_flush_iteration(bytes),
        free::next_unlinked(bytes),
    ));
    if let Some(stamp) = Stamp::of_block(bytes) {
        black_box(stamp.lsn(bytes, geometry.meta_uuid));
    }
    for kind in [
        BufferType::Btree,
        BufferType::Agf,
        BufferType::Agi,
        BufferType::Superblock,
    ] {
        black_box(Stamp::of_type(kind, bytes));
    }
    if let Some(number) = InodeNr::new(131) {
        let mut inode = bytes.to_vec();
        free::initialise(&mut inode, geometry, number, 1);
    }
}
