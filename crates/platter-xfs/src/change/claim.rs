//! Blocks for data: claimed first, so that the data is on the device before anything points to it, and taken
//! when it is mapped.

use platter_vfs::{Condition, Result};

use crate::ag::Groups;
use crate::context::FsContext;
use crate::ondisk::{AgNr, FsBlock};
use crate::space::{Claim, Holds};

/// Where data is best placed.
#[derive(Debug, Clone, Copy)]
pub struct Goal {
    /// The block to begin at, if it is free.
    pub at: Option<FsBlock>,
    /// The group to begin with.
    pub group: AgNr,
}

impl FsContext {
    /// Claims up to `most` free blocks in a row, for data. Each group keeps what its trees may need.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn claim(&self, most: u32, goal: &Goal) -> Result<Claim> {
        let log = self.log().ok_or(Condition::ReadOnly)?;
        let keeps_old = self.space().keeps_old();
        let mut holds = self.space().lock();
        loop {
            if !keeps_old && holds.finish(log) {
                self.space().note_returned();
            }
            if let Some(claim) = self.find(&holds, most, goal)? {
                holds.claim(claim);
                return Ok(claim);
            }
            if keeps_old || !holds.has_busy() {
                return Err(Condition::NoSpace.into());
            }
            log.force_freed()?;
        }
    }

    /// Drops a claim.
    pub fn unclaim(&self, claim: Claim) {
        self.space().lock().unclaim(claim);
    }

    fn find(&self, holds: &Holds, most: u32, goal: &Goal) -> Result<Option<Claim>> {
        let geometry = self.geometry();
        let claims = holds.claims.clone();
        let mut groups = Groups::of_mount(self.shared_buffers(), geometry, claims);
        let claimed = |ag, (start, count)| Claim { ag, start, count };
        let mut first = goal.group;
        if let Some(at) = goal.at.filter(|at| geometry.contains(*at, 1)) {
            let (ag, block) = geometry.split(at);
            let group = groups.get(ag)?;
            let most = most.min(group.available());
            if most > 0
                && let Some(found) = group.find_at(block, most, &holds.busy_of(ag))?
            {
                return Ok(Some(claimed(ag, found)));
            }
            first = ag;
        }
        let count = geometry.ag_count();
        let mut best: Option<Claim> = None;
        for step in 0..count {
            let ag = AgNr(first.0.wrapping_add(step) % count);
            let group = groups.get(ag)?;
            let wanted = most.min(group.available());
            if wanted == 0 {
                continue;
            }
            let found = group.find_by_length(wanted, 1, &holds.busy_of(ag))?;
            let found = found.map(|found| claimed(ag, found));
            if found.is_some_and(|found| found.count == most) {
                return Ok(found);
            }
            let found = found.filter(|found| best.is_none_or(|best| found.count > best.count));
            best = found.or(best);
        }
        Ok(best)
    }
}
