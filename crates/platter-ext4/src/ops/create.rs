//! Making files, with a name and without one.

use std::sync::Arc;

use platter_vfs::namei::NewInode;
use platter_vfs::{FileKind, Name, Result};

use super::new_inode::{self, Blueprint};
use super::quotas::{self, add_charge};
use super::{Ext4Inode, InodeState, SuperBlock, sync};
use crate::FsContext;
use crate::alloc::{self, ALLOC_INODE_CREDITS, Portion};
use crate::directory::{Vacancy, insert_credits};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::BlockMap;
use crate::ondisk::{Inode, InodeNr};
use crate::orphan::ORPHAN_CREDITS;
use crate::txn::Handle;
use crate::xattr::change_credits;

/// Blocks that making a file changes at most, in addition to those of its directory: its inode and how it is
/// taken, its attributes, and its first block, with the block's place in a map of its own.
pub(super) fn new_inode_credits(fs: &FsContext, blueprint: &Blueprint<'_>) -> u32 {
    let mut credits = ALLOC_INODE_CREDITS + STORE_CREDITS;
    if blueprint.default_acl.is_some() {
        // Lists for access and by default.
        credits += 2 * change_credits(fs);
    }
    if blueprint.file_kind() == FileKind::Directory || blueprint.target_block.is_some() {
        credits += FIRST_BLOCK_CREDITS;
    }
    credits
}

/// A block, its bitmap and descriptor, and what a map without blocks needs in addition.
const FIRST_BLOCK_CREDITS: u32 = 16;

/// An inode that was made, and its map.
type New = (Inode, BlockMap);

/// Creates a file with a name. The caller holds the inode lock.
pub(super) fn named(
    node: &Ext4Inode,
    name: Name<'_>,
    vacancy: Vacancy,
    new: NewInode<'_>,
) -> Result<Arc<Ext4Inode>> {
    let fs = node.fs();
    inode::read_slot(fs, node.number)?;
    let space = node.sb.space()?.portion(node.reserve_of(new.context));
    let (blueprint, _held) = new_inode::plan_counted(node, space, &new)?;
    let made = make(node, space, (name, vacancy), blueprint);
    adopt(&node.sb, made?, false)
}

/// Makes a file as one transaction.
fn make(
    node: &Ext4Inode,
    space: Portion<'_>,
    (name, vacancy): (Name<'_>, Vacancy),
    blueprint: Blueprint<'_>,
) -> Result<New> {
    let fs = node.fs();
    let keeper = sync::keeper(node);
    let of_name = insert_credits(&node.state.read().map) + STORE_CREDITS;
    let credits = of_name + new_inode_credits(fs, &blueprint);
    let mut handle = match fs.begin(credits) {
        Ok(handle) => handle,
        Err(error) => {
            blueprint.give_up(space);
            return Err(error);
        }
    };
    let mut state = node.state.write();
    let limited = quotas::limited(node, space, &state, blueprint.context);
    let (mut inode, mut map) = take_inode(node, space, &mut handle, &state, blueprint)?;
    let (number, kind) = (inode.number, inode.kind);
    let added = state
        .directory_mut(fs, &limited, &mut handle)
        .and_then(|mut directory| directory.insert_at(vacancy, name, number, kind));
    if let Err(error) = added {
        new_inode::undo(node, space, &mut handle, (&mut inode, &mut map))?;
        return Err(error);
    }
    inode.links = 1;
    if kind == FileKind::Directory {
        inode.links = 2;
        state.count_directory();
    }
    state.touch_names(inode.changed);
    initialize(node, &mut handle, &inode)?;
    sync::store_later(node, &mut handle, &mut state, keeper)?;
    Ok((inode, map))
}

/// Stores a new inode, and adds it to the usage of its owners.
///
/// # Errors
/// The handle was aborted.
pub(super) fn initialize(node: &Ext4Inode, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
    let fs = node.fs();
    let stored = add_charge(fs, handle, inode).and_then(|()| inode::initialize(fs, handle, inode));
    stored.map_err(|error| handle.abort(error))
}

/// Takes an inode for a file in this directory, with what is in it from the start. Nothing is
/// stored of it yet.
///
/// # Errors
/// `NoSpace`; with an error, nothing was changed.
pub(super) fn take_inode(
    node: &Ext4Inode,
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    dir: &InodeState,
    blueprint: Blueprint<'_>,
) -> Result<New> {
    let fs = node.fs();
    let kind = blueprint.file_kind();
    // Only directories are placed by chance.
    let random = if kind == FileKind::Directory {
        node.sb.clock.random_u64()
    } else {
        0
    };
    let number = alloc::alloc_inode(space.space, fs, handle, &dir.inode, kind, random);
    let number: InodeNr = match number {
        Ok(number) => number,
        Err(error) => {
            blueprint.give_up(space);
            return Err(error);
        }
    };
    let (mut inode, mut map) = new_inode::build(node, &dir.inode, number, &blueprint);
    let new = (&mut inode, &mut map);
    let filled = new_inode::fill(node, space, handle, &dir.inode, new, blueprint);
    if let Err(error) = filled {
        let is_directory = kind == FileKind::Directory;
        let freed = alloc::free_inode(space.space, fs, handle, number, is_directory);
        freed.map_err(|error| handle.abort(error))?;
        return Err(error);
    }
    Ok((inode, map))
}

/// Makes a file without a name, which is an orphan until it gets one. The caller holds the inode lock.
pub(super) fn unnamed(node: &Ext4Inode, new: NewInode<'_>) -> Result<Arc<Ext4Inode>> {
    let sb = &node.sb;
    let fs = &sb.fs;
    let space = sb.space()?.portion(node.reserve_of(new.context));
    // A directory whose files are not encrypted.
    node.state.read().directory(fs)?.refuse_encrypted()?;
    let (blueprint, _held) = new_inode::plan_counted(node, space, &new)?;
    let credits = new_inode_credits(fs, &blueprint) + ORPHAN_CREDITS;
    let mut handle = fs.begin(credits)?;
    let state = node.state.read();
    let (inode, map) = take_inode(node, space, &mut handle, &state, blueprint)?;
    drop(state);
    initialize(node, &mut handle, &inode)?;
    sb.register()?.add(fs, &mut handle, inode.number)?;
    drop(handle);
    adopt(sb, (inode, map), true)
}

/// The object of an inode that was just made.
fn adopt(
    sb: &Arc<SuperBlock>,
    (inode, map): New,
    may_get_first_name: bool,
) -> Result<Arc<Ext4Inode>> {
    let id = inode.number.id();
    let node = sb.nodes.get_or_load(id, |seat| {
        let node = sb.node(inode, map, seat);
        node.state.write().may_get_first_name = may_get_first_name;
        Ok(node)
    });
    if may_get_first_name {
        // Without a name, it goes with its last user.
        sb.nodes.release(id);
    }
    node
}
