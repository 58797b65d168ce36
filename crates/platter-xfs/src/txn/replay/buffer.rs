//! Buffer items. Spec: `xfs/journaling_log`, "Buffer Log Item".

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::rules::ReplayRule;
use super::second_pass::{Applied, SecondPass};
use super::transactions::Item;
use crate::ondisk::inode::free::{CRC_AT, NEXT_UNLINKED_AT};
use crate::ondisk::log::{BufferFlags, BufferFormat, BufferType, QuotaOff, Stamp};
use crate::ondisk::{BasicBlock, DiskSuperblock, FsSize, Growth, Lsn, SuperblockRule, checksum};

/// A logged part of a buffer: where it goes, and its bytes.
pub(super) type Part<'i> = (Range<usize>, &'i [u8]);

/// Applies the item of a buffer.
pub(super) fn apply(pass: &mut SecondPass<'_>, item: &Item) -> Result<Applied> {
    let format = BufferFormat::decode(item.first(), pass.locus)?;
    let len = u64::from(format.len);
    if format.flags.contains(BufferFlags::CANCEL) {
        pass.cancelled.pass(format.block, len);
        return Ok(Applied::Skipped);
    }
    if pass.cancelled.contains(format.block, len) {
        return Ok(Applied::Skipped);
    }
    let quotas = [
        (BufferFlags::USER_QUOTA, QuotaOff::USER),
        (BufferFlags::PROJECT_QUOTA, QuotaOff::PROJECT),
        (BufferFlags::GROUP_QUOTA, QuotaOff::GROUP),
    ];
    let is_off = |(flag, quota)| format.flags.contains(flag) && pass.quota_off.contains(quota);
    if quotas.into_iter().any(is_off) {
        return Ok(Applied::Skipped);
    }
    let parts = parts(pass, &format, item)?;
    if format.flags.contains(BufferFlags::INODES) {
        return unlinked_links(pass, &format, &parts);
    }
    let (is_v5, meta_uuid, lsn) = (
        pass.geometry.features.is_v5(),
        pass.geometry.meta_uuid,
        pass.lsn,
    );
    // Blocks of realtime files have headers with realtime groups only.
    let is_bare = matches!(format.kind, BufferType::RtBitmap | BufferType::RtSummary)
        && !pass.geometry.features.has_metadir();
    let has_header = is_v5 && !is_bare;
    let buffer = pass.buffers.get(format.block, len)?;
    if has_header && is_newer(&buffer.bytes, meta_uuid, lsn) {
        let Some(stamp) = buffer.torn_stamp() else {
            return Ok(Applied::Skipped);
        };
        let torn = (stamp, &*buffer.bytes);
        let Some(whole) = pass.torn.apply(format.block, torn, &parts) else {
            return Ok(Applied::Skipped);
        };
        buffer.edit().copy_from_slice(&whole);
        return Ok(Applied::Yes);
    }
    let bytes = buffer.edit();
    for (range, part) in parts {
        if let Some(slot) = bytes.get_mut(range) {
            slot.copy_from_slice(part);
        }
    }
    buffer.seal = has_header.then_some(format.kind);
    if format.block == BasicBlock(0) {
        // What comes after it may lie in groups that the filesystem has since then.
        let size = size_by(&buffer.bytes, pass.geometry.ag_blocks)?;
        pass.geometry.growth = Growth::new(size);
    }
    Ok(Applied::Yes)
}

/// How far the filesystem reaches by a superblock that was replayed.
fn size_by(sector: &[u8], ag_blocks: u32) -> Result<FsSize> {
    let disk = DiskSuperblock::of_sector(sector);
    let size = disk.map(|disk| FsSize {
        ag_count: disk.ag_count.get(),
        data_blocks: disk.data_blocks.get(),
    });
    let is_sound = |size: &FsSize| {
        let groups = size.data_blocks.div_ceil(u64::from(ag_blocks).max(1));
        groups > 0 && groups == u64::from(size.ag_count)
    };
    let rule = || Corrupt::new(Locus::group(0), SuperblockRule::AgCount);
    Ok(size.filter(is_sound).ok_or_else(rule)?)
}

/// The regions of the item, each at its place: one for each run of the map, or several where the
/// memory of the buffer was not contiguous.
fn parts<'i>(
    pass: &SecondPass<'_>,
    format: &BufferFormat,
    item: &'i Item,
) -> Result<Vec<Part<'i>>> {
    let broken = || Corrupt::new(pass.locus, ReplayRule::BufferRegions);
    let mut regions = item.regions.iter().skip(1);
    let mut parts = Vec::with_capacity(item.regions.len());
    for run in format.runs() {
        let mut at = run.start;
        while at < run.end {
            let region = regions.next().ok_or_else(broken)?;
            let len = region.len().min(run.end - at);
            let bytes = region.get(..len).filter(|bytes| !bytes.is_empty());
            parts.push((at..at + len, bytes.ok_or_else(broken)?));
            at += len;
        }
    }
    Ok(parts)
}

/// Of a buffer of inodes, only the links of the unlinked lists are recovered: everything else in an
/// inode is logged with the inode.
fn unlinked_links(
    pass: &mut SecondPass<'_>,
    format: &BufferFormat,
    parts: &[Part<'_>],
) -> Result<Applied> {
    let inode_bytes = pass.geometry.inode_bytes() as usize;
    let is_v5 = pass.geometry.features.is_v5();
    let buffer = pass.buffers.get(format.block, format.len.into())?;
    let bytes = buffer.edit();
    for (at, inode) in bytes.chunks_exact_mut(inode_bytes).enumerate() {
        let link = at * inode_bytes + NEXT_UNLINKED_AT;
        let part = parts
            .iter()
            .find(|(range, _)| range.start <= link && link + 4 <= range.end);
        let Some((range, part)) = part else {
            continue;
        };
        let logged = part
            .get(link - range.start..)
            .and_then(|rest| rest.get(..4));
        let slot = inode.get_mut(NEXT_UNLINKED_AT..NEXT_UNLINKED_AT + 4);
        if let (Some(logged), Some(slot)) = (logged, slot) {
            slot.copy_from_slice(logged);
        }
        if is_v5 {
            checksum::seal(inode, CRC_AT);
        }
    }
    Ok(Applied::Yes)
}

/// Whether a block on the device is at least as new as a transaction.
fn is_newer(block: &[u8], meta_uuid: platter_ondisk::Uuid, lsn: Lsn) -> bool {
    let stamped = Stamp::of_block(block).and_then(|stamp| stamp.lsn(block, meta_uuid));
    stamped.is_some_and(|stamped| stamped != Lsn::NULL && stamped >= lsn)
}
