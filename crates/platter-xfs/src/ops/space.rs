//! Space that was freed, which a transaction that found none waits for.

use platter_vfs::Result;
use platter_vfs::writing::ReturnsSpace;

use super::SuperBlock;

/// The space of a filesystem that was freed, for callers that have locks of a file: what files have beyond their end is
/// left to them.
pub(super) struct FreedSpace<'s>(pub(super) &'s SuperBlock);

impl ReturnsSpace for FreedSpace<'_> {
    fn returned(&self) -> u64 {
        self.0.context.space().returned()
    }

    fn return_freed(&self) -> Result<()> {
        let context = &self.0.context;
        let Some(log) = context.log() else {
            return Ok(());
        };
        let space = context.space();
        if space.has_busy() {
            log.force_freed()?;
            space.finish(context.geometry().groups(), log);
        }
        Ok(())
    }
}
