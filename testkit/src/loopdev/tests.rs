//! What is made here is gone when its owner is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::*;
use crate::oracle::{Verdict, e2fsck, mke2fs};
use crate::tool;

fn image(folder: &Path) -> std::path::PathBuf {
    let image = folder.join("image");
    mke2fs::make(&image, 4096, &["-t", "ext4"], None).unwrap();
    image
}

fn is_attached(image: &Path) -> bool {
    let list = tool::succeed(tool::command("losetup").args(["--list", "-n", "-O", "BACK-FILE"]));
    let list = list.unwrap().text();
    list.lines().any(|line| Path::new(line.trim()) == image)
}

/// The kernel detaches a device when its last user closes it, and a child that another thread is
/// starting may be one for a moment.
fn is_let_go(image: &Path) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        !is_attached(image)
    })
}

#[test]
fn mount_and_device_go_with_their_owner_even_in_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
        std::fs::write(mount.root().join("file"), "content").unwrap();
        assert!(is_attached(&image));
        panic!("as a failing test does");
    }));
    assert!(outcome.is_err());
    assert!(is_let_go(&image));
    assert_eq!(e2fsck::check(&image).unwrap(), Verdict::Clean);
    let mount = Mount::image(&image, "", Access::ReadOnly).unwrap();
    assert_eq!(
        std::fs::read(mount.root().join("file")).unwrap(),
        b"content"
    );
    assert!(std::fs::write(mount.root().join("other"), "").is_err());
}

#[test]
fn programs_reach_the_mount() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
    let script = "mkdir \"$1/made\" && ls \"$1\"";
    let mut sh = tool::command("sh");
    sh.args(["-c", script, "sh"]).arg(mount.root());
    assert!(tool::succeed(&mut sh).unwrap().text().contains("made"));
}

#[test]
fn refused_mount_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("zeros");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert!(Mount::image(&image, "", Access::ReadOnly).is_err());
    assert!(is_let_go(&image));
}
