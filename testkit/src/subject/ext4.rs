//! ext2, ext3 and ext4 with e2fsprogs.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ext4::recovery::open_journal;
use platter_ext4::{Ext4, MountOptions, Recovery};
use platter_vfs::{CheckSink, Filesystem, FixedClock, Timestamp};

use super::{LogArea, Mode, MountRequest, Scene, Subject};
use crate::edits::Maker;
use crate::fs_type::FsType;
use crate::oracle::{e2fsck, mke2fs};
use crate::workload::{Abilities, Durability};

/// What contents are moved by: a multiple of every block and every cluster here.
const SHIFT_BYTES: u64 = 4096;
/// The first bytes of a block that ends a transaction in the journal. Spec: `ext4/journal`.
const COMMIT_BLOCK: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];

const E1K: &[&str] = &["-t", "ext4", "-b", "1024"];
const E2K: &[&str] = &["-t", "ext4", "-b", "2048", "-O", "^64bit"];
const E4K: &[&str] = &["-t", "ext4", "-b", "4096"];
const PLAIN: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"];
const BIGALLOC: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"];
const INLINE: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "inline_data"];
const ORPHAN_FILE: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "orphan_file"];
const INLINE_ORPHAN_FILE: &[&str] = &["-t", "ext4", "-b", "4096", "-O", "inline_data,orphan_file"];

/// All scenes of ext2, ext3 and ext4.
pub(super) const SCENES: &[Scene] = &[
    scene_of("ext4", Mode::Ordered, E1K),
    scene_of("ext4_4k", Mode::Ordered, E4K),
    scene_of("ext4_2k", Mode::Ordered, E2K),
    scene_of("ext4_plain", Mode::Ordered, PLAIN),
    scene_of("ext4_bigalloc", Mode::Ordered, BIGALLOC),
    scene_of("ext4_inline", Mode::Ordered, INLINE),
    scene_of("ext4_orphan_file", Mode::Ordered, ORPHAN_FILE),
    scene_of("ext4_data_journal", Mode::Journal, E1K),
    scene_of("ext4_data_journal_4k", Mode::Journal, E4K),
    scene_of("ext4_data_journal_plain", Mode::Journal, PLAIN),
    scene_of("ext4_data_journal_bigalloc", Mode::Journal, BIGALLOC),
    scene_of(
        "ext4_data_journal_inline_orphan_file",
        Mode::Journal,
        INLINE_ORPHAN_FILE,
    ),
    scene_of("ext4_data_writeback", Mode::Writeback, E1K),
    scene_of("ext4_data_writeback_4k", Mode::Writeback, E4K),
    scene_of("ext4_data_writeback_bigalloc", Mode::Writeback, BIGALLOC),
    scene_of(
        "ext4_data_writeback_inline_orphan_file",
        Mode::Writeback,
        INLINE_ORPHAN_FILE,
    ),
    scene_of("ext3", Mode::Ext3, &["-t", "ext3", "-b", "1024"]),
    scene_of("ext3_2k", Mode::Ext3, &["-t", "ext3", "-b", "2048"]),
    scene_of("ext3_4k", Mode::Ext3, &["-t", "ext3", "-b", "4096"]),
    scene_of("ext2", Mode::Unjournaled, &["-t", "ext2", "-b", "1024"]),
    scene_of("ext2_2k", Mode::Unjournaled, &["-t", "ext2", "-b", "2048"]),
    scene_of("ext2_4k", Mode::Unjournaled, &["-t", "ext2", "-b", "4096"]),
];

const fn scene_of(name: &'static str, mode: Mode, options: &'static [&'static str]) -> Scene {
    let size_kib = if matches!(mode, Mode::Unjournaled) {
        8 << 10
    } else {
        12 << 10
    };
    Scene {
        name,
        mode,
        subject: &Ext4Subject,
        options,
        members: 1,
        size_kib,
    }
}

/// The ext4 driver, compared with e2fsprogs and the kernel's ext4.
#[derive(Debug, Clone, Copy)]
pub struct Ext4Subject;

impl Subject for Ext4Subject {
    fn fs_type(&self) -> FsType {
        FsType::Ext4
    }

    fn durability(&self, scene: &Scene) -> Durability {
        if scene.mode == Mode::Unjournaled {
            Durability::Synced
        } else {
            Durability::Journaled
        }
    }

    /// Space can be allocated, and holes made, where files have extents.
    fn abilities(&self, scene: &Scene) -> Abilities {
        let has_extents = scene.options.contains(&"ext4");
        Abilities {
            fallocate: has_extents,
            copies: true,
            shift_bytes: if has_extents { SHIFT_BYTES } else { 0 },
            ..Abilities::default()
        }
    }

    /// The superblock is of this size, and the format knows no remedy for a torn one.
    fn sector_bytes(&self) -> u32 {
        1024
    }

    fn make(&self, scene: &Scene, images: &[&Path], size_kib: u64) -> Result<()> {
        let image = single(images)?;
        let mut options = scene.options.to_vec();
        options.extend(["-N", "256"]);
        if self.durability(scene) == Durability::Journaled {
            let size = if options.contains(&"4096") && !options.contains(&"bigalloc") {
                "size=4"
            } else {
                "size=2"
            };
            options.extend(["-J", size]);
        }
        mke2fs::make(image, size_kib, &options, None)?;
        let tunings = [
            (Mode::Journal, "journal_data"),
            (Mode::Writeback, "journal_data_writeback"),
        ];
        for (_, tuning) in tunings.iter().filter(|(mode, _)| *mode == scene.mode) {
            mke2fs::tune(image, &["-o", tuning])?;
        }
        Ok(())
    }

    fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        Ok(Arc::new(open(devices, request)?))
    }

    fn check(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
        sink: &mut dyn CheckSink,
    ) -> platter_vfs::Result<()> {
        open(devices, request)?.check(sink);
        Ok(())
    }

    fn log_area(&self, device: &Arc<dyn BlockDevice>) -> Result<Option<LogArea>> {
        let request = MountRequest {
            read_only: true,
            budget: Arc::new(MemoryBudget::new(8 << 20)),
            clock: Arc::new(FixedClock::new(Timestamp::default(), 1)),
        };
        let ext4 = open(std::slice::from_ref(device), request)?;
        let volume = ext4.fs();
        if !volume.geometry.features.has_journal() {
            return Ok(None);
        }
        let block_bytes = u64::from(volume.geometry.block_bytes);
        let journal = open_journal(volume, None)?;
        let places = journal.map().places().into_iter();
        let bytes = places.map(|place| place.start * block_bytes..place.end * block_bytes);
        Ok(Some(LogArea {
            ranges: bytes.collect(),
            block_bytes,
            is_commit: |block| block.starts_with(&COMMIT_BLOCK),
        }))
    }

    /// By `e2fsck`, which replays the journal and checks everything.
    fn recover(&self, images: &[&Path]) -> Result<Vec<String>> {
        let image = single(images)?;
        let lines = e2fsck::recover(image)?;
        if e2fsck::begins_with_cut_commit(&lines) {
            return self.after_errors(images, &lines[1..]);
        }
        Ok(lines)
    }

    /// Lines about orphans are no errors, which are left where there were errors. When they are freed,
    /// nothing may be wrong.
    fn after_errors(&self, images: &[&Path], lines: &[String]) -> Result<Vec<String>> {
        if lines.is_empty() || e2fsck::are_of_orphans(lines) {
            return Ok(e2fsck::check(single(images)?)?.complaints());
        }
        Ok(lines.to_vec())
    }

    fn repair(&self, images: &[&Path]) -> Result<()> {
        let image = single(images)?;
        e2fsck::repair(image, &["-fy"])?;
        let left = e2fsck::check(image)?.complaints();
        ensure!(left.is_empty(), "e2fsck -fy left: {}", left.join("\n"));
        Ok(())
    }

    fn edit_maker(&self, scene: &Scene) -> Option<Maker> {
        Some(Maker::Ext(scene.options))
    }
}

fn single<'i>(images: &[&'i Path]) -> Result<&'i Path> {
    ensure!(images.len() == 1, "an ext4 has one device");
    images.first().copied().context("no image")
}

fn open(devices: &[Arc<dyn BlockDevice>], request: MountRequest) -> platter_vfs::Result<Ext4> {
    let options = MountOptions {
        read_only: request.read_only,
        recovery: if request.read_only {
            MountOptions::default().recovery
        } else {
            Recovery::OnDevice
        },
        ..MountOptions::default()
    };
    let device = Arc::clone(&devices[0]);
    Ext4::mount(device, &options, request.budget, request.clock)
}
