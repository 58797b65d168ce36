//! Which clusters are in use, as found: by group, in the form the bitmaps have on the medium.

use std::collections::HashMap;

use crate::ondisk::{BlockNr, Geometry, GroupNr};

/// The clusters that someone claimed. Takes memory only for groups with claims.
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
    /// Someone else than the filesystem's own fixed metadata has a claim.
    pub(super) by_inodes: bool,
}

impl Claims {
    /// Claims the cluster of a block, which lies within the filesystem. `false` if it was claimed
    /// before.
    pub(super) fn claim(&mut self, geometry: &Geometry, block: BlockNr, by_inode: bool) -> bool {
        let Some(group) = geometry.group_of_block(block) else {
            return true;
        };
        let in_group = block.0 - geometry.group_first_block(group).0;
        let index = in_group / u64::from(geometry.cluster_blocks);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let claims = self.groups.entry(group.0).or_insert_with(|| GroupClaims {
            bits: vec![0; geometry.clusters_per_group.div_ceil(8) as usize].into(),
            count: 0,
            by_inodes: false,
        });
        let Some(byte) = claims.bits.get_mut(index / 8) else {
            return true;
        };
        let bit = 1 << (index % 8);
        let is_new = *byte & bit == 0;
        *byte |= bit;
        claims.count += u32::from(is_new);
        claims.by_inodes |= by_inode && is_new;
        is_new
    }

    /// The claims in a group, if there are any.
    pub(super) fn group(&self, group: GroupNr) -> Option<&GroupClaims> {
        self.groups.get(&group.0)
    }
}
