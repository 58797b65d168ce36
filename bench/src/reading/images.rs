//! Images that the kernel wrote.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{btrfs, xfs};
use testkit::prng::Prng;

use crate::forest;

/// Bytes of text that files are cut from.
const TEXT_BYTES: usize = 4 << 20;
const WORDS: usize = 3000;
/// Space for one file, with its part of the metadata.
const KIB_PER_FILE: u64 = 24;
const KIB_AT_LEAST: u64 = 512 << 10;

/// What an image holds its files in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// btrfs, files not compressed.
    Btrfs,
    /// btrfs, files compressed by zstd.
    BtrfsZstd,
    /// btrfs, files compressed by zlib.
    BtrfsZlib,
    /// XFS.
    Xfs,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Btrfs, Self::BtrfsZstd, Self::BtrfsZlib, Self::Xfs];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::BtrfsZstd => "btrfs, zstd",
            Self::BtrfsZlib => "btrfs, zlib",
            Self::Xfs => "XFS",
        }
    }

    pub(crate) const fn fs_type(self) -> FsType {
        match self {
            Self::Btrfs | Self::BtrfsZstd | Self::BtrfsZlib => FsType::Btrfs,
            Self::Xfs => FsType::Xfs,
        }
    }

    const fn mount_options(self) -> &'static str {
        match self {
            Self::Btrfs | Self::Xfs => "",
            Self::BtrfsZstd => "compress=zstd",
            Self::BtrfsZlib => "compress=zlib",
        }
    }
}

/// Makes an image of so many files of text: 12 KiB in the mean, 50 in each directory.
pub(super) fn plant(kind: Kind, image: &Path, files: u64) -> Result<()> {
    let size_kib = files * KIB_PER_FILE + KIB_AT_LEAST;
    match kind.fs_type() {
        FsType::Btrfs => btrfs::make(&[image], size_kib, &[])?,
        FsType::Xfs | FsType::Ext4 => xfs::make(image, size_kib, &[])?,
    }
    let mount = Mount::images(
        kind.fs_type(),
        &[image],
        kind.mount_options(),
        Access::ReadWrite,
    )?;
    let mut prng = Prng::new(1);
    let words = words(&mut prng);
    let text = text(&words, &mut prng);
    for number in 0..u32::try_from(files)? {
        let path = mount.root().join(forest::path_of(number));
        let parent = path.parent().context("a file lies in a directory")?;
        std::fs::create_dir_all(parent)?;
        let length = length(&mut prng)?;
        let start = usize::try_from(prng.below((text.len() - length) as u64))?;
        std::fs::write(path, &text[start..][..length])?;
    }
    finish(mount, image)
}

/// Makes an XFS with a directory `names` of so many empty files.
pub(super) fn plant_names(image: &Path, names: u64) -> Result<()> {
    // A quarter may hold inodes, of half a KiB each.
    xfs::make(image, 4 * names + KIB_AT_LEAST, &[])?;
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadWrite)?;
    let directory = mount.root().join("names");
    std::fs::create_dir(&directory)?;
    for number in 0..names {
        File::create(directory.join(name_of(number)))?;
    }
    finish(mount, image)
}

/// The name of a file there.
pub(super) fn name_of(number: u64) -> String {
    format!("file{number:07}.txt")
}

/// Makes an empty, sparse XFS.
pub(super) fn make_large(image: &Path, mib: u64) -> Result<()> {
    xfs::make(image, mib << 10, &["-l", "size=256m"])
}

fn finish(mount: Mount, image: &Path) -> Result<()> {
    mount.sync()?;
    mount.unmount(image)
}

/// Words that all texts are made of.
pub(crate) fn words(prng: &mut Prng) -> Vec<Vec<u8>> {
    let mut word = || -> Vec<u8> {
        let length = usize::try_from(2 + prng.below(9)).unwrap_or(2);
        let letters = prng.bytes(length);
        letters.iter().map(|byte| b'a' + byte % 26).collect()
    };
    (0..WORDS).map(|_| word()).collect()
}

/// Words in random order, the first ones more often.
pub(crate) fn text(words: &[Vec<u8>], prng: &mut Prng) -> Vec<u8> {
    let mut text = Vec::with_capacity(TEXT_BYTES + 16);
    while text.len() < TEXT_BYTES {
        let most = 1 + prng.below(words.len() as u64);
        let index = usize::try_from(prng.below(most)).unwrap_or(0);
        text.extend_from_slice(&words[index]);
        text.push(if prng.below(10) == 0 { b'\n' } else { b' ' });
    }
    text
}

/// How long the next file is: most are small, a few are not.
fn length(prng: &mut Prng) -> Result<usize> {
    let largest = match prng.below(20) {
        0 => 200_000,
        1..5 => 24_000,
        _ => 12_000,
    };
    Ok(usize::try_from(prng.below(largest))?)
}
