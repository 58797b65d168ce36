//! Blocks for data: claimed first, so that the data is on the device before anything points to it, and taken
//! when it is mapped.

use platter_vfs::{Condition, Result};

use crate::ag::{Groups, alloc};
use crate::context::FsContext;
use crate::ondisk::{AgBlock, AgNr, FsBlock};
use crate::space::Claim;
use crate::txn::Log;

/// Where data is best placed.
#[derive(Debug, Clone, Copy)]
pub struct Goal {
    /// The block to begin at, if it is free.
    pub at: Option<FsBlock>,
    /// The group to begin with.
    pub group: AgNr,
}

/// Claims up to `most` free blocks in a row, for data. Each group keeps what its trees may need.
///
/// # Errors
/// `NoSpace`.
pub fn claim(context: &FsContext, most: u32, goal: &Goal) -> Result<Claim> {
    let log = context.log().ok_or(Condition::ReadOnly)?;
    loop {
        if let Some(claim) = find(context, log, most, goal)? {
            return Ok(claim);
        }
        if !context.space().has_busy() {
            return Err(Condition::NoSpace.into());
        }
        log.force_freed()?;
        context.space().finish(context.geometry().groups(), log);
    }
}

/// Drops a claim.
pub fn unclaim(context: &FsContext, claim: Claim) {
    context
        .space()
        .lock(claim.ag)
        .unclaim(claim.start, claim.count);
}

fn find(context: &FsContext, log: &Log, most: u32, goal: &Goal) -> Result<Option<Claim>> {
    let geometry = context.geometry();
    let mut first = goal.group;
    let at = goal.at.filter(|at| geometry.contains(*at, 1));
    if let Some(at) = at {
        let (ag, block) = geometry.split(at);
        if let Some(claim) = claim_in(context, log, ag, most, Some(block))? {
            return Ok(Some(claim));
        }
        first = ag;
    }
    let count = geometry.ag_count();
    // What is all of what is wanted, then the longest there is.
    let mut best: Option<(AgNr, u32)> = None;
    for step in 0..count {
        let ag = AgNr(first.0.wrapping_add(step) % count);
        let found = claim_or_measure(context, log, ag, most)?;
        match found {
            Found::Claimed(claim) => return Ok(Some(claim)),
            Found::Shorter(len) if best.is_none_or(|(_, best)| len > best) => {
                best = Some((ag, len));
            }
            Found::Shorter(_) => {}
        }
    }
    match best.filter(|(_, len)| *len > 0) {
        Some((ag, _)) => claim_in(context, log, ag, most, None),
        None => Ok(None),
    }
}

/// Claims blocks in a group if there are as many in a row, else says how many there are.
fn claim_or_measure(context: &FsContext, log: &Log, ag: AgNr, most: u32) -> Result<Found> {
    let mut groups = looked_at(context, log, ag)?;
    let Some(held) = groups.held(ag) else {
        return Ok(Found::Shorter(0));
    };
    let busy = held.busy();
    let group = groups.get(ag)?;
    let wanted = most.min(alloc::available(&group));
    let found = if wanted == 0 {
        None
    } else {
        alloc::find_by_length(&group, wanted, 1, &busy)?
    };
    match found {
        Some((start, count)) if count == most => {
            Ok(Found::Claimed(claimed(&mut groups, ag, start, count)))
        }
        found => Ok(Found::Shorter(found.map_or(0, |(_, count)| count))),
    }
}

/// Claims blocks of a group, those from a block on if one is given.
fn claim_in(
    context: &FsContext,
    log: &Log,
    ag: AgNr,
    most: u32,
    at: Option<AgBlock>,
) -> Result<Option<Claim>> {
    let mut groups = looked_at(context, log, ag)?;
    let Some(held) = groups.held(ag) else {
        return Ok(None);
    };
    let busy = held.busy();
    let group = groups.get(ag)?;
    let most = most.min(alloc::available(&group));
    if most == 0 {
        return Ok(None);
    }
    let found = match at {
        Some(at) => alloc::find_at(&group, at, most, &busy)?,
        None => alloc::find_by_length(&group, most, 1, &busy)?,
    };
    Ok(found.map(|(start, count)| claimed(&mut groups, ag, start, count)))
}

/// A group alone, to claim blocks of it.
fn looked_at(context: &FsContext, log: &Log, ag: AgNr) -> Result<Groups> {
    loop {
        let mut groups = Groups::of_mount(
            context.shared_buffers(),
            context.geometry(),
            context.space(),
        );
        groups.get(ag)?;
        // The last group may have become longer while it was waited for.
        if groups.geometry().growth != context.geometry().growth {
            continue;
        }
        if let Some(held) = groups.held(ag) {
            held.finish(log);
        }
        return Ok(groups);
    }
}

/// What a group has.
enum Found {
    Claimed(Claim),
    /// At most so many blocks in a row.
    Shorter(u32),
}

fn claimed(groups: &mut Groups, ag: AgNr, start: AgBlock, count: u32) -> Claim {
    if let Some(held) = groups.held(ag) {
        held.claim(start, count);
    }
    Claim { ag, start, count }
}
