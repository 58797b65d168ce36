//! The end of a mount: its threads end before the log does.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use platter_block::sim::{Recorder, Request};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::clock::SystemClock;
use platter_vfs::{Context, CreateKind, Filesystem, Name};
use platter_xfs::ondisk::{Geometry, Superblock};
use platter_xfs::txn::{LogDevice, LogState, find_position};
use platter_xfs::{MountOptions, Xfs};

use super::scene::Scene;
use super::shapes::PLAIN;

const MOUNTS: usize = 20;
const FILES: usize = 30;

/// Mounts, works while a thread commits all the time, and unmounts.
fn end_one(image: &[u8], mount: usize) -> Result<()> {
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", image.to_vec()));
    let recorder = Recorder::new(vec![base]);
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    let options = MountOptions {
        commit_interval: Some(Duration::from_millis(1)),
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    let mounted = Xfs::mount_writable(Arc::clone(&device), &options, budget, clock)?;
    let root = mounted.root()?;
    for number in 0..FILES + mount {
        let name = format!("file{number}");
        let name = Name::new(name.as_bytes())?;
        let file = root.create(&Context::root(), name, CreateKind::Regular, 0o644)?;
        file.write_at(0, &[1; 5000])?;
    }
    drop(root);
    mounted.unmount()?;
    let ended = recorder.position();
    std::thread::sleep(Duration::from_millis(5));
    drop(mounted);
    ensure!(recorder.position() == ended, "written after the unmount");
    let mut sector = vec![0; 4096];
    device.read_at(0, &mut sector)?;
    let superblock = Superblock::decode(&sector, Locus::UNKNOWN)?;
    let log = LogDevice::open(&superblock, &device, None)?;
    ensure!(find_position(&log, true)?.state == LogState::Clean);
    // The last record is that of the unmount, and nothing follows it.
    let geometry = Geometry::new(&superblock);
    let start = geometry.byte_offset(superblock.log_start.context("an internal log")?);
    let end = start + u64::from(superblock.log_blocks) * u64::from(geometry.block_bytes());
    let recording = recorder.recording();
    let mut writes = recording.events().iter().rev();
    let last = writes.find_map(|event| match &event.request {
        Request::Write { offset, .. } => Some(*offset),
        Request::Flush | Request::Discard(_) => None,
    });
    let is_in_log = last.is_some_and(|last| (start..end).contains(&last));
    ensure!(is_in_log, "{last:?} was written last");
    Ok(())
}

#[test]
fn nothing_is_written_after_the_unmount_record() {
    let scene = Scene::make(&PLAIN).unwrap();
    let image = std::fs::read(&scene.images("")[0]).unwrap();
    for mount in 0..MOUNTS {
        end_one(&image, mount).unwrap_or_else(|error| panic!("mount {mount}: {error:#}"));
    }
}
