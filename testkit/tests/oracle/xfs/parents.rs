//! Pointers of inodes to the directories that name them, as platter writes them, compared with those that the kernel
//! lists and removes. `mkfs.xfs` and `xfs_repair` do not know the feature here, so the test sets and clears it.

use std::fs;
use std::path::Path;

use platter::Volume;
use platter_vfs::{Context, CreateKind, Inode, RenameMode, Timestamp, WholeFile};
use platter_xfs::ondisk::features::Incompat;
use testkit::fixtures::xfs_features;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::parents;

use super::check;
use super::writing::{assert_clean, assert_equal, name, open};

const FEATURES: Incompat = Incompat::PARENT.union(Incompat::EXCHRANGE);

fn assert_pointers(image: &Path, what: &str) {
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadWrite).unwrap();
    let count = parents::compare(mount.root()).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    assert!(count > 20, "{what}");
    mount.unmount_all(&[image]).unwrap();
}

fn create(directory: &dyn Inode, text: &str, kind: CreateKind) -> std::sync::Arc<dyn Inode> {
    let created = directory.create(&Context::root(), name(text), kind, 0o755);
    created.unwrap()
}

/// Changes names in every way.
fn work(volume: &Volume, theirs: &str) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let one = create(&*root, "one", CreateKind::Directory);
    let two = create(&*root, "two", CreateKind::Directory);
    for index in 0..60 {
        create(&*one, &format!("file-{index}"), CreateKind::Regular);
    }
    let many = create(&*one, "many", CreateKind::Regular);
    for index in 0..400 {
        let text = format!("{index:03}-{}", "l".repeat(index % 200));
        two.link(&context, name(&text), many.id()).unwrap();
    }
    for index in (0..400).step_by(3) {
        let text = format!("{index:03}-{}", "l".repeat(index % 200));
        two.unlink(&context, name(&text)).unwrap();
    }
    for len in [10, 200, 330, 900] {
        let target = CreateKind::Symlink(vec![b't'; len]);
        create(&*two, &format!("soft{len}"), target);
    }
    create(&*one, "fifo", CreateKind::Fifo);
    let names: Vec<String> = (0..70).map(|index| format!("whole-{index}")).collect();
    let whole = names.iter().map(|text| WholeFile {
        name: name(text),
        uid: 1,
        gid: 1,
        permissions: 0o644,
        modified: Timestamp::default(),
        contents: text.as_bytes(),
    });
    two.create_whole(&whole.collect::<Vec<_>>()).unwrap();
    let rename = |from: &dyn Inode, old: &str, to: &dyn Inode, new: &str, mode| {
        let moved = from.rename(&context, name(old), to.id(), name(new), mode);
        moved.unwrap_or_else(|error| panic!("{old} to {new}: {error}"));
    };
    let inner = create(&*one, "inner", CreateKind::Directory);
    create(&*inner, "child", CreateKind::Regular);
    rename(&*one, "file-1", &*one, "renamed", RenameMode::Replace);
    rename(&*one, "file-2", &*two, "moved", RenameMode::Replace);
    rename(&*one, "file-3", &*two, "moved", RenameMode::Replace);
    rename(&*one, "inner", &*two, "inner", RenameMode::Replace);
    rename(&*one, "file-4", &*two, "inner", RenameMode::Exchange);
    rename(&*one, "file-5", &*one, "file-6", RenameMode::Exchange);
    rename(&*one, "file-7", &*two, "covered", RenameMode::Whiteout);
    let empty = create(&*root, "empty", CreateKind::Directory);
    drop(empty);
    root.remove_dir(&context, name("empty")).unwrap();
    let unnamed = root.create_unnamed(&context, 0o600).unwrap();
    unnamed.write_at(0, b"contents").unwrap();
    two.link(&context, name("named"), unnamed.id()).unwrap();
    // What the kernel made.
    let made = root.lookup(name(theirs)).unwrap();
    rename(&*made, "a", &*two, "from them", RenameMode::Replace);
    made.unlink(&context, name("b")).unwrap();
    rename(&*root, theirs, &*two, theirs, RenameMode::Replace);
}

fn between_platter_and_the_kernel(options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, options).unwrap();
    xfs_features::set(&image, FEATURES, true).unwrap();
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    let made = mount.root().join("theirs");
    fs::create_dir(&made).unwrap();
    for file in ["a", "b", "c"] {
        fs::write(made.join(file), file).unwrap();
        fs::hard_link(made.join(file), made.join(format!("{file}-linked"))).unwrap();
    }
    mount.unmount_all(&[&image]).unwrap();

    let volume = open(&image);
    work(&volume, "theirs");
    volume.filesystem().sync().unwrap();
    let copy = dir.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_checked(&image);
    assert_equal(&image, ("parents", "unmounted"));
    assert_pointers(&image, "unmounted");
    assert_pointers(&copy, "replayed by the kernel");

    // The kernel removes each pointer with its name, and fails where it finds none.
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    fs::rename(mount.root().join("two/moved"), mount.root().join("again")).unwrap();
    for directory in ["one", "two"] {
        fs::remove_dir_all(mount.root().join(directory)).unwrap();
    }
    mount.unmount_all(&[&image]).unwrap();
    let volume = open(&image);
    let root = volume.filesystem().root().unwrap();
    root.unlink(&Context::root(), name("again")).unwrap();
    drop(root);
    volume.filesystem().unmount().unwrap();
    drop(volume);
    xfs_features::set(&image, FEATURES, false).unwrap();
    assert_clean(&image, ("parents", "all gone"));
}

fn assert_checked(image: &Path) {
    let findings = check::findings_in(image).unwrap();
    assert_eq!(findings, Vec::<String>::new());
}

#[test]
fn pointers_to_parents_are_those_that_the_kernel_expects() {
    between_platter_and_the_kernel(&["-m", "rmapbt=1", "-l", "size=16m"]);
    between_platter_and_the_kernel(&["-b", "size=1024", "-l", "size=16m"]);
}
