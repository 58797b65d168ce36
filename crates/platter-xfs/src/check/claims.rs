//! The blocks found in use, by group, with their owners: what the reverse mapping B-tree would say.

use std::collections::HashMap;

use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::{AgBlock, AgNr};

const SHAREABLE: u64 = 1 << 60;

/// A run of blocks in use, in as many bytes as its record on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) start: u32,
    pub(super) count: u32,
    pub(super) owner: RmapOwner,
    /// The offset of a reverse mapping record with its flags, and one that other files may share it.
    offset: u64,
}

impl Claim {
    fn new(owner: &Owner, is_shareable: bool) -> Self {
        let disk = owner.encode();
        Self {
            start: owner.start.0,
            count: owner.count,
            owner: owner.owner,
            offset: disk.offset.get() | if is_shareable { SHAREABLE } else { 0 },
        }
    }

    /// The block after the last one.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.count)
    }

    /// Whether other files may share the blocks.
    pub(super) fn is_shareable(&self) -> bool {
        self.offset & SHAREABLE != 0
    }

    /// The record that the reverse mapping B-tree should have.
    pub(super) fn to_owner(self) -> Owner {
        let mut disk = crate::ondisk::btree::DiskOwner {
            start: self.start.into(),
            count: self.count.into(),
            owner: self.owner.0.into(),
            offset: 0.into(),
        };
        disk.offset.set(self.offset & !SHAREABLE);
        Owner::decode(&disk)
    }
}

/// The claims of all groups. Allocates memory only for groups with claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    groups: HashMap<u32, Vec<Claim>>,
}

impl Claims {
    /// Claims blocks. Neighbouring blocks with one owner are one claim.
    pub(super) fn add(&mut self, ag: AgNr, owner: &Owner, is_shareable: bool) {
        let claim = Claim::new(owner, is_shareable);
        let claims = self.groups.entry(ag.0).or_default();
        if let Some(last) = claims.last_mut()
            && !owner.owner.is_inode()
            && last.owner == claim.owner
            && last.end() == u64::from(claim.start)
        {
            last.count = last.count.saturating_add(claim.count);
            return;
        }
        claims.push(claim);
    }

    /// Claims blocks for something that is no inode.
    pub(super) fn add_special(&mut self, ag: AgNr, start: AgBlock, count: u32, owner: RmapOwner) {
        let owner = Owner {
            start,
            count,
            owner,
            offset: 0,
            is_attr_fork: false,
            is_btree: false,
            is_unwritten: false,
        };
        self.add(ag, &owner, false);
    }

    /// Takes the claims of a group, by their first block.
    pub(super) fn take(&mut self, ag: AgNr) -> Vec<Claim> {
        let mut claims = self.groups.remove(&ag.0).unwrap_or_default();
        claims.sort_unstable_by_key(|claim| (claim.start, claim.owner, claim.offset));
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_merge_only_where_there_is_no_offset() {
        let mut claims = Claims::default();
        for start in [9, 10, 12] {
            claims.add_special(AgNr(1), AgBlock(start), 1, RmapOwner::AG);
        }
        let file = Owner {
            start: AgBlock(2),
            count: 3,
            owner: RmapOwner(131),
            offset: 7,
            is_attr_fork: false,
            is_btree: false,
            is_unwritten: true,
        };
        claims.add(AgNr(1), &file, true);
        let taken = claims.take(AgNr(1));
        let runs: Vec<_> = taken
            .iter()
            .map(|claim| (claim.start, claim.count))
            .collect();
        assert_eq!(runs, [(2, 3), (9, 2), (12, 1)]);
        assert!(taken[0].is_shareable() && !taken[1].is_shareable());
        assert_eq!(taken[0].to_owner(), file);
        assert!(claims.take(AgNr(1)).is_empty());
    }
}
