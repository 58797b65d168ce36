//! The reverse mapping: owners of blocks. Spec: `xfs/rmapbt`.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::rules::GroupRule;
use super::{Group, space};
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, DiskOwner, Owner};
use crate::tree::{self, TreeRecord};

const KIND: BtreeKind = BtreeKind::Rmap;

/// Whether records of the owner have file blocks.
fn has_offset(owner: &Owner) -> bool {
    owner.owner.is_inode() && !owner.is_btree
}

/// Whether two records may be one, wherever their blocks are.
fn is_alike(one: &Owner, other: &Owner) -> bool {
    one.owner == other.owner
        && one.is_attr_fork == other.is_attr_fork
        && one.is_btree == other.is_btree
}

/// The block after the last one.
fn end(owner: &Owner) -> u32 {
    owner.start.0.saturating_add(owner.count)
}

/// The record that would follow `owner` without a gap.
fn next(owner: &Owner) -> Owner {
    let offset = if has_offset(owner) {
        owner.offset.saturating_add(owner.count.into())
    } else {
        owner.offset
    };
    Owner {
        start: AgBlock(end(owner)),
        offset,
        ..*owner
    }
}

fn order(owner: &Owner) -> tree::Order {
    TreeRecord::order(&owner.encode(), KIND)
}

fn no_owner(group: &Group<'_>) -> platter_vfs::Error {
    Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::Owner).into()
}

/// Removes an owner's blocks, which are one record or a part of one. Without a reverse mapping, does
/// nothing.
pub(crate) fn remove(group: &mut Group<'_>, gone: &Owner) -> Result<()> {
    if group.agf.rmap.is_none() {
        return Ok(());
    }
    let found = find(group, gone)?.ok_or_else(|| no_owner(group))?;
    cut(group, &found, gone.start, gone.count)
}

/// Removes blocks from whatever record has them; true if one had.
pub(crate) fn remove_any(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<bool> {
    if group.agf.rmap.is_none() {
        return Ok(false);
    }
    let order = (u64::from(start.0), u64::MAX, u64::MAX);
    let Some(found) = group.lookup_lt::<DiskOwner>(KIND, order)? else {
        return Ok(false);
    };
    let found = Owner::decode(&found);
    if end(&found) < start.0.saturating_add(count) {
        return Ok(false);
    }
    cut(group, &found, start, count)?;
    Ok(true)
}

/// Adds blocks of an owner, as one record with those next to them. Without a reverse mapping, does
/// nothing.
pub(crate) fn add(group: &mut Group<'_>, new: &Owner) -> Result<()> {
    if group.agf.rmap.is_none() {
        return Ok(());
    }
    let mut merged = *new;
    let following = next(new);
    let right: Option<DiskOwner> = group.lookup_ge(KIND, order(&following))?;
    let right = right.map(|right| Owner::decode(&right));
    if let Some(right) = right
        .filter(|right| order(right) == order(&following) && right.is_unwritten == new.is_unwritten)
    {
        group.remove::<DiskOwner>(KIND, order(&right))?;
        merged.count = merged.count.saturating_add(right.count);
    }
    let left = match new.start.0.checked_sub(1) {
        Some(before) => owners_of(group, AgBlock(before))?,
        None => Vec::new(),
    };
    let left = left.into_iter().find(|left| {
        is_alike(left, new)
            && left.is_unwritten == new.is_unwritten
            && order(&next(left)) == order(new)
    });
    if let Some(left) = left {
        let count = left.count.saturating_add(merged.count);
        return group.replace(KIND, order(&left), Owner { count, ..left }.encode());
    }
    group.insert(KIND, merged.encode())
}

/// Makes blocks of an owner written or unwritten, as `new` says.
pub(crate) fn convert(group: &mut Group<'_>, new: &Owner) -> Result<()> {
    if group.agf.rmap.is_none() {
        return Ok(());
    }
    let found = find(group, new)?;
    let found = found.filter(|found| found.is_unwritten != new.is_unwritten);
    let found = found.ok_or_else(|| no_owner(group))?;
    cut(group, &found, new.start, new.count)?;
    space::fill_free_list(group)?;
    add(group, new)
}

/// The record that has all blocks of `wanted`, of the same owner and at the same file blocks.
fn find(group: &Group<'_>, wanted: &Owner) -> Result<Option<Owner>> {
    let found = owners_of(group, wanted.start)?;
    Ok(found.into_iter().find(|found| {
        let shift = u64::from(wanted.start.0.saturating_sub(found.start.0));
        let is_at = !has_offset(found) || found.offset.saturating_add(shift) == wanted.offset;
        is_alike(found, wanted) && is_at && end(found) >= end(wanted)
    }))
}

/// The records of a block, of which there are several where it is shared.
fn owners_of(group: &Group<'_>, block: AgBlock) -> Result<Vec<Owner>> {
    let mut found = Vec::new();
    let most = u64::from(group.agf.length);
    let wanted = |[low, high]: &<DiskOwner as TreeRecord>::Key| {
        low.start.get() <= block.0 && high.start.get() >= block.0
    };
    tree::walk::<DiskOwner>(group, KIND, most, wanted, &mut |node| {
        let owners = node.records.iter().map(Owner::decode);
        found.extend(owners.filter(|owner| owner.start <= block && end(owner) > block.0));
        Ok(())
    })?;
    Ok(found)
}

/// Takes blocks out of a record.
fn cut(group: &mut Group<'_>, found: &Owner, start: AgBlock, count: u32) -> Result<()> {
    let before = start.0.saturating_sub(found.start.0);
    let kept = Owner {
        count: before,
        ..*found
    };
    let gone = Owner {
        count,
        ..next(&kept)
    };
    let rest = Owner {
        count: end(found).saturating_sub(end(&gone)),
        ..next(&gone)
    };
    if before > 0 {
        group.replace(KIND, order(found), kept.encode())?;
    } else {
        group.remove::<DiskOwner>(KIND, order(found))?;
    }
    if rest.count > 0 {
        group.insert(KIND, rest.encode())?;
    }
    Ok(())
}
