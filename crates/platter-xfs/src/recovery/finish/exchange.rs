//! The intent to exchange the mappings of two files. Spec: `xfs-headers/xfs_log_format.h`.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Finisher, broken, inode_nr, mapping};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::extent::Mapping;
use crate::ondisk::inode::edit;
use crate::ondisk::log::intent::{ExchangeFlags, ExchangeIntent};
use crate::ondisk::{FileBlock, ForkKind};
use crate::recovery::rules::IntentRule;

/// A mapping or a hole, from a file block on.
#[derive(Debug, Clone, Copy)]
struct Run {
    mapping: Option<Mapping>,
    count: u64,
}

impl Run {
    fn is_written(&self) -> bool {
        self.mapping.is_some_and(|mapping| !mapping.is_unwritten)
    }

    /// Its first blocks, at another place of a file.
    fn at(&self, offset: FileBlock, count: u64) -> Option<Mapping> {
        self.mapping.map(|mapping| Mapping {
            offset,
            count,
            ..mapping
        })
    }
}

/// A part of an exchange: a mapping or hole of each file.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Where it is in the files.
    at: [FileBlock; 2],
    count: u64,
    /// What each file gets; `None` for a hole.
    mappings: [Option<Mapping>; 2],
}

/// Finishes an exchange of mappings.
pub(super) fn finish(finisher: &mut Finisher, intent: &ExchangeIntent) -> Result<()> {
    let kind = if intent.flags.contains(ExchangeFlags::ATTR_FORK) {
        ForkKind::Attr
    } else {
        ForkKind::Data
    };
    let [one, two] = intent.inodes;
    if one == two {
        return Err(broken(Locus::inode(one), IntentRule::Inode));
    }
    let mut inodes = Vec::new();
    let sides = intent.inodes.into_iter().zip(intent.generations);
    for ((number, generation), offset) in sides.zip(intent.offsets) {
        let inode = InodeEdit::read(&finisher.groups, inode_nr(number)?)?;
        if inode.inode().generation != generation {
            return Err(broken(Locus::inode(number), IntentRule::Generation));
        }
        if FileBlock(offset).checked_add(intent.blocks).is_none() {
            return Err(broken(Locus::inode(number), IntentRule::Offset));
        }
        inodes.push(inode);
    }
    let Ok([mut one, mut two]) = <[InodeEdit; 2]>::try_from(inodes) else {
        return Err(broken(Locus::inode(one), IntentRule::Inode));
    };
    let mut forks = [
        mapping::fork(finisher, &one, kind)?,
        mapping::fork(finisher, &two, kind)?,
    ];
    if forks[0].device() != forks[1].device() {
        return Err(broken(Locus::inode(intent.inodes[0]), IntentRule::Inode));
    }
    exchange_mappings(finisher, intent, kind, &mut forks)?;
    let [first, second] = forks;
    first.store(&mut one)?;
    second.store(&mut two)?;
    // No flag of shared blocks is cleared, whatever the intent says: the kernel finds anew which file alone has it, and
    // the transaction of the first intent has set it in both.
    let has_sizes = intent.flags.contains(ExchangeFlags::SET_SIZES);
    for (mut inode, size) in [one, two].into_iter().zip(intent.sizes) {
        if has_sizes {
            inode.change(|bytes| edit::set_size(bytes, size))?;
        }
        inode.store(&mut finisher.groups)?;
    }
    Ok(())
}

fn exchange_mappings(
    finisher: &mut Finisher,
    intent: &ExchangeIntent,
    kind: ForkKind,
    forks: &mut [ForkEdit; 2],
) -> Result<()> {
    let only_written = intent.flags.contains(ExchangeFlags::FIRST_WRITTEN);
    let mut first_step = None;
    let mut done = 0;
    while done < intent.blocks {
        let at = intent
            .offsets
            .map(|offset| FileBlock(offset.saturating_add(done)));
        let left = intent.blocks - done;
        let first = run(finisher, &mut forks[0], at[0], left)?;
        if only_written && !first.is_written() {
            done += first.count;
            continue;
        }
        let second = run(finisher, &mut forks[1], at[1], first.count)?;
        let count = second.count;
        done += count;
        let (to_two, to_one) = (first.at(at[1], count), second.at(at[0], count));
        if first.mapping.map(|mapping| mapping.start) == second.mapping.map(|mapping| mapping.start)
        {
            continue;
        }
        let step = Step {
            at,
            count,
            mappings: [to_one, to_two],
        };
        if first_step.is_none() {
            first_step = Some(step);
            continue;
        }
        exchange_step(finisher, intent, kind, forks, step)?;
    }
    // The kernel queues the mappings of the step that recovery begins with after all that is left of the exchange. In
    // another order the B-trees would be split at other places.
    match first_step {
        Some(step) => exchange_step(finisher, intent, kind, forks, step),
        None => Ok(()),
    }
}

fn exchange_step(
    finisher: &mut Finisher,
    intent: &ExchangeIntent,
    kind: ForkKind,
    forks: &mut [ForkEdit; 2],
    step: Step,
) -> Result<()> {
    let owners = [inode_nr(intent.inodes[0])?, inode_nr(intent.inodes[1])?];
    for ((fork, owner), at) in forks.iter_mut().zip(owners).zip(step.at) {
        mapping::unmap(finisher, fork, (owner, kind), at, step.count)?;
    }
    for ((fork, owner), mapping) in forks.iter_mut().zip(owners).zip(step.mappings) {
        if let Some(mapping) = mapping {
            mapping::map(finisher, fork, (owner, kind), mapping)?;
        }
    }
    finisher.groups.checkpoint()
}

/// What is at a file block, of at most so many blocks.
fn run(finisher: &mut Finisher, fork: &mut ForkEdit, at: FileBlock, most: u64) -> Result<Run> {
    let found = fork.lookup(&mut finisher.groups, at)?;
    let (mapping, count) = match found {
        Some(found) if found.offset <= at => {
            let skipped = at.0 - found.offset.0;
            let rest = Mapping {
                offset: at,
                start: found.start.saturating_add(skipped),
                count: found.count - skipped,
                ..found
            };
            (Some(rest), rest.count)
        }
        Some(found) => (None, found.offset.0 - at.0),
        None => (None, most),
    };
    Ok(Run {
        mapping,
        count: count.min(most),
    })
}
