//! The filesystems that are soaked: generation, block size, features.

/// One of them.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) name: &'static str,
    /// Options of `mke2fs`.
    pub(super) options: &'static [&'static str],
}

impl Cell {
    /// `ext2`, `ext3` or `ext4`.
    pub(super) fn generation(&self) -> &'static str {
        &self.name[..4]
    }
}

/// All of them.
pub(super) const CELLS: &[Cell] = &[
    cell("ext4", &["-t", "ext4", "-b", "4096"]),
    cell("ext4-1k", &["-t", "ext4", "-b", "1024"]),
    cell("ext4-2k", &["-t", "ext4", "-b", "2048"]),
    cell(
        "ext4-nocsum",
        &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"],
    ),
    cell("ext4-32bit", &["-t", "ext4", "-b", "4096", "-O", "^64bit"]),
    cell(
        "ext4-bigalloc",
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"],
    ),
    cell(
        "ext4-bigalloc-1k",
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"],
    ),
    cell(
        "ext4-inline",
        &["-t", "ext4", "-b", "4096", "-O", "inline_data", "-I", "256"],
    ),
    cell(
        "ext4-orphan-file",
        &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
    ),
    cell("ext3", &["-t", "ext3", "-b", "4096"]),
    cell("ext3-1k", &["-t", "ext3", "-b", "1024"]),
    cell("ext3-2k", &["-t", "ext3", "-b", "2048"]),
    cell("ext2", &["-t", "ext2", "-b", "4096"]),
    cell("ext2-1k", &["-t", "ext2", "-b", "1024"]),
    cell("ext2-2k", &["-t", "ext2", "-b", "2048"]),
];

const fn cell(name: &'static str, options: &'static [&'static str]) -> Cell {
    Cell { name, options }
}
