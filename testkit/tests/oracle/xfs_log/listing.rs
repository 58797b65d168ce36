//! All that a mount shows, for comparison.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use testkit::attributes;

/// Every path with its attributes and contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing(BTreeMap<PathBuf, Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Inode, mode, links, owner, group, size, blocks, device, and times but that of access.
    numbers: Vec<i128>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    contents: Vec<u8>,
}

impl Listing {
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut entries = BTreeMap::new();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            for child in std::fs::read_dir(root.join(&dir))? {
                let name = dir.join(child?.file_name());
                let path = root.join(&name);
                let metadata = path.symlink_metadata()?;
                if metadata.is_dir() {
                    dirs.push(name.clone());
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
/// Where `numbers` has the inode.
const INODE: usize = 0;
/// Where `numbers` has the time of the last change, in seconds and nanoseconds.
const CHANGED: std::ops::Range<usize> = 10..12;
/// Sectors of two leaves of a B-tree.
const LEAVES: i128 = 16;

impl Listing {
    /// The same, where those of the files that are not as in `other` have lost their ends as there. A file that an
    /// exchange makes longer has its former size in the memory of the kernel that finishes the exchange in a recovery,
    /// and so loses what lies beyond that when the kernel evicts the inode. `inodes` are those files, with the
    /// sizes that they had at least.
    pub(crate) fn with_lost_ends_of(mut self, other: &Self, inodes: &[(u64, u64)]) -> Self {
        for (path, entry) in &mut self.0 {
            let of_entry = inodes
                .iter()
                .filter(|(inode, _)| entry.numbers[INODE] == (*inode).into());
            let size = of_entry.map(|(_, size)| *size).min();
            if let (Some(theirs), Some(size)) = (other.0.get(path), size) {
                entry.lose_end_of(theirs, size);
            }
        }
        self
    }

    /// With the times of the last change of `other` for these inodes: a kernel that finishes an intent to change an
    /// attribute in the inode sets the time of that, which the log does not have.
    pub(crate) fn with_change_times_of(mut self, other: &Self, inodes: &[u64]) -> Self {
        for (path, entry) in &mut self.0 {
            let is_asked = |inode: &u64| entry.numbers[INODE] == (*inode).into();
            if let Some(theirs) = other.0.get(path)
                && inodes.iter().any(is_asked)
            {
                entry.numbers[CHANGED].copy_from_slice(&theirs.numbers[CHANGED]);
            }
        }
        self
    }

    /// With the numbers of blocks of `other` for these inodes, where they differ by two leaves at most: of the B-tree of
    /// their mappings, or of their attributes.
    pub(crate) fn with_leaves_of(mut self, other: &Self, inodes: &[u64]) -> Self {
        for (path, entry) in &mut self.0 {
            let is_asked = |inode: &u64| entry.numbers[INODE] == (*inode).into();
            if let Some(theirs) = other.0.get(path)
                && inodes.iter().any(is_asked)
            {
                let theirs = theirs.numbers[BLOCKS];
                let ours = &mut entry.numbers[BLOCKS];
                if (theirs - *ours).abs() <= LEAVES {
                    *ours = theirs;
                }
            }
        }
        self
    }
}

impl Entry {
    fn lose_end_of(&mut self, other: &Self, size: u64) {
        let (ours, theirs) = (&mut self.contents, &other.contents);
        let same = ours.iter().zip(theirs).take_while(|(one, two)| one == two);
        let same = same.count();
        let is_lost = same as u64 >= size
            && ours.len() == theirs.len()
            && theirs[same..].iter().all(|&byte| byte == 0);
        if !is_lost || same == theirs.len() {
            return;
        }
        ours.clone_from(theirs);
        // What is lost, and a block of the mapping B-tree for it.
        let sectors = (theirs.len() - same).div_ceil(512) + 16;
        let lost = i128::try_from(sectors).unwrap_or(i128::MAX);
        let (ours, theirs) = (&mut self.numbers[BLOCKS], other.numbers[BLOCKS]);
        if (theirs..=theirs + lost).contains(ours) {
            *ours = theirs;
        }
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
