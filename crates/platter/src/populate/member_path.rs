//! Where a member lies below the root.

use platter_vfs::{Condition, Name};

/// What stands between two names: nothing that a name has sorts before it.
const SEPARATOR: u8 = 0;

/// A path below the root. Paths sort as their names do, so that a directory comes right before what is
/// in it.
///
/// # Invariants
/// Names with a [`SEPARATOR`] between them; none for the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MemberPath(Box<[u8]>);

impl MemberPath {
    /// The root.
    pub(super) fn root() -> Self {
        Self(Box::default())
    }

    /// Takes a path apart. Leading slashes and `.` mean nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for `..`, which would lead out of the filesystem.
    pub(super) fn parse(path: &[u8]) -> platter_vfs::Result<Self> {
        let mut names = Vec::with_capacity(path.len());
        for component in path.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(Condition::InvalidArgument.into()),
                name => push(&mut names, Name::new(name)?.as_bytes()),
            }
        }
        Ok(Self(names.into()))
    }

    /// The path of what is called `name` in this directory.
    pub(super) fn below(&self, name: &[u8]) -> Self {
        let mut names = Vec::with_capacity(self.0.len() + 1 + name.len());
        names.extend_from_slice(&self.0);
        push(&mut names, name);
        Self(names.into())
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Where its last name begins.
    fn name_start(&self) -> usize {
        let separator = self.0.iter().rposition(|&byte| byte == SEPARATOR);
        separator.map_or(0, |separator| separator + 1)
    }

    /// What it is called in its directory.
    pub(super) fn name(&self) -> platter_vfs::Result<Name<'_>> {
        Name::new(&self.0[self.name_start()..])
    }

    /// Whether both lie in the same directory.
    pub(super) fn is_sibling_of(&self, other: &Self) -> bool {
        self.0[..self.name_start()] == other.0[..other.name_start()]
    }

    /// The names down to the directory that it lies in.
    pub(super) fn parents(&self) -> impl Iterator<Item = &[u8]> {
        names(&self.0[..self.name_start()])
    }

    /// All names down to it.
    pub(super) fn components(&self) -> impl Iterator<Item = &[u8]> {
        names(&self.0)
    }

    /// The directory that its first names lead to: so many of them.
    pub(super) fn above(&self, names: usize) -> Self {
        let names = self.components().take(names);
        names.fold(Self::root(), |dir, name| dir.below(name))
    }

    /// The directory that it lies in; the root is its own.
    pub(super) fn parent(&self) -> Self {
        Self(self.0[..self.name_start().saturating_sub(1)].into())
    }

    /// Whether it lies in `directory`, or deeper.
    pub(super) fn is_below(&self, directory: &Self) -> bool {
        match self.0.strip_prefix(&*directory.0) {
            Some(rest) if directory.is_root() => !rest.is_empty(),
            Some(rest) => rest.first() == Some(&SEPARATOR),
            None => false,
        }
    }

    /// As users write it.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(1 + self.0.len());
        for name in names(&self.0) {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        text
    }
}

fn push(names: &mut Vec<u8>, name: &[u8]) {
    if !names.is_empty() {
        names.push(SEPARATOR);
    }
    names.extend_from_slice(name);
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = path.split(|&byte| byte == SEPARATOR);
    names.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> MemberPath {
        MemberPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        assert_eq!(path("./a//b/").text(), b"/a/b");
        assert_eq!(path("/a").text(), b"/a");
        assert!(MemberPath::parse(b"a/../../b").is_err());
        assert!(path("/.").is_root() && path("/.").text().is_empty());
        let deep = MemberPath::root().below(b"a").below(b"b").below(b"c");
        assert_eq!(deep, path("a/b/c"));
        assert_eq!(deep.name().unwrap().as_bytes(), b"c");
        assert_eq!(deep.parents().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(path("a").parents().count(), 0);
        assert!(deep.is_sibling_of(&path("a/b/d")) && !deep.is_sibling_of(&path("a/c")));
        assert!(path("a").is_sibling_of(&path("b")) && !path("a").is_sibling_of(&deep));
        assert!(MemberPath::root().name().is_err());
    }

    #[test]
    fn a_directory_comes_right_before_what_is_in_it() {
        let mut paths = ["b", "a-c", "a/z", "a", "a/b/c", "a\u{1}", "a/b"].map(path);
        paths.sort();
        let expected = ["a", "a/b", "a/b/c", "a/z", "a\u{1}", "a-c", "b"].map(path);
        assert_eq!(paths, expected);
    }
}
