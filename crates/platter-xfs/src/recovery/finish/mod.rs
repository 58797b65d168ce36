//! Finishing the intents that the log leaves open, in the kernel's order: each in the order of the log, then
//! what they left to do. Spec: `xfs/journaling_log`, "Intent to Free an Extent".

mod attr;
mod mapping;
mod exchange;
mod space;

use std::collections::VecDeque;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result, Unsupported};

use super::realtime::RtFreed;
use super::rules::IntentRule;
use crate::ag::Groups;
use crate::ondisk::log::Intent;
use crate::ondisk::log::intent::{ExchangeIntent, RmapUpdate, Section};
use crate::ondisk::{AgBlock, AgNr, FsBlock, Geometry, InodeNr};

/// Refuses intents that [`finish`] cannot finish, by name.
pub(super) fn check(intents: &[Intent]) -> Result<()> {
    let is_finished = |intent: &&Intent| match intent {
        Intent::Rmap(intent) => intent.section == Section::Data,
        Intent::Refcount(intent) => intent.section == Section::Data,
        Intent::ExtentFree(_) | Intent::Bmap(_) | Intent::Exchange(_) | Intent::Attr(_) => true,
    };
    match intents.iter().find(|intent| !is_finished(intent)) {
        None => Ok(()),
        Some(intent) => Err(refused(format!(
            "a log with an unfinished intent of type {:?}",
            intent.kind()
        ))),
    }
}

fn refused(feature: String) -> Error {
    Unsupported {
        filesystem: "xfs",
        feature,
        reason: Some("mount read-only with norecovery"),
    }
    .into()
}

fn broken(locus: Locus, rule: IntentRule) -> Error {
    Corrupt::new(locus, rule).into()
}

/// Finishes intents, in the order of the log. Returns what is to be freed of the realtime device.
pub(super) fn finish(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    intents: &[Intent],
) -> Result<Vec<RtFreed>> {
    check(intents)?;
    let mut finisher = Finisher {
        geometry: geometry.clone(),
        groups: Groups::new(Arc::clone(device), geometry),
        deferred: VecDeque::new(),
        rt_freed: Vec::new(),
    };
    for intent in intents {
        finisher.intent(intent)?;
        finisher.groups.checkpoint()?;
    }
    while let Some(work) = finisher.deferred.pop_front() {
        finisher.deferred(&work)?;
        finisher.groups.checkpoint()?;
    }
    finisher.groups.write_all()?;
    Ok(finisher.rt_freed)
}

/// What finishing an intent leaves to do after all other intents.
#[derive(Debug)]
enum Deferred {
    Rmap(RmapUpdate),
    /// The mappings that an exchange has not intents of its own for yet, which come first.
    Exchange(ExchangeIntent),
    /// Blocks that have neither a reference nor an owner any more.
    Free(AgNr, AgBlock, u32),
}

/// The filesystem while intents are finished.
#[derive(Debug)]
struct Finisher {
    geometry: Geometry,
    groups: Groups,
    deferred: VecDeque<Deferred>,
    rt_freed: Vec<RtFreed>,
}

impl Finisher {
    fn intent(&mut self, intent: &Intent) -> Result<()> {
        match intent {
            Intent::ExtentFree(intent) if intent.section == Section::Realtime => {
                let freed = intent.extents.iter().map(|extent| RtFreed {
                    start: extent.start,
                    count: extent.len.into(),
                });
                self.rt_freed.extend(freed);
            }
            Intent::ExtentFree(intent) => {
                for extent in &intent.extents {
                    space::free(self, extent.start, extent.len)?;
                }
            }
            Intent::Rmap(intent) => {
                for update in &intent.updates {
                    space::rmap(self, update)?;
                }
            }
            Intent::Refcount(intent) => {
                for update in &intent.updates {
                    space::refcount(self, update)?;
                }
            }
            Intent::Bmap(intent) => {
                for update in &intent.updates {
                    mapping::finish(self, update)?;
                }
            }
            Intent::Exchange(intent) => {
                self.deferred.push_back(Deferred::Exchange(*intent));
            }
            Intent::Attr(intent) => attr::finish(self, intent)?,
        }
        Ok(())
    }

    fn deferred(&mut self, work: &Deferred) -> Result<()> {
        match work {
            Deferred::Rmap(update) => space::rmap(self, update),
            Deferred::Exchange(intent) => exchange::finish(self, intent),
            Deferred::Free(ag, start, count) => {
                crate::ag::space::free_extent(&mut self.groups.get(*ag)?, *start, *count)
            }
        }
    }

    /// The group of blocks that an intent names, which must lie in one.
    fn split(&self, start: u64, len: u32) -> Result<(AgNr, AgBlock)> {
        if len == 0 || !self.geometry.contains(FsBlock(start), len.into()) {
            return Err(broken(Locus::block(start), IntentRule::Extent));
        }
        Ok(self.geometry.split(FsBlock(start)))
    }
}

fn inode_nr(number: u64) -> Result<InodeNr> {
    InodeNr::new(number).ok_or_else(|| broken(Locus::inode(number), IntentRule::Inode))
}
