//! Forks of many pieces, which the kernel made: what one change cannot hold is done in steps.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use platter::Volume;
use platter_vfs::{Context, SetAttr, XattrMode};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::tool;

use super::writing::{assert_clean, assert_equal, name, open};

const BLOCK: usize = 4096;
/// Attributes of about half a block each.
const ATTRIBUTES: usize = 700;

/// Leaves no two free blocks next to each other.
fn fragment(root: &Path) {
    let dir = root.join("filling");
    fs::create_dir(&dir).unwrap();
    let mut count = 0;
    while fs::write(dir.join(count.to_string()), vec![1; BLOCK]).is_ok() {
        count += 1;
    }
    rustix::fs::sync();
    for index in (0..count).step_by(2) {
        let _ = fs::remove_file(dir.join(index.to_string()));
    }
    rustix::fs::sync();
}

fn close(volume: Volume, image: &Path, context: (&str, &str)) {
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(image, context);
    assert_equal(image, context);
}

#[test]
fn attribute_fork_of_hundreds_of_extents_is_freed_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    xfs::make(&image, 64 << 10, &["-m", "rmapbt=1"]).unwrap();
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    for file in ["one", "two"] {
        fs::write(mount.root().join(file), b"").unwrap();
    }
    fragment(mount.root());
    for file in ["one", "two"] {
        let file = File::open(mount.root().join(file)).unwrap();
        for index in 0..ATTRIBUTES {
            let name = format!("user.attribute-{index:04}");
            let value = vec![b'v'; 1800];
            rustix::fs::fsetxattr(&file, name, &value, rustix::fs::XattrFlags::CREATE).unwrap();
        }
    }
    mount.unmount_all(&[&image]).unwrap();

    let volume = open(&image);
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    // One attribute changes, and none of the others' hundreds of extents.
    let one = root.lookup(name("one")).unwrap();
    one.set_xattr(&context, b"user.attribute-0100", b"new", XattrMode::Replace)
        .unwrap();
    one.remove_xattr(&context, b"user.attribute-0200").unwrap();
    drop(one);
    root.unlink(&context, name("two")).unwrap();
    drop(root);
    close(volume, &image, ("attributes", "one of two left"));
    let volume = open(&image);
    let root = volume.filesystem().root().unwrap();
    assert_eq!(
        root.lookup(name("one"))
            .unwrap()
            .list_xattrs()
            .unwrap()
            .len(),
        ATTRIBUTES - 1
    );
    root.unlink(&context, name("one")).unwrap();
    drop(root);
    close(volume, &image, ("attributes", "none left"));
}

#[test]
fn clone_with_thousands_of_reference_counts_is_freed_in_steps() {
    const BLOCKS: usize = 9000;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    xfs::make(&image, 192 << 10, &["-d", "agcount=2", "-m", "rmapbt=1"]).unwrap();
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    let (one, two) = (mount.root().join("one"), mount.root().join("two"));
    fs::write(&one, vec![1; BLOCKS * BLOCK]).unwrap();
    rustix::fs::sync();
    tool::succeed(
        tool::command("cp")
            .arg("--reflink=always")
            .arg(&one)
            .arg(&two),
    )
    .unwrap();
    // Every second block is the first one's alone afterwards.
    let file = File::options().write(true).open(&two).unwrap();
    for block in (0..BLOCKS).step_by(2) {
        let at = u64::try_from(block * BLOCK).unwrap();
        file.write_all_at(&[2; BLOCK], at).unwrap();
    }
    drop(file);
    mount.unmount_all(&[&image]).unwrap();

    let volume = open(&image);
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let one = root.lookup(name("one")).unwrap();
    // Over blocks that are shared and blocks that are not.
    one.write_at(100 * BLOCK as u64 + 7, &vec![3; 200 * BLOCK])
        .unwrap();
    one.sync(false).unwrap();
    let shorter = SetAttr {
        size_bytes: Some((BLOCKS / 2 * BLOCK) as u64),
        ..SetAttr::default()
    };
    one.set_attr(&context, &shorter).unwrap();
    drop((one, root));
    close(volume, &image, ("clone", "truncated"));
    let volume = open(&image);
    let root = volume.filesystem().root().unwrap();
    for file in ["one", "two"] {
        root.unlink(&context, name(file)).unwrap();
    }
    drop(root);
    close(volume, &image, ("clone", "both gone"));
}
