//! The block mapping of each inode: claims its blocks, and checks `i_blocks` and `i_size`.

use std::ops::ControlFlow;

use platter_vfs::FileKind;
use platter_vfs::check::{Cancelled, Checking as _};

use super::attributes::Values;
use super::{Checker, Flow, InodeUseRule, locus_of, quota, resize};
use crate::file::Contents;
use crate::mapping::{Backing, BlockMap, InlineData, Piece, Run};
use crate::ondisk::features::{Compat, RoCompat};
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};

/// Maximum number of corrupt nodes reported for one inode.
const BROKEN_MAX: u32 = 16;

/// Totals of an inode's block mapping.
#[derive(Debug, Default)]
struct Extent {
    clusters: u64,
    /// The last claimed logical cluster and its physical one: with bigalloc, adjacent runs may
    /// share it.
    last_cluster: Option<(u64, u64)>,
    /// The block after the last run.
    end: u64,
    /// The block after the last initialized one.
    written_end: u64,
    shared: Option<BlockNr>,
    is_disordered: bool,
    is_misaligned: bool,
    has_unwritten: bool,
    /// Number of corrupt nodes in the mapping.
    broken: u32,
    cancelled: Option<Cancelled>,
}

/// Claims the blocks of an inode and compares them with its counts. `values` are its attribute
/// values in EA inodes.
pub(super) fn check(checker: &mut Checker<'_>, inode: &Inode, values: Values) -> Flow {
    let fs = checker.fs;
    if is_resize_inode(checker, inode.number) {
        return resize::check(checker, inode);
    }
    let map = BlockMap::decode(fs, inode);
    let Some(map) = checker.tolerate("block map", locus_of(inode.number), map)? else {
        checker.is_blind = true;
        return Ok(());
    };
    let extent = claim_map(checker, inode.number, &map)?;
    report_map(checker, inode, &extent)?;
    if extent.broken > 0 {
        // The corrupt part of the mapping explains differences in the counts.
        checker.is_blind = true;
        return Ok(());
    }
    let geometry = &fs.geometry;
    let translator = inode.translator(geometry);
    if let Some(block) = translator {
        claim_translator(checker, inode, block)?;
    }
    let outside = [inode.xattr_block, translator];
    let own = extent.clusters + outside.iter().flatten().count() as u64;
    let cluster_bytes = u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks);
    let space_bytes = (own + values.clusters).saturating_mul(cluster_bytes);
    quota::count_usage(checker, inode, space_bytes, values.inodes);
    if inode.sectors != space_bytes >> 9 {
        checker.found(locus_of(inode.number), InodeUseRule::BlockCount)?;
    }
    check_size(checker, inode, &map, &extent)
}

fn claim_translator(checker: &mut Checker<'_>, inode: &Inode, block: BlockNr) -> Flow {
    let geometry = &checker.fs.geometry;
    let locus = locus_of(inode.number).at_block(block.0);
    if !geometry.contains(block, 1) {
        return checker.found(locus, InodeUseRule::Translator);
    }
    if checker.claims.claim(geometry, block, 1).count > 0 {
        return checker.found(locus, InodeUseRule::SharedBlock);
    }
    Ok(())
}

fn report_map(checker: &mut Checker<'_>, inode: &Inode, extent: &Extent) -> Flow {
    let locus = locus_of(inode.number);
    if let Some(block) = extent.shared {
        let features = checker.fs.geometry.features;
        let may_share =
            features.ro_compat.contains(RoCompat::SHARED_BLOCKS) && inode.kind == FileKind::Regular;
        if !may_share {
            checker.found(locus.at_block(block.0), InodeUseRule::SharedBlock)?;
        }
    }
    if extent.is_disordered {
        checker.found(locus, InodeUseRule::ExtentOrder)?;
    }
    if extent.is_misaligned {
        checker.found(locus, InodeUseRule::ClusterAlign)?;
    }
    if extent.has_unwritten && inode.kind == FileKind::Directory {
        checker.found(locus, InodeUseRule::DirectoryUnwritten)?;
    }
    Ok(())
}

fn is_resize_inode(checker: &Checker<'_>, inode: InodeNr) -> bool {
    let features = checker.fs.geometry.features;
    inode == InodeNr::RESIZE && features.compat.contains(Compat::RESIZE_INODE)
}

/// Claims the bad blocks: all that the mapping of the bad blocks inode lists.
pub(super) fn check_bad_blocks(
    checker: &mut Checker<'_>,
    numbers: &[u8; BLOCK_AREA_BYTES],
) -> Flow {
    let number = InodeNr::BAD_BLOCKS;
    let extent = claim_map(checker, number, &BlockMap::indirect(number, numbers))?;
    match extent.shared {
        Some(block) => {
            let locus = locus_of(number).at_block(block.0);
            checker.found(locus, InodeUseRule::SharedBlock)
        }
        None => Ok(()),
    }
}

fn claim_map(checker: &mut Checker<'_>, number: InodeNr, map: &BlockMap) -> Flow<Extent> {
    let fs = checker.fs;
    let mut extent = Extent::default();
    map.visit_sound(fs, &mut |found| match found {
        Ok(piece) => claim_piece(checker, piece, &mut extent),
        Err(error) => {
            extent.broken = extent.broken.saturating_add(1);
            if extent.broken > BROKEN_MAX {
                return ControlFlow::Continue(());
            }
            match checker.tolerate::<()>("block map", locus_of(number), Err(error)) {
                Ok(_) => ControlFlow::Continue(()),
                Err(cancelled) => {
                    extent.cancelled = Some(cancelled);
                    ControlFlow::Break(())
                }
            }
        }
    });
    match extent.cancelled.take() {
        Some(cancelled) => Err(cancelled),
        None => Ok(extent),
    }
}

fn claim_piece(checker: &mut Checker<'_>, piece: Piece, extent: &mut Extent) -> ControlFlow<()> {
    match piece {
        Piece::Node(_, block) => claim(checker, block, 1, extent),
        Piece::Run(run) => {
            extent.take(run);
            match run.backing {
                Backing::Hole => ControlFlow::Continue(()),
                Backing::Written(start) | Backing::Unwritten(start) => {
                    claim_run(checker, run.first, start, u64::from(run.count), extent)
                }
            }
        }
    }
}

fn claim_run(
    checker: &mut Checker<'_>,
    first: FileBlock,
    start: BlockNr,
    count: u64,
    extent: &mut Extent,
) -> ControlFlow<()> {
    let ratio = u64::from(checker.fs.geometry.cluster_blocks);
    let first = u64::from(first.0);
    if ratio == 1 {
        return claim(checker, start, count, extent);
    }
    extent.is_misaligned |= first % ratio != start.0 % ratio;
    let is_begun = extent.last_cluster == Some((first / ratio, start.0 / ratio));
    let skipped = if is_begun { ratio - start.0 % ratio } else { 0 };
    let last = count - 1;
    extent.last_cluster = Some(((first + last) / ratio, (start.0 + last) / ratio));
    if skipped >= count {
        return ControlFlow::Continue(());
    }
    claim(checker, BlockNr(start.0 + skipped), count - skipped, extent)
}

fn claim(
    checker: &mut Checker<'_>,
    first: BlockNr,
    count: u64,
    extent: &mut Extent,
) -> ControlFlow<()> {
    let geometry = &checker.fs.geometry;
    let ratio = u64::from(geometry.cluster_blocks);
    let end = first.0.saturating_add(count).div_ceil(ratio);
    extent.clusters += end.saturating_sub(first.0 / ratio);
    let shared = checker.claims.claim(geometry, first, count);
    extent.shared = extent.shared.or(shared.first);
    checker.shared_left = checker.shared_left.saturating_sub(shared.count);
    let is_endless = extent.clusters > geometry.blocks_count;
    if is_endless || (shared.count > 0 && checker.shared_left == 0) {
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}

fn check_size(checker: &mut Checker<'_>, inode: &Inode, map: &BlockMap, extent: &Extent) -> Flow {
    let block_bytes = u64::from(checker.fs.geometry.block_bytes);
    let locus = locus_of(inode.number);
    let is_inline = inode.flags.contains(InodeFlags::INLINE_DATA);
    if inode.size_bytes > size_bytes_max(checker, inode) {
        checker.found(locus, InodeUseRule::SizeTooLarge)?;
    }
    if is_inline {
        check_inline_size(checker, inode)?;
        if inode.kind == FileKind::Symlink {
            check_target(checker, inode, map)?;
        }
        return Ok(());
    }
    match inode.kind {
        FileKind::Directory => {
            if inode.size_bytes != extent.end.saturating_mul(block_bytes) || extent.end == 0 {
                checker.found(locus, InodeUseRule::DirectorySize)?;
            }
        }
        FileKind::Regular if !inode.flags.contains(InodeFlags::VERITY) => {
            let last = extent.written_end.saturating_sub(1);
            let is_being_truncated = checker.orphans.contains(&inode.number);
            if inode.size_bytes < last.saturating_mul(block_bytes) && !is_being_truncated {
                checker.found(locus, InodeUseRule::SizeTooSmall)?;
            }
        }
        FileKind::Symlink if inode.has_target_inside(&checker.fs.geometry) => {
            if inode.flags.contains(InodeFlags::EXTENTS) {
                checker.found(locus, InodeUseRule::LinkExtents)?;
            }
        }
        FileKind::Symlink => check_target(checker, inode, map)?,
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
            if inode.size_bytes != 0 {
                checker.found(locus, InodeUseRule::SpecialSize)?;
            }
        }
        FileKind::Regular => {}
    }
    Ok(())
}

/// Checks the target of a symbolic link that is stored in a block or as inline data.
fn check_target(checker: &mut Checker<'_>, inode: &Inode, map: &BlockMap) -> Flow {
    let fs = checker.fs;
    let locus = locus_of(inode.number);
    // Linux requires that the target and a NUL fit one block.
    if !(1..u64::from(fs.geometry.block_bytes)).contains(&inode.size_bytes) {
        return checker.found(locus, InodeUseRule::LinkTarget);
    }
    if inode.is_encrypted() {
        return Ok(());
    }
    let mut target = vec![0; usize::try_from(inode.size_bytes).unwrap_or_default()];
    let contents = Contents { fs, inode, map };
    let read = contents.read_at(0, &mut target);
    let is_read = checker.tolerate("symbolic link", locus, read)?.is_some();
    if is_read && target.contains(&0) {
        return checker.found(locus, InodeUseRule::LinkTarget);
    }
    Ok(())
}

fn check_inline_size(checker: &mut Checker<'_>, inode: &Inode) -> Flow {
    let locus = locus_of(inode.number);
    let decoded = InlineData::decode(inode, &checker.fs.geometry);
    let Some(data) = checker.tolerate("inline data", locus, decoded)? else {
        return Ok(());
    };
    let capacity = (data.first.len() + data.rest.len()) as u64;
    let is_whole = inode.kind != FileKind::Directory || inode.size_bytes == capacity;
    if inode.size_bytes > capacity || !is_whole {
        checker.found(locus, InodeUseRule::InlineSize)?;
    }
    Ok(())
}

/// Returns the largest size that an inode's mapping supports.
pub(super) fn size_bytes_max(checker: &Checker<'_>, inode: &Inode) -> u64 {
    let block_bytes = u64::from(checker.fs.geometry.block_bytes);
    let blocks = if inode.flags.contains(InodeFlags::EXTENTS) {
        u64::from(u32::MAX)
    } else {
        let numbers = block_bytes / 4;
        12 + numbers + numbers.pow(2) + numbers.pow(3)
    };
    blocks.saturating_mul(block_bytes)
}

impl Extent {
    fn take(&mut self, run: Run) {
        let FileBlock(first) = run.first;
        self.is_disordered |= u64::from(first) < self.end;
        self.end = self.end.max(u64::from(first) + u64::from(run.count));
        match run.backing {
            Backing::Written(_) => self.written_end = self.end,
            Backing::Unwritten(_) => self.has_unwritten = true,
            Backing::Hole => {}
        }
    }
}
