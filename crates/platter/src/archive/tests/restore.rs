//! What GNU tar and bsdtar make of an archive is what was in the filesystem.

use platter_vfs::path::PathWalk;

use super::*;
use crate::sample::{assert_same, rich_tree, xattr};

fn compare(program: &str, arguments: &[&str], fs: &Arc<MemFs>) {
    let dir = tempfile::tempdir().unwrap();
    judge(program, arguments, &archive(fs.clone()), dir.path());
    // bsdtar leaves the directory it was called in as it is.
    assert_same(fs, dir.path(), program == "tar");
}

#[test]
fn gnu_tar_restores_everything() {
    let arguments = [
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
        "-xp",
    ];
    let fs = rich_tree();
    let labelled = PathWalk::new(&*fs).resolve(b"/labelled").unwrap();
    // Only GNU tar escapes such names, so only it restores them.
    xattr(&labelled, b"user.a=b%c", b"awkward");
    compare("tar", &arguments, &fs);
}

#[test]
fn bsdtar_restores_everything() {
    let arguments = ["--xattrs", "--acls", "--numeric-owner", "-xpS"];
    compare("bsdtar", &arguments, &rich_tree());
}
