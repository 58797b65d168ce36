//! An image of many small files in many directories, written by the kernel as a system writes them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::mke2fs;
use testkit::prng::Prng;

/// Files in each directory.
const FILES_PER_DIR: u32 = 50;
/// Directories on each level above.
const DIRS_PER_DIR: u32 = 10;

/// The image of `files` files, made in `dir`.
pub(crate) fn plant(dir: &Path, files: u32) -> Result<PathBuf> {
    let image = dir.join(format!("forest-{files}.img"));
    let size_kib = u64::from(files) * 10 + (64 << 10);
    let inodes = (files + files / 20 + 1000).to_string();
    mke2fs::make(
        &image,
        size_kib,
        &["-t", "ext4", "-b", "4096", "-N", &inodes],
        None,
    )?;
    let mount = Mount::image(&image, "", Access::ReadWrite)?;
    let mut prng = Prng::new(1);
    for number in 0..files {
        let path = mount.root().join(path_of(number));
        if number % FILES_PER_DIR == 0
            && let Some(parent) = path.parent()
        {
            std::fs::create_dir_all(parent)?;
        }
        let length = length(&mut prng);
        std::fs::write(path, prng.bytes(length))?;
    }
    mount.sync()?;
    Ok(image)
}

/// Where file `number` lies.
pub(crate) fn path_of(number: u32) -> PathBuf {
    let mut dir = number / FILES_PER_DIR;
    let mut path = PathBuf::new();
    for level in 0..3 {
        path.push(format!("level{level}-{}", dir % DIRS_PER_DIR));
        dir /= DIRS_PER_DIR;
    }
    path.join(format!("subdir{dir}"))
        .join(format!("file{number}.txt"))
}

/// Most files are small, a few are not: 4 KiB in the mean.
fn length(prng: &mut Prng) -> usize {
    let largest = match prng.below(20) {
        0 => 40_000,
        1..5 => 8000,
        _ => 4000,
    };
    usize::try_from(prng.below(largest)).unwrap_or(0)
}
