//! Adding a name to an indexed directory, and creating an index. A full leaf is split in two by
//! hash order, a full interior node in the middle; a full root gets another level. Spec:
//! `ext4/directory` (hash tree directories).

use platter_vfs::{Condition, Result};

use super::super::hash::{HashVersion, NameHash};
use super::super::index::Walker;
use super::super::naming::Hashing;
use super::super::{DirEntryRule, Directory};
use super::{DirectoryMut, NewName, grow};
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

/// Inserts a name into the leaf that its hash belongs to.
pub(super) fn insert(directory: &mut DirectoryMut<'_, '_>, new: &NewName<'_>) -> Result<()> {
    let plan = plan(&directory.view()?, new)?;
    let format = directory.format;
    match plan {
        Plan::Gap(leaf) => directory.edit_chunk(leaf.0, |content| new.put(format, content)),
        Plan::Pack(leaf, names) => {
            directory.edit_chunk(leaf.0, |content| fill(format, content, &names, Some(new)))
        }
        Plan::Split(split) => {
            let first = grow::grow(directory, split.blocks_needed())?;
            let done = split_leaf(directory, split, first, new);
            directory.abort_on_error(done)
        }
    }
}

/// Creates an index for a directory whose only block is full.
pub(super) fn make(
    directory: &mut DirectoryMut<'_, '_>,
    made: &NewIndex,
    new: &NewName<'_>,
) -> Result<()> {
    let (head, names) = take_apart(&directory.view()?, made)?;
    let hash = made.hashing.order(new.name.as_bytes());
    let view = directory.view()?;
    let fits = bytes_of(&names).saturating_add(stored_len(new.len())) <= view.content_len();
    let halves = if fits {
        None
    } else {
        Some(halve(&view, names.clone(), hash, new.len())?)
    };
    let lower = grow::grow(directory, 1 + u32::from(halves.is_some()))?;
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
    directory.inode.flags.insert(InodeFlags::INDEX);
    let written = match &halves {
        Some(halves) => write_halves(directory, halves, lower, upper, new),
        None => write_names(directory, lower, &names, Some(new)),
    };
    let mut root = directory.blank();
    htree::write_root(&mut root, head, &entries, &directory.fs.geometry);
    let done = written.and_then(|()| directory.write_block(FileBlock(0), root));
    directory.abort_on_error(done)
}

/// Splits the full blocks. `next` is the first of the new blocks.
fn split_leaf(
    directory: &mut DirectoryMut<'_, '_>,
    split: Split,
    mut next: FileBlock,
    new: &NewName<'_>,
) -> Result<()> {
    let mut take = || {
        let block = next;
        next = FileBlock(block.0.saturating_add(1));
        block
    };
    let upper = take();
    write_halves(directory, &split.halves, split.leaf, upper, new)?;
    let mut pending = IndexEntry {
        hash: split.halves.boundary,
        block: upper,
    };
    for (depth, level) in split.path.into_iter().enumerate().rev() {
        let mut entries = level.entries;
        let at = level.index.saturating_add(1).min(entries.len());
        entries.insert(at, pending);
        if !level.is_full {
            return set_entries(directory, level.block, &entries);
        }
        let block = take();
        if depth == 0 {
            return add_level(directory, block, &entries);
        }
        let upper = entries.split_off(entries.len() / 2);
        pending = IndexEntry {
            hash: upper.first().map_or(u32::MAX, |first| first.hash),
            block,
        };
        write_node(directory, block, &upper)?;
        set_entries(directory, level.block, &entries)?;
    }
    Ok(())
}

/// Moves the root's entries to a new block below it, which has more space.
fn add_level(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    entries: &[IndexEntry],
) -> Result<()> {
    write_node(directory, block, entries)?;
    directory.edit_block(FileBlock(0), |bytes| {
        htree::add_level(bytes, block);
        Ok(())
    })
}

fn set_entries(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    entries: &[IndexEntry],
) -> Result<()> {
    directory.edit_block(block, |bytes| {
        htree::set_entries(bytes, entries);
        Ok(())
    })
}

fn write_node(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    entries: &[IndexEntry],
) -> Result<()> {
    let mut bytes = directory.blank();
    htree::write_node(&mut bytes, entries, &directory.fs.geometry);
    directory.write_block(block, bytes)
}

fn write_halves(
    directory: &mut DirectoryMut<'_, '_>,
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
    write_names(directory, upper, &halves.upper, new_above)?;
    write_names(directory, lower, &halves.lower, new_below)
}

fn write_names(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    names: &[Stored],
    new: Option<&NewName<'_>>,
) -> Result<()> {
    let format = directory.format;
    directory.write_leaf(block, |content| fill(format, content, names, new))
}

impl Split {
    /// Returns the number of new blocks: one leaf, and one for each full index block.
    fn blocks_needed(&self) -> u32 {
        let full = self.path.iter().filter(|level| level.is_full).count();
        u32::try_from(full).unwrap_or(u32::MAX).saturating_add(1)
    }
}

/// Returns the hash function of an index if this directory may have one and has none.
pub(super) fn new_index(directory: &Directory<'_>) -> Option<NewIndex> {
    if !directory.has_dir_index() || directory.inode.flags.contains(InodeFlags::INDEX) {
        return None;
    }
    let number = directory.fs.superblock.default_hash_version;
    let hash_version = number.checked_sub(3).unwrap_or(number);
    let version = HashVersion::of_directory(hash_version, directory.hashes_unsigned());
    Some(NewIndex {
        hashing: directory.hashing(version)?,
        hash_version,
    })
}

/// Finds where to insert a name that does not exist yet.
fn plan(directory: &Directory<'_>, new: &NewName<'_>) -> Result<Plan> {
    let wanted = directory.wanted(new.name)?;
    let mut corruption = None;
    let (mut walker, hashing) = directory.index(&mut corruption)?.ok_or_else(|| {
        let unknown = || directory.broken_index(FileBlock(0), HtreeRule::HashVersion);
        corruption.unwrap_or_else(unknown)
    })?;
    let hash = wanted.hash(&hashing);
    walker.seek(hash.major)?;
    let (leaf, bytes) = walker.read_leaf()?;
    let path = walker.path().collect::<Result<Vec<_>>>()?;
    if path.iter().any(|level| level.block == leaf) {
        return Err(directory.broken_index(leaf, HtreeRule::Block));
    }
    let content = bytes.get(..directory.content_len()).unwrap_or_default();
    if directory.format.has_space(content, new.len()) {
        return Ok(Plan::Gap(leaf));
    }
    let names = names_of(directory, leaf, content, &hashing)?;
    validate_placement(directory, &walker, leaf, &names)?;
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
    let levels_max = htree::levels_max(&directory.fs.geometry);
    if path.iter().all(|level| level.is_full) && path.len() >= levels_max {
        return Err(Condition::NoSpace.into());
    }
    // Above a block that is not full, nothing changes.
    let last = path.iter().rposition(|level| !level.is_full);
    let changing = path.split_off(last.unwrap_or(0));
    Ok(Plan::Split(Split {
        leaf,
        halves: halve(directory, names, hash, new.len())?,
        path: changing,
    }))
}

/// Checks the hashes of a leaf's names, so that splitting it does not spread misplaced ones.
fn validate_placement(
    directory: &Directory<'_>,
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
        Err(directory.broken_index(leaf, HtreeRule::Placement))
    }
}

/// Returns the entries of a block with contents `content`, in hash order.
fn names_of(
    directory: &Directory<'_>,
    block: FileBlock,
    content: &[u8],
    hashing: &Hashing,
) -> Result<Vec<Stored>> {
    let mut names = Vec::new();
    for entry in directory.format.entries(content) {
        let entry = entry.map_err(|broken| directory.broken_entry(block.0, broken))?;
        if entry.inode.is_some() {
            names.push(Stored {
                hash: hashing.order(entry.name),
                bytes: directory.format.stored(content, &entry).into(),
            });
        }
    }
    names.sort_by_key(|name| name.hash);
    Ok(names)
}

/// Splits the only block of a directory into the fields of the root, and the entries.
fn take_apart(directory: &Directory<'_>, made: &NewIndex) -> Result<(RootHead, Vec<Stored>)> {
    let broken = || directory.broken_entry(0, (0, DirEntryRule::Dots));
    let first = directory.contents.read(0)?.ok_or_else(broken)?;
    let content = first.get(..directory.content_len()).unwrap_or_default();
    let mut entries = directory.format.entries(content);
    let mut dot = |name: &[u8]| {
        let entry = entries.next()?.ok()?;
        entry.inode.filter(|_| entry.name == name)?;
        Some((entry.inode?, entry.end))
    };
    let (number, _) = dot(b".").ok_or_else(broken)?;
    let (parent, dots_end) = dot(b"..").ok_or_else(broken)?;
    if number != directory.inode.number {
        return Err(broken());
    }
    let names = content.get(dots_end..).unwrap_or_default();
    let head = RootHead {
        number,
        parent,
        hash_version: made.hash_version,
        levels: 0,
    };
    Ok((
        head,
        names_of(directory, FileBlock(0), names, &made.hashing)?,
    ))
}

/// Divides entries in hash order so that the halves have about equal size, the new name fits
/// its half, and names of one hash stay together if possible.
fn halve(
    directory: &Directory<'_>,
    names: Vec<Stored>,
    new: NameHash,
    new_len: usize,
) -> Result<Halves> {
    let capacity = directory.content_len().saturating_sub(stored_len(new_len));
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
    let collides = || directory.broken_index(FileBlock(0), HtreeRule::Collisions);
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

fn bytes_of(names: &[Stored]) -> usize {
    names.iter().map(|name| name.bytes.len()).sum()
}

fn fill(format: EntryFormat, content: &mut [u8], names: &[Stored], new: Option<&NewName<'_>>) {
    format.fill(content, names.iter().map(|name| &*name.bytes));
    if let Some(new) = new {
        new.put(format, content);
    }
}
