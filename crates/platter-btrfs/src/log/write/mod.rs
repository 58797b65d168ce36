//! Logging of inodes: what makes one durable without a commit, as `fsync` asks for it.
//!
//! The log of a subvolume says what a replay changes of the last commit. It has inodes as they were when they were
//! logged, with their names as they are when the log is written. Whatever is in doubt is left to a commit.

mod notes;
mod view;
mod plan;
mod file;
mod inode;

use platter_vfs::Result;

use crate::context::FsContext;
use crate::ondisk::TreeId;
use crate::txn::{Handle, WriteContext, log_trees, trees};
use inode::Planner;
use plan::Plan;
use view::View;

pub use inode::Target;
pub use notes::LogNotes;

/// Logs an inode of a subvolume. Returns the number of the log that has it, which is to be written; `None` where only
/// a commit makes the inode durable.
///
/// # Errors
/// Those of reading the trees.
pub fn log_inode(
    fs: &WriteContext,
    handle: &Handle<'_>,
    notes: &LogNotes,
    tree: TreeId,
    target: Target,
) -> Result<Option<u64>> {
    let context: &FsContext = fs.context();
    let superblock = &context.superblock;
    // After a crash, one device may know of a log that another does not.
    if fs.device_count() > 1 {
        return Ok(None);
    }
    let Some(mut turn) = log_trees::start(handle) else {
        return Ok(None);
    };
    let generation = handle.generation();
    let planned = trees::look_at(fs, tree, |(now, delayed), committed| {
        let mut planner = Planner {
            view: View {
                blocks: fs.blocks(),
                now,
                delayed,
                committed,
                generation,
                sector_bytes: superblock.sector_bytes,
                leaves_holes: handle.leaves_holes(),
            },
            notes,
            log: turn.number(),
            plan: Plan::default(),
        };
        planner.run(target)?;
        Ok(planner.plan)
    });
    let is_logged = match planned {
        Ok(plan) if plan.needs_commit() => Ok(false),
        Ok(plan) => plan.log(context, &mut turn, (tree, generation)),
        Err(error) => Err(error),
    };
    if !matches!(is_logged, Ok(true)) {
        // The log may have a part of it.
        turn.require_commit();
    }
    match is_logged {
        Ok(true) => Ok(Some(turn.number())),
        Ok(false) | Err(platter_vfs::Error::Condition(platter_vfs::Condition::NoSpace)) => Ok(None),
        Err(error) => Err(error),
    }
}
