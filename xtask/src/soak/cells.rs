//! The filesystems that are soaked: their kind, sizes of blocks, features, profiles and mount options.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::command;

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Options of the program that makes it.
    options: &'static [&'static str],
    /// How many devices it has; the second one of an XFS is its log.
    pub(super) devices: usize,
    /// Options of mounts by platter.
    pub(super) mount: &'static str,
    /// Whether platter makes it, with what the distribution's program does not know.
    is_made_by_platter: bool,
}

/// What programs make and judge a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ext,
    Btrfs,
    Xfs,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Ext, Self::Btrfs, Self::Xfs];

    /// What it is called on the command line.
    pub(super) const fn name(self) -> &'static str {
        self.kernel_type()
    }

    /// The kind of a filesystem whose name begins with its generation.
    pub(super) fn of(name: &str) -> Option<Self> {
        let begins = |kind: &Self| match kind {
            Self::Ext => name.starts_with("ext"),
            Self::Btrfs | Self::Xfs => name.starts_with(kind.name()),
        };
        Self::ALL.into_iter().find(begins)
    }

    /// What a shell says to print the version of the program that judges it.
    pub(super) const fn version_of_judge(self) -> &'static str {
        match self {
            Self::Ext => "e2fsck -V 2>&1 | head -1",
            Self::Btrfs => "btrfs version | head -1",
            Self::Xfs => "xfs_repair -V",
        }
    }

    /// What the kernel mounts it as.
    pub(super) const fn kernel_type(self) -> &'static str {
        match self {
            Self::Ext => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }

    /// The mount option that names another device.
    pub(super) const fn device_option(self) -> &'static str {
        match self {
            Self::Ext | Self::Btrfs => "device",
            Self::Xfs => "logdev",
        }
    }

    /// A command that finds nothing in a clean filesystem, and changes nothing. The other devices of a btrfs are
    /// known to the kernel.
    pub(super) fn judge(self, devices: &[impl AsRef<Path>]) -> Command {
        let words: &[&str] = match self {
            Self::Ext => &["e2fsck", "-f", "-n"],
            Self::Btrfs => &["btrfs", "check", "--readonly"],
            Self::Xfs => &["xfs_repair", "-n"],
        };
        let mut judge = command(words[0]);
        judge.args(&words[1..]);
        if let (Self::Xfs, [_, log]) = (self, devices) {
            judge.arg("-l").arg(log.as_ref());
        }
        judge.args(devices.first().map(AsRef::as_ref));
        judge
    }

    /// The line by which the report of [`judge`](Self::judge), which ended with success, says otherwise.
    /// `btrfs check` does not count all that it complains of. It looks for the
    /// members among all devices: that one of another filesystem goes meanwhile is no complaint, that a member is
    /// missing is.
    pub(super) fn complaint(self, report: &str) -> Option<&str> {
        if self != Self::Btrfs {
            return None;
        }
        let is_complaint = |line: &&str| {
            let is_error = line.starts_with("ERROR:") && !line.starts_with("ERROR: cannot scan ");
            is_error || line.contains("error(s) found") || line.ends_with("is missing")
        };
        let is_finished = report.lines().any(|line| line.ends_with("no error found"));
        let found = report.lines().find(is_complaint);
        found.or((!is_finished).then_some("there is no summary"))
    }
}

impl Cell {
    /// `ext2`, `ext3`, `ext4`, `btrfs` or `xfs`.
    pub(super) fn generation(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// How mounts by platter compress what is written.
    pub(super) fn compression(&self) -> Option<&'static str> {
        let method = |option: &'static str| {
            let value = option.strip_prefix("compress=");
            value.or_else(|| option.strip_prefix("compress-force="))
        };
        self.mount.split(',').find_map(method)
    }

    /// The command that makes it on images that have their size; `platter` is the program.
    pub(super) fn make(&self, platter: &Path, images: &[PathBuf]) -> Command {
        if self.is_made_by_platter {
            let mut make = command(platter);
            make.args(["mkfs", self.kind.kernel_type()]);
            make.args(images.first()).args(self.options);
            for other in images.iter().skip(1) {
                make.arg(format!("--{}", self.kind.device_option()));
                make.arg(other);
            }
            return make;
        }
        let words: &[&str] = match self.kind {
            Kind::Ext => &["mke2fs", "-q", "-F"],
            Kind::Btrfs => &["mkfs.btrfs", "-q", "-f"],
            Kind::Xfs => &["mkfs.xfs", "-q", "-f"],
        };
        let mut make = command(words[0]);
        make.args(&words[1..]).args(self.options);
        match (self.kind, images) {
            (Kind::Xfs, [data, log]) => {
                let log = format!("logdev={}", log.display());
                make.args(["-l", &log]).arg(data)
            }
            _ => make.args(images),
        };
        make
    }
}

/// All of them.
pub(super) fn cells() -> impl Iterator<Item = &'static Cell> + Clone {
    CELLS.iter().chain(OTHERS)
}

/// Those of a kind.
pub(super) fn cells_of(kind: Kind) -> impl Iterator<Item = &'static Cell> + Clone {
    cells().filter(move |cell| cell.kind == kind)
}

/// Those of ext2, ext3 and ext4.
const CELLS: &[Cell] = &[
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

/// Those of other filesystems. XFS of version 4 is not among them: it is refused for writing.
const OTHERS: &[Cell] = &[
    btrfs("btrfs", 1, &[]),
    btrfs("btrfs-4k", 1, &["-n", "4096"]),
    btrfs("btrfs-64k", 1, &["-n", "65536"]),
    btrfs("btrfs-mixed", 1, &["-M"]),
    btrfs("btrfs-xxhash", 1, &["--csum", "xxhash", "-m", "single"]),
    btrfs("btrfs-sha256", 1, &["--csum", "sha256", "-n", "4096"]),
    btrfs("btrfs-blake2", 1, &["--csum", "blake2"]),
    btrfs("btrfs-space-cache", 1, &["-R", "^free-space-tree"]),
    Cell {
        is_made_by_platter: true,
        ..btrfs("btrfs-groups", 1, &["-O", "block-group-tree"])
    },
    mounted(
        "compress-force=zstd",
        Cell {
            is_made_by_platter: true,
            ..btrfs("btrfs-groups-zstd", 1, &["-O", "block-group-tree"])
        },
    ),
    mounted("compress=zstd", btrfs("btrfs-zstd", 1, &[])),
    mounted("compress-force=zstd", btrfs("btrfs-zstd-forced", 1, &[])),
    mounted("compress-force=lzo", btrfs("btrfs-lzo", 1, &[])),
    mounted("compress-force=zlib", btrfs("btrfs-zlib", 1, &[])),
    mounted("nodatacow", btrfs("btrfs-nodatacow", 1, &[])),
    btrfs("btrfs-single", 1, &["-m", "single", "-d", "single"]),
    btrfs("btrfs-dup", 1, &["-m", "dup", "-d", "dup"]),
    btrfs("btrfs-raid0", 2, &["-m", "raid0", "-d", "raid0"]),
    btrfs("btrfs-raid1", 2, &["-m", "raid1", "-d", "raid1"]),
    btrfs(
        "btrfs-raid1-4k",
        2,
        &[
            "-m", "raid1", "-d", "raid1", "-n", "4096", "--csum", "xxhash",
        ],
    ),
    btrfs("btrfs-raid1c3", 3, &["-m", "raid1c3", "-d", "raid1c3"]),
    btrfs("btrfs-raid10", 4, &["-m", "raid10", "-d", "raid10"]),
    Cell {
        is_made_by_platter: true,
        ..btrfs(
            "btrfs-raid10-groups",
            4,
            &[
                "--metadata",
                "raid10",
                "--data",
                "raid10",
                "-O",
                "block-group-tree",
            ],
        )
    },
    btrfs("btrfs-raid5", 3, &["-m", "raid5", "-d", "raid5"]),
    btrfs("btrfs-raid6", 4, &["-m", "raid6", "-d", "raid6"]),
    btrfs(
        "btrfs-raid6-4k",
        4,
        &[
            "-m", "raid6", "-d", "raid6", "-n", "4096", "--csum", "blake2",
        ],
    ),
    // With shared blocks, sparse chunks of inodes, and large times.
    xfs("xfs", &[]),
    xfs(
        "xfs-plain",
        &["-m", "reflink=0,bigtime=0,finobt=0", "-i", "sparse=0"],
    ),
    xfs("xfs-rmap", &["-m", "rmapbt=1"]),
    xfs("xfs-nrext64", &["-i", "nrext64=1"]),
    xfs("xfs-1k", &["-b", "size=1024"]),
    xfs("xfs-dir64k", &["-n", "size=65536"]),
    Cell {
        devices: 2,
        ..xfs("xfs-logdev", &["-l", "size=64m"])
    },
];

const fn ext(name: &'static str, options: &'static [&'static str]) -> Cell {
    cell(name, Kind::Ext, 1, options)
}

const fn btrfs(name: &'static str, devices: usize, options: &'static [&'static str]) -> Cell {
    cell(name, Kind::Btrfs, devices, options)
}

const fn mounted(options: &'static str, cell: Cell) -> Cell {
    Cell {
        mount: options,
        ..cell
    }
}

const fn xfs(name: &'static str, options: &'static [&'static str]) -> Cell {
    cell(name, Kind::Xfs, 1, options)
}

const fn cell(
    name: &'static str,
    kind: Kind,
    devices: usize,
    options: &'static [&'static str],
) -> Cell {
    Cell {
        name,
        kind,
        options,
        devices,
        mount: "",
        is_made_by_platter: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_kind() {
        for cell in cells() {
            assert_eq!(Kind::of(cell.name), Some(cell.kind), "{}", cell.name);
        }
    }

    /// The words of a command.
    fn words(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn external_log_is_named_to_every_program() {
        let cell = cells().find(|cell| cell.name == "xfs-logdev").unwrap();
        let images = ["a", "b"].map(PathBuf::from);
        let make = words(&cell.make(Path::new("platter"), &images));
        assert_eq!(make, "mkfs.xfs -q -f -l size=64m -l logdev=b a");
        assert_eq!(words(&cell.kind.judge(&images)), "xfs_repair -n -l b a");
        let cell = cells().find(|cell| cell.name == "btrfs-raid1").unwrap();
        let judge = words(&cell.kind.judge(&images));
        assert_eq!(judge, "btrfs check --readonly a");
    }

    #[test]
    fn compression_is_what_the_mount_options_name() {
        let compression = |name: &str| {
            let cell = cells().find(|cell| cell.name == name).unwrap();
            cell.compression()
        };
        assert_eq!(compression("btrfs-zstd"), Some("zstd"));
        assert_eq!(compression("btrfs-lzo"), Some("lzo"));
        assert_eq!(compression("btrfs-groups-zstd"), Some("zstd"));
        assert_eq!(compression("btrfs-nodatacow"), None);
    }

    /// A report that the testkit has recorded, after the line of its exit status.
    fn recorded(report: &str) -> &str {
        report.split_once('\n').unwrap().1
    }

    #[test]
    fn complaints_of_a_success_are_read() {
        let clean = recorded(include_str!(
            "../../../testkit/src/oracle/reports/btrfs_clean.txt"
        ));
        assert_eq!(Kind::Btrfs.complaint(clean), None);
        let complaining = clean.replacen("[7/7]", "ERROR: a line\n[7/7]", 1);
        assert_eq!(Kind::Btrfs.complaint(&complaining), Some("ERROR: a line"));
        let counted = clean.replace("no error found", "2 error(s) found");
        assert!(Kind::Btrfs.complaint(&counted).is_some());
        let missing = format!("warning, device 2 is missing\n{clean}");
        assert!(Kind::Btrfs.complaint(&missing).is_some());
        let scanning = format!("ERROR: cannot scan /dev/loop7: Input/output error\n{clean}");
        assert_eq!(Kind::Btrfs.complaint(&scanning), None);
        assert!(Kind::Btrfs.complaint("").is_some());
        assert_eq!(Kind::Ext.complaint(""), None);
    }

    #[test]
    fn platter_makes_what_other_programs_do_not_know() {
        let cell = cells().find(|cell| cell.name == "btrfs-groups").unwrap();
        let make = words(&cell.make(Path::new("platter"), &[PathBuf::from("a")]));
        assert_eq!(make, "platter mkfs btrfs a -O block-group-tree");
        let cell = cells().find(|cell| cell.name == "btrfs-raid10-groups");
        let images = ["a", "b", "c", "d"].map(PathBuf::from);
        let make = words(&cell.unwrap().make(Path::new("platter"), &images));
        let end = "-O block-group-tree --device b --device c --device d";
        assert!(
            make.starts_with("platter mkfs btrfs a ") && make.ends_with(end),
            "{make}"
        );
    }
}
