//! Long changes of a file's map: one handle after the other.

use std::sync::Arc;

use platter_vfs::Result;
use platter_vfs::writing::NoSpaceRetry;

use super::super::{Core, Node};
use crate::alloc::Space;
use crate::inode::{self, STORE_CREDITS};
use crate::txn::Handle;

impl Node {
    /// Runs `step` until it gives `true`, each time in a handle of its own that has what one step of
    /// a change of the map needs, and `credits` beside. The inode is stored with each step.
    ///
    /// A step that finds no space is tried again once what was freed may be used.
    pub(super) fn in_steps(
        &self,
        credits: u32,
        mut step: impl FnMut(&mut Handle<'_>, &mut Core, &Arc<Space>) -> Result<bool>,
    ) -> Result<()> {
        let volume = self.volume();
        let space = self.tree.space()?;
        let mut retry = NoSpaceRetry::begin(&*self.tree);
        loop {
            inode::read_slot(volume, self.number)?;
            let needed = self.core.read().map.step_credits() + STORE_CREDITS;
            let mut handle = volume.begin(needed.saturating_add(credits))?;
            let mut core = self.core.write();
            let result = step(&mut handle, &mut core, space);
            // One that fails may have come some way.
            core.store_data(volume, &mut handle)?;
            drop(core);
            drop(handle);
            match result {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if retry.is_due(&*self.tree, &error)? => {}
                Err(error) => return Err(error),
            }
        }
    }
}
