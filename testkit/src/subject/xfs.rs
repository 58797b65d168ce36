//! XFS with xfsprogs.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use platter_block::{Access, BlockDevice};
use platter_cache::MemoryBudget;
use platter_vfs::{CheckSink, Clock, Filesystem, FixedClock, Timestamp};
use platter_xfs::ondisk::Geometry;
use platter_xfs::{MountOptions, Preallocation, Xfs};

use super::pristine::open_images;
use super::{Mode, MountRequest, Scene, Subject};
use crate::edits::Maker;
use crate::fs_type::FsType;
use crate::loopdev;
use crate::oracle::xfs;
use crate::workload::{Abilities, Durability, Operation};

/// What contents are moved by: a multiple of the blocks of most scenes, and of the longest.
const SHIFT_BYTES: u64 = 4096;
const LONG_SHIFT_BYTES: u64 = 16384;

const DEFAULT: &[&str] = &["-d", "agcount=2"];
const RMAP: &[&str] = &["-d", "agcount=2", "-m", "rmapbt=1"];
const SMALL_BLOCKS: &[&str] = &["-d", "agcount=2", "-b", "size=1024", "-m", "rmapbt=1"];
const PLAIN: &[&str] = &[
    "-d",
    "agcount=2",
    "-m",
    "finobt=0,reflink=0,bigtime=0",
    "-i",
    "sparse=0",
];
const LARGE_DIRECTORIES: &[&str] = &["-d", "agcount=2", "-n", "size=16384", "-m", "rmapbt=1"];
const LONG_SECTORS: &[&str] = &["-d", "agcount=2", "-s", "size=4096"];
const LONG_BLOCKS: &[&str] = &["-d", "agcount=2", "-b", "size=16384", "-m", "reflink=0"];
const STRIPE: &[&str] = &["-d", "agcount=2", "-l", "su=32k", "-i", "nrext64=1"];
const WIDE_STRIPE: &[&str] = &["-d", "agcount=2", "-l", "su=256k"];
/// The shortest log that `mkfs.xfs` makes with these features.
const SHORT_LOG: &[&str] = &[
    "-d",
    "agcount=2",
    "-m",
    "finobt=0,reflink=0",
    "-l",
    "size=857b",
];
const EXTERNAL_LOG: &[&str] = &["-d", "agcount=2", "-l", "size=1368b"];

/// What a write is of: a record of the log, also of one that begins again at the start of the log, metadata written back
/// to its place, or contents.
const LOG: &str = "log";
const WRAPPED_LOG: &str = "wrapped log";
const METADATA: &str = "metadata";
const DATA: &str = "data";
/// `XLOG_HEADER_MAGIC_NUM`, which the number of the cycle follows, and that of a new log.
const RECORD_MAGIC: u32 = 0xfeed_babe;
const FIRST_CYCLE: u32 = 1;
/// What blocks and sectors of metadata begin with: superblocks, groups, their trees, those of attributes and extents, blocks
/// of directories, and targets of links.
const METADATA_MAGICS: [&[u8; 4]; 14] = [
    b"XFSB", b"XAGF", b"XAGI", b"XAFL", b"AB3B", b"AB3C", b"IAB3", b"FIB3", b"RMB3", b"R3FC",
    b"BMA3", b"XDB3", b"XDD3", b"XSLM",
];
const INODE_MAGIC: &[u8; 2] = b"IN";

/// Of a log that wraps, so much is left before its end: less than the changes of a workload take.
const BEFORE_END_BYTES: u64 = 16 << 10;
/// Of a log that is short, so much is in use at most: less than the changes of a workload take, so that metadata is
/// written back.
const IN_USE_BYTES: u64 = 56 << 10;
/// What a change of the way there takes at least.
const CHANGE_BYTES: u64 = 1 << 10;

/// All scenes of XFS.
pub(super) const SCENES: &[Scene] = &[
    scene_of("xfs", Mode::Xfs, DEFAULT),
    Scene {
        subject: &WRITES_BACK,
        ..scene_of("xfs_rmap", Mode::Xfs, RMAP)
    },
    scene_of("xfs_1k", Mode::Xfs, SMALL_BLOCKS),
    Scene {
        subject: &WRITES_BACK,
        ..scene_of("xfs_plain", Mode::Xfs, PLAIN)
    },
    scene_of("xfs_stripe", Mode::XfsLog, STRIPE),
    scene_of("xfs_dirs", Mode::Xfs, LARGE_DIRECTORIES),
    Scene {
        size_kib: 64 << 10,
        ..scene_of("xfs_stripe_256k", Mode::XfsLog, WIDE_STRIPE)
    },
    Scene {
        subject: &WRAPS,
        members: 2,
        ..scene_of("xfs_logdev", Mode::XfsLog, EXTERNAL_LOG)
    },
    Scene {
        subject: &WRAPS,
        ..scene_of("xfs_wrap", Mode::XfsLog, SHORT_LOG)
    },
    Scene {
        subject: &GROWS,
        ..scene_of("xfs_allocsize", Mode::Xfs, RMAP)
    },
    scene_of("xfs_sectors", Mode::Xfs, LONG_SECTORS),
    Scene {
        size_kib: 128 << 10,
        ..scene_of("xfs_16k", Mode::Xfs, LONG_BLOCKS)
    },
];

/// A scene that is in no list: blocks are torn while they are written back, which only platter knows a remedy for.
pub static TORN_XFS: Scene = Scene {
    subject: &XfsSubject {
        tears: true,
        ..WRITES_BACK
    },
    ..scene_of("xfs_torn", Mode::Xfs, LARGE_DIRECTORIES)
};

const USUAL: XfsSubject = XfsSubject {
    wraps: false,
    is_short: false,
    tears: false,
    preallocation: Preallocation::Dynamic,
};
const WRITES_BACK: XfsSubject = XfsSubject {
    is_short: true,
    ..USUAL
};
const WRAPS: XfsSubject = XfsSubject {
    wraps: true,
    ..WRITES_BACK
};
/// Files get blocks beyond their end with each block that they grow by.
const GROWS: XfsSubject = XfsSubject {
    preallocation: Preallocation::Fixed(32 << 10),
    ..USUAL
};

const fn scene_of(name: &'static str, mode: Mode, options: &'static [&'static str]) -> Scene {
    Scene {
        name,
        mode,
        subject: &USUAL,
        options,
        members: 1,
        size_kib: 32 << 10,
    }
}

/// The XFS driver, compared with xfsprogs and the kernel's XFS. A second device is an external log.
#[derive(Debug, Clone, Copy)]
pub struct XfsSubject {
    /// The log begins near its end.
    wraps: bool,
    /// Little of the log is in use, so that its tail is pushed all the time.
    is_short: bool,
    /// Blocks that are written back are torn, too.
    tears: bool,
    /// What files get beyond their end when they grow.
    preallocation: Preallocation,
}

impl XfsSubject {
    fn options(self, devices: &[Arc<dyn BlockDevice>]) -> MountOptions {
        MountOptions {
            log: devices.get(1).cloned(),
            log_bytes_max: self.is_short.then_some(IN_USE_BYTES),
            preallocation: self.preallocation,
            ..MountOptions::default()
        }
    }

    /// Changes the root directory until the log is near its end.
    fn move_to_the_end(self, images: &[&Path]) -> Result<()> {
        let devices = open_images(images, Access::Write)?;
        let superblock = Xfs::identify(&*devices[0])?;
        let end = u64::from(superblock.log_blocks) << Geometry::new(&superblock).block_bits;
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
        let mut before = 0;
        loop {
            let (budget, clock) = (Arc::clone(&budget), Arc::clone(&clock));
            let (data, options) = (Arc::clone(&devices[0]), self.options(&devices));
            let fs = Xfs::mount_writable(data, &options, budget, clock)?;
            let head = fs.recovery().map_or(0, |found| found.position.head);
            let head = u64::from(head) * 512;
            ensure!(head >= before, "the log wrapped on the way to its end");
            before = head;
            let missing = end.saturating_sub(head + BEFORE_END_BYTES);
            if missing == 0 {
                return Ok(fs.unmount()?);
            }
            // Mounts write to the log, too. After an even number of changes all is as it was.
            for number in 0..(missing / CHANGE_BYTES / 4).max(1) * 2 {
                let permissions = if number % 2 == 0 { 0o700 } else { 0o755 };
                Operation::SetPermissions(String::new(), permissions).apply(&fs)?;
                fs.sync()?;
            }
            fs.unmount()?;
        }
    }
}

impl Subject for XfsSubject {
    fn fs_type(&self) -> FsType {
        FsType::Xfs
    }

    fn durability(&self, _: &Scene) -> Durability {
        Durability::Journaled
    }

    fn abilities(&self, scene: &Scene) -> Abilities {
        Abilities {
            fallocate: true,
            copies: true,
            clones: !scene.options.concat().contains("reflink=0"),
            shift_bytes: if scene.options == LONG_BLOCKS {
                LONG_SHIFT_BYTES
            } else {
                SHIFT_BYTES
            },
            ..Abilities::default()
        }
    }

    /// The kernel takes a block that was torn while it was written back for newer than the log: what is written back here
    /// has blocks of this size, which lie at multiples of it.
    fn sector_bytes(&self) -> u32 {
        if self.is_short && !self.tears {
            4096
        } else {
            512
        }
    }

    fn recover(&self, images: &[&Path]) -> Result<Vec<String>> {
        if self.tears {
            let devices = open_images(images, Access::Write)?;
            let (data, options) = (Arc::clone(&devices[0]), self.options(&devices));
            let budget = Arc::new(MemoryBudget::new(8 << 20));
            let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
            Xfs::mount_writable(data, &options, budget, clock)?.unmount()?;
        } else {
            let mount = self.kernel_mount(images, "", loopdev::Access::ReadWrite)?;
            mount.unmount_all(images)?;
        }
        Ok(self.fsck(images)?.complaints())
    }

    fn kind_of_write(&self, _: u64, data: &[u8]) -> &'static str {
        let Some((magic, rest)) = data.split_first_chunk::<4>() else {
            return DATA;
        };
        if u32::from_be_bytes(*magic) == RECORD_MAGIC {
            let cycle = rest.first_chunk().map(|cycle| u32::from_be_bytes(*cycle));
            return if cycle > Some(FIRST_CYCLE) {
                WRAPPED_LOG
            } else {
                LOG
            };
        }
        if METADATA_MAGICS.contains(&magic) || magic.starts_with(INODE_MAGIC) {
            METADATA
        } else {
            DATA
        }
    }

    fn kinds_of_writes(&self, _: &Scene) -> Vec<&'static str> {
        let mut kinds = vec![LOG, DATA];
        if self.is_short {
            kinds.push(METADATA);
        }
        if self.wraps {
            kinds.push(WRAPPED_LOG);
        }
        kinds
    }

    fn make(&self, scene: &Scene, images: &[&Path], size_kib: u64) -> Result<()> {
        let (data, log) = data_and_log(images)?;
        let mut options = scene.options.to_vec();
        let named;
        if let Some(log) = log {
            File::create(log)?.set_len(size_kib * 1024)?;
            named = format!("logdev={}", log.display());
            options.extend(["-l", &named]);
        }
        xfs::make(data, size_kib, &options)?;
        if self.wraps {
            self.move_to_the_end(images)?;
        }
        Ok(())
    }

    fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        let (device, options) = (Arc::clone(&devices[0]), self.options(devices));
        if request.read_only {
            return Ok(Arc::new(Xfs::mount(device, &options, request.budget)?));
        }
        let (budget, clock) = (request.budget, request.clock);
        Ok(Arc::new(Xfs::mount_writable(
            device, &options, budget, clock,
        )?))
    }

    fn check(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
        sink: &mut dyn CheckSink,
    ) -> platter_vfs::Result<()> {
        let options = self.options(devices);
        platter_xfs::check::check(&devices[0], &options, &request.budget, sink)?;
        Ok(())
    }

    fn repair(&self, _: &[&Path]) -> Result<()> {
        bail!("what a log leaves needs no repair")
    }

    /// An edit is of one image here, without options of a mount.
    fn edit_maker(&self, scene: &Scene) -> Option<Maker> {
        (scene.members == 1).then_some(Maker::Xfs(scene.options))
    }
}

fn data_and_log<'i>(images: &[&'i Path]) -> Result<(&'i Path, Option<&'i Path>)> {
    match *images {
        [data] => Ok((data, None)),
        [data, log] => Ok((data, Some(log))),
        _ => bail!("an XFS has a data device and a log"),
    }
}
