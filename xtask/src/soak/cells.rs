//! The filesystems that are soaked: their kind, sizes of blocks, features and profiles.

use std::path::Path;
use std::process::Command;

use crate::command::command;

/// One of them.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Options of the program that makes it.
    options: &'static [&'static str],
    /// How many devices it has.
    pub(super) devices: usize,
}

/// What programs make and judge a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ext,
    Btrfs,
    Xfs,
}

impl Kind {
    /// What the kernel mounts it as.
    pub(super) const fn kernel_type(self) -> &'static str {
        match self {
            Self::Ext => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }

    /// A command that finds nothing in a clean filesystem, and changes nothing.
    pub(super) fn judge(self, image: &Path) -> Command {
        let words: &[&str] = match self {
            Self::Ext => &["e2fsck", "-f", "-n"],
            Self::Btrfs => &["btrfs", "check", "--readonly"],
            Self::Xfs => &["xfs_repair", "-n"],
        };
        let mut judge = command(words[0]);
        judge.args(&words[1..]).arg(image);
        judge
    }
}

impl Cell {
    /// `ext2`, `ext3`, `ext4`, `btrfs` or `xfs`.
    pub(super) fn generation(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// The command that makes it on images that have their size.
    pub(super) fn make(&self, images: &[impl AsRef<Path>]) -> Command {
        let words: &[&str] = match self.kind {
            Kind::Ext => &["mke2fs", "-q", "-F"],
            Kind::Btrfs => &["mkfs.btrfs", "-q", "-f"],
            Kind::Xfs => &["mkfs.xfs", "-q", "-f"],
        };
        let mut make = command(words[0]);
        make.args(&words[1..]).args(self.options);
        make.args(images.iter().map(AsRef::as_ref));
        make
    }
}

/// All of them.
pub(super) fn cells() -> impl Iterator<Item = &'static Cell> {
    CELLS.iter().chain(OTHERS)
}

/// Those of ext2, ext3 and ext4.
pub(super) const CELLS: &[Cell] = &[
    ext("ext4", &["-t", "ext4", "-b", "4096"]),
    ext("ext4-1k", &["-t", "ext4", "-b", "1024"]),
    ext("ext4-2k", &["-t", "ext4", "-b", "2048"]),
    ext(
        "ext4-nocsum",
        &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"],
    ),
    ext("ext4-32bit", &["-t", "ext4", "-b", "4096", "-O", "^64bit"]),
    ext(
        "ext4-bigalloc",
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"],
    ),
    ext(
        "ext4-bigalloc-1k",
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"],
    ),
    ext(
        "ext4-inline",
        &["-t", "ext4", "-b", "4096", "-O", "inline_data", "-I", "256"],
    ),
    ext(
        "ext4-orphan-file",
        &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
    ),
    ext("ext3", &["-t", "ext3", "-b", "4096"]),
    ext("ext3-1k", &["-t", "ext3", "-b", "1024"]),
    ext("ext3-2k", &["-t", "ext3", "-b", "2048"]),
    ext("ext2", &["-t", "ext2", "-b", "4096"]),
    ext("ext2-1k", &["-t", "ext2", "-b", "1024"]),
    ext("ext2-2k", &["-t", "ext2", "-b", "2048"]),
];

/// Those of other filesystems.
const OTHERS: &[Cell] = &[
    btrfs("btrfs", 1, &[]),
    btrfs("btrfs-4k", 1, &["-n", "4096"]),
    btrfs("btrfs-64k", 1, &["-n", "65536"]),
    btrfs("btrfs-mixed", 1, &["-M"]),
    btrfs("btrfs-xxhash", 1, &["--csum", "xxhash", "-m", "single"]),
    btrfs("btrfs-sha256", 1, &["--csum", "sha256", "-n", "4096"]),
    btrfs("btrfs-blake2", 1, &["--csum", "blake2"]),
    btrfs("btrfs-dup", 1, &["-m", "dup", "-d", "dup"]),
    btrfs("btrfs-raid0", 2, &["-m", "raid1", "-d", "raid0"]),
    btrfs("btrfs-raid1", 2, &["-m", "raid1", "-d", "raid1"]),
    btrfs("btrfs-raid10", 4, &["-m", "raid10", "-d", "raid10"]),
    xfs("xfs", &[]),
    xfs("xfs-1k", &["-b", "size=1024"]),
    xfs("xfs-rmap", &["-m", "rmapbt=1"]),
];

const fn ext(name: &'static str, options: &'static [&'static str]) -> Cell {
    Cell {
        name,
        kind: Kind::Ext,
        options,
        devices: 1,
    }
}

const fn btrfs(name: &'static str, devices: usize, options: &'static [&'static str]) -> Cell {
    Cell {
        name,
        kind: Kind::Btrfs,
        options,
        devices,
    }
}

const fn xfs(name: &'static str, options: &'static [&'static str]) -> Cell {
    Cell {
        name,
        kind: Kind::Xfs,
        options,
        devices: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_kind() {
        for cell in cells() {
            let expected = match cell.generation() {
                "ext2" | "ext3" | "ext4" => Kind::Ext,
                "btrfs" => Kind::Btrfs,
                "xfs" => Kind::Xfs,
                other => panic!("{other}"),
            };
            assert_eq!(cell.kind, expected, "{}", cell.name);
        }
    }
}
