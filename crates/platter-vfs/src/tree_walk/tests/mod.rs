//! Walks over trees that no filesystem should have, and over large ones.

mod wild;

use std::sync::Arc;

pub(super) use self::wild::Wild;
use super::{TreeWalk, WalkEvent, WalkOrder};
use crate::{Error, Filesystem};

fn walk(fs: Wild, order: WalkOrder) -> TreeWalk {
    let fs: Arc<dyn Filesystem> = Arc::new(fs);
    let root = fs.root().unwrap();
    TreeWalk::new(fs, root, order)
}

fn wild(dirs: Vec<Vec<(&str, u64)>>, broken: Option<u64>) -> TreeWalk {
    let owned = |entries: Vec<(&str, u64)>| {
        let owned = |(name, number): (&str, u64)| (name.to_owned(), number);
        entries.into_iter().map(owned).collect()
    };
    let mut fs = Wild::new(dirs.into_iter().map(owned).collect());
    fs.broken = broken;
    walk(fs, WalkOrder::Driver)
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
fn directory_larger_than_a_run_is_visited_whole() {
    let entries = (1..=30_000).map(|number| (number.to_string(), number));
    let mut dirs = vec![entries.collect()];
    dirs.resize(30_001, Vec::new());
    let mut walk = walk(Wild::new(dirs), WalkOrder::Name);
    walk.listed_bytes_left = 100_000;
    let mut seen = events_of(walk);
    assert_eq!(seen.len(), 2 * 30_001);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 2 * 30_001);
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
