//! The walk finds each kind of difference, and finds none between equal trees.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{
    Context, CreateKind, Credentials, FixedClock, SetAttr, SetTime, Timestamp, XattrMode,
};

use super::*;

const MTIME: Timestamp = Timestamp {
    seconds: 1_600_000_000,
    nanoseconds: 0,
};

/// The same small tree in memory and in a directory of the host.
fn twins() -> (MemFs, tempfile::TempDir) {
    let clock = FixedClock::new(MTIME, 0);
    let filesystem = MemFs::new(Arc::new(clock), MemFsLimits::default());
    let plant = |path: &str, kind, permissions| {
        let inode = filesystem.plant(path.as_bytes(), kind, permissions);
        inode.unwrap()
    };
    plant("/dir", CreateKind::Directory, 0o750);
    let file = plant("/dir/file", CreateKind::Regular, 0o640);
    file.write_at(0, b"content").unwrap();
    file.write_at(100_000, b"far").unwrap();
    let context = Context {
        credentials: Credentials::root(),
        umask: 0,
    };
    let set = file.set_xattr(&context, b"user.key", b"value", XattrMode::Set);
    set.unwrap();
    let times = SetAttr {
        modified: Some(SetTime::At(MTIME)),
        ..SetAttr::default()
    };
    file.set_attr(&context, &times).unwrap();
    plant("/link", CreateKind::Symlink(b"dir/file".to_vec()), 0o777);

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    mode(root, 0o755);
    std::fs::create_dir(root.join("dir")).unwrap();
    mode(&root.join("dir"), 0o750);
    write_file(&root.join("dir/file"), b"content");
    std::os::unix::fs::symlink("dir/file", root.join("link")).unwrap();
    (filesystem, dir)
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn write_file(path: &Path, head: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(head, 0).unwrap();
    file.write_all_at(b"far", 100_000).unwrap();
    mode(path, 0o640);
    rustix::fs::setxattr(path, "user.key", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    file.set_modified(time).unwrap();
}

/// Modification times of links are the host's.
const RULES: Rules = Rules {
    modified_seconds: false,
    ..Rules::SOURCE_DIR
};

#[test]
fn equal_trees_show_no_difference() {
    let (filesystem, dir) = twins();
    let outcome = super::compare(&filesystem, dir.path(), RULES).unwrap();
    outcome.assert_equal();
    assert_eq!((outcome.files, outcome.xattrs), (4, 1));
    assert!(outcome.bytes > 7);
}

#[track_caller]
fn assert_found(change: impl FnOnce(&Path), expected: &str) {
    let (filesystem, dir) = twins();
    change(dir.path());
    let outcome = super::compare(&filesystem, dir.path(), RULES).unwrap();
    let text = outcome.to_string();
    assert!(outcome.differences > 0 && text.contains(expected), "{text}");
}

#[test]
fn different_byte_is_found() {
    assert_found(
        |root| write_file(&root.join("dir/file"), b"contemt"),
        "/dir/file: byte 5: platter reads 0x6e, the host 0x6d",
    );
}

#[test]
fn different_permissions_are_found() {
    assert_found(|root| mode(&root.join("dir/file"), 0o644), "permissions");
}

#[test]
fn missing_and_additional_names_are_found() {
    assert_found(
        |root| std::fs::remove_file(root.join("link")).unwrap(),
        "/link: only platter has it",
    );
    assert_found(
        |root| std::fs::write(root.join("more"), "").unwrap(),
        "/more: platter does not list it",
    );
}

#[test]
fn different_targets_kinds_and_attributes_are_found() {
    let replace = |root: &Path, target: &str| {
        std::fs::remove_file(root.join("link")).unwrap();
        std::os::unix::fs::symlink(target, root.join("link")).unwrap();
    };
    assert_found(|root| replace(root, "dir/fill"), "/link: target");
    assert_found(
        |root| {
            std::fs::remove_file(root.join("link")).unwrap();
            std::fs::create_dir(root.join("link")).unwrap();
        },
        "/link: kind",
    );
    assert_found(
        |root| {
            let path = root.join("dir/file");
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(path, "user.key", b"valve", flags).unwrap();
        },
        "the value of the attribute user.key differs",
    );
}

#[test]
fn hard_link_that_is_a_copy_is_found() {
    let (filesystem, dir) = twins();
    for path in ["/one", "/two"] {
        let inode = filesystem.plant(path.as_bytes(), CreateKind::Regular, 0o644);
        inode.unwrap().write_at(0, b"same").unwrap();
    }
    let root = dir.path();
    std::fs::write(root.join("one"), "same").unwrap();
    mode(&root.join("one"), 0o644);
    std::fs::hard_link(root.join("one"), root.join("two")).unwrap();
    let text = super::compare(&filesystem, root, RULES)
        .unwrap()
        .to_string();
    assert!(text.contains("/two: is another file than /one"), "{text}");
}
