//! What a filesystem says of itself, changed: label and UUID, by the superblocks of a commit.

use platter_vfs::{Condition, Result, Tune, Unsupported};

use crate::ondisk::superblock::LABEL_LEN_MAX;
use crate::ops::SuperBlock;
use crate::txn::superblocks;

/// The features that an image can get: none is removed, as files depend on them.
const REASON: &str = "the label and, on one device, the UUID can change";

/// Tree blocks that device items are in.
const DEVICE_CREDITS: u32 = 16;

/// Changes what the superblock says, with the next commit.
pub(super) fn tune(fs: &SuperBlock, changes: &[Tune]) -> Result<()> {
    let writing = fs.writing().ok_or(Condition::ReadOnly)?;
    for change in changes {
        match change {
            Tune::Label(label) if label.len() > LABEL_LEN_MAX || label.contains(&0) => {
                return Err(Condition::InvalidArgument.into());
            }
            Tune::Label(_) => {}
            // The superblocks of several devices are not written at once, and a device is known by this UUID.
            Tune::Uuid(_) if writing.superblock().device_count == 1 => {}
            Tune::Uuid(_) => {
                return Err(refused("a new UUID on several devices".to_owned()));
            }
            Tune::Feature { name, on } => {
                let sign = if *on { "on" } else { "off" };
                return Err(refused(format!("switching {name} {sign}")));
            }
        }
    }
    let handle = writing.begin(DEVICE_CREDITS)?;
    for change in changes {
        match change {
            Tune::Label(label) => superblocks::set_label(&handle, label.clone())?,
            Tune::Uuid(uuid) => superblocks::set_uuid(&handle, *uuid)?,
            Tune::Feature { .. } => {}
        }
    }
    Ok(())
}

fn refused(feature: String) -> platter_vfs::Error {
    Unsupported {
        filesystem: "btrfs",
        feature,
        reason: Some(REASON),
    }
    .into()
}
