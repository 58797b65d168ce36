//! fsx: random operations on one file, which is read back all the time.

use anyhow::{Context, Result};

use super::super::stage::Stage;
use crate::command::{self, command};

/// What a file goes through in `fsx`.
const FSX_TOML: &str = r"
flen = 262144
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
const FSX_OPERATIONS: u32 = 3000;

/// Runs fsx as an ordinary user, one file for each seed, with a mount anew now and then.
pub(super) fn fsx(stage: &Stage, seeds: u64) -> Result<String> {
    let settings = stage.path("fsx.toml");
    let weight = if stage.has_extents() { "3" } else { "0" };
    std::fs::write(&settings, FSX_TOML.replace("FALLOCATE", weight))?;
    for seed in 1..=seeds {
        if seed % 5 == 1 {
            if seed > 1 {
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
    }
    stage.unmount()?;
    Ok(format!("{seeds} seeds of {FSX_OPERATIONS} operations"))
}
