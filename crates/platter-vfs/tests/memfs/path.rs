//! Whole walks, over the filesystem in memory.

use std::sync::Arc;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::path::{LINKS_FOLLOWED_MAX, LastComponent, PathWalk};
use platter_vfs::{
    Condition, Context, CreateKind, Credentials, DentryCache, Error, FileKind, Filesystem,
    FixedClock, Inode, Name, Result, SetAttr, Timestamp,
};

struct Tree(MemFs);

impl Tree {
    fn new() -> Self {
        let clock = FixedClock::new(Timestamp::default(), 0);
        Self(MemFs::new(Arc::new(clock), MemFsLimits::default()))
    }

    fn plant(self, path: &[u8], kind: CreateKind) -> Self {
        self.0.plant(path, kind, 0o755).unwrap();
        self
    }

    fn dir(self, path: &str) -> Self {
        self.plant(path.as_bytes(), CreateKind::Directory)
    }

    fn file(self, path: &str) -> Self {
        self.plant(path.as_bytes(), CreateKind::Regular)
    }

    fn link(self, path: &str, target: impl AsRef<[u8]>) -> Self {
        let kind = CreateKind::Symlink(target.as_ref().to_vec());
        self.plant(path.as_bytes(), kind)
    }

    fn walk(&self) -> PathWalk<'_> {
        PathWalk::new(&self.0)
    }

    fn resolve(&self, path: &str) -> Result<Arc<dyn Inode>> {
        self.walk().resolve(path.as_bytes())
    }

    #[track_caller]
    fn same(&self, path: &str, other: &str) {
        let found = self.resolve(path).unwrap().id();
        let expected = self
            .walk()
            .resolve_no_follow(other.as_bytes())
            .unwrap()
            .id();
        assert_eq!(found, expected, "{path} and {other}");
    }

    #[track_caller]
    fn refused(&self, path: impl AsRef<[u8]>, expected: Condition) {
        refused(self.walk().resolve(path.as_ref()), expected);
    }
}

#[track_caller]
fn refused<T>(result: Result<T>, expected: Condition) {
    match result {
        Err(Error::Condition(found)) => assert_eq!(found, expected),
        Err(error) => panic!("{error} instead of {expected}"),
        Ok(_) => panic!("found instead of {expected}"),
    }
}

fn tree() -> Tree {
    Tree::new().dir("a").dir("a/b").file("a/b/f").file("f")
}

#[test]
fn a_path_is_walked_component_by_component() {
    let tree = tree();
    for path in ["/a/b/f", "a/b/f", "//a///b/./f", "a/../a/b/../b/f"] {
        tree.same(path, "a/b/f");
    }
    for path in ["/", "//", ".", "..", "/..", "a/../..", "a/b/../../../../.."] {
        tree.same(path, "/");
    }
}

#[test]
fn what_is_not_there_or_no_directory_is_refused() {
    let tree = tree();
    tree.refused("", Condition::NotFound);
    tree.refused("a/none", Condition::NotFound);
    tree.refused("none/f", Condition::NotFound);
    tree.refused("f/x", Condition::NotDirectory);
    tree.refused("f/", Condition::NotDirectory);
    tree.refused("f/.", Condition::NotDirectory);
    tree.refused("f/..", Condition::NotDirectory);
    tree.refused(b"a\0b", Condition::InvalidArgument);
    tree.same("a/", "a");
}

#[test]
fn names_and_paths_have_a_longest() {
    let tree = tree();
    tree.refused("n".repeat(256), Condition::NameTooLong);
    tree.refused("n".repeat(255), Condition::NotFound);
    let path = "a/../".repeat(819);
    assert_eq!(path.len(), 4_095);
    tree.same(&path, "/");
    let longer = format!("{path}a");
    tree.refused(&longer, Condition::NameTooLong);
    let found = tree.walk().with_long_paths().resolve(longer.as_bytes());
    assert_eq!(found.unwrap().id(), tree.resolve("a").unwrap().id());
}

#[test]
fn links_lead_to_their_targets_within_the_filesystem() {
    let tree = tree()
        .link("a/relative", "b/f")
        .link("a/up", "../f")
        .link("a/b/absolute", "/a/b")
        .link("outside", "../../../../f")
        .link("root", "/")
        .link("slash", "a/b/")
        .link("dangling", "none");
    tree.same("a/relative", "a/b/f");
    tree.same("a/up", "f");
    tree.same("a/b/absolute/f", "a/b/f");
    tree.same("a/b/absolute/..", "a");
    tree.same("outside", "f");
    tree.same("root", "/");
    tree.same("root/a/../f", "f");
    tree.same("slash", "a/b");
    tree.same("slash/../b/f", "a/b/f");
    tree.refused("dangling", Condition::NotFound);
}

#[test]
fn a_link_at_the_end_is_followed_only_if_asked_for() {
    let tree = tree().link("link", "a").link("to_file", "f");
    let walk = tree.walk();
    let no_follow = |path: &[u8]| walk.resolve_no_follow(path).unwrap().id();
    assert_ne!(no_follow(b"link"), no_follow(b"a"));
    assert_eq!(no_follow(b"link/"), no_follow(b"a"));
    assert_eq!(no_follow(b"link/b"), no_follow(b"a/b"));
    refused(walk.resolve_no_follow(b"to_file/"), Condition::NotDirectory);
}

#[test]
fn a_slash_in_a_link_asks_for_a_directory() {
    let tree = tree().link("slashed", "f/").link("twice", "slashed");
    tree.refused("slashed", Condition::NotDirectory);
    tree.refused("twice", Condition::NotDirectory);
}

#[test]
fn loops_of_links_end() {
    let tree = tree()
        .link("self", "self")
        .link("ping", "pong")
        .link("pong", "ping");
    let tree = tree
        .link("grow", "grow/x")
        .link("a/deep", "../a/deep/../deep");
    for path in ["self", "self/x", "ping", "pong/", "grow", "a/deep"] {
        tree.refused(path, Condition::TooManyLinksFollowed);
    }
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let mut tree = tree().link("link1", "f");
    for number in 2..=LINKS_FOLLOWED_MAX + 1 {
        tree = tree.link(&format!("link{number}"), format!("link{}", number - 1));
    }
    tree.same("link40", "f");
    tree.refused("link41", Condition::TooManyLinksFollowed);
    tree.refused("link21/../link20", Condition::NotDirectory);
}

#[test]
fn the_longest_link_target_is_a_path() {
    let target = "a/../".repeat(819);
    let tree = tree()
        .link("long", &target)
        .link("longs", "long/long/long/f");
    tree.same("long", "/");
    tree.same("longs", "f");
}

#[test]
fn a_parent_is_found_without_looking_at_the_last_component() {
    let tree = tree().link("link", "a/b");
    let walk = tree.walk();
    for (path, parent, last, slash) in [
        ("new", "/", &b"new"[..], false),
        ("/a/b/new", "a/b", b"new", false),
        ("a/b/new//", "a/b", b"new", true),
        ("link/new", "a/b", b"new", false),
        ("link", "/", b"link", false),
        ("a/none", "a", b"none", false),
    ] {
        let located = walk.resolve_parent(path.as_bytes()).unwrap();
        assert_eq!(
            located.parent.id(),
            tree.resolve(parent).unwrap().id(),
            "{path}"
        );
        let name = Name::new(last).unwrap().to_owned();
        assert_eq!(located.last, LastComponent::Name(name), "{path}");
        assert_eq!(located.trailing_slash, slash, "{path}");
    }
    refused(walk.resolve_parent(b"none/new"), Condition::NotFound);
    refused(walk.resolve_parent(b"f/new"), Condition::NotDirectory);
    refused(walk.resolve_parent(b""), Condition::NotFound);
    refused(walk.resolve_parent(&[b'n'; 256]), Condition::NameTooLong);
}

#[test]
fn what_is_no_name_is_refused_as_each_call_does() {
    let tree = tree();
    let located = |path: &[u8]| tree.walk().resolve_parent(path).unwrap();
    for (path, rmdir) in [
        (&b"/"[..], Condition::Busy),
        (b"a/.", Condition::InvalidArgument),
        (b"a/..", Condition::NotEmpty),
    ] {
        refused(located(path).name_to_remove_dir(), rmdir);
        refused(located(path).name_to_create(), Condition::Exists);
        refused(located(path).name_to_unlink(), Condition::IsDirectory);
        refused(located(path).name_to_rename(), Condition::Busy);
    }
    assert_eq!(located(b"a/x").name_to_create().unwrap().as_bytes(), b"x");
    assert!(tree.0.root().is_ok());
}

#[test]
fn names_are_looked_up_once_and_changes_are_seen() {
    let tree = tree();
    let dentries = DentryCache::new(100);
    let walk = tree.walk().with_dentries(&dentries);
    let file = walk.resolve(b"a/b/f").unwrap();
    refused(walk.resolve(b"a/b/none"), Condition::NotFound);
    assert_eq!(dentries.len(), 4);
    assert_eq!(walk.resolve(b"a/b/f").unwrap().id(), file.id());
    refused(walk.resolve(b"a/b/none"), Condition::NotFound);
    assert_eq!(dentries.len(), 4);
    let dir = walk.resolve(b"a/b").unwrap();
    let name = Name::new(b"none").unwrap();
    let change = dentries.change(dir.id(), name);
    tree.0.plant(b"a/b/none", CreateKind::Fifo, 0).unwrap();
    drop(change);
    assert_eq!(
        walk.resolve(b"a/b/none").unwrap().attr().unwrap().kind,
        FileKind::Fifo
    );
}

#[test]
fn a_remembered_file_that_is_gone_is_looked_up_again() {
    let tree = tree();
    let dentries = DentryCache::new(100);
    let walk = tree.walk().with_dentries(&dentries);
    let (root, name) = (tree.0.root().unwrap(), Name::new(b"f").unwrap());
    walk.resolve(b"f").unwrap();
    // A change without notification of the cache.
    root.unlink(&Context::root(), name).unwrap();
    refused(walk.resolve(b"f"), Condition::NotFound);
    tree.0.plant(b"f", CreateKind::Fifo, 0).unwrap();
    assert!(walk.resolve(b"f").is_ok());
}

#[test]
fn directory_search_requires_execute_permission() {
    let tree = tree().link("way", "a/b/f");
    let set = SetAttr {
        permissions: Some(0o700),
        ..SetAttr::default()
    };
    tree.resolve("a/b")
        .unwrap()
        .set_attr(&Context::root(), &set)
        .unwrap();
    let (user, root) = (Credentials::new(1000, 1000), Credentials::root());
    let walk = tree.walk().acting_as(&user);
    for path in ["a/b/f", "a/b/none", "a/b/.", "a/b/..", "way"] {
        refused(walk.resolve(path.as_bytes()), Condition::AccessDenied);
    }
    refused(walk.resolve_parent(b"a/b/new"), Condition::AccessDenied);
    assert!(walk.resolve(b"a/b").is_ok(), "it is there, but closed");
    assert!(tree.walk().acting_as(&root).resolve(b"a/b/f").is_ok());
}
