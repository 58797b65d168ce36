//! The superblock, as far as a mount does not prove it.

use platter_ondisk::Locus;

use super::{Checker, Flow, SuperblockUseRule};
use crate::ondisk::features::Compat;

/// The newest `s_rev_level`.
const REVISION_MAX: u32 = 1;

impl Checker<'_> {
    pub(super) fn check_superblock(&mut self) -> Flow {
        let volume = self.volume;
        let superblock = &volume.superblock;
        let locus = Locus::block(volume.geometry.superblock_block.0);
        if superblock.revision > REVISION_MAX {
            self.found(locus, SuperblockUseRule::Revision)?;
        }
        let inside = superblock.journal_inode.is_some();
        let outside = !superblock.journal_uuid.is_nil();
        let journals = u32::from(inside) + u32::from(outside);
        let expected = u32::from(superblock.features.compat.contains(Compat::HAS_JOURNAL));
        if journals != expected {
            self.found(locus, SuperblockUseRule::Journal)?;
        }
        Ok(())
    }
}
