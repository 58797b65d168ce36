//! What one inode's map claims: its blocks are its own, their count and its size agree.

use std::ops::ControlFlow;

use platter_vfs::FileKind;

use super::{Checker, Flow, InodeUseRule, locus_of};
use crate::mapping::{Backing, BlockMap, Piece, Run};
use crate::ondisk::features::Compat;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};

/// What the pieces of one map added up to.
#[derive(Debug, Default)]
struct Extent {
    clusters: u64,
    /// The cluster of contents claimed last: with bigalloc, runs in a row share clusters.
    last_cluster: Option<u64>,
    /// The block behind the last run.
    end: u64,
    /// The last block that is initialized.
    last_written: Option<u64>,
    shared: Option<BlockNr>,
    disordered: bool,
    unwritten: bool,
}

impl Checker<'_> {
    /// Claims the blocks of an inode and compares them with its counts. `value_clusters` are
    /// those of its attributes in other inodes.
    pub(super) fn check_contents(&mut self, inode: &Inode, value_clusters: u64) -> Flow {
        let volume = self.volume;
        let locus = locus_of(inode.number);
        let map = BlockMap::decode(volume, inode);
        let Some(map) = self.tolerate("block map", locus, map)? else {
            return Ok(());
        };
        let is_resize = self.is_resize_inode(inode.number);
        let mut extent = Extent::default();
        let visited = map.visit(volume, &mut |piece| {
            self.claim_piece(piece, is_resize, &mut extent)
        });
        if self.tolerate("block map", locus, visited)?.is_none() {
            return Ok(());
        }
        if let Some(block) = extent.shared {
            return self.found(locus.at_block(block.0), InodeUseRule::SharedBlock);
        }
        if extent.disordered {
            self.found(locus, InodeUseRule::ExtentOrder)?;
        }
        if extent.unwritten && inode.kind == FileKind::Directory {
            self.found(locus, InodeUseRule::DirectoryUnwritten)?;
        }
        // The resize inode counts blocks, and shares their clusters with other metadata.
        if !is_resize {
            self.check_block_count(inode, extent.clusters + value_clusters)?;
        }
        self.check_size(inode, &extent)
    }

    fn is_resize_inode(&self, inode: InodeNr) -> bool {
        let features = self.volume.geometry.features;
        inode == InodeNr::RESIZE && features.compat.contains(Compat::RESIZE_INODE)
    }

    fn claim_piece(
        &mut self,
        piece: Piece,
        is_resize: bool,
        extent: &mut Extent,
    ) -> ControlFlow<()> {
        match piece {
            Piece::Node(_, block) => self.claim_cluster(block, is_resize, extent),
            Piece::Run(run) => {
                extent.take(run);
                match run.backing {
                    Backing::Hole => ControlFlow::Continue(()),
                    Backing::Written(start) | Backing::Unwritten(start) => {
                        self.claim_blocks(start, run.count, is_resize, extent)
                    }
                }
            }
        }
    }

    fn claim_blocks(
        &mut self,
        first: BlockNr,
        count: u32,
        is_resize: bool,
        extent: &mut Extent,
    ) -> ControlFlow<()> {
        let geometry = &self.volume.geometry;
        for block in first.0..first.0.saturating_add(u64::from(count)) {
            let cluster = block / u64::from(geometry.cluster_blocks);
            if geometry.cluster_blocks > 1 && extent.last_cluster == Some(cluster) {
                continue;
            }
            extent.last_cluster = Some(cluster);
            self.claim_cluster(BlockNr(block), is_resize, extent)?;
        }
        ControlFlow::Continue(())
    }

    fn claim_cluster(
        &mut self,
        block: BlockNr,
        is_resize: bool,
        extent: &mut Extent,
    ) -> ControlFlow<()> {
        let geometry = &self.volume.geometry;
        extent.clusters += 1;
        // The resize inode's blocks are those that stand behind the descriptors already.
        let is_new = self.claims.claim(geometry, block, true);
        let is_endless = extent.clusters > geometry.blocks_count;
        if (!is_new && !is_resize) || is_endless {
            extent.shared = Some(block);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn check_block_count(&mut self, inode: &Inode, clusters: u64) -> Flow {
        let geometry = &self.volume.geometry;
        let clusters = clusters + u64::from(inode.xattr_block.is_some());
        let cluster_bytes = u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks);
        if inode.sectors != clusters.saturating_mul(cluster_bytes >> 9) {
            self.found(locus_of(inode.number), InodeUseRule::BlockCount)?;
        }
        Ok(())
    }

    fn check_size(&mut self, inode: &Inode, extent: &Extent) -> Flow {
        let block_bytes = u64::from(self.volume.geometry.block_bytes);
        let locus = locus_of(inode.number);
        let is_inline = inode.flags.contains(InodeFlags::INLINE_DATA);
        if inode.size_bytes > self.size_bytes_max(inode) {
            self.found(locus, InodeUseRule::SizeTooLarge)?;
        }
        match inode.kind {
            FileKind::Directory if !is_inline => {
                if inode.size_bytes != extent.end.saturating_mul(block_bytes) || extent.end == 0 {
                    self.found(locus, InodeUseRule::DirectorySize)?;
                }
            }
            FileKind::Regular if !inode.flags.contains(InodeFlags::VERITY) => {
                let covered = extent.last_written.unwrap_or(0).saturating_mul(block_bytes);
                let is_being_truncated = self.orphans.contains(&inode.number);
                if inode.size_bytes < covered && !is_being_truncated {
                    self.found(locus, InodeUseRule::SizeTooSmall)?;
                }
            }
            FileKind::Symlink if !inode.has_target_inside(&self.volume.geometry) => {
                if inode.size_bytes == 0 || inode.size_bytes > block_bytes {
                    self.found(locus, InodeUseRule::LinkTarget)?;
                }
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                if inode.size_bytes != 0 {
                    self.found(locus, InodeUseRule::SpecialSize)?;
                }
            }
            FileKind::Directory | FileKind::Regular | FileKind::Symlink => {}
        }
        Ok(())
    }

    /// What the map of an inode can reach.
    fn size_bytes_max(&self, inode: &Inode) -> u64 {
        let block_bytes = u64::from(self.volume.geometry.block_bytes);
        let blocks = if inode.flags.contains(InodeFlags::EXTENTS) {
            u64::from(u32::MAX)
        } else {
            let numbers = block_bytes / 4;
            12 + numbers + numbers.pow(2) + numbers.pow(3)
        };
        blocks.saturating_mul(block_bytes)
    }
}

impl Extent {
    fn take(&mut self, run: Run) {
        let FileBlock(first) = run.first;
        self.disordered |= u64::from(first) < self.end;
        self.end = self.end.max(u64::from(first) + u64::from(run.count));
        match run.backing {
            Backing::Written(_) => self.last_written = Some(self.end - 1),
            Backing::Unwritten(_) => self.unwritten = true,
            Backing::Hole => {}
        }
    }
}
