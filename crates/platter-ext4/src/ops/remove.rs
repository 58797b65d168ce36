//! Removing names, and files that have lost the last one.

use std::ops::Range;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, FileKind, Result, file};

use super::data::{self, DELETE_CREDITS};
use super::names::Cores;
use super::{Ext4Inode, InodeState, SuperBlock, sync};
use crate::FsContext;
use crate::alloc::Allocator;
use crate::directory::{CHANGE_CREDITS, Slot};
use crate::inode::{self, InodeNumberRule, STORE_CREDITS};
use crate::mapping::{BlockMap, MapChange, Progress};
use crate::ondisk::{FileBlock, InodeNr};
use crate::orphan::{ORPHAN_CREDITS, OrphanRegister};
use crate::txn::Handle;

/// Blocks that removing a name changes at most.
const REMOVE_CREDITS: u32 = CHANGE_CREDITS + 2 * STORE_CREDITS + DELETE_CREDITS;

/// Takes the name of `victim` at `slot` out of this directory. The caller holds both inode locks.
pub(super) fn unlink(node: &Ext4Inode, slot: &Slot, victim: &Arc<Ext4Inode>) -> Result<()> {
    let sb = &node.sb;
    let (fs, space) = (&sb.fs, sb.space()?);
    let register = sb.register()?;
    inode::read_slot(fs, node.number)?;
    inode::read_slot(fs, victim.number)?;
    // An inode without other users is freed at once. Lookups from here on wait until it is gone.
    let is_ours = data::is_bare(victim)
        && data::is_freeable(victim)
        && sb.nodes.withdraw(victim.number.id(), victim)
        && data::is_bare(victim);
    let keeper = sync::keeper(node);
    let mut handle = fs.begin(REMOVE_CREDITS)?;
    let mut cores = Cores::lock(&[node, victim]);
    let now = sb.clock.now();
    let dir = cores.of(node);
    dir.directory_mut(fs, &**space, &mut handle)?
        .remove_at(slot)?;
    dir.touch_names(now);
    if victim.kind == FileKind::Directory {
        dir.discount_directory();
    }
    let is_gone = cores.of(victim).drop_link(now);
    if is_ours {
        sync::store_later(node, &mut handle, cores.of(node), keeper)?;
        let deleted = data::delete_bare(victim, &mut handle, cores.of(victim), now);
        return deleted.map_err(|error| handle.abort(error));
    }
    if is_gone {
        register.add(fs, &mut handle, victim.number)?;
    }
    cores.store(fs, &mut handle)?;
    drop(cores);
    drop(handle);
    if is_gone {
        sync::drop_unnamed(sb, victim);
    }
    Ok(())
}

/// Removes what a truncation that a crash interrupted left past the end of the file.
fn finish_truncation(node: &Ext4Inode, space: &Allocator) -> Result<()> {
    let sb = &node.sb;
    let fs = &sb.fs;
    let register = sb.register()?;
    inode::read_slot(fs, node.number)?;
    if node.kind == FileKind::Regular && !node.is_encrypted {
        // The crash may have kept the zeros past the end from the device, and other drivers rely on them.
        file::clear_tail(node, u64::MAX)?;
    }
    let block_bytes = u64::from(fs.geometry.block_bytes);
    let mut end = FileBlock::MAX;
    loop {
        let credits = node.state.read().map.step_credits();
        let mut handle = fs.begin(credits + STORE_CREDITS + ORPHAN_CREDITS)?;
        let state = &mut *node.state.write();
        let first = u32::try_from(state.inode.size_bytes.div_ceil(block_bytes));
        let progress = match first {
            Ok(first) if node.kind == FileKind::Regular => {
                remove_blocks(state, fs, space, &mut handle, FileBlock(first)..end)?
            }
            _ => Progress::Done,
        };
        if progress == Progress::Done {
            register.remove(fs, &mut handle, node.number)?;
        }
        state.store_data(fs, &mut handle)?;
        match progress {
            Progress::Done => return Ok(()),
            Progress::More(before) => end = before,
        }
    }
}

fn remove_blocks(
    state: &mut InodeState,
    fs: &FsContext,
    space: &Allocator,
    handle: &mut Handle<'_>,
    blocks: Range<FileBlock>,
) -> Result<Progress> {
    let mut change = MapChange {
        fs,
        space,
        handle,
        inode: &mut state.inode,
    };
    let removed = state.map.remove(&mut change, blocks);
    if removed.is_err() {
        // Steps before the one that failed were taken.
        state.store(fs, handle)?;
    }
    removed
}

/// Ends what a crash broke off: deletes inodes that have no name, and truncates those that were
/// about to be. Once, before anything else is changed.
///
/// What is too corrupt is left to a check, and what cannot be read to the next mount.
pub fn finish_orphans(sb: &Arc<SuperBlock>) -> Result<()> {
    let register = OrphanRegister::open(&sb.fs)?;
    let orphans = register.all();
    sb.note_orphans_in(register);
    // After errors nothing is freed that a check has not seen, as by the kernel.
    let may_finish = !sb.fs.superblock.state.has_errors();
    for number in orphans {
        if may_finish {
            match finish_orphan(sb, number) {
                Err(error @ Error::Corrupt(_)) if sb.can_write() => {
                    sb.space()?.pass_by(Some(error));
                    // Growth must go on finding that a truncation is left.
                    if inode::read(&sb.fs, number).is_ok_and(|inode| inode.links > 0) {
                        continue;
                    }
                }
                // It stays an orphan: what cannot be read now may be another time.
                Err(Error::Io(_)) if sb.can_write() => continue,
                Ok(()) => continue,
                Err(error) => return Err(error),
            }
        }
        let mut handle = sb.fs.begin(ORPHAN_CREDITS)?;
        sb.register()?.forget(&sb.fs, &mut handle, number)?;
    }
    Ok(())
}

/// Records on disk that there are no orphans, if so. No change may follow.
pub fn close_orphans(sb: &SuperBlock) -> Result<()> {
    let Some(register) = sb.register.get() else {
        return Ok(());
    };
    let mut handle = sb.fs.begin(1)?;
    register.close(&sb.fs, &mut handle)
}

fn finish_orphan(sb: &Arc<SuperBlock>, number: InodeNr) -> Result<()> {
    if inode::is_reserved(&sb.fs, number) {
        let locus = Locus::inode(u64::from(number.get()));
        return Err(Corrupt::new(locus, InodeNumberRule::Reserved).into());
    }
    let inode = inode::read(&sb.fs, number)?;
    let map = BlockMap::decode(&sb.fs, &inode)?;
    let is_deleted = inode.links == 0;
    let node = sb.nodes.get_or_load(number.id(), |seat| {
        Ok::<_, Error>(sb.node(inode, map, seat))
    })?;
    sb.nodes.release(number.id());
    if is_deleted {
        data::evict(&node)
    } else {
        finish_truncation(&node, sb.space()?)
    }
}
