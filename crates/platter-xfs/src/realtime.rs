//! The sections of a realtime device, each with a bitmap of free extents and a summary of that: its groups, or all
//! of it. Spec: `xfs/internal_inodes`, "Real-time Inodes"; of groups: `xfs-headers/xfs_format.h`.
//!
//! Without groups, words of the bitmap and the summary have the byte order of the machine that wrote them:
//! little-endian is assumed, as of all machines that Linux runs XFS on by now.

use std::collections::HashMap;
use std::ops::Range;

use platter_ondisk::Corrupt;
use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;
use zerocopy::FromBytes;

use crate::context::FsContext;
use crate::mapping::{Backing, ForkMap};
use crate::ondisk::inode::MetafileKind;
use crate::ondisk::realtime::{self, RtBlockKind, WORD_BYTES};
use crate::ondisk::{FileBlock, FsBlock, InodeNr, Site, Superblock};
use crate::{inode, metadir};

/// Bits of a word of a bitmap.
pub const WORD_BITS: u64 = 32;

/// A bitmap with its summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// The file of the bitmap.
    pub bitmap: InodeNr,
    /// The file of the summary.
    pub summary: InodeNr,
    /// Extents that the bitmap has bits of.
    pub extents: u64,
    /// Blocks of the bitmap.
    pub bitmap_blocks: u64,
    /// Blocks of the summary.
    pub summary_blocks: u64,
    /// Words of a block of either.
    pub words: u64,
    /// Blocks have headers, and words are big-endian.
    pub has_headers: bool,
}

/// The words of a block, and where they lie.
#[derive(Debug)]
pub struct Words {
    /// The words.
    pub words: Vec<u32>,
    /// The block.
    pub at: FsBlock,
    /// The LSN of the block; zero without a header.
    pub lsn: u64,
}

/// The size that the summary should have, without groups.
#[must_use]
pub fn summary_bytes(superblock: &Superblock) -> u64 {
    let block = 1_u64 << superblock.block_bits;
    let words = block / WORD_BYTES as u64;
    let bitmap = u64::from(superblock.rt_bitmap_blocks);
    let blocks = summary_blocks(superblock.rt_extents, bitmap, words);
    blocks.saturating_mul(block)
}

/// The blocks of the summary of so many extents, and of bitmap blocks, where a block has so many words.
fn summary_blocks(extents: u64, bitmap_blocks: u64, words: u64) -> u64 {
    let Some(log) = extents.checked_ilog2() else {
        return 0;
    };
    let counts = u64::from(log + 1).saturating_mul(bitmap_blocks);
    counts.div_ceil(words.max(1))
}

/// The section that is all of the device, without groups.
#[must_use]
pub fn whole(superblock: &Superblock) -> Option<Section> {
    let words = (1_u64 << superblock.block_bits) / WORD_BYTES as u64;
    Some(Section {
        bitmap: superblock.rt_bitmap_inode?,
        summary: superblock.rt_summary_inode?,
        extents: superblock.rt_extents,
        bitmap_blocks: superblock.rt_bitmap_blocks.into(),
        summary_blocks: summary_bytes(superblock) >> superblock.block_bits,
        words,
        has_headers: false,
    })
}

/// The section of a group; `None` if it has no bitmap or no summary.
pub fn of_group(context: &FsContext, group: u32) -> Result<Option<Section>> {
    let mut files = [None; 2];
    let kinds = [
        ("bitmap", MetafileKind::RtBitmap),
        ("summary", MetafileKind::RtSummary),
    ];
    for (file, (name, kind)) in files.iter_mut().zip(kinds) {
        *file = metadir::find(context, &["rtgroups", &format!("{group}.{name}")], kind)?;
    }
    let [Some(bitmap), Some(summary)] = files else {
        return Ok(None);
    };
    let superblock = &context.superblock;
    let words = realtime::words(context.geometry().block_bytes()).max(1);
    let each = u64::from(superblock.rt_group_extents);
    let before = each.saturating_mul(group.into());
    let bitmap_blocks = each.div_ceil(words * WORD_BITS);
    Ok(Some(Section {
        bitmap,
        summary,
        extents: superblock.rt_extents.saturating_sub(before).min(each),
        bitmap_blocks,
        summary_blocks: summary_blocks(each, bitmap_blocks, words),
        words,
        has_headers: true,
    }))
}

impl Section {
    /// The file of a bitmap or summary.
    #[must_use]
    pub fn file(&self, kind: RtBlockKind) -> InodeNr {
        match kind {
            RtBlockKind::Bitmap => self.bitmap,
            RtBlockKind::Summary => self.summary,
        }
    }

    /// The bits of a block of the bitmap that mean anything.
    fn bits_of(&self, block: u64) -> u64 {
        let each = self.words.saturating_mul(WORD_BITS);
        let left = self.extents.saturating_sub(block.saturating_mul(each));
        left.min(each)
    }

    /// The words of a block of the bitmap or the summary; `None` if it is not mapped.
    pub fn read(
        &self,
        context: &FsContext,
        kind: RtBlockKind,
        block: u64,
    ) -> Result<Option<Words>> {
        let number = self.file(kind);
        let inode = inode::read(context, number)?;
        let map = ForkMap::of_data(context, &inode)?;
        let run = map.lookup(context, FileBlock(block))?;
        let Backing::Written(start) = run.backing else {
            return Ok(None);
        };
        let at = FsBlock(start);
        let bytes = context.read_block(at, &Unverified)?;
        if !self.has_headers {
            let words = <[Le32]>::ref_from_bytes(&bytes).unwrap_or_default();
            let words = words.iter().map(|word| word.get()).collect();
            return Ok(Some(Words { words, at, lsn: 0 }));
        }
        let geometry = context.geometry();
        let place = geometry.basic_block(at);
        let site = Site::new(geometry, place, number.get());
        let decoded = realtime::decode(&bytes, kind, &site);
        let locus = geometry.locus(place).of_inode(number.get());
        let (words, lsn) = decoded.map_err(|rule| Corrupt::new(locus, rule))?;
        Ok(Some(Words { words, at, lsn }))
    }

    /// Stores the words of a block in its bytes.
    pub fn store(&self, bytes: &mut [u8], words: &[u32]) {
        if self.has_headers {
            realtime::store(bytes, words);
        } else if let Ok(slots) = <[Le32]>::mut_from_bytes(bytes) {
            for (slot, &word) in slots.iter_mut().zip(words) {
                slot.set(word);
            }
        }
    }
}

/// Joins runs in order that touch or overlap.
pub fn join(runs: &mut Vec<Range<u64>>) {
    runs.dedup_by(|next, run| {
        let touches = next.start <= run.end;
        if touches {
            run.end = run.end.max(next.end);
        }
        touches
    });
}

/// Free extents.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FreeRuns {
    /// Runs by size class and block of the bitmap.
    counts: HashMap<(u32, u64), u32>,
    /// Free extents.
    pub free: u64,
}

impl FreeRuns {
    fn add(&mut self, run: Range<u64>, per_block: u64) {
        let len = run.end.saturating_sub(run.start);
        if let Some(class) = len.checked_ilog2() {
            let at = run.start / per_block.max(1);
            *self.counts.entry((class, at)).or_default() += 1;
            self.free += len;
        }
    }

    /// What is left between extents in use.
    #[must_use]
    pub fn between(used: &[Range<u64>], extents: u64, per_block: u64) -> Self {
        let mut runs = Self::default();
        let mut at = 0;
        let last = extents..extents;
        for run in used.iter().chain([&last]) {
            runs.add(at..run.start, per_block);
            at = at.max(run.end);
        }
        runs
    }

    /// What the blocks of a bitmap say, each passed by `read`.
    pub fn of_bitmap(
        section: &Section,
        mut read: impl FnMut(u64) -> Result<Vec<u32>>,
    ) -> Result<Self> {
        let per_block = section.words * WORD_BITS;
        let mut runs = Self::default();
        let mut run = 0..0;
        for block in 0..section.bitmap_blocks {
            let words = read(block)?;
            for bit in 0..section.bits_of(block) {
                let word = usize::try_from(bit / WORD_BITS).ok();
                let word = word.and_then(|word| words.get(word)).copied();
                if word.unwrap_or(0) & (1 << (bit % WORD_BITS)) == 0 {
                    continue;
                }
                let at = block * per_block + bit;
                if run.end != at {
                    runs.add(std::mem::replace(&mut run, at..at), per_block);
                }
                run.end = at + 1;
            }
        }
        runs.add(run, per_block);
        Ok(runs)
    }

    /// The counts that a block of the summary should have.
    #[must_use]
    pub fn summary(&self, section: &Section, block: u64) -> Vec<u32> {
        let per_level = section.bitmap_blocks.max(1);
        let first = block.saturating_mul(section.words);
        let counts = (first..first.saturating_add(section.words)).map(|word| {
            let level = u32::try_from(word / per_level).unwrap_or(u32::MAX);
            let found = self.counts.get(&(level, word % per_level));
            found.copied().unwrap_or(0)
        });
        counts.collect()
    }
}

/// The words that a block of a bitmap should have: free extents have a bit.
#[must_use]
pub fn expected_words(block: u64, words: u64, used: &[Range<u64>]) -> Vec<u32> {
    let per_block = words * WORD_BITS;
    let (first, end) = (block * per_block, (block + 1) * per_block);
    let mut expected = vec![u32::MAX; usize::try_from(words).unwrap_or(0)];
    let from = used.partition_point(|run| run.end <= first);
    for run in used.iter().skip(from).take_while(|run| run.start < end) {
        for bit in run.start.max(first)..run.end.min(end) {
            let within = bit - first;
            let word = usize::try_from(within / WORD_BITS).ok();
            if let Some(word) = word.and_then(|word| expected.get_mut(word)) {
                *word &= !(1 << (within % WORD_BITS));
            }
        }
    }
    expected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(extents: u64, words: u64) -> Section {
        let number = InodeNr::new(131).unwrap();
        let bitmap_blocks = extents.div_ceil(words * WORD_BITS);
        Section {
            bitmap: number,
            summary: number,
            extents,
            bitmap_blocks,
            summary_blocks: summary_blocks(extents, bitmap_blocks, words),
            words,
            has_headers: true,
        }
    }

    #[test]
    fn free_runs_are_counted_where_they_begin() {
        let runs = FreeRuns::between(&[0..3, 10..4096, 5000..5001], 9000, 4096);
        // 7 bits in block 0, 904 and 3999 in block 1.
        let expected = HashMap::from([((2, 0), 1), ((9, 1), 1), ((11, 1), 1)]);
        assert_eq!((runs.counts, runs.free), (expected, 7 + 904 + 3999));
        let all = 0..8;
        let full = FreeRuns::between(std::slice::from_ref(&all), 8, 64);
        assert_eq!(full.free, 0);
    }

    #[test]
    fn words_have_a_bit_for_each_free_extent() {
        let used = [0..1, 40..70, 130..131];
        assert_eq!(expected_words(0, 2, &used), [0xffff_fffe, 0xff]);
        assert_eq!(expected_words(1, 2, &used), [!0x3f, u32::MAX]);
        assert_eq!(expected_words(2, 2, &used), [!4, u32::MAX]);
    }

    #[test]
    fn bitmap_says_the_same_as_what_is_in_use() {
        let used = [0..1, 40..70, 130..131, 150..190];
        for extents in [190, 191, 200, 256] {
            let section = section(extents, 2);
            let read = |block| Ok(expected_words(block, 2, &used));
            let found = FreeRuns::of_bitmap(&section, read).unwrap();
            assert_eq!(found, FreeRuns::between(&used, extents, 64), "{extents}");
            let total: u32 = (0..section.summary_blocks)
                .flat_map(|block| found.summary(&section, block))
                .sum();
            assert_eq!(total, if extents == 190 { 3 } else { 4 });
        }
    }

    #[test]
    fn summaries_of_groups_have_a_count_for_each_class_and_block() {
        // 4,800 extents in one block of the bitmap, 13 classes.
        assert_eq!(summary_blocks(4800, 1, realtime::words(4096)), 1);
        assert_eq!(summary_blocks(1 << 20, 33, realtime::words(4096)), 1);
        assert_eq!(summary_blocks(1 << 30, 33_000, realtime::words(4096)), 1011);
    }
}
