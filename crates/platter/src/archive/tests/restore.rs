//! What GNU tar and bsdtar make of an archive is what was in the filesystem.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::path::PathWalk;
use platter_vfs::{FileKind, InodeId, SeekTarget};
use rustix::fs::{lgetxattr, llistxattr};

use super::*;

fn acl() -> Vec<u8> {
    let entries = [
        (AclSubject::Owner, 6),
        (AclSubject::User(12_345), 4),
        (AclSubject::OwningGroup, 4),
        (AclSubject::Group(4_000_000), 2),
        (AclSubject::Mask, 6),
        (AclSubject::Other, 0),
    ]
    .map(|(subject, permissions)| AclEntry {
        subject,
        permissions,
    });
    PosixAcl::new(entries.to_vec()).unwrap().encode()
}

fn xattr(inode: &Arc<dyn Inode>, name: &[u8], value: &[u8]) {
    inode
        .set_xattr(&root(), name, value, XattrMode::Set)
        .unwrap();
}

/// A file of every kind, and names of every kind.
fn rich_tree() -> Arc<MemFs> {
    let fs = empty();
    let mut deep = b"/deep".to_vec();
    dir(&fs, &deep);
    for letter in b'a'..=b'e' {
        deep.push(b'/');
        deep.extend([letter; 200]);
        dir(&fs, &deep);
    }
    deep.extend(b"/file");
    regular(&fs, &deep, b"at the bottom");
    let long = [b"/".to_vec(), vec![b'n'; 255]].concat();
    regular(&fs, &long, b"long name");
    regular(&fs, "/grün-日本".as_bytes(), b"utf-8");
    regular(&fs, b"/raw-\xff\xfe", b"no utf-8");
    regular(
        &fs,
        &[b"/\xfe".to_vec(), vec![b'r'; 200]].concat(),
        b"long and no utf-8",
    );
    regular(&fs, b"/new\nline\\ and \x1b", b"controls");

    let first = regular(&fs, b"/first", b"three names");
    let parent = fs.root().unwrap();
    for name in [&b"second"[..], &[b'h'; 150]] {
        let name = platter_vfs::Name::new(name).unwrap();
        parent.link(&root(), name, first.id()).unwrap();
    }
    let link = |path: &[u8], target: &[u8]| {
        fs.plant(path, CreateKind::Symlink(target.to_vec()), 0o777)
            .unwrap()
    };
    link(b"/short-link", b"first");
    link(b"/long-link", &[b'l'; 300]);
    link(b"/raw-link", b"\xff");
    fs.plant(b"/fifo", CreateKind::Fifo, 0o622).unwrap();

    let sparse = regular(&fs, b"/sparse", b"");
    sparse.write_at(1 << 20, b"data after a hole").unwrap();
    sparse.write_at(5 << 20, &[7; 8192]).unwrap();
    let size_bytes = Some((9 << 20) + 5);
    set(
        &sparse,
        SetAttr {
            size_bytes,
            ..SetAttr::default()
        },
    );
    let hole = regular(&fs, b"/hole", b"");
    let size_bytes = Some(1 << 20);
    set(
        &hole,
        SetAttr {
            size_bytes,
            ..SetAttr::default()
        },
    );
    let large: Vec<u8> = (0..3_000_001_u32)
        .map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes()[0])
        .collect();
    regular(&fs, b"/large", &large);

    let labelled = regular(&fs, b"/labelled", b"x");
    let permissions = Some(0o660);
    set(
        &labelled,
        SetAttr {
            permissions,
            ..SetAttr::default()
        },
    );
    xattr(&labelled, b"user.empty", b"");
    xattr(&labelled, b"user.binary", b"\0=\n\xff");
    xattr(&labelled, b"user.big", &[b'v'; 2000]);
    xattr(&labelled, ACL_ACCESS_NAME, &acl());
    let default = dir(&fs, b"/default");
    xattr(&default, ACL_DEFAULT_NAME, &acl());

    let modified = Some(SetTime::At(time(1_234_567_890, 123_456_789)));
    let changes = SetAttr {
        modified,
        ..SetAttr::default()
    };
    set(&regular(&fs, b"/precise", b""), changes);
    let changes = SetAttr {
        permissions: Some(0o6751),
        uid: Some(3_000_000),
        gid: Some(1234),
        ..SetAttr::default()
    };
    set(&regular(&fs, b"/owned", b""), changes);
    fs
}

/// What is compared: everything an archive keeps.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    permissions: u32,
    owner: (u32, u32),
    /// Of links, no program restores it everywhere.
    modified: Option<(i64, i64)>,
    contents: Vec<u8>,
    /// Where the first hole begins.
    hole: u64,
    xattrs: BTreeMap<String, String>,
    /// The first path of the same file.
    same_as: Vec<u8>,
}

fn seen_in_memory(fs: &MemFs) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut first: BTreeMap<InodeId, Vec<u8>> = BTreeMap::new();
    let mut todo = vec![(b".".to_vec(), fs.root().unwrap())];
    while let Some((path, inode)) = todo.pop() {
        let attr = inode.attr().unwrap();
        let is_regular = attr.kind == FileKind::Regular;
        let mut contents = Vec::new();
        if is_regular {
            contents.resize(usize::try_from(attr.size_bytes).unwrap(), 0);
            inode.read_at(0, &mut contents).unwrap();
        } else if attr.kind == FileKind::Symlink {
            contents = inode.read_link().unwrap();
        } else if attr.kind == FileKind::Directory {
            for entry in platter_vfs::inode::read_dir_all(&*inode).unwrap() {
                let below = [&path[..], b"/", &entry.name].concat();
                todo.push((below, fs.inode(entry.id).unwrap()));
            }
        }
        let same_as = first.entry(inode.id()).or_insert_with(|| path.clone());
        if *same_as > path {
            same_as.clone_from(&path);
        }
        let names = inode.list_xattrs().unwrap().into_iter();
        let xattrs = names.map(|name| (shown(&name), shown(&inode.get_xattr(&name).unwrap())));
        let hole = if is_regular && attr.size_bytes > 0 {
            inode.seek(0, SeekTarget::Hole).unwrap()
        } else {
            0
        };
        let modified = (attr.modified.seconds, i64::from(attr.modified.nanoseconds));
        let seen = Seen {
            kind: attr.kind,
            permissions: attr.permissions,
            owner: (attr.uid, attr.gid),
            modified: (attr.kind != FileKind::Symlink).then_some(modified),
            contents,
            hole,
            xattrs: xattrs.collect(),
            same_as: inode.id().number.to_le_bytes().to_vec(),
        };
        all.insert(path, seen);
    }
    for seen in all.values_mut() {
        let number = u64::from_le_bytes(seen.same_as[..].try_into().unwrap());
        let id = InodeId { tree: 0, number };
        seen.same_as.clone_from(&first[&id]);
    }
    all
}

fn seen_on_host(base: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut todo = vec![b".".to_vec()];
    while let Some(path) = todo.pop() {
        let host = base.join(OsStr::from_bytes(&path));
        let metadata = host.symlink_metadata().unwrap();
        let kind = FileKind::from_mode(metadata.mode()).unwrap();
        assert_eq!(metadata.file_type().is_fifo(), kind == FileKind::Fifo);
        let mut contents = Vec::new();
        let mut hole = 0;
        if kind == FileKind::Regular {
            contents = std::fs::read(&host).unwrap();
            let file = std::fs::File::open(&host).unwrap();
            if metadata.size() > 0 {
                hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
            }
        } else if kind == FileKind::Symlink {
            contents = host.read_link().unwrap().as_os_str().as_bytes().to_vec();
        } else if kind == FileKind::Directory {
            for entry in std::fs::read_dir(&host).unwrap() {
                todo.push([&path[..], b"/", entry.unwrap().file_name().as_bytes()].concat());
            }
        }
        let same_as = first.entry(metadata.ino()).or_insert_with(|| path.clone());
        if *same_as > path {
            same_as.clone_from(&path);
        }
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let seen = Seen {
            kind,
            permissions: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            modified: (kind != FileKind::Symlink).then_some(modified),
            contents,
            hole,
            xattrs: host_xattrs(&host),
            same_as: metadata.ino().to_le_bytes().to_vec(),
        };
        all.insert(path, seen);
    }
    for seen in all.values_mut() {
        let inode = u64::from_le_bytes(seen.same_as[..].try_into().unwrap());
        seen.same_as.clone_from(&first[&inode]);
    }
    all
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn host_xattrs(path: &PathBuf) -> BTreeMap<String, String> {
    let mut list = vec![0; 1 << 16];
    let length = llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(length);
            (shown(name), shown(&value))
        })
        .collect()
}

/// Compares member by member, so that a difference is readable.
fn compare(program: &str, arguments: &[&str], fs: &Arc<MemFs>) {
    let dir = tempfile::tempdir().unwrap();
    judge(program, arguments, &archive(fs.clone()), dir.path());
    let (mut expected, mut found) = (seen_in_memory(fs), seen_on_host(dir.path()));
    for (path, seen) in expected.iter_mut().chain(found.iter_mut()) {
        if !rustix::process::geteuid().is_root() {
            seen.owner = (0, 0);
        }
        if path == b"." {
            // bsdtar leaves the directory it was called in as it is.
            seen.modified = None;
        }
    }
    assert!(expected.keys().eq(found.keys()), "{:?}", found.keys());
    for (path, expected) in expected {
        let name = path.escape_ascii();
        let found = &found[&path];
        assert_eq!(
            found.contents.len(),
            expected.contents.len(),
            "{program}: {name}"
        );
        assert!(found.contents == expected.contents, "{program}: {name}");
        let found = Seen {
            contents: Vec::new(),
            ..clone(found)
        };
        assert_eq!(
            found,
            Seen {
                contents: Vec::new(),
                ..expected
            },
            "{program}: {name}"
        );
    }
}

fn clone(seen: &Seen) -> Seen {
    Seen {
        contents: Vec::new(),
        xattrs: seen.xattrs.clone(),
        same_as: seen.same_as.clone(),
        ..*seen
    }
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
