//! Devices above those of an image, which hold what an edit changes until it is committed.

use std::fmt;
use std::sync::Arc;

use platter_block::{
    Access, BlockDevice, ConcatDevice, FileDevice, IoError, Operation, OverlayDevice,
    OverlayOptions, ScratchDevice,
};
use platter_vfs::Result;

use crate::devices::{DeviceRole, Devices};
use crate::driver::{ImageCommit, JournaledEdits, MountRequest};

/// What is written lies in files of this length: filesystems of hosts have none of any length.
pub(super) const STORE_PART_BYTES: u64 = 1 << 40;
/// What errors call them.
const STORE_NAME: &str = "temporary file";

/// A scratch device above each device but logs, which the edit does not use.
pub(super) struct Scratches {
    edits: &'static dyn JournaledEdits,
    first: Arc<ScratchDevice>,
    others: Vec<Option<Arc<ScratchDevice>>>,
}

impl Scratches {
    /// Scratch devices above those of a filesystem.
    pub(super) fn above(
        edits: &'static dyn JournaledEdits,
        request: &MountRequest,
    ) -> Result<Self> {
        let base = request.devices.first();
        let mut first = ScratchDevice::new(Arc::clone(base), store_for(&**base)?);
        // What keeps the driver from finding them keeps the filesystem from being opened.
        if let Ok(Some(free)) = edits.free_ranges(request) {
            first = first.with_unused(free);
        }
        let above = |base: &Arc<dyn BlockDevice>| -> Result<Arc<ScratchDevice>> {
            let store = store_for(&**base)?;
            Ok(Arc::new(ScratchDevice::new(Arc::clone(base), store)))
        };
        let others = request
            .devices
            .iter()
            .skip(1)
            .map(|other| match other.role {
                DeviceRole::Data | DeviceRole::Realtime => above(&other.device).map(Some),
                DeviceRole::Log => Ok(None),
            });
        Ok(Self {
            edits,
            first: Arc::new(first),
            others: others.collect::<Result<_>>()?,
        })
    }

    /// The devices to mount; what is written to a log stays in memory.
    pub(super) fn devices(&self, bases: &Devices) -> Devices {
        let mut scratches =
            std::iter::once(Some(&self.first)).chain(self.others.iter().map(Option::as_ref));
        bases.map(|base| {
            if let Some(scratch) = scratches.next().flatten() {
                return Arc::<ScratchDevice>::clone(scratch);
            }
            let options = OverlayOptions::default();
            Arc::new(OverlayDevice::new(Arc::clone(&base.device), options))
        })
    }

    /// Makes the devices of the image hold what these do.
    pub(super) fn commit(
        &self,
        mount: MountRequest,
        unbatched: Arc<dyn BlockDevice>,
    ) -> Result<()> {
        self.edits.commit_image(ImageCommit {
            mount,
            unbatched,
            new: &self.first,
            others: &self.others,
        })
    }

    /// Undoes what was written in place to free holes of the image.
    pub(super) fn revert(&self) {
        self.first.revert_holes();
    }
}

impl fmt::Debug for Scratches {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Scratches")
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

/// A device as long as `base` that goes when it is closed.
pub(super) fn store_for(base: &dyn BlockDevice) -> Result<Arc<dyn BlockDevice>, IoError> {
    let mut left = base.geometry().len_bytes;
    let mut parts = Vec::new();
    while left > 0 {
        let part = left.min(STORE_PART_BYTES);
        parts.push(temporary_file(part)?);
        left -= part;
    }
    Ok(Arc::new(ConcatDevice::new(STORE_NAME, parts)))
}

fn temporary_file(len_bytes: u64) -> Result<Arc<dyn BlockDevice>, IoError> {
    let failed = |error: std::io::Error| {
        let name = Arc::from(STORE_NAME);
        IoError::new(&name, Operation::Open, 0, 0, error)
    };
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    file.as_file().set_len(len_bytes).map_err(failed)?;
    let options = platter_block::OpenOptions {
        access: Access::Write,
        ..platter_block::OpenOptions::default()
    };
    Ok(Arc::new(FileDevice::open(file.path(), options)?))
}
