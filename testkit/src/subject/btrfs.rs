//! btrfs with btrfs-progs.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use platter_block::{Access, BlockDevice};
use platter_btrfs::ondisk::TreeId;
use platter_btrfs::ondisk::header::{DiskHeader, Header, HeaderFlags};
use platter_btrfs::ondisk::superblock::SUPERBLOCK_OFFSETS;
use platter_btrfs::txn::{WriteOptions, convert};
use platter_btrfs::{Btrfs, Method, MountOptions, open_for_writing};
use platter_cache::MemoryBudget;
use platter_vfs::{CheckSink, Filesystem, SystemClock};
use zerocopy::FromBytes;

use super::pristine::open_images;
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
const RAID1: &[&str] = &["-m", "raid1", "-d", "raid1"];
const RAID1C3: &[&str] = &["-m", "raid1c3", "-d", "raid1c3", "--csum", "blake2"];
const RAID5: &[&str] = &["-m", "raid5", "-d", "raid5"];
const RAID6: &[&str] = &["-m", "raid6", "-d", "raid6", "-n", "4096"];
const RAID10: &[&str] = &["-m", "raid10", "-d", "raid10"];

/// All scenes of btrfs.
pub(super) const SCENES: &[Scene] = &[
    scene_of("btrfs", Mode::Btrfs, SINGLE, 1, 64),
    Scene {
        subject: &BtrfsSubject {
            data: Data::Compressed,
            ..PLAIN
        },
        ..scene_of("btrfs_zstd", Mode::Btrfs, HOLES, 1, 64)
    },
    Scene {
        subject: &BtrfsSubject {
            data: Data::InPlace,
            ..PLAIN
        },
        ..scene_of("btrfs_nodatacow", Mode::Btrfs, SINGLE, 1, 64)
    },
    Scene {
        subject: &BtrfsSubject {
            syncs_files: true,
            ..PLAIN
        },
        ..scene_of("btrfs_log", Mode::BtrfsLog, SINGLE, 1, 64)
    },
    Scene {
        subject: &BtrfsSubject {
            has_group_tree: true,
            ..PLAIN
        },
        ..scene_of("btrfs_groups", Mode::Btrfs, SINGLE, 1, 64)
    },
    scene_of("btrfs_4k", Mode::Btrfs, SMALL_NODES, 1, 64),
    scene_of("btrfs_mixed", Mode::Btrfs, MIXED, 1, 32),
    scene_of("btrfs_dup", Mode::BtrfsCopies, DUP, 1, 128),
    scene_of("btrfs_raid1", Mode::BtrfsCopies, RAID1, 2, 128),
    scene_of("btrfs_raid1c3", Mode::BtrfsStripes, RAID1C3, 3, 128),
    scene_of("btrfs_raid5", Mode::BtrfsStripes, RAID5, 3, 128),
    scene_of("btrfs_raid6", Mode::BtrfsStripes, RAID6, 4, 128),
    scene_of("btrfs_raid10", Mode::BtrfsStripes, RAID10, 4, 128),
];

const fn scene_of(
    name: &'static str,
    mode: Mode,
    options: &'static [&'static str],
    members: usize,
    size_mib: u64,
) -> Scene {
    Scene {
        name,
        mode,
        subject: &PLAIN,
        options,
        members,
        size_kib: size_mib << 10,
    }
}

const PLAIN: BtrfsSubject = BtrfsSubject {
    data: Data::Plain,
    syncs_files: false,
    has_group_tree: false,
};

/// What a write is of, in the order of a commit. Delayed references end in the trees of extents, checksums, free space
/// and block groups. Where there is parity, it counts as data.
const DATA: &str = "data";
const FILES: &str = "files";
const REFERENCES: &str = "delayed references";
const ROOTS: &str = "roots";
const SUPERBLOCK: &str = "superblock";
/// What a sync writes instead.
const LOGS: &str = "log trees";

/// How contents are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    /// As they are, to new blocks.
    Plain,
    /// `compress-force=zstd`.
    Compressed,
    /// `nodatacow`.
    InPlace,
}

/// The btrfs driver with btrfs-progs and the kernel's btrfs.
#[derive(Debug, Clone, Copy)]
pub struct BtrfsSubject {
    /// How contents are written.
    data: Data,
    /// Syncs are mostly of single files and directories.
    syncs_files: bool,
    /// Block groups have a tree of their own.
    has_group_tree: bool,
}

/// Moves block groups to a tree of their own: `mkfs.btrfs` 6.2 makes none.
fn convert_to_group_tree(images: &[&Path]) -> Result<()> {
    let devices = open_images(images, Access::Write)?;
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    let (options, writing) = (MountOptions::default(), WriteOptions::default());
    let mut opened = open_for_writing(&devices, &options, writing, &budget, clock)?;
    Ok(convert::to_block_group_tree(&mut opened)?)
}

impl Subject for BtrfsSubject {
    fn fs_type(&self) -> FsType {
        FsType::Btrfs
    }

    /// On several devices there are no log trees: what is synced is a commit.
    fn durability(&self, scene: &Scene) -> Durability {
        if scene.members == 1 {
            Durability::Logged
        } else {
            Durability::Journaled
        }
    }

    fn abilities(&self, _: &Scene) -> Abilities {
        Abilities {
            fallocate: true,
            copies: true,
            clones: true,
            subvolumes: true,
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

    fn kind_of_write(&self, offset: u64, data: &[u8]) -> &'static str {
        if SUPERBLOCK_OFFSETS.contains(&offset) {
            return SUPERBLOCK;
        }
        let Ok((disk, _)) = DiskHeader::ref_from_prefix(data) else {
            return DATA;
        };
        let header = Header::decode(disk);
        if header.flags != HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF {
            return DATA;
        }
        match header.owner {
            TreeId::ROOT => ROOTS,
            TreeId::EXTENT | TreeId::CSUM | TreeId::FREE_SPACE | TreeId::BLOCK_GROUP => REFERENCES,
            TreeId::CHUNK | TreeId::DEV => "chunks",
            TreeId::TREE_LOG => LOGS,
            _ => FILES,
        }
    }

    fn kinds_of_writes(&self, scene: &Scene) -> Vec<&'static str> {
        let mut kinds = vec![DATA, FILES, REFERENCES, ROOTS, SUPERBLOCK];
        if self.durability(scene) == Durability::Logged {
            kinds.push(LOGS);
        }
        kinds
    }

    fn compresses(&self) -> bool {
        self.data == Data::Compressed
    }

    /// Of a superblock that is torn, no other copy is looked for.
    fn sector_bytes(&self) -> u32 {
        4096
    }

    fn make(&self, scene: &Scene, images: &[&Path], size_kib: u64) -> Result<()> {
        btrfs::make(images, size_kib, scene.options)?;
        if self.has_group_tree {
            convert_to_group_tree(images)?;
        }
        Ok(())
    }

    fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        let mut options = MountOptions::default();
        match self.data {
            Data::Plain => {}
            Data::Compressed => {
                options.data.compression = Method::parse("zstd");
                options.data.is_forced = true;
            }
            Data::InPlace => options.data.in_place = true,
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
