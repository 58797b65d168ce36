//! Names: each entry of a directory is stored by index, by hash, and at the inode; inodes count their
//! names, and those without one have an orphan item. What is stored on both sides cancels.

use std::collections::{BTreeMap, HashSet};

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;
use platter_vfs::{FileKind, Result};

use super::walked::Walked;
use super::{Checker, Flow, InodeUseRule, NameRule};
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::{FIRST_FREE_OBJECT, ORPHAN_OBJECT};
use crate::ondisk::{Key, LogicalAddr};

/// Sums by which the second pass is narrowed to what does not cancel.
const BUCKETS: usize = 1 << 16;
/// Statements without a counterpart that are looked at one by one.
const FOUND_MAX: usize = 1 << 16;

/// Items that are read in search of names without a counterpart, but for those of the last tree.
const ITEMS_MAX: u64 = 1 << 24;

/// A number that stands for these numbers and this name.
pub(super) fn hash(numbers: &[u64], name: &[u8]) -> u64 {
    let mut bytes = Vec::with_capacity(numbers.len() * 8 + name.len());
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(name);
    twox_hash::XxHash64::oneshot(0, &bytes)
}

/// What a statement is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// An entry by index, less one in an inode reference.
    Reference,
    /// An entry by hash, less one by index.
    Entry,
    /// An entry by index, less a link of an inode: by number and type.
    Link,
    /// An inode without links, less an orphan item.
    Orphan,
}

/// A statement of an item.
#[derive(Debug, Clone)]
pub(super) struct Statement<'b> {
    subject: Subject,
    /// How often it is made, less how often its counterpart is.
    weight: i64,
    dir: u64,
    index: u64,
    child: u64,
    /// The type, or whether a subvolume is named.
    kind: u64,
    name: &'b [u8],
}

/// The statements of an item.
#[derive(Debug, Default)]
pub(super) struct Names<'b>(Vec<Statement<'b>>);

impl Statement<'_> {
    fn hash(&self) -> u64 {
        let Self { dir, index, .. } = *self;
        let (child, kind) = (self.child, self.kind);
        match self.subject {
            Subject::Reference => hash(&[1, dir, index, child], self.name),
            Subject::Entry => hash(&[2, dir, child, kind], self.name),
            Subject::Link => hash(&[3, child, kind], b""),
            Subject::Orphan => hash(&[4, child], b""),
        }
    }
}

impl<'b> Names<'b> {
    /// The statements of an item of a subvolume.
    pub(super) fn of_item(key: Key, data: &'b [u8], locus: Locus) -> Result<Self> {
        let mut names = Self::default();
        match key.kind {
            ItemKind::INODE_ITEM => names.add_inode(key, &InodeItem::decode(data, locus)?),
            ItemKind::INODE_REF => {
                names.add_refs(key.object, &InodeRef::decode_all(data, key.offset, locus)?);
            }
            ItemKind::INODE_EXTREF => {
                names.add_refs(key.object, &InodeRef::decode_all_extended(data, locus)?);
            }
            ItemKind::DIR_ITEM | ItemKind::DIR_INDEX => {
                for entry in DirItem::decode_all(key, data, locus)? {
                    names.add_entry(key, &entry);
                }
            }
            ItemKind::ORPHAN_ITEM if key.object == ORPHAN_OBJECT => {
                names.add(Subject::Orphan, -1, [0, 0, key.offset, 0], b"");
            }
            ItemKind(_) => {}
        }
        Ok(names)
    }

    /// The sum of the statements, which is zero over a whole tree.
    pub(super) fn sum(&self) -> u64 {
        let parts = self.0.iter().map(|statement| {
            let hash = statement.hash();
            hash.wrapping_mul(statement.weight.cast_unsigned())
        });
        parts.fold(0, u64::wrapping_add)
    }

    fn add(&mut self, subject: Subject, weight: i64, numbers: [u64; 4], name: &'b [u8]) {
        let [dir, index, child, kind] = numbers;
        self.0.push(Statement {
            subject,
            weight,
            dir,
            index,
            child,
            kind,
            name,
        });
    }

    fn add_inode(&mut self, key: Key, item: &InodeItem) {
        let number = key.object;
        // The root directory has no entry.
        if number == FIRST_FREE_OBJECT {
            return;
        }
        let kind = kind_number(Some(item.kind));
        let links = -i64::from(item.links);
        self.add(Subject::Link, links, [0, 0, number, kind], b"");
        if item.links == 0 {
            self.add(Subject::Orphan, 1, [0, 0, number, 0], b"");
        }
    }

    fn add_refs(&mut self, inode: u64, refs: &[InodeRef<'b>]) {
        for name in refs {
            let own = (inode, 0, &b".."[..]);
            let is_own = inode == FIRST_FREE_OBJECT && (name.parent, name.index, name.name) == own;
            if !is_own {
                let numbers = [name.parent, name.index, inode, 0];
                self.add(Subject::Reference, -1, numbers, name.name);
            }
        }
    }

    fn add_entry(&mut self, key: Key, entry: &DirItem<'b>) {
        let dir = key.object;
        let is_index = key.kind == ItemKind::DIR_INDEX;
        let kind = kind_number(entry.kind);
        let (child, location) = match entry.location {
            Location::Inode(number) => (number, kind),
            Location::Subvolume(number) => (number, kind | SUBVOLUME),
        };
        let weight = if is_index { -1 } else { 1 };
        self.add(
            Subject::Entry,
            weight,
            [dir, 0, child, location],
            entry.name,
        );
        // Names of subvolumes are compared with the root tree.
        if is_index && location & SUBVOLUME == 0 {
            let numbers = [dir, key.offset, child, 0];
            self.add(Subject::Reference, 1, numbers, entry.name);
            self.add(Subject::Link, 1, [0, 0, child, kind], b"");
        }
    }
}

/// Set where an entry names a subvolume.
const SUBVOLUME: u64 = 1 << 32;

fn kind_number(kind: Option<FileKind>) -> u64 {
    kind.map_or(0, |kind| kind.mode_bits().into())
}

/// The search for names that do not cancel.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Roots of the trees that were searched.
    roots: HashSet<LogicalAddr>,
    /// Items that were read.
    pub(super) items: u64,
}

/// A statement without a counterpart.
#[derive(Debug)]
struct Alone {
    subject: Subject,
    weight: i64,
    dir: u64,
    index: u64,
    child: u64,
    kind: u64,
}

/// Looks for the names of a tree that do not cancel, and reports them.
pub(super) fn find(checker: &mut Checker<'_>, walked: &Walked) -> Flow {
    // Of snapshots that are equal, one is searched.
    if !checker.names.roots.insert(walked.tree.root.logical) {
        return Ok(());
    }
    if checker.names.items > ITEMS_MAX {
        return checker.found(Locus::tree(walked.id().0), NameRule::Mismatch);
    }
    let mut buckets = vec![0u64; BUCKETS];
    each_name(checker, walked, |statement| {
        let hash = statement.hash();
        let part = hash.wrapping_mul(statement.weight.cast_unsigned());
        let bucket = &mut buckets[bucket_of(hash)];
        *bucket = bucket.wrapping_add(part);
    });
    let mut alone: BTreeMap<u64, Alone> = BTreeMap::new();
    each_name(checker, walked, |statement| {
        let hash = statement.hash();
        let is_full = alone.len() >= FOUND_MAX && !alone.contains_key(&hash);
        if buckets[bucket_of(hash)] == 0 || is_full {
            return;
        }
        let known = alone.entry(hash).or_insert(Alone {
            subject: statement.subject,
            weight: 0,
            dir: statement.dir,
            index: statement.index,
            child: statement.child,
            kind: statement.kind,
        });
        known.weight = known.weight.saturating_add(statement.weight);
        if statement.index > 0 {
            known.index = statement.index;
        }
    });
    for found in alone.values().filter(|found| found.weight != 0) {
        report(checker, walked, found)?;
    }
    Ok(())
}

/// Calls `use_statement` with each statement of the names of a tree. What cannot be read was reported.
fn each_name(
    checker: &mut Checker<'_>,
    walked: &Walked,
    mut use_statement: impl FnMut(&Statement<'_>),
) {
    let mut cursor = checker.context.cursor(walked.tree);
    if cursor.seek(Key::MIN).is_err() {
        return;
    }
    while let Some((key, data)) = cursor.item() {
        checker.names.items += 1;
        let names = Names::of_item(key, data, Locus::UNKNOWN).unwrap_or_default();
        names.0.iter().for_each(&mut use_statement);
        if cursor.step().is_err() {
            return;
        }
    }
}

fn report(checker: &mut Checker<'_>, walked: &Walked, found: &Alone) -> Flow {
    let locus = Locus::tree(walked.id().0).of_inode(found.child);
    let entry = Key::new(found.dir, ItemKind::DIR_INDEX, found.index);
    let in_dir = Locus::tree(walked.id().0).of_inode(found.dir);
    match (found.subject, found.weight > 0) {
        (Subject::Reference, true) => {
            checker.found(locus.at_key(entry.into()), NameRule::NoInodeRef)
        }
        (Subject::Reference, false) => {
            let key = Key::new(found.child, ItemKind::INODE_REF, found.dir);
            checker.found(locus.at_key(key.into()), NameRule::NoDirIndex)
        }
        (Subject::Entry, true) => {
            let key = Key::new(found.dir, ItemKind::DIR_ITEM, 0);
            checker.found(in_dir.at_key(key.into()), NameRule::NoDirIndex)
        }
        (Subject::Entry, false) => checker.found(in_dir.at_key(entry.into()), NameRule::NoDirItem),
        (Subject::Link, true) => report_link(checker, walked, found),
        // The count was compared with the references.
        (Subject::Link, false) => Ok(()),
        (Subject::Orphan, true) => checker.found(locus, InodeUseRule::NoOrphan),
        (Subject::Orphan, false) => checker.noticed(locus, InodeUseRule::Orphan),
    }
}

/// Reports an entry whose inode is not there or is of another type.
fn report_link(checker: &mut Checker<'_>, walked: &Walked, found: &Alone) -> Flow {
    let locus = Locus::tree(walked.id().0).of_inode(found.child);
    let key = Key::new(found.child, ItemKind::INODE_ITEM, 0);
    let context = checker.context;
    let item = context.find(walked.tree, key, |data| Ok(InodeItem::decode(data, locus)?));
    match item {
        Ok(None) => checker.found(locus, NameRule::NoInodeItem),
        Ok(Some(item)) if kind_number(Some(item.kind)) != found.kind => {
            checker.found(locus, NameRule::FileType)
        }
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

fn bucket_of(hash: u64) -> usize {
    usize::try_from(hash >> 48).unwrap_or_default()
}
