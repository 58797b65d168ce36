//! Items: what is applied, and what is passed over.

use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};

use super::sample::{Sample, buffer, cancel, plain};
use crate::ondisk::inode::free::{initialise, next_unlinked};
use crate::ondisk::log::dinode::{LogDinode, inode_lsn};
use crate::ondisk::log::intent::{Extent, ExtentFree, Section};
use crate::ondisk::log::{
    BufferFlags, BufferFormat, BufferType, Done, DquotFormat, InodeCreate, InodeFields,
    InodeFormat, Intent, ItemKind, QuotaOff,
};
use crate::ondisk::superblock::set_size;
use crate::ondisk::superblock::tests::sample as sample_superblock;
use crate::ondisk::{AgBlock, AgNr, BasicBlock, Geometry, InodeNr, Lsn};

#[test]
fn cancelled_buffer_is_not_replayed_before_its_cancellation() {
    let mut sample = Sample::new();
    sample.transaction(1, &plain(8, 0x11));
    sample.transaction(2, &cancel(8));
    sample.transaction(3, &plain(16, 0x33));
    let report = sample.replay().unwrap();
    assert_eq!((report.items_replayed, report.items_skipped), (1, 2));
    assert_eq!(sample.data_at(8 * 512, 4096), [0; 4096]);
    sample.transaction(4, &plain(8, 0x44));
    sample.replay().unwrap();
    assert_eq!(sample.data_at(8 * 512 + 128, 128), [0x44; 128]);
}

/// A free space tree block with an LSN.
fn tree_block(sample: &Sample, lsn: Lsn) -> Vec<u8> {
    let mut block = vec![0; 4096];
    block[..4].copy_from_slice(b"AB3B");
    block[24..32].copy_from_slice(&lsn.0.to_be_bytes());
    block[32..48].copy_from_slice(sample.superblock.meta_uuid.as_bytes());
    block
}

#[test]
fn block_as_new_as_the_log_is_left_alone() {
    for (block, expected) in [(6, 0), (7, 0x11)] {
        let mut sample = Sample::at(3, 7);
        let lsn = Lsn::new(3, if block == 6 { 7 } else { 6 });
        let stored = tree_block(&sample, lsn);
        sample.data.write_at(8 * 512, &stored).unwrap();
        let item = buffer(8, BufferType::Btree, BufferFlags::empty(), 0x11);
        sample.transaction(1, &item);
        sample.replay().unwrap();
        let found = sample.data_at(8 * 512, 4096);
        assert_eq!(found[128], expected);
        assert_eq!(found[24..32], Lsn::new(3, 7).0.to_be_bytes());
        assert_eq!(expected != 0, crate::ondisk::checksum::matches(&found, 52));
    }
}

#[test]
fn block_that_was_torn_is_made_whole_by_the_log() {
    let mut sample = Sample::at(3, 7);
    let item = |fill| buffer(8, BufferType::Btree, BufferFlags::empty(), fill);
    let mut operations = super::transaction(1, &item(0x11));
    operations.extend(super::transaction(2, &item(0x22)));
    sample.record(&operations);
    let mut whole = tree_block(&sample, Lsn::new(3, 7));
    whole[128..256].fill(0x22);
    crate::ondisk::checksum::seal(&mut whole, 52);
    let mut torn = whole.clone();
    torn[128..256].fill(0);
    sample.data.write_at(8 * 512, &torn).unwrap();
    let report = sample.replay().unwrap();
    assert_eq!((report.items_replayed, report.items_skipped), (1, 1));
    assert_eq!(sample.data_at(8 * 512, 4096), whole);
    // Rotten where the log has nothing, it stays as it is.
    torn[3000] = 1;
    sample.data.write_at(8 * 512, &torn).unwrap();
    assert_eq!(sample.replay().unwrap().items_skipped, 2);
    assert_eq!(sample.data_at(8 * 512, 4096), torn);
}

#[test]
fn blocks_of_realtime_files_are_replayed_as_they_are() {
    let mut sample = Sample::at(3, 7);
    let mut stored = tree_block(&sample, Lsn::new(3, 9));
    stored[..4].copy_from_slice(b"XBMP");
    sample.data.write_at(8 * 512, &stored).unwrap();
    let item = buffer(8, BufferType::RtBitmap, BufferFlags::empty(), 0x11);
    sample.transaction(1, &item);
    sample.replay().unwrap();
    let found = sample.data_at(8 * 512, 4096);
    assert_eq!(found[128..256], [0x11; 128]);
    assert_eq!(found[..128], stored[..128]);
}

#[test]
fn transactions_of_one_record_see_the_lsn_before_them() {
    let mut sample = Sample::at(3, 7);
    let stored = tree_block(&sample, Lsn::new(3, 6));
    sample.data.write_at(8 * 512, &stored).unwrap();
    let item = |fill| buffer(8, BufferType::Btree, BufferFlags::empty(), fill);
    let mut operations = super::transaction(1, &item(0x11));
    operations.extend(super::transaction(2, &item(0x22)));
    sample.record(&operations);
    sample.replay().unwrap();
    assert_eq!(sample.data_at(8 * 512 + 128, 128), [0x22; 128]);
}

fn inode_format() -> InodeFormat {
    InodeFormat {
        regions: 3,
        fields: InodeFields::CORE | InodeFields::DATA_LOCAL,
        attr_len: 0,
        data_len: 5,
        inode: InodeNr::new(131).unwrap(),
        device: 0,
        block: BasicBlock(32),
        len: 32,
        offset: 1024,
    }
}

/// A file system with one cluster of fresh inodes, and the core of one to log.
fn with_inodes(sample: &Sample) -> Vec<u8> {
    let geometry = Geometry::new(&sample.superblock);
    let mut cluster = vec![0; 32 * 512];
    for (number, inode) in (129..).zip(cluster.chunks_mut(512)) {
        initialise(inode, &geometry, InodeNr::new(number).unwrap(), 9);
    }
    sample.data.write_at(32 * 512, &cluster).unwrap();
    let mut core = LogDinode::encode(&cluster[1024..1536]);
    // A symbolic link with a target in the inode.
    (core[2], core[3], core[5]) = (0xff, 0xa1, 1);
    core
}

#[test]
fn inode_gets_core_fork_and_lsn_and_keeps_its_link() {
    let mut sample = Sample::at(3, 7);
    let core = with_inodes(&sample);
    sample
        .data
        .write_at(32 * 512 + 1024 + 96, &[0, 0, 0, 5])
        .unwrap();
    let item = [inode_format().encode(), core, b"target\0\0".to_vec()];
    sample.transaction(1, &item);
    sample.replay().unwrap();
    let inode = sample.data_at(32 * 512 + 1024, 512);
    assert_eq!(inode[2..4], [0xa1, 0xff]);
    assert_eq!(inode[176..184], *b"target\0\0");
    assert_eq!(inode_lsn(&inode), Some(Lsn::new(3, 7)));
    assert_eq!(next_unlinked(&inode), Some(5));
    assert!(crate::ondisk::checksum::matches(&inode, 100));
    // The same again is no newer; an inode from later in the log stays.
    sample.replay().unwrap();
    sample
        .data
        .write_at(32 * 512 + 1024 + 112, &[0xff; 4])
        .unwrap();
    assert_eq!(sample.replay().unwrap().items_skipped, 1);
}

#[test]
fn owner_changes_though_the_inode_on_disk_is_newer() {
    let mut sample = Sample::at(3, 7);
    let core = with_inodes(&sample);
    let at = 32 * 512 + 1024;
    let mut inode = sample.data_at(at, 512);
    // A file with a tree of one block, of a later transaction.
    inode[2..6].copy_from_slice(&[0x81, 0xa4, 3, 3]);
    inode[112..116].copy_from_slice(&[0xff; 4]);
    inode[176..180].copy_from_slice(&[0, 1, 0, 1]);
    let pointers_at = 176 + 4 + (512 - 176 - 4) / 16 * 8;
    inode[pointers_at..pointers_at + 8].copy_from_slice(&20_u64.to_be_bytes());
    sample.data.write_at(at, &inode).unwrap();
    let mut block = vec![0; 4096];
    block[..8].copy_from_slice(b"BMA3\0\0\0\0");
    block[24..32].copy_from_slice(&160_u64.to_be_bytes());
    block[40..56].copy_from_slice(Geometry::new(&sample.superblock).meta_uuid.as_bytes());
    block[56..64].copy_from_slice(&7_u64.to_be_bytes());
    sample.data.write_at(20 * 4096, &block).unwrap();
    let format = InodeFormat {
        fields: InodeFields::CORE | InodeFields::DATA_ROOT | InodeFields::DATA_OWNER,
        ..inode_format()
    };
    sample.transaction(1, &[format.encode(), core, vec![0; 72]]);
    assert_eq!(sample.replay().unwrap().items_skipped, 1);
    let block = sample.data_at(20 * 4096, 4096);
    assert_eq!(block[56..64], inode_format().inode.get().to_be_bytes());
    assert!(crate::ondisk::checksum::matches(&block, 64));
    assert_eq!(sample.data_at(at, 512), inode);
    // One of a later transaction, of another place or of another kind is left alone.
    for (at, byte) in [(35, 4), (31, 161), (0, b'X')] {
        let mut other = block.clone();
        (other[at], other[63]) = (byte, 7);
        sample.data.write_at(20 * 4096, &other).unwrap();
        sample.replay().unwrap();
        assert_eq!(sample.data_at(20 * 4096, 4096), other);
    }
}

#[test]
fn buffer_of_inodes_recovers_links_alone() {
    let mut sample = Sample::at(3, 7);
    with_inodes(&sample);
    let item = buffer(32, BufferType::Inodes, BufferFlags::INODES, 0x77);
    let mut format = item[0].clone();
    format[6] = 32;
    // The chunk with the link of the third inode.
    format[20..24].copy_from_slice(&(1_u32 << 8).to_le_bytes());
    sample.transaction(1, &[format, item[1].clone()]);
    sample.replay().unwrap();
    let inode = sample.data_at(32 * 512 + 1024, 512);
    assert_eq!(next_unlinked(&inode), Some(0x7777_7777));
    assert_eq!(inode[..2], *b"IN");
    assert!(crate::ondisk::checksum::matches(&inode, 100));
    let neighbour = sample.data_at(32 * 512 + 512, 512);
    assert_eq!(next_unlinked(&neighbour), Some(u32::MAX));
}

#[test]
fn inode_create_initialises_a_chunk() {
    let mut sample = Sample::at(3, 7);
    let create = InodeCreate {
        ag: AgNr(0),
        block: AgBlock(16),
        count: 64,
        len: 8,
        generation: 77,
    };
    sample.transaction(1, &[create.encode(512)]);
    sample.replay().unwrap();
    for (number, inode) in (128_u64..).zip(sample.data_at(16 * 4096, 64 * 512).chunks(512)) {
        assert_eq!(inode[152..160], number.to_be_bytes());
        assert_eq!(inode[92..96], [0, 0, 0, 77]);
        assert!(crate::ondisk::checksum::matches(inode, 100));
    }
    // A chunk whose first cluster is freed later is passed over.
    let mut sample = Sample::at(3, 7);
    sample.transaction(1, &[create.encode(512)]);
    let mut cancelled = cancel(16 * 8);
    cancelled[0][6] = 32;
    sample.transaction(2, &cancelled);
    sample.replay().unwrap();
    assert_eq!(sample.data_at(16 * 4096, 512), [0; 512]);
}

/// The item of the superblock, whose first chunk says another size.
fn grown_superblock(sample: &Sample, data_blocks: u64, ag_count: u32) -> Vec<Vec<u8>> {
    let mut sector = sample.data_at(0, 512);
    set_size(&mut sector, data_blocks, ag_count);
    let (kind, flags) = (BufferType::Superblock, BufferFlags::empty());
    let format = BufferFormat::new(BasicBlock(0), 1, kind, flags, [0]);
    vec![format.encode(), sector[..128].to_vec()]
}

#[test]
fn items_after_a_growth_may_lie_in_new_groups() {
    let create = InodeCreate {
        ag: AgNr(4),
        block: AgBlock(16),
        count: 64,
        len: 8,
        generation: 77,
    };
    let blocks = 4 * 4096 + 1024;
    for (size, refused) in [
        (None, Some("bad inode create item")),
        (Some((blocks, 5)), None),
        (Some((blocks, 6)), Some("bad allocation group count")),
    ] {
        let mut sample = Sample::at(3, 7);
        let bytes = usize::try_from(blocks).unwrap() * 4096;
        sample.data = Arc::new(MemoryDevice::new("data", vec![0; bytes]));
        let sector = sample_superblock().sector();
        sample.data.write_at(0, &sector).unwrap();
        if let Some((data_blocks, ag_count)) = size {
            let item = grown_superblock(&sample, data_blocks, ag_count);
            sample.transaction(1, &item);
        }
        sample.transaction(2, &[create.encode(512)]);
        if let Some(rule) = refused {
            assert_eq!(sample.broken_rule(), rule);
            continue;
        }
        sample.replay().unwrap();
        let inode = sample.data_at((4 * 4096 + 16) * 4096, 512);
        assert!(crate::ondisk::checksum::matches(&inode, 100));
    }
}

#[test]
fn quota_record_is_recovered_until_quota_is_off() {
    let mut logged = vec![0x55; 104];
    logged[..4].copy_from_slice(b"DQ\x01\x01");
    let format = DquotFormat {
        id: 0,
        block: BasicBlock(40),
        blocks: 1,
        offset: 10 * 136,
    };
    let mut sample = Sample::at(3, 7);
    sample.transaction(1, &[format.encode(), logged.clone()]);
    sample.replay().unwrap();
    assert_eq!(sample.data_at(40 * 512 + 10 * 136, 104), logged);
    let mut sample = Sample::at(3, 7);
    sample.transaction(1, &[format.encode(), logged]);
    sample.transaction(2, &[QuotaOff::USER.encode()]);
    sample.replay().unwrap();
    assert_eq!(sample.data_at(40 * 512 + 10 * 136, 104), [0; 104]);
}

#[test]
fn intents_without_done_items_stay_open_in_order() {
    let mut sample = Sample::new();
    let intent = |id| ExtentFree {
        section: Section::Data,
        id,
        extents: vec![Extent { start: 20, len: 2 }],
    };
    for id in [7, 3, 5] {
        sample.transaction(1, &[intent(id).encode()]);
    }
    let done = Done {
        intent_kind: ItemKind::ExtentFree,
        id: 3,
    };
    sample.transaction(2, &[done.encode(&[])]);
    let open = sample.replay().unwrap().open_intents;
    assert_eq!(open, [7, 5].map(|id| Intent::ExtentFree(intent(id))));
}
