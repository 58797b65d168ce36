//! The Debian packages whose programs the tests use, installed when they are missing.

use std::os::unix::fs::MetadataExt;

use anyhow::{Result, bail};

use crate::command;

/// A program that tests run, and the package that brings it.
const PROGRAMS: &[(&str, &str)] = &[
    ("mke2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("tune2fs", "e2fsprogs"),
    ("chattr", "e2fsprogs"),
    ("lsattr", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("btrfs", "btrfs-progs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("xfs_db", "xfsprogs"),
    ("fsverity", "fsverity"),
    ("fusermount3", "fuse3"),
    ("getfattr", "attr"),
    ("setfattr", "attr"),
    ("getfacl", "acl"),
    ("setfacl", "acl"),
    ("tar", "tar"),
    ("gzip", "gzip"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("bsdtar", "libarchive-tools"),
    ("sfdisk", "fdisk"),
    ("sgdisk", "gdisk"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("flock", "util-linux"),
    ("fallocate", "util-linux"),
    ("mountpoint", "util-linux"),
    ("setcap", "libcap2-bin"),
    ("diff", "diffutils"),
    ("fakeroot", "fakeroot"),
];

/// The same for the demonstration. Without the others, it shows less.
const PROGRAMS_OF_DEMO: &[(&str, &str)] = &[
    ("tar", "tar"),
    ("diff", "diffutils"),
    ("find", "findutils"),
    ("sha256sum", "coreutils"),
    ("mktemp", "coreutils"),
];
const MORE_PROGRAMS_OF_DEMO: &[(&str, &str)] = &[
    ("e2fsck", "e2fsprogs"),
    ("fusermount3", "fuse3"),
    ("setfattr", "attr"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// The same for the long runs.
const PROGRAMS_OF_SOAK: &[(&str, &str)] = &[
    ("dbench", "dbench"),
    ("fio", "fio"),
    ("git", "git"),
    ("mountpoint", "util-linux"),
    ("sha256sum", "coreutils"),
];

/// The same for benchmarks: what platter is compared with.
const PROGRAMS_OF_BENCH: &[(&str, &str)] = &[
    ("mke2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("btrfs", "btrfs-progs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("fuse2fs", "fuse2fs"),
    ("bindfs", "bindfs"),
    ("valgrind", "valgrind"),
    ("fio", "fio"),
    ("tar", "tar"),
    ("time", "time"),
    ("rg", "ripgrep"),
    ("find", "findutils"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("dpkg", "dpkg"),
    ("dpkg-deb", "dpkg"),
    ("git", "git"),
    ("make", "make"),
    ("cc", "gcc"),
    ("losetup", "mount"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// Installs what is missing for the tests, or says what to install.
pub(crate) fn require() -> Result<()> {
    require_all(PROGRAMS)
}

/// Installs what is missing for the long runs, or says what to install.
pub(crate) fn require_for_soak() -> Result<()> {
    require_all(PROGRAMS_OF_SOAK)
}

/// Installs what is missing for the benchmarks, or says what to install.
pub(crate) fn require_for_bench() -> Result<()> {
    require_all(PROGRAMS_OF_BENCH)
}

/// Demands what the demonstration needs, and installs the rest where that is possible.
pub(crate) fn require_for_demo() -> Result<()> {
    require_all(PROGRAMS_OF_DEMO)?;
    if let Err(error) = require_all(MORE_PROGRAMS_OF_DEMO) {
        println!("{error}\nwithout them, less is shown");
    }
    Ok(())
}

fn require_all(programs: &[(&str, &'static str)]) -> Result<()> {
    let missing = missing(programs, |program| command::find(program).is_some());
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if command::find("apt-get").is_none() {
        bail!("the programs of these Debian packages are needed: {list}");
    }
    if !is_root()? {
        bail!("packages are missing; as root: apt-get install {list}");
    }
    let apt = || {
        let mut apt = command::command("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    command::run(apt().args(["update", "-q"]))?;
    command::run(
        apt()
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(&missing),
    )
}

/// Whether this process acts for the superuser.
pub(crate) fn is_root() -> Result<bool> {
    Ok(std::fs::metadata("/proc/self")?.uid() == 0)
}

fn missing(
    programs: &[(&str, &'static str)],
    is_installed: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let mut packages: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|&(_, package)| package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_asked_for_once() {
        assert_eq!(missing(PROGRAMS, |_| true), Vec::<&str>::new());
        let two_programs_gone = |program: &str| !matches!(program, "mke2fs" | "e2fsck" | "getfacl");
        assert_eq!(missing(PROGRAMS, two_programs_gone), ["acl", "e2fsprogs"]);
    }
}
