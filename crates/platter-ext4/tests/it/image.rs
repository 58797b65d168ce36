//! Images made by mke2fs and debugfs, and ways to look into them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use platter_block::{Access, BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::clock::FixedClock;
use platter_vfs::{Filesystem, Inode, Name, Result, Timestamp};
use tempfile::TempDir;

/// An image in a directory of its own.
pub(crate) struct Image {
    dir: TempDir,
}

impl Image {
    /// A file of `size` as mke2fs knows sizes, formatted with `options`.
    pub(crate) fn format(options: &[&str], size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir };
        let path = image.path();
        let mut command = tool("mke2fs");
        command.args(["-q", "-F", "-U", "0d15ea5e-0000-4000-8000-00c0ffee0001"]);
        command.args(["-E", "hash_seed=0d15ea5e-0000-4000-8000-00c0ffee0002"]);
        run(command.args(options).arg(&path).arg(size), "");
        image
    }

    /// The image itself.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Runs these debugfs commands, one a line, on the image.
    pub(crate) fn debugfs(&self, commands: &str) -> String {
        let mut command = tool("debugfs");
        run(command.args(["-w", "-f", "-"]).arg(self.path()), commands)
    }

    /// Opens the image with the default options.
    pub(crate) fn mount(&self) -> Ext4 {
        self.try_mount(&MountOptions::default()).unwrap()
    }

    /// Opens the image for reading.
    pub(crate) fn try_mount(&self, options: &MountOptions) -> Result<Ext4> {
        mount(self.device(Access::Read), options)
    }

    /// What `e2fsck -fn` finds wrong; nothing in a clean image.
    pub(crate) fn faults(&self) -> String {
        let output = tool("e2fsck").arg("-fn").arg(self.path()).output();
        let output = output.unwrap_or_else(|error| panic!("e2fsck is needed: {error}"));
        if output.status.success() {
            return String::new();
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns a field of the superblock as printed by dumpe2fs.
    pub(crate) fn field(&self, name: &str) -> String {
        let printed = run(tool("dumpe2fs").arg("-h").arg(self.path()), "");
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default()
            .trim_start_matches(':')
            .trim()
            .into()
    }

    /// Flips a bit of the first block bitmap or inode bitmap, in this byte, which breaks its checksum or
    /// count. Blocks have 1 KiB.
    pub(crate) fn corrupt_bitmap(&self, kind: &str, byte: u64) {
        let text = run(tool("dumpe2fs").arg(self.path()), "");
        let place = text.split(&format!("{kind} bitmap at ")).nth(1).unwrap();
        let block = place.split([' ', ',', '\n']).next().unwrap();
        let offset = block.parse::<u64>().unwrap() * 1024 + byte;
        let mut options = File::options();
        let file = options.read(true).write(true).open(self.path()).unwrap();
        let mut bits = [0];
        file.read_exact_at(&mut bits, offset).unwrap();
        file.write_all_at(&[bits[0] ^ 0x10], offset).unwrap();
    }

    /// The image as a device.
    pub(crate) fn device(&self, access: Access) -> Arc<dyn BlockDevice> {
        let options = OpenOptions {
            access,
            ..OpenOptions::default()
        };
        Arc::new(FileDevice::open(&self.path(), options).unwrap())
    }
}

/// Opens the filesystem on a device.
pub(crate) fn mount(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Ext4> {
    let budget = Arc::new(MemoryBudget::new(32 << 20));
    let now = Timestamp {
        seconds: 1_700_000_100,
        nanoseconds: 7,
    };
    let clock = Arc::new(FixedClock::new(now, 1));
    Ext4::mount(device, options, budget, clock)
}

/// The inode that a path of names from the root leads to.
pub(crate) fn walk(filesystem: &Ext4, path: &str) -> Result<Arc<dyn Inode>> {
    let mut inode = filesystem.root()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        inode = inode.lookup(Name::new(name.as_bytes())?)?;
    }
    Ok(inode)
}

/// All bytes of a file, read in pieces of `step`.
pub(crate) fn read_all(inode: &dyn Inode, step: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; step];
    loop {
        let count = inode.read_at(bytes.len() as u64, &mut piece).unwrap();
        if count == 0 {
            return bytes;
        }
        bytes.extend(&piece[..count]);
    }
}

/// Bytes that look random and are the same every time.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let words = length.div_ceil(8);
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}

/// A program of e2fsprogs, at a fixed time.
pub(crate) fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C")
        .env("MKE2FS_CONFIG", "/dev/null")
        .env("E2FSPROGS_FAKE_TIME", "1700000000");
    command
}

/// Runs a tool to its end with `input`; it must be there and succeed.
pub(crate) fn run(command: &mut Command, input: &str) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{name} is needed for this test: {error}"));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{name} failed: {text}");
    text
}

/// Writes a host file.
pub(crate) fn write(path: &Path, bytes: &[u8]) {
    File::create(path).unwrap().write_all(bytes).unwrap();
}
