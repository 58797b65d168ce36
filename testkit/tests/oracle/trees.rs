//! Trees of every kind made into images: `e2fsck`, a kernel mount compared with the source, and the same
//! bytes from the directory, once more, and from its archive.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use platter::populate::Content;
use platter::vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter::vfs::{FixedClock, Timestamp};
use platter::{FormatOptions, ImageSpec};
use platter_ext4::mkfs::{Generation, MkfsOptions};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use testkit::attributes;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::e2fsck;
use testkit::{program, tool};

/// Files of the largest tree, unless `PLATTER_TEST_MANY_FILES` gives another number.
const MANY_FILES: usize = 10_000;

/// A tree, what it is made in, and with which features.
struct Tree {
    name: &'static str,
    generation: Generation,
    features: &'static [&'static str],
    block_bytes: Option<u32>,
    grow: fn(&Path),
    /// Its archive by GNU tar holds all of it.
    is_archived: bool,
}

const fn tree(name: &'static str, generation: Generation, grow: fn(&Path)) -> Tree {
    Tree {
        name,
        generation,
        features: &[],
        block_bytes: None,
        grow,
        is_archived: true,
    }
}

const TREES: &[Tree] = &[
    tree("empty", Generation::Ext4, |_| {}),
    tree("empty in ext2", Generation::Ext2, |_| {}),
    tree("deep", Generation::Ext4, |root| deep(root, 120)),
    tree("deep in ext3", Generation::Ext3, |root| deep(root, 60)),
    tree("wide", Generation::Ext4, |root| wide(root, 3000)),
    tree("wide in ext2", Generation::Ext2, |root| wide(root, 1500)),
    tree(
        "many small directories",
        Generation::Ext4,
        small_directories,
    ),
    tree("every type", Generation::Ext4, every_type),
    Tree {
        is_archived: false,
        ..tree("sockets", Generation::Ext4, sockets)
    },
    tree("holes", Generation::Ext4, holes),
    tree("holes in ext2", Generation::Ext2, holes),
    tree("long names", Generation::Ext4, long_names),
    tree("a thousand links", Generation::Ext4, links),
    tree("attributes", Generation::Ext4, |root| attributes(root, 900)),
    Tree {
        block_bytes: Some(4096),
        ..tree("attributes in larger blocks", Generation::Ext4, |root| {
            attributes(root, 3900);
        })
    },
    tree("attributes in ext2", Generation::Ext2, |root| {
        attributes(root, 900);
    }),
    Tree {
        features: &["ea_inode"],
        ..tree("large attributes", Generation::Ext4, |root| {
            attributes(root, 60_000);
        })
    },
    tree("equal attributes", Generation::Ext4, equal_attributes),
    tree("lists of access", Generation::Ext4, lists_of_access),
    tree("symbolic links", Generation::Ext4, symlinks),
    tree("sizes", Generation::Ext4, sizes),
    tree("sizes in ext3", Generation::Ext3, sizes),
    Tree {
        features: &["inline_data"],
        ..tree("sizes inline", Generation::Ext4, sizes)
    },
    Tree {
        features: &["bigalloc"],
        ..tree("sizes in clusters", Generation::Ext4, sizes)
    },
    tree("special names", Generation::Ext4, special_names),
    tree("owners and times", Generation::Ext4, owners_and_times),
    tree("its own lost+found", Generation::Ext4, lost_found),
    Tree {
        features: &["^metadata_csum", "^64bit"],
        ..tree("a large file", Generation::Ext4, large_file)
    },
];

fn deep(root: &Path, levels: usize) {
    let mut at = root.to_owned();
    for level in 0..levels {
        at.push(format!("level{level}"));
        fs::create_dir(&at).unwrap();
        fs::write(at.join("file"), level.to_string()).unwrap();
    }
}

fn wide(root: &Path, files: usize) {
    for number in 0..files {
        fs::write(root.join(format!("file number {number}")), b"").unwrap();
    }
}

fn small_directories(root: &Path) {
    for number in 0..600 {
        let at = root.join(format!("{}/{number}/inner", number % 7));
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("a"), number.to_string()).unwrap();
    }
}

fn every_type(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("file"), b"contents").unwrap();
    symlink("file", root.join("link")).unwrap();
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("char", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (
            "block",
            FileType::BlockDevice,
            rustix::fs::makedev(259, 70_000),
        ),
    ] {
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(CWD, root.join(name), kind, mode, device).unwrap();
    }
    for mode in [0o0, 0o777, 0o4755, 0o2711, 0o1777, 0o7777] {
        let path = root.join(format!("mode{mode:o}"));
        fs::write(&path, b"").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    fs::set_permissions(root.join("dir"), PermissionsExt::from_mode(0o3711)).unwrap();
}

fn sockets(root: &Path) {
    drop(UnixListener::bind(root.join("socket")).unwrap());
    symlink("socket", root.join("link")).unwrap();
}

fn holes(root: &Path) {
    let file = |name: &str, size: u64, pieces: &[(u64, usize)]| {
        let file = File::create(root.join(name)).unwrap();
        for &(at, len) in pieces {
            file.write_all_at(&vec![7; len], at).unwrap();
        }
        file.set_len(size).unwrap();
    };
    file("all hole", 5 << 20, &[]);
    file("tail", 1 << 20, &[(0, 10)]);
    file("head", (1 << 20) + 3, &[(1 << 20, 3)]);
    file("far", 1 << 33, &[((1 << 33) - 5000, 4000)]);
    let many: Vec<_> = (0..800).map(|number| (number * 16384, 100)).collect();
    file("many", 800 * 16384, &many);
    file("zeros", 100_000, &[]);
    fs::write(root.join("written zeros"), vec![0; 100_000]).unwrap();
}

fn long_names(root: &Path) {
    for number in 0..40 {
        let name = format!("{number}{}", "n".repeat(255 - number.to_string().len()));
        fs::write(root.join(&name), b"x").unwrap();
    }
    let two = "\u{e9}".repeat(127);
    fs::create_dir_all(root.join("d".repeat(255)).join(two)).unwrap();
}

fn links(root: &Path) {
    fs::write(root.join("m-first"), b"linked").unwrap();
    for number in 0..1000 {
        let dir = root.join(format!("{}", number % 10));
        fs::create_dir_all(&dir).unwrap();
        fs::hard_link(root.join("m-first"), dir.join(number.to_string())).unwrap();
    }
    symlink("nowhere", root.join("symlink")).unwrap();
    fs::hard_link(root.join("symlink"), root.join("a symlink")).unwrap();
}

fn set_xattr(path: &Path, name: &[u8], value: &[u8]) {
    let name = OsStr::from_bytes(name);
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn attributes(root: &Path, len_max: usize) {
    let mut len = 0;
    while len <= len_max {
        let path = root.join(format!("value of {len}"));
        fs::write(&path, b"x").unwrap();
        let value: Vec<u8> = (0..len)
            .map(|at| u8::try_from(at * 7 % 251).unwrap())
            .collect();
        set_xattr(&path, b"user.value", &value);
        len = len * 5 / 4 + 1;
    }
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..30 {
        set_xattr(&many, format!("user.name{number}").as_bytes(), b"a\nb\0c");
    }
    set_xattr(&many, b"trusted.x", b"");
    symlink("many", root.join("link")).unwrap();
    set_xattr(&root.join("link"), b"trusted.of a link = 1%", b"value");
}

fn equal_attributes(root: &Path) {
    for number in 0..1500 {
        let path = root.join(number.to_string());
        fs::write(&path, b"").unwrap();
        set_xattr(&path, b"user.shared", &[b'x'; 500]);
    }
}

fn lists_of_access(root: &Path) {
    let entry = |subject, permissions| AclEntry {
        subject,
        permissions,
    };
    let list = |user: u32| {
        let entries = vec![
            entry(AclSubject::Owner, 7),
            entry(AclSubject::User(user), 5),
            entry(AclSubject::User(4_000_000_000), 1),
            entry(AclSubject::OwningGroup, 4),
            entry(AclSubject::Group(7777), 6),
            entry(AclSubject::Mask, 7),
            entry(AclSubject::Other, 0),
        ];
        PosixAcl::new(entries).unwrap().encode()
    };
    fs::create_dir(root.join("dir")).unwrap();
    for number in 0..20 {
        let path = root.join(format!("dir/{number}"));
        fs::write(&path, b"").unwrap();
        // GNU tar gives names to users it knows: root, and none of these.
        let user = if number == 0 { 0 } else { 2000 + number };
        set_xattr(&path, ACL_ACCESS_NAME, &list(user));
    }
    set_xattr(&root.join("dir"), ACL_DEFAULT_NAME, &list(2009));
    set_xattr(&root.join("dir"), ACL_ACCESS_NAME, &list(2010));
    fs::create_dir(root.join("dir/plain")).unwrap();
    rustix::fs::removexattr(root.join("dir/plain"), OsStr::from_bytes(ACL_DEFAULT_NAME)).unwrap();
}

fn symlinks(root: &Path) {
    for len in [1, 2, 58, 59, 60, 61, 100, 255, 1000, 1023] {
        symlink("t".repeat(len), root.join(format!("to {len}"))).unwrap();
    }
}

fn sizes(root: &Path) {
    let kib = 1024;
    let edges = [
        0,
        1,
        60,
        61,
        130,
        512,
        kib,
        4 * kib,
        12 * kib,
        16 * kib,
        268 * kib,
        1 << 20,
    ];
    for edge in edges {
        for size in [edge.max(1) - 1, edge, edge + 1] {
            let bytes: Vec<u8> = (0..size)
                .map(|at| u8::try_from(at % 255).unwrap() + 1)
                .collect();
            fs::write(root.join(size.to_string()), bytes).unwrap();
        }
    }
}

fn special_names(root: &Path) {
    let names: [&[u8]; 16] = [
        b" ",
        b"\n",
        b"a\nb",
        b"\x01",
        b"\xff\xfe",
        b"-rf",
        b"*",
        b"a\\b",
        b"\"",
        b"'",
        b"%41",
        b"...",
        b"a",
        b"a.",
        b"a.b",
        b"~",
    ];
    for name in names {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
        let dir = [b"dir ", name].concat();
        fs::create_dir(root.join(OsStr::from_bytes(&dir))).unwrap();
    }
    fs::create_dir(root.join("b")).unwrap();
    fs::write(root.join("b/inside"), b"").unwrap();
    fs::write(root.join("b.after"), b"").unwrap();
    fs::write(root.join("b-before"), b"").unwrap();
}

fn owners_and_times(root: &Path) {
    let owners = [
        (0, 0),
        (1, 65_535),
        (65_536, 70_000),
        (4_294_967_294, 4_000_000_000),
    ];
    let times = [
        (0, 0),
        (1, 999_999_999),
        (-1, 5),
        (-2_000_000_000, 0),
        (4_000_000_000, 123),
    ];
    for (number, (uid, gid)) in owners.into_iter().enumerate() {
        for (seconds, nanoseconds) in times {
            let path = root.join(format!("{number} {seconds}"));
            fs::write(&path, b"").unwrap();
            std::os::unix::fs::lchown(&path, Some(uid), Some(gid)).unwrap();
            let time = Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
}

fn lost_found(root: &Path) {
    fs::create_dir(root.join("lost+found")).unwrap();
    fs::write(root.join("lost+found/#12"), b"found").unwrap();
    fs::set_permissions(root.join("lost+found"), PermissionsExt::from_mode(0o750)).unwrap();
}

fn large_file(root: &Path) {
    let bytes: Vec<u8> = (0..30u32 << 20)
        .map(|at| (at >> 12).to_le_bytes()[0] | 1)
        .collect();
    fs::write(root.join("large"), bytes).unwrap();
}

/// A directory that keeps all that a tree can have.
fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn options(tree: &Tree) -> MkfsOptions {
    let mut options = MkfsOptions::new(tree.generation);
    options.block_bytes = tree.block_bytes;
    for feature in tree.features {
        match feature.strip_prefix('^') {
            Some(feature) => options.set_feature(feature, false).unwrap(),
            None => options.set_feature(feature, true).unwrap(),
        }
    }
    options
}

fn make(image: &Path, options: MkfsOptions, content: Content) -> platter::Result<()> {
    let now = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    let spec = ImageSpec::parse(image).unwrap();
    FormatOptions::new(options)
        .clock(Arc::new(FixedClock::new(now, 7)))
        .content(content)
        .size_of_content()
        .make(&spec)
}

fn archive(source: &Path, archive: &Path) {
    let mut tar = tool::command("tar");
    tar.args([
        "--format=posix",
        "--sparse",
        "--acls",
        "--xattrs",
        "--xattrs-include=*",
    ]);
    tar.arg("-C").arg(source).arg("-cf").arg(archive).arg(".");
    tool::succeed(&mut tar).unwrap();
}

/// All that a program can ask of a tree, a line for each path.
fn listing(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut lines = BTreeMap::new();
    let mut first_paths: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut pending = vec![Vec::new()];
    while let Some(path) = pending.pop() {
        let at = root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path)));
        let found = fs::symlink_metadata(&at).unwrap();
        let mut line = format!("{:o} {}:{}", found.mode(), found.uid(), found.gid());
        let is_dir = found.is_dir();
        if is_dir {
            let mut names: Vec<_> = fs::read_dir(&at).unwrap().collect();
            names.sort_by_key(|entry| std::cmp::Reverse(entry.as_ref().unwrap().file_name()));
            let names = names.into_iter().map(|entry| entry.unwrap().file_name());
            pending.extend(names.map(|name| [&path[..], b"/", name.as_bytes()].concat()));
        } else {
            let first = first_paths
                .entry(found.ino())
                .or_insert_with(|| path.clone());
            let _ = write!(
                line,
                " {} links {first:?} {:x}",
                found.nlink(),
                found.rdev()
            );
        }
        let _ = write!(line, " {}.{}", found.mtime(), found.mtime_nsec());
        if found.is_symlink() {
            let _ = write!(line, " {}", fs::read_link(&at).unwrap().display());
        }
        if found.is_file() {
            let _ = write!(line, " {} {:x}", found.size(), sum(&at));
        }
        let mut attributes = attributes::of(&at).unwrap();
        attributes.sort_unstable();
        for (name, value) in attributes {
            let _ = write!(line, " {}={value:?}", name.escape_ascii());
        }
        lines.insert(path, line);
    }
    lines
}

/// A sum of a file's data, quick over holes.
fn sum(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let (mut sum, mut at) = (0u64, 0);
    let mut bytes = vec![0; 1 << 16];
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = data - data % bytes.len() as u64;
        let len = file.read_at(&mut bytes, at).unwrap();
        for (index, &byte) in bytes[..len]
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
        {
            let place = at + index as u64;
            sum = sum.wrapping_add((place + 1).wrapping_mul(u64::from(byte) + 0x9e37));
        }
        at += bytes.len() as u64;
    }
    sum
}

fn assert_same(image: &Path, source: &Path, what: &str) {
    let (verdict, said) = e2fsck::report(image).unwrap();
    assert!(verdict.is_clean(), "{what}: {said}");
    let mount = Mount::image(image, "", Access::ReadOnly).unwrap();
    let mut found = listing(mount.root());
    let mut expected = listing(source);
    for name in [&b""[..], b"/lost+found"] {
        if name.is_empty() || !expected.contains_key(name) {
            found.remove(name);
            expected.remove(name);
        }
    }
    for (path, line) in &expected {
        let other = found.get(path);
        assert_eq!(other, Some(line), "{what}: {}", path.escape_ascii());
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

#[test]
fn directory_and_archive_make_the_same_image() {
    for tree in TREES {
        let dir = dir();
        let at = |name: &str| dir.path().join(name);
        let source = at("source");
        fs::create_dir(&source).unwrap();
        (tree.grow)(&source);
        let content = || Content::of_dir(&source).unwrap();
        make(&at("first"), options(tree), content()).unwrap();
        assert_same(&at("first"), &source, tree.name);
        let first = fs::read(at("first")).unwrap();
        make(&at("second"), options(tree), content()).unwrap();
        assert!(fs::read(at("second")).unwrap() == first, "{}", tree.name);
        if tree.is_archived {
            archive(&source, &at("tar"));
            let content = Content::of_archive(&at("tar")).unwrap();
            make(&at("third"), options(tree), content).unwrap();
            assert!(
                fs::read(at("third")).unwrap() == first,
                "{}, archived",
                tree.name
            );
        }
    }
}

#[test]
fn targets_of_links_fill_a_block() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for len in [1024, 4000, 4095] {
        symlink("t".repeat(len), source.join(len.to_string())).unwrap();
    }
    let image = dir.path().join("image");
    let mut options = MkfsOptions::new(Generation::Ext4);
    options.block_bytes = Some(4096);
    make(&image, options, Content::of_dir(&source).unwrap()).unwrap();
    assert_same(&image, &source, "targets");
}

#[test]
fn attributes_that_have_no_space_are_refused() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), b"").unwrap();
    set_xattr(&source.join("file"), b"user.x", &[1; 5000]);
    let image = dir.path().join("image");
    let content = || Content::of_dir(&source).unwrap();
    let refused = make(&image, MkfsOptions::new(Generation::Ext4), content());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("/file"), "{refused}");
    assert!(!image.exists());
}

#[test]
fn many_files_become_an_image() {
    let count = std::env::var("PLATTER_TEST_MANY_FILES").ok();
    let count = count.map_or(MANY_FILES, |count| count.parse().unwrap());
    let dir = dir();
    let at = |name: &str| dir.path().join(name);
    let source = at("source");
    for number in 0..count {
        let inside = source.join(format!("{}/{}", number % 37, number / 37 % 53));
        if number < 37 * 53 {
            fs::create_dir_all(&inside).unwrap();
        }
        fs::write(inside.join(format!("file{number}")), number.to_string()).unwrap();
    }
    let content = || Content::of_dir(&source).unwrap();
    make(&at("first"), MkfsOptions::new(Generation::Ext4), content()).unwrap();
    assert_same(&at("first"), &source, "many files");
    archive(&source, &at("tar"));
    let content = Content::of_archive(&at("tar")).unwrap();
    make(&at("second"), MkfsOptions::new(Generation::Ext4), content).unwrap();
    assert!(fs::read(at("first")).unwrap() == fs::read(at("second")).unwrap());
}

/// The program on one processor and on two.
#[test]
fn the_number_of_processors_changes_nothing() {
    let dir = dir();
    let at = |name: &str| dir.path().join(name);
    let source = at("source");
    fs::create_dir(&source).unwrap();
    small_directories(&source);
    fs::create_dir(source.join("sizes")).unwrap();
    sizes(&source.join("sizes"));
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let platter = program::platter().unwrap();
    for (image, processors) in [("one", "0"), ("two", "0,1")] {
        let mut command = tool::command("taskset");
        command.args(["-c", processors]).arg(platter.get_program());
        command
            .args(["mkfs", "ext4"])
            .arg(at(image))
            .arg("--from")
            .arg(&source);
        command.args(["--minimize", "--seed", "5"]);
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        tool::succeed(&mut command).unwrap();
    }
    assert_same(&at("one"), &source, "processors");
    assert!(fs::read(at("one")).unwrap() == fs::read(at("two")).unwrap());
}
