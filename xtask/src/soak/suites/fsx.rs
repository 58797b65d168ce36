//! fsx: random operations on one file, which is read back all the time.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::super::cells::Kind;
use super::super::stage::Stage;
use super::{Done, Load};
use crate::clock;
use crate::command::{self, command};

/// What a file goes through in `fsx`.
const FSX_TOML: &str = r"
flen = 262144
[opsize]
OPSIZE
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 3
fsync = 1
fdatasync = 1
posix_fallocate = ALLOCATE
punch_hole = FALLOCATE
sendfile = 1
posix_fadvise = 1
copy_file_range = COPY
";
/// No operation is empty: allocating no bytes fails on every filesystem.
const ANYWHERE: &str = "min = 1";
/// Whole blocks, so that what is copied can be shared: FUSE passes on no other request to clone. What is left at the
/// end of the file may be less than a block, and allocating it is left out.
const BLOCKS: &str = "min = 4096\nalign = 4096";
/// Operations of one run of `fsx`.
const FSX_OPERATIONS: u64 = 3000;
/// Files that are written in one mount.
const FILES_PER_MOUNT: u64 = 5;

/// Runs fsx as an ordinary user, one file for each seed, with a mount anew now and then.
pub(super) fn fsx(stage: &Stage, load: &Load) -> Result<Done> {
    let shares = matches!(stage.cell.kind, Kind::Btrfs | Kind::Xfs);
    let begin = clock::now();
    let mut files = 0;
    for seed in load.seeds.clone() {
        if load.time.is_some_and(|time| begin.elapsed() >= time) {
            break;
        }
        if files % FILES_PER_MOUNT == 0 {
            if files > 0 {
                stage.unmount()?;
            }
            stage.mount()?;
            command::run(command("chmod").arg("777").arg(stage.mounted()))?;
        }
        let settings = settings(stage, shares && seed % 2 == 0)?;
        let file = stage.mounted().join(format!("fsx{seed}"));
        let mut fsx = Stage::as_user(stage.fsx());
        fsx.current_dir("/tmp")
            .arg("-f")
            .arg(&settings)
            .args(["-N", &FSX_OPERATIONS.to_string(), "-S", &seed.to_string()])
            .args(["-P", "/tmp"])
            .arg(file);
        command::output(&mut fsx).with_context(|| format!("fsx with seed {seed}"))?;
        files += 1;
    }
    stage.unmount()?;
    let text = format!("{files} seeds of {FSX_OPERATIONS} operations");
    Ok(Done::new(text)
        .count("files", files)
        .count("operations", files * FSX_OPERATIONS)
        .count("seconds", begin.elapsed().as_secs()))
}

/// Writes the settings, those of whole blocks or of any bytes.
fn settings(stage: &Stage, is_of_blocks: bool) -> Result<PathBuf> {
    let path = stage.path("fsx.toml");
    let weight = if stage.has_extents() { "3" } else { "0" };
    let (opsize, allocate, copy) = if is_of_blocks {
        (BLOCKS, "0", "10")
    } else {
        (ANYWHERE, weight, "1")
    };
    let text = FSX_TOML
        .replace("OPSIZE", opsize)
        .replace("FALLOCATE", weight)
        .replace("ALLOCATE", allocate)
        .replace("COPY", copy);
    std::fs::write(&path, text)?;
    Ok(path)
}
