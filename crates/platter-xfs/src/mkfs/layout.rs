//! Where the metadata of a new group lies.

use std::ops::Range;

use platter_vfs::{Condition, Error, Result};

use super::options::refuse;
use super::shape::Shape;
use crate::ag::levels_max;
use crate::ondisk::btree::{BtreeKind, RmapOwner};
use crate::ondisk::{AgBlock, AgNr, InodeNr};

/// The headers: superblock, free space, inodes and free list.
const HEADER_SECTORS: u32 = 4;

/// Blocks that a group with a log keeps in addition to it and its own.
const LOG_SPARE_BLOCKS: u32 = 1;

/// Blocks of a group.
#[derive(Debug)]
pub(super) struct GroupLayout {
    /// Blocks of the group.
    pub(super) len: u32,
    /// Roots of the B-trees, in the order in which they lie.
    pub(super) roots: Vec<(BtreeKind, u32)>,
    pub(super) log: Option<Range<u32>>,
    /// The inodes that a filesystem begins with.
    pub(super) chunk: Option<Range<u32>>,
    pub(super) free_list_len: u32,
    /// The blocks of the free list.
    pub(super) free_list: Vec<u32>,
    /// Free extents.
    pub(super) free: Vec<Range<u32>>,
    headers: u32,
}

impl GroupLayout {
    /// Places what a group holds.
    pub(super) fn place(shape: &Shape, ag: AgNr) -> Result<Self> {
        let geometry = &shape.geometry;
        let len = geometry.ag_len(ag);
        let headers = (HEADER_SECTORS << geometry.sector_bits).div_ceil(geometry.block_bytes());
        let kinds = kinds(shape);
        let roots: Vec<_> = kinds.into_iter().zip(headers..).collect();
        let roots_end = headers + u32::try_from(roots.len()).unwrap_or_default();
        let free_list_len = free_list_len(shape);
        let log = (Some(ag) == shape.log_group()).then(|| {
            let start = roots_end.next_multiple_of(shape.log_stripe_blocks);
            start..start.saturating_add(shape.superblock.log_blocks)
        });
        let chunk = (ag == AgNr(0)).then(|| {
            // The only group has the log, too, which is first.
            let first = log.as_ref().map_or(roots_end, |log| log.end);
            let start = first
                .saturating_add(free_list_len)
                .next_multiple_of(chunk_alignment(shape));
            start..start.saturating_add(geometry.chunk_blocks())
        });
        let mut layout = Self {
            len,
            roots,
            log,
            chunk,
            free_list_len,
            free_list: Vec::new(),
            free: Vec::new(),
            headers,
        };
        layout.take_free_list(roots_end)?;
        Ok(layout)
    }

    /// Takes the free list from the first blocks that nothing lies in.
    fn take_free_list(&mut self, roots_end: u32) -> Result<()> {
        let mut at = roots_end;
        let used = [self.log.clone(), self.chunk.clone()];
        for used in used.into_iter().flatten() {
            self.free.push(at..used.start);
            at = used.end;
        }
        if at > self.len {
            return Err(Condition::NoSpace.into());
        }
        self.free.push(at..self.len);
        let blocks = self.free.iter().cloned().flatten();
        self.free_list = blocks.take(self.free_list_len as usize).collect();
        let last = *self.free_list.last().ok_or(Condition::NoSpace)?;
        for extent in &mut self.free {
            extent.start = extent.start.max(last + 1).min(extent.end);
        }
        self.free.retain(|extent| !extent.is_empty());
        Ok(())
    }

    /// Blocks before the log, the inodes and free space.
    pub(super) fn roots_end(&self) -> u32 {
        self.headers + u32::try_from(self.roots.len()).unwrap_or_default()
    }

    /// Runs of blocks with their owners, in order.
    pub(super) fn owners(&self) -> Vec<(Range<u32>, RmapOwner)> {
        let mut owners = vec![(0..self.headers, RmapOwner::FS)];
        let root_owner = |kind| match kind {
            BtreeKind::Inobt | BtreeKind::Finobt => RmapOwner::INOBT,
            BtreeKind::Refcount => RmapOwner::REFCOUNT,
            BtreeKind::Bno
            | BtreeKind::Cnt
            | BtreeKind::Rmap
            | BtreeKind::Bmap
            | BtreeKind::RtRmap
            | BtreeKind::RtRefcount => RmapOwner::AG,
        };
        let roots = self.roots.iter();
        owners.extend(roots.map(|&(kind, at)| (at..at + 1, root_owner(kind))));
        owners.extend(self.log.clone().map(|log| (log, RmapOwner::LOG)));
        owners.extend(self.chunk.clone().map(|chunk| (chunk, RmapOwner::INODES)));
        let listed = self.free_list.iter();
        owners.extend(listed.map(|&block| (block..block + 1, RmapOwner::AG)));
        owners.sort_by_key(|(run, _)| run.start);
        let mut joined: Vec<(Range<u32>, RmapOwner)> = Vec::new();
        for (run, owner) in owners {
            match joined.last_mut() {
                Some((last, before)) if last.end == run.start && *before == owner => {
                    last.end = run.end;
                }
                _ => joined.push((run, owner)),
            }
        }
        joined
    }
}

impl Shape {
    /// Places the log and the first inodes.
    pub(super) fn place(&mut self) -> Result<()> {
        self.place_log()?;
        self.place_inodes()
    }

    fn place_log(&mut self) -> Result<()> {
        let Some(ag) = self.log_group() else {
            return Ok(());
        };
        let wanted = self.superblock.log_blocks;
        match self.fit_log(ag, wanted) {
            Err(Error::Condition(Condition::NoSpace)) if self.log_blocks_min.is_none() => {
                let bytes = u64::from(wanted) << self.geometry.block_bits;
                let reason = "what its allocation group has space for is";
                Err(refuse(format!("a log of {bytes} bytes"), reason))
            }
            placed => placed,
        }
    }

    /// Places the log in its group, shortened as far as it may be where there is no space for what is wanted.
    fn fit_log(&mut self, ag: AgNr, wanted: u32) -> Result<()> {
        let len = self.geometry.ag_len(ag);
        // Looked at with the shortest log: a group may have no space for the one that is usual.
        self.superblock.log_blocks = self.log_blocks_min.unwrap_or(wanted).min(wanted);
        let layout = GroupLayout::place(self, ag)?;
        let log = layout.log.ok_or(Condition::NoSpace)?;
        let needed = log
            .start
            .saturating_add(layout.free_list_len + LOG_SPARE_BLOCKS);
        let most = len.checked_sub(needed).ok_or(Condition::NoSpace)?;
        if wanted <= most {
            self.superblock.log_blocks = wanted;
        } else {
            let fitting = most / self.log_stripe_blocks * self.log_stripe_blocks;
            if self.log_blocks_min.is_none_or(|least| fitting < least) {
                return Err(Condition::NoSpace.into());
            }
            self.superblock.log_blocks = fitting;
        }
        let start = self.geometry.fs_block(ag, AgBlock(log.start));
        self.superblock.log_start = Some(start);
        Ok(())
    }

    fn place_inodes(&mut self) -> Result<()> {
        let layout = GroupLayout::place(self, AgNr(0))?;
        let chunk = layout.chunk.ok_or(Condition::NoSpace)?;
        let first = self.geometry.first_ag_inode(AgBlock(chunk.start));
        let number = |index: u32| InodeNr::new(u64::from(first.0) + u64::from(index));
        self.superblock.root_inode = number(0).ok_or(Condition::InvalidArgument)?;
        self.superblock.rt_bitmap_inode = number(1);
        self.superblock.rt_summary_inode = number(2);
        Ok(())
    }
}

/// The trees of a group, in the order of their roots.
fn kinds(shape: &Shape) -> Vec<BtreeKind> {
    let features = &shape.geometry.features;
    let when = |is_on: bool, kind| is_on.then_some(kind);
    let further = [
        when(features.has_finobt(), BtreeKind::Finobt),
        when(features.has_rmapbt(), BtreeKind::Rmap),
        when(features.has_reflink(), BtreeKind::Refcount),
    ];
    let first = [BtreeKind::Bno, BtreeKind::Cnt, BtreeKind::Inobt];
    first
        .into_iter()
        .chain(further.into_iter().flatten())
        .collect()
}

/// Blocks of the free list: one for each level that a tree of one level has or may get.
fn free_list_len(shape: &Shape) -> u32 {
    let geometry = &shape.geometry;
    let features = &geometry.features;
    let extents = u64::from(geometry.ag_blocks).div_ceil(2);
    let trees = [BtreeKind::Bno, BtreeKind::Cnt];
    let levels = trees.map(|kind| levels_max(kind, geometry, extents).min(2));
    let rmap = match (features.has_rmapbt(), features.has_reflink()) {
        (false, _) => 0,
        (true, true) => 2,
        (true, false) => levels_max(BtreeKind::Rmap, geometry, geometry.ag_blocks.into()).min(2),
    };
    levels.into_iter().sum::<u32>() + rmap
}

/// What the first inodes are aligned to.
fn chunk_alignment(shape: &Shape) -> u32 {
    let superblock = &shape.superblock;
    let (align, unit) = (superblock.inode_alignment.max(1), superblock.stripe_unit);
    if unit > 0 && unit.is_multiple_of(align) {
        unit
    } else {
        align
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::tests::{options, shape};
    use super::*;

    #[test]
    fn blocks_of_a_group_have_one_use_each() {
        for (feature, on) in [("rmapbt", true), ("finobt", false), ("reflink", false)] {
            for stripe in [(0, 0), (16, 64)] {
                let mut options = options();
                options.set_feature(feature, on).unwrap();
                options.stripe_blocks = stripe;
                let shape = shape(1 << 30, &options).unwrap();
                for ag in shape.geometry.groups() {
                    let layout = GroupLayout::place(&shape, ag).unwrap();
                    let mut runs: Vec<_> = layout.owners();
                    runs.extend(layout.free.iter().map(|free| (free.clone(), RmapOwner(0))));
                    runs.sort_by_key(|(run, _)| run.start);
                    let mut at = 0;
                    for (run, _) in runs {
                        assert_eq!(run.start, at);
                        at = run.end;
                    }
                    assert_eq!(at, shape.geometry.ag_len(ag));
                }
            }
        }
    }

    #[test]
    fn log_that_fills_its_group_has_no_space() {
        let mut options = options();
        options.stripe_blocks = (16, 64);
        let error = shape(350 << 20, &options).unwrap().place().unwrap_err();
        let full = platter_vfs::Error::from(Condition::NoSpace);
        assert_eq!(error.errno(), full.errno());
        options.log_bytes = Some(80 << 20);
        let error = shape(350 << 20, &options).unwrap().place().unwrap_err();
        assert!(
            error.to_string().contains("a log of 83886080 bytes"),
            "{error}"
        );
    }

    #[test]
    fn first_inodes_lie_where_repair_expects_them() {
        for (block_bytes, root) in [(1024, 64), (4096, 128), (65536, 1024)] {
            let mut options = options();
            options.block_bytes = Some(block_bytes);
            let mut shape = shape(1 << 30, &options).unwrap();
            shape.place().unwrap();
            assert_eq!(shape.superblock.root_inode.get(), root);
        }
    }
}
