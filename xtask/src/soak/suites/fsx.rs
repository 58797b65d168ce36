//! fsx: random operations on one file, which is read back all the time.

use anyhow::{Context, Result};

use super::super::stage::Stage;
use super::{Done, Load};
use crate::clock;
use crate::command::{self, command};

/// What a file goes through in `fsx`. No operation is empty: allocating no bytes fails on every filesystem.
const FSX_TOML: &str = r"
flen = 262144
[opsize]
min = 1
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
posix_fallocate = FALLOCATE
punch_hole = FALLOCATE
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
";
/// Operations of one run of `fsx`.
const FSX_OPERATIONS: u64 = 3000;
/// Files that are written in one mount.
const FILES_PER_MOUNT: u64 = 5;

/// Runs fsx as an ordinary user, one file for each seed, with a mount anew now and then.
pub(super) fn fsx(stage: &Stage, load: &Load) -> Result<Done> {
    let settings = stage.path("fsx.toml");
    let weight = if stage.has_extents() { "3" } else { "0" };
    std::fs::write(&settings, FSX_TOML.replace("FALLOCATE", weight))?;
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
