//! What reading takes of the device and of memory, in a process for each.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter::archive::{TarOptions, write_tar};
use platter::block::Access;
use platter::{Image, MemoryBudget, Volume};
use platter_btrfs::{Btrfs, MountOptions};
use platter_vfs::inode::read_dir_all;
use platter_vfs::{FileKind, Filesystem, Inode, Name, SystemClock};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;

use super::Kind;
use super::images::name_of;
use super::ways::cool;
use crate::child;
use crate::measure::{float, now, peak_bytes};

/// The first argument of the process.
pub(crate) const PART: &str = "read-counted";
const CACHE_BYTES: u64 = platter::open::CACHE_BYTES_DEFAULT;
const LOOKUPS: u64 = 1000;

/// What is done in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Work {
    Mount,
    /// Names and attributes of everything, as `ls -lR`.
    List,
    /// Names of everything, as `find`.
    Find,
    /// All files in an archive.
    Archive,
    /// The names of one large directory of so many.
    Names(u64),
    /// Some of them, one by one.
    Lookup(u64),
}

impl Work {
    const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::List => "ls -lR",
            Self::Find => "find",
            Self::Archive => "tar",
            Self::Names(_) => "list names",
            Self::Lookup(_) => "look up names",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    image: PathBuf,
    fs_type: FsType,
    /// What is printed of the image.
    what: String,
    work: Work,
}

/// What it took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) image: String,
    pub(crate) work: String,
    /// Files, names, or one mount.
    pub(crate) amount: u64,
    pub(crate) mount_reads: u64,
    pub(crate) mount_seconds: f64,
    /// Mounting left out.
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) decompressions: u64,
    /// Compressed extents of the files.
    pub(crate) extents: u64,
    pub(crate) peak_bytes: u64,
}

impl Counted {
    pub(super) fn show(&self) {
        let per = float(self.reads) / float(self.amount.max(1));
        print!(
            "{:<22}{:<14}{:>8} reads ({per:.4} each), {:>6} KiB, mount {} reads {:.1} ms, peak {} MiB",
            self.image,
            self.work,
            self.reads,
            self.read_bytes >> 10,
            self.mount_reads,
            self.mount_seconds * 1e3,
            self.peak_bytes >> 20
        );
        if self.extents > 0 {
            let per = float(self.decompressions) / float(self.extents);
            print!(
                ", {per:.2} decompressions for each of {} extents",
                self.extents
            );
        }
        println!();
    }
}

pub(super) fn of_tree(image: &Path, kind: Kind) -> Result<Vec<Counted>> {
    let works = [Work::List, Work::Find, Work::Archive];
    let count = |work| run(image, kind.fs_type(), kind.name().to_owned(), work);
    works.into_iter().map(count).collect()
}

pub(super) fn of_names(image: &Path, names: u64) -> Result<Vec<Counted>> {
    let works = [Work::Names(names), Work::Lookup(names)];
    let what = format!("XFS, {names} names");
    let count = |work| run(image, FsType::Xfs, what.clone(), work);
    works.into_iter().map(count).collect()
}

pub(super) fn of_mount(image: &Path, mib: u64) -> Result<Counted> {
    let what = format!("XFS of {} GiB", mib >> 10);
    run(image, FsType::Xfs, what, Work::Mount)
}

fn run(image: &Path, fs_type: FsType, what: String, work: Work) -> Result<Counted> {
    cool()?;
    let orders = Orders {
        image: image.to_owned(),
        fs_type,
        what,
        work,
    };
    let counted = child::run(PART, &orders);
    counted.with_context(|| format!("{} of {}", work.name(), orders.what))
}

/// The process' part.
pub(crate) fn part(orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders)?;
    println!("{}", serde_json::to_string(&count(&orders)?)?);
    Ok(())
}

/// The image as the commands mount it, which counts its requests.
struct Opened {
    volume: Volume,
}

impl Opened {
    fn new(orders: &Orders) -> Result<Self> {
        let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
        let image = Image::open(&orders.image, Access::Read)?;
        let options = platter::MountOptions::new().budget(budget).count_requests();
        Ok(Self {
            volume: options.mount(&image)?,
        })
    }

    fn reads(&self) -> Result<(u64, u64)> {
        let counts = self.volume.request_counts().context("they are counted")?;
        Ok((counts.reads, counts.read_bytes))
    }
}

/// How many extents of a btrfs an archive decompresses, and how many compressed ones there are. The image is mounted
/// again for that, without the layer that reads small files together, which decompresses nothing.
fn decompressions(image: &Path) -> Result<(u64, u64)> {
    let image = Image::open(image, Access::Read)?;
    let devices = [Arc::clone(image.device())];
    let options = MountOptions::default();
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    let clock = Arc::new(SystemClock::new());
    let btrfs = Arc::new(Btrfs::mount(&devices, &options, budget, clock)?);
    archive(&Volume::new(
        "image",
        Arc::clone(&btrfs) as Arc<dyn Filesystem>,
    ))?;
    let decompressions = btrfs.super_block().decompressed.decompressions();
    let mut extents = 0;
    compressed_extents(&btrfs.root()?, &mut extents)?;
    Ok((decompressions, extents))
}

fn count(orders: &Orders) -> Result<Counted> {
    let start = now();
    let opened = Opened::new(orders)?;
    let mount_seconds = start.elapsed().as_secs_f64();
    let before = opened.reads()?;
    let root = opened.volume.filesystem().root()?;
    let amount = match orders.work {
        Work::Mount => 1,
        Work::List => walk(&root, true)?,
        Work::Find => walk(&root, false)?,
        Work::Archive => archive(&opened.volume)?,
        Work::Names(names) => {
            let directory = root.lookup(Name::new(b"names")?)?;
            let listed = read_dir_all(&*directory)?.len() as u64;
            ensure!(listed >= names, "{listed} names are listed");
            names
        }
        Work::Lookup(names) => {
            let directory = root.lookup(Name::new(b"names")?)?;
            let count = LOOKUPS.min(names);
            for number in 0..count {
                let name = name_of(number * (names / count));
                directory.lookup(Name::new(name.as_bytes())?)?;
            }
            count
        }
    };
    let after = opened.reads()?;
    let peak_bytes = peak_bytes(std::process::id())?;
    let (decompressions, extents) = match (orders.work, orders.fs_type) {
        (Work::Archive, FsType::Btrfs) => decompressions(&orders.image)?,
        _ => (0, 0),
    };
    Ok(Counted {
        image: orders.what.clone(),
        work: orders.work.name().to_owned(),
        amount,
        mount_reads: before.0,
        mount_seconds,
        reads: after.0 - before.0,
        read_bytes: after.1 - before.1,
        decompressions,
        extents,
        peak_bytes,
    })
}

/// Visits everything below a directory. Returns how many files and directories there are.
fn walk(root: &Arc<dyn Inode>, with_attributes: bool) -> Result<u64> {
    let mut amount = 0;
    let mut pending = vec![Arc::clone(root)];
    while let Some(directory) = pending.pop() {
        let mut below = Vec::new();
        for entry in read_dir_all(&*directory)? {
            amount += 1;
            let is_directory = entry.kind == Some(FileKind::Directory);
            if is_directory || with_attributes {
                let inode = directory.lookup(Name::new(&entry.name)?)?;
                std::hint::black_box(inode.attr()?);
                if is_directory {
                    below.push(inode);
                }
            }
        }
        pending.extend(below.into_iter().rev());
    }
    Ok(amount)
}

fn archive(volume: &Volume) -> Result<u64> {
    let members: &[&[u8]] = &[b"."];
    let options = TarOptions::default();
    let summary = write_tar(
        volume,
        b"/",
        members,
        &mut std::io::sink(),
        &options,
        &mut |_| {},
    )?;
    ensure!(
        summary.corrupt == 0,
        "{} members are corrupt",
        summary.corrupt
    );
    Ok(summary.members)
}

/// Adds the compressed extents of all files below a directory.
fn compressed_extents(directory: &Arc<dyn Inode>, extents: &mut u64) -> Result<()> {
    for entry in read_dir_all(&**directory)? {
        let inode = directory.lookup(Name::new(&entry.name)?)?;
        if entry.kind == Some(FileKind::Directory) {
            compressed_extents(&inode, extents)?;
            continue;
        }
        inode.extents(0..u64::MAX, &mut |extent| {
            *extents += u64::from(extent.encoded);
            ControlFlow::Continue(())
        })?;
    }
    Ok(())
}
