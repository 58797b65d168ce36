//! Send streams of subvolumes.

use std::collections::BTreeSet;
use std::io::Write;

use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{Condition, Result};

use super::in_use::SendInProgress;
use crate::ondisk::TreeId;
use crate::ondisk::superblock::RootPointer;
use crate::ops::{SuperBlock, sync};
use crate::send::{DataSource, send};
use crate::txn::trees;

/// See [`platter_vfs::Subvolumes::send`].
pub(super) fn send_subvolume(
    superblock: &SuperBlock,
    id: TreeId,
    options: &SendOptions,
    out: &mut dyn Write,
) -> Result<()> {
    let context = superblock.context();
    let options = &with_each_once(id, options);
    let others = options.parent.iter().chain(&options.clone_sources);
    let ids: Vec<_> = [id]
        .into_iter()
        .chain(others.map(|id| TreeId(*id)))
        .collect();
    let _in_progress = begin(superblock, &ids)?;
    let _kept = context.reads.keep_addresses();
    if superblock.writing().is_some() {
        // What is sent is what is stored.
        sync::sync_fs(superblock)?;
        for id in &ids {
            context.forget_root_item(*id);
        }
    }
    let roots = ids.into_iter().map(|id| {
        let found = context.subvolume(id)?.ok_or(Condition::NotFound)?;
        Ok((id, found.item.root))
    });
    let roots: Vec<_> = roots.collect::<Result<_>>()?;
    let data = DataSource {
        reader: &superblock.data,
        decompressed: &superblock.decompressed,
    };
    let unchanged = || refuse_if_changed(superblock, &roots);
    let sent = send(context, data, id, options, out, &unchanged);
    // Of a tree that changed, blocks may be gone that the stream was made from.
    sent.or_else(|error| unchanged().and(Err(error)))
}

/// The options without repeated clone sources, and without the parent and the subvolume itself among them: each source
/// is searched for clones, and of the subvolume only what was sent before.
fn with_each_once(id: TreeId, options: &SendOptions) -> SendOptions {
    let mut known: BTreeSet<u64> = options.parent.into_iter().chain([id.0]).collect();
    let mut options = options.clone();
    options.clone_sources.retain(|source| known.insert(*source));
    options
}

/// Keeps subvolumes as they are, which are read-only.
///
/// # Errors
/// `WouldBlock` for a snapshot that is being made.
fn begin(superblock: &SuperBlock, ids: &[TreeId]) -> Result<Vec<SendInProgress>> {
    let _changing = superblock.subvolume_changes.lock();
    let begin = |id: &TreeId| {
        let found = superblock.context().subvolume(*id)?;
        let found = found.ok_or(Condition::NotFound)?;
        if !found.is_read_only() {
            return Err(Condition::NotPermitted.into());
        }
        let subvolume = superblock.in_use.get_or_add(&found);
        if subvolume.is_being_made() {
            return Err(Condition::WouldBlock.into());
        }
        Ok(SendInProgress::begin(subvolume))
    };
    ids.iter().map(begin).collect()
}

/// Refuses to go on where the trees of subvolumes are not any more what was stored of them. Changes that began before
/// a subvolume was made read-only may end later.
///
/// # Errors
/// `WouldBlock`, as in Linux where extents are moved meanwhile.
fn refuse_if_changed(superblock: &SuperBlock, roots: &[(TreeId, RootPointer)]) -> Result<()> {
    let Some(writing) = superblock.writing() else {
        return Ok(());
    };
    for (id, root) in roots {
        let is_same = trees::look_at(writing, *id, |(now, delayed), _| {
            Ok(now.root == *root && delayed.is_empty())
        })?;
        if !is_same {
            return Err(Condition::WouldBlock.into());
        }
    }
    Ok(())
}
