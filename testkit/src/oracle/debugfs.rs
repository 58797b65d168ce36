//! `debugfs`: changes that no kernel makes, and a second opinion on what an image holds.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};

use crate::tool;

/// Runs commands on an image that may be changed. `debugfs` succeeds even when a command fails, so
/// anything it complains of is an error here.
pub fn change(image: &Path, commands: &[&str]) -> Result<()> {
    let mut script = tempfile::NamedTempFile::new()?;
    for line in commands {
        writeln!(script, "{line}")?;
    }
    let finished = tool::succeed(
        tool::command("debugfs")
            .args(["-w", "-f"])
            .arg(script.path())
            .arg(image),
    )?;
    let complaints = String::from_utf8_lossy(&finished.stderr);
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("debugfs 1."))
        .collect();
    if !complaints.is_empty() {
        bail!(
            "debugfs {commands:?} on {}: {complaints:?}",
            image.display()
        );
    }
    Ok(())
}

/// What one command prints, without changing the image.
pub fn ask(image: &Path, command: &str) -> Result<Vec<u8>> {
    let finished = tool::succeed(tool::command("debugfs").args(["-R", command]).arg(image))?;
    Ok(finished.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::mke2fs;

    #[test]
    fn failed_command_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        mke2fs::make(&image, 256, &["-t", "ext2"], None).unwrap();
        change(&image, &["mkdir made"]).unwrap();
        let listing = ask(&image, "ls -p /").unwrap();
        assert!(String::from_utf8_lossy(&listing).contains("/made/"));
        assert!(change(&image, &["rmdir gone"]).is_err());
        assert!(change(&image, &["no_such_command"]).is_err());
    }
}
