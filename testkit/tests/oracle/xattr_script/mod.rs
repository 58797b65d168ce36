//! Extended attributes and access control lists through a mount: a script of what people do with them
//! prints the same on the kernel's filesystem and on platter's.

use std::fs;
use std::path::Path;

use platter::WriteOptions;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{e2fsck, mke2fs};
use testkit::{served, tool};

const CASES: &str = include_str!("cases.sh");

/// A layout, and the largest value that all of it can hold or refuse alike.
const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "1024", "-I", "256"],
    &["-t", "ext4", "-b", "4096", "-I", "256"],
    &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"],
    &["-t", "ext4", "-b", "4096", "-I", "128", "-O", "ea_inode"],
];
/// The largest value tried.
const VALUE_BYTES_MAX: &str = "65537";

/// Runs the script in `root`, and returns what it prints.
fn run(root: &Path, script: &Path) -> Vec<u8> {
    let mut shell = tool::command("bash");
    // The shell complains that the kernel's mount has no path.
    tool::finish(shell.arg(script).arg(VALUE_BYTES_MAX).current_dir(root))
        .unwrap()
        .stdout
}

fn by_the_kernel(image: &Path, script: &Path) -> Vec<u8> {
    let mount = Mount::image(image, "", Access::ReadWrite).unwrap();
    let printed = run(mount.root(), script);
    mount.unmount(image).unwrap();
    printed
}

fn by_platter(image: &Path, dir: &Path, script: &Path) -> Vec<u8> {
    let options = WriteOptions {
        uses_reserve: true,
        ..WriteOptions::default()
    };
    let open = platter::MountOptions::new().writing(options);
    let mountpoint = dir.join("mount");
    let mut session = served::mount(image, &open, &mountpoint, "allow_other,dev").unwrap();
    let printed = run(&mountpoint, script);
    served::unmount(&mut session).unwrap();
    printed
}

#[test]
fn attribute_script_prints_the_same_as_on_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name);
    let script = path("cases.sh");
    fs::write(&script, CASES).unwrap();
    for layout in LAYOUTS {
        for image in ["kernel", "platter"] {
            mke2fs::make(&path(image), 12 << 10, layout, None).unwrap();
        }
        let expected = by_the_kernel(&path("kernel"), &script);
        let found = by_platter(&path("platter"), dir.path(), &script);
        let lines = expected.split(|&byte| byte == b'\n').count();
        assert!(lines > 1000, "{layout:?}: {lines} lines");
        let lists = ["by_the_kernel", "by_platter"].map(path);
        fs::write(&lists[0], expected).unwrap();
        fs::write(&lists[1], found).unwrap();
        let mut diff = tool::command("diff");
        let compared = tool::finish(diff.arg("--unified=4").args(&lists)).unwrap();
        assert!(compared.status.success(), "{layout:?}\n{}", compared.text());
        let (verdict, report) = e2fsck::report(&path("platter")).unwrap();
        assert!(verdict.is_clean(), "{layout:?}: {report}");
    }
}
