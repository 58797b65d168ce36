//! What a filesystem holds at one moment: every path with its file, contents included.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::inode::read_dir_all;
use platter_vfs::{FileKind, Filesystem, Inode};

use super::operation::open_number;
use super::session::Session;

/// What every ext filesystem has, and no model: it is left out of trees, with what is in it.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";
/// How deep directories may lie.
const DEPTH_MAX: usize = 32;

/// One file, as one of its paths leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Distinguishes the files of one tree; trees of two filesystems number differently.
    pub file: u64,
    /// The type.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Number of a device.
    pub device: DeviceNumber,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Contents of a regular file.
    pub content: Option<Arc<[u8]>>,
}

/// All paths below the root, without leading slashes; the root has the empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// By path.
    pub entries: BTreeMap<String, Entry>,
    /// Files that are kept open, with and without names, by their numbers.
    pub open: BTreeMap<u32, Entry>,
}

impl Tree {
    /// Everything that `fs` holds. Contents equal to those of `before` share their memory.
    pub fn read(fs: &dyn Filesystem, before: Option<&Tree>) -> Result<Self> {
        let mut tree = Self::default();
        let root = fs.root()?;
        tree.add(&*root, "", before, 0)?;
        Ok(tree)
    }

    /// The same with the files that a program keeps open.
    pub fn of_session(session: &Session<'_>, before: Option<&Tree>) -> Result<Self> {
        let mut tree = Self::read(session.filesystem(), before)?;
        for (number, file) in session.open_files() {
            let known = before.and_then(|tree| tree.open.get(&number));
            let entry = read_entry(file, known).with_context(|| format!("open file {number}"))?;
            tree.open.insert(number, entry);
        }
        Ok(tree)
    }

    /// The file that a path means, which may be an open one.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Entry> {
        match open_number(path) {
            Some(number) => self.open.get(&number),
            None => self.entries.get(path),
        }
    }

    fn add(
        &mut self,
        inode: &dyn Inode,
        path: &str,
        before: Option<&Tree>,
        depth: usize,
    ) -> Result<()> {
        ensure!(depth < DEPTH_MAX, "{path}: too deep");
        let entry = read_entry(inode, before.and_then(|tree| tree.entries.get(path)));
        let entry = entry.with_context(|| format!("/{path}"))?;
        let is_directory = entry.kind == FileKind::Directory;
        self.entries.insert(path.to_owned(), entry);
        if !is_directory {
            return Ok(());
        }
        let listed = read_dir_all(inode).with_context(|| format!("listing of /{path}"))?;
        for listed in listed {
            let name = std::str::from_utf8(&listed.name).context("a name")?;
            if path.is_empty() && name == LOST_AND_FOUND {
                continue;
            }
            let below = join(path, name);
            let found = inode.lookup(listed.name.as_name());
            let found = found.with_context(|| format!("lookup of /{below}"))?;
            ensure!(
                found.id() == listed.id,
                "/{below}: lookup and listing differ"
            );
            self.add(&*found, &below, before, depth + 1)?;
        }
        Ok(())
    }

    /// The paths of regular files.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Entry)> {
        let entries = self.entries.iter().map(|(path, entry)| (&**path, entry));
        entries.filter(|(_, entry)| entry.kind == FileKind::Regular)
    }

    /// The contents of a file, if it has a name or is open.
    #[must_use]
    pub fn content(&self, file: u64) -> Option<&Arc<[u8]>> {
        let mut entries = self.entries.values().chain(self.open.values());
        let entry = entries.find(|entry| entry.file == file && entry.content.is_some());
        entry?.content.as_ref()
    }

    /// Where names and attributes differ from those of `other`, one line each; contents and sizes
    /// are not looked at.
    #[must_use]
    pub fn name_differences(&self, other: &Tree) -> Vec<String> {
        let mut lines = Vec::new();
        let (ours, theirs) = (self.first_paths(), other.first_paths());
        for path in other.entries.keys() {
            if !self.entries.contains_key(path) {
                lines.push(format!("/{path} is missing"));
            }
        }
        for (path, entry) in &self.entries {
            let Some(expected) = other.entries.get(path) else {
                lines.push(format!("/{path} should not be there"));
                continue;
            };
            let mut line = String::new();
            let mut differ =
                |what: &str, ours: &dyn std::fmt::Debug, theirs: &dyn std::fmt::Debug| {
                    let _ = write!(line, " {what} {ours:?} instead of {theirs:?};");
                };
            macro_rules! compare {
                ($($field:ident),*) => {$(
                    if entry.$field != expected.$field {
                        differ(stringify!($field), &entry.$field, &expected.$field);
                    }
                )*};
            }
            compare!(kind, permissions, uid, gid, device, target, xattrs);
            // Where lost+found is, the root has a link more.
            // A directory of one link does not count its subdirectories, as on btrfs.
            let uncounted =
                entry.kind == FileKind::Directory && entry.links.min(expected.links) == 1;
            if !path.is_empty() && !uncounted && entry.links != expected.links {
                differ("links", &entry.links, &expected.links);
            }
            let (first, expected_first) = (ours.get(&entry.file), theirs.get(&expected.file));
            if first != expected_first {
                differ("same file as", &first, &expected_first);
            }
            if !line.is_empty() {
                lines.push(format!("/{path}:{line}"));
            }
        }
        lines
    }

    /// Where anything differs from `other`, one line each.
    #[must_use]
    pub fn differences(&self, other: &Tree) -> Vec<String> {
        let mut lines = self.name_differences(other);
        for (path, entry) in self.files() {
            let expected = other
                .entries
                .get(path)
                .and_then(|other| other.content.as_ref());
            if let (Some(ours), Some(theirs)) = (&entry.content, expected)
                && ours != theirs
            {
                let pairs = ours.iter().zip(&**theirs);
                let first = pairs.take_while(|(ours, theirs)| ours == theirs).count();
                let (len, expected) = (ours.len(), theirs.len());
                lines.push(format!(
                    "/{path}: {len} bytes, {expected} expected, which differ from byte {first} on"
                ));
            }
        }
        lines
    }

    /// Everything that either tree holds, where directories that both hold are the same: their
    /// links are counted together.
    #[must_use]
    pub fn joined(mut self, other: Tree) -> Self {
        // Numbers of files mean nothing in another tree.
        let apart = 1 + self
            .entries
            .values()
            .map(|entry| entry.file)
            .max()
            .unwrap_or(0);
        for (path, mut entry) in other.entries {
            if let Some(known) = self.entries.get_mut(&path) {
                known.links += entry.links.saturating_sub(2);
            } else {
                entry.file += apart;
                self.entries.insert(path, entry);
            }
        }
        self
    }

    /// The first path of each file, which says which paths are one file.
    fn first_paths(&self) -> BTreeMap<u64, &str> {
        let mut first = BTreeMap::new();
        for (path, entry) in &self.entries {
            first.entry(entry.file).or_insert(&**path);
        }
        first
    }
}

/// A path with a name appended.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}/{name}")
    }
}

fn read_entry(inode: &dyn Inode, before: Option<&Entry>) -> Result<Entry> {
    let attr = inode.attr().context("attributes")?;
    let mut xattrs = BTreeMap::new();
    for name in inode.list_xattrs().context("names of attributes")? {
        let value = inode.get_xattr(&name).context("an attribute")?;
        xattrs.insert(name, value);
    }
    let target = (attr.kind == FileKind::Symlink).then(|| inode.read_link());
    let content = (attr.kind == FileKind::Regular).then(|| read_content(inode, attr.size_bytes));
    let content = content.transpose().context("contents")?;
    let known = before.and_then(|entry| entry.content.as_ref());
    let content = content.map(|bytes| match known {
        Some(known) if **known == *bytes => Arc::clone(known),
        _ => bytes.into(),
    });
    Ok(Entry {
        // Unique over all subvolumes.
        file: attr.inode,
        kind: attr.kind,
        permissions: attr.permissions,
        uid: attr.uid,
        gid: attr.gid,
        links: attr.links,
        device: attr.device,
        target: target.transpose().context("link target")?,
        xattrs,
        content,
    })
}

/// All contents of a file.
pub(super) fn read_content(inode: &dyn Inode, size: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size)?];
    let count = inode.read_at(0, &mut bytes)?;
    ensure!(count == bytes.len(), "{count} of {size} bytes are read");
    Ok(bytes)
}
