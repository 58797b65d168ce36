//! Reference counts of shared blocks. Blocks without a record have one reference.
//! Spec: `xfs/refcountbt`.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Group;
use super::rules::GroupRule;
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, DiskRefcount, Owner, Refcount, RmapOwner};
use crate::tree::{self, TreeRecord};

const KIND: BtreeKind = BtreeKind::Refcount;
/// `MAXREFCOUNT`: blocks with so many references keep them.
const REFERENCES_MAX: u32 = u32::MAX;

/// Which way reference counts change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Drop,
}

fn order(record: &Refcount) -> tree::Order {
    TreeRecord::order(&record.encode(), KIND)
}

fn end(record: &Refcount) -> u32 {
    record.start.0.saturating_add(record.count)
}

/// Runs of blocks in order, those next to each other with one count joined.
#[derive(Debug, Default)]
struct Runs(Vec<Refcount>);

impl Runs {
    fn add(&mut self, start: u32, end: u32, references: u32) {
        if start >= end || references < 2 {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.start.0.saturating_add(last.count) == start
            && last.references == references
        {
            last.count = last.count.saturating_add(end - start);
            return;
        }
        self.0.push(Refcount {
            start: AgBlock(start),
            count: end - start,
            references,
            is_staged: false,
        });
    }
}

impl Group<'_> {
    fn bad_references(&self) -> platter_vfs::Error {
        Corrupt::new(Locus::group(self.ag.0.into()), GroupRule::Refcount).into()
    }

    /// Takes one reference from each block of an extent; returns the extents that have none any more.
    pub fn drop_references(&mut self, start: AgBlock, count: u32) -> Result<Vec<(AgBlock, u32)>> {
        if self.agf.refcount.is_none() {
            return Ok(vec![(start, count)]);
        }
        self.change_references(start, count, Change::Drop)
    }

    /// Adds one reference to each block of an extent.
    pub fn add_references(&mut self, start: AgBlock, count: u32) -> Result<()> {
        self.change_references(start, count, Change::Add)?;
        Ok(())
    }

    /// How many of the first blocks of an extent have no more than so many records.
    pub fn counted_alike(&self, start: AgBlock, count: u32, records_max: usize) -> Result<u32> {
        if self.agf.refcount.is_none() {
            return Ok(count);
        }
        let end = start.0.saturating_add(count);
        let mut next = u64::from(start.0);
        for _ in 0..records_max {
            let Some(record) = self.lookup_ge::<DiskRefcount>(KIND, (next, 0, 0))? else {
                return Ok(count);
            };
            let record = Refcount::decode(&record);
            if record.is_staged || self::end(&record) >= end {
                return Ok(count);
            }
            next = self::end(&record).into();
        }
        let counted = u32::try_from(next).unwrap_or(end).saturating_sub(start.0);
        Ok(counted.clamp(1, count.max(1)))
    }

    /// The part at the end of an extent that at most so many records of reference counts lie in: its first
    /// block, and how many there are.
    pub fn end_with_records(
        &self,
        start: AgBlock,
        count: u32,
        most: u32,
    ) -> Result<(AgBlock, u32)> {
        if self.agf.refcount.is_none() {
            return Ok((start, 0));
        }
        let mut before = u64::from(start.0) + u64::from(count);
        for found in 0..most {
            let record: Option<DiskRefcount> = self.lookup_lt(KIND, (before, 0, 0))?;
            let record = record.map(|record| Refcount::decode(&record));
            let Some(record) = record.filter(|record| end(record) > start.0) else {
                return Ok((start, found));
            };
            before = record.start.0.into();
        }
        let next: Option<DiskRefcount> = self.lookup_lt(KIND, (before, 0, 0))?;
        let next = next.map_or(0, |next| end(&Refcount::decode(&next)));
        Ok((AgBlock(start.0.max(next)), most))
    }

    fn change_references(
        &mut self,
        start: AgBlock,
        count: u32,
        change: Change,
    ) -> Result<Vec<(AgBlock, u32)>> {
        self.fill_free_list()?;
        let (start, end) = (start.0, start.0.saturating_add(count));
        let old = self.references_around(start, end)?;
        let mut new = Runs::default();
        let mut unreferenced = Vec::new();
        let mut at = start;
        let mut without_record = |new: &mut Runs, first: u32, last: u32| match change {
            Change::Add => new.add(first, last, 2),
            Change::Drop if first < last => unreferenced.push((AgBlock(first), last - first)),
            Change::Drop => {}
        };
        for record in &old {
            let (first, last) = (record.start.0, self::end(record));
            if record.references < 2 {
                return Err(self.bad_references());
            }
            new.add(first, last.min(start), record.references);
            let (shared_first, shared_last) = (first.clamp(start, end), last.clamp(start, end));
            without_record(&mut new, at, shared_first);
            let references = match (record.references, change) {
                (REFERENCES_MAX, _) => REFERENCES_MAX,
                (references, Change::Add) => references + 1,
                (references, Change::Drop) => references - 1,
            };
            new.add(shared_first, shared_last, references);
            at = at.max(shared_last);
            new.add(first.max(end), last, record.references);
        }
        without_record(&mut new, at, end);
        let new = new.0;
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

    /// Records that blocks are staged for copy on write.
    pub fn stage(&mut self, start: AgBlock, count: u32) -> Result<()> {
        self.fill_free_list()?;
        let staged = Refcount {
            start,
            count,
            references: 1,
            is_staged: true,
        };
        self.insert(KIND, staged.encode())
    }

    /// Records that blocks are not staged any more.
    pub fn unstage(&mut self, start: AgBlock, count: u32) -> Result<()> {
        self.fill_free_list()?;
        let after = Refcount {
            start: AgBlock(start.0.saturating_add(1)),
            count,
            references: 1,
            is_staged: true,
        };
        let found: Option<DiskRefcount> = self.lookup_lt(KIND, order(&after))?;
        let found = found.map(|found| Refcount::decode(&found));
        let last = start.0.saturating_add(count);
        let found = found.filter(|found| found.is_staged && end(found) >= last);
        let found = found.ok_or_else(|| self.bad_references())?;
        self.remove::<DiskRefcount>(KIND, order(&found))?;
        let kept = [
            (found.start.0, start.0.saturating_sub(found.start.0)),
            (last, end(&found).saturating_sub(last)),
        ];
        for (start, count) in kept.into_iter().filter(|&(_, count)| count > 0) {
            let kept = Refcount {
                start: AgBlock(start),
                count,
                ..found
            };
            self.insert(KIND, kept.encode())?;
        }
        Ok(())
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
        while let Some(record) = self.lookup_ge::<DiskRefcount>(KIND, order(&staged))? {
            self.free_staged_run(&record)?;
        }
        Ok(())
    }

    /// Frees the first blocks that are staged; false if there are none.
    pub fn free_first_staged(&mut self) -> Result<bool> {
        if self.agf.refcount.is_none() {
            return Ok(false);
        }
        let staged = Refcount {
            start: AgBlock(0),
            count: 0,
            references: 0,
            is_staged: true,
        };
        let Some(record) = self.lookup_ge::<DiskRefcount>(KIND, order(&staged))? else {
            return Ok(false);
        };
        self.free_staged_run(&record)?;
        Ok(true)
    }

    fn free_staged_run(&mut self, record: &DiskRefcount) -> Result<()> {
        let run = Refcount::decode(record);
        self.fill_free_list()?;
        self.remove::<DiskRefcount>(KIND, TreeRecord::order(record, KIND))?;
        self.remove_owner(&Owner::special(run.start, run.count, RmapOwner::COW))?;
        self.free_extent(run.start, run.count)
    }

    /// The records that overlap or touch a range of blocks, without those of staged blocks.
    fn references_around(&self, start: u32, end: u32) -> Result<Vec<Refcount>> {
        let mut found = Vec::new();
        let mut next: Option<DiskRefcount> = self.lookup_lt(KIND, (u64::from(start), 0, 0))?;
        if next.is_none_or(|record| record.start.get().saturating_add(record.count.get()) < start) {
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
