//! The writes and flushes of a kernel mount, recorded in their order, so that its images can be cut at
//! any point: journals, log trees and XFS logs as the kernel leaves them in a power failure.
//!
//! The image is a file of a FUSE filesystem of this process, over which the kernel has a loop device. A
//! write of the loop device arrives as `WRITE` requests before it is complete, a flush as `FSYNC`; a
//! write with FUA arrives as a write and a flush, since loop devices have no FUA of their own. What
//! arrives goes to a [`Recorder`].

mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use platter_block::BlockDevice;
use platter_block::sim::{Recorder, Recording, RecordingDevice};
use platter_fuse::{MountOptions, Session};
use tempfile::TempDir;

use self::files::{DeviceFiles, file_name};
use crate::fs_type::FsType;
use crate::loopdev::{Access, Mount};
use crate::served;
use crate::subject::Devices;

/// A kernel mount whose requests to its devices are recorded.
#[derive(Debug)]
pub struct KernelRecording {
    fs_type: FsType,
    mount: Option<Mount>,
    images: Vec<PathBuf>,
    /// Until it is unmounted.
    session: Option<Session>,
    recorder: Recorder,
    _mountpoint: TempDir,
}

impl KernelRecording {
    /// Mounts the devices of one filesystem with the kernel, which are only read: changes are kept in
    /// memory.
    pub fn start(fs_type: FsType, initial: Devices, options: &str) -> Result<Self> {
        let recorder = Recorder::new(initial);
        let device = |device: &Arc<RecordingDevice>| -> Arc<dyn BlockDevice> { device.clone() };
        let devices: Devices = recorder.devices().iter().map(device).collect();
        let count = devices.len();
        let mountpoint = tempfile::tempdir()?;
        let files = Arc::new(DeviceFiles::new(devices));
        let session = platter_fuse::mount(files, mountpoint.path(), MountOptions::default())?;
        let image = |member| mountpoint.path().join(file_name(member));
        let mut recording = Self {
            fs_type,
            mount: None,
            images: (0..count).map(image).collect(),
            session: Some(session),
            recorder,
            _mountpoint: mountpoint,
        };
        let images: Vec<&Path> = recording.images.iter().map(PathBuf::as_path).collect();
        let mount = Mount::images(fs_type, &images, options, Access::ReadWrite)?;
        recording.mount = Some(mount);
        Ok(recording)
    }

    /// The type that is mounted.
    #[must_use]
    pub fn fs_type(&self) -> FsType {
        self.fs_type
    }

    /// The root of the mount.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.mount.as_ref().map_or(Path::new(""), Mount::root)
    }

    /// The log, in which durability guarantees are marked.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns what was recorded up to now, with everything still mounted, and unmounts.
    pub fn power_off(self) -> Result<Recording> {
        let recording = self.recorder.recording();
        self.finish()?;
        Ok(recording)
    }

    /// Unmounts, and returns all that was recorded.
    pub fn finish(mut self) -> Result<Recording> {
        if let Some(mount) = self.mount.take() {
            let images: Vec<&Path> = self.images.iter().map(PathBuf::as_path).collect();
            mount.unmount_all(&images)?;
        }
        self.end_serving()?;
        Ok(self.recorder.recording())
    }

    /// Unmounts the images' filesystem once: the loop devices go a moment after their mount.
    fn end_serving(&mut self) -> Result<()> {
        match self.session.take() {
            Some(mut session) => served::unmount(&mut session),
            None => Ok(()),
        }
    }
}

impl Drop for KernelRecording {
    fn drop(&mut self) {
        // A mount that is still there would wait for this process to serve it.
        self.mount = None;
        // A failure has nowhere to go.
        let _ = self.end_serving();
    }
}

#[cfg(test)]
mod tests;
