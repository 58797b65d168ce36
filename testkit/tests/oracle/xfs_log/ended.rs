//! The end of a mount, and of an edit of an image: what they leave to the kernel.

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
use platter_xfs::{ImageCommit, Logging, MountOptions, Xfs};
use testkit::subject::store;

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

/// Deletes a file that is in use, in an edit of an image.
fn edit_with_an_unlinked_file(device: &Arc<MemoryDevice>) -> Result<()> {
    let data: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    let (file, context) = (Name::new(b"file")?, Context::root());
    let options = MountOptions::default();
    let mounted = Xfs::mount_writable(
        Arc::clone(&data),
        &options,
        Arc::clone(&budget),
        Arc::clone(&clock) as _,
    )?;
    let made = mounted
        .root()?
        .create(&context, file, CreateKind::Regular, 0o644)?;
    made.write_at(0, &[1; 3 * 4096])?;
    drop(made);
    mounted.unmount()?;

    let new: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("layer", device.snapshot()));
    let options = MountOptions {
        logging: Logging::Scratch,
        ..options
    };
    let edited = Xfs::mount_writable(Arc::clone(&new), &options, Arc::clone(&budget), clock)?;
    let root = edited.root()?;
    let in_use = root.lookup(file)?;
    root.unlink(&context, file)?;
    edited.unmount()?;
    let commit = ImageCommit {
        device: Arc::clone(&data),
        unseen: Arc::clone(&data),
        written: std::iter::once(0..data.geometry().len_bytes).collect(),
        new,
        options,
        budget,
    };
    commit.run()?;
    drop((in_use, root));
    Ok(())
}

#[test]
fn kernel_frees_what_an_edit_of_an_image_leaves_unlinked() {
    let scene = Scene::make(&PLAIN).unwrap();
    let image = &scene.images("")[0];
    let device = Arc::new(MemoryDevice::new("image", std::fs::read(image).unwrap()));
    edit_with_an_unlinked_file(&device).unwrap();
    store(&*device, image).unwrap();
    assert!(scene.is_dirty().unwrap());
    let (_, report) = scene.recovered().unwrap();
    assert_eq!(report.inodes_freed, 1);
    let problems = scene.problems_after_the_kernel().unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
}
