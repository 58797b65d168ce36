//! What is compared: each a way to a filesystem on the same image, or the floor of such a way.

mod kernel;
mod program;
mod served;
mod library;
mod bare;
mod store;
mod mountpoint;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use platter::block::Counts;
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;

pub(crate) use self::kernel::device_asked;
use self::program::Writes;
pub(crate) use self::served::{Kind as ServedKind, serve};
pub(crate) use self::store::CountedStore;
use crate::place::Directory;
use crate::work::{self, Workload};

/// One of those compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Side {
    /// The host's tmpfs: the work itself, with next to no filesystem.
    Tmpfs,
    /// The kernel's driver of the format, on a loop device.
    Kernel,
    /// e2fsprogs' server, through FUSE.
    Fuse2fs,
    /// tmpfs passed through by a FUSE server.
    Bindfs,
    /// The same with long writes, where there are some.
    BindfsLong,
    /// Our FUSE server over a filesystem in memory, over rings where the kernel knows of them: the floor of that
    /// transport.
    NullFuse,
    /// The same over the device alone.
    NullDevice,
    /// Platter through FUSE, over rings where the kernel knows of them.
    Fuse,
    /// Platter through FUSE, over the device alone.
    Device,
    /// Platter through FUSE, without permission checks.
    Unchecked,
    /// Platter through FUSE, where the kernel gathers what is written.
    Gathered,
    /// Platter in the process that does the work.
    Library,
}

impl Side {
    /// All, with what a mount is by default first.
    pub(crate) const ALL: [Self; 12] = [
        Self::Device,
        Self::Fuse,
        Self::Unchecked,
        Self::Gathered,
        Self::Library,
        Self::Kernel,
        Self::Fuse2fs,
        Self::Bindfs,
        Self::BindfsLong,
        Self::NullFuse,
        Self::NullDevice,
        Self::Tmpfs,
    ];

    /// The name in tables and pictures, with the transport of those that are mounted through FUSE.
    pub(crate) const fn name(self, format: FsType) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Kernel => match format {
                FsType::Ext4 => "kernel ext4",
                FsType::Btrfs => "kernel btrfs",
                FsType::Xfs => "kernel XFS",
            },
            Self::Fuse2fs => "fuse2fs, /dev/fuse",
            Self::Bindfs => "bindfs on tmpfs, /dev/fuse",
            Self::BindfsLong => "bindfs, big_writes, /dev/fuse",
            Self::NullFuse => "null server, rings",
            Self::NullDevice => "null server, /dev/fuse",
            Self::Fuse => "platter, rings",
            Self::Device => "platter, /dev/fuse",
            Self::Unchecked => "platter, rings, noperm",
            // The server takes no rings where the kernel gathers writes.
            Self::Gathered => "platter, /dev/fuse, writeback",
            Self::Library => "platter, library",
        }
    }

    /// The word for it on a command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Kernel => "kernel",
            Self::Fuse2fs => "fuse2fs",
            Self::Bindfs => "bindfs",
            Self::BindfsLong => "bindfs-long",
            Self::NullFuse => "null",
            Self::NullDevice => "null-device",
            Self::Fuse => "fuse",
            Self::Device => "device",
            Self::Unchecked => "noperm",
            Self::Gathered => "writeback",
            Self::Library => "library",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.word() == word)
    }

    /// Whether what it does ends up in the image.
    pub(crate) const fn uses_image(self) -> bool {
        match self {
            Self::Kernel
            | Self::Fuse2fs
            | Self::Fuse
            | Self::Device
            | Self::Unchecked
            | Self::Gathered
            | Self::Library => true,
            Self::Tmpfs | Self::Bindfs | Self::BindfsLong | Self::NullFuse | Self::NullDevice => {
                false
            }
        }
    }

    /// Whether its requests come over rings, where the kernel offers them.
    pub(crate) const fn wants_rings(self) -> bool {
        matches!(self, Self::Fuse | Self::Unchecked | Self::NullFuse)
    }

    /// Whether it is platter through a mount.
    pub(crate) const fn is_platter_mounted(self) -> bool {
        self.uses_image() && !matches!(self, Self::Kernel | Self::Fuse2fs | Self::Library)
    }

    /// Whether there is such a side for a format.
    pub(crate) const fn serves(self, format: FsType) -> bool {
        !matches!((self, format), (Self::Fuse2fs, FsType::Btrfs | FsType::Xfs))
    }

    /// Whether it differs from another of ours, or of a peer's, in some work only.
    const fn is_particular(self) -> bool {
        matches!(self, Self::BindfsLong | Self::Unchecked | Self::Gathered)
    }

    /// Whether what is written is there again after the side was started anew.
    pub(crate) const fn keeps_files(self) -> bool {
        !matches!(self, Self::NullFuse | Self::NullDevice)
    }

    /// Whether there is anything new to be seen of it in a workload.
    pub(crate) fn takes(self, workload: &Workload) -> bool {
        // Those without an image have nothing to do with the disk, nor with what not every filesystem has.
        let is_of_all = workload.formats.len() == FsType::ALL.len();
        let is_of_any = workload.storage == work::Storage::Memory && is_of_all;
        let is_placed = self.uses_image() || is_of_any;
        let is_meant = workload.only.is_empty() || workload.only.contains(&self);
        is_placed && is_meant && (!self.is_particular() || workload.particular.contains(&self))
    }

    /// Starts it on `ground`.
    pub(crate) fn start(self, ground: &Ground) -> Result<Box<dyn Live>> {
        Ok(match self {
            Self::Tmpfs => Box::new(bare::Bare::start(ground)?),
            Self::Kernel => Box::new(kernel::Kernel::start(ground)?),
            Self::Fuse2fs => Box::new(program::Program::fuse2fs(ground)?),
            Self::Bindfs => Box::new(program::Program::bindfs(ground, Writes::AsUsual)?),
            Self::BindfsLong => Box::new(program::Program::bindfs(ground, Writes::Long)?),
            Self::NullFuse => Box::new(served::Served::start(ServedKind::Memory, ground)?),
            Self::NullDevice => {
                Box::new(served::Served::start(ServedKind::MemoryByDevice, ground)?)
            }
            Self::Fuse => Box::new(served::Served::start(ServedKind::Image, ground)?),
            Self::Device => Box::new(served::Served::start(ServedKind::ImageByDevice, ground)?),
            Self::Unchecked => Box::new(served::Served::start(ServedKind::ImageUnchecked, ground)?),
            Self::Gathered => Box::new(served::Served::start(ServedKind::ImageGathered, ground)?),
            Self::Library => Box::new(library::Library::start(ground)?),
        })
    }
}

/// Starts a side as programs use it: at a path that has a name, and as it is mounted by default.
pub(crate) fn start_for_programs(side: Side, ground: &Ground) -> Result<Box<dyn Live>> {
    if side == Side::Kernel {
        return Ok(Box::new(kernel::Kernel::start_attached(ground)?));
    }
    side.start(ground)
}

/// Where a side is mounted, in the directory it stands in.
const MOUNTPOINT: &str = "mount";
/// All places in that directory where something may be mounted, the innermost first.
pub(crate) const MOUNTPOINTS: [&str; 3] = [MERGED, MOUNTPOINT, store::MOUNTPOINT];
/// Where something is mounted that has a side below it.
pub(crate) const MERGED: &str = "merged";

/// Where a side stands: an image, and a directory of tmpfs for those that have none.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) dir: PathBuf,
    pub(crate) image: PathBuf,
    /// What the image holds.
    pub(crate) format: FsType,
    /// An option of its mounts.
    pub(crate) mount: Option<String>,
    /// What the caches of platter may take.
    pub(crate) cache_bytes: u64,
}

impl Ground {
    fn backing(&self) -> Result<PathBuf> {
        dir(self.dir.join("backing"))
    }

    fn mountpoint(&self) -> Result<PathBuf> {
        dir(self.dir.join(MOUNTPOINT))
    }
}

fn dir(path: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

/// A side that runs.
pub(crate) trait Live {
    /// Its root, held open until it is dropped.
    fn root(&self) -> Result<Box<dyn Directory>>;

    /// Where other programs find it, if they do.
    fn path(&self) -> Option<PathBuf>;

    /// The process that serves, if that is another one.
    fn server(&self) -> Option<u32>;

    /// What it asked of others so far.
    fn asked(&mut self) -> Result<Asked>;

    /// Ends it, when all is written.
    fn end(self: Box<Self>) -> Result<()>;
}

/// Requests of the kernel to a FUSE server, and of a filesystem to its device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Of each kind. Empty if they are not counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) fuse: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceAsked>,
    /// Of our own servers, whether requests came over rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by_rings: Option<bool>,
}

/// Requests to a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceAsked {
    pub(crate) reads: u64,
    /// Nothing, where bytes are not counted; so below.
    pub(crate) read_bytes: Option<u64>,
    pub(crate) writes: u64,
    pub(crate) write_bytes: Option<u64>,
    pub(crate) flushes: u64,
}

impl From<Counts> for DeviceAsked {
    fn from(counts: Counts) -> Self {
        Self {
            reads: counts.reads,
            read_bytes: Some(counts.read_bytes),
            writes: counts.writes,
            write_bytes: Some(counts.write_bytes),
            flushes: counts.flushes,
        }
    }
}

impl Asked {
    /// What was asked since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let fuse = self.fuse.iter().map(|(name, count)| {
            let before = earlier.fuse.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(before))
        });
        let before = earlier.device.unwrap_or_default();
        let bytes = |now: Option<u64>, before: Option<u64>| {
            now.map(|now| now.saturating_sub(before.unwrap_or(0)))
        };
        Self {
            by_rings: self.by_rings,
            fuse: fuse.filter(|(_, count)| *count > 0).collect(),
            device: self.device.map(|now| DeviceAsked {
                reads: now.reads.saturating_sub(before.reads),
                read_bytes: bytes(now.read_bytes, before.read_bytes),
                writes: now.writes.saturating_sub(before.writes),
                write_bytes: bytes(now.write_bytes, before.write_bytes),
                flushes: now.flushes.saturating_sub(before.flushes),
            }),
        }
    }

    /// FUSE requests but those that take the kernel's word back, which come when it likes.
    pub(crate) fn requests(&self) -> u64 {
        let counted = self.fuse.iter().filter(|(name, _)| *name != "FORGET");
        counted.map(|(_, count)| count).sum()
    }
}
