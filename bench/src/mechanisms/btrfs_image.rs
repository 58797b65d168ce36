//! A btrfs on a device in memory, as fast as that is or with a cost of each write.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use platter::make::Uuid;
use platter_block::{BlockDevice, Geometry, IoError, MemoryDevice};
use platter_btrfs::mkfs::{MkfsOptions, Target, mkfs};
use platter_btrfs::txn::WriteOptions;
use platter_btrfs::{Btrfs, MountOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{FixedClock, SystemClock, Timestamp};
use testkit::findings::Findings;
use testkit::oracle::btrfs;
use testkit::subject::store;

use crate::measure::now;

const CACHE_BYTES: u64 = 256 << 20;
/// What a write to a disk takes.
const WRITE: Duration = Duration::from_micros(100);

/// How long writes take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speed {
    Memory,
    /// [`WRITE`] more for each.
    Disk,
}

/// A device whose writes take longer.
#[derive(Debug)]
struct SlowDevice(MemoryDevice);

impl BlockDevice for SlowDevice {
    fn name(&self) -> &Arc<str> {
        self.0.name()
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let start = now();
        self.0.write_at(offset, buf)?;
        while start.elapsed() < WRITE {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), IoError> {
        self.0.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.0.discard(range)
    }
}

/// A new filesystem.
pub(super) struct BtrfsImage(Arc<dyn BlockDevice>);

impl BtrfsImage {
    /// A filesystem with tree blocks of 16 KiB.
    pub(super) fn new(len_bytes: usize, has_group_tree: bool, speed: Speed) -> Result<Self> {
        Self::with_nodes(len_bytes, has_group_tree, speed, None)
    }

    /// A filesystem with tree blocks of a size; the usual one if there is none.
    pub(super) fn with_nodes(
        len_bytes: usize,
        has_group_tree: bool,
        speed: Speed,
        node_bytes: Option<u32>,
    ) -> Result<Self> {
        // Memory that nothing was written to yet takes none.
        let device = MemoryDevice::new("disk", vec![0; len_bytes]);
        let device: Arc<dyn BlockDevice> = match speed {
            Speed::Memory => Arc::new(device),
            Speed::Disk => Arc::new(SlowDevice(device)),
        };
        let mut options = MkfsOptions {
            node_bytes,
            ..MkfsOptions::new(Uuid::from_u128(0x77))
        };
        let chosen = options.set_feature("block-group-tree", has_group_tree);
        chosen.map_err(platter_vfs::Error::from)?;
        let target = Target {
            devices: std::slice::from_ref(&device),
            is_zero: true,
        };
        mkfs(&target, &options, &FixedClock::new(Timestamp::default(), 1))?;
        Ok(Self(device))
    }

    fn devices(&self) -> [Arc<dyn BlockDevice>; 1] {
        [Arc::clone(&self.0)]
    }

    pub(super) fn mount(&self, transactions: WriteOptions) -> Result<Btrfs> {
        let options = MountOptions {
            transactions,
            ..MountOptions::default()
        };
        let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
        let clock = Arc::new(SystemClock::new());
        Ok(Btrfs::mount_writable(
            &self.devices(),
            &options,
            budget,
            clock,
        )?)
    }

    /// Demands that the check of the filesystem, which is not mounted, finds nothing.
    pub(super) fn check(&self) -> Result<()> {
        let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
        let mut findings = Findings::default();
        Btrfs::check(
            &self.devices(),
            &MountOptions::default(),
            &budget,
            &mut findings,
        )?;
        let errors = findings.errors();
        ensure!(errors.is_empty(), "our check: {}", errors.join("; "));
        Ok(())
    }

    /// Demands that `btrfs check` finds nothing, either.
    pub(super) fn check_by_btrfs(&self) -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("image");
        store(&*self.0, &path)?;
        let (verdict, text) = btrfs::report(&[&path])?;
        ensure!(verdict.is_clean(), "btrfs check: {text}");
        Ok(())
    }
}
