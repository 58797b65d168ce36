//! Intents that the log leaves open: extents to free. Others are refused by name.
//! Spec: `xfs/journaling_log`, "Intent to Free an Extent".

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Result, Unsupported};

use crate::ag::{Blocks, Group, GroupRule};
use crate::ondisk::log::Intent;
use crate::ondisk::log::intent::Section;
use crate::ondisk::{FsBlock, Geometry};

/// Refuses intents that [`finish`] cannot finish.
pub(super) fn check(intents: &[Intent]) -> Result<()> {
    let refused = intents.iter().find(
        |intent| !matches!(intent, Intent::ExtentFree(intent) if intent.section == Section::Data),
    );
    match refused {
        None => Ok(()),
        Some(intent) => Err(Unsupported {
            filesystem: "xfs",
            feature: format!(
                "a log with an unfinished intent of type {:?}",
                intent.kind()
            ),
            reason: Some("mount read-only with norecovery"),
        }
        .into()),
    }
}

/// Finishes intents, in the order of the log.
pub(super) fn finish(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    intents: &[Intent],
) -> Result<()> {
    check(intents)?;
    for intent in intents {
        let Intent::ExtentFree(intent) = intent else {
            continue;
        };
        for extent in &intent.extents {
            let start = FsBlock(extent.start);
            if !geometry.contains(start, extent.len.into()) {
                let locus = Locus::block(extent.start);
                return Err(Corrupt::new(locus, GroupRule::DoubleFree).into());
            }
            let (ag, block) = geometry.split(start);
            let mut blocks = Blocks::new(Arc::clone(device));
            let mut group = Group::open(geometry, ag, &mut blocks)?;
            group.fill_free_list()?;
            // The intent does not say whose the blocks are, and the mapping may be gone already.
            group.remove_any_owner(block, extent.len)?;
            group.free_extent(block, extent.len)?;
            group.close()?;
            blocks.write_all()?;
        }
    }
    Ok(())
}
