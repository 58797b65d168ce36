//! Where the demonstration takes place: a directory with the program, the image and what comes out.
//!
//! As root, everything platter does is done by an ordinary user.

use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{self, command};
use crate::packages;
use crate::workspace::Workspace;

/// The uid of a user without privileges.
const ORDINARY_USER: u32 = 65_534;
/// Lines of output that are shown of one command.
const LINES_SHOWN: usize = 24;
const IMAGE_SIZE: &str = "96M";

/// The directory, which goes when this does.
pub(super) struct Stage {
    dir: PathBuf,
    is_root: bool,
    digest: std::cell::OnceCell<Vec<u8>>,
}

impl Stage {
    /// Builds the program and makes a directory with it.
    pub(super) fn set(workspace: &Workspace) -> Result<Self> {
        let mut build = command::cargo(&workspace.root);
        command::run(build.args(["build", "--quiet", "--locked", "--package", "platter-cli"]))?;
        let dir = command::text(command("mktemp").args([
            "--directory",
            "--tmpdir",
            "platter-demo.XXXXXX",
        ]))?;
        let dir = PathBuf::from(dir);
        let stage = Self {
            dir,
            is_root: packages::is_root()?,
            digest: std::cell::OnceCell::new(),
        };
        std::fs::set_permissions(&stage.dir, std::fs::Permissions::from_mode(0o755))?;
        std::fs::copy(
            workspace.target().join("debug/platter"),
            stage.path("platter"),
        )?;
        std::fs::create_dir(stage.source())?;
        for place in ["copied", "unpacked", "mountpoint", "changed"] {
            std::fs::create_dir(stage.path(place))?;
            stage.chown_to_user(place)?;
        }
        std::fs::create_dir(stage.path("out"))?;
        stage.chown_to_user("out")?;
        Ok(stage)
    }

    /// The directory that the image is made from.
    pub(super) fn source(&self) -> PathBuf {
        self.path("source")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn chown_to_user(&self, name: &str) -> Result<()> {
        if self.is_root {
            lchown(self.path(name), Some(ORDINARY_USER), Some(ORDINARY_USER))?;
        }
        Ok(())
    }

    /// Makes the image from the directory.
    pub(super) fn make_image(&self) -> Result<()> {
        self.platter(&[
            "mkfs",
            "ext4",
            "out/disk.img",
            "--from",
            "source",
            "--size",
            IMAGE_SIZE,
            "-L",
            "demo",
        ])?;
        let image = self.path("disk.img");
        std::fs::rename(self.path("out/disk.img"), &image)?;
        verify_with_e2fsck(&image)?;
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o444))?;
        let digest = self.digest_of_image()?;
        println!("{} files and directories", self.count_source()?);
        let _ = self.digest.set(digest);
        Ok(())
    }

    fn count_source(&self) -> Result<usize> {
        let listing = command::output(command("find").arg(self.source()).arg("-printf").arg("x"))?;
        Ok(listing.len())
    }

    fn digest_of_image(&self) -> Result<Vec<u8>> {
        command::output(command("sha256sum").arg(self.path("disk.img")))
    }

    /// A command that an ordinary user gives.
    pub(super) fn as_user(&self, program: &Path) -> Command {
        let mut user;
        if self.is_root {
            let id = ORDINARY_USER.to_string();
            user = command("setpriv");
            user.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
            user.arg(program);
        } else {
            user = command(program);
        }
        user.current_dir(&self.dir);
        user
    }

    /// Runs platter and shows the beginning of what it prints.
    pub(super) fn platter(&self, arguments: &[&str]) -> Result<()> {
        println!("$ platter {}", arguments.join(" "));
        let output = self.output(arguments)?;
        let text = String::from_utf8_lossy(&output);
        for line in text.lines().take(LINES_SHOWN) {
            println!("{line}");
        }
        let left = text.lines().count().saturating_sub(LINES_SHOWN);
        if left > 0 {
            println!("... and {left} lines more");
        }
        Ok(())
    }

    /// Runs platter and returns what it prints.
    pub(super) fn output(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        command::output(self.as_user(&self.path("platter")).args(arguments))
    }

    /// Unpacks the archive.
    pub(super) fn unpack(&self) -> Result<()> {
        let mut tar = self.as_user(Path::new("tar"));
        tar.args([
            "--extract",
            "--file",
            "out/disk.tar",
            "--directory",
            "unpacked",
        ]);
        command::run(&mut tar)
    }

    /// Demands that a directory holds what the image was made from.
    pub(super) fn compare(&self, dir: &str) -> Result<()> {
        let mut diff = command("diff");
        diff.current_dir(&self.dir)
            .args(["--recursive", "--no-dereference", "--exclude", "lost+found"])
            .args(["source", dir]);
        let output =
            command::output(&mut diff).with_context(|| format!("{dir} is not what went in"))?;
        ensure!(output.is_empty(), "{dir} is not what went in");
        println!("diff: {dir} is the same as the directory the image was made from");
        Ok(())
    }

    /// Demands that a sparse file takes next to no space where it was copied to.
    pub(super) fn verify_hole(&self, file: &str) -> Result<()> {
        let about = std::fs::metadata(self.path(file))?;
        let taken = about.blocks() * 512;
        ensure!(taken < 1 << 20, "{file} takes {taken} bytes");
        println!("{file}: {} bytes long, {taken} bytes of space", about.len());
        Ok(())
    }

    /// Demands that the image has not changed by a byte.
    pub(super) fn verify_untouched(&self) -> Result<()> {
        let before = self.digest.get().context("no image was made")?;
        ensure!(*before == self.digest_of_image()?, "the image has changed");
        println!("sha256sum: the same as before");
        Ok(())
    }
}

/// Has e2fsck look at an image, where it is there.
pub(super) fn verify_with_e2fsck(image: &Path) -> Result<()> {
    if command::find("e2fsck").is_none() {
        println!("e2fsck is not on this machine, and was not asked");
        return Ok(());
    }
    command::run(command("e2fsck").args(["-f", "-n"]).arg(image))
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A directory that is left in the temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
