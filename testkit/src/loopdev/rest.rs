//! Whether an image is offline and clean: what an unmount writes last.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::{BlockDevice, MemoryDevice};
use platter_ext4::ondisk::features::Incompat;
use platter_ext4::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES, State,
};
use platter_ondisk::Locus;
use platter_xfs::ondisk::{Geometry, Superblock};
use platter_xfs::txn::{LogDevice, LogState, find_position};

use crate::fs_type::FsType;

/// Whether nothing is left to recover: an ext4 whose state is clean and which needs no recovery, a
/// btrfs of whose devices none knows a log tree, an XFS whose log ends with an unmount record.
pub fn is_clean(fs_type: FsType, images: &[&Path]) -> Result<bool> {
    let first = images.first().context("no image")?;
    match fs_type {
        FsType::Ext4 => ext4(first),
        FsType::Btrfs => {
            let each = images.iter().map(|image| btrfs(image));
            Ok(each.collect::<Result<Vec<_>>>()?.into_iter().all(|it| it))
        }
        FsType::Xfs => Ok(xfs(first, images.get(1).copied())? || xfs_has_no_log(images)?),
    }
}

/// Whether our recovery would replay nothing: the search below does not find the head of every log.
fn xfs_has_no_log(images: &[&Path]) -> Result<bool> {
    let read = |image: &&Path| -> Result<Arc<dyn BlockDevice>> {
        Ok(Arc::new(MemoryDevice::new("image", std::fs::read(image)?)))
    };
    let devices = images.iter().map(read).collect::<Result<Vec<_>>>()?;
    let [data, external @ ..] = &devices[..] else {
        return Ok(false);
    };
    let mut sector = vec![0; 4096];
    data.read_at(0, &mut sector)?;
    let superblock = Superblock::decode(&sector, Locus::UNKNOWN)?;
    let log = LogDevice::open(&superblock, data, external.first())?;
    let position = find_position(&log, Geometry::new(&superblock).features.is_v5())?;
    Ok(position.state == LogState::Clean)
}

fn ext4(image: &Path) -> Result<bool> {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    File::open(image)?.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    let incompat = Incompat::from_bits_retain(disk.feature_incompat.get());
    Ok(State(disk.state.get()).is_clean() && !incompat.contains(Incompat::RECOVER))
}

fn btrfs(image: &Path) -> Result<bool> {
    const SUPERBLOCK: u64 = 64 << 10;
    const LOG_ROOT: usize = 0x60;
    let mut bytes = [0; 4096];
    File::open(image)?.read_exact_at(&mut bytes, SUPERBLOCK)?;
    ensure!(&bytes[0x40..0x48] == b"_BHRfS_M", "no btrfs superblock");
    Ok(bytes[LOG_ROOT..LOG_ROOT + 8] == [0; 8])
}

/// The log as units of 512 bytes, the first word of each a cycle number, or the magic number of a
/// record before it. The head is where the cycle number drops.
fn xfs(data: &Path, log: Option<&Path>) -> Result<bool> {
    const RECORD: u32 = 0xfeed_babe;
    const UNIT: usize = 512;
    const UNMOUNT: u8 = 0x20;
    let file = File::open(data)?;
    let mut superblock = [0; UNIT];
    file.read_exact_at(&mut superblock, 0)?;
    ensure!(superblock.starts_with(b"XFSB"), "no XFS superblock");
    let block_bytes = u64::from(be32(&superblock, 4));
    let first = u64::from_be_bytes(superblock[48..56].try_into()?);
    let group_log = superblock[124];
    let group = first >> group_log;
    let within = first & ((1 << group_log) - 1);
    let start = (group * u64::from(be32(&superblock, 84)) + within) * block_bytes;
    let length = u64::from(be32(&superblock, 96)) * block_bytes;
    let mut bytes = vec![0; usize::try_from(length)?];
    match log {
        Some(log) => File::open(log)?.read_exact_at(&mut bytes, 0)?,
        None => file.read_exact_at(&mut bytes, start)?,
    }
    let units: Vec<&[u8]> = bytes.chunks_exact(UNIT).collect();
    let is_record = |unit: &[u8]| be32(unit, 0) == RECORD;
    let cycle = |unit: &[u8]| be32(unit, if is_record(unit) { 4 } else { 0 });
    let newest = cycle(units.first().context("an empty log")?);
    let head = units.iter().position(|unit| cycle(unit) != newest);
    let head = head.unwrap_or(units.len());
    // A log whose head is at its start ends with its last record.
    let before = if head == 0 { units.len() } else { head };
    let Some(record) = units[..before].iter().rposition(|unit| is_record(unit)) else {
        return Ok(false);
    };
    let header_bytes = be32(units[record], 320);
    let header_units = header_bytes.div_ceil(32 << 10).max(1);
    let Some(operation) = units.get(record + usize::try_from(header_units)?) else {
        return Ok(false);
    };
    Ok(be32(units[record], 40) == 1 && operation[9] & UNMOUNT != 0)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes
        .get(at..at + 4)
        .and_then(|field| field.try_into().ok());
    field.map_or(0, u32::from_be_bytes)
}
