//! The clusters found in use, by group, in the format of the on-disk bitmaps.

use std::collections::HashMap;

use crate::ondisk::{BlockNr, Geometry, GroupNr};

/// The claimed clusters. Allocates memory only for groups with claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    groups: HashMap<u32, GroupClaims>,
}

/// The claims in one group.
#[derive(Debug)]
pub(super) struct GroupClaims {
    /// One bit for each cluster of the group, the lowest bit first.
    pub(super) bits: Box<[u8]>,
    /// Number of bits set.
    pub(super) count: u32,
    /// A claim exists that is not for the filesystem's fixed metadata.
    pub(super) by_inodes: bool,
}

/// Result of claiming a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shared {
    /// The first block whose cluster was claimed before.
    pub(super) first: Option<BlockNr>,
    /// Number of clusters that were claimed before.
    pub(super) count: u64,
}

impl Claims {
    /// Claims the clusters of a run of blocks for an inode.
    pub(super) fn claim(&mut self, geometry: &Geometry, first: BlockNr, blocks: u64) -> Shared {
        self.claim_for(geometry, first, blocks, true)
    }

    /// Claims the clusters of fixed metadata.
    pub(super) fn claim_fixed(&mut self, geometry: &Geometry, first: BlockNr, blocks: u64) {
        self.claim_for(geometry, first, blocks, false);
    }

    fn claim_for(
        &mut self,
        geometry: &Geometry,
        first: BlockNr,
        blocks: u64,
        by_inode: bool,
    ) -> Shared {
        let mut shared = Shared::default();
        let end = first.0.saturating_add(blocks);
        let mut at = first.0;
        while at < end {
            let Some(group) = geometry.group_of_block(BlockNr(at)) else {
                return shared;
            };
            let start = geometry.group_first_block(group).0;
            let group_end = end.min(start + u64::from(geometry.blocks_per_group));
            let claims = self.groups.entry(group.0).or_insert_with(|| GroupClaims {
                bits: vec![0; geometry.clusters_per_group.div_ceil(8) as usize].into(),
                count: 0,
                by_inodes: false,
            });
            let ratio = u64::from(geometry.cluster_blocks);
            for cluster in (at - start) / ratio..(group_end - start).div_ceil(ratio) {
                if !claims.set(cluster, by_inode) {
                    shared
                        .first
                        .get_or_insert(BlockNr(at.max(start + cluster * ratio)));
                    shared.count += 1;
                }
            }
            at = group_end;
        }
        shared
    }

    /// Returns the claims in a group, if there are any.
    pub(super) fn group(&self, group: GroupNr) -> Option<&GroupClaims> {
        self.groups.get(&group.0)
    }
}

impl GroupClaims {
    /// Sets the bit of a cluster; returns `false` if it was claimed before.
    fn set(&mut self, cluster: u64, by_inode: bool) -> bool {
        let byte = usize::try_from(cluster / 8).ok();
        let Some(byte) = byte.and_then(|byte| self.bits.get_mut(byte)) else {
            return true;
        };
        let bit = 1 << (cluster % 8);
        let is_new = *byte & bit == 0;
        *byte |= bit;
        self.count += u32::from(is_new);
        self.by_inodes |= by_inode && is_new;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn second_claim_of_a_block_is_reported() {
        let mut geometry = sample_geometry();
        geometry.blocks_count = 16384;
        geometry.groups_count = 2;
        let mut claims = Claims::default();
        // Across the boundary of two groups.
        let first = claims.claim(&geometry, BlockNr(8190), 5);
        assert_eq!(first, Shared::default());
        let second = claims.claim(&geometry, BlockNr(8188), 6);
        assert_eq!(second.first, Some(BlockNr(8190)));
        assert_eq!(second.count, 4);
        assert_eq!(claims.group(GroupNr(0)).map(|group| group.count), Some(5));
        assert_eq!(claims.group(GroupNr(1)).map(|group| group.count), Some(2));
    }

    #[test]
    fn blocks_of_one_cluster_are_one_claim() {
        let mut geometry = sample_geometry();
        geometry.first_data_block = BlockNr(0);
        geometry.cluster_blocks = 4;
        geometry.clusters_per_group = geometry.blocks_per_group / 4;
        let mut claims = Claims::default();
        claims.claim_fixed(&geometry, BlockNr(2), 3);
        let group = claims.group(GroupNr(0)).unwrap();
        assert_eq!((group.count, group.by_inodes), (2, false));
        let again = claims.claim(&geometry, BlockNr(7), 1);
        assert_eq!(again.first, Some(BlockNr(7)));
    }
}
