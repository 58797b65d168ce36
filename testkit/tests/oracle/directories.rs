//! Directories of every form, listed and looked up as the kernel does.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use platter_vfs::{Condition, Error, FileKind};
use rustix::fs::{CWD, Mode, OFlags};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{debugfs, e2fsck, mke2fs};

use crate::image::{Image, Listed, Opened};

/// What the kernel lists, in its order.
fn kernel_listing(path: &Path) -> Vec<Listed> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty()).unwrap();
    let entries = rustix::fs::Dir::new(dir).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            Listed {
                name: entry.file_name().to_bytes().to_vec(),
                inode: entry.ino(),
                kind: kind_of(entry.file_type()),
            }
        })
        .collect()
}

fn kind_of(file_type: rustix::fs::FileType) -> Option<FileKind> {
    use rustix::fs::FileType as Type;
    Some(match file_type {
        Type::RegularFile => FileKind::Regular,
        Type::Directory => FileKind::Directory,
        Type::Symlink => FileKind::Symlink,
        Type::Fifo => FileKind::Fifo,
        Type::Socket => FileKind::Socket,
        Type::CharacterDevice => FileKind::CharDevice,
        Type::BlockDevice => FileKind::BlockDevice,
        Type::Unknown => return None,
    })
}

fn assert_all_found(opened: &Opened<'_>, listing: &[Listed]) {
    for entry in listing {
        let found = opened.lookup(&entry.name).map(u64::from);
        assert_eq!(
            found.ok(),
            Some(entry.inode),
            "{}",
            entry.name.escape_ascii()
        );
    }
    let missing = opened.lookup(b"no such name").unwrap_err();
    assert!(matches!(missing, Error::Condition(Condition::NotFound)));
}

/// A name of `length` bytes that ends with its number.
fn name(number: usize, length: usize) -> String {
    format!("{number:x>length$}")
}

/// Files by link: many names take few inodes.
fn fill(dir: &Path, count: usize, length: impl Fn(usize) -> usize) {
    fs::create_dir(dir).unwrap();
    let mut source = None;
    for number in 0..count {
        let path = dir.join(name(number, length(number)));
        match &source {
            Some(source) if number % 50_000 != 0 => fs::hard_link(source, &path).unwrap(),
            _ => {
                fs::write(&path, b"").unwrap();
                source = Some(path);
            }
        }
    }
}

/// Directories of every form that this filesystem gives rise to.
fn populate(root: &Path) {
    fs::create_dir(root.join("empty")).unwrap();
    fill(&root.join("one"), 1, |_| 4);
    fill(&root.join("few"), 4, |_| 6);
    fill(&root.join("some"), 20, |number| 1 + number % 9 + 3);
    fill(&root.join("many"), 3000, |number| 5 + number % 40);
    fill(&root.join("long"), 700, |_| 255);
    fill(&root.join("gaps"), 900, |number| 8 + number % 60);
    for number in (0..900).filter(|number| number % 3 != 0) {
        fs::remove_file(root.join("gaps").join(name(number, 8 + number % 60))).unwrap();
    }
    let kinds = root.join("kinds");
    fs::create_dir_all(kinds.join("directory")).unwrap();
    fs::write(kinds.join("file \u{e4}\u{2603}"), b"x").unwrap();
    std::os::unix::fs::symlink("target", kinds.join("link")).unwrap();
    for (name, kind) in [
        ("fifo", rustix::fs::FileType::Fifo),
        ("socket", rustix::fs::FileType::Socket),
        ("character", rustix::fs::FileType::CharacterDevice),
        ("block", rustix::fs::FileType::BlockDevice),
    ] {
        let mode = Mode::from(0o600);
        rustix::fs::mknodat(CWD, kinds.join(name), kind, mode, rustix::fs::makedev(1, 7)).unwrap();
    }
    let bytes: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').take(100).collect();
    fs::write(kinds.join(std::ffi::OsStr::from_bytes(&bytes)), b"").unwrap();
}

const DIRS: [&str; 9] = [
    "", "empty", "one", "few", "some", "many", "long", "gaps", "kinds",
];

fn assert_listed_as_the_kernel_does(options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(&path, 24 << 10, options, None).unwrap();
    let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
    populate(mount.root());
    mount.unmount(&path).unwrap();
    assert_image_listed_as_the_kernel_does(&path, &DIRS, options);
}

fn assert_image_listed_as_the_kernel_does(path: &Path, dirs: &[&str], options: &[&str]) {
    let mount = Mount::image(path, "noload", Access::ReadOnly).unwrap();
    let image = Image::open(path);
    for dir in dirs {
        let expected = kernel_listing(&mount.root().join(dir));
        let opened = image.at(dir);
        let (found, result) = opened.list();
        result.unwrap();
        assert_eq!(found, expected, "{options:?} {dir}");
        for step in [1, 7, 300]
            .into_iter()
            .filter(|&step| step * 400 >= found.len())
        {
            let (in_steps, result) = opened.list_in_steps(step);
            result.unwrap();
            assert_eq!(in_steps, expected, "{options:?} {dir} by {step}");
        }
        assert_all_found(&opened, &found);
    }
}

#[test]
fn indexed_directories_are_listed_as_the_kernel_does() {
    for block_size in ["1024", "2048", "4096"] {
        assert_listed_as_the_kernel_does(&["-t", "ext4", "-b", block_size]);
    }
}

#[test]
fn every_hash_orders_as_the_kernel_does() {
    let dir = tempfile::tempdir().unwrap();
    for hash in ["legacy", "half_md4", "tea"] {
        let path = dir.path().join(hash);
        mke2fs::make(&path, 16 << 10, &["-t", "ext4", "-b", "1024"], None).unwrap();
        mke2fs::tune(&path, &["-E", &format!("hash_alg={hash}")]).unwrap();
        let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
        fill(&mount.root().join("many"), 2000, |number| 5 + number % 80);
        fill(&mount.root().join("few"), 5, |_| 5);
        mount.unmount(&path).unwrap();
        assert_image_listed_as_the_kernel_does(&path, &["", "many", "few"], &[hash]);
    }
}

#[test]
fn linear_directories_are_listed_as_the_kernel_does() {
    assert_listed_as_the_kernel_does(&["-t", "ext2", "-b", "1024", "-O", "^dir_index,^filetype"]);
    assert_listed_as_the_kernel_does(&["-t", "ext4", "-O", "^dir_index,metadata_csum"]);
    assert_listed_as_the_kernel_does(&["-t", "ext3", "-b", "2048", "-O", "^dir_index"]);
}

#[test]
fn inline_directories_are_listed_as_the_kernel_does() {
    assert_listed_as_the_kernel_does(&["-t", "ext4", "-O", "inline_data"]);
    assert_listed_as_the_kernel_does(&[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-I",
        "1024",
        "-O",
        "inline_data",
    ]);
    assert_listed_as_the_kernel_does(&["-t", "ext4", "-O", "inline_data,^dir_index"]);
}

#[test]
fn a_hundred_thousand_names_are_listed_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(&path, 32 << 10, &["-t", "ext4"], None).unwrap();
    let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
    fill(&mount.root().join("huge"), 100_000, |_| 20);
    mount.unmount(&path).unwrap();
    assert_image_listed_as_the_kernel_does(&path, &["huge"], &["100,000 names"]);
}

#[test]
fn index_of_three_levels_is_listed_and_searched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let options = ["-t", "ext4", "-b", "1024", "-O", "large_dir"];
    mke2fs::make(&path, 96 << 10, &options, None).unwrap();
    let mount = Mount::image(&path, "", Access::ReadWrite).unwrap();
    fill(&mount.root().join("deep"), 40_000, |_| 255);
    mount.unmount(&path).unwrap();
    let dump = debugfs::ask(&path, "htree /deep").unwrap();
    let dump = String::from_utf8_lossy(&dump);
    assert!(
        dump.contains("Indirect levels: 2"),
        "the fixture has two inner levels"
    );
    assert_image_listed_as_the_kernel_does(&path, &["deep"], &options);
}

#[test]
fn blocks_of_64_kib_hold_directories() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fill(&source.join("many"), 4000, |_| 60);
    fill(&source.join("few"), 3, |_| 3);
    let path = dir.path().join("image");
    let options = ["-t", "ext4", "-b", "65536"];
    mke2fs::make(&path, 64 << 10, &options, Some(&source)).unwrap();
    let linear = Image::open(&path);
    // The kernel here takes no such blocks, so the directory itself is the judge.
    let expected: BTreeSet<Vec<u8>> = (0..4000).map(|n| name(n, 60).into_bytes()).collect();
    e2fsck::repair(&path, &["-fyD"]).unwrap();
    let indexed = Image::open(&path);
    for image in [&linear, &indexed] {
        let many = image.at("many");
        let (found, result) = many.list();
        result.unwrap();
        let names = found.iter().map(|entry| entry.name.clone());
        let names: BTreeSet<_> = names.filter(|name| name.len() == 60).collect();
        assert_eq!(names, expected);
        assert_all_found(&many, &found);
    }
}

#[test]
fn encrypted_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(&path, 4 << 10, &["-t", "ext4", "-O", "encrypt"], None).unwrap();
    let commands = ["mkdir secret", "set_inode_field secret flags 0x80800"];
    debugfs::change(&path, &commands).unwrap();
    let image = Image::open(&path);
    let secret = image.at("secret");
    let no_key = |error: &Error| matches!(error, Error::Condition(Condition::NoKey));
    assert!(no_key(&secret.lookup(b"name").unwrap_err()));
    assert!(no_key(&secret.list().1.unwrap_err()));
    assert_eq!(secret.lookup(b"..").unwrap(), 2);
}

/// A casefolded directory with these names, its index built by `e2fsck -D`.
fn casefolded(path: &Path, options: &[&str], names: &[String]) {
    mke2fs::make(path, 8 << 10, options, None).unwrap();
    let mut commands = vec![
        "mkdir d".to_owned(),
        "set_inode_field d flags 0x40080000".to_owned(),
        "write /dev/null source".to_owned(),
    ];
    // debugfs does not grow a directory by itself.
    commands.extend(names.chunks(20).map(|_| "expand_dir d".to_owned()));
    for name in names {
        commands.push(format!("ln source \"d/{name}\""));
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    debugfs::change(path, &commands).unwrap();
    e2fsck::repair(path, &["-fyD"]).unwrap();
}

#[test]
fn casefolded_names_are_found_in_any_case() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut names = vec!["Stra\u{df}e".to_owned(), "\u{c5}ngstr\u{f6}m".to_owned()];
    names.extend((0..800).map(|number| format!("Name-{number}-\u{c4}\u{3a3}")));
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "casefold",
        "-E",
        "encoding=utf8",
    ];
    casefolded(&path, &options, &names);
    let image = Image::open(&path);
    let opened = image.at("d");
    let (found, result) = opened.list();
    result.unwrap();
    assert_eq!(found.len(), names.len() + 2);
    let source = image.at("").lookup(b"source").unwrap();
    for wanted in ["STRASSE", "stra\u{df}e", "A\u{30a}NGSTRO\u{308}M"] {
        assert_eq!(
            opened.lookup(wanted.as_bytes()).unwrap(),
            source,
            "{wanted}"
        );
    }
    for number in 0..800 {
        let wanted = format!("nAME-{number}-a\u{308}\u{3c2}");
        assert_eq!(
            opened.lookup(wanted.as_bytes()).unwrap(),
            source,
            "{wanted}"
        );
    }
    assert!(opened.lookup(b"name-800-\xff").is_err());
    assert!(
        image.at("").lookup(b"SOURCE").is_err(),
        "the root is not casefolded"
    );
}

#[test]
fn strict_encoding_refuses_names_that_are_no_utf8() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let options = [
        "-t",
        "ext4",
        "-O",
        "casefold",
        "-E",
        "encoding=utf8,encoding_flags=strict",
    ];
    casefolded(&path, &options, &["a".to_owned()]);
    let image = Image::open(&path);
    let error = image.at("d").lookup(b"\xff").unwrap_err();
    assert!(matches!(
        error,
        Error::Condition(Condition::InvalidArgument)
    ));
    assert!(image.at("d").lookup(b"A").is_ok());
}
