//! Images with contents that the kernel wrote.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_block::{Access as DeviceAccess, BlockDevice, FileDevice, MemoryDevice, OpenOptions};
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::tree_block::Expected;
use platter_btrfs::ondisk::types::EMPTY_SUBVOL_DIR;
use platter_btrfs::ondisk::{Key, TreeId};
use platter_btrfs::txn::{WriteContext, WriteOptions, convert};
use platter_btrfs::{Btrfs, MountOptions, open_for_writing};
use platter_cache::MemoryBudget;
use platter_vfs::{SystemClock, Timestamp};
use tempfile::TempDir;
use testkit::compare::{Outcome, Rules, compare};
use testkit::fixtures::{Fixture, Place};
use testkit::fs_type::FsType;
use testkit::loopdev::{self, Access, LoopDevice, Members, Mount};
use testkit::oracle::btrfs;
use testkit::subject::store;
use testkit::{program, tool};

/// What a kernel mount and platter must agree on. Free space is an estimate of each.
pub(super) const RULES: Rules = Rules {
    stub_number: Some(EMPTY_SUBVOL_DIR),
    statfs: false,
    ..Rules::KERNEL_MOUNT
};

/// Runs a script at the root of a mount that has a path: `btrfs` finds no subvolume by name without one.
const AT_PATH: &str = r#"
set -e
mount -t tmpfs none /mnt
mkdir /mnt/fs
flock -s "$4" mount -t btrfs -o "$2" "$1" /mnt/fs
cd /mnt/fs
sh -e -c "$3"
cd /
umount /mnt/fs
"#;

/// The images of one filesystem.
pub(super) struct Pool {
    _dir: TempDir,
    pub(super) images: Vec<PathBuf>,
}

impl Pool {
    /// A filesystem on `devices` images, made with the options of `mkfs.btrfs`.
    pub(super) fn make(devices: usize, size_kib: u64, options: &[&str]) -> Result<Self> {
        let pool = Self::empty(devices)?;
        btrfs::make(&pool.paths(), size_kib, options)?;
        Ok(pool)
    }

    /// A filesystem on images of these sizes.
    pub(super) fn of_sizes(sizes_mib: &[u64], options: &[&str]) -> Result<Self> {
        let pool = Self::empty(sizes_mib.len())?;
        for (image, size_mib) in pool.images.iter().zip(sizes_mib) {
            File::create(image)?.set_len(size_mib << 20)?;
        }
        let mut mkfs = tool::command("mkfs.btrfs");
        mkfs.args(["-q", "-f"]).args(options).args(&pool.images);
        tool::succeed(&mut mkfs)?;
        Ok(pool)
    }

    /// Paths of images that are not there yet.
    pub(super) fn empty(devices: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let images = (0..devices)
            .map(|index| dir.path().join(format!("image{index}")))
            .collect();
        Ok(Self { _dir: dir, images })
    }

    pub(super) fn paths(&self) -> Vec<&Path> {
        self.images.iter().map(PathBuf::as_path).collect()
    }

    /// The images of a fixture, which has all its devices in one.
    pub(super) fn of_fixture(fixture: &Fixture) -> Result<Self> {
        let image = fixture.build()?.image;
        let count = match fixture.place {
            Place::Members(count) => count as usize,
            Place::Whole | Place::Gpt(_) | Place::MbrLogical | Place::JournalApart => 1,
        };
        let pool = Self::empty(count)?;
        let contents = std::fs::read(image)?;
        for (member, image) in contents
            .chunks_exact(contents.len() / count)
            .zip(&pool.images)
        {
            store(&MemoryDevice::new("member", member.to_vec()), image)?;
        }
        Ok(pool)
    }

    /// Images of what these devices hold.
    pub(super) fn of_devices(devices: &[impl BlockDevice]) -> Result<Self> {
        let pool = Self::empty(devices.len())?;
        for (device, image) in devices.iter().zip(&pool.images) {
            store(device, image)?;
        }
        Ok(pool)
    }

    /// What the kernel's replay of a log in these images, which are yet to be mounted, and platter's must agree on: all
    /// but the change times of files whose names the replay changes, and the times of their directories.
    pub(super) fn replay_rules(&self) -> Result<Rules> {
        let written = std::fs::metadata(&self.images[0])?;
        Ok(Rules {
            replayed_since: Some(Timestamp {
                seconds: written.mtime(),
                nanoseconds: u32::try_from(written.mtime_nsec())?,
            }),
            ..RULES
        })
    }

    /// Runs a script with the root of a kernel mount as its argument. The first command that fails ends it, and is an
    /// error.
    pub(super) fn run(&self, mount_options: &str, script: &str) -> Result<()> {
        self.mount_and_run(mount_options, script)?
            .unmount_all(&self.paths())
    }

    fn mount_and_run(&self, mount_options: &str, script: &str) -> Result<Mount> {
        let mount = Mount::images(
            FsType::Btrfs,
            &self.paths(),
            mount_options,
            Access::ReadWrite,
        )?;
        let mut shell = tool::command("sh");
        shell.args(["-e", "-c", script, "sh"]).arg(mount.root());
        tool::succeed(&mut shell)?;
        Ok(mount)
    }

    /// As [`run`](Self::run), of a script that calls `fsync` in one subvolume. Returns a copy of the devices as they are
    /// while they are mounted: they have a log.
    pub(super) fn copy_with_log(&self, script: &str) -> Result<Self> {
        let mount = self.mount_and_run("commit=300", script)?;
        let copy = self.copy()?;
        mount.unmount_all(&self.paths())?;
        let ours = self::mount(&copy.devices()?, &MountOptions::default())?;
        ensure!(log_roots(&ours)? == 1, "there is no log");
        Ok(copy)
    }

    /// Runs a script at the root of a kernel mount, in a mount namespace that ends with it.
    pub(super) fn run_at_path(&self, mount_options: &str, script: &str) -> Result<()> {
        let members = Members::claim(self.attach()?)?;
        let devices: Vec<&Path> = members.paths().collect();
        let mut options = mount_options.to_owned();
        for other in &devices[1..] {
            // Infallible.
            let _ = write!(options, ",device={}", other.display());
        }
        let mut unshare = tool::command("unshare");
        unshare.args(["--mount", "sh", "-c", AT_PATH, "sh"]);
        unshare.arg(devices[0]).args([&*options, script]);
        tool::succeed(unshare.arg(loopdev::list_lock()?))?;
        Ok(())
    }

    /// Runs a script at the root of a mount by platter, whose program `PLATTER` names.
    pub(super) fn run_at_our_mount(&self, mount_options: &str, script: &str) -> Result<()> {
        let dir = tempfile::tempdir()?;
        let at = dir.path().join("mount");
        std::fs::create_dir(&at)?;
        let mut mount = program::platter()?;
        mount.args(["mount", "-o", mount_options]);
        for other in &self.images[1..] {
            mount.arg("--device").arg(other);
        }
        tool::succeed(mount.arg(&self.images[0]).arg(&at))?;
        let mut shell = tool::command("sh");
        shell.args(["-e", "-c", script]).current_dir(&at);
        shell.env("PLATTER", program::platter()?.get_program());
        let ran = tool::succeed(&mut shell).map(drop);
        tool::succeed(program::platter()?.arg("umount").arg(&at))?;
        ran
    }

    /// Attaches its images to loop devices.
    pub(super) fn attach(&self) -> Result<Vec<LoopDevice>> {
        let attach = |image: &PathBuf| LoopDevice::attach(image, Access::ReadWrite);
        self.images.iter().map(attach).collect()
    }

    /// Moves block groups to a tree of their own: `mkfs.btrfs` 6.2 makes none.
    pub(super) fn convert_to_group_tree(&self) -> Result<()> {
        convert::to_block_group_tree(&mut self.open_for_writing()?)?;
        let names = mount(&self.devices()?, &MountOptions::default())?;
        let names = names.superblock().features.compat_ro_names();
        assert!(names.contains(&"block-group-tree"), "{names:?}");
        Ok(())
    }

    /// A copy of its images.
    pub(super) fn copy(&self) -> Result<Self> {
        Self::copy_of(&self.paths())
    }

    /// A copy of images.
    pub(super) fn copy_of(images: &[&Path]) -> Result<Self> {
        let copy = Self::empty(images.len())?;
        for (from, to) in images.iter().zip(&copy.images) {
            let mut cp = tool::command("cp");
            tool::succeed(cp.arg("--sparse=always").arg(from).arg(to))?;
        }
        Ok(copy)
    }

    /// Fills it with files of all kinds.
    pub(super) fn fill(&self, mount_options: &str) -> Result<()> {
        self.run(mount_options, include_str!("fill.sh"))
    }

    /// Opens it for transactions.
    pub(super) fn open_for_writing(&self) -> Result<WriteContext> {
        let devices = self.writable_devices()?;
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let clock = Arc::new(SystemClock::new());
        let (options, writing) = (MountOptions::default(), WriteOptions::default());
        let opened = open_for_writing(&devices, &options, writing, &budget, clock)?;
        Ok(opened)
    }

    /// Opens its devices for writing.
    pub(super) fn writable_devices(&self) -> Result<Vec<Arc<dyn BlockDevice>>> {
        open_with(&self.images, DeviceAccess::Write)
    }

    /// Opens its devices for reading.
    pub(super) fn devices(&self) -> Result<Vec<Arc<dyn BlockDevice>>> {
        open(&self.images)
    }

    /// Compares platter's mount with the kernel's. `kernel_options` choose the same root.
    pub(super) fn compare(
        &self,
        options: &MountOptions,
        kernel_options: &str,
        rules: Rules,
    ) -> Result<Outcome> {
        let btrfs = mount(&self.devices()?, options)?;
        let kernel = Mount::images(
            FsType::Btrfs,
            &self.paths(),
            kernel_options,
            Access::ReadOnly,
        )?;
        compare(&btrfs, kernel.root(), rules)
    }

    /// As [`compare`](Self::compare) with the defaults; panics with the differences if there are any.
    pub(super) fn agree(&self) -> Result<()> {
        let outcome = self.compare(&MountOptions::default(), "", RULES)?;
        assert!(outcome.files > 700, "{outcome}");
        assert_eq!(outcome.differences, 0, "{outcome}");
        Ok(())
    }
}

/// Platter's mount of these devices.
pub(super) fn mount(devices: &[Arc<dyn BlockDevice>], options: &MountOptions) -> Result<Btrfs> {
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    Ok(Btrfs::mount(
        devices,
        options,
        budget,
        Arc::new(SystemClock::new()),
    )?)
}

/// Platter's mount of a pool for writing.
pub(super) fn mount_writable(pool: &Pool) -> Result<Btrfs> {
    let budget = Arc::new(MemoryBudget::new(32 << 20));
    let clock = Arc::new(SystemClock::new());
    let (devices, options) = (pool.writable_devices()?, MountOptions::default());
    Ok(Btrfs::mount_writable(&devices, &options, budget, clock)?)
}

/// How many subvolumes have a log tree.
pub(super) fn log_roots(btrfs: &Btrfs) -> Result<usize> {
    let Some(root) = btrfs.superblock().log_root else {
        return Ok(0);
    };
    let blocks = &btrfs.super_block().context().blocks;
    let block = blocks.read(root.logical, &Expected::default())?;
    ensure!(root.level == 0, "the root of the log trees is a leaf");
    let is_root = |key: Key| key.object == TreeId::TREE_LOG.0 && key.kind == ItemKind::ROOT_ITEM;
    Ok(block.leaf().iter().filter(|(key, _)| is_root(*key)).count())
}

/// Opens images for reading.
pub(super) fn open(images: &[PathBuf]) -> Result<Vec<Arc<dyn BlockDevice>>> {
    open_with(images, DeviceAccess::Read)
}

fn open_with(images: &[PathBuf], access: DeviceAccess) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let options = OpenOptions {
        access,
        direct: false,
    };
    let open = |image: &PathBuf| -> Result<Arc<dyn BlockDevice>> {
        Ok(Arc::new(FileDevice::open(image, options)?))
    };
    images.iter().map(open).collect()
}
