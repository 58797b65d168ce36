//! One filesystem under test: its image, and its mounts by platter and by the kernel.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cells::{Cell, Kind};
use super::tools;
use crate::command::{self, command};
use crate::workspace::Workspace;

/// The size of the images.
const IMAGE_BYTES: u64 = 1 << 30;
/// The uid of a user without privileges.
const ORDINARY_USER: &str = "65534";
/// Between two looks whether a server has mounted.
const WAIT: Duration = Duration::from_millis(20);
/// How often is looked.
const WAITS_MAX: u32 = 500;
/// What is compared of every file, one line each, but for the size of directories; and each of its attributes, among
/// which are its access control lists.
const LISTING: &str = r#"
cd "$1"
find . -mindepth 1 -path ./lost+found -prune -o -type d -printf '%P %y %m %U %G %n %T@\n' \
    -o -printf '%P %y %m %U %G %s %n %l %T@\n' | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
find . -path ./lost+found -prune -o -print0 | xargs -0 -r getfattr -h -d -m - -e hex \
    | awk '/^# file: / { file = $0; next } NF { print file, $0 }' | sort
"#;
/// Makes files with attributes, which no suite leaves.
const ATTRIBUTES: &str = r#"
set -e
mkdir -p "$1/attributes/dir"
cd "$1/attributes"
echo text > file
setfattr -n user.soak -v text file
setfattr -n trusted.soak -v text dir
setfattr -n user.long -v "$(seq 200 | tr '\n' .)" dir
setfacl -m u:1:rwx,g:2:r file
setfacl -d -m u:1:rwx,m::rx dir
echo text > dir/heir
"#;
/// What the listing of these files has at least.
const LISTED: [&str; 4] = [
    "file: attributes/file user.soak",
    "file: attributes/dir trusted.soak",
    "file: attributes/dir system.posix_acl_default",
    "file: attributes/dir/heir system.posix_acl_access",
];

/// A directory with an image and its mount points. All that is mounted there is unmounted, and the
/// directory removed, when it is dropped.
pub(super) struct Stage {
    dir: PathBuf,
    pub(super) root: PathBuf,
    program: PathBuf,
    tools: [PathBuf; 2],
    pub(super) cell: &'static Cell,
    /// Locked while the directory is in use.
    _lock: File,
}

impl Stage {
    /// Makes the image, which `program` is to mount.
    pub(super) fn set(workspace: &Workspace, cell: &'static Cell, program: &Path) -> Result<Self> {
        let (dir, lock) = locked_dir()?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
        let stage = Self {
            _lock: lock,
            root: workspace.root.clone(),
            program: program.to_owned(),
            tools: ["pjdfstest", "fsx"].map(|tool| tools::path(workspace, tool)),
            cell,
            dir,
        };
        for place in ["mounted", "kernel"] {
            std::fs::create_dir(stage.path(place))?;
        }
        stage.make(&stage.images())?;
        Ok(stage)
    }

    /// Makes its filesystem on new images.
    fn make(&self, images: &[PathBuf]) -> Result<()> {
        for image in images {
            std::fs::File::create(image)?.set_len(IMAGE_BYTES)?;
        }
        command::run(&mut self.cell.make(&self.program, images))
    }

    /// Does something in a new filesystem of the same options that the kernel mounts.
    pub(super) fn on_kernel<T>(&self, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let images = (0..self.cell.devices).map(|number| self.path(&format!("kernel{number}.img")));
        let images: Vec<_> = images.collect();
        self.make(&images)?;
        let loops = Loops::of(&images)?;
        self.mount_kernel(&loops, "rw")?;
        let done = work(&self.path("kernel"));
        command::run(command("umount").arg(self.path("kernel")))?;
        drop(loops);
        for image in &images {
            std::fs::remove_file(image)?;
        }
        done
    }

    fn mount_kernel(&self, loops: &Loops, access: &str) -> Result<()> {
        // The kernel lists the devices of a btrfs one after the other, and tests have it forget all: `list_lock` of the testkit.
        const SCRIPT: &str = r#"
dir=${TMPDIR:-/tmp}/platter-btrfs-locks
mkdir -p "$dir"
exec flock --shared "$dir/list" mount -t "$1" -o "$2" "$3" "$4"
"#;
        let options = self.with_devices(access.to_owned(), &loops.0);
        let mut mount = command("sh");
        mount.args(["-c", SCRIPT, "sh", self.cell.kind.kernel_type(), &options]);
        command::run(mount.arg(&loops.0[0]).arg(self.path("kernel")))
    }

    /// The images of its devices.
    fn images(&self) -> Vec<PathBuf> {
        let others = (1..self.cell.devices).map(|number| self.path(&format!("disk{number}.img")));
        std::iter::once(self.path("disk.img"))
            .chain(others)
            .collect()
    }

    /// Options of a mount by platter for writing, for everyone.
    fn options(&self) -> String {
        let own = Some(self.cell.mount).filter(|own| !own.is_empty());
        let words = ["rw", "allow_other"].into_iter().chain(own);
        self.with_devices(words.collect::<Vec<_>>().join(","), &self.images())
    }

    /// Options of a mount, with the devices after the first one.
    fn with_devices(&self, mut options: String, devices: &[impl AsRef<Path>]) -> String {
        for device in devices.iter().skip(1) {
            for word in [",", self.cell.kind.device_option(), "="] {
                options.push_str(word);
            }
            options.push_str(&device.as_ref().to_string_lossy());
        }
        options
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
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
        mount.args(["mount", "-o", &self.options()]);
        command::run(mount.arg(self.path("disk.img")).arg(self.mounted()))
    }

    /// Mounts with a server in the foreground, to be killed.
    pub(super) fn serve(&self) -> Result<Child> {
        let mut mount = self.program();
        mount.args(["mount", "-f", "-o", &self.options()]);
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

    /// Removes the mount of a server that is gone.
    pub(super) fn abandon(&self) -> Result<()> {
        command::run(command("umount").arg("--lazy").arg(self.mounted()))
    }

    /// Whether files have extents, and can be taken space for.
    pub(super) fn has_extents(&self) -> bool {
        !matches!(self.cell.generation(), "ext2" | "ext3")
    }

    /// How many extents of the unmounted btrfs are compressed by that method, as btrfs-progs read them.
    pub(super) fn compressed_extents(&self, method: &str) -> Result<usize> {
        let mut dump = command("btrfs");
        dump.args(["inspect-internal", "dump-tree"]);
        let dumped = command::output(dump.arg(self.path("disk.img")))?;
        let end = format!("({method})");
        let is_compressed = |line: &&str| {
            let line = line.trim();
            line.starts_with("extent compression ") && line.ends_with(&end)
        };
        let dumped = String::from_utf8_lossy(&dumped);
        Ok(dumped.lines().filter(is_compressed).count())
    }

    pub(super) fn unmount(&self) -> Result<()> {
        command::run(self.program().arg("umount").arg(self.mounted()))
    }

    /// Checks the unmounted image by the filesystem's own program.
    pub(super) fn check(&self) -> Result<()> {
        let loops = Loops::of(&self.images())?;
        if self.cell.kind == Kind::Btrfs {
            // The program finds the other devices so.
            command::output(command("btrfs").args(["device", "scan"]).args(&loops.0))?;
        }
        let mut judge = self.cell.kind.judge(&loops.0);
        let report = command::report(&mut judge)?;
        let complaint = self.cell.kind.complaint(&report);
        ensure!(
            complaint.is_none(),
            "{judge:?} says {complaint:?}\n{report}"
        );
        Ok(())
    }

    /// Checks that the unmounted image is clean, and that the kernel finds in it what platter does, attributes included.
    pub(super) fn judge(&self) -> Result<()> {
        self.mount()?;
        let mut sh = command("sh");
        let made = command::output(sh.args(["-c", ATTRIBUTES, "sh"]).arg(self.mounted()));
        self.unmount()?;
        made.context("files with attributes")?;
        self.check()?;
        let images = self.images();
        let mut check = self.program();
        check.arg("check").arg(&images[0]);
        for image in &images[1..] {
            check
                .arg(format!("--{}", self.cell.kind.device_option()))
                .arg(image);
        }
        command::run(&mut check)?;
        let mut mount = self.program();
        mount.args(["mount", "-o", &self.with_devices("ro".to_owned(), &images)]);
        command::run(mount.arg(&images[0]).arg(self.mounted()))?;
        let ours = listing(&self.mounted());
        self.unmount()?;
        let kernel = self.path("kernel");
        let loops = Loops::of(&images)?;
        self.mount_kernel(&loops, "ro")?;
        let theirs = listing(&kernel);
        command::run(command("umount").arg(&kernel))?;
        drop(loops);
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
        let unlisted = LISTED.iter().find(|line| !theirs.contains(**line));
        ensure!(unlisted.is_none(), "the listing lacks {unlisted:?}");
        println!("{} lines of listing are the same", ours.lines().count());
        Ok(())
    }
}

/// Loop devices of images, which are detached when they are dropped.
struct Loops(Vec<String>);

impl Loops {
    fn of(images: &[PathBuf]) -> Result<Self> {
        let mut loops = Self(Vec::new());
        for image in images {
            let mut attach = command("losetup");
            loops
                .0
                .push(command::text(attach.args(["--find", "--show"]).arg(image))?);
        }
        Ok(loops)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for name in &self.0 {
            // A btrfs that was scanned is not looked for there any more.
            let _ = command::output(command("btrfs").args(["device", "scan", "--forget", name]));
            let _ = command::output(command("losetup").arg("--detach").arg(name));
        }
        // The kernel releases them late, and platter takes no image that a loop device has.
        for _ in 0..WAITS_MAX {
            let list = command::output(command("losetup").args(["--list", "--noheadings"]));
            let list = list.unwrap_or_default();
            let list = String::from_utf8_lossy(&list);
            let in_use = |name: &&str| self.0.iter().any(|own| own == name);
            let names = list
                .lines()
                .filter_map(|line| line.split_whitespace().next());
            if names.filter(in_use).count() == 0 {
                break;
            }
            std::thread::sleep(WAIT);
        }
    }
}

/// A new directory, locked against [clearing](clear_old).
fn locked_dir() -> Result<(PathBuf, File)> {
    loop {
        let mut mktemp = command("mktemp");
        let dir = command::text(mktemp.args(["--directory", "--tmpdir", "platter-soak.XXXXXX"]))?;
        let dir = PathBuf::from(dir);
        // Before it is locked, it may be cleared.
        let Ok(lock) = File::open(&dir) else { continue };
        lock.lock()?;
        if dir.is_dir() {
            return Ok((dir, lock));
        }
    }
}

fn listing(dir: &Path) -> Result<String> {
    let mut sh = command("sh");
    let listing = command::output(sh.args(["-c", LISTING, "sh"]).arg(dir))?;
    Ok(String::from_utf8_lossy(&listing).into_owned())
}

/// Clears what portions left that were killed.
pub(super) fn clear_old() -> Result<()> {
    const SCRIPT: &str = r#"
for dir in "${TMPDIR:-/tmp}"/platter-soak.*; do
    [ -d "$dir" ] && command exec 9<"$dir" && flock --nonblock 9 || continue
    for place in mounted kernel; do umount --lazy "$dir/$place" 2>/dev/null; done
    for image in "$dir"/*.img; do
        losetup --associated "$image" --noheadings --output NAME | xargs -r losetup --detach
    done
    rm -rf --one-file-system "$dir"
done
"#;
    command::run(command("sh").args(["-c", SCRIPT]))
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Most often nothing is mounted any more.
        for place in ["mounted", "kernel"] {
            let _ = command::output(command("umount").arg("--lazy").arg(self.path(place)));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
