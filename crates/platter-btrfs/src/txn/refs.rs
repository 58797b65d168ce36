//! Delayed references: what is queued, and run as changes of the extent tree and what follows from them.

use platter_vfs::Result;

use super::extents::Extent;
use super::free_space::GroupSpace;
use super::{WriteContext, checksums, chunks, extents, trees};
use crate::block_group::BlockGroup;
use crate::delayed_refs::{Action, Change, ExtentKind, FinishedHead, RunStep, Running};
use crate::ondisk::extent_item::ExtentRef;
use crate::ondisk::{Generation, LogicalAddr, TreeId};

/// Queues a change of references.
pub(super) fn queue(fs: &WriteContext, change: &Change) -> Result<()> {
    if let Some(quotas) = &fs.quotas {
        quotas.trace_change(change);
    }
    Ok(fs.refs.queue(change)?)
}

/// Runs up to `count` heads, in order of address. Returns how many were run.
///
/// # Errors
/// Those of the trees. The transaction is to be aborted.
pub(super) fn run(fs: &WriteContext, generation: Generation, count: usize) -> Result<usize> {
    let mut run = 0;
    while run < count
        && let Some(running) = fs.refs.select()
    {
        run += 1;
        // The head's extent may be in a group that was added for it.
        if let Err(error) = chunks::create_pending(fs, generation) {
            fs.refs.unselect(running);
            return Err(error);
        }
        if !run_head(fs, generation, running)? {
            // Others wait for the same walk.
            break;
        }
    }
    Ok(run)
}

/// Runs a head to its end. Returns `false` if it has to wait for a walk.
fn run_head(fs: &WriteContext, generation: Generation, running: Running) -> Result<bool> {
    let mut running = running;
    loop {
        match run_steps(fs, generation, &running) {
            Ok(true) => {}
            Ok(false) => {
                fs.refs.unselect(running);
                return Ok(false);
            }
            Err(error) => {
                fs.refs.unselect(running);
                return Err(error);
            }
        }
        match fs.refs.finish(running) {
            Ok(head) => {
                finished(fs, generation, &head)?;
                return Ok(true);
            }
            Err(again) => running = again,
        }
    }
}

fn run_steps(fs: &WriteContext, generation: Generation, running: &Running) -> Result<bool> {
    loop {
        let step = fs.refs.next_step(running)?;
        match step {
            RunStep::Done => return Ok(true),
            RunStep::Blocked => return Ok(false),
            RunStep::Op {
                op,
                len_bytes,
                kind,
            } => {
                let extent = Extent {
                    address: running.address(),
                    len_bytes,
                    kind,
                };
                fs.edit(generation, TreeId::EXTENT, |editor| extent.set(editor, op))?;
            }
            RunStep::Reference { .. } => run_reference(fs, generation, running, &step)?,
        }
    }
}

fn run_reference(
    fs: &WriteContext,
    generation: Generation,
    running: &Running,
    step: &RunStep,
) -> Result<()> {
    let &RunStep::Reference {
        key,
        count,
        action,
        must_insert,
        op,
        len_bytes,
        kind,
    } = step
    else {
        return Ok(());
    };
    let extent = Extent {
        address: running.address(),
        len_bytes,
        kind,
    };
    if must_insert {
        let op = op.unwrap_or_default();
        let simple = fs.quotas.as_ref().and_then(|it| it.simple());
        let owner = simple.and_then(|simple| simple.allocated(&extent));
        // That of a tree block is in its header.
        let owner = owner.filter(|_| kind == ExtentKind::Data);
        let owner = owner.map(|tree| ExtentRef::Owner { tree });
        let inline = owner.into_iter().chain([key.counted(count)]).collect();
        fs.edit(generation, TreeId::EXTENT, |editor| {
            extent.insert(editor, inline, op, generation, extents::is_skinny(fs))
        })?;
        return allocated(fs, generation, &extent);
    }
    match action {
        Action::Add => {
            let node_bytes = fs.context.superblock.node_bytes;
            fs.edit(generation, TreeId::EXTENT, |editor| {
                extent.add(editor, key, count, op, node_bytes)
            })
        }
        Action::Drop => {
            let item = fs.edit(generation, TreeId::EXTENT, |editor| {
                extent.drop_ref(editor, key, count, op)
            })?;
            if let Some(item) = item {
                if let Some(simple) = fs.quotas.as_ref().and_then(|it| it.simple()) {
                    simple.freed(fs, &extent, &item, generation)?;
                }
                freed(fs, generation, &extent)?;
            }
            Ok(())
        }
    }
}

/// An extent got its item.
fn allocated(fs: &WriteContext, generation: Generation, extent: &Extent) -> Result<()> {
    let (address, len_bytes) = (extent.address, extent.len_bytes);
    change_free_space(fs, generation, address, len_bytes, |space| {
        space.remove(&(address.0..address.0 + len_bytes))
    })?;
    fs.groups.commit_allocation(address, len_bytes)?;
    written(fs, extent.kind, address, len_bytes);
    Ok(())
}

/// An extent lost its item.
fn freed(fs: &WriteContext, generation: Generation, extent: &Extent) -> Result<()> {
    let (address, len_bytes) = (extent.address, extent.len_bytes);
    let range = address.0..address.0 + len_bytes;
    if extent.kind == ExtentKind::Data {
        delete_checksums(fs, generation, address, len_bytes)?;
    }
    change_free_space(fs, generation, address, len_bytes, |space| {
        space.add(&range)
    })?;
    fs.groups.free(address, len_bytes)?;
    fs.pinned.lock().add(range);
    Ok(())
}

/// A head is gone. An extent that never got an item is freed without a change of the extent tree.
fn finished(fs: &WriteContext, generation: Generation, head: &FinishedHead) -> Result<()> {
    if !head.must_insert {
        return Ok(());
    }
    let (address, len_bytes) = (head.address, head.len_bytes);
    if head.kind == ExtentKind::Data {
        delete_checksums(fs, generation, address, len_bytes)?;
    }
    fs.groups.pin_allocation(address, len_bytes)?;
    written(fs, head.kind, address, len_bytes);
    fs.pinned.lock().add(address.0..address.0 + len_bytes);
    Ok(())
}

/// Lets no data be written to an extent any more.
fn written(fs: &WriteContext, kind: ExtentKind, address: LogicalAddr, len_bytes: u64) {
    if kind == ExtentKind::Data {
        let range = address.0..address.0 + len_bytes;
        fs.new_data.lock().exclude(&range);
    }
}

fn delete_checksums(
    fs: &WriteContext,
    generation: Generation,
    address: LogicalAddr,
    len_bytes: u64,
) -> Result<()> {
    let format = fs.item_format();
    let range = address.0..address.0 + len_bytes;
    fs.edit(generation, TreeId::CSUM, |editor| {
        checksums::delete(editor, &range, format)
    })
}

/// Changes the free space tree, if there is one. What the transaction before says of the group is read before.
fn change_free_space(
    fs: &WriteContext,
    generation: Generation,
    address: LogicalAddr,
    len_bytes: u64,
    change: impl FnOnce(&mut GroupSpace<'_, '_, '_>) -> Result<()>,
) -> Result<()> {
    let group = fs.groups.find(address, len_bytes)?;
    group.load(&|group: &BlockGroup| trees::read_free_space(fs, group))?;
    if !trees::has_free_space_tree(fs) {
        return Ok(());
    }
    let sector_bytes = fs.context.superblock.sector_bytes.into();
    fs.edit(generation, TreeId::FREE_SPACE, |editor| {
        change(&mut GroupSpace {
            editor,
            group: &group,
            sector_bytes,
        })
    })
}
