//! Bitmaps and descriptors on their way to the medium: changed in memory by each operation, written by
//! each transaction once, when it closes.

use platter_vfs::Result;

use super::Space;
use super::group::Clusters;
use super::group_inodes::Inodes;
use crate::groups;
use crate::ondisk::bitmap::BitmapVerifier;
use crate::ondisk::{BlockNr, GroupDesc, GroupNr};
use crate::txn::Handle;

/// A bitmap in memory, and what of it is not written.
#[derive(Debug)]
pub(super) struct Recording {
    bitmap: BlockNr,
    /// The group has none on the medium.
    is_new: bool,
    /// The running transaction changes it.
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

    /// Where the bitmap lies.
    pub(super) fn bitmap(&self) -> BlockNr {
        self.bitmap
    }

    /// Whether the group has no bitmap, and gets none either.
    pub(super) fn is_absent(&self) -> bool {
        self.is_new && !self.is_pending
    }

    /// Whether memory has what is not written yet.
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

impl Space {
    /// Makes the bitmap of a group, and what tells of it, part of the transaction before it is changed.
    /// Changes two blocks.
    ///
    /// # Errors
    /// Of reading the descriptor.
    pub(super) fn join(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNr,
        recording: &mut Recording,
    ) -> Result<()> {
        if recording.is_pending {
            return Ok(());
        }
        groups::join_descriptor(handle, &self.geometry, group)?;
        handle.reserve(recording.bitmap, recording.is_new)?;
        recording.is_pending = true;
        self.pending.lock().insert(group);
        Ok(())
    }

    /// Writes what the transaction changed, as part of it. No operation is.
    pub(super) fn write_pending(&self, handle: &mut Handle<'_>) -> Result<()> {
        let pending = std::mem::take(&mut *self.pending.lock());
        pending
            .into_iter()
            .try_for_each(|group| self.write_group(handle, group))
    }

    fn write_group(&self, handle: &mut Handle<'_>, group: GroupNr) -> Result<()> {
        let geometry = &self.geometry;
        let (mut inodes, mut clusters) = self.slot(group).loaded();
        let is_pending = |inodes: &&mut Inodes| inodes.recording.is_pending;
        let inodes = inodes.as_deref_mut().filter(is_pending);
        let is_pending = |clusters: &&mut Clusters| clusters.recording.is_pending;
        let clusters = clusters.as_deref_mut().filter(is_pending);
        let desc: GroupDesc = groups::edit_descriptor(handle, geometry, group, |desc| {
            if let Some(inodes) = &inodes {
                inodes.describe(desc, geometry);
            }
            if let Some(clusters) = &clusters {
                clusters.describe(desc, group, geometry);
            }
            Ok(*desc)
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
        Ok(())
    }
}
