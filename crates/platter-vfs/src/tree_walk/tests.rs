//! Walks over trees in memory, and over ones no filesystem should have.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::{TreeWalk, WalkEvent, WalkOrder};
use crate::memory::{MemFs, MemFsLimits};
use crate::{
    Attr, Condition, CreateKind, Description, DirCursor, DirEntry, DirSink, Error, ExtentSink,
    FileKind, Filesystem, FixedClock, Inode, InodeId, Name, Result, SeekTarget, StatFs, Timestamp,
};

fn mem_fs(dirs: &[&str], files: &[&str]) -> Arc<dyn Filesystem> {
    let clock = FixedClock::new(Timestamp::default(), 0);
    let fs = MemFs::new(Arc::new(clock), MemFsLimits::default());
    for path in dirs {
        fs.plant(path.as_bytes(), CreateKind::Directory, 0o755)
            .unwrap();
    }
    for path in files {
        fs.plant(path.as_bytes(), CreateKind::Regular, 0o644)
            .unwrap();
    }
    Arc::new(fs)
}

fn walk(fs: &Arc<dyn Filesystem>, order: WalkOrder) -> TreeWalk {
    TreeWalk::new(Arc::clone(fs), fs.root().unwrap(), order)
}

/// `path`, `path/` for a directory left, `path!` for a failure.
fn events_of(walk: TreeWalk) -> Vec<String> {
    let text = |path: &[u8], mark| format!("{}{mark}", path.escape_ascii());
    walk.map(|event| match event {
        WalkEvent::Visit(visited) => text(&visited.path, ""),
        WalkEvent::Leave(visited) => text(&visited.path, "/"),
        WalkEvent::Failed { path, .. } => text(&path, "!"),
    })
    .collect()
}

#[test]
fn directories_come_before_and_after_what_is_in_them() {
    let fs = mem_fs(&["b", "b/empty"], &["z", "b/y", "b/x", "a"]);
    let by_name = [
        "", "a", "b", "b/empty", "b/empty/", "b/x", "b/y", "b/", "z", "/",
    ];
    assert_eq!(events_of(walk(&fs, WalkOrder::Name)), by_name);
    let as_made = [
        "", "b", "b/empty", "b/empty/", "b/y", "b/x", "b/", "z", "a", "/",
    ];
    assert_eq!(events_of(walk(&fs, WalkOrder::Driver)), as_made);
}

#[test]
fn walk_from_a_file_visits_only_the_file() {
    let fs = mem_fs(&[], &["f"]);
    let file = fs.root().unwrap().lookup(Name::new(b"f").unwrap()).unwrap();
    assert_eq!(events_of(TreeWalk::new(fs, file, WalkOrder::Name)), [""]);
}

#[test]
fn skipped_contents_are_not_visited() {
    let fs = mem_fs(&["a", "b"], &["a/x", "b/x"]);
    let mut walk = walk(&fs, WalkOrder::Name);
    let mut seen = Vec::new();
    while let Some(event) = walk.next() {
        if let WalkEvent::Visit(visited) = event {
            if visited.path == b"a" {
                walk.skip_contents();
            }
            seen.push((visited.path, walk.depth()));
        }
    }
    let expected = [(&b""[..], 0), (b"a", 1), (b"b", 1), (b"b/x", 2)];
    assert_eq!(seen, expected.map(|(path, depth)| (path.to_vec(), depth)));
}

#[test]
fn directory_larger_than_a_run_is_visited_whole() {
    let clock = FixedClock::new(Timestamp::default(), 0);
    let large = MemFs::new(Arc::new(clock), MemFsLimits::default());
    for number in 0..30_000 {
        large
            .plant(format!("{number}").as_bytes(), CreateKind::Regular, 0)
            .unwrap();
    }
    let fs: Arc<dyn Filesystem> = Arc::new(large);
    let mut walk = walk(&fs, WalkOrder::Name);
    walk.listed_bytes_left = 100_000;
    let mut seen = events_of(walk);
    assert_eq!(seen.len(), 30_002);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 30_002);
}

#[test]
fn what_lies_too_deep_is_reported() {
    let fs = mem_fs(&["a", "a/b", "a/b/c"], &["a/f"]);
    let shallow = walk(&fs, WalkOrder::Name).with_depth_max(1);
    assert_eq!(events_of(shallow), ["", "a", "a/b!", "a/f", "a/", "/"]);
}

/// A filesystem of directories whose entries are given, right or wrong.
#[derive(Debug)]
struct Wild {
    dirs: Vec<Vec<(&'static str, u64)>>,
    /// Listing this one fails after its entries.
    broken: Option<u64>,
}

#[derive(Debug)]
struct WildDir {
    entries: Vec<(&'static str, u64)>,
    number: u64,
    broken: bool,
}

impl Filesystem for Wild {
    fn describe(&self) -> Description {
        unreachable!("no walk asks for it")
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        self.inode(InodeId { tree: 0, number: 0 })
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        let entries = self.dirs.get(usize::try_from(id.number).unwrap());
        Ok(Arc::new(WildDir {
            entries: entries.ok_or(Condition::Stale)?.clone(),
            number: id.number,
            broken: self.broken == Some(id.number),
        }))
    }

    fn stat_fs(&self) -> Result<StatFs> {
        Err(Condition::NotSupported.into())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

impl Inode for WildDir {
    fn id(&self) -> InodeId {
        let number = self.number;
        InodeId { tree: 0, number }
    }

    fn attr(&self) -> Result<Attr> {
        let fs = mem_fs(&[], &[]);
        let attr = fs.root()?.attr()?;
        assert_eq!(attr.kind, FileKind::Directory);
        Ok(attr)
    }

    fn lookup(&self, _: Name<'_>) -> Result<Arc<dyn Inode>> {
        Err(Condition::NotFound.into())
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        for (place, (name, number)) in (1..).zip(&self.entries) {
            if place <= from.0 {
                continue;
            }
            let entry = DirEntry {
                name: Name::new(name.as_bytes())?,
                id: InodeId {
                    tree: 0,
                    number: *number,
                },
                kind: None,
                next: DirCursor(place),
            };
            if sink(entry) == ControlFlow::Break(()) {
                return Ok(());
            }
        }
        if self.broken {
            return Err(Condition::NoKey.into());
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Condition::InvalidArgument.into())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Condition::IsDirectory.into())
    }

    fn seek(&self, _: u64, _: SeekTarget) -> Result<u64> {
        Err(Condition::IsDirectory.into())
    }

    fn extents(&self, _: Range<u64>, _: &mut ExtentSink<'_>) -> Result<()> {
        Err(Condition::IsDirectory.into())
    }

    fn get_xattr(&self, _: &[u8]) -> Result<Vec<u8>> {
        Err(Condition::NoAttribute.into())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
}

fn wild(dirs: Vec<Vec<(&'static str, u64)>>, broken: Option<u64>) -> TreeWalk {
    let fs: Arc<dyn Filesystem> = Arc::new(Wild { dirs, broken });
    walk(&fs, WalkOrder::Driver)
}

#[test]
fn a_loop_of_directories_is_reported_and_left() {
    let dirs = vec![
        vec![("a", 1), ("self", 0)],
        vec![("b", 2)],
        vec![("up", 1), ("root", 0)],
    ];
    let expected = [
        "",
        "a",
        "a/b",
        "a/b/up!",
        "a/b/root!",
        "a/b/",
        "a/",
        "self!",
        "/",
    ];
    assert_eq!(events_of(wild(dirs.clone(), None)), expected);
    let failure = wild(dirs, None).find_map(|event| match event {
        WalkEvent::Failed { error, .. } => Some(error),
        WalkEvent::Visit(_) | WalkEvent::Leave(_) => None,
    });
    let error = failure.unwrap();
    assert!(matches!(error, Error::Corrupt(_)));
    assert_eq!(
        error.to_string(),
        "directory at inode 1: more than one entry names it"
    );
}

#[test]
fn doubled_links_do_not_double_the_walk() {
    let depth = 200;
    let dirs = (1..=depth).map(|below| vec![("x", below), ("y", below)]);
    let dirs = dirs.chain([Vec::new()]).collect();
    let events = events_of(wild(dirs, None));
    assert_eq!(
        events.iter().filter(|event| event.ends_with('!')).count(),
        200
    );
    assert_eq!(events.len(), 201 * 2 + 200);
}

#[test]
fn a_listing_that_breaks_off_costs_only_what_follows_in_it() {
    let dirs = vec![
        vec![("a", 1), ("b", 2), ("gone", 9)],
        vec![("c", 3)],
        vec![],
        vec![],
    ];
    let expected = ["", "a", "a/c", "a/c/", "a!", "a/", "b", "b/", "gone!", "/"];
    assert_eq!(events_of(wild(dirs, Some(1))), expected);
}
