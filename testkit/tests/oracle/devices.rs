//! Real block devices of the kernel, as platter opens them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result};
use platter_block::file::{ImageUser, Refusal};
use platter_block::{Access, BlockDevice, FileDevice, MountTable, OpenError, OpenOptions};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::loopdev::{self, LoopDevice, Mount};
use testkit::oracle::mke2fs;
use testkit::{program, tool};

const READ: OpenOptions = OpenOptions {
    access: Access::Read,
    direct: false,
};
const WRITE: OpenOptions = OpenOptions {
    access: Access::Write,
    direct: false,
};

fn image(len_bytes: usize) -> Result<(TempDir, PathBuf)> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    let pattern: Vec<u8> = (0..251).cycle().take(len_bytes).collect();
    std::fs::write(&path, pattern)?;
    Ok((dir, path))
}

fn refusal(path: &Path, options: OpenOptions) -> Refusal {
    match FileDevice::open(path, options) {
        Err(OpenError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn block_device_reports_its_geometry() -> Result<()> {
    let (_dir, path) = image(3 << 20)?;
    for sector_bytes in [512, 4096] {
        let device = LoopDevice::with_sectors(&path, sector_bytes, loopdev::Access::ReadWrite)?;
        for options in [READ, WRITE] {
            let opened = FileDevice::open(device.path(), options)?;
            let geometry = opened.geometry();
            assert_eq!(geometry.len_bytes, 3 << 20);
            assert_eq!(geometry.logical_block_bytes, sector_bytes);
            assert!(geometry.physical_block_bytes >= sector_bytes);
            assert_eq!(geometry.read_only, options == READ);
            assert_eq!(opened.next_data(5)?, Some(5..3 << 20));
        }
    }
    Ok(())
}

#[test]
fn writes_to_a_block_device_reach_its_backing_file() -> Result<()> {
    for direct in [false, true] {
        let (_dir, path) = image(3 << 20)?;
        let mut model = std::fs::read(&path)?;
        let device = LoopDevice::with_sectors(&path, 4096, loopdev::Access::ReadWrite)?;
        let opened = FileDevice::open(device.path(), OpenOptions { direct, ..WRITE })?;
        for (start, length) in [(0, 4096), (4097, 5), (1 << 20, 1 << 20), ((3 << 20) - 1, 1)] {
            let mut bytes = vec![0; length];
            opened.read_at(start as u64, &mut bytes)?;
            assert!(bytes == model[start..start + length]);
            bytes.fill(0xd5);
            opened.write_at(start as u64, &bytes)?;
            model[start..start + length].fill(0xd5);
        }
        opened.flush()?;
        assert!(std::fs::read(&path)? == model, "direct: {direct}");
        let mut all = vec![0; 3 << 20];
        opened.read_at(0, &mut all)?;
        assert!(all == model);
        assert!(opened.write_at((3 << 20) - 1, &[0; 2]).is_err());
    }
    Ok(())
}

#[test]
fn discard_punches_the_backing_file() -> Result<()> {
    let (_dir, path) = image(8 << 20)?;
    let device = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
    let opened = FileDevice::open(device.path(), WRITE)?;
    let before = std::fs::metadata(&path)?.blocks();
    // Sub-block ends are rounded inwards, and kept.
    opened.discard((1 << 20) + 1..(7 << 20) + 1)?;
    opened.discard(100..200)?;
    opened.flush()?;
    let after = std::fs::metadata(&path)?.blocks();
    assert!(
        after + (4 << 20) / 512 < before,
        "{before} to {after} sectors"
    );
    let mut kept = [0; 2];
    opened.read_at((1 << 20) - 1, &mut kept)?;
    assert_eq!(
        kept.map(usize::from),
        [((1 << 20) - 1) % 251, (1 << 20) % 251]
    );
    Ok(())
}

#[test]
fn a_device_that_the_kernel_guards_is_read_only() -> Result<()> {
    let (_dir, path) = image(1 << 20)?;
    let device = LoopDevice::attach(&path, loopdev::Access::ReadOnly)?;
    assert!(FileDevice::open(device.path(), READ)?.geometry().read_only);
    match FileDevice::open(device.path(), WRITE) {
        Err(OpenError::Io(error)) => {
            let code = error.source.raw_os_error().context("no code of the host")?;
            let refused = [rustix::io::Errno::ACCESS, rustix::io::Errno::ROFS];
            assert!(
                refused.iter().any(|errno| errno.raw_os_error() == code),
                "{error}"
            );
        }
        Ok(opened) => assert!(opened.geometry().read_only),
        Err(other) => panic!("{other}"),
    }
    Ok(())
}

#[test]
fn a_second_writer_of_a_block_device_is_refused() -> Result<()> {
    let (_dir, path) = image(1 << 20)?;
    let device = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
    let writer = FileDevice::open(device.path(), WRITE)?;
    assert_eq!(
        refusal(device.path(), WRITE),
        Refusal::InUse(ImageUser::Claim)
    );
    assert!(matches!(
        refusal(device.path(), READ),
        Refusal::InUse(ImageUser::Writer(_))
    ));
    drop(writer);
    let reader = FileDevice::open(device.path(), READ)?;
    // A program that another test is starting keeps the writer's claim until it runs.
    let mut attempts = (0..100).map(|_| refusal(device.path(), WRITE));
    assert!(attempts.any(|refusal| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        matches!(refusal, Refusal::InUse(ImageUser::Reader(_)))
    }));
    drop(reader);
    FileDevice::open(device.path(), WRITE)?;
    Ok(())
}

#[test]
fn what_the_kernel_has_mounted_is_not_written_to() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    mke2fs::make(&path, 4096, &["-t", "ext4"], None)?;
    let device = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
    let mount = Mount::device(device.path(), "", loopdev::Access::ReadWrite)?;
    assert_eq!(
        refusal(device.path(), WRITE),
        Refusal::InUse(ImageUser::Claim)
    );
    FileDevice::open(device.path(), READ)?;
    // The kernel takes no lock on the image below, so that has to be found out otherwise.
    let name = device
        .path()
        .file_name()
        .context("no name")?
        .to_string_lossy();
    let user = ImageUser::Loop((*name).into());
    assert_eq!(refusal(&path, WRITE), Refusal::InUse(user));
    FileDevice::open(&path, READ)?;
    drop(mount);
    Ok(())
}

#[test]
fn a_loop_device_and_its_file_are_not_written_at_once() -> Result<()> {
    let (_dir, path) = image(4 << 20)?;
    let writer = FileDevice::open(&path, WRITE)?;
    let device = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
    for options in [READ, WRITE] {
        let refused = refusal(device.path(), options).to_string();
        let (by, of) = (
            format!("another writer: process {} (", std::process::id()),
            format!(", of its backing file {}", path.display()),
        );
        assert!(refused.contains(&by) && refused.ends_with(&of), "{refused}");
    }
    drop(writer);
    let second = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
    let writer = FileDevice::open(device.path(), WRITE)?;
    for taken in [second.path(), &path] {
        let refused = refusal(taken, WRITE);
        assert!(matches!(refused, Refusal::InUse(_)), "{refused:?}");
    }
    let refused = refusal(&path, READ);
    assert!(
        matches!(refused, Refusal::InUse(ImageUser::Writer(_))),
        "{refused:?}"
    );
    drop(writer);
    drop(FileDevice::open(second.path(), WRITE)?);
    Ok(())
}

#[test]
fn a_failed_flush_stays_failed() -> Result<()> {
    // A loop device over a file that its filesystem has no space for: writes succeed in the page
    // cache, and are lost when they are written back.
    let dir = tempfile::tempdir()?;
    let mut mount = tool::command("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k", "platter"]);
    tool::succeed(mount.arg(dir.path()))?;
    let _unmount = Unmount(dir.path().to_owned());
    let path = dir.path().join("image");
    std::fs::File::create(&path)?.set_len(4 << 20)?;
    let device = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
    let opened = FileDevice::open(device.path(), WRITE)?;
    opened.write_at(0, &vec![1; 4 << 20])?;
    let first = opened.flush().expect_err("the disk is full");
    let second = opened
        .flush()
        .expect_err("the kernel forgets, platter does not");
    assert_eq!(first.to_string(), second.to_string());
    Ok(())
}

/// A server that does not respond delays only those that use its filesystem.
#[test]
fn other_filesystems_are_not_touched_by_opening_an_image() -> Result<()> {
    let (dir, path) = image(1 << 20)?;
    let below = dir.path().join("below");
    mke2fs::make(&below, 8192, &["-t", "ext4"], None)?;
    let at = dir.path().join("mount");
    std::fs::create_dir(&at)?;
    let server = Server::start(&below, &at)?;
    let attached = at.join("attached");
    std::fs::File::create(&attached)?.set_len(1 << 20)?;
    let device = LoopDevice::attach(&attached, loopdev::Access::ReadWrite)?;
    // The kernel shows the path as deleted: looking that up is a request to the server.
    std::fs::remove_file(&attached)?;
    let stopped = server.stop()?;
    let (sender, opened) = channel();
    let opening = move || {
        let refused = [WRITE, READ].map(|options| FileDevice::open(&path, options).err());
        let writer = FileDevice::open(&path, WRITE);
        let user = refusal(&path, READ);
        drop(writer);
        let _ = sender.send((refused, user));
    };
    std::thread::Builder::new()
        .name("opening".to_owned())
        .spawn(opening)?;
    let opened = opened.recv_timeout(Duration::from_secs(20));
    drop(stopped);
    drop(device);
    let (refused, user) = opened.context("the server was asked")?;
    assert!(refused.iter().all(Option::is_none), "{refused:?}");
    assert!(matches!(user, Refusal::InUse(ImageUser::Writer(Some(_)))));
    Ok(())
}

/// A process that serves an image, until it is dropped.
struct Server {
    process: Child,
    at: PathBuf,
}

/// A server that does not respond, until this is dropped.
struct Stopped(Pid);

impl Server {
    fn start(image: &Path, at: &Path) -> Result<Self> {
        let mut platter = program::platter()?;
        platter.args(["mount", "-f"]).arg(image).arg(at);
        let server = Self {
            process: platter.spawn()?,
            at: at.to_owned(),
        };
        for _ in 0..1500 {
            if MountTable::read()?.at(at).is_some() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("the mount is not there")
    }

    fn stop(&self) -> Result<Stopped> {
        let id = Pid::from_raw(self.process.id().cast_signed()).context("no process")?;
        kill_process(id, Signal::STOP)?;
        Ok(Stopped(id))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(Unmount(self.at.clone()));
        // It may not have mounted anything.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Unmounts when dropped, lazily, after what was declared later is gone.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = tool::finish(tool::command("umount").arg("--lazy").arg(&self.0));
    }
}
