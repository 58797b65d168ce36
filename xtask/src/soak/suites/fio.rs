//! fio: what was written is verified.

use anyhow::{Context, Result, ensure};

use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// Has three quarters of each buffer shrink to nothing: without it all is random, and stays as it is, and so does
/// what is written into preallocated space.
const COMPRESSIBLE: &[&str] = &[
    "--buffer_compress_percentage=75",
    "--refill_buffers",
    "--fallocate=none",
];

/// Has fio write and verify: at random places, mixed with reads, mapped, and past the cache.
pub(super) fn fio(stage: &Stage, _: &Load) -> Result<Done> {
    const JOBS: &[(&str, &[&str])] = &[
        (
            "random",
            &[
                "--rw=randwrite",
                "--bs=4k",
                "--ioengine=psync",
                "--fsync=64",
            ],
        ),
        (
            "mixed",
            &[
                "--rw=randrw",
                "--bs=512-32k",
                "--ioengine=psync",
                "--numjobs=2",
            ],
        ),
        ("mapped", &["--rw=randwrite", "--bs=3k", "--ioengine=mmap"]),
        (
            "direct",
            &["--rw=randrw", "--bs=4k", "--ioengine=psync", "--direct=1"],
        ),
        (
            "sequential",
            &[
                "--rw=write",
                "--bs=128k",
                "--ioengine=psync",
                "--end_fsync=1",
            ],
        ),
    ];
    stage.mount()?;
    for (name, options) in JOBS {
        run(stage, name, options, "--do_verify=1").with_context(|| format!("fio, {name}"))?;
    }
    // What was verified through the cache is verified from the image. Of two jobs with ranges of
    // different sizes fio does not know afterwards which wrote what.
    stage.unmount()?;
    stage.mount()?;
    let mut again = 0;
    for (name, options) in JOBS.iter().filter(|(name, _)| *name != "mixed") {
        run(stage, name, options, "--verify_only")
            .with_context(|| format!("fio, {name}, after a remount"))?;
        again += 1;
    }
    stage.unmount()?;
    let mut text = format!(
        "{} jobs verified, {again} again after a remount",
        JOBS.len()
    );
    if let Some(method) = stage.cell.compression() {
        let extents = stage.compressed_extents(method)?;
        ensure!(extents > 0, "nothing is compressed with {method}");
        text = format!("{text}, {extents} extents with {method}");
    }
    Ok(Done::new(text).count("jobs", JOBS.len() as u64))
}

fn run(stage: &Stage, name: &str, options: &[&str], verify: &str) -> Result<()> {
    let contents: &[&str] = if stage.cell.compression().is_some() {
        COMPRESSIBLE
    } else {
        &[]
    };
    let mut fio = command("fio");
    // It leaves files of its own where it is called.
    fio.current_dir(stage.path(""))
        .arg(format!("--name={name}"))
        .arg(format!("--directory={}", stage.mounted().display()))
        .args(["--size=16m", "--verify=crc32c", "--verify_fatal=1", verify])
        .arg("--output-format=terse")
        .args(contents)
        .args(options);
    command::output(&mut fio).map(|_| ())
}
