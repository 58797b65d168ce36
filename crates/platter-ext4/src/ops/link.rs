//! Links: further names of a file, and symbolic links, whose target lies in the inode, or is the
//! contents of the link's first block.

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, Context, FileKind, Name, Result};

use super::names::Cores;
use super::{Ext4Inode, quotas, sync};
use crate::directory::{Vacancy, insert_credits};
use crate::inode::{self, STORE_CREDITS};
use crate::orphan::ORPHAN_CREDITS;

rules! {
    /// What a link with its target outside the inode must hold to.
    pub enum LinkRule of "symbolic link" {
        /// The target is not empty, and shorter than a block.
        Length => "target is empty or not shorter than a block",
        /// The target does not begin with a NUL.
        Target => "target begins with a NUL",
    }
}

/// Adds a name of `file` to this directory. The caller holds both inode locks.
pub(super) fn add(
    node: &Ext4Inode,
    context: &Context,
    name: Name<'_>,
    vacancy: Vacancy,
    file: &Ext4Inode,
) -> Result<()> {
    let sb = &node.sb;
    let fs = &sb.fs;
    let register = sb.register()?;
    inode::read_slot(fs, node.number)?;
    inode::read_slot(fs, file.number)?;
    let credits = insert_credits(&node.state.read().map) + 2 * STORE_CREDITS + ORPHAN_CREDITS;
    let mut handle = fs.begin(credits)?;
    let mut cores = Cores::lock(&[node, file]);
    let space = sb.space()?.portion(node.reserve_of(context));
    let (number, kind) = (file.number, file.kind);
    let dir = cores.of(node);
    let limited = quotas::limited(node, space, dir, context);
    dir.directory_mut(fs, &limited, &mut handle)?
        .insert_at(vacancy, name, number, kind)?;
    let now = sb.clock.now();
    dir.touch_names(now);
    let state = cores.of(file);
    let is_first = state.inode.links == 0;
    state.inode.links = state.inode.links.saturating_add(1);
    state.may_get_first_name = false;
    state.touch(now);
    if is_first && !file.data.is_truncation_left() {
        register.remove(fs, &mut handle, number)?;
    }
    cores.store(fs, &mut handle)?;
    drop(cores);
    drop(handle);
    if is_first {
        // Now that it can be found, what was written to it before has to be.
        sync::mark_dirty(file);
    }
    Ok(())
}

/// See [`platter_vfs::Inode::read_link`].
pub(super) fn target(node: &Ext4Inode) -> Result<Vec<u8>> {
    if node.kind != FileKind::Symlink {
        return Err(Condition::InvalidArgument.into());
    }
    let state = node.state.read();
    let inode = &state.inode;
    if inode.is_encrypted() {
        return Err(Condition::NoKey.into());
    }
    let geometry = &node.fs().geometry;
    if inode.has_target_inside(geometry) {
        return Ok(inode.target_inside().unwrap_or_default().to_vec());
    }
    let broken = |rule| Corrupt::new(Locus::inode(u64::from(node.number.get())), rule);
    let length = inode.size_bytes;
    if length == 0 || length >= u64::from(geometry.block_bytes) {
        return Err(broken(LinkRule::Length).into());
    }
    let mut target = vec![0; usize::try_from(length).unwrap_or_default()];
    state.contents(node.fs()).read_at(0, &mut target)?;
    // A NUL ends the target, as it does where a path is a string.
    if let Some(end) = target.iter().position(|&byte| byte == 0) {
        target.truncate(end);
    }
    if target.is_empty() {
        return Err(broken(LinkRule::Target).into());
    }
    Ok(target)
}
