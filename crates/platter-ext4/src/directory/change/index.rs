//! Adding a name to an indexed directory, and creating an index. A full leaf is split in two by
//! hash order, a full interior node in the middle; a full root gets another level. Spec:
//! `ext4/directory` (hash tree directories).

use platter_vfs::{Condition, Result};

use super::super::hash::{HashVersion, NameHash};
use super::super::index::Walker;
use super::super::naming::Hashing;
use super::super::{DirEntryRule, Directory};
use super::{DirectoryMut, NewName};
use crate::ondisk::dir_entry::{EntryFormat, stored_len};
use crate::ondisk::htree::{self, HtreeRule, IndexEntry, RootHead};
use crate::ondisk::{FileBlock, InodeFlags};

/// How to insert a name.
enum Plan {
    /// Its leaf has a gap.
    Gap(FileBlock),
    /// Its leaf has space after its entries are packed.
    Pack(FileBlock, Vec<Stored>),
    /// Its leaf has to be split.
    Split(Split),
}

/// The split of a leaf, and of the full index blocks above it.
struct Split {
    leaf: FileBlock,
    halves: Halves,
    /// The index blocks above the leaf, from the root on.
    path: Vec<Level>,
}

/// An index block on the path to a leaf.
struct Level {
    block: FileBlock,
    entries: Vec<IndexEntry>,
    /// The entry that leads to the leaf.
    index: usize,
    is_full: bool,
}

/// The entries of a leaf, split in two.
struct Halves {
    lower: Vec<Stored>,
    upper: Vec<Stored>,
    /// The lowest hash of the upper half, with the continuation bit.
    boundary: u32,
    /// The new name goes to the upper half.
    takes_new_up: bool,
}

/// A stored entry, and its hash.
#[derive(Debug, Clone)]
struct Stored {
    hash: NameHash,
    bytes: Box<[u8]>,
}

/// The hash function of an index to be created.
pub(super) struct NewIndex {
    hashing: Hashing,
    /// Its number in the root.
    hash_version: u8,
}

impl DirectoryMut<'_, '_> {
    pub(super) fn insert_indexed(&mut self, new: &NewName<'_>) -> Result<()> {
        let plan = self.view()?.plan(new)?;
        let format = self.format;
        match plan {
            Plan::Gap(leaf) => self.edit_chunk(leaf.0, |content| new.put(format, content)),
            Plan::Pack(leaf, names) => {
                self.edit_chunk(leaf.0, |content| fill(format, content, &names, Some(new)))
            }
            Plan::Split(split) => {
                let first = self.grow(split.blocks_needed())?;
                let done = self.split(split, first, new);
                self.abort_on_error(done)
            }
        }
    }

    /// Creates an index for a directory whose only block is full.
    pub(super) fn make_index(&mut self, made: &NewIndex, new: &NewName<'_>) -> Result<()> {
        let (head, names) = self.view()?.take_apart(made)?;
        let hash = made.hashing.order(new.name.as_bytes());
        let view = self.view()?;
        let fits = bytes_of(&names).saturating_add(stored_len(new.len())) <= view.content_len();
        let halves = if fits {
            None
        } else {
            Some(view.halve(names.clone(), hash, new.len())?)
        };
        let lower = self.grow(1 + u32::from(halves.is_some()))?;
        let upper = FileBlock(lower.0.saturating_add(1));
        let mut entries = vec![IndexEntry {
            hash: 0,
            block: lower,
        }];
        if let Some(halves) = &halves {
            entries.push(IndexEntry {
                hash: halves.boundary,
                block: upper,
            });
        }
        self.inode.flags.insert(InodeFlags::INDEX);
        let written = match &halves {
            Some(halves) => self.write_halves(halves, lower, upper, new),
            None => self.write_names(lower, &names, Some(new)),
        };
        let mut root = self.blank();
        htree::write_root(&mut root, head, &entries, &self.fs.geometry);
        let done = written.and_then(|()| self.write_block(FileBlock(0), root));
        self.abort_on_error(done)
    }

    /// Splits the full blocks. `next` is the first of the new blocks.
    fn split(&mut self, split: Split, mut next: FileBlock, new: &NewName<'_>) -> Result<()> {
        let mut take = || {
            let block = next;
            next = FileBlock(block.0.saturating_add(1));
            block
        };
        let upper = take();
        self.write_halves(&split.halves, split.leaf, upper, new)?;
        let mut pending = IndexEntry {
            hash: split.halves.boundary,
            block: upper,
        };
        for (depth, level) in split.path.into_iter().enumerate().rev() {
            let mut entries = level.entries;
            let at = level.index.saturating_add(1).min(entries.len());
            entries.insert(at, pending);
            if !level.is_full {
                return self.set_entries(level.block, &entries);
            }
            let block = take();
            if depth == 0 {
                return self.add_level(block, &entries);
            }
            let upper = entries.split_off(entries.len() / 2);
            pending = IndexEntry {
                hash: upper.first().map_or(u32::MAX, |first| first.hash),
                block,
            };
            self.write_node(block, &upper)?;
            self.set_entries(level.block, &entries)?;
        }
        Ok(())
    }

    /// Moves the root's entries to a new block below it, which has more space.
    fn add_level(&mut self, block: FileBlock, entries: &[IndexEntry]) -> Result<()> {
        self.write_node(block, entries)?;
        self.edit_block(FileBlock(0), |bytes| {
            htree::add_level(bytes, block);
            Ok(())
        })
    }

    fn set_entries(&mut self, block: FileBlock, entries: &[IndexEntry]) -> Result<()> {
        self.edit_block(block, |bytes| {
            htree::set_entries(bytes, entries);
            Ok(())
        })
    }

    fn write_node(&mut self, block: FileBlock, entries: &[IndexEntry]) -> Result<()> {
        let mut bytes = self.blank();
        htree::write_node(&mut bytes, entries, &self.fs.geometry);
        self.write_block(block, bytes)
    }

    fn write_halves(
        &mut self,
        halves: &Halves,
        lower: FileBlock,
        upper: FileBlock,
        new: &NewName<'_>,
    ) -> Result<()> {
        let (new_below, new_above) = if halves.takes_new_up {
            (None, Some(new))
        } else {
            (Some(new), None)
        };
        self.write_names(upper, &halves.upper, new_above)?;
        self.write_names(lower, &halves.lower, new_below)
    }

    fn write_names(
        &mut self,
        block: FileBlock,
        names: &[Stored],
        new: Option<&NewName<'_>>,
    ) -> Result<()> {
        let format = self.format;
        self.write_leaf(block, |content| fill(format, content, names, new))
    }
}

impl Split {
    /// Returns the number of new blocks: one leaf, and one for each full index block.
    fn blocks_needed(&self) -> u32 {
        let full = self.path.iter().filter(|level| level.is_full).count();
        u32::try_from(full).unwrap_or(u32::MAX).saturating_add(1)
    }
}

impl Directory<'_> {
    /// Returns the hash function of an index if this directory may have one and has none.
    pub(super) fn new_index(&self) -> Option<NewIndex> {
        if !self.has_dir_index() || self.inode.flags.contains(InodeFlags::INDEX) {
            return None;
        }
        let number = self.fs.superblock.default_hash_version;
        let hash_version = number.checked_sub(3).unwrap_or(number);
        let version = HashVersion::of_directory(hash_version, self.hashes_unsigned());
        Some(NewIndex {
            hashing: self.hashing(version)?,
            hash_version,
        })
    }

    /// Finds where to insert a name that does not exist yet.
    fn plan(&self, new: &NewName<'_>) -> Result<Plan> {
        let wanted = self.wanted(new.name)?;
        let mut corruption = None;
        let (mut walker, hashing) = self.index(&mut corruption)?.ok_or_else(|| {
            let unknown = || self.broken_index(FileBlock(0), HtreeRule::HashVersion);
            corruption.unwrap_or_else(unknown)
        })?;
        let hash = wanted.hash(&hashing);
        walker.seek(hash.major)?;
        let (leaf, bytes) = walker.read_leaf()?;
        let path = walker.path().collect::<Result<Vec<_>>>()?;
        if path.iter().any(|level| level.block == leaf) {
            return Err(self.broken_index(leaf, HtreeRule::Block));
        }
        let content = bytes.get(..self.content_len()).unwrap_or_default();
        if self.format.has_space(content, new.len()) {
            return Ok(Plan::Gap(leaf));
        }
        let names = self.names_of(leaf, content, &hashing)?;
        self.validate_placement(&walker, leaf, &names)?;
        if bytes_of(&names).saturating_add(stored_len(new.len())) <= content.len() {
            return Ok(Plan::Pack(leaf, names));
        }
        let mut path: Vec<_> = path
            .iter()
            .map(|level| Level {
                block: level.block,
                entries: level.entries.to_vec(),
                index: level.index,
                is_full: level.entries.len() >= level.entries.limit(),
            })
            .collect();
        let levels_max = htree::levels_max(&self.fs.geometry);
        if path.iter().all(|level| level.is_full) && path.len() >= levels_max {
            return Err(Condition::NoSpace.into());
        }
        // Above a block that is not full, nothing changes.
        let last = path.iter().rposition(|level| !level.is_full);
        let changing = path.split_off(last.unwrap_or(0));
        Ok(Plan::Split(Split {
            leaf,
            halves: self.halve(names, hash, new.len())?,
            path: changing,
        }))
    }

    /// Checks the hashes of a leaf's names, so that splitting it does not spread misplaced ones.
    fn validate_placement(
        &self,
        walker: &Walker<'_, '_>,
        leaf: FileBlock,
        names: &[Stored],
    ) -> Result<()> {
        let lower = walker.boundary()? & !1;
        let upper = walker.next_boundary()?;
        // The continuation bit on the boundary says that its hash is in both blocks.
        let is_placed = |major| major >= lower && upper.is_none_or(|upper| major < upper);
        if names.iter().all(|name| is_placed(name.hash.major)) {
            Ok(())
        } else {
            Err(self.broken_index(leaf, HtreeRule::Placement))
        }
    }

    /// Returns the entries of a block with contents `content`, in hash order.
    fn names_of(&self, block: FileBlock, content: &[u8], hashing: &Hashing) -> Result<Vec<Stored>> {
        let mut names = Vec::new();
        for entry in self.format.entries(content) {
            let entry = entry.map_err(|broken| self.broken_entry(block.0, broken))?;
            if entry.inode.is_some() {
                names.push(Stored {
                    hash: hashing.order(entry.name),
                    bytes: self.format.stored(content, &entry).into(),
                });
            }
        }
        names.sort_by_key(|name| name.hash);
        Ok(names)
    }

    /// Splits the only block of a directory into the fields of the root, and the entries.
    fn take_apart(&self, made: &NewIndex) -> Result<(RootHead, Vec<Stored>)> {
        let broken = || self.broken_entry(0, (0, DirEntryRule::Dots));
        let first = self.contents.read(0)?.ok_or_else(broken)?;
        let content = first.get(..self.content_len()).unwrap_or_default();
        let mut entries = self.format.entries(content);
        let mut dot = |name: &[u8]| {
            let entry = entries.next()?.ok()?;
            entry.inode.filter(|_| entry.name == name)?;
            Some((entry.inode?, entry.end))
        };
        let (number, _) = dot(b".").ok_or_else(broken)?;
        let (parent, dots_end) = dot(b"..").ok_or_else(broken)?;
        if number != self.inode.number {
            return Err(broken());
        }
        let names = content.get(dots_end..).unwrap_or_default();
        let head = RootHead {
            number,
            parent,
            hash_version: made.hash_version,
            levels: 0,
        };
        Ok((head, self.names_of(FileBlock(0), names, &made.hashing)?))
    }

    /// Divides entries in hash order so that the halves have about equal size, the new name fits
    /// its half, and names of one hash stay together if possible.
    fn halve(&self, names: Vec<Stored>, new: NameHash, new_len: usize) -> Result<Halves> {
        let capacity = self.content_len().saturating_sub(stored_len(new_len));
        let total = bytes_of(&names);
        let mut lower_bytes = 0usize;
        let mut best: Option<((bool, usize), usize, u32, bool)> = None;
        for (at, pair) in (1..).zip(names.windows(2)) {
            let [before, after] = pair else { continue };
            lower_bytes = lower_bytes.saturating_add(before.bytes.len());
            let upper_bytes = total.saturating_sub(lower_bytes);
            let parts_equals = before.hash.major == after.hash.major;
            let takes_new_up = match new.major.cmp(&after.hash.major) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => !parts_equals || upper_bytes < lower_bytes,
                std::cmp::Ordering::Greater => true,
            };
            let filled = if takes_new_up {
                upper_bytes
            } else {
                lower_bytes
            };
            let badness = (parts_equals, upper_bytes.abs_diff(lower_bytes));
            if filled <= capacity && best.is_none_or(|(least, ..)| badness < least) {
                let boundary = after.hash.major | u32::from(parts_equals);
                best = Some((badness, at, boundary, takes_new_up));
            }
        }
        let collides = || self.broken_index(FileBlock(0), HtreeRule::Collisions);
        let (_, at, boundary, takes_new_up) = best.ok_or_else(collides)?;
        let mut lower = names;
        let upper = lower.split_off(at);
        Ok(Halves {
            lower,
            upper,
            boundary,
            takes_new_up,
        })
    }
}

fn bytes_of(names: &[Stored]) -> usize {
    names.iter().map(|name| name.bytes.len()).sum()
}

fn fill(format: EntryFormat, content: &mut [u8], names: &[Stored], new: Option<&NewName<'_>>) {
    format.fill(content, names.iter().map(|name| &*name.bytes));
    if let Some(new) = new {
        new.put(format, content);
    }
}
