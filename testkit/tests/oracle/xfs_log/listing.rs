//! All that a mount shows, for comparison.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use testkit::attributes;

/// Every path with its attributes and contents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listing(BTreeMap<PathBuf, Entry>);

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Inode, mode, links, owner, group, size, blocks, device, and times but that of access.
    numbers: Vec<i128>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    contents: Vec<u8>,
}

impl Listing {
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut entries = BTreeMap::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for child in std::fs::read_dir(root.join(&folder))? {
                let name = folder.join(child?.file_name());
                let path = root.join(&name);
                let metadata = path.symlink_metadata()?;
                if metadata.is_dir() {
                    folders.push(name.clone());
                }
                entries.insert(name, Entry::of(&path, &metadata)?);
            }
        }
        Ok(Self(entries))
    }
}

impl Listing {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Entry {
    fn of(path: &Path, metadata: &std::fs::Metadata) -> Result<Self> {
        let numbers = [
            i128::from(metadata.ino()),
            metadata.mode().into(),
            metadata.nlink().into(),
            metadata.uid().into(),
            metadata.gid().into(),
            metadata.size().into(),
            metadata.blocks().into(),
            metadata.rdev().into(),
            metadata.mtime().into(),
            metadata.mtime_nsec().into(),
            metadata.ctime().into(),
            metadata.ctime_nsec().into(),
        ];
        let contents = if metadata.is_file() {
            std::fs::read(path)?
        } else if metadata.is_symlink() {
            path.read_link()?.into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        Ok(Self {
            numbers: numbers.to_vec(),
            attributes: attributes::of(path)?,
            contents,
        })
    }
}

/// Where `numbers` has the blocks of an entry, in sectors.
const BLOCKS: usize = 6;
/// By how many sectors the blocks of B-trees of an exchanged file may differ: two blocks of 4 KiB.
const TREE_SECTORS: i128 = 16;

impl Listing {
    /// The same, where the mapping B-tree of a file may have up to two blocks more or less than that of `other`:
    /// each way to split and merge its blocks is a valid one.
    pub(crate) fn with_tree_blocks_of(mut self, other: &Self) -> Self {
        for (path, entry) in &mut self.0 {
            if let Some(theirs) = other.0.get(path) {
                let (ours, theirs) = (&mut entry.numbers[BLOCKS], theirs.numbers[BLOCKS]);
                if (*ours - theirs).abs() <= TREE_SECTORS {
                    *ours = theirs;
                }
            }
        }
        self
    }
}

/// Fails with the first paths that differ.
pub(crate) fn compare(ours: &Listing, theirs: &Listing) -> Result<()> {
    let missing: Vec<_> = theirs
        .0
        .keys()
        .filter(|key| !ours.0.contains_key(*key))
        .collect();
    let extra: Vec<_> = ours
        .0
        .keys()
        .filter(|key| !theirs.0.contains_key(*key))
        .collect();
    ensure!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, extra {extra:?}"
    );
    for (path, entry) in &ours.0 {
        let (other, path) = (&theirs.0[path], path.display());
        ensure!(
            entry.numbers == other.numbers,
            "{path}: {:?}, and in the kernel {:?}",
            entry.numbers,
            other.numbers
        );
        ensure!(entry.attributes == other.attributes, "{path}: attributes");
        ensure!(entry.contents == other.contents, "{path}: contents");
    }
    Ok(())
}
