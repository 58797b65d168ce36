//! Whether the kernel refuses a filesystem, or a block, item or file of it.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::io::Errno;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::{attributes, ioctl};

use super::corrupt::Corpus;
use super::image::Pool;

/// `BTRFS_IOC_TREE_SEARCH`, and the length of its argument.
const TREE_SEARCH: u32 = 0xd000_9411;
const SEARCH_BYTES: usize = 4096;

/// What the kernel refuses, and its words.
#[derive(Debug)]
pub(super) enum Refusal {
    Mount(String),
    Read(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(text) => write!(out, "does not mount: {text}"),
            Self::Read(text) => write!(out, "does not read: {text}"),
        }
    }
}

/// Mounts the filesystem, reads every leaf of every tree, and every file. Returns what the kernel refuses, if
/// anything. The images stay as they are.
pub(super) fn refuses(corpus: &Corpus) -> Result<Option<Refusal>> {
    let images: Vec<&Path> = corpus.images().iter().map(PathBuf::as_path).collect();
    // A log is replayed, which takes a device that can be written to.
    let copy = corpus
        .has_log()
        .then(|| Pool::copy_of(&images))
        .transpose()?;
    let (images, access) = match &copy {
        Some(copy) => (copy.paths(), Access::Replay),
        None => (images, Access::ReadOnly),
    };
    let mount = match Mount::images(FsType::Btrfs, &images, "", access) {
        Ok(mount) => mount,
        Err(error) => return Ok(Some(Refusal::Mount(format!("{error:#}")))),
    };
    let unread = unread(corpus, mount.root())?;
    mount.release(&images)?;
    Ok(unread.map(Refusal::Read))
}

/// What cannot be read, and why.
fn unread(corpus: &Corpus, root: &Path) -> Result<Option<String>> {
    for tree in corpus.roots() {
        if let Err(errno) = ioctl::call(root, 0, TREE_SEARCH, &search(tree))? {
            let error = Errno::from_raw_os_error(errno);
            return Ok(Some(format!("search of tree {tree}: {error}")));
        }
    }
    let mut pending = vec![root.join(".")];
    while let Some(path) = pending.pop() {
        if let Err(error) = read(&path, &mut pending) {
            return Ok(Some(format!("{}: {error}", path.display())));
        }
    }
    Ok(None)
}

/// The argument of a search that reads every leaf of a tree and returns no item: none is of generation 0.
fn search(tree: u64) -> Vec<u8> {
    const FROM: u64 = 0;
    const TO: u64 = u64::MAX;
    const GENERATIONS: [u64; 2] = [0, 0];
    const KINDS: [u32; 2] = [0, u8::MAX as u32];
    const ITEMS_MAX: u32 = u32::MAX;
    let mut bytes = Vec::with_capacity(SEARCH_BYTES);
    for number in [tree, FROM, TO, FROM, TO].into_iter().chain(GENERATIONS) {
        bytes.extend(number.to_le_bytes());
    }
    for number in KINDS.into_iter().chain([ITEMS_MAX]) {
        bytes.extend(number.to_le_bytes());
    }
    bytes.resize(SEARCH_BYTES, 0);
    bytes
}

/// Reads all of a file. Those of a directory are still to be read.
fn read(path: &Path, pending: &mut Vec<PathBuf>) -> io::Result<()> {
    let kind = path.symlink_metadata()?.file_type();
    attributes::of(path)?;
    if kind.is_dir() {
        for entry in path.read_dir()? {
            pending.push(entry?.path());
        }
    } else if kind.is_symlink() {
        path.read_link()?;
    } else if kind.is_file() {
        io::copy(&mut File::open(path)?, &mut io::sink())?;
    }
    Ok(())
}
