//! Reference counts of shared blocks. Blocks without a record have one reference.
//! Spec: `xfs/refcountbt`.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Group;
use super::record::TreeRecord;
use super::rules::GroupRule;
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, DiskRefcount, Owner, Refcount, RmapOwner};

const KIND: BtreeKind = BtreeKind::Refcount;

impl Group<'_> {
    /// Takes one reference from each block of an extent; returns the extents that have none any more.
    pub fn drop_references(&mut self, start: AgBlock, count: u32) -> Result<Vec<(AgBlock, u32)>> {
        if self.agf.refcount.is_none() {
            return Ok(vec![(start, count)]);
        }
        self.fill_free_list()?;
        let end = start.0 + count;
        let old = self.references_around(start.0, end)?;
        let mut new: Vec<Refcount> = Vec::new();
        let mut add = |start: u32, end: u32, references: u32| {
            if start >= end || references < 2 {
                return;
            }
            if let Some(last) = new.last_mut()
                && last.start.0 + last.count == start
                && last.references == references
            {
                last.count += end - start;
                return;
            }
            new.push(Refcount {
                start: AgBlock(start),
                count: end - start,
                references,
                is_staged: false,
            });
        };
        let mut unreferenced = Vec::new();
        let mut at = start.0;
        for record in &old {
            let (first, last) = (record.start.0, record.start.0 + record.count);
            if record.references < 2 {
                let locus = Locus::group(self.ag.0.into());
                return Err(Corrupt::new(locus, GroupRule::Refcount).into());
            }
            add(first, last.min(start.0), record.references);
            let (shared_first, shared_last) = (first.max(start.0), last.min(end));
            if shared_first < shared_last {
                if at < shared_first {
                    unreferenced.push((AgBlock(at), shared_first - at));
                }
                add(shared_first, shared_last, record.references - 1);
                at = shared_last;
            }
            add(first.max(end), last, record.references);
        }
        if at < end {
            unreferenced.push((AgBlock(at), end - at));
        }
        let order = |record: &Refcount| TreeRecord::order(&record.encode(), KIND);
        if old != new {
            for record in &old {
                self.remove::<DiskRefcount>(KIND, order(record))?;
            }
            for record in &new {
                self.insert(KIND, record.encode())?;
            }
        }
        Ok(unreferenced)
    }

    /// Frees the blocks that were staged for copy on write when the machine stopped.
    pub fn free_staged(&mut self) -> Result<()> {
        if self.agf.refcount.is_none() {
            return Ok(());
        }
        let staged = Refcount {
            start: AgBlock(0),
            count: 0,
            references: 0,
            is_staged: true,
        };
        let first = TreeRecord::order(&staged.encode(), KIND);
        while let Some(record) = self.lookup_ge::<DiskRefcount>(KIND, first)? {
            let run = Refcount::decode(&record);
            self.fill_free_list()?;
            self.remove::<DiskRefcount>(KIND, TreeRecord::order(&record, KIND))?;
            self.remove_owner(&Owner {
                start: run.start,
                count: run.count,
                owner: RmapOwner::COW,
                offset: 0,
                is_attr_fork: false,
                is_btree: false,
                is_unwritten: false,
            })?;
            self.free_extent(run.start, run.count)?;
        }
        Ok(())
    }

    /// The records that overlap or touch a range of blocks, without those of staged blocks.
    fn references_around(&self, start: u32, end: u32) -> Result<Vec<Refcount>> {
        let mut found = Vec::new();
        let mut next: Option<DiskRefcount> = self.lookup_lt(KIND, (u64::from(start), 0, 0))?;
        if next.is_none_or(|record| record.start.get() + record.count.get() < start) {
            next = self.lookup_ge(KIND, (u64::from(start), 0, 0))?;
        }
        while let Some(record) = next {
            let decoded = Refcount::decode(&record);
            if decoded.is_staged || decoded.start.0 > end {
                break;
            }
            found.push(decoded);
            next = self.lookup_ge(KIND, (u64::from(decoded.start.0) + 1, 0, 0))?;
        }
        Ok(found)
    }
}
