//! Quota: the usage of every user, group and project, compared with the quota files.

use std::collections::{BTreeMap, HashSet};

use platter_vfs::Result;

use super::{Checker, Flow, QuotaUseRule, locus_of};
use crate::file::Contents;
use crate::mapping::BlockMap;
use crate::ondisk::features::RoCompat;
use crate::ondisk::quota::{
    QUOTA_BLOCK_BYTES, QUOTA_ROOT_BLOCK, QUOTA_TREE_LEVELS, QuotaKind, QuotaRule, QuotaUsage,
    broken, decode_head, entries, references,
};
use crate::ondisk::{Inode, InodeFlags, InodeNr};

/// Usage by id, for each kind of quota.
#[derive(Debug, Default)]
pub(super) struct Usages([BTreeMap<u32, QuotaUsage>; 3]);

/// A quota file, its block mapping, and the tree blocks read so far.
struct QuotaFile<'a> {
    contents: Contents<'a>,
    met: HashSet<u32>,
}

impl Checker<'_> {
    /// Adds the usage of an inode. `ea_inodes` is the number of its EA inodes.
    pub(super) fn count_usage(&mut self, inode: &Inode, space_bytes: u64, ea_inodes: u64) {
        let holds_value = inode.flags.contains(InodeFlags::EA_INODE);
        if holds_value || crate::inode::is_reserved(self.volume, inode.number) {
            return;
        }
        let ids = [inode.uid, inode.gid, inode.project];
        for (usages, id) in self.usages.0.iter_mut().zip(ids) {
            let usage = usages.entry(id).or_default();
            usage.space_bytes = usage.space_bytes.saturating_add(space_bytes);
            usage.inodes = usage.inodes.saturating_add(1 + ea_inodes);
        }
    }

    pub(super) fn check_quota(&mut self) -> Flow {
        let volume = self.volume;
        let ro_compat = volume.geometry.features.ro_compat;
        if !ro_compat.contains(RoCompat::QUOTA) {
            return Ok(());
        }
        let usages = std::mem::take(&mut self.usages);
        let inodes = volume.superblock.quota_inodes;
        for ((kind, number), usages) in QuotaKind::ALL.into_iter().zip(inodes).zip(usages.0) {
            if let Some(number) = number {
                self.progress("quota", 0, 0)?;
                self.check_quota_file(kind, number, &usages)?;
            }
        }
        Ok(())
    }

    fn check_quota_file(
        &mut self,
        kind: QuotaKind,
        number: InodeNr,
        usages: &BTreeMap<u32, QuotaUsage>,
    ) -> Flow {
        let volume = self.volume;
        let locus = locus_of(number);
        // A corrupt one is reported with its table.
        let Some(inode) = self.inode(number) else {
            return Ok(());
        };
        let map = BlockMap::decode(volume, &inode);
        let Some(map) = self.tolerate("quota file", locus, map)? else {
            return Ok(());
        };
        let mut file = QuotaFile {
            contents: Contents {
                volume,
                inode: &inode,
                map: &map,
            },
            met: HashSet::new(),
        };
        let mut wrong = 0;
        let mut listed = HashSet::new();
        let mut stored = |id: u32, stored: QuotaUsage| {
            let found = usages.get(&id);
            if found.is_some() {
                listed.insert(id);
            }
            // Each entry of an id counts, also a second one.
            wrong += u64::from(found.copied().unwrap_or_default() != stored);
        };
        let walked = file.walk(kind, &mut stored);
        if self.tolerate("quota file", locus, walked)?.is_none() {
            return Ok(());
        }
        // Every id in use has an entry, except root's own.
        let is_missing = |(id, usage): (&u32, &QuotaUsage)| {
            *usage != QuotaUsage::default() && !listed.contains(id)
        };
        let missing = usages.iter().any(is_missing);
        // If blocks or inodes could not be counted, the usage is incomplete.
        if self.is_blind {
            return Ok(());
        }
        if wrong > 0 {
            self.found(locus, QuotaUseRule::Usage)?;
        }
        if missing {
            self.found(locus, QuotaUseRule::Missing)?;
        }
        Ok(())
    }
}

impl QuotaFile<'_> {
    /// Calls `sink` for every entry.
    fn walk(&mut self, kind: QuotaKind, sink: &mut dyn FnMut(u32, QuotaUsage)) -> Result<()> {
        let number = self.contents.inode.number.get();
        let head = self.read(0)?;
        decode_head(&head, kind, self.contents.inode.size_bytes)
            .map_err(|rule| broken(number, None, rule))?;
        self.met.extend([0, QUOTA_ROOT_BLOCK]);
        let root = self.read(QUOTA_ROOT_BLOCK)?;
        self.descend(&root, QUOTA_TREE_LEVELS, sink)
    }

    /// Recurses at most [`QUOTA_TREE_LEVELS`] deep, and into no block twice.
    fn descend(
        &mut self,
        block: &[u8],
        levels: u32,
        sink: &mut dyn FnMut(u32, QuotaUsage),
    ) -> Result<()> {
        if levels == 0 {
            entries(block).for_each(|(id, usage)| sink(id, usage));
            return Ok(());
        }
        for reference in references(block) {
            // A leaf is reached once for each of the ids it holds.
            let is_new = self.met.insert(reference);
            if levels == 1 && !is_new {
                continue;
            }
            let end = self.contents.inode.size_bytes / QUOTA_BLOCK_BYTES as u64;
            if !is_new || u64::from(reference) >= end {
                let number = self.contents.inode.number.get();
                return Err(broken(number, Some(reference), QuotaRule::Reference).into());
            }
            let below = self.read(reference)?;
            self.descend(&below, levels - 1, sink)?;
        }
        Ok(())
    }

    fn read(&self, block: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; QUOTA_BLOCK_BYTES];
        let offset = u64::from(block) * QUOTA_BLOCK_BYTES as u64;
        self.contents.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}
