//! Where the copies of a superblock are, when the primary one does not say so.

use std::collections::BTreeSet;

use platter_block::BlockDevice;
use platter_ondisk::Locus;
use zerocopy::FromBytes;

use crate::ondisk::superblock::SUPERBLOCK_MAGIC;
use crate::ondisk::{DiskSuperblock, Superblock};

/// Block sizes, the usual one first.
const BLOCK_BYTES: [u64; 8] = [4096, 1024, 2048, 512, 8192, 16384, 32768, 65536];
/// Groups of filesystems whose groups are of one size.
const GROUPS_MAX: u64 = 64;
/// The largest allocation group.
const AG_BYTES_MAX: u64 = 1 << 40;
/// The smallest allocation group that is looked for block by block, and how far.
const SEARCH_BYTES: std::ops::Range<u64> = (1 << 20)..(64 << 20);
const SEARCH_STEP: usize = 4096;

/// Where a valid copy lies in the device, as its first byte: where the primary superblock says, though it be
/// bad; where `mkfs.xfs` would have put it on a device of this length; and in the first 64 MiB.
#[must_use]
pub fn find(device: &dyn BlockDevice) -> Option<u64> {
    let mut seen = BTreeSet::new();
    let mut try_at = |at: u64| {
        if at == 0 || !seen.insert(at) {
            return None;
        }
        led_to(device, at)
    };
    if let Some(found) = places(device, 0).into_iter().find_map(&mut try_at) {
        return Some(found);
    }
    let len = device.geometry().len_bytes;
    let guesses = BLOCK_BYTES.into_iter().flat_map(|block| {
        let blocks = len / block;
        let sizes = (2..=GROUPS_MAX).map(move |groups| blocks.div_ceil(groups) * block);
        sizes.chain([AG_BYTES_MAX - block])
    });
    for guess in guesses {
        if let Some(found) = try_at(guess) {
            return Some(found);
        }
    }
    let mut piece = vec![0; SEARCH_BYTES.start.try_into().unwrap_or(SEARCH_STEP)];
    for start in SEARCH_BYTES.step_by(piece.len()) {
        if start.saturating_add(piece.len() as u64) > len
            || device.read_at(start, &mut piece).is_err()
        {
            break;
        }
        for (index, block) in piece.chunks(SEARCH_STEP).enumerate() {
            let at = start + (index * SEARCH_STEP) as u64;
            if let Some(found) = disk(block).and_then(|_| try_at(at)) {
                return Some(found);
            }
        }
    }
    None
}

/// A superblock at a place or, since most copies of a new filesystem lack the root inode, another one that
/// it leads to.
fn led_to(device: &dyn BlockDevice, at: u64) -> Option<u64> {
    let places = [at].into_iter().chain(places(device, at));
    places.into_iter().find(|&at| is_copy(device, at))
}

/// Whether a valid copy lies at a byte of the device.
#[must_use]
pub fn is_copy(device: &dyn BlockDevice, at: u64) -> bool {
    let locus = Locus::UNKNOWN.at_offset(at);
    // Users name a copy in units of 1 KiB.
    let sector = super::read_sector(device, at, locus)
        .ok()
        .filter(|_| at.is_multiple_of(1024));
    let copy = sector.and_then(|sector| Superblock::decode_copy(&sector, locus).ok());
    copy.is_some_and(|copy| {
        let ag_bytes = u64::from(copy.ag_blocks) << copy.block_bits;
        at > 0 && at.is_multiple_of(ag_bytes) && at / ag_bytes < copy.ag_count.into()
    })
}

/// Where the copies are by what a superblock says that need not be valid: of the last group, of the middle
/// one, and of the second one.
fn places(device: &dyn BlockDevice, at: u64) -> Vec<u64> {
    let mut sector = vec![0; super::SECTOR_BYTES_MIN];
    let end = at.checked_add(sector.len() as u64);
    let is_inside = end.is_some_and(|end| end <= device.geometry().len_bytes);
    if !is_inside || device.read_at(at, &mut sector).is_err() {
        return Vec::new();
    }
    let Ok((disk, _)) = DiskSuperblock::ref_from_prefix(&sector) else {
        return Vec::new();
    };
    let ag_bytes = u64::from(disk.ag_blocks.get()).checked_shl(disk.block_bits.into());
    let ag_bytes = ag_bytes.filter(|bytes| (1..=AG_BYTES_MAX).contains(bytes));
    let count = u64::from(disk.ag_count.get());
    let groups = [
        count.saturating_sub(1),
        count.saturating_sub(1) / 2,
        count / 2,
        1,
    ];
    let Some(ag_bytes) = ag_bytes else {
        return Vec::new();
    };
    groups
        .iter()
        .filter_map(|group| ag_bytes.checked_mul(*group))
        .collect()
}

fn disk(block: &[u8]) -> Option<&DiskSuperblock> {
    let (disk, _) = DiskSuperblock::ref_from_prefix(block).ok()?;
    (disk.magic.get() == SUPERBLOCK_MAGIC).then_some(disk)
}
