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
    Cell {
        name: "ext4",
        options: &["-t", "ext4", "-b", "4096"],
    },
    Cell {
        name: "ext4-1k",
        options: &["-t", "ext4", "-b", "1024"],
    },
    Cell {
        name: "ext4-2k",
        options: &["-t", "ext4", "-b", "2048"],
    },
    Cell {
        name: "ext4-nocsum",
        options: &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"],
    },
    Cell {
        name: "ext4-32bit",
        options: &["-t", "ext4", "-b", "4096", "-O", "^64bit"],
    },
    Cell {
        name: "ext4-bigalloc",
        options: &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"],
    },
    Cell {
        name: "ext4-bigalloc-1k",
        options: &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"],
    },
    Cell {
        name: "ext4-inline",
        options: &["-t", "ext4", "-b", "4096", "-O", "inline_data", "-I", "256"],
    },
    Cell {
        name: "ext4-orphan-file",
        options: &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
    },
    Cell {
        name: "ext3",
        options: &["-t", "ext3", "-b", "4096"],
    },
    Cell {
        name: "ext3-1k",
        options: &["-t", "ext3", "-b", "1024"],
    },
    Cell {
        name: "ext3-2k",
        options: &["-t", "ext3", "-b", "2048"],
    },
    Cell {
        name: "ext2",
        options: &["-t", "ext2", "-b", "4096"],
    },
    Cell {
        name: "ext2-1k",
        options: &["-t", "ext2", "-b", "1024"],
    },
    Cell {
        name: "ext2-2k",
        options: &["-t", "ext2", "-b", "2048"],
    },
];
