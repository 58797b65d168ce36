//! The operations on names, over the filesystem in memory.

use std::sync::Arc;
use std::thread;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE};
use platter_vfs::{
    Condition, Context, CreateKind, Error, FileKind, Filesystem, FixedClock, Inode, Name,
    RenameMode, Result, SetAttr, Timestamp,
};

const PROJECT_INHERIT: u32 = 0x2000_0000;

fn fs() -> MemFs {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
    MemFs::new(clock, MemFsLimits::default())
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn plant(fs: &MemFs, path: &str, kind: CreateKind) -> Arc<dyn Inode> {
    fs.plant(path.as_bytes(), kind, 0o755).unwrap()
}

fn set(inode: &dyn Inode, flags: u32, project: u32) {
    let changes = SetAttr {
        flags: Some(flags),
        project: Some(project),
        ..SetAttr::default()
    };
    inode.set_attr(&Context::root(), &changes).unwrap();
}

#[track_caller]
fn refused<T>(result: Result<T>, expected: Condition) {
    match result.err() {
        Some(Error::Condition(condition)) => assert_eq!(condition, expected),
        other => panic!("expected {expected:?}, got {other:?}"),
    }
}

#[test]
fn flags_of_a_directory_keep_its_names() {
    let (fs, context) = (fs(), Context::root());
    let dir = plant(&fs, "d", CreateKind::Directory);
    let file = plant(&fs, "d/f", CreateKind::Regular);
    let root = fs.root().unwrap();
    let create = || dir.create(&context, name("new"), CreateKind::Fifo, 0);
    let rename_in = || {
        root.rename(
            &context,
            name("g"),
            dir.id(),
            name("g"),
            RenameMode::Replace,
        )
    };
    let rename_out = || {
        dir.rename(
            &context,
            name("f"),
            root.id(),
            name("f"),
            RenameMode::Replace,
        )
    };
    plant(&fs, "g", CreateKind::Regular);
    for flags in [IMMUTABLE, APPEND_ONLY] {
        set(&*dir, flags, 0);
        refused(dir.unlink(&context, name("f")), Condition::NotPermitted);
        refused(rename_out(), Condition::NotPermitted);
    }
    set(&*dir, IMMUTABLE, 0);
    refused(create(), Condition::NotPermitted);
    refused(dir.create_unnamed(&context, 0), Condition::NotPermitted);
    refused(
        dir.link(&context, name("h"), file.id()),
        Condition::NotPermitted,
    );
    refused(rename_in(), Condition::NotPermitted);
    set(&*dir, APPEND_ONLY, 0);
    create().unwrap();
    rename_in().unwrap();
}

#[test]
fn flags_of_a_file_keep_its_names() {
    let (fs, context) = (fs(), Context::root());
    let root = fs.root().unwrap();
    let file = plant(&fs, "f", CreateKind::Regular);
    plant(&fs, "g", CreateKind::Regular);
    let dir = plant(&fs, "d", CreateKind::Directory);
    for flags in [IMMUTABLE, APPEND_ONLY] {
        set(&*file, flags, 0);
        set(&*dir, flags, 0);
        let rename = |from, to| {
            root.rename(
                &context,
                name(from),
                root.id(),
                name(to),
                RenameMode::Replace,
            )
        };
        refused(root.unlink(&context, name("f")), Condition::NotPermitted);
        refused(
            root.link(&context, name("h"), file.id()),
            Condition::NotPermitted,
        );
        refused(rename("f", "h"), Condition::NotPermitted);
        refused(rename("g", "f"), Condition::NotPermitted);
        refused(
            root.remove_dir(&context, name("d")),
            Condition::NotPermitted,
        );
    }
}

#[test]
fn files_of_another_project_stay_out_of_a_directory() {
    let (fs, context) = (fs(), Context::root());
    let root = fs.root().unwrap();
    let file = plant(&fs, "f", CreateKind::Regular);
    let dir = plant(&fs, "d", CreateKind::Directory);
    set(&*dir, PROJECT_INHERIT, 7);
    let rename = || {
        root.rename(
            &context,
            name("f"),
            dir.id(),
            name("f"),
            RenameMode::Replace,
        )
    };
    let link = || dir.link(&context, name("l"), file.id());
    refused(rename(), Condition::CrossDevice);
    refused(link(), Condition::CrossDevice);
    set(&*file, 0, 7);
    link().unwrap();
    rename().unwrap();
}

#[test]
fn crossing_renames_links_and_unlinks_end() {
    const ROUNDS: u32 = 200;
    let fs = fs();
    let dirs = ["a", "b"].map(|dir| plant(&fs, dir, CreateKind::Directory));
    let file = plant(&fs, "a/f", CreateKind::Regular);
    plant(&fs, "b/f", CreateKind::Regular);
    plant(&fs, "a/d", CreateKind::Directory);
    plant(&fs, "b/d", CreateKind::Directory);
    thread::scope(|scope| {
        for (here, there) in [(0, 1), (1, 0)] {
            let (from, to, id) = (&dirs[here], &dirs[there], file.id());
            let context = Context::root();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    // What is found missing or in the way was moved by the other thread.
                    let exchange = RenameMode::Exchange;
                    let _ = from.rename(&context, name("f"), to.id(), name("d"), exchange);
                    let _ = from.rename(&context, name("d"), to.id(), name("f"), exchange);
                    let _ = from.link(&context, name("l"), id);
                    let _ =
                        from.rename(&context, name("l"), to.id(), name("l"), RenameMode::Replace);
                    let _ = to.unlink(&context, name("l"));
                }
            });
        }
    });
    for dir in &dirs {
        let _ = dir.unlink(&Context::root(), name("l"));
        let is_directory = |entry: &&str| {
            let inode = dir.lookup(name(entry)).unwrap();
            inode.attr().unwrap().kind == FileKind::Directory
        };
        let directories = ["f", "d"].into_iter().filter(is_directory).count();
        assert_eq!(dir.attr().unwrap().links as usize, 2 + directories);
    }
    assert_eq!(file.attr().unwrap().links, 1);
}
