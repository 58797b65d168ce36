//! A tree of many small files in many directories, like that of a program's source: unpacked, found,
//! listed, and read as a whole.

use anyhow::{Context, Result, ensure};
use testkit::prng::Prng;

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, cold, phase, sync};
use crate::place::{Directory, Mode};
use crate::side::Side;

/// Files in each directory at the bottom.
const FILES_PER_DIR: u64 = 50;
/// Directories in each directory above, but for the root of the tree, which has as many as it takes.
const DIRS_PER_DIR: u64 = 10;
/// More bytes than any file has.
const FILE_BYTES_MAX: usize = 64 << 10;

pub(crate) const TREE: Workload = Workload {
    name: "tree",
    about: "files of 2 KiB on average, 50 in each directory",
    count: Amount {
        quick: 500,
        full: 10_000,
    },
    particular: &[Side::BindfsLong],
    phases: &[
        MAKE_DIRS,
        phase("unpack", Unit::Operations, unpack),
        phase("sync after unpack", Unit::Once, sync),
        cold("cold find", Unit::Operations, find),
        cold("cold ls -lR", Unit::Operations, list),
        cold("cold tar", Unit::Operations, read_all),
    ],
    ..USUAL
};

/// The directories from the top to a file, and its name.
fn path_of(number: u64) -> ([String; 3], String) {
    let dir = number / FILES_PER_DIR;
    let middle = dir / DIRS_PER_DIR;
    let path = [
        format!("top{}", middle / DIRS_PER_DIR),
        format!("middle{}", middle % DIRS_PER_DIR),
        format!("subdir{}", dir % DIRS_PER_DIR),
    ];
    (path, format!("file{number}.txt"))
}

/// How long the next file is: most are short, a few are not.
fn next_length(prng: &mut Prng) -> Result<usize> {
    let largest = match prng.below(20) {
        0 => 20_000,
        1..5 => 6000,
        _ => 2000,
    };
    Ok(usize::try_from(prng.below(largest))?)
}

/// Makes the tree of so many files in `root`, the same one every time.
pub(crate) fn plant(
    root: &dyn Directory,
    files: u64,
    mut each: impl FnMut(&mut dyn FnMut() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut prng = Prng::new(1);
    let bytes = prng.bytes(FILE_BYTES_MAX);
    let mut at: Vec<(String, Box<dyn Directory>)> = Vec::new();
    for number in 0..files {
        let (path, name) = path_of(number);
        let same = path
            .iter()
            .zip(&at)
            .take_while(|(name, (at, _))| *name == at);
        let same = same.count();
        at.truncate(same);
        for name in path.into_iter().skip(same) {
            let above = at.last().map_or(root, |(_, dir)| &**dir);
            let dir = above.make_dir(&name)?;
            at.push((name, dir));
        }
        let (_, dir) = at.last().context("every file has a directory")?;
        let length = next_length(&mut prng)?;
        let start = usize::try_from(prng.below((FILE_BYTES_MAX - length) as u64))?;
        each(&mut || dir.create(&name)?.write_at(0, &bytes[start..][..length]))?;
    }
    Ok(())
}

fn unpack(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        plant(dir, site.share(), |write| latencies.time(write))?;
        Ok(site.share())
    })
}

/// What a walk found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Found {
    files: u64,
    bytes: u64,
}

/// Goes through a whole tree; `look` gives the bytes of a file.
fn walk(
    dir: &dyn Directory,
    found: &mut Found,
    look: &mut dyn FnMut(&dyn Directory, &crate::place::Entry) -> Result<u64>,
) -> Result<()> {
    for entry in dir.list()? {
        let bytes = look(dir, &entry)?;
        if entry.is_dir {
            walk(&*dir.dir(&entry.name)?, found, look)?;
        } else {
            found.files += 1;
            found.bytes += bytes;
        }
    }
    Ok(())
}

fn find(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, _| {
        let mut found = Found::default();
        walk(dir, &mut found, &mut |_, _| Ok(0))?;
        ensure!(
            found.files == site.share(),
            "{} files were found",
            found.files
        );
        Ok(found.files)
    })
}

fn list(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, _| {
        let mut found = Found::default();
        walk(dir, &mut found, &mut |dir, entry| dir.size_bytes_of(entry))?;
        ensure!(
            found.files == site.share(),
            "{} files were found",
            found.files
        );
        ensure!(
            found.bytes == bytes_of(site.share())?,
            "{} bytes",
            found.bytes
        );
        Ok(found.files)
    })
}

fn read_all(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        let mut found = Found::default();
        let mut buffer = vec![0; FILE_BYTES_MAX];
        walk(dir, &mut found, &mut |dir, entry| {
            if entry.is_dir {
                return Ok(0);
            }
            latencies.time(|| {
                let size = dir.size_bytes_of(entry)?;
                let file = dir.open(&entry.name, Mode::Read)?;
                let length = file.read_at(0, &mut buffer)? as u64;
                ensure!(length == size, "{length} of {size} bytes");
                Ok(length)
            })
        })?;
        ensure!(
            found.bytes == bytes_of(site.share())?,
            "{} bytes",
            found.bytes
        );
        Ok(found.files)
    })
}

/// What all files of a tree hold together.
fn bytes_of(files: u64) -> Result<u64> {
    let mut prng = Prng::new(1);
    prng.bytes(FILE_BYTES_MAX);
    let mut sum = 0;
    for _ in 0..files {
        let length = next_length(&mut prng)?;
        prng.below((FILE_BYTES_MAX - length) as u64);
        sum += length as u64;
    }
    Ok(sum)
}
