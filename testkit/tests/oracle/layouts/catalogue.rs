//! The layouts: what is given to `mke2fs` or `platter mkfs`, and what can be done with the result.

/// Which program makes the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormatOptions {
    Mke2fs,
    Platter,
}

/// One filesystem of the matrix.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one independent question"
)]
pub(super) struct Layout {
    pub(super) maker: FormatOptions,
    pub(super) options: &'static [&'static str],
    pub(super) size_kib: u64,
    /// The size after `platter resize`; zero where it is not grown.
    pub(super) grown_kib: u64,
    /// Platter writes to it.
    pub(super) is_written: bool,
    /// A kernel without Unicode tables or with small pages mounts it.
    pub(super) is_mounted: bool,
    /// A kernel without quotas writes to it.
    pub(super) is_written_by_kernel: bool,
    /// Its journal is on a device of its own.
    pub(super) has_journal_device: bool,
    /// Goes through the course in each run of the tests.
    pub(super) is_ordinary: bool,
}

const MIB: u64 = 1 << 10;
const GIB: u64 = 1 << 20;
const TIB: u64 = 1 << 30;

const fn theirs(options: &'static [&'static str]) -> Layout {
    Layout {
        maker: FormatOptions::Mke2fs,
        options,
        size_kib: 64 * MIB,
        grown_kib: 100 * MIB,
        is_written: true,
        is_mounted: true,
        is_written_by_kernel: true,
        has_journal_device: false,
        is_ordinary: false,
    }
}

const fn ours(options: &'static [&'static str]) -> Layout {
    Layout {
        maker: FormatOptions::Platter,
        ..theirs(options)
    }
}

impl Layout {
    const fn sized(mut self, size_kib: u64, grown_kib: u64) -> Self {
        self.size_kib = size_kib;
        self.grown_kib = grown_kib;
        self
    }

    const fn fixed(mut self) -> Self {
        self.grown_kib = 0;
        self
    }

    const fn ordinary(mut self) -> Self {
        self.is_ordinary = true;
        self
    }

    const fn read_only(mut self) -> Self {
        self.is_written = false;
        self.is_written_by_kernel = false;
        self.grown_kib = 0;
        self
    }

    const fn unwritable(mut self) -> Self {
        self.is_written_by_kernel = false;
        self
    }

    const fn unmountable(mut self) -> Self {
        self.is_mounted = false;
        self
    }

    const fn journal_device(mut self) -> Self {
        self.has_journal_device = true;
        self
    }
}

/// Descriptors of several blocks, block numbers beyond 32 bits.
pub(super) const LARGE: &[Layout] = &[
    theirs(&["-t", "ext4", "-b", "1024"])
        .sized(200 * MIB, 400 * MIB)
        .ordinary(),
    theirs(&["-t", "ext2", "-b", "1024"]).sized(300 * MIB, 0),
    theirs(&["-t", "ext4"]).sized(9 * GIB, 12 * GIB).ordinary(),
    ours(&["ext4"]).sized(9 * GIB, 12 * GIB),
    theirs(&["-t", "ext4", "-O", "^resize_inode,meta_bg"]).sized(9 * GIB, 20 * GIB),
    theirs(&["-t", "ext4", "-O", "^has_journal"]).sized(100 * GIB, 140 * GIB),
    ours(&["ext4", "-J", "64M"])
        .sized(100 * GIB, 140 * GIB)
        .ordinary(),
    theirs(&["-t", "ext3", "-N", "200000"]).sized(100 * GIB, 120 * GIB),
    theirs(&[
        "-t",
        "ext4",
        "-N",
        "400000",
        "-J",
        "size=64",
        "-E",
        "packed_meta_blocks=1",
    ])
    .sized(16 * TIB, 17 * TIB)
    .ordinary(),
    theirs(&[
        "-t", "ext4", "-O", "bigalloc", "-C", "1M", "-N", "100000", "-J", "size=64",
    ])
    .sized(16 * TIB, 0),
    ours(&["ext4", "-N", "400000", "-J", "64M"]).sized(16 * TIB, 17 * TIB),
    theirs(&[
        "-t",
        "ext4",
        "-N",
        "400000",
        "-J",
        "size=64",
        "-O",
        "meta_bg,^resize_inode",
    ])
    .sized(17 * TIB, 18 * TIB),
];

/// Each feature and size by itself, and those together that share structures.
pub(super) const LAYOUTS: &[Layout] = &[
    // Generations and usage types.
    theirs(&["-t", "ext2"]),
    theirs(&["-t", "ext3"]),
    theirs(&["-t", "ext4"]).ordinary(),
    theirs(&["-t", "ext2", "-r", "0"]).fixed(),
    theirs(&["-t", "ext4", "-T", "small"]),
    theirs(&["-t", "ext4", "-T", "news"]),
    theirs(&["-t", "ext4", "-T", "largefile"]).sized(400 * MIB, 500 * MIB),
    theirs(&["-t", "ext4", "-T", "largefile4"]).sized(1200 * MIB, 1300 * MIB),
    theirs(&["-t", "ext4", "-T", "floppy"]),
    // Sizes of blocks, inodes and groups.
    theirs(&["-t", "ext2", "-b", "1024"]),
    theirs(&["-t", "ext2", "-b", "2048"]),
    theirs(&["-t", "ext2", "-b", "4096"]),
    theirs(&["-t", "ext3", "-b", "1024"]),
    theirs(&["-t", "ext3", "-b", "4096"]),
    theirs(&["-t", "ext4", "-b", "1024"]),
    theirs(&["-t", "ext4", "-b", "2048"]),
    theirs(&["-t", "ext4", "-b", "8192"])
        .read_only()
        .unmountable(),
    theirs(&["-t", "ext4", "-b", "65536"])
        .read_only()
        .unmountable(),
    theirs(&["-t", "ext4", "-I", "128"]),
    theirs(&["-t", "ext4", "-I", "512"]),
    theirs(&["-t", "ext4", "-b", "1024", "-I", "1024"]),
    theirs(&["-t", "ext4", "-b", "4096", "-I", "4096", "-N", "2048"]),
    theirs(&["-t", "ext3", "-I", "128"]),
    theirs(&["-t", "ext4", "-b", "1024", "-g", "1024"]),
    theirs(&["-t", "ext4", "-b", "4096", "-g", "2048"]),
    theirs(&["-t", "ext4", "-b", "1024", "-N", "256"]),
    theirs(&["-t", "ext4", "-i", "1024"]),
    theirs(&["-t", "ext4", "-m", "0"]),
    theirs(&["-t", "ext4", "-m", "30"]),
    // Features of the layout.
    theirs(&["-t", "ext4", "-O", "^extents,^64bit"]),
    theirs(&["-t", "ext4", "-O", "^64bit"]),
    theirs(&["-t", "ext4", "-O", "^64bit,^metadata_csum"]),
    theirs(&["-t", "ext4", "-O", "^flex_bg"]),
    theirs(&["-t", "ext4", "-b", "1024", "-O", "^flex_bg,^resize_inode"]),
    theirs(&["-t", "ext4", "-b", "1024", "-G", "2"]),
    theirs(&["-t", "ext4", "-b", "1024", "-G", "64"]),
    theirs(&["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "512",
        "-O",
        "meta_bg,^resize_inode,^flex_bg",
    ]),
    theirs(&["-t", "ext3", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    theirs(&["-t", "ext4", "-O", "^resize_inode"]),
    theirs(&["-t", "ext4", "-b", "1024", "-E", "resize=300000"]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^sparse_super,^resize_inode",
    ]),
    theirs(&[
        "-t",
        "ext2",
        "-b",
        "1024",
        "-O",
        "^sparse_super,^resize_inode",
    ]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "sparse_super2,^resize_inode",
    ])
    .fixed(),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "sparse_super2,^resize_inode",
        "-E",
        "num_backup_sb=1",
    ])
    .fixed(),
    theirs(&["-t", "ext4", "-b", "1024", "-E", "packed_meta_blocks=1"]),
    theirs(&["-t", "ext4", "-E", "stride=16,stripe_width=64"]),
    theirs(&["-t", "ext4", "-b", "1024", "-E", "stride=8,stripe_width=16"]),
    // Checksums.
    theirs(&["-t", "ext4", "-O", "^metadata_csum"]),
    theirs(&["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]).ordinary(),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^metadata_csum,uninit_bg,^64bit,^flex_bg",
    ]),
    theirs(&["-t", "ext4", "-O", "metadata_csum_seed"]),
    theirs(&["-t", "ext3", "-O", "metadata_csum"]),
    theirs(&["-t", "ext2", "-b", "1024", "-O", "metadata_csum"]),
    theirs(&["-t", "ext3", "-O", "uninit_bg"]),
    // Clusters.
    theirs(&["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"]).ordinary(),
    theirs(&["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"]),
    theirs(&["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    theirs(&["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "bigalloc,^metadata_csum",
        "-C",
        "32768",
    ]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "2048",
        "-O",
        "bigalloc,inline_data",
        "-C",
        "8192",
    ]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "bigalloc,^has_journal",
        "-C",
        "1M",
    ])
    .sized(512 * MIB, 0),
    // Inodes, names and attributes.
    theirs(&["-t", "ext4", "-O", "inline_data"]).ordinary(),
    theirs(&[
        "-t",
        "ext4",
        "-O",
        "inline_data,^metadata_csum",
        "-I",
        "512",
    ]),
    theirs(&["-t", "ext4", "-b", "1024", "-O", "inline_data,ea_inode"]),
    theirs(&["-t", "ext4", "-O", "ea_inode"]),
    theirs(&["-t", "ext4", "-b", "1024", "-O", "ea_inode,^metadata_csum"]),
    theirs(&["-t", "ext4", "-O", "large_dir"]),
    theirs(&["-t", "ext4", "-b", "1024", "-O", "large_dir,inline_data"]),
    theirs(&["-t", "ext4", "-O", "^dir_nlink"]),
    theirs(&["-t", "ext4", "-O", "^dir_index"]),
    theirs(&["-t", "ext4", "-O", "^filetype"]),
    theirs(&["-t", "ext4", "-O", "^huge_file"]),
    theirs(&["-t", "ext4", "-O", "^large_file,^huge_file"]),
    theirs(&["-t", "ext4", "-O", "^extra_isize"]),
    theirs(&["-t", "ext4", "-O", "^ext_attr"]),
    theirs(&["-t", "ext4", "-O", "casefold"]).unmountable(),
    theirs(&["-t", "ext4", "-O", "casefold,large_dir", "-b", "1024"]).unmountable(),
    theirs(&["-t", "ext4", "-O", "encrypt"]),
    theirs(&["-t", "ext4", "-O", "verity"]),
    theirs(&["-t", "ext4", "-O", "project", "-I", "256"]).unwritable(),
    theirs(&["-t", "ext4", "-O", "quota"])
        .unwritable()
        .ordinary(),
    theirs(&[
        "-t",
        "ext4",
        "-O",
        "quota,project",
        "-E",
        "quotatype=usrquota:grpquota:prjquota",
    ])
    .unwritable(),
    theirs(&["-t", "ext4", "-O", "quota,project,ea_inode", "-b", "1024"]).unwritable(),
    theirs(&["-t", "ext4", "-O", "quota,bigalloc"]).unwritable(),
    theirs(&["-t", "ext3", "-O", "quota", "-b", "1024"]).unwritable(),
    theirs(&["-t", "ext4", "-E", "root_owner=1000:1000"]),
    // Journals.
    theirs(&["-t", "ext4", "-O", "^has_journal"]).ordinary(),
    theirs(&["-t", "ext4", "-J", "size=4"]),
    theirs(&["-t", "ext4", "-J", "size=16"]),
    theirs(&["-t", "ext4", "-b", "1024", "-J", "size=1"]),
    theirs(&["-t", "ext4", "-O", "fast_commit"]),
    theirs(&[
        "-t",
        "ext4",
        "-O",
        "fast_commit",
        "-J",
        "fast_commit_size=256",
    ]),
    theirs(&["-t", "ext4", "-O", "orphan_file"]),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "orphan_file,^metadata_csum",
        "-E",
        "orphan_file_size=64k",
    ]),
    theirs(&["-t", "ext4", "-b", "4096"])
        .journal_device()
        .fixed(),
    theirs(&["-t", "ext3", "-b", "1024"])
        .journal_device()
        .fixed(),
    theirs(&["-t", "ext4", "-O", "mmp"]).fixed(),
    theirs(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "mmp,^metadata_csum",
        "-E",
        "mmp_update_interval=1",
    ])
    .fixed(),
    // Platter's own.
    ours(&["ext2"]).ordinary(),
    ours(&["ext3", "-b", "1024"]),
    ours(&["ext4"]).ordinary(),
    ours(&["ext4", "-O", "quota"]).unwritable(),
    ours(&["ext4", "-O", "quota,project", "-b", "1024"])
        .unwritable()
        .ordinary(),
    ours(&["ext2", "-O", "quota"]).unwritable(),
    ours(&["ext4", "-b", "1024"]),
    ours(&["ext4", "-b", "2048", "-I", "512"]),
    ours(&[
        "ext4",
        "-b",
        "1024",
        "-O",
        "bigalloc,inline_data",
        "-C",
        "8192",
    ]),
    ours(&["ext4", "-O", "^metadata_csum,uninit_bg,^64bit"]),
    ours(&["ext4", "-b", "1024", "-O", "^flex_bg,^resize_inode"]),
    ours(&["ext4", "-O", "ea_inode,large_dir,metadata_csum_seed"]),
    ours(&[
        "ext4",
        "-O",
        "^has_journal,^huge_file,^dir_nlink",
        "-b",
        "1024",
    ]),
    ours(&["ext4", "-O", "inline_data,^metadata_csum", "-J", "8M"]),
];
