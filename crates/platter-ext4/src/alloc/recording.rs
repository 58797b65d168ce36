//! Bitmaps and descriptors of a transaction: modified in memory by each operation, encoded into
//! their blocks once, when the transaction closes.

use platter_vfs::Result;

use super::Allocator;
use super::group::Clusters;
use super::group_inodes::Inodes;
use crate::groups;
use crate::ondisk::bitmap::BitmapVerifier;
use crate::ondisk::{BlockNr, GroupDesc, GroupNr};
use crate::txn::Handle;

/// A bitmap in memory, and its state in the transaction.
#[derive(Debug)]
pub(super) struct Recording {
    bitmap: BlockNr,
    /// The bitmap is not initialized on disk.
    is_new: bool,
    /// The running transaction modifies it.
    is_pending: bool,
}

impl Recording {
    pub(super) fn of(bitmap: BlockNr, is_new: bool) -> Self {
        Self {
            bitmap,
            is_new,
            is_pending: false,
        }
    }

    /// Returns the block of the bitmap.
    pub(super) fn bitmap(&self) -> BlockNr {
        self.bitmap
    }

    /// Whether the bitmap is uninitialized, and stays so.
    pub(super) fn is_absent(&self) -> bool {
        self.is_new && !self.is_pending
    }

    /// Whether it has changes that are not encoded yet.
    pub(super) fn is_pending(&self) -> bool {
        self.is_pending
    }

    fn write(
        &mut self,
        handle: &mut Handle<'_>,
        verifier: &BitmapVerifier,
        bits: &[u8],
    ) -> Result<()> {
        if self.is_new {
            handle.create(self.bitmap, verifier, bits)?;
        } else {
            handle.replace(self.bitmap, verifier, bits)?;
        }
        self.is_new = false;
        self.is_pending = false;
        Ok(())
    }
}

/// Adds the bitmap of a group and its descriptor to the transaction before they are modified.
/// Modifies two blocks.
///
/// # Errors
/// Those of reading the descriptor.
pub(super) fn join(
    space: &Allocator,
    handle: &mut Handle<'_>,
    group: GroupNr,
    recording: &mut Recording,
) -> Result<()> {
    if recording.is_pending {
        return Ok(());
    }
    groups::join_descriptor(handle, &space.geometry, group)?;
    handle.reserve(recording.bitmap, recording.is_new)?;
    recording.is_pending = true;
    space.pending.lock().insert(group);
    Ok(())
}

/// Encodes the changes of the transaction into its blocks, and returns by how much the descriptors'
/// counts of free clusters and inodes changed. No handle is open.
pub(super) fn write_pending(space: &Allocator, handle: &mut Handle<'_>) -> Result<(i64, i64)> {
    let pending = std::mem::take(&mut *space.pending.lock());
    pending.into_iter().try_fold((0, 0), |sum, group| {
        let change = write_group(space, handle, group)?;
        Ok((sum.0 + change.0, sum.1 + change.1))
    })
}

fn write_group(space: &Allocator, handle: &mut Handle<'_>, group: GroupNr) -> Result<(i64, i64)> {
    let geometry = &space.geometry;
    let (mut inodes, mut clusters) = space.slot(group).loaded();
    let is_pending = |inodes: &&mut Inodes| inodes.recording.is_pending;
    let inodes = inodes.as_deref_mut().filter(is_pending);
    let is_pending = |clusters: &&mut Clusters| clusters.recording.is_pending;
    let clusters = clusters.as_deref_mut().filter(is_pending);
    let (before, desc) = groups::edit_descriptor(handle, geometry, group, |desc| {
        let before: GroupDesc = *desc;
        if let Some(inodes) = &inodes {
            inodes.describe(desc, geometry);
        }
        if let Some(clusters) = &clusters {
            clusters.describe(desc, group, geometry);
        }
        Ok((before, *desc))
    })?;
    if let Some(inodes) = inodes {
        let verifier = BitmapVerifier::of_inodes(group, &desc, geometry);
        let (bits, recording) = inodes.split_mut();
        recording.write(handle, &verifier, bits)?;
    }
    if let Some(clusters) = clusters {
        let verifier = BitmapVerifier::of_blocks(group, &desc, geometry);
        clusters
            .recording
            .write(handle, &verifier, &clusters.recorded)?;
    }
    let change = |before: u32, after: u32| i64::from(after) - i64::from(before);
    Ok((
        change(before.free_clusters, desc.free_clusters),
        change(before.free_inodes, desc.free_inodes),
    ))
}
