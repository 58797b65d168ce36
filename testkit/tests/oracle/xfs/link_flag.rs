//! The flag of directories that take no symbolic links, by platter and by the kernel.
#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use platter::{MountOptions, WriteOptions};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::{ioctl, served};

use super::writing::{assert_clean, assert_equal};

const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;
const XFLAGS_BYTES: usize = 28;
const NOSYMLINKS: u32 = 0x400;
const NODEFRAG: u32 = 0x2000;
const HAS_ATTRIBUTES: u32 = 0x8000_0000;

/// The error number, if there is one.
fn outcome(done: std::io::Result<()>) -> i32 {
    done.map_or_else(|error| error.raw_os_error().unwrap(), |()| 0)
}

/// But for whether attributes have a fork, which kernels with security modules make at once.
fn xflags(path: &Path) -> u32 {
    let found = ioctl::call(path, 0, GET_XFLAGS, &[0; XFLAGS_BYTES]).unwrap();
    u32::from_ne_bytes(*found.unwrap().first_chunk().unwrap()) & !HAS_ATTRIBUTES
}

fn set(path: &Path, xflags: u32) -> i32 {
    let mut buffer = xflags.to_ne_bytes().to_vec();
    buffer.resize(XFLAGS_BYTES, 0);
    let set = ioctl::call(path, 0, SET_XFLAGS, &buffer).unwrap();
    set.err().unwrap_or(0)
}

/// What each call says, and the flags after it.
fn play(root: &Path) -> Vec<(&'static str, i32, u32)> {
    let path = |name: &str| root.join(name);
    let directory = path("dir");
    fs::create_dir(&directory).unwrap();
    fs::write(path("file"), "in it").unwrap();
    symlink("target", path("link")).unwrap();
    let mut seen = Vec::new();
    let mut note = |what, outcome, of: &str| seen.push((what, outcome, xflags(&path(of))));
    note("set", set(&directory, NOSYMLINKS), "dir");
    note("link", outcome(symlink("target", path("dir/new"))), "dir");
    let long = "t".repeat(2000);
    note("long", outcome(symlink(long, path("dir/new"))), "dir");
    let directory_in_it = outcome(fs::create_dir(path("dir/dir")));
    note("directory", directory_in_it, "dir/dir");
    note(
        "its link",
        outcome(symlink("t", path("dir/dir/new"))),
        "dir",
    );
    note(
        "moved",
        outcome(fs::rename(path("link"), path("dir/link"))),
        "dir",
    );
    note("there", outcome(symlink("target", path("dir/link"))), "dir");
    note("file", set(&path("file"), NOSYMLINKS | NODEFRAG), "file");
    note("other", set(&directory, NODEFRAG), "dir");
    note(
        "allowed",
        outcome(symlink("target", path("dir/new"))),
        "dir",
    );
    note("again", set(&directory, NOSYMLINKS), "dir");
    seen
}

#[test]
fn directories_take_no_links_as_with_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let make = || xfs::make(&image, 96 << 10, &[]).unwrap();
    make();
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    let expected = play(mount.root());
    mount.unmount_all(&[&image]).unwrap();
    make();
    let root = dir.path().join("mount");
    let options = MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(&image, &options, &root, "").unwrap();
    let found = play(&root);
    served::unmount(&mut session).unwrap();
    drop(session);
    assert_eq!(found, expected);
    let refused = |what| {
        expected
            .iter()
            .any(|(it, outcome, _)| *it == what && *outcome == 1)
    };
    assert!(refused("link"), "{expected:?}");
    assert_clean(&image, ("nosymlinks", "written"));
    assert_equal(&image, ("nosymlinks", "written"));
}
