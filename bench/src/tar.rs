//! `platter tar` beside a kernel loop mount with `tar`, both with cold caches.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::loopdev::{Access, Mount};
use testkit::{program, tool};

use crate::abba::{self, Times};
use crate::record::Keep;
use crate::{forest, record};

const FILES: u32 = 50_000;
const ROUNDS: usize = 5;
const NAMES: [&str; 2] = ["platter tar", "kernel loop mount and tar"];

#[derive(Serialize)]
struct Measured {
    files: u32,
    image_bytes: u64,
    times: [Times; 2],
    ratio: f64,
}

pub(crate) fn run(keep: Keep) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = forest::plant(folder.path(), FILES)?;
    let mut platter = program::platter()?;
    platter.arg("tar").arg(&image);
    let times = abba::alternate(NAMES, ROUNDS, |way| {
        drop_caches()?;
        match way {
            0 => run_to_end(&mut platter),
            _ => mount_and_tar(&image),
        }
    })?;
    let [ours, theirs] = &times;
    let ratio = theirs.median() / ours.median();
    println!(
        "{FILES} files, caches cold, {} runs each, in turns:",
        2 * ROUNDS
    );
    for times in &times {
        let (low, high) = times.interval();
        let median = times.median();
        println!("{median:>8.3} s ({low:.3} to {high:.3})  {}", times.name);
    }
    println!("platter takes 1/{ratio:.2} of the time");
    let image_bytes = std::fs::metadata(&image)?.len();
    let measured = Measured {
        files: FILES,
        image_bytes,
        times,
        ratio,
    };
    record::keep(keep, "tar", &measured)
}

fn mount_and_tar(image: &Path) -> Result<Duration> {
    let (taken, ()) = abba::time(|| {
        let mount = Mount::image(image, "", Access::ReadOnly)?;
        let mut tar = tool::command("tar");
        tar.args(["--create", "--file", "-", "--directory"])
            .arg(mount.root())
            .arg(".");
        run_to_end(&mut tar)?;
        Ok(())
    })?;
    Ok(taken)
}

/// Reads all that the program writes. A pipe, because GNU tar reads no files for `/dev/null`.
fn run_to_end(command: &mut Command) -> Result<Duration> {
    let (taken, bytes) = abba::time(|| {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut output = child.stdout.take().context("a pipe")?;
        let mut piece = vec![0; 1 << 16];
        let mut bytes = 0;
        loop {
            let length = output.read(&mut piece)?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
        }
        ensure!(child.wait()?.success(), "{command:?} failed");
        Ok(bytes)
    })?;
    ensure!(
        bytes > u64::from(FILES) * 1024,
        "the archive has only {bytes} bytes"
    );
    Ok(taken)
}

/// Empties the host's caches, which takes root.
fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cold caches take root")
}
