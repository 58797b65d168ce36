//! Extended attributes in every place, listed and read as the kernel does.

use std::fs;
use std::path::Path;

use platter_ext4::ondisk::Inode;
use platter_ext4::ondisk::xattr::{ValuePlace, XattrSpace};
use platter_ext4::xattr::{self, EaInodeRule};
use platter_ondisk::Rule;
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::{Condition, Error};
use rustix::fs::XattrFlags;
use testkit::attributes;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{debugfs, mke2fs};
use testkit::prng::Prng;

use crate::image::Image;

fn platter_attributes(image: &Image, inode: &Inode) -> Vec<(Vec<u8>, Vec<u8>)> {
    let names = xattr::list(&image.volume, inode).unwrap();
    names
        .into_iter()
        .map(|name| {
            let value = xattr::get(&image.volume, inode, &name).unwrap();
            (name, value)
        })
        .collect()
}

fn set(path: &Path, name: &[u8], value: &[u8]) {
    if let Err(error) = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
        let name = String::from_utf8_lossy(name);
        panic!("{}: {name}, {} bytes: {error}", path.display(), value.len());
    }
}

fn acl(named: u32) -> Vec<u8> {
    let entry = |(subject, permissions)| AclEntry {
        subject,
        permissions,
    };
    let mut entries = vec![(AclSubject::Owner, 0o7)];
    entries.extend((0..named).map(|user| (AclSubject::User(1000 + user), 0o5)));
    entries.push((AclSubject::OwningGroup, 0o4));
    entries.extend((0..named).map(|group| (AclSubject::Group(group), 0o1)));
    entries.push((AclSubject::Mask, 0o5));
    entries.push((AclSubject::Other, 0o0));
    PosixAcl::new(entries.into_iter().map(entry).collect())
        .unwrap()
        .encode()
}

/// Files whose attributes lie after the inode, in a block, in both, and as far as `value_max`
/// bytes go.
fn populate(root: &Path, value_max: usize) {
    let mut random = Prng::new(1);
    fs::write(root.join("none"), b"").unwrap();
    let few = root.join("few");
    fs::write(&few, b"").unwrap();
    set(&few, b"user.a", b"1");
    set(&few, b"security.capability_like", b"\x01\0\0\x02");
    let many = root.join("many");
    fs::write(&many, b"").unwrap();
    for number in 0..14 {
        let name = format!("user.name-{number}-{}", "x".repeat(number % 5));
        set(&many, name.as_bytes(), &random.bytes(number));
    }
    set(&many, b"trusted.overlay.opaque", b"y");
    set(&many, "user.\u{e4}\u{2603}".as_bytes(), b"not ASCII");
    set(&many, b"user.empty", b"");
    let lists = root.join("lists");
    fs::create_dir(&lists).unwrap();
    set(&lists, ACL_ACCESS_NAME, &acl(3));
    set(&lists, ACL_DEFAULT_NAME, &acl(9));
    let link = root.join("link");
    std::os::unix::fs::symlink("target", &link).unwrap();
    set(&link, b"trusted.on_link", b"value");
    let mut size = 100;
    while size <= value_max {
        let path = root.join(format!("size-{size}"));
        fs::write(&path, b"contents").unwrap();
        set(&path, b"user.first", b"small");
        set(&path, b"user.large", &random.bytes(size));
        size = size * 3 + 1;
    }
    let whole = root.join("whole");
    fs::write(&whole, b"").unwrap();
    set(&whole, b"user.whole", &random.bytes(value_max));
    // A second inode with the same value shares its block or its inode.
    let value = attributes::of(&whole).unwrap().remove(0).1;
    let shared = root.join("shared");
    fs::write(&shared, b"").unwrap();
    set(&shared, b"user.whole", &value);
}

fn assert_read_as_the_kernel_does(options: &[&str], value_max: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(&path, 16 << 10, options, None).unwrap();
    let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
    populate(mount.root(), value_max);
    mount.unmount(&path).unwrap();
    let mount = Mount::image(&path, "noload", Access::ReadOnly).unwrap();
    let image = Image::open(&path);
    let mut count = 0;
    for entry in fs::read_dir(mount.root()).unwrap() {
        let entry = entry.unwrap();
        let opened = image.at(entry.file_name().to_str().unwrap());
        let expected = attributes::of(&entry.path()).unwrap();
        let found = platter_attributes(&image, &opened.inode);
        assert_eq!(
            found,
            expected,
            "{options:?} {}",
            entry.file_name().display()
        );
        count += found.len();
        let missing = xattr::get(&image.volume, &opened.inode, b"user.missing").unwrap_err();
        assert!(matches!(missing, Error::Condition(Condition::NoAttribute)));
    }
    assert!(count > 24, "the fixture has attributes");
}

#[test]
fn attributes_are_read_as_by_the_kernel() {
    assert_read_as_the_kernel_does(&["-t", "ext4", "-b", "4096"], 3900);
    assert_read_as_the_kernel_does(&["-t", "ext4", "-b", "1024", "-I", "512"], 900);
    assert_read_as_the_kernel_does(&["-t", "ext4", "-b", "2048", "-O", "^metadata_csum"], 1900);
}

#[test]
fn small_inodes_have_all_attributes_in_blocks() {
    assert_read_as_the_kernel_does(&["-t", "ext2", "-b", "4096", "-I", "128"], 3900);
}

#[test]
fn values_in_inodes_are_read_as_the_kernel_does() {
    let value_max = 64 << 10;
    assert_read_as_the_kernel_does(&["-t", "ext4", "-b", "4096", "-O", "ea_inode"], value_max);
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-J",
        "size=4",
        "-O",
        "ea_inode,^metadata_csum",
    ];
    assert_read_as_the_kernel_does(&options, value_max);
    let options = [
        "-t",
        "ext4",
        "-O",
        "ea_inode,metadata_csum_seed,inline_data",
        "-b",
        "2048",
        "-J",
        "size=4",
    ];
    assert_read_as_the_kernel_does(&options, value_max);
}

#[test]
fn inline_contents_are_no_attribute() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(&path, 4 << 10, &["-t", "ext4", "-O", "inline_data"], None).unwrap();
    let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
    fs::write(mount.root().join("inline"), [b'x'; 100]).unwrap();
    mount.unmount(&path).unwrap();
    let image = Image::open(&path);
    let inode = image.at("inline").inode;
    assert!(xattr::list(&image.volume, &inode).unwrap().is_empty());
    let stored = XattrSpace::decode_inode(&inode.tail, true)
        .unwrap()
        .unwrap();
    assert_eq!(stored.entries().len(), 1);
    let hidden = xattr::get(&image.volume, &inode, b"system.data").unwrap_err();
    assert!(matches!(hidden, Error::Condition(Condition::NotSupported)));
}

#[test]
fn changed_value_in_an_inode_does_not_pass() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(
        &path,
        4 << 10,
        &["-t", "ext4", "-O", "ea_inode,^has_journal"],
        None,
    )
    .unwrap();
    let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
    let file = mount.root().join("file");
    fs::write(&file, b"").unwrap();
    set(&file, b"user.large", &vec![b'x'; 20_000]);
    mount.unmount(&path).unwrap();
    let rule = |image: &Image| {
        let inode = image.at("file").inode;
        match xattr::get(&image.volume, &inode, b"user.large") {
            Err(Error::Corrupt(corruption)) => corruption.rule.into_owned(),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("the value was given"),
        }
    };
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes
        .windows(1000)
        .position(|part| part == [b'x'; 1000])
        .unwrap();
    bytes[at] = b'y';
    let image = Image::of_bytes(bytes).unwrap();
    assert_eq!(rule(&image), EaInodeRule::Hash.text());

    let inode = image.at("file").inode;
    let space = XattrSpace::decode_inode(&inode.tail, true)
        .unwrap()
        .unwrap();
    let ValuePlace::Inode { number, .. } = space.entries()[0].value else {
        panic!("the value lies elsewhere");
    };
    debugfs::change(
        &path,
        &[&format!("set_inode_field <{number}> flags 0x80000")],
    )
    .unwrap();
    assert_eq!(rule(&Image::open(&path)), EaInodeRule::Flag.text());
    let commands = [
        format!("set_inode_field <{number}> flags 0x280000"),
        format!("set_inode_field <{number}> size 19999"),
    ];
    debugfs::change(&path, &[&commands[0], &commands[1]]).unwrap();
    assert_eq!(rule(&Image::open(&path)), EaInodeRule::Size.text());
}
