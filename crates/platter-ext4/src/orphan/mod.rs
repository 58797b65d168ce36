//! Orphans: inodes whose deletion or truncation a crash interrupted. A read-only mount presents
//! them as the kernel leaves them after its mount; a read-write mount records new ones. Spec:
//! `ext4/orphan`.

mod register;

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;

use platter_vfs::{Error, FileKind, Result};

use crate::FsContext;
use crate::file::Contents;
use crate::inode;
use crate::mapping::{BlockMap, Piece};
use crate::ondisk::features::RoCompat;
use crate::ondisk::orphan::{OrphanBlockRules, orphans};
use crate::ondisk::{FileBlock, Inode, InodeNr};

pub use register::{ORPHAN_CREDITS, OrphanRegister};

/// Maximum number of blocks of the orphan file that are read; no tool makes a longer one.
const ORPHAN_FILE_BLOCKS_MAX: u32 = 1 << 16;

/// The orphans of a filesystem.
#[derive(Debug, Clone, Default)]
pub struct Orphans {
    truncated: HashSet<InodeNr>,
    unlinked: HashSet<InodeNr>,
    /// Number of clusters that deleting the unlinked ones frees.
    pub freed_clusters: u64,
}

impl Orphans {
    /// Collects the orphans in the list and in the file. Like the kernel's, the search ends where
    /// the list or the file is corrupt.
    pub fn collect(fs: &FsContext) -> Result<Self> {
        let mut orphans = Self::default();
        // The kernel ignores them if it found errors or must not write.
        let superblock = &fs.superblock;
        if superblock.state.has_errors() || !superblock.features.unwritable().is_empty() {
            return Ok(orphans);
        }
        orphans.collect_list(fs)?;
        if superblock
            .features
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT)
        {
            orphans.collect_file(fs)?;
        }
        Ok(orphans)
    }

    /// Collects the list, which is linked through the inodes. Each inode is added once, so a cycle
    /// terminates.
    fn collect_list(&mut self, fs: &FsContext) -> Result<()> {
        let mut next = fs.superblock.last_orphan;
        while let Some(number) = next {
            let Some(inode) = self.take(fs, number)? else {
                return Ok(());
            };
            next = InodeNr::new(inode.deleted);
        }
        Ok(())
    }

    fn collect_file(&mut self, fs: &FsContext) -> Result<()> {
        let Some(number) = fs.superblock.orphan_file_inode else {
            return Ok(());
        };
        let Some(inode) = sound(inode::find(fs, number))?.flatten() else {
            return Ok(());
        };
        let Some(map) = sound(BlockMap::decode(fs, &inode))? else {
            return Ok(());
        };
        let has_checksum = fs.geometry.features.has_metadata_csum();
        let rules = OrphanBlockRules {
            inode_seed: has_checksum.then_some(inode.checksum_seed),
        };
        let contents = Contents {
            fs,
            inode: &inode,
            map: &map,
        };
        let size_blocks = inode.size_bytes >> fs.geometry.block_bits;
        let end = u32::try_from(size_blocks).unwrap_or(u32::MAX);
        let blocks = FileBlock(0)..FileBlock(end.min(ORPHAN_FILE_BLOCKS_MAX));
        let mut taken = Ok(());
        let walked = contents.runs(blocks, &mut |run| {
            taken = run.places().try_for_each(|place| {
                let block = fs.read_block(place, &rules)?;
                orphans(&block).try_for_each(|number| self.take(fs, number).map(|_| ()))
            });
            if taken.is_err() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        sound(walked.and(taken))?;
        Ok(())
    }

    /// Adds an inode to the orphans, if it is one and was not added before.
    fn take(&mut self, fs: &FsContext, number: InodeNr) -> Result<Option<Inode>> {
        if inode::is_reserved(fs, number) {
            return Ok(None);
        }
        let Some(inode) = sound(inode::find(fs, number))?.flatten() else {
            return Ok(None);
        };
        let new = if inode.links > 0 {
            self.truncated.insert(number)
        } else {
            let sectors_per_cluster =
                u64::from(fs.geometry.block_bytes >> 9) * u64::from(fs.geometry.cluster_blocks);
            let new = self.unlinked.insert(number);
            let clusters = if new {
                inode.sectors / sectors_per_cluster
            } else {
                0
            };
            self.freed_clusters = self.freed_clusters.saturating_add(clusters);
            new
        };
        Ok(new.then_some(inode))
    }

    /// Returns how many inodes deleting the unlinked ones frees.
    #[must_use]
    pub fn freed_inodes(&self) -> u64 {
        self.unlinked.len() as u64
    }

    /// Whether an inode is to be truncated to its size.
    #[must_use]
    pub fn is_truncated(&self, number: InodeNr) -> bool {
        self.truncated.contains(&number)
    }

    /// Returns all orphans.
    #[must_use]
    pub fn all(&self) -> BTreeSet<InodeNr> {
        self.truncated.union(&self.unlinked).copied().collect()
    }
}

/// Unmaps the blocks after an inode's size, which completes its truncation.
pub fn finish_truncation(fs: &FsContext, inode: &mut Inode, map: &mut BlockMap) -> Result<()> {
    if inode.kind != FileKind::Regular {
        return Ok(());
    }
    let geometry = &fs.geometry;
    let blocks = inode.size_bytes.div_ceil(u64::from(geometry.block_bytes));
    let Ok(end) = u32::try_from(blocks).map(FileBlock) else {
        return Ok(());
    };
    let ratio = geometry.cluster_blocks;
    let mut freed_clusters = 0u64;
    // A cluster is freed if it is completely after the end; runs may share one.
    let mut counted_to = end.0.div_ceil(ratio);
    let mut budget = geometry.blocks_count;
    let counted = map.visit(fs, &mut |piece| {
        let count = match piece {
            Piece::Node(first, _) => u64::from(first >= end),
            Piece::Run(run) => {
                let from = (run.first.0 / ratio).max(counted_to);
                let to = run.end().0.div_ceil(ratio);
                counted_to = counted_to.max(to);
                u64::from(to.saturating_sub(from))
            }
        };
        freed_clusters += count;
        // No valid mapping has more parts than there are blocks.
        budget = budget.saturating_sub(1);
        if budget == 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match counted {
        // Unreadable parts are not needed now, or fail when they are.
        Err(Error::Io(_)) => {}
        counted => counted?,
    }
    let sectors_per_cluster = u64::from(geometry.block_bytes >> 9) * u64::from(ratio);
    let freed = freed_clusters.saturating_mul(sectors_per_cluster);
    inode.sectors = inode.sectors.saturating_sub(freed);
    map.cut(end);
    Ok(())
}

/// Converts corruption to `None`.
fn sound<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(platter_vfs::Error::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
