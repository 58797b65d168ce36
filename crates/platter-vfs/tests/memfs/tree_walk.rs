//! Walks over trees.

use std::sync::Arc;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{
    CreateKind, Filesystem, FixedClock, Name, Timestamp, TreeWalk, WalkEvent, WalkOrder,
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
fn what_lies_too_deep_is_reported() {
    let fs = mem_fs(&["a", "a/b", "a/b/c"], &["a/f"]);
    let shallow = walk(&fs, WalkOrder::Name).with_depth_max(1);
    assert_eq!(events_of(shallow), ["", "a", "a/b!", "a/f", "a/", "/"]);
}
