//! The root tree: which trees there are, and how subvolumes are named.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::walked::Walked;
use super::{Checker, Flow, RootUseRule};
use crate::context::TreesRule;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::free_space::FreeSpaceHeader;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::root_ref::RootRef;
use crate::ondisk::types::{FREE_SPACE_OBJECT, ORPHAN_OBJECT};
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::Tree;

/// A name of a subvolume: the directory, the index, the name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SubvolumeName {
    dir: u64,
    index: u64,
    name: Vec<u8>,
}

/// What the root tree lists.
#[derive(Debug, Default)]
pub(super) struct Roots {
    items: Vec<(TreeId, RootItem)>,
    /// The position of each tree's item.
    positions: HashMap<TreeId, usize>,
    /// By child and parent: as stored at the parent, and at the child.
    names: BTreeMap<(TreeId, TreeId), [Option<SubvolumeName>; 2]>,
    orphans: BTreeSet<u64>,
    /// Free space caches of version 1, by block group.
    pub(super) caches: Vec<(LogicalAddr, FreeSpaceHeader)>,
}

impl Roots {
    /// The trees to be walked: the checksums first, deleted subvolumes last, so that blocks they share are
    /// walked as those of others.
    pub(super) fn walks(&self) -> Vec<Walked> {
        let walked = |&(id, item): &(TreeId, RootItem)| {
            let is_dead = id.is_subvolume() && item.refs == 0;
            let is_dropped = is_dead && item.drop_progress != Key::MIN;
            Walked {
                tree: Tree {
                    id,
                    root: item.root,
                },
                dropped: is_dropped.then_some((item.drop_progress, item.drop_level)),
                is_dead,
            }
        };
        let mut walks: Vec<Walked> = self.items.iter().map(walked).collect();
        walks.sort_by_key(|walked| match walked.id() {
            TreeId::CSUM => 0,
            id if !id.is_subvolume() && id != TreeId::TREE_RELOC => 1,
            TreeId::TREE_RELOC => 4,
            _ if walked.is_dead => 3,
            _ => 2,
        });
        walks
    }

    /// The subvolumes that were not deleted.
    pub(super) fn live(&self) -> impl Iterator<Item = &(TreeId, RootItem)> {
        let is_live = |(id, item): &&(TreeId, RootItem)| id.is_subvolume() && item.refs > 0;
        self.items.iter().filter(is_live)
    }

    /// The root item of a tree.
    pub(super) fn item(&self, tree: TreeId) -> Option<&RootItem> {
        let found = self.items.get(*self.positions.get(&tree)?);
        found.map(|(_, item)| item)
    }
}

/// Records an item of the root tree.
pub(super) fn note_item(checker: &mut Checker<'_>, key: Key, data: &[u8], locus: Locus) -> Flow {
    match key.kind {
        // The kernel finds such an item only if it is of a subvolume or under relocation.
        ItemKind::ROOT_ITEM
            if key.offset != 0
                && !TreeId(key.object).is_subvolume()
                && TreeId(key.object) != TreeId::TREE_RELOC => {}
        ItemKind::ROOT_ITEM => {
            let decoded = RootItem::decode(data, checker.format.sector_bytes, locus);
            if let Ok(item) = decoded {
                if item.root.generation > checker.context.superblock.generation {
                    checker.found(locus, RootUseRule::Generation)?;
                }
                let is_copy = TreeId(key.object) == TreeId::TREE_RELOC;
                if item.root.generation == Generation(0) && !is_copy {
                    checker.found(locus, RootUseRule::NoGeneration)?;
                }
                let (id, position) = (TreeId(key.object), checker.roots.items.len());
                checker.roots.positions.insert(id, position);
                checker.roots.items.push((id, item));
            }
        }
        ItemKind::ROOT_REF | ItemKind::ROOT_BACKREF => {
            let Ok(name) = RootRef::decode(data, locus) else {
                return Ok(());
            };
            let is_backref = key.kind == ItemKind::ROOT_BACKREF;
            let (child, parent) = if is_backref {
                (key.object, key.offset)
            } else {
                (key.offset, key.object)
            };
            let names = checker.roots.names.entry((TreeId(child), TreeId(parent)));
            names.or_default()[usize::from(is_backref)] = Some(SubvolumeName {
                dir: name.dir,
                index: name.index,
                name: name.name.to_vec(),
            });
        }
        ItemKind::ORPHAN_ITEM if key.object == ORPHAN_OBJECT => {
            checker.roots.orphans.insert(key.offset);
        }
        ItemKind(0) if key.object == FREE_SPACE_OBJECT => {
            if let Ok(header) = FreeSpaceHeader::decode(data, locus) {
                let group = LogicalAddr(key.offset);
                checker.roots.caches.push((group, header));
            }
        }
        ItemKind(_) => {}
    }
    Ok(())
}

/// Checks that subvolumes are named, and that each name is stored at parent, child, and directory.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    for required in [TreeId::DEV, TreeId::CSUM, TreeId::FS] {
        if checker.roots.item(required).is_none() {
            checker.found(Locus::tree(required.0), TreesRule::MissingTree)?;
        }
    }
    let names = std::mem::take(&mut checker.roots.names);
    let mut parents: BTreeMap<TreeId, u32> = BTreeMap::new();
    for ((child, parent), [at_parent, at_child]) in &names {
        let locus = Locus::tree(TreeId::ROOT.0);
        let key = Key::new(parent.0, ItemKind::ROOT_REF, child.0);
        let locus = locus.at_key(key.into());
        match (at_parent, at_child) {
            (Some(name), Some(other)) if name == other => {
                *parents.entry(*child).or_default() += 1;
                check_subvolume_entry(checker, *parent, *child, name)?;
            }
            (Some(_), _) => checker.found(locus, RootUseRule::NoBackref)?,
            (None, _) => checker.found(locus, RootUseRule::NoRef)?,
        }
        if checker.roots.item(*child).is_none() {
            checker.found(locus, RootUseRule::NotFound)?;
        }
    }
    let items: Vec<_> = checker.roots.items.clone();
    for (id, item) in items {
        let locus = Locus::tree(id.0);
        if id == TreeId::FS || !id.is_subvolume() {
            continue;
        }
        match parents.get(&id) {
            None if checker.roots.orphans.contains(&id.0) => {
                checker.noticed(locus, RootUseRule::Orphan)?;
            }
            None => checker.found(locus, RootUseRule::Unreferenced)?,
            Some(1) if item.refs > 0 => {}
            Some(1) => checker.found(locus, RootUseRule::NotFound)?,
            Some(_) => checker.found(locus, RootUseRule::SeveralRefs)?,
        }
    }
    Ok(())
}

/// Checks that a subvolume's name is in its parent's directory, by index and by hash.
fn check_subvolume_entry(
    checker: &mut Checker<'_>,
    parent: TreeId,
    child: TreeId,
    name: &SubvolumeName,
) -> Flow {
    let Some(item) = checker.roots.item(parent) else {
        return Ok(());
    };
    let tree = Tree {
        id: parent,
        root: item.root,
    };
    let keys = [
        Key::new(name.dir, ItemKind::DIR_INDEX, name.index),
        Key::new(name.dir, ItemKind::DIR_ITEM, name_hash(&name.name)),
    ];
    for key in keys {
        let locus = tree.locus(key);
        let context = checker.context;
        let found = context.find(tree, key, |data| {
            let entries = DirItem::decode_all(key, data, locus)?;
            let is_it = |entry: &DirItem<'_>| {
                entry.name == name.name && entry.location == Location::Subvolume(child.0)
            };
            Ok(entries.iter().any(is_it))
        });
        if let Ok(None | Some(false)) = found {
            checker.found(locus, RootUseRule::NoEntry)?;
        }
    }
    Ok(())
}
