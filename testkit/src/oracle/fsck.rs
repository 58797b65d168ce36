//! The checker of a filesystem type.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{Verdict, btrfs, e2fsck, xfs};
use crate::fs_type::FsType;

/// Checks with the checker of `fs_type` the devices of one filesystem without changing them: all members
/// of a btrfs; of an XFS the data device, then the external log if there is one.
pub fn fsck(fs_type: FsType, images: &[&Path]) -> Result<Verdict> {
    match fs_type {
        FsType::Ext4 => {
            ensure!(images.len() == 1, "e2fsck takes one device");
            e2fsck::check(images[0])
        }
        FsType::Btrfs => btrfs::check(images),
        FsType::Xfs => xfs::check(images),
    }
}
