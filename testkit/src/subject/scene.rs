//! One way to make a filesystem, and its devices with all that was made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{CheckSink, Filesystem, Finding, FixedClock, Severity, Timestamp};

use super::pristine::Pristine;
use super::{Devices, MountRequest, Subject, btrfs, ext4, xfs};
use crate::workload::{Abilities, Durability};

/// Cache of one mount.
const CACHE_BYTES: u64 = 8 << 20;
/// The time of everything.
const NOW: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanoseconds: 0,
};
/// Findings of a check that are returned.
const FINDINGS_MAX: usize = 6;

/// The scenes of each subject.
const TABLES: [&[Scene]; 3] = [ext4::SCENES, xfs::SCENES, btrfs::SCENES];

/// How file data and the log go together, by which the long runs are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// ext4 with `data=ordered`.
    Ordered,
    /// ext4 with `data=journal`.
    Journal,
    /// ext4 with `data=writeback`.
    Writeback,
    /// ext3, with `data=ordered`.
    Ext3,
    /// No journal.
    Unjournaled,
    /// XFS, by features.
    Xfs,
    /// XFS, by shapes of the log.
    XfsLog,
    /// btrfs on one device.
    Btrfs,
    /// btrfs with copies of everything.
    BtrfsCopies,
    /// btrfs with parity, or stripes.
    BtrfsStripes,
    /// btrfs with syncs of single files and directories, which go to the log tree.
    BtrfsLog,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Ordered,
        Self::Journal,
        Self::Writeback,
        Self::Ext3,
        Self::Unjournaled,
        Self::Xfs,
        Self::XfsLog,
        Self::Btrfs,
        Self::BtrfsCopies,
        Self::BtrfsStripes,
        Self::BtrfsLog,
    ];

    /// The word for it on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Journal => "journal",
            Self::Writeback => "writeback",
            Self::Ext3 => "ext3",
            Self::Unjournaled => "unjournaled",
            Self::Xfs => "xfs-features",
            Self::XfsLog => "xfs-log",
            Self::Btrfs => "btrfs-single",
            Self::BtrfsCopies => "btrfs-copies",
            Self::BtrfsStripes => "btrfs-stripes",
            Self::BtrfsLog => "btrfs-log",
        }
    }

    /// Of the states that are asked for of each mode, one in so many is enough for this one.
    #[must_use]
    pub fn states_one_in(self) -> usize {
        let is_variant = matches!(
            self,
            Self::Xfs | Self::BtrfsCopies | Self::BtrfsStripes | Self::BtrfsLog
        );
        if is_variant { 4 } else { 1 }
    }

    /// Of so many states, the kernel mounts one.
    #[must_use]
    pub fn kernel_one_in(self) -> usize {
        match self {
            Self::XfsLog => 16,
            // Of which there are fewer states.
            Self::BtrfsCopies | Self::BtrfsStripes | Self::BtrfsLog => 8,
            Self::Ordered
            | Self::Journal
            | Self::Writeback
            | Self::Ext3
            | Self::Unjournaled
            | Self::Xfs
            | Self::Btrfs => 32,
        }
    }

    /// The scenes that are in it.
    pub fn scenes(self) -> impl Iterator<Item = &'static Scene> {
        scenes().filter(move |scene| scene.mode == self)
    }
}

/// One way to make a filesystem.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// Its name, which begins with that of its generation.
    pub name: &'static str,
    /// How it treats data.
    pub mode: Mode,
    /// The driver.
    pub subject: &'static dyn Subject,
    /// Options of the program that makes it.
    pub options: &'static [&'static str],
    /// The number of its devices.
    pub members: usize,
    /// The size of each of them.
    pub size_kib: u64,
}

/// All scenes; the first of each generation stands for it where one must do.
pub fn scenes() -> impl Iterator<Item = &'static Scene> {
    TABLES.into_iter().flatten()
}

/// The scene of that name.
pub fn scene(name: &str) -> Result<&'static Scene> {
    let found = scenes().find(|scene| scene.name == name);
    found.with_context(|| format!("no scene is called {name}"))
}

/// New filesystems by scene and size.
type Made = Mutex<BTreeMap<(&'static str, u64), Vec<Arc<Pristine>>>>;

impl Scene {
    /// What a power failure may undo.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.subject.durability(self)
    }

    /// The operations it supports beyond those of every POSIX filesystem.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.subject.abilities(self)
    }

    /// Returns a new filesystem, whose devices refuse writes.
    pub fn images(&self) -> Result<Devices> {
        self.images_of(self.size_kib)
    }

    /// Returns a new filesystem of another size, whose devices refuse writes.
    pub fn images_of(&self, size_kib: u64) -> Result<Devices> {
        static MADE: Made = Mutex::new(BTreeMap::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let images = if let Some(images) = made.get(&(self.name, size_kib)) {
            images.clone()
        } else {
            let images = self.make(size_kib)?;
            made.insert((self.name, size_kib), images.clone());
            images
        };
        let device = |image: Arc<Pristine>| -> Arc<dyn BlockDevice> { image };
        Ok(images.into_iter().map(device).collect())
    }

    /// Returns a new filesystem of that size, whose changes are kept in memory.
    pub fn devices_of(&self, size_kib: u64) -> Result<Devices> {
        Ok(overlays(&self.images_of(size_kib)?))
    }

    fn make(&self, size_kib: u64) -> Result<Vec<Arc<Pristine>>> {
        let dir = tempfile::tempdir()?;
        let path = |member: usize| dir.path().join(format!("member{member}"));
        let paths: Vec<PathBuf> = (0..self.members).map(path).collect();
        let images: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
        self.subject.make(self, &images, size_kib)?;
        let sector_bytes = self.subject.sector_bytes();
        let read = |image: &PathBuf| -> Result<Arc<Pristine>> {
            Ok(Arc::new(Pristine::new(std::fs::read(image)?, sector_bytes)))
        };
        paths.iter().map(read).collect()
    }

    /// Mounts for reading and writing; a log is replayed onto the devices.
    pub fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        seed: u64,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        self.subject.mount(devices, request(false, seed))
    }

    /// Mounts for reading devices that need no replay.
    pub fn mount_to_read(
        &self,
        devices: &[Arc<dyn BlockDevice>],
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        self.subject.mount(devices, request(true, 0))
    }

    /// Returns what our check finds on the devices.
    pub fn check(&self, devices: &[Arc<dyn BlockDevice>]) -> platter_vfs::Result<Vec<String>> {
        let mut findings = Findings(Vec::new());
        self.subject
            .check(devices, request(true, 0), &mut findings)?;
        Ok(findings.0)
    }
}

/// Overlays that keep the changes of devices in memory.
pub(crate) fn overlays(devices: &[Arc<dyn BlockDevice>]) -> Devices {
    let overlay = |device: &Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        let options = OverlayOptions::default();
        Arc::new(OverlayDevice::new(Arc::clone(device), options))
    };
    devices.iter().map(overlay).collect()
}

/// Overlays of a crash state as devices.
pub(crate) fn shared(overlays: Vec<OverlayDevice>) -> Devices {
    let device = |overlay: OverlayDevice| -> Arc<dyn BlockDevice> { Arc::new(overlay) };
    overlays.into_iter().map(device).collect()
}

fn request(read_only: bool, seed: u64) -> MountRequest {
    MountRequest {
        read_only,
        budget: Arc::new(MemoryBudget::new(CACHE_BYTES)),
        clock: Arc::new(FixedClock::new(NOW, seed)),
    }
}

struct Findings(Vec<String>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> std::ops::ControlFlow<()> {
        if finding.severity != Severity::Notice && self.0.len() < FINDINGS_MAX {
            self.0.push(finding.corruption.to_string());
        }
        std::ops::ControlFlow::Continue(())
    }
}
