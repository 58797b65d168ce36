//! The filesystems that are cut: how they are made, and what they promise.

use std::sync::Arc;

use anyhow::{Context, Result};
use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions, Recovery};
use platter_vfs::{CheckSink, Filesystem, Finding, FixedClock, Timestamp};

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

/// One way to make a filesystem.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// What it is called.
    pub name: &'static str,
    /// Options of `mke2fs`.
    pub options: &'static [&'static str],
    /// Options of `tune2fs`, after that.
    pub tuning: &'static [&'static str],
    /// Its size.
    pub size_kib: u64,
    /// What it keeps without being asked.
    pub durability: Durability,
}

/// All of them; the first of each generation stands for it where one must do.
pub const SCENES: &[Scene] = &[
    journaled("ext4", &["-t", "ext4", "-b", "1024"]),
    journaled("ext4_4k", &["-t", "ext4", "-b", "4096"]),
    journaled("ext4_2k", &["-t", "ext4", "-b", "2048", "-O", "^64bit"]),
    journaled(
        "ext4_plain",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    journaled(
        "ext4_bigalloc",
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"],
    ),
    journaled(
        "ext4_inline",
        &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
    ),
    journaled(
        "ext4_orphan_file",
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
    ),
    Scene {
        tuning: &["-o", "journal_data"],
        ..journaled("ext4_data_journal", &["-t", "ext4", "-b", "1024"])
    },
    Scene {
        tuning: &["-o", "journal_data_writeback"],
        ..journaled("ext4_data_writeback", &["-t", "ext4", "-b", "1024"])
    },
    journaled("ext3", &["-t", "ext3", "-b", "1024"]),
    journaled("ext3_4k", &["-t", "ext3", "-b", "4096"]),
    Scene {
        name: "ext2",
        options: &["-t", "ext2", "-b", "1024", "-N", "256"],
        tuning: &[],
        size_kib: 8 << 10,
        durability: Durability::Synced,
    },
    Scene {
        name: "ext2_4k",
        options: &["-t", "ext2", "-b", "4096", "-N", "256"],
        tuning: &[],
        size_kib: 8 << 10,
        durability: Durability::Synced,
    },
];

const fn journaled(name: &'static str, options: &'static [&'static str]) -> Scene {
    Scene {
        name,
        options,
        tuning: &[],
        size_kib: 12 << 10,
        durability: Durability::Journaled,
    }
}

/// The scene of that name.
pub fn scene(name: &str) -> Result<&'static Scene> {
    let found = SCENES.iter().find(|scene| scene.name == name);
    found.with_context(|| format!("no scene is called {name}"))
}

impl Scene {
    /// The bytes of a new filesystem.
    pub fn image(&self) -> Result<Vec<u8>> {
        self.image_of(self.size_kib)
    }

    /// The bytes of a new filesystem of another size.
    pub fn image_of(&self, size_kib: u64) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new()?;
        let mut options = self.options.to_vec();
        if self.durability == Durability::Journaled {
            let size = if self.options.contains(&"4096") {
                "size=4"
            } else {
                "size=2"
            };
            options.extend(["-N", "256", "-J", size]);
        }
        mke2fs::make(file.path(), size_kib, &options, None)?;
        if !self.tuning.is_empty() {
            mke2fs::tune(file.path(), self.tuning)?;
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
