//! Images by `mkfs.btrfs`, judged by `btrfs check` and mounted by the kernel.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use platter_block::{Access, BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{Result, SystemClock};

use crate::ondisk::superblock::SUPERBLOCK_OFFSETS;
use crate::txn::{WriteContext, WriteOptions};
use crate::{Btrfs, MountOptions, open_for_writing};

/// The images of one filesystem, in a directory of their own.
pub(crate) struct Pool {
    directory: PathBuf,
    images: Vec<PathBuf>,
}

/// Attaches the images `$3`..., and runs the script `$1` with the first device in `$device` and a directory to
/// mount it on in `$root`. In a mount namespace of its own, so that members are found only among the
/// images.
const WITH_DEVICES: &str = r#"
set -e
script=$1
root=$2
shift 2
images=$*
devices=
detach() {
    umount "$root" 2>/dev/null || true
    for it in $devices; do
        btrfs device scan -u $it >/dev/null 2>&1 || true
        losetup -d $it
    done
    # The kernel detaches a device when its last user closes it, which may be a moment later.
    for it in $images; do
        tries=0
        while [ -n "$(losetup -j $it)" ] && [ $tries -lt 500 ]; do
            sleep 0.02
            tries=$((tries + 1))
        done
    done
}
trap detach EXIT
device=
options=
for image in "$@"; do
    it=$(losetup -f --show "$image")
    devices="$devices $it"
    device=${device:-$it}
    options="$options,device=$it"
done
mkdir -p "$root"
options=${options#,}
. "$script"
"#;

/// Checks with a `/dev` that holds nothing but the devices: the checker scans it for members.
macro_rules! check_alone {
    ($options:literal) => {
        concat!(
            r#"
set --
for it in $devices; do
    set -- "$@" "$it" "0x$(stat -c %t $it)" "0x$(stat -c %T $it)"
done
BLKID_FILE=/dev/null unshare --mount sh -c '
    mount -t tmpfs none /dev
    first=$1
    while [ $# -gt 0 ]; do
        mknod "$1" b "$2" "$3"
        shift 3
    done
    exec btrfs check "#,
            $options,
            r#" "$first" 2>&1
' sh "$@"
"#
        )
    };
}

const CHECK_ALONE: &str = check_alone!("--readonly");

/// Checks all data as well.
pub(crate) const CHECK_DATA: &str = check_alone!("--readonly --check-data-csum");

impl Pool {
    /// Paths of images that are not there yet.
    pub(crate) fn empty(devices: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("platter-btrfs-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let image = |index| directory.join(format!("image{index}"));
        let images: Vec<_> = (0..devices).map(image).collect();
        Self { directory, images }
    }

    /// A filesystem on `devices` images.
    pub(crate) fn make(devices: usize, size_mib: u64, options: &[&str]) -> Self {
        let pool = Self::empty(devices);
        for image in &pool.images {
            let file = File::create(image).unwrap();
            file.set_len(size_mib << 20).unwrap();
        }
        let mut mkfs = Command::new("mkfs.btrfs");
        mkfs.args(["-q", "-f"]).args(options).args(&pool.images);
        succeed(&mut mkfs);
        pool
    }

    /// The images.
    pub(crate) fn images(&self) -> &[PathBuf] {
        &self.images
    }

    /// Overwrites the beginning of the first superblock of a device, as power does that fails while it is written.
    pub(crate) fn tear_superblock(&self, index: usize) {
        let torn = self.devices()[index].write_at(SUPERBLOCK_OFFSETS[0], &[0x5a; 512]);
        torn.unwrap();
    }

    /// Removes the image at a position.
    pub(crate) fn lose(&mut self, index: usize) -> PathBuf {
        self.images.remove(index)
    }

    /// Adds an image that was removed.
    pub(crate) fn regain(&mut self, image: PathBuf) {
        self.images.push(image);
    }

    /// Opens it for transactions.
    pub(crate) fn open(&self, writing: WriteOptions) -> WriteContext {
        self.try_open(writing).unwrap()
    }

    pub(crate) fn try_open(&self, writing: WriteOptions) -> Result<WriteContext> {
        open(&self.devices(), writing)
    }

    /// Opens it with mount options.
    pub(crate) fn open_with(&self, options: &MountOptions) -> Result<WriteContext> {
        open_devices(&self.devices(), options, WriteOptions::default())
    }

    /// Mounts it without a thread that commits and drops subvolumes: syncs do.
    pub(crate) fn mount_without_thread(&self) -> Btrfs {
        mount_without_thread(&self.devices())
    }

    pub(crate) fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        let options = OpenOptions {
            access: Access::Write,
            direct: false,
        };
        let open = |image: &PathBuf| -> Arc<dyn BlockDevice> {
            Arc::new(FileDevice::open(image, options).unwrap())
        };
        self.images.iter().map(open).collect()
    }

    /// Runs a script of the shell over loop devices; see [`WITH_DEVICES`]. Returns what it printed.
    pub(crate) fn run(&self, script: &str) -> String {
        let path = self.directory.join("script");
        fs::write(&path, script).unwrap();
        let mut shell = Command::new("unshare");
        shell
            .args(["--mount", "sh", "-c", WITH_DEVICES, "sh"])
            .arg(&path)
            .arg(self.directory.join("root"))
            .args(&self.images);
        succeed(&mut shell)
    }

    /// Panics unless `btrfs check` finds nothing.
    pub(crate) fn assert_clean(&self) {
        let output = match &self.images[..] {
            [image] => check(image),
            _ => self.run(CHECK_ALONE),
        };
        // Loop devices of others may go while it looks for members.
        let mut lines = output
            .lines()
            .filter(|it| !it.contains("cannot scan /dev/loop"));
        let is_clean = output.contains("no error found") && !lines.any(|it| it.contains("ERROR"));
        assert!(is_clean, "{output}");
    }
}

/// Mounts the filesystem on devices without a thread that commits and drops subvolumes: syncs do.
pub(crate) fn mount_without_thread(devices: &[Arc<dyn BlockDevice>]) -> Btrfs {
    let options = MountOptions {
        commit_interval: None,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    Btrfs::mount_writable(devices, &options, budget, clock).unwrap()
}

/// Opens devices for transactions.
pub(super) fn open(
    devices: &[Arc<dyn BlockDevice>],
    writing: WriteOptions,
) -> Result<WriteContext> {
    open_devices(devices, &MountOptions::default(), writing)
}

fn open_devices(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    writing: WriteOptions,
) -> Result<WriteContext> {
    let budget = Arc::new(MemoryBudget::new(64 << 20));
    let clock = Arc::new(SystemClock::new());
    open_for_writing(devices, options, writing, &budget, clock)
}

fn check(image: &Path) -> String {
    let mut btrfs = Command::new("btrfs");
    btrfs.args(["check", "--readonly"]).arg(image);
    let output = btrfs.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}
