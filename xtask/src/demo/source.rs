//! What the image is made from: this project's own sources, and a few files that are not plain.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use anyhow::Result;

use crate::command::{self, command};
use crate::workspace::Workspace;

/// Fills an empty directory.
pub(super) fn fill(workspace: &Workspace, dir: &Path) -> Result<()> {
    let project = dir.join("project");
    std::fs::create_dir(&project)?;
    for part in [
        "README.md",
        "ARCHITECTURE.md",
        "Cargo.toml",
        "docs",
        "crates",
        "xtask",
    ] {
        let mut cp = command("cp");
        cp.arg("--recursive")
            .arg(workspace.root.join(part))
            .arg(&project);
        command::output(&mut cp)?;
    }
    let odd = dir.join("odd");
    std::fs::create_dir(&odd)?;
    symlink("../project/README.md", odd.join("symlink"))?;
    std::fs::write(odd.join("two names"), "one file\n")?;
    std::fs::hard_link(odd.join("two names"), odd.join("the other name"))?;
    std::fs::write(odd.join("ünïcode and\ttab"), "a name of many bytes\n")?;
    let sparse = std::fs::File::create(odd.join("sparse"))?;
    sparse.write_all_at(b"after a hole of a gigabyte", 1 << 30)?;
    let script = odd.join("script");
    std::fs::write(&script, "#!/bin/sh\necho hello\n")?;
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755))?;
    let many = odd.join("many");
    std::fs::create_dir(&many)?;
    for number in 0..3000 {
        std::fs::write(many.join(format!("file {number:04}")), number.to_string())?;
    }
    open_to_everyone(dir)?;
    // Writable by all users.
    let open = dir.join("open");
    std::fs::create_dir(&open)?;
    Ok(std::fs::set_permissions(
        open,
        std::fs::Permissions::from_mode(0o1777),
    )?)
}

/// Makes the files readable for all users, whatever the umask of the checkout was.
fn open_to_everyone(dir: &Path) -> Result<()> {
    command::output(command("chmod").args(["--recursive", "a+rX"]).arg(dir))?;
    Ok(())
}
