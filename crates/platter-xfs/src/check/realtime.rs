//! The realtime section: its bitmap and summary against what files use. Spec:
//! `xfs/internal_inodes`, "Real-time Inodes".
//!
//! Words of the bitmap and the summary have the byte order of the machine that wrote them: little-endian
//! is assumed, as of all machines that Linux runs XFS on by now.

use std::collections::HashMap;

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use zerocopy::FromBytes;

use super::{Checker, Flow, RealtimeRule, TotalsRule, locus_of};
use crate::mapping::{Backing, ForkMap};
use crate::ondisk::{FileBlock, FsBlock, Inode, InodeNr, RtBlock, Superblock};

/// Extents in use: first block, blocks, owner.
#[derive(Debug, Default)]
pub(super) struct RtExtents(Vec<(u64, u64, InodeNr)>);

/// The size that the summary should have.
pub(super) fn summary_bytes(superblock: &Superblock) -> u64 {
    let Some(log) = superblock.rt_extents.checked_ilog2() else {
        return 0;
    };
    let words = u64::from(log + 1).saturating_mul(superblock.rt_bitmap_blocks.into());
    let block = 1_u64 << superblock.block_bits;
    words
        .saturating_mul(4)
        .div_ceil(block)
        .saturating_mul(block)
}

/// Free extents.
#[derive(Debug, Default)]
struct FreeRuns {
    /// Runs by size class and block of the bitmap.
    counts: HashMap<(u32, u64), u32>,
    free: u64,
}

impl FreeRuns {
    /// What is left between extents in use.
    fn between(used: &[(u64, u64)], extents: u64, per_block: u64) -> Self {
        let mut runs = Self::default();
        let mut at = 0;
        for &(start, after) in used.iter().chain(&[(extents, extents)]) {
            if let Some(class) = start.saturating_sub(at).checked_ilog2() {
                *runs.counts.entry((class, at / per_block)).or_default() += 1;
                runs.free += start - at;
            }
            at = at.max(after);
        }
        runs
    }
}

impl Checker<'_> {
    /// Claims blocks of the realtime device.
    pub(super) fn claim_realtime(&mut self, inode: &Inode, start: RtBlock, count: u64) {
        self.rt_extents.0.push((start.0, count, inode.number));
    }

    /// Checks the realtime section. One with groups has bitmaps of another form: only its files are
    /// checked.
    pub(super) fn check_realtime(&mut self) -> Flow {
        let superblock = &self.context.superblock;
        if superblock.features.has_rtgroups() {
            return Ok(());
        }
        if superblock.rt_blocks == 0 {
            if superblock.free_rt_extents != 0 {
                let root = platter_ondisk::Locus::group(0);
                self.found(root, TotalsRule::FreeRtExtents)?;
            }
            return Ok(());
        }
        let mut claims = std::mem::take(&mut self.rt_extents.0);
        claims.sort_unstable();
        let unit = u64::from(superblock.rt_extent_blocks.max(1));
        // Realtime extents in use, in order.
        let mut used: Vec<(u64, u64)> = Vec::new();
        let mut end_block = 0;
        for (start, count, inode) in claims {
            if start < end_block {
                self.found(locus_of(inode), RealtimeRule::Multiple)?;
            }
            end_block = end_block.max(start.saturating_add(count));
            let (first, after) = (start / unit, start.saturating_add(count).div_ceil(unit));
            match used.last_mut() {
                Some((_, last)) if *last >= first => *last = after.max(*last),
                _ => used.push((first, after)),
            }
        }
        let (Some(bitmap), Some(summary)) =
            (superblock.rt_bitmap_inode, superblock.rt_summary_inode)
        else {
            return Ok(());
        };
        if !self.check_bitmap(bitmap, &used)? {
            return Ok(());
        }
        let superblock = &self.context.superblock;
        let per_block = 8_u64 << superblock.block_bits;
        let runs = FreeRuns::between(&used, superblock.rt_extents, per_block);
        if runs.free != self.context.superblock.free_rt_extents {
            self.found(platter_ondisk::Locus::group(0), TotalsRule::FreeRtExtents)?;
        }
        self.check_summary(summary, &runs)
    }

    /// Compares the bitmap with the extents in use. Returns whether all of it could be read.
    fn check_bitmap(&mut self, number: InodeNr, used: &[(u64, u64)]) -> Flow<bool> {
        let superblock = &self.context.superblock;
        let bytes = 1_usize << superblock.block_bits;
        let per_block = 8 * bytes as u64;
        let mut is_same = true;
        let mut used = used;
        for block in 0..u64::from(superblock.rt_bitmap_blocks) {
            if block % 256 == 0 {
                self.progress("realtime", block, superblock.rt_bitmap_blocks.into())?;
            }
            let Some(stored) = self.read_internal(number, block, RealtimeRule::Hole)? else {
                return Ok(false);
            };
            let first = block * per_block;
            let end = first + per_block;
            let mut expected = vec![0xff_u8; bytes];
            let mut clear = |bits: std::ops::Range<u64>| {
                for bit in bits.start.max(first)..bits.end.min(end) {
                    let within = usize::try_from(bit - first).unwrap_or(0);
                    if let Some(byte) = expected.get_mut(within / 8) {
                        *byte &= !(1 << (within % 8));
                    }
                }
            };
            while let Some((&(start, after), rest)) = used.split_first()
                && start < end
            {
                clear(start..after);
                if after > end {
                    break;
                }
                used = rest;
            }
            // Bits after the last extent mean nothing.
            let extents = superblock.rt_extents.saturating_sub(first).min(per_block);
            let whole = usize::try_from(extents / 8).unwrap_or(0);
            let last = |bytes: &[u8]| {
                let byte = bytes.get(whole).copied().unwrap_or(0);
                byte & ((1_u8 << (extents % 8)) - 1)
            };
            is_same &= stored.get(..whole) == expected.get(..whole);
            is_same &= last(&stored) == last(&expected);
        }
        if !is_same && !self.is_blind {
            self.found(locus_of(number), RealtimeRule::Bitmap)?;
        }
        Ok(!self.is_blind)
    }

    fn check_summary(&mut self, number: InodeNr, runs: &FreeRuns) -> Flow {
        let superblock = &self.context.superblock;
        let blocks = summary_bytes(superblock) >> superblock.block_bits;
        let per_level = u64::from(superblock.rt_bitmap_blocks).max(1);
        let mut word = 0;
        let mut is_same = true;
        for block in 0..blocks {
            let Some(bytes) = self.read_internal(number, block, RealtimeRule::Hole)? else {
                return Ok(());
            };
            let words = <[Le32]>::ref_from_bytes(&bytes).unwrap_or_default();
            for stored in words {
                let level = u32::try_from(word / per_level).unwrap_or(u32::MAX);
                let expected = runs.counts.get(&(level, word % per_level));
                is_same &= stored.get() == expected.copied().unwrap_or(0);
                word += 1;
            }
        }
        if !is_same {
            self.found(locus_of(number), RealtimeRule::Summary)?;
        }
        Ok(())
    }

    /// A block of a file that the superblock names.
    fn read_internal(
        &mut self,
        number: InodeNr,
        block: u64,
        hole: RealtimeRule,
    ) -> Flow<Option<platter_cache::Buffer>> {
        // A corrupt one was reported.
        let Some(inode) = self.inode(number) else {
            return Ok(None);
        };
        let map = ForkMap::of_data(self.context, &inode);
        let run = map.and_then(|map| map.lookup(self.context, FileBlock(block)));
        let Ok(run) = run else {
            return Ok(None);
        };
        let Backing::Written(start) = run.backing else {
            self.found(locus_of(number), hole)?;
            return Ok(None);
        };
        let locus = self.locus_at(FsBlock(start)).of_inode(number.get());
        let read = self.context.read_block(FsBlock(start), &Unverified);
        self.tolerate("realtime section", locus, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_are_counted_where_they_begin() {
        let runs = FreeRuns::between(&[(0, 3), (10, 4096), (5000, 5001)], 9000, 4096);
        // 7 bits in block 0, 904 and 3999 in block 1.
        let expected = HashMap::from([((2, 0), 1), ((9, 1), 1), ((11, 1), 1)]);
        assert_eq!((runs.counts, runs.free), (expected, 7 + 904 + 3999));
        assert_eq!(FreeRuns::between(&[(0, 8)], 8, 64).free, 0);
    }
}
