//! The model's own POSIX semantics, which every driver is held to later.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::{MemFs, MemFsLimits};
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::inode::read_dir_all;
use platter_vfs::{
    AclEntry, AclSubject, Condition, Context, CreateKind, Credentials, DirCursor, Error,
    FallocateMode, FileKind, Filesystem, FixedClock, Inode, Name, PathWalk, PosixAcl, RenameMode,
    Result, SeekTarget, SetAttr, SetTime, Timestamp, XattrMode,
};

fn context() -> Context {
    Context {
        credentials: Credentials {
            uid: 1000,
            gid: 100,
            groups: vec![50],
        },
        umask: 0o022,
    }
}

fn fs() -> MemFs {
    let clock = FixedClock::new(Timestamp::default(), 0);
    MemFs::new(Arc::new(clock), MemFsLimits::default())
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn file(fs: &MemFs, path: &str) -> Arc<dyn Inode> {
    fs.plant(path.as_bytes(), CreateKind::Regular, 0o644)
        .unwrap()
}

fn dir(fs: &MemFs, path: &str) -> Arc<dyn Inode> {
    fs.plant(path.as_bytes(), CreateKind::Directory, 0o755)
        .unwrap()
}

fn at(fs: &MemFs, path: &str) -> Result<Arc<dyn Inode>> {
    PathWalk::new(fs).resolve_no_follow(path.as_bytes())
}

fn links(inode: &Arc<dyn Inode>) -> u32 {
    inode.attr().unwrap().links
}

#[track_caller]
fn refused<T>(result: Result<T>, expected: Condition) {
    match result {
        Err(Error::Condition(found)) => assert_eq!(found, expected),
        Err(error) => panic!("{error} instead of {expected}"),
        Ok(_) => panic!("done instead of {expected}"),
    }
}

fn rename(fs: &MemFs, from: (&str, &str), to: (&str, &str), mode: RenameMode) -> Result<()> {
    let (from_dir, to_dir) = (at(fs, from.0).unwrap(), at(fs, to.0).unwrap());
    from_dir.rename(&context(), name(from.1), to_dir.id(), name(to.1), mode)
}

#[test]
fn a_new_file_belongs_to_its_maker() {
    let fs = fs();
    let made = fs
        .root()
        .unwrap()
        .create(&context(), name("f"), CreateKind::Regular, 0o666);
    let attr = made.unwrap().attr().unwrap();
    assert_eq!(
        (attr.uid, attr.gid, attr.permissions, attr.links),
        (1000, 100, 0o644, 1)
    );
    assert_eq!(attr.kind, FileKind::Regular);
    let again = fs
        .root()
        .unwrap()
        .create(&context(), name("f"), CreateKind::Fifo, 0o666);
    refused(again, Condition::Exists);
}

#[test]
fn a_set_group_id_directory_hands_its_group_down() {
    let fs = fs();
    let parent = fs.plant(b"d", CreateKind::Directory, 0o2777).unwrap();
    let set = SetAttr {
        gid: Some(7),
        ..SetAttr::default()
    };
    parent.set_attr(&context(), &set).unwrap();
    let make = |text, kind, bits| {
        let made = parent.create(&context(), name(text), kind, bits).unwrap();
        let attr = made.attr().unwrap();
        (attr.gid, attr.permissions)
    };
    assert_eq!(make("sub", CreateKind::Directory, 0o777), (7, 0o2755));
    assert_eq!(make("data", CreateKind::Regular, 0o2644), (7, 0o2644));
}

#[test]
fn an_unlinked_file_lives_until_its_last_user_is_done() {
    let fs = fs();
    let held = file(&fs, "f");
    held.write_at(0, b"still here").unwrap();
    let free = fs.stat_fs().unwrap();
    fs.root().unwrap().unlink(&context(), name("f")).unwrap();
    refused(at(&fs, "f"), Condition::NotFound);
    assert_eq!(links(&held), 0);
    let mut buf = [0; 10];
    assert_eq!(held.read_at(0, &mut buf).unwrap(), 10);
    assert_eq!(&buf, b"still here");
    let id = held.id();
    assert!(fs.inode(id).is_ok(), "it is in use");
    drop(held);
    refused(fs.inode(id), Condition::Stale);
    let after = fs.stat_fs().unwrap();
    assert_eq!(after.inodes_free, free.inodes_free + 1);
    assert_eq!(after.blocks_free, free.blocks_free + 1);
}

#[test]
fn unlinked_file_without_users_is_freed_at_once() {
    let fs = fs();
    let before = fs.stat_fs().unwrap();
    file(&fs, "f").write_at(0, b"x").unwrap();
    fs.root().unwrap().unlink(&context(), name("f")).unwrap();
    assert_eq!(fs.stat_fs().unwrap(), before);
}

#[test]
fn hard_links_share_one_inode() {
    let fs = fs();
    let (target, root) = (file(&fs, "a"), fs.root().unwrap());
    root.link(&context(), name("b"), target.id()).unwrap();
    assert_eq!(links(&target), 2);
    assert!(Arc::ptr_eq(&at(&fs, "b").unwrap(), &target));
    refused(
        root.link(&context(), name("b"), target.id()),
        Condition::Exists,
    );
    let sub = dir(&fs, "d");
    refused(
        root.link(&context(), name("e"), sub.id()),
        Condition::NotPermitted,
    );
    root.unlink(&context(), name("a")).unwrap();
    root.unlink(&context(), name("b")).unwrap();
    refused(
        root.link(&context(), name("c"), target.id()),
        Condition::NotFound,
    );
}

#[test]
fn an_unnamed_file_may_get_its_first_name() {
    let fs = fs();
    let root = fs.root().unwrap();
    let unnamed = root.create_unnamed(&context(), 0o600).unwrap();
    assert_eq!(links(&unnamed), 0);
    root.link(&context(), name("named"), unnamed.id()).unwrap();
    assert_eq!(links(&unnamed), 1);
    let expected = Condition::NotDirectory;
    refused(unnamed.create_unnamed(&context(), 0o600), expected);
    let forgotten = root.create_unnamed(&context(), 0o600).unwrap();
    let free = fs.stat_fs().unwrap().inodes_free;
    drop(forgotten);
    assert_eq!(fs.stat_fs().unwrap().inodes_free, free + 1);
}

#[test]
fn directories_count_their_subdirectories() {
    let fs = fs();
    let (root, parent) = (fs.root().unwrap(), dir(&fs, "d"));
    let sub = dir(&fs, "d/sub");
    assert_eq!((links(&root), links(&parent), links(&sub)), (3, 3, 2));
    refused(root.remove_dir(&context(), name("d")), Condition::NotEmpty);
    parent.remove_dir(&context(), name("sub")).unwrap();
    assert_eq!((links(&parent), links(&sub)), (2, 0));
    let into_removed = sub.create(&context(), name("f"), CreateKind::Regular, 0o600);
    refused(into_removed, Condition::NotFound);
    assert!(read_dir_all(&*sub).unwrap().is_empty());
}

#[test]
fn unlink_and_rmdir_mind_the_sort_of_file() {
    let fs = fs();
    let root = fs.root().unwrap();
    file(&fs, "f");
    dir(&fs, "d");
    refused(root.unlink(&context(), name("d")), Condition::IsDirectory);
    refused(root.unlink(&context(), name(".")), Condition::IsDirectory);
    refused(
        root.remove_dir(&context(), name("f")),
        Condition::NotDirectory,
    );
    refused(
        root.remove_dir(&context(), name(".")),
        Condition::InvalidArgument,
    );
    refused(root.remove_dir(&context(), name("..")), Condition::NotEmpty);
    refused(
        root.remove_dir(&context(), name("none")),
        Condition::NotFound,
    );
    let file = at(&fs, "f").unwrap();
    refused(file.lookup(name("x")), Condition::NotDirectory);
    refused(file.read_link(), Condition::InvalidArgument);
    refused(root.read_at(0, &mut [0]), Condition::IsDirectory);
}

#[test]
fn rename_replaces_only_its_like() {
    let fs = fs();
    dir(&fs, "d");
    dir(&fs, "full");
    file(&fs, "full/x");
    let (first, second) = (file(&fs, "a"), file(&fs, "b"));
    let plain = |from, to| rename(&fs, ("/", from), ("/", to), RenameMode::Replace);
    refused(plain("none", "b"), Condition::NotFound);
    refused(plain("a", "d"), Condition::IsDirectory);
    refused(plain("d", "a"), Condition::NotDirectory);
    refused(plain("d", "full"), Condition::NotEmpty);
    refused(plain("a", ".."), Condition::Busy);
    plain("a", "b").unwrap();
    assert!(Arc::ptr_eq(&at(&fs, "b").unwrap(), &first));
    assert_eq!((links(&first), links(&second)), (1, 0));
    plain("full", "d").unwrap();
    assert!(at(&fs, "d/x").is_ok());
    assert_eq!(links(&fs.root().unwrap()), 3);
    plain("b", "b").unwrap();
    assert_eq!(links(&first), 1);
}

#[test]
fn rename_of_one_file_onto_itself_changes_nothing() {
    let fs = fs();
    let target = file(&fs, "a");
    fs.root()
        .unwrap()
        .link(&context(), name("b"), target.id())
        .unwrap();
    rename(&fs, ("/", "a"), ("/", "b"), RenameMode::Replace).unwrap();
    assert_eq!(links(&target), 2);
    assert!(at(&fs, "a").is_ok());
}

#[test]
fn directory_moves_with_its_parent_entry_and_not_below_itself() {
    let fs = fs();
    let (_, to) = (dir(&fs, "from"), dir(&fs, "to"));
    let moved = dir(&fs, "from/d");
    dir(&fs, "from/d/deep");
    let mode = RenameMode::Replace;
    refused(
        rename(&fs, ("from", "d"), ("from/d/deep", "x"), mode),
        Condition::InvalidArgument,
    );
    refused(
        rename(&fs, ("from/d", "deep"), ("/", "from"), mode),
        Condition::NotEmpty,
    );
    rename(&fs, ("from", "d"), ("to", "d"), mode).unwrap();
    assert!(Arc::ptr_eq(&moved.lookup(name("..")).unwrap(), &to));
    assert_eq!((links(&at(&fs, "from").unwrap()), links(&to)), (2, 3));
}

#[test]
fn rename_modes_keep_their_word() {
    let fs = fs();
    dir(&fs, "d");
    let (inside, outside) = (file(&fs, "d/f"), dir(&fs, "e"));
    let mode = RenameMode::NoReplace;
    refused(rename(&fs, ("/", "e"), ("d", "f"), mode), Condition::Exists);
    let mode = RenameMode::Exchange;
    refused(
        rename(&fs, ("/", "e"), ("d", "none"), mode),
        Condition::NotFound,
    );
    refused(
        rename(&fs, ("/", "d"), ("d", "f"), mode),
        Condition::InvalidArgument,
    );
    refused(
        rename(&fs, ("d", "f"), ("/", "d"), mode),
        Condition::InvalidArgument,
    );
    rename(&fs, ("/", "e"), ("d", "f"), mode).unwrap();
    assert!(Arc::ptr_eq(&at(&fs, "e").unwrap(), &inside));
    assert!(Arc::ptr_eq(&at(&fs, "d/f").unwrap(), &outside));
    assert_eq!(
        (links(&fs.root().unwrap()), links(&at(&fs, "d").unwrap())),
        (3, 3)
    );
    rename(&fs, ("/", "e"), ("/", "g"), RenameMode::Whiteout).unwrap();
    let whiteout = at(&fs, "e").unwrap().attr().unwrap();
    assert_eq!((whiteout.kind, whiteout.links), (FileKind::CharDevice, 1));
    assert!(Arc::ptr_eq(&at(&fs, "g").unwrap(), &inside));
}

#[test]
fn a_cursor_survives_changes_of_the_directory() {
    let fs = fs();
    let root = fs.root().unwrap();
    for number in 0..600 {
        file(&fs, &format!("f{number}"));
    }
    let (mut seen, mut cursor) = (Vec::new(), DirCursor::START);
    loop {
        let mut count = 0;
        let listing = root.read_dir(cursor, &mut |entry| {
            cursor = entry.next;
            seen.push(String::from_utf8_lossy(&entry.name).into_owned());
            count += 1;
            if count == 10 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        listing.unwrap();
        let Some(last) = seen.last().filter(|last| last.starts_with('f')) else {
            continue;
        };
        if count < 10 {
            break;
        }
        // What was listed is removed; what was not stays in the listing.
        root.unlink(&context(), name(last)).unwrap();
    }
    let mut names: Vec<_> = seen.iter().filter(|text| text.starts_with('f')).collect();
    names.sort();
    names.dedup();
    assert_eq!((seen.len(), names.len()), (602, 600));
    assert_eq!(&seen[..2], [".", ".."]);
}

#[test]
fn contents_grow_shrink_and_seek() {
    let fs = fs();
    let inode = file(&fs, "f");
    inode.write_at(10_000, b"end").unwrap();
    let attr = inode.attr().unwrap();
    assert_eq!((attr.size_bytes, attr.sectors), (10_003, 8));
    assert_eq!(inode.seek(0, SeekTarget::Data).unwrap(), 8_192);
    let set = SetAttr {
        size_bytes: Some(5),
        ..SetAttr::default()
    };
    assert_eq!(inode.set_attr(&context(), &set).unwrap().sectors, 0);
    refused(
        inode.write_at(u64::MAX - 1, b"far"),
        Condition::FileTooLarge,
    );
    refused(
        inode.write_at(i64::MAX as u64, b"far"),
        Condition::FileTooLarge,
    );
    let set = SetAttr {
        size_bytes: Some(u64::MAX),
        ..SetAttr::default()
    };
    refused(inode.set_attr(&context(), &set), Condition::FileTooLarge);
}

#[test]
fn fallocate_takes_frees_and_moves_space() {
    let fs = fs();
    let inode = file(&fs, "f");
    let pages = || inode.attr().unwrap().sectors / 8;
    inode
        .fallocate(0..8_192, FallocateMode::Allocate { keep_size: true })
        .unwrap();
    assert_eq!((inode.attr().unwrap().size_bytes, pages()), (0, 2));
    inode
        .fallocate(0..12_288, FallocateMode::Allocate { keep_size: false })
        .unwrap();
    assert_eq!((inode.attr().unwrap().size_bytes, pages()), (12_288, 3));
    inode
        .fallocate(4_096..8_192, FallocateMode::PunchHole)
        .unwrap();
    assert_eq!(pages(), 2);
    inode
        .fallocate(0..4_096, FallocateMode::CollapseRange)
        .unwrap();
    assert_eq!((inode.attr().unwrap().size_bytes, pages()), (8_192, 1));
    inode
        .fallocate(0..4_096, FallocateMode::InsertRange)
        .unwrap();
    assert_eq!((inode.attr().unwrap().size_bytes, pages()), (12_288, 1));
    let zero = FallocateMode::ZeroRange { keep_size: true };
    inode.fallocate(0..4_096, zero).unwrap();
    assert_eq!(pages(), 2);
    refused(inode.fallocate(5..5, zero), Condition::InvalidArgument);
    refused(inode.fallocate(0..u64::MAX, zero), Condition::FileTooLarge);
}

#[test]
fn space_and_inodes_run_out() {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
    let limits = MemFsLimits {
        pages: 2,
        inodes: 2,
    };
    let fs = MemFs::new(clock, limits);
    let inode = file(&fs, "f");
    let another = fs.plant(b"g", CreateKind::Regular, 0o644);
    refused(another, Condition::NoSpace);
    inode.write_at(0, &[1; 8_192]).unwrap();
    refused(inode.write_at(8_192, b"x"), Condition::NoSpace);
    inode.write_at(0, b"overwriting needs no space").unwrap();
    let allocate = FallocateMode::Allocate { keep_size: true };
    refused(inode.fallocate(0..8_193, allocate), Condition::NoSpace);
    fs.root().unwrap().unlink(&context(), name("f")).unwrap();
    drop(inode);
    let stat = fs.stat_fs().unwrap();
    assert_eq!((stat.blocks_free, stat.inodes_free), (2, 1));
}

#[test]
fn attributes_are_made_replaced_and_removed() {
    let fs = fs();
    let inode = file(&fs, "f");
    let set = |value: &[u8], mode| inode.set_xattr(&context(), b"user.a", value, mode);
    refused(inode.get_xattr(b"user.a"), Condition::NoAttribute);
    refused(set(b"1", XattrMode::Replace), Condition::NoAttribute);
    set(b"1", XattrMode::Create).unwrap();
    refused(set(b"2", XattrMode::Create), Condition::Exists);
    set(b"2", XattrMode::Replace).unwrap();
    set(b"", XattrMode::Set).unwrap();
    assert_eq!(inode.get_xattr(b"user.a").unwrap(), b"");
    assert_eq!(inode.list_xattrs().unwrap(), [b"user.a"]);
    refused(set(&vec![0; 65_537], XattrMode::Set), Condition::TooBig);
    let long = [b'n'; 256];
    refused(
        inode.set_xattr(&context(), &long, b"", XattrMode::Set),
        Condition::OutOfRange,
    );
    inode.remove_xattr(&context(), b"user.a").unwrap();
    refused(
        inode.remove_xattr(&context(), b"user.a"),
        Condition::NoAttribute,
    );
}

#[test]
fn times_follow_changes() {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
    let fs = MemFs::new(Arc::clone(&clock) as _, MemFsLimits::default());
    let inode = file(&fs, "f");
    let second = |seconds| Timestamp {
        seconds,
        nanoseconds: 0,
    };
    clock.advance(Duration::from_secs(5));
    inode.write_at(0, b"x").unwrap();
    let attr = inode.attr().unwrap();
    assert_eq!(
        (attr.accessed, attr.modified, attr.changed),
        (second(0), second(5), second(5))
    );
    clock.advance(Duration::from_secs(5));
    let set = SetAttr {
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::At(second(-7))),
        ..SetAttr::default()
    };
    let attr = inode.set_attr(&context(), &set).unwrap();
    assert_eq!(
        (attr.accessed, attr.modified, attr.changed),
        (second(10), second(-7), second(10))
    );
    assert_eq!(attr.created, Some(second(0)));
    let root = fs.root().unwrap().attr().unwrap();
    assert_eq!(
        root.modified,
        second(0),
        "writing to a file is no change of its directory"
    );
}

#[test]
fn a_read_only_filesystem_answers_so_to_every_change() {
    let fs = fs();
    let (inode, root) = (file(&fs, "f"), fs.root().unwrap());
    fs.unmount().unwrap();
    assert!(fs.is_read_only());
    let context = &context();
    let expected = Condition::ReadOnly;
    refused(
        root.create(context, name("g"), CreateKind::Fifo, 0),
        expected,
    );
    refused(root.create_unnamed(context, 0), expected);
    refused(root.link(context, name("g"), inode.id()), expected);
    refused(root.unlink(context, name("f")), expected);
    refused(root.remove_dir(context, name("f")), expected);
    let mode = RenameMode::Replace;
    refused(
        root.rename(context, name("f"), root.id(), name("g"), mode),
        expected,
    );
    refused(inode.set_attr(context, &SetAttr::default()), expected);
    refused(inode.write_at(0, b"x"), expected);
    refused(inode.fallocate(0..1, FallocateMode::PunchHole), expected);
    refused(
        inode.set_xattr(context, b"user.a", b"", XattrMode::Set),
        expected,
    );
    refused(inode.remove_xattr(context, b"user.a"), expected);
}

#[test]
fn acls_and_permission_bits_follow_each_other() {
    use AclSubject::{Mask, Other, Owner, OwningGroup, User};
    let fs = fs();
    let acl = |entries: &[(AclSubject, u8)]| {
        let entry = |&(subject, permissions)| AclEntry {
            subject,
            permissions,
        };
        PosixAcl::new(entries.iter().map(entry).collect()).unwrap()
    };
    let set = |inode: &Arc<dyn Inode>, name: &[u8], acl: &PosixAcl| {
        inode.set_xattr(&context(), name, &acl.encode(), XattrMode::Set)
    };
    let bits = |inode: &Arc<dyn Inode>| inode.attr().unwrap().permissions;
    let inode = file(&fs, "f");
    let extended = acl(&[
        (Owner, 7),
        (User(5), 6),
        (OwningGroup, 4),
        (Mask, 5),
        (Other, 0),
    ]);
    set(&inode, ACL_ACCESS_NAME, &extended).unwrap();
    assert_eq!(bits(&inode), 0o750);
    let chmod = SetAttr {
        permissions: Some(0o624),
        ..SetAttr::default()
    };
    inode.set_attr(&context(), &chmod).unwrap();
    let stored = PosixAcl::decode(&inode.get_xattr(ACL_ACCESS_NAME).unwrap()).unwrap();
    assert_eq!(stored, extended.with_mode(0o624));
    set(
        &inode,
        ACL_ACCESS_NAME,
        &acl(&[(Owner, 6), (OwningGroup, 4), (Other, 4)]),
    )
    .unwrap();
    assert_eq!(bits(&inode), 0o644);
    refused(inode.get_xattr(ACL_ACCESS_NAME), Condition::NoAttribute);
    refused(
        set(&inode, ACL_DEFAULT_NAME, &extended),
        Condition::AccessDenied,
    );
    let invalid = inode.set_xattr(&context(), ACL_ACCESS_NAME, b"no ACL", XattrMode::Set);
    assert!(invalid.is_err());

    let parent = dir(&fs, "d");
    let default = acl(&[
        (Owner, 7),
        (User(5), 7),
        (OwningGroup, 7),
        (Mask, 7),
        (Other, 5),
    ]);
    set(&parent, ACL_DEFAULT_NAME, &default).unwrap();
    let made = parent
        .create(&context(), name("f"), CreateKind::Regular, 0o666)
        .unwrap();
    assert_eq!(
        bits(&made),
        0o664,
        "the default ACL takes the umask's place"
    );
    let stored = PosixAcl::decode(&made.get_xattr(ACL_ACCESS_NAME).unwrap()).unwrap();
    assert_eq!(stored, default.inherited(0o666));
    let sub = parent
        .create(&context(), name("sub"), CreateKind::Directory, 0o777)
        .unwrap();
    assert_eq!(sub.get_xattr(ACL_DEFAULT_NAME).unwrap(), default.encode());
    let link = CreateKind::Symlink(b"x".to_vec());
    let link = parent
        .create(&context(), name("link"), link, 0o777)
        .unwrap();
    assert!(link.list_xattrs().unwrap().is_empty());
}
