//! What a filesystem says of itself, changed: label, UUID and features, all by one commit.

use platter_vfs::{Condition, Result, Tune, Unsupported};

use crate::ondisk::Features;
use crate::ondisk::features::{CompatRo, Incompat};
use crate::ondisk::superblock::LABEL_LEN_MAX;
use crate::ops::SuperBlock;
use crate::txn::convert::{self, FeatureChange};
use crate::txn::superblocks;

/// Tree blocks that device items are in.
const DEVICE_CREDITS: u32 = 16;

/// Features that choose the form of new items; items of the older form are read, too.
const FLAGS: [(&str, Incompat); 3] = [
    ("extref", Incompat::EXTENDED_IREF),
    ("skinny-metadata", Incompat::SKINNY_METADATA),
    ("no-holes", Incompat::NO_HOLES),
];
/// The feature of the block group tree, which is built and removed.
const GROUP_TREE: &str = "block-group-tree";
/// The feature of the free space tree, which is built.
const SPACE_TREE: &str = "free-space-tree";
/// Names of the flag that makes devices seeds (`btrfstune -S`).
const SEEDING: [&str; 2] = ["seed", "seeding"];

/// Why other features do not change.
const OTHERS: &str = "extref, skinny-metadata, no-holes, free-space-tree and block-group-tree can be switched on, \
                      and block-group-tree off";
/// Why features are not switched off.
const DEPENDED_ON: &str = "existing items that depend on it are not converted";
/// Why the flag of seed devices does not change.
const NO_SEEDS: &str = "filesystems with seed devices can only be read";
/// Why the UUID of several devices does not change.
const NOT_AT_ONCE: &str =
    "a crash between two superblocks would leave devices that the kernel takes for two filesystems";
/// Why trees are not changed.
const TOO_LARGE: &str = "it needs more tree blocks than are left for it in a transaction";

/// Makes all of the changes with the next commit.
pub(super) fn tune(fs: &SuperBlock, changes: &[Tune]) -> Result<()> {
    let writing = fs.writing().ok_or(Condition::ReadOnly)?;
    let before = convert::planned_features(writing);
    let mut after = before;
    for change in changes {
        match change {
            Tune::Label(label) if label.len() > LABEL_LEN_MAX || label.contains(&0) => {
                let text = format!("a label has at most {LABEL_LEN_MAX} bytes, and no zeros");
                return Err(Condition::InvalidArgument.because(text));
            }
            Tune::Label(_) => {}
            Tune::Uuid(uuid) if uuid.is_nil() => {
                return Err(Condition::InvalidArgument.because("a UUID is not all zeros"));
            }
            Tune::Uuid(_) if writing.superblock().device_count == 1 => {}
            Tune::Uuid(_) => {
                let feature = "a new UUID on several devices".to_owned();
                return Err(refused(feature, NOT_AT_ONCE));
            }
            Tune::Feature { name, on } => switch(&mut after, name, *on)?,
        }
    }
    let change = FeatureChange { before, after };
    let credits = u32::try_from(convert::credits_of(writing, &change)?).unwrap_or(u32::MAX);
    if credits > 0 {
        let most = convert::credits_max(writing)?;
        if credits > most.saturating_sub(DEVICE_CREDITS) {
            let feature = "changing free-space-tree or block-group-tree in one transaction";
            return Err(refused(feature.to_owned(), TOO_LARGE));
        }
    }
    let mut handle = writing.begin(DEVICE_CREDITS + credits)?;
    if before != after {
        convert::change_features(&mut handle, &change, credits)?;
    }
    for change in changes {
        match change {
            Tune::Label(label) => superblocks::set_label(&handle, label.clone())?,
            Tune::Uuid(uuid) => superblocks::set_uuid(&handle, *uuid)?,
            Tune::Feature { .. } => {}
        }
    }
    Ok(())
}

/// Switches a feature on or off, by its name in btrfs-progs.
fn switch(features: &mut Features, name: &str, is_on: bool) -> Result<()> {
    let flag = FLAGS.iter().find(|(known, _)| *known == name);
    match flag {
        Some((_, flag)) if is_on => features.incompat |= *flag,
        None if name == GROUP_TREE => features.compat_ro.set(CompatRo::BLOCK_GROUP_TREE, is_on),
        None if name == SPACE_TREE && is_on => {
            features.compat_ro |= CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        }
        Some(_) | None => {
            let sign = if is_on { "on" } else { "off" };
            let reason = if flag.is_some() || name == SPACE_TREE {
                DEPENDED_ON
            } else if SEEDING.contains(&name) {
                NO_SEEDS
            } else {
                OTHERS
            };
            return Err(refused(format!("switching {name} {sign}"), reason));
        }
    }
    Ok(())
}

fn refused(feature: String, reason: &'static str) -> platter_vfs::Error {
    Unsupported {
        filesystem: "btrfs",
        feature,
        reason: Some(reason),
    }
    .into()
}
