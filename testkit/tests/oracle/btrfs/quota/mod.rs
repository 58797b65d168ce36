//! Quota groups that platter and the kernel change alike.

mod limits;
mod simple;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use platter_btrfs::Btrfs;
use platter_vfs::{Condition, Context, CreateKind, Error, FallocateMode, Filesystem, Inode, Name};
use rustix::fs::{FallocateFlags, OFlags};
use testkit::ioctl;
use testkit::prng::Prng;
use testkit::tool;

use super::image::Pool;

/// What is done until a limit refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Writes of less than a page, at odd offsets.
    Small,
    Buffered,
    /// Past the page cache.
    Direct,
    Preallocated,
    /// Files without contents.
    Files,
}

/// How much is added at once.
fn step_bytes(shape: Shape) -> u64 {
    match shape {
        Shape::Small => 3000,
        Shape::Buffered => 64 << 10,
        Shape::Direct | Shape::Preallocated => 256 << 10,
        Shape::Files => 0,
    }
}

/// A filesystem that is written to.
trait Side {
    /// Adds to a file of a directory. Returns whether the quota allows it.
    fn add(&mut self, dir: &str, shape: Shape, at: u64, bytes: &[u8]) -> Result<bool>;
    fn remove(&mut self, dir: &str, file: &str) -> Result<()>;
    fn snapshot(&mut self, source: &str, to: &str) -> Result<bool>;
    fn subvolume(&mut self, path: &str) -> Result<bool>;
    /// Makes a file that shares all contents of another.
    fn clone_file(&mut self, source: &str, dir: &str, file: &str) -> Result<()>;
    fn delete_subvolume(&mut self, path: &str) -> Result<()>;
    fn sync(&mut self) -> Result<()>;
}

/// The name of the file that a shape writes.
fn file_name(shape: Shape, at: u64) -> String {
    match shape {
        Shape::Files => format!("file{at}"),
        Shape::Small | Shape::Buffered | Shape::Direct | Shape::Preallocated => {
            format!("{shape:?}")
        }
    }
}

/// `BTRFS_IOC_SNAP_DESTROY`, of a name in a directory.
const SNAP_DESTROY: u32 = 0x5000_940f;

struct Kernel(PathBuf);

/// Whether a change was made, or refused by a quota.
fn allowed<T>(result: std::io::Result<T>) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::QuotaExceeded => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Side for Kernel {
    fn add(&mut self, dir: &str, shape: Shape, at: u64, bytes: &[u8]) -> Result<bool> {
        let path = self.0.join(dir).join(file_name(shape, at));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        if shape == Shape::Direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let file = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::QuotaExceeded => return Ok(false),
            file => file?,
        };
        match shape {
            Shape::Files => Ok(true),
            Shape::Preallocated => {
                let done =
                    rustix::fs::fallocate(&file, FallocateFlags::empty(), at, bytes.len() as u64);
                allowed(done.map_err(Into::into))
            }
            Shape::Direct => allowed(file.write_all_at(aligned(&mut Vec::new(), bytes), at)),
            Shape::Small | Shape::Buffered => allowed(file.write_all_at(bytes, at)),
        }
    }

    fn remove(&mut self, dir: &str, file: &str) -> Result<()> {
        Ok(fs::remove_file(self.0.join(dir).join(file))?)
    }

    fn snapshot(&mut self, source: &str, to: &str) -> Result<bool> {
        self.subvolume_command("snapshot", &[source, to])
    }

    fn subvolume(&mut self, path: &str) -> Result<bool> {
        self.subvolume_command("create", &[path])
    }

    fn clone_file(&mut self, source: &str, dir: &str, file: &str) -> Result<()> {
        let (source, to) = (self.0.join(source), self.0.join(dir).join(file));
        let mut cp = tool::command("cp");
        tool::succeed(cp.arg("--reflink=always").args([source, to]))?;
        Ok(())
    }

    fn delete_subvolume(&mut self, path: &str) -> Result<()> {
        let (dir, of) = path.rsplit_once('/').unwrap_or(("", path));
        let mut argument = vec![0; 4096];
        argument[8..8 + of.len()].copy_from_slice(of.as_bytes());
        let destroyed = ioctl::call(&self.0.join(dir), 0, SNAP_DESTROY, &argument)?;
        ensure!(destroyed.is_ok(), "{path}: {destroyed:?}");
        // Unlike syncfs, this has the kernel drop it at once.
        tool::succeed(
            tool::command("btrfs")
                .args(["filesystem", "sync"])
                .arg(&self.0),
        )?;
        self.subvolume_command("sync", &[""])?;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        rustix::fs::syncfs(File::open(&self.0)?)?;
        Ok(())
    }
}

impl Kernel {
    fn subvolume_command(&self, command: &str, paths: &[&str]) -> Result<bool> {
        let mut btrfs = tool::command("btrfs");
        btrfs.args(["subvolume", command]);
        btrfs.args(paths.iter().map(|path| self.0.join(path)));
        let finished = tool::finish(&mut btrfs)?;
        let is_refused = finished.text().contains("Disk quota exceeded");
        ensure!(is_refused || finished.code()? == 0, "{}", finished.text());
        Ok(!is_refused)
    }
}

/// The bytes at an address that direct writes take.
fn aligned<'a>(buffer: &'a mut Vec<u8>, bytes: &[u8]) -> &'a [u8] {
    buffer.resize(bytes.len() + 4096, 0);
    let skipped = buffer.as_ptr().align_offset(4096);
    let place = &mut buffer[skipped..skipped + bytes.len()];
    place.copy_from_slice(bytes);
    place
}

struct Ours(Btrfs);

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

/// As [`allowed`].
fn is_allowed<T>(result: platter_vfs::Result<T>) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(Error::Condition(Condition::QuotaExceeded)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Ours {
    fn dir(&self, path: &str) -> Result<Arc<dyn Inode>> {
        let mut dir = self.0.root()?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            dir = dir.lookup(name(part))?;
        }
        Ok(dir)
    }

    fn unmount(self) -> Result<()> {
        Ok(self.0.unmount()?)
    }

    fn split<'p>(&self, path: &'p str) -> Result<(Arc<dyn Inode>, Name<'p>)> {
        let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.dir(dir)?, name(file)))
    }
}

impl Side for Ours {
    fn add(&mut self, dir: &str, shape: Shape, at: u64, bytes: &[u8]) -> Result<bool> {
        let (dir, file) = (self.dir(dir)?, file_name(shape, at));
        let file = match dir.lookup(name(&file)) {
            Err(Error::Condition(Condition::NotFound)) => {
                let context = Context::root();
                match dir.create(&context, name(&file), CreateKind::Regular, 0o644) {
                    Err(Error::Condition(Condition::QuotaExceeded)) => return Ok(false),
                    file => file?,
                }
            }
            file => file?,
        };
        match shape {
            Shape::Files => Ok(true),
            Shape::Preallocated => {
                let mode = FallocateMode::Allocate { keep_size: false };
                is_allowed(file.fallocate(at..at + bytes.len() as u64, mode))
            }
            Shape::Direct => is_allowed(file.write_through(at, bytes)),
            Shape::Small | Shape::Buffered => is_allowed(file.write_at(at, bytes)),
        }
    }

    fn remove(&mut self, dir: &str, file: &str) -> Result<()> {
        Ok(self.dir(dir)?.unlink(&Context::root(), name(file))?)
    }

    fn snapshot(&mut self, source: &str, to: &str) -> Result<bool> {
        let source = self.dir(source)?.id().tree;
        let (dir, to) = self.split(to)?;
        let ops = self.0.subvolumes().context("subvolumes")?;
        is_allowed(ops.snapshot(&Context::root(), source, dir.id(), to, false))
    }

    fn subvolume(&mut self, path: &str) -> Result<bool> {
        let (dir, to) = self.split(path)?;
        let ops = self.0.subvolumes().context("subvolumes")?;
        is_allowed(ops.create(&Context::root(), dir.id(), to))
    }

    fn clone_file(&mut self, source: &str, dir: &str, file: &str) -> Result<()> {
        let (from, from_name) = self.split(source)?;
        let source = from.lookup(from_name)?;
        let context = Context::root();
        let dir = self.dir(dir)?;
        let file = dir.create(&context, name(file), CreateKind::Regular, 0o644)?;
        let size = source.attr()?.size_bytes;
        Ok(file.clone_range(&*source, 0..size, 0)?)
    }

    fn delete_subvolume(&mut self, path: &str) -> Result<()> {
        let (dir, of) = self.split(path)?;
        let ops = self.0.subvolumes().context("subvolumes")?;
        Ok(ops.delete(&Context::root(), dir.id(), of, None)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.0.sync()?)
    }
}

/// Adds to a directory until that is refused. Returns how many bytes were added, or files.
fn fill(side: &mut dyn Side, dir: &str, shape: Shape) -> Result<u64> {
    let mut random = Prng::new(shape as u64);
    let step = step_bytes(shape);
    let mut at = 0;
    for count in 0..200_000 {
        let bytes = random.bytes(usize::try_from(step)?);
        let position = if shape == Shape::Files { count } else { at };
        if !side.add(dir, shape, position, &bytes)? {
            return Ok(if shape == Shape::Files { count } else { at });
        }
        at += step;
    }
    anyhow::bail!("{dir} is not limited");
}

/// Usage and limits of each group, as the kernel shows them.
fn shown(pool: &Pool, rescans: bool) -> Result<BTreeMap<String, Vec<u64>>> {
    let path = pool.images[0].with_extension("shown");
    let rescan = if rescans {
        "until btrfs quota rescan -w \"$1\"; do sleep 0.1; done"
    } else {
        ""
    };
    let show = format!(
        "{rescan}\nbtrfs qgroup show -re --raw \"$1\" > {} 2>&1",
        path.display()
    );
    pool.run("", &show)?;
    let mut text = String::new();
    File::open(&path)?.read_to_string(&mut text)?;
    ensure!(!text.contains("inconsistent"), "{text}");
    let mut groups = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains('/')) {
        let mut words = line.split_whitespace();
        let group = words.next().context("a group")?.to_owned();
        let numbers = words.take(4).map(|word| word.parse().unwrap_or(u64::MAX));
        groups.insert(group, numbers.collect());
    }
    ensure!(groups.len() > 5, "{text}");
    Ok(groups)
}
