//! Long changes of a file's map: one handle after the other.

use std::sync::Arc;

use platter_vfs::Result;
use platter_vfs::writing::NoSpaceRetry;

use super::super::{Ext4Inode, InodeState};
use crate::alloc::Allocator;
use crate::inode::{self, STORE_CREDITS};
use crate::txn::Handle;

/// Runs `step` until it gives `true`, each time in a handle of its own that has what one step of
/// a change of the map needs, and `credits` more. The inode is stored with each step.
///
/// A step that finds no space is tried again once what was freed may be used.
pub(super) fn run(
    node: &Ext4Inode,
    credits: u32,
    mut step: impl FnMut(&mut Handle<'_>, &mut InodeState, &Arc<Allocator>) -> Result<bool>,
) -> Result<()> {
    let fs = node.fs();
    let space = node.sb.space()?;
    let mut retry = NoSpaceRetry::begin(&*node.sb);
    loop {
        inode::read_slot(fs, node.number)?;
        let needed = node.state.read().map.step_credits() + STORE_CREDITS;
        let mut handle = fs.begin(needed.saturating_add(credits))?;
        let mut state = node.state.write();
        let result = step(&mut handle, &mut state, space);
        // One that fails may have come some way.
        state.store_data(fs, &mut handle)?;
        drop(state);
        drop(handle);
        match result {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if retry.is_due(&*node.sb, &error)? => {}
            Err(error) => return Err(error),
        }
    }
}
