//! A dirty log of version 4, which no kernel here writes: a record with an inode and a block of a link's target is put at
//! the head of the log. `xfs_logprint` reads it, and `xfs_repair` judges what recovery leaves.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::{BlockDevice, MemoryDevice};
use platter_vfs::Error;
use platter_xfs::ondisk::log::dinode::LogDinode;
use platter_xfs::ondisk::log::record::pack;
use platter_xfs::ondisk::log::{
    BufferFlags, BufferFormat, BufferType, Client, InodeFields, InodeFormat, LogByteOrder, OpFlags,
    Operation, RecordHeader, TransactionHeader,
};
use platter_xfs::ondisk::{BasicBlock, Geometry, InodeNr};
use platter_xfs::txn::{LogDevice, LogState, find_position};
use platter_xfs::{recovery, superblock};
use testkit::oracle::{Verdict, xfs};
use testkit::tool;

use super::printed::{Printed, find};
use super::{check, open, version4};

const TID: u32 = 0x5eed;
const CHUNK: usize = 128;
/// `di_mode`, and `di_flushiter`, by which recovery knows whether an inode is newer.
const MODE_AT: usize = 2;
const FLUSHES_AT: usize = 30;
/// What the log makes of the mode of a file, and of parts of the target of a link.
const MODE: u16 = 0o100_400;
const LOGGED: [usize; 2] = [1, 4];

/// The regions of the items of a transaction: an inode with another mode, and two chunks of a block.
fn regions(image: &Path, geometry: &Geometry) -> Result<Vec<Vec<u8>>> {
    let printed = Printed::of(image, None)?;
    let names = printed.list(printed.root)?;
    let bytes = fs::read(image)?;

    let number = InodeNr::new(names["file-4095"]).context("a number")?;
    let at = geometry.locate_inode(number).context("its place")?;
    let block = geometry.ag_offset(at.ag) + u64::from(at.block.0) * printed.block_bytes;
    let start = usize::try_from(block)? + at.offset;
    let mut inode = bytes[start..start + geometry.inode_bytes() as usize].to_vec();
    inode[MODE_AT..MODE_AT + 2].copy_from_slice(&MODE.to_be_bytes());
    let mut core = LogDinode::encode(&inode);
    core[FLUSHES_AT..FLUSHES_AT + 2].copy_from_slice(&7_u16.to_le_bytes());
    let format = InodeFormat {
        regions: 2,
        fields: InodeFields::CORE,
        attr_len: 0,
        data_len: 0,
        inode: number,
        device: 0,
        block: BasicBlock(block / 512),
        len: u32::try_from(printed.block_bytes / 512)?,
        offset: u32::try_from(at.offset)?,
    };

    let link = printed.inodes(&[names["long"]])?.remove(0);
    let target = printed.byte_of(link.extents.first().context("a target")?);
    let len = u16::try_from(printed.block_bytes / 512)?;
    let flags = BufferFlags::empty();
    let buffer = BufferFormat::new(
        BasicBlock(target / 512),
        len,
        BufferType::Symlink,
        flags,
        LOGGED,
    );
    let mut regions = vec![format.encode(), core, buffer.encode()];
    regions.extend(LOGGED.map(|_| vec![b'm'; CHUNK]));
    Ok(regions)
}

/// Puts a transaction at the head of the log.
fn log(image: &Path) -> Result<()> {
    let device = Arc::new(MemoryDevice::new("image", fs::read(image)?));
    let data: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let superblock = superblock::read(&*data)?;
    let log = LogDevice::open(&superblock, &data, None)?;
    let position = find_position(&log, false)?;
    ensure!(position.state == LogState::Clean, "{position:?}");

    let header = TransactionHeader {
        kind: 40,
        tid: TID,
        items: 2,
    };
    let mut operations = vec![
        (OpFlags::START, Vec::new()),
        (OpFlags::empty(), header.encode()),
    ];
    let regions = regions(image, &Geometry::new(&superblock))?;
    operations.extend(regions.into_iter().map(|region| (OpFlags::empty(), region)));
    operations.push((OpFlags::COMMIT, Vec::new()));
    let mut body = Vec::new();
    for (flags, data) in &operations {
        let operation = Operation {
            tid: TID,
            client: Client::Transaction,
            flags: *flags,
            data,
        };
        operation.encode(&mut body);
    }
    body.resize(body.len().next_multiple_of(512), 0);
    let record = RecordHeader {
        cycle: position.cycle,
        version: log.version(),
        len: u32::try_from(body.len())?,
        lsn: position.head_lsn(),
        tail_lsn: position.head_lsn(),
        crc: 0,
        prev_block: position.last,
        operations: u32::try_from(operations.len())?,
        byte_order: LogByteOrder::LinuxLittle,
        uuid: log.uuid(),
        size: 32 << 10,
    };
    let mut sectors = record.encode();
    pack(&mut sectors, &mut body, position.cycle, None);
    sectors.extend(body);
    log.write(position.head, &sectors)?;
    write_back(&device, image)
}

fn write_back(device: &MemoryDevice, image: &Path) -> Result<()> {
    let mut bytes = vec![0; usize::try_from(fs::metadata(image)?.len())?];
    device.read_at(0, &mut bytes)?;
    Ok(fs::write(image, bytes)?)
}

#[test]
fn xfs_dirty_log_of_version_4_is_replayed() -> Result<()> {
    for options in [
        &["-n", "ftype=0"][..],
        &["-b", "size=1024", "-l", "version=1,lazy-count=0"],
        &["-s", "size=4096", "-l", "su=4096"],
    ] {
        let source = version4::source()?;
        let image = version4::make(&source, options)?;
        log(&image)?;
        let mut logprint = tool::command("xfs_logprint");
        let printed = tool::succeed(logprint.arg("-t").arg(&image))?.text();
        for item in ["INO:", "BUF:", "log tail", "5eed"] {
            ensure!(printed.contains(item), "{options:?}: {item}: {printed}");
        }
        let theirs = xfs::check(&[&image])?;
        ensure!(matches!(theirs, Verdict::Refused(_)), "{theirs:?}");

        // In memory, and then in place.
        let before = fs::read(&image)?;
        let volume = open(&image, None)?;
        let filesystem = &**volume.filesystem();
        let attr = find(filesystem, &["file-4095"])?.attr()?;
        ensure!(attr.mode() == u32::from(MODE), "{:o}", attr.mode());
        let mut target = vec![b'l'; 900];
        for chunk in LOGGED {
            target[chunk * CHUNK..][..CHUNK].fill(b'm');
        }
        ensure!(
            find(filesystem, &["long"])?.read_link()? == target,
            "target"
        );
        ensure!(before == fs::read(&image)?, "the image was changed");

        let device = Arc::new(MemoryDevice::new("image", before.clone()));
        let data: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let refused = recovery::recover_in_place(&data, None);
        ensure!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        ensure!(before == device.snapshot(), "the image was changed");
        let report = recovery::recover(&data, None)?;
        recovery::mark_clean(&data, None, &report)?;
        write_back(&device, &image)?;
        check::assert_clean(&image, None)?;
        Printed::of(&image, None)?.compare(filesystem)?;
    }
    Ok(())
}
