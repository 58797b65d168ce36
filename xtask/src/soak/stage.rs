//! One filesystem under test: its image, and its mounts by platter and by the kernel.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cells::Cell;
use super::tools;
use crate::command::{self, command};
use crate::workspace::Workspace;

/// The size of the images.
const IMAGE_SIZE: &str = "1G";
/// The uid of a user without privileges.
const ORDINARY_USER: &str = "65534";
/// Between two looks whether a server has mounted.
const WAIT: Duration = Duration::from_millis(20);
/// How often is looked.
const WAITS_MAX: u32 = 500;
/// What is compared of every file, one line each, but for the size of directories.
const LISTING: &str = r#"
cd "$1"
find . -mindepth 1 -path ./lost+found -prune -o -type d -printf '%P %y %m %U %G %n %T@\n' \
    -o -printf '%P %y %m %U %G %s %n %l %T@\n' | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
"#;

/// A folder with an image and its mount points. All that is mounted there is unmounted, and the
/// folder removed, when it is dropped.
pub(super) struct Stage {
    folder: PathBuf,
    pub(super) root: PathBuf,
    program: PathBuf,
    tools: [PathBuf; 2],
    has_extents: bool,
}

impl Stage {
    /// Makes the image, which `program` is to mount.
    pub(super) fn set(workspace: &Workspace, cell: &Cell, program: &Path) -> Result<Self> {
        let mut mktemp = command("mktemp");
        let folder =
            command::output(mktemp.args(["--directory", "--tmpdir", "platter-soak.XXXXXX"]))?;
        let folder = PathBuf::from(String::from_utf8(folder)?.trim_end());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        let stage = Self {
            root: workspace.root.clone(),
            program: program.to_owned(),
            tools: ["pjdfstest", "fsx"].map(|tool| tools::path(workspace, tool)),
            has_extents: cell.generation() == "ext4",
            folder,
        };
        for place in ["mounted", "kernel"] {
            std::fs::create_dir(stage.path(place))?;
        }
        let mut mke2fs = command("mke2fs");
        mke2fs.args(["-q", "-F"]).args(cell.options);
        command::run(mke2fs.arg(stage.path("disk.img")).arg(IMAGE_SIZE))?;
        Ok(stage)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where platter mounts.
    pub(super) fn mounted(&self) -> PathBuf {
        self.path("mounted")
    }

    pub(super) fn pjdfstest(&self) -> Command {
        command(&self.tools[0])
    }

    pub(super) fn fsx(&self) -> &Path {
        &self.tools[1]
    }

    /// The platter program.
    pub(super) fn program(&self) -> Command {
        command(&self.program)
    }

    /// The same command for an ordinary user.
    pub(super) fn as_user(program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut user = command("setpriv");
        user.args(["--reuid", ORDINARY_USER, "--regid", ORDINARY_USER])
            .args(["--clear-groups", "--"])
            .arg(program);
        user
    }

    /// Mounts for reading and writing, for everyone.
    pub(super) fn mount(&self) -> Result<()> {
        let mut mount = self.program();
        mount.args(["mount", "-o", "rw,allow_other"]);
        command::run(mount.arg(self.path("disk.img")).arg(self.mounted()))
    }

    /// Mounts with a server in the foreground, to be killed.
    pub(super) fn serve(&self) -> Result<Child> {
        let mut mount = self.program();
        mount.args(["mount", "-f", "-o", "rw,allow_other"]);
        let server = mount
            .arg(self.path("disk.img"))
            .arg(self.mounted())
            .spawn()?;
        for _ in 0..WAITS_MAX {
            let mut mountpoint = command("mountpoint");
            if command::output(mountpoint.arg("-q").arg(self.mounted())).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(WAIT);
        }
        bail!("the server mounts nothing")
    }

    /// Takes away the mount of a server that is gone.
    pub(super) fn abandon(&self) -> Result<()> {
        command::run(command("umount").arg("--lazy").arg(self.mounted()))
    }

    /// Whether files have extents, and can be taken space for.
    pub(super) fn has_extents(&self) -> bool {
        self.has_extents
    }

    pub(super) fn unmount(&self) -> Result<()> {
        command::run(self.program().arg("umount").arg(self.mounted()))
    }

    /// Checks that the unmounted image is clean, and that the kernel finds in it what platter does.
    pub(super) fn judge(&self) -> Result<()> {
        let image = self.path("disk.img");
        let verdict = command::output(command("e2fsck").args(["-f", "-n"]).arg(&image));
        verdict.context("e2fsck -fn")?;
        command::run(self.program().arg("check").arg(&image))?;
        let mut mount = self.program();
        mount.args(["mount", "-o", "ro"]);
        command::run(mount.arg(&image).arg(self.mounted()))?;
        let ours = listing(&self.mounted());
        self.unmount()?;
        let kernel = self.path("kernel");
        let mut mount = command("mount");
        mount.args(["-t", "ext4", "-o", "loop,ro"]).arg(&image);
        command::run(mount.arg(&kernel))?;
        let theirs = listing(&kernel);
        command::run(command("umount").arg(&kernel))?;
        let (ours, theirs) = (ours?, theirs?);
        for (ours, theirs) in ours.lines().zip(theirs.lines()) {
            ensure!(
                ours == theirs,
                "platter shows\n{ours}\nand the kernel\n{theirs}"
            );
        }
        ensure!(
            ours == theirs,
            "platter and the kernel list different files"
        );
        println!("{} lines of listing are the same", ours.lines().count());
        Ok(())
    }
}

fn listing(folder: &Path) -> Result<String> {
    let mut sh = command("sh");
    let listing = command::output(sh.args(["-c", LISTING, "sh"]).arg(folder))?;
    Ok(String::from_utf8_lossy(&listing).into_owned())
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Most often nothing is mounted any more.
        for place in ["mounted", "kernel"] {
            let _ = command::output(command("umount").arg("--lazy").arg(self.path(place)));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
