//! btrfs with btrfs-progs.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use platter_block::BlockDevice;
use platter_btrfs::{Btrfs, Method, MountOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{CheckSink, Filesystem, SystemClock};

use super::{Mode, MountRequest, Scene, Subject};
use crate::edits::Maker;
use crate::fs_type::FsType;
use crate::oracle::btrfs;
use crate::workload::{Abilities, Durability};

const SINGLE: &[&str] = &["-m", "single"];
const SMALL_NODES: &[&str] = &["-m", "single", "-n", "4096", "--csum", "xxhash"];
const HOLES: &[&str] = &["-m", "single", "-O", "^no-holes"];
const MIXED: &[&str] = &["--mixed", "-n", "4096"];
const DUP: &[&str] = &["-m", "dup", "--csum", "sha256"];
const RAID5: &[&str] = &["-m", "raid5", "-d", "raid5"];
const RAID6: &[&str] = &["-m", "raid6", "-d", "raid6", "-n", "4096"];
const RAID1: &[&str] = &["-m", "raid1", "-d", "raid1"];

/// All scenes of btrfs.
pub(super) const SCENES: &[Scene] = &[
    scene_of("btrfs", SINGLE, 1, 64),
    Scene {
        subject: &BtrfsSubject {
            compresses: true,
            syncs_files: false,
        },
        ..scene_of("btrfs_zstd", HOLES, 1, 64)
    },
    Scene {
        subject: &BtrfsSubject {
            compresses: false,
            syncs_files: true,
        },
        ..scene_of("btrfs_log", SINGLE, 1, 64)
    },
    scene_of("btrfs_4k", SMALL_NODES, 1, 64),
    scene_of("btrfs_mixed", MIXED, 1, 32),
    scene_of("btrfs_dup", DUP, 1, 128),
    scene_of("btrfs_raid1", RAID1, 2, 128),
    scene_of("btrfs_raid5", RAID5, 3, 128),
    scene_of("btrfs_raid6", RAID6, 4, 128),
];

const fn scene_of(
    name: &'static str,
    options: &'static [&'static str],
    members: usize,
    size_mib: u64,
) -> Scene {
    Scene {
        name,
        mode: Mode::Btrfs,
        subject: &BtrfsSubject {
            compresses: false,
            syncs_files: false,
        },
        options,
        members,
        size_kib: size_mib << 10,
    }
}

/// The btrfs driver with btrfs-progs and the kernel's btrfs.
#[derive(Debug, Clone, Copy)]
pub struct BtrfsSubject {
    /// `compress-force=zstd`.
    pub compresses: bool,
    /// Syncs are mostly of single files and directories.
    pub syncs_files: bool,
}

impl Subject for BtrfsSubject {
    fn fs_type(&self) -> FsType {
        FsType::Btrfs
    }

    fn durability(&self, _: &Scene) -> Durability {
        Durability::Logged
    }

    fn abilities(&self, _: &Scene) -> Abilities {
        Abilities {
            fallocate: true,
            copies: true,
            clones: true,
            ..Abilities::default()
        }
    }

    fn one_whole_sync_in(&self) -> u64 {
        if self.syncs_files { 40 } else { 5 }
    }

    fn has_file_log(&self, devices: &[Arc<dyn BlockDevice>]) -> Result<bool> {
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let clock = Arc::new(SystemClock::new());
        let mounted = Btrfs::mount(devices, &MountOptions::default(), budget, clock)?;
        Ok(mounted.superblock().log_root.is_some())
    }

    /// Of a superblock that is torn, no other copy is looked for.
    fn sector_bytes(&self) -> u32 {
        4096
    }

    fn make(&self, scene: &Scene, images: &[&Path], size_kib: u64) -> Result<()> {
        btrfs::make(images, size_kib, scene.options)
    }

    fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        let mut options = MountOptions::default();
        if self.compresses {
            options.data.compression = Method::parse("zstd");
            options.data.is_forced = true;
        }
        let (budget, clock) = (request.budget, request.clock);
        let mounted = if request.read_only {
            Btrfs::mount(devices, &options, budget, clock)?
        } else {
            Btrfs::mount_writable(devices, &options, budget, clock)?
        };
        Ok(Arc::new(mounted))
    }

    fn check(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
        sink: &mut dyn CheckSink,
    ) -> platter_vfs::Result<()> {
        let options = MountOptions::default();
        Btrfs::check(devices, &options, &request.budget, sink)?;
        Ok(())
    }

    fn repair(&self, _: &[&Path]) -> Result<()> {
        bail!("what a commit leaves needs no repair")
    }

    /// An edit is of one image here, without options of a mount.
    fn edit_maker(&self, scene: &Scene) -> Option<Maker> {
        (scene.members == 1).then_some(Maker::Btrfs(scene.options))
    }
}
