//! Trees in memory that tests copy out, and what is compared afterwards.

mod corrupt;
mod seen;

use std::sync::Arc;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::clock::FixedClock;
use platter_vfs::{
    Context, CreateKind, Credentials, Filesystem, Inode, SetAttr, SetTime, Timestamp, XattrMode,
};

pub(crate) use corrupt::{CorruptFs, Fault};
pub(crate) use seen::assert_same;

pub(crate) fn root() -> Context {
    Context {
        credentials: Credentials::root(),
        umask: 0,
    }
}

pub(crate) fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds,
    }
}

pub(crate) fn empty() -> Arc<MemFs> {
    let clock = FixedClock::new(time(1_700_000_000, 0), 1);
    Arc::new(MemFs::new(Arc::new(clock), MemFsLimits::default()))
}

pub(crate) fn regular(fs: &MemFs, path: &[u8], contents: &[u8]) -> Arc<dyn Inode> {
    let inode = fs.plant(path, CreateKind::Regular, 0o644).unwrap();
    inode.write_at(0, contents).unwrap();
    inode
}

pub(crate) fn dir(fs: &MemFs, path: &[u8]) -> Arc<dyn Inode> {
    fs.plant(path, CreateKind::Directory, 0o755).unwrap()
}

pub(crate) fn set(inode: &Arc<dyn Inode>, changes: SetAttr) {
    inode.set_attr(&root(), &changes).unwrap();
}

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

pub(crate) fn xattr(inode: &Arc<dyn Inode>, name: &[u8], value: &[u8]) {
    inode
        .set_xattr(&root(), name, value, XattrMode::Set)
        .unwrap();
}

/// A file of every kind, and names of every kind.
pub(crate) fn rich_tree() -> Arc<MemFs> {
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
