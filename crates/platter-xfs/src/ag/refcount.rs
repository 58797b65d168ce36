//! Reference counts of shared blocks. Blocks without a record have one reference.
//! Spec: `xfs/refcountbt`.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::rules::GroupRule;
use super::{AgExtent, Group, rmap, space};
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

fn bad_references(group: &Group<'_>) -> platter_vfs::Error {
    Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::Refcount).into()
}

/// Takes one reference from each block of an extent; returns the extents that have none any more.
pub(crate) fn decrease(
    group: &mut Group<'_>,
    start: AgBlock,
    count: u32,
) -> Result<Vec<(AgBlock, u32)>> {
    if group.agf.refcount.is_none() {
        return Ok(vec![(start, count)]);
    }
    change(group, start, count, Change::Drop)
}

/// Adds one reference to each block of an extent.
pub(crate) fn increase(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<()> {
    change(group, start, count, Change::Add)?;
    Ok(())
}

/// How many of the first blocks of an extent have no more than so many records.
pub(crate) fn counted_alike(
    group: &Group<'_>,
    start: AgBlock,
    count: u32,
    records_max: usize,
) -> Result<u32> {
    if group.agf.refcount.is_none() {
        return Ok(count);
    }
    let end = start.0.saturating_add(count);
    let mut next = u64::from(start.0);
    for _ in 0..records_max {
        let Some(record) = group.lookup_ge::<DiskRefcount>(KIND, (next, 0, 0))? else {
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
pub(crate) fn end_with_records(
    group: &Group<'_>,
    start: AgBlock,
    count: u32,
    most: u32,
) -> Result<(AgBlock, u32)> {
    if group.agf.refcount.is_none() {
        return Ok((start, 0));
    }
    let mut before = u64::from(start.0) + u64::from(count);
    for found in 0..most {
        let record: Option<DiskRefcount> = group.lookup_lt(KIND, (before, 0, 0))?;
        let record = record.map(|record| Refcount::decode(&record));
        let Some(record) = record.filter(|record| end(record) > start.0) else {
            return Ok((start, found));
        };
        before = record.start.0.into();
    }
    let next: Option<DiskRefcount> = group.lookup_lt(KIND, (before, 0, 0))?;
    let next = next.map_or(0, |next| end(&Refcount::decode(&next)));
    if u64::from(next) > before {
        // Verifiers do not compare the records of two leaves.
        return Err(bad_references(group));
    }
    Ok((AgBlock(start.0.max(next)), most))
}

fn change(
    group: &mut Group<'_>,
    start: AgBlock,
    count: u32,
    change: Change,
) -> Result<Vec<(AgBlock, u32)>> {
    space::fill_free_list(group)?;
    let (start, end) = (start.0, start.0.saturating_add(count));
    let old = around(group, start, end)?;
    let mut new = Runs::default();
    let (mut unreferenced, mut unshared) = (Vec::new(), Vec::new());
    let mut at = start;
    let mut without_record = |new: &mut Runs, first: u32, last: u32| match change {
        Change::Add => new.add(first, last, 2),
        Change::Drop if first < last => unreferenced.push((AgBlock(first), last - first)),
        Change::Drop => {}
    };
    for record in &old {
        let (first, last) = (record.start.0, self::end(record));
        if record.references < 2 {
            return Err(bad_references(group));
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
        if references == 1 && shared_first < shared_last {
            unshared.push((AgBlock(shared_first), shared_last - shared_first));
        }
        at = at.max(shared_last);
        new.add(first.max(end), last, record.references);
    }
    without_record(&mut new, at, end);
    let ag = group.ag;
    let unshared = unshared.into_iter();
    let unshared = unshared.map(|(start, count)| AgExtent { ag, start, count });
    group.unshared.extend(unshared);
    let new = new.0;
    if old != new {
        for record in &old {
            group.remove::<DiskRefcount>(KIND, order(record))?;
        }
        for record in &new {
            group.insert(KIND, record.encode())?;
        }
    }
    Ok(unreferenced)
}

/// Records that blocks are staged for copy on write.
pub(crate) fn stage(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<()> {
    space::fill_free_list(group)?;
    let staged = Refcount {
        start,
        count,
        references: 1,
        is_staged: true,
    };
    group.insert(KIND, staged.encode())
}

/// Records that blocks are not staged any more.
pub(crate) fn unstage(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<()> {
    space::fill_free_list(group)?;
    let after = Refcount {
        start: AgBlock(start.0.saturating_add(1)),
        count,
        references: 1,
        is_staged: true,
    };
    let found: Option<DiskRefcount> = group.lookup_lt(KIND, order(&after))?;
    let found = found.map(|found| Refcount::decode(&found));
    let last = start.0.saturating_add(count);
    let found = found.filter(|found| found.is_staged && end(found) >= last);
    let found = found.ok_or_else(|| bad_references(group))?;
    group.remove::<DiskRefcount>(KIND, order(&found))?;
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
        group.insert(KIND, kept.encode())?;
    }
    Ok(())
}

/// Frees the blocks that were staged for copy on write when the machine stopped.
pub(crate) fn free_staged(group: &mut Group<'_>) -> Result<()> {
    if group.agf.refcount.is_none() {
        return Ok(());
    }
    let staged = Refcount {
        start: AgBlock(0),
        count: 0,
        references: 0,
        is_staged: true,
    };
    while let Some(record) = group.lookup_ge::<DiskRefcount>(KIND, order(&staged))? {
        free_staged_run(group, &record)?;
    }
    Ok(())
}

/// Frees the first blocks that are staged; false if there are none.
pub(crate) fn free_first_staged(group: &mut Group<'_>) -> Result<bool> {
    if group.agf.refcount.is_none() {
        return Ok(false);
    }
    let staged = Refcount {
        start: AgBlock(0),
        count: 0,
        references: 0,
        is_staged: true,
    };
    let Some(record) = group.lookup_ge::<DiskRefcount>(KIND, order(&staged))? else {
        return Ok(false);
    };
    free_staged_run(group, &record)?;
    Ok(true)
}

fn free_staged_run(group: &mut Group<'_>, record: &DiskRefcount) -> Result<()> {
    let run = Refcount::decode(record);
    space::fill_free_list(group)?;
    group.remove::<DiskRefcount>(KIND, TreeRecord::order(record, KIND))?;
    rmap::remove(group, &Owner::special(run.start, run.count, RmapOwner::COW))?;
    space::free_extent(group, run.start, run.count)
}

/// The records that overlap or touch a range of blocks, without those of staged blocks.
fn around(group: &Group<'_>, start: u32, end: u32) -> Result<Vec<Refcount>> {
    let mut found = Vec::new();
    let mut next: Option<DiskRefcount> = group.lookup_lt(KIND, (u64::from(start), 0, 0))?;
    if next.is_none_or(|record| record.start.get().saturating_add(record.count.get()) < start) {
        next = group.lookup_ge(KIND, (u64::from(start), 0, 0))?;
    }
    while let Some(record) = next {
        let decoded = Refcount::decode(&record);
        if decoded.is_staged || decoded.start.0 > end {
            break;
        }
        found.push(decoded);
        next = group.lookup_ge(KIND, (u64::from(decoded.start.0) + 1, 0, 0))?;
    }
    Ok(found)
}
