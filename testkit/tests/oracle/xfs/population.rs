//! Files of every kind and form, made through a kernel mount.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use anyhow::Result;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags,
};
use testkit::prng::Prng;

/// Fills a new filesystem.
pub(super) fn fill(root: &Path, is_fragmented: bool) -> Result<()> {
    if is_fragmented {
        fragment(root)?;
    }
    directories(&root.join("directories"))?;
    contents(&root.join("contents"))?;
    links(&root.join("links"))?;
    attributes(&root.join("attributes"))?;
    metadata(&root.join("metadata"))?;
    Ok(())
}

/// Leaves free space in pieces of a block or two.
fn fragment(root: &Path) -> Result<()> {
    let dir = root.join("pieces");
    fs::create_dir(&dir)?;
    let block = rustix::fs::statvfs(root)?.f_bsize;
    let size = usize::try_from(block)?;
    let fits = rustix::fs::statvfs(root)?.f_bavail;
    // Names take space as well.
    let count = (fits * 3 / 4).min(24_000);
    let filler = root.join("filler");
    for number in 0..count {
        fs::write(dir.join(number.to_string()), vec![b'p'; size])?;
    }
    // What is left in one piece must not be used before the pieces are.
    let left = rustix::fs::statvfs(root)?.f_bavail.saturating_sub(400);
    rustix::fs::fallocate(
        File::create(filler)?,
        FallocateFlags::empty(),
        0,
        left * block,
    )?;
    for number in (0..count).step_by(2) {
        fs::remove_file(dir.join(number.to_string()))?;
    }
    Ok(())
}

/// Directories in each form: in the inode, in one block, with one leaf, with a tree of leaves.
fn directories(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for (form, count) in [
        ("empty", 0),
        ("inode", 4),
        ("block", 24),
        ("leaf", 300),
        ("node", 2400),
    ] {
        let dir = dir.join(form);
        fs::create_dir(&dir)?;
        let name = |number: usize| format!("{number:04}-{}", "n".repeat(number % 90));
        for number in 0..count {
            File::create(dir.join(name(number)))?;
        }
        for number in (0..count).skip(7).step_by(9) {
            fs::remove_file(dir.join(name(number)))?;
        }
    }
    // Names of one hash, more than fit a leaf: bytes enter it seven bits apart, so that the highest bit of
    // one stands for the lowest bit of the one before.
    let same = dir.join("same");
    fs::create_dir(&same)?;
    for number in 0..1024_u32 {
        let pairs = (0..10).map(|pair| match number >> pair & 1 {
            0 => [b'b', b'A'],
            _ => [b'c', b'A' | 0x80],
        });
        let name: Vec<u8> = pairs.flatten().collect();
        File::create(same.join(OsStr::from_bytes(&name)))?;
    }
    let deep: std::path::PathBuf = (0..30).map(|depth| format!("depth{depth}")).collect();
    fs::create_dir_all(dir.join(deep))?;
    fs::create_dir(dir.join("bytes"))?;
    for byte in (1..=255_u8).filter(|&byte| byte != b'/' && byte != b'.') {
        let name = OsStr::from_bytes(std::slice::from_ref(&byte));
        File::create(dir.join("bytes").join(name))?;
    }
    File::create(dir.join("bytes").join("l".repeat(255)))?;
    Ok(())
}

/// Contents with holes, unwritten and shared extents, in few and in many pieces.
fn contents(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let mut prng = Prng::named(b"contents");
    let mut random = |len: usize| -> Vec<u8> {
        let word = |_| u8::try_from(prng.below(256)).unwrap_or_default();
        (0..len).map(word).collect()
    };
    for len in [0, 1, 511, 512, 4095, 4096, 4097, 65_537, 700_000] {
        fs::write(dir.join(format!("plain-{len}")), random(len))?;
    }
    let sparse = File::create(dir.join("sparse"))?;
    sparse.set_len((1 << 33) + 77)?;
    for at in [5000, 1 << 20, (1 << 32) + 3, 1 << 33] {
        sparse.write_all_at(&random(9000), at)?;
    }
    let unwritten = File::create(dir.join("unwritten"))?;
    rustix::fs::fallocate(&unwritten, FallocateFlags::empty(), 0, 2 << 20)?;
    unwritten.write_all_at(&random(9000), 300_000)?;
    rustix::fs::fallocate(&unwritten, FallocateFlags::KEEP_SIZE, 2 << 20, 1 << 20)?;
    let pieces = File::create(dir.join("pieces"))?;
    for nth in 0..400 {
        pieces.write_all_at(&random(1000), nth * 131_072)?;
    }
    let first = dir.join("plain-700000");
    for (name, at) in [("shared", 0), ("shared-changed", 65_536)] {
        let clone = File::create(dir.join(name))?;
        // Not all shapes share blocks.
        if rustix::fs::ioctl_ficlone(&clone, File::open(&first)?).is_ok() && at > 0 {
            clone.write_all_at(&random(65_536), at)?;
        }
    }
    Ok(())
}

/// Symbolic links in the inode and outside, hard links, and special files.
fn links(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for len in [1, 80, 300, 400, 1000, 1023] {
        symlink("t".repeat(len), dir.join(format!("soft-{len}")))?;
    }
    File::create(dir.join("file"))?;
    for number in 0..20 {
        fs::hard_link(dir.join("file"), dir.join(format!("hard-{number}")))?;
    }
    let mode = Mode::from_raw_mode(0o640);
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        (
            "character",
            FileType::CharacterDevice,
            rustix::fs::makedev(5, 1),
        ),
        (
            "block",
            FileType::BlockDevice,
            rustix::fs::makedev(259, 70_000),
        ),
    ] {
        rustix::fs::mknodat(CWD, dir.join(name), kind, mode, device)?;
    }
    Ok(())
}

/// Attributes in the inode, in one leaf, in many leaves, and with values elsewhere.
fn attributes(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let set = |file: &str, name: &str, value: &[u8]| -> Result<()> {
        let path = dir.join(file);
        if !path.exists() {
            File::create(&path)?;
        }
        Ok(rustix::fs::setxattr(
            path,
            name,
            value,
            XattrFlags::empty(),
        )?)
    };
    for name in ["user.one", "trusted.two", "security.three"] {
        set("inode", name, b"value")?;
    }
    set("inode", "user.empty", b"")?;
    for number in 0..30 {
        set("leaf", &format!("user.number-{number}"), &[b'v'; 60])?;
    }
    for number in 0..300 {
        let name = format!("user.{number}-{}", "n".repeat(number % 200));
        set("node", &name, &vec![b'v'; number % 150])?;
    }
    for number in (0..300).step_by(3) {
        let name = format!("user.{number}-{}", "n".repeat(number % 200));
        rustix::fs::removexattr(dir.join("node"), name)?;
    }
    for len in [2000, 5000, 20_000, 65_536] {
        set("large", &format!("user.length-{len}"), &vec![b'l'; len])?;
    }
    set("removed", "user.one", b"value")?;
    rustix::fs::removexattr(dir.join("removed"), "user.one")?;
    // Owner, user 1000, group, mask, others; as `setfacl` writes them.
    let acl: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x05\0\xe8\x03\0\0\
        \x04\0\x04\0\xff\xff\xff\xff\x10\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    set("acl", "system.posix_acl_access", acl)?;
    fs::create_dir(dir.join("default"))?;
    set("default", "system.posix_acl_default", acl)?;
    File::create(dir.join("default").join("inherits"))?;
    Ok(())
}

/// Owners, modes and times.
fn metadata(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for (name, seconds) in [
        ("old", -1_000_000_000),
        ("new", 2_000_000_000),
        ("late", 2_147_483_647),
    ] {
        let path = dir.join(name);
        File::create(&path)?;
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: 123_456_789,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
    }
    for mode in [0o4755, 0o2750, 0o1777, 0o000] {
        let path = dir.join(format!("mode-{mode:o}"));
        File::create(&path)?;
        let owner = (Uid::from_raw(70_000), Gid::from_raw(80_000));
        rustix::fs::chown(&path, Some(owner.0), Some(owner.1))?;
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}
