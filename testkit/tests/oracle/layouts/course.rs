//! What one layout goes through. After each step `platter check` is silent and `e2fsck` finds
//! nothing.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use platter::block::Access;
use platter::{DeviceRole, Image, ImageSpec, MountOptions, WriteOptions};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::io::Errno;
use testkit::compare::{Rules, compare};
use testkit::findings::Findings;
use testkit::loopdev::{self, LoopDevice, Mount};
use testkit::oracle::{e2fsck, mke2fs};
use testkit::{program, served, tool};

use super::catalogue::{FormatOptions, Layout};

/// Files of the directory that gets an index.
const MANY: u32 = 150;
/// Size of a journal on a device of its own.
const JOURNAL_KIB: u64 = 8 << 10;

/// An image, and the tree that it should hold.
struct Course<'a> {
    layout: &'a Layout,
    /// Images are sparse, and longer than what many filesystems let a file be.
    _memory: Tmpfs,
    image: PathBuf,
    journal: Option<LoopDevice>,
    tree: PathBuf,
    mountpoint: PathBuf,
    _dir: tempfile::TempDir,
}

impl Layout {
    /// The program and its options.
    pub(super) fn name(&self) -> String {
        let maker = match self.maker {
            FormatOptions::Mke2fs => "mke2fs",
            FormatOptions::Platter => "platter mkfs",
        };
        let device = if self.has_journal_device {
            ", journal device"
        } else {
            ""
        };
        format!(
            "{maker} {} {} MiB{device}",
            self.options.join(" "),
            self.size_kib >> 10
        )
    }
}

/// Takes a layout through all that it is good for.
pub(super) fn run(layout: &Layout) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| -> Result<PathBuf> {
        let path = dir.path().join(name);
        fs::create_dir(&path)?;
        Ok(path)
    };
    let memory = Tmpfs::mount(path("memory")?)?;
    let mut course = Course {
        layout,
        image: memory.0.join("image"),
        _memory: memory,
        journal: None,
        tree: path("tree")?,
        mountpoint: path("mount")?,
        _dir: dir,
    };
    course.make().context("made")?;
    course.assert_clean("made")?;
    if layout.is_written {
        course.write(&write_first).context("written")?;
        course.assert_clean("written")?;
    }
    if layout.is_mounted {
        course
            .compare_with_kernel()
            .context("compared with the kernel")?;
    }
    if layout.is_mounted && layout.is_written_by_kernel {
        course.write_by_kernel().context("written by the kernel")?;
        course.assert_clean("written by the kernel")?;
    }
    if layout.grown_kib != 0 {
        course.grow().context("grown")?;
        course.assert_clean("grown")?;
        course.write(&write_last).context("written when grown")?;
        course.assert_clean("written when grown")?;
    }
    Ok(())
}

impl Course<'_> {
    fn make(&mut self) -> Result<()> {
        let layout = self.layout;
        if layout.maker == FormatOptions::Platter {
            let mut platter = program::platter()?;
            platter.arg("mkfs").args(layout.options);
            platter.arg("--size").arg(format!("{}K", layout.size_kib));
            tool::succeed(platter.arg(&self.image))?;
            return Ok(());
        }
        let mut options = layout.options.to_vec();
        let device;
        if layout.has_journal_device {
            device = self.make_journal()?;
            options.extend(["-J", &device]);
        }
        // A filesystem that platter does not write to is filled where it is made.
        let contents = if layout.is_written {
            None
        } else {
            write_first(&self.tree)?;
            Some(&*self.tree)
        };
        mke2fs::make(&self.image, layout.size_kib, &options, contents)?;
        if contents.is_some() {
            // mke2fs counts quotas before it copies files.
            e2fsck::repair(&self.image, &["-f", "-y"])?;
        }
        Ok(())
    }

    /// Makes a journal on a device of its own; the option of `mke2fs` that names it.
    fn make_journal(&mut self) -> Result<String> {
        let path = self.image.with_file_name("journal");
        let mut options = vec!["-O", "journal_dev"];
        let size = self
            .layout
            .options
            .iter()
            .skip_while(|&&option| option != "-b");
        options.extend(size.take(2));
        mke2fs::make(&path, JOURNAL_KIB, &options, None)?;
        let device = LoopDevice::attach(&path, loopdev::Access::ReadWrite)?;
        let option = format!("device={}", device.path().display());
        self.journal = Some(device);
        Ok(option)
    }

    fn open_options(&self) -> MountOptions {
        match &self.journal {
            Some(journal) => MountOptions::new().device(DeviceRole::Log, journal.path()),
            None => MountOptions::new(),
        }
    }

    fn assert_clean(&self, when: &str) -> Result<()> {
        let image = Image::open(&self.image, Access::Read)?;
        let mut findings = Findings::default();
        let report = self.open_options().check(&image, &mut findings)?;
        let findings = findings.0;
        ensure!(
            findings.is_empty() && report.is_clean(),
            "{when}: check: {findings:#?}"
        );
        let (verdict, said) = e2fsck::report(&self.image)?;
        ensure!(verdict.is_clean(), "{when}: e2fsck: {said}");
        Ok(())
    }

    /// Changes the filesystem through a mount of platter's, and the reference tree alike.
    fn write(&self, change: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
        change(&self.tree).context("the reference tree")?;
        let writing = WriteOptions {
            uses_reserve: true,
            ..WriteOptions::default()
        };
        let open = self.open_options().writing(writing);
        let mut session = served::mount(&self.image, &open, &self.mountpoint, "")?;
        let changed = change(&self.mountpoint);
        served::unmount(&mut session)?;
        changed
    }

    fn compare_with_kernel(&self) -> Result<()> {
        let volume = self.open_options().open(&ImageSpec::parse(&self.image)?)?;
        let rules = Rules {
            xattrs: self.has_attributes(),
            modified_seconds: false,
            owners: false,
            ..Rules::SOURCE_DIR
        };
        compare(&**volume.filesystem(), &self.tree, rules)?.assert_equal();
        let mount = self.kernel_mount(loopdev::Access::ReadOnly)?;
        compare(&**volume.filesystem(), mount.root(), Rules::KERNEL_MOUNT)?.assert_equal();
        Ok(())
    }

    fn write_by_kernel(&self) -> Result<()> {
        let mount = self.kernel_mount(loopdev::Access::ReadWrite)?;
        write_middle(mount.root())?;
        mount.unmount(&self.image)?;
        write_middle(&self.tree)
    }

    fn kernel_mount(&self, access: loopdev::Access) -> Result<Mount> {
        let options = match &self.journal {
            Some(journal) => format!("journal_path={}", journal.path().display()),
            None => String::new(),
        };
        // Tables of inodes that are zeroed meanwhile are the same ones for both.
        let is_ext4 = self.layout.options.contains(&"ext4");
        let lazy = if is_ext4 { "noinit_itable" } else { "" };
        Mount::image(&self.image, &format!("{options},{lazy}"), access)
    }

    fn has_attributes(&self) -> bool {
        !self.layout.options.contains(&"^ext_attr") && !self.layout.options.contains(&"-r")
    }

    fn grow(&self) -> Result<()> {
        let mut platter = program::platter()?;
        platter.arg("resize").arg(&self.image);
        tool::succeed(platter.arg(format!("{}K", self.layout.grown_kib)))?;
        Ok(())
    }
}

/// A tmpfs that is unmounted when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: PathBuf) -> Result<Self> {
        let mut mount = tool::command("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4g", "platter"]);
        tool::succeed(mount.arg(&at))?;
        Ok(Self(at))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = tool::finish(tool::command("umount").arg("--lazy").arg(&self.0));
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

/// Every kind of file, an index, holes, attributes, and what goes again.
fn write_first(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("a/b/c"))?;
    fs::create_dir(root.join("many"))?;
    for (name, len) in [
        ("empty", 0),
        ("short", 40),
        ("page", 4096),
        ("middle", 30_000),
        ("long", 700_000),
    ] {
        fs::write(root.join("a").join(name), pattern(len))?;
    }
    let sparse = File::create(root.join("a/b/sparse"))?;
    for offset in [5_000, 300_000, 3 << 20] {
        sparse.write_all_at(&pattern(6_000), offset)?;
    }
    sparse.set_len(5 << 20)?;
    for number in 0..MANY {
        fs::write(root.join(format!("many/{number:0>60}")), number.to_string())?;
    }
    for number in (0..MANY).step_by(3) {
        fs::remove_file(root.join(format!("many/{number:0>60}")))?;
    }
    for number in (1..MANY).step_by(15) {
        let from = root.join(format!("many/{number:0>60}"));
        fs::rename(from, root.join(format!("a/b/c/{number}")))?;
    }
    fs::hard_link(root.join("a/short"), root.join("a/b/also short"))?;
    symlink("a/short", root.join("link"))?;
    symlink("t".repeat(200), root.join("long link"))?;
    rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RUSR, 0)?;
    let middle = File::options().write(true).open(root.join("a/middle"))?;
    middle.write_all_at(&[0xaa; 3_000], 10_001)?;
    middle.set_len(20_000)?;
    for (name, len) in [("short", 20), ("middle", 400)] {
        let path = root.join("a").join(name);
        let value = pattern(len);
        match rustix::fs::setxattr(&path, "user.value", &value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => bail!("attribute of {len} bytes: {error}"),
        }
    }
    Ok(())
}

/// As another driver goes on.
fn write_middle(root: &Path) -> Result<()> {
    fs::create_dir(root.join("theirs"))?;
    fs::write(root.join("theirs/file"), pattern(50_000))?;
    fs::remove_file(root.join("a/page"))?;
    let long = File::options().write(true).open(root.join("a/long"))?;
    long.set_len(100_000)?;
    long.write_all_at(&pattern(9_000), 120_000)?;
    for number in (0..MANY).filter(|number| number % 3 == 2) {
        fs::remove_file(root.join(format!("many/{number:0>60}")))?;
    }
    Ok(())
}

/// Where there is more to write to than there was.
fn write_last(root: &Path) -> Result<()> {
    fs::create_dir(root.join("last"))?;
    for number in 0..40 {
        fs::write(root.join(format!("last/{number}")), pattern(number * 1_111))?;
    }
    fs::remove_dir_all(root.join("a/b"))?;
    let file = root
        .join("last")
        .join(std::ffi::OsStr::from_bytes(b"\xff name"));
    fs::write(file, b"last")?;
    Ok(())
}
