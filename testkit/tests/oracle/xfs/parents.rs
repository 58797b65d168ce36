//! Pointers of inodes to the directories that name them, as platter writes them, compared with those that the kernel
//! lists and removes. `mkfs.xfs` and `xfs_repair` do not know the feature here, so the test sets and clears it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use platter::Volume;
use platter_ondisk::Locus;
use platter_vfs::{Context, CreateKind, Inode, RenameMode};
use platter_xfs::ondisk::features::Incompat;
use platter_xfs::ondisk::{DiskSuperblock, Geometry, Superblock};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::tool;
use zerocopy::FromBytes;

use super::check;
use super::writing::{assert_clean, assert_equal, name, open};

/// Prints each pointer of the files that are named on the standard input: inode, parent, name.
const LIST_PARENTS: &str = r#"
use strict;
use Fcntl;
while (my $path = <STDIN>) {
    chomp $path;
    sysopen(my $file, $path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW) or die "$path: $!";
    my $inode = (stat($file))[1];
    my $cursor = "\0" x 16;
    while (1) {
        my $buffer = "\0" x 65536;
        my $request = $cursor . pack("S S L Q Q", 0, 0, 65536, 0, unpack("Q", pack("p", $buffer)));
        ioctl($file, 0xc028583e, $request) or die "$path: parents: $!";
        $cursor = substr($request, 0, 16);
        my $flags = unpack("S", substr($request, 18, 2));
        last if $flags & 2 and 0;
        my $at = 0;
        while ($at < 65536) {
            my ($generation, $parent, $length) = unpack("x12 L Q L", substr($buffer, $at, 32));
            last unless $length;
            my $name = unpack("Z*", substr($buffer, $at + 32, $length - 32));
            print "$inode $parent $name\n";
            $at += $length;
        }
        last if $flags & 2;
    }
}
"#;

/// Sets or clears the feature in all copies of the superblock.
fn set_feature(image: &Path, on: bool) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut sector = vec![0; 512];
    file.read_exact_at(&mut sector, 0).unwrap();
    let geometry = Geometry::new(&Superblock::decode(&sector, Locus::UNKNOWN).unwrap());
    for ag in geometry.groups() {
        let at = geometry.ag_offset(ag);
        file.read_exact_at(&mut sector, at).unwrap();
        let (disk, _) = DiskSuperblock::mut_from_prefix(&mut sector).unwrap();
        let mut features = disk.features().incompat;
        features.set(Incompat::PARENT, on);
        features.set(Incompat::EXCHRANGE, on);
        disk.incompat.set(features.bits());
        DiskSuperblock::seal(&mut sector);
        file.write_all_at(&sector, at).unwrap();
    }
}

type Pointers = BTreeMap<u64, BTreeSet<(u64, String)>>;

/// The pointers that inodes should have, and those that the kernel finds.
fn pointers(root: &Path) -> (Pointers, Pointers) {
    let mut expected = Pointers::new();
    let mut paths = Vec::new();
    let mut seen = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let parent = directory.metadata().unwrap().ino();
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.path().symlink_metadata().unwrap();
            let name = entry.file_name().into_string().unwrap();
            expected
                .entry(metadata.ino())
                .or_default()
                .insert((parent, name));
            // Links and devices cannot be opened for this.
            let is_open = metadata.is_file() || metadata.is_dir();
            if is_open && seen.insert(metadata.ino()) {
                paths.push(entry.path().display().to_string());
            }
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    expected.retain(|inode, _| seen.contains(inode));
    let mut list = tempfile::tempfile().unwrap();
    paths.push(String::new());
    list.write_all(paths.join("\n").as_bytes()).unwrap();
    list.seek(SeekFrom::Start(0)).unwrap();
    let mut perl = tool::command("perl");
    perl.args(["-e", LIST_PARENTS]);
    perl.stdin(list);
    let text = tool::succeed(&mut perl).unwrap().text();
    let mut found = Pointers::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next().unwrap().parse().unwrap();
        let (inode, parent) = (number(), number());
        let name = words.next().unwrap().to_owned();
        found.entry(inode).or_default().insert((parent, name));
    }
    (expected, found)
}

fn assert_pointers(image: &Path, what: &str) {
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadWrite).unwrap();
    let (expected, found) = pointers(mount.root());
    assert!(expected.len() > 20, "{what}");
    assert_eq!(found, expected, "{what}");
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
    set_feature(&image, true);
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
    set_feature(&image, false);
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
