//! The filesystems that are cut: how they are made, and what they promise.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions, Recovery};
use platter_vfs::{CheckSink, Filesystem, Finding, FixedClock, Timestamp};

use super::pristine::Pristine;
use crate::oracle::mke2fs;
use crate::workload::Durability;

/// Cache of one mount.
const CACHE_BYTES: u64 = 8 << 20;
/// When everything happens.
const NOW: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanoseconds: 0,
};
/// Findings of a check that are told.
const FINDINGS_MAX: usize = 6;

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
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Ordered,
        Self::Journal,
        Self::Writeback,
        Self::Ext3,
        Self::Unjournaled,
    ];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Journal => "journal",
            Self::Writeback => "writeback",
            Self::Ext3 => "ext3",
            Self::Unjournaled => "unjournaled",
        }
    }

    /// The filesystems that are in it.
    pub fn scenes(self) -> impl Iterator<Item = &'static Scene> {
        SCENES.iter().filter(move |scene| scene.mode == self)
    }
}

/// One way to make a filesystem.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// What it is called.
    pub name: &'static str,
    /// How it treats data.
    pub mode: Mode,
    /// Options of `mke2fs`.
    pub options: &'static [&'static str],
    /// Its size.
    pub size_kib: u64,
}

const E1K: &[&str] = &["-t", "ext4", "-b", "1024"];
const E2K: &[&str] = &["-t", "ext4", "-b", "2048", "-O", "^64bit"];
const E4K: &[&str] = &["-t", "ext4", "-b", "4096"];
const PLAIN: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"];
const BIGALLOC: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"];
const INLINE: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "inline_data"];
const ORPHAN_FILE: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "orphan_file"];
const INLINE_ORPHAN_FILE: &[&str] = &["-t", "ext4", "-b", "4096", "-O", "inline_data,orphan_file"];

/// All of them; the first of each generation stands for it where one must do.
pub const SCENES: &[Scene] = &[
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
    let size_kib = match mode {
        Mode::Unjournaled => 8 << 10,
        Mode::Ordered | Mode::Journal | Mode::Writeback | Mode::Ext3 => 12 << 10,
    };
    Scene {
        name,
        mode,
        options,
        size_kib,
    }
}

/// The scene of that name.
pub fn scene(name: &str) -> Result<&'static Scene> {
    let found = SCENES.iter().find(|scene| scene.name == name);
    found.with_context(|| format!("no scene is called {name}"))
}

impl Scene {
    /// What it keeps without being asked.
    #[must_use]
    pub fn durability(&self) -> Durability {
        match self.mode {
            Mode::Ordered | Mode::Journal | Mode::Writeback | Mode::Ext3 => Durability::Journaled,
            Mode::Unjournaled => Durability::Synced,
        }
    }

    /// A new filesystem, which takes no writes.
    pub fn image(&self) -> Result<Arc<dyn BlockDevice>> {
        self.image_of(self.size_kib)
    }

    /// A new filesystem of another size, which takes no writes.
    pub fn image_of(&self, size_kib: u64) -> Result<Arc<dyn BlockDevice>> {
        static MADE: Mutex<BTreeMap<(&str, u64), Arc<Pristine>>> = Mutex::new(BTreeMap::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = made.get(&(self.name, size_kib)) {
            return Ok(image.clone());
        }
        let image = Arc::new(Pristine::new(self.make(size_kib)?));
        made.insert((self.name, size_kib), Arc::clone(&image));
        Ok(image)
    }

    /// A new filesystem of that size, whose changes are kept in memory.
    pub fn device_of(&self, size_kib: u64) -> Result<Arc<dyn BlockDevice>> {
        let image = self.image_of(size_kib)?;
        Ok(Arc::new(OverlayDevice::new(
            image,
            OverlayOptions::default(),
        )))
    }

    /// The bytes of a new filesystem.
    fn make(&self, size_kib: u64) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new()?;
        let mut options = self.options.to_vec();
        options.extend(["-N", "256"]);
        if self.durability() == Durability::Journaled {
            let size = if self.options.contains(&"4096") && !self.options.contains(&"bigalloc") {
                "size=4"
            } else {
                "size=2"
            };
            options.extend(["-J", size]);
        }
        mke2fs::make(file.path(), size_kib, &options, None)?;
        let tuning = match self.mode {
            Mode::Journal => Some("journal_data"),
            Mode::Writeback => Some("journal_data_writeback"),
            Mode::Ordered | Mode::Ext3 | Mode::Unjournaled => None,
        };
        if let Some(tuning) = tuning {
            mke2fs::tune(file.path(), &["-o", tuning])?;
        }
        Ok(std::fs::read(file.path())?)
    }

    /// Whether space can be taken for files, and holes made in them: where files have extents.
    #[must_use]
    pub fn takes_space(&self) -> bool {
        self.options.contains(&"ext4")
    }

    /// Mounts for reading and writing; a journal is replayed onto the device.
    pub fn mount(
        &self,
        device: Arc<dyn BlockDevice>,
        seed: u64,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        let options = MountOptions {
            read_only: false,
            recovery: Recovery::OnDevice,
            ..MountOptions::default()
        };
        Ok(Arc::new(open(device, &options, seed)?))
    }

    /// Mounts for reading a device that needs no replay.
    pub fn mount_to_read(&self, device: Arc<dyn BlockDevice>) -> platter_vfs::Result<Ext4> {
        open(device, &MountOptions::default(), 0)
    }

    /// What our check finds on a device; nothing is well.
    pub fn check(&self, device: Arc<dyn BlockDevice>) -> platter_vfs::Result<Vec<String>> {
        let mut findings = Findings(Vec::new());
        open(device, &MountOptions::default(), 0)?.check(&mut findings);
        Ok(findings.0)
    }
}

fn open(
    device: Arc<dyn BlockDevice>,
    options: &MountOptions,
    seed: u64,
) -> platter_vfs::Result<Ext4> {
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    let clock = Arc::new(FixedClock::new(NOW, seed));
    Ext4::mount(device, options, budget, clock)
}

struct Findings(Vec<String>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> std::ops::ControlFlow<()> {
        if finding.severity != platter_vfs::Severity::Notice && self.0.len() < FINDINGS_MAX {
            self.0.push(finding.corruption.to_string());
        }
        std::ops::ControlFlow::Continue(())
    }
}
