//! A filesystem of a few items in memory, and what is wrong with others.

use platter_ondisk::Rule as _;
use platter_vfs::Error;
use zerocopy::IntoBytes;

use super::*;
use crate::ondisk::Generation;
use crate::ondisk::root_item::{RootFlags, RootHistory};
use crate::ondisk::superblock::RootPointer;
use crate::tree::tests::Sample;

/// A filesystem whose top-level subvolume has these items, and whose root tree these besides.
pub(crate) fn sample(items: &[(Key, &[u8])], others: &[(Key, &[u8])]) -> FsContext {
    sample_of(Sample::new(), items, others)
}

/// As [`sample`], with blocks that are there already.
pub(crate) fn sample_of(
    mut blocks: Sample,
    items: &[(Key, &[u8])],
    others: &[(Key, &[u8])],
) -> FsContext {
    let fs = blocks.leaf(items);
    let item = root_item(RootPointer {
        logical: fs.logical,
        generation: fs.generation,
        level: 0,
    });
    let item = item.encode(None);
    let key = Key::new(TreeId::FS.0, ItemKind::ROOT_ITEM, 0);
    let mut roots = vec![(key, item.as_bytes())];
    roots.extend_from_slice(others);
    let root = blocks.leaf_of(TreeId::ROOT, &roots);
    let mut superblock = crate::ondisk::superblock::tests::sample();
    superblock.node_bytes = 4096;
    superblock.root = RootPointer {
        logical: root.logical,
        generation: root.generation,
        level: 0,
    };
    FsContext::new(superblock, blocks.blocks(), Leniency::default())
}

/// The root item of a tree.
pub(crate) fn root_item(root: RootPointer) -> RootItem {
    RootItem {
        root,
        root_dir: 256,
        bytes_used: 4096,
        last_snapshot: Generation(0),
        flags: RootFlags::empty(),
        refs: 1,
        drop_progress: Key::MIN,
        drop_level: 0,
        history: RootHistory::default(),
    }
}

/// The rule that an operation found broken.
pub(crate) fn rule<T: fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Corrupt(corruption)) => corruption.rule.into_owned(),
        other => panic!("expected corruption, got {other:?}"),
    }
}

const ANY: Key = Key::new(256, ItemKind::ORPHAN_ITEM, 0);

#[test]
fn tree_that_is_not_there_is_corrupt() {
    let context = sample(&[(ANY, b"")], &[]);
    assert!(context.required_tree(TreeId::FS).is_ok());
    assert_eq!(context.tree(TreeId::CSUM).unwrap(), None);
    let expected = TreesRule::MissingTree.text();
    assert_eq!(rule(context.required_tree(TreeId::CSUM)), expected);
}

#[test]
fn root_items_in_memory_are_bounded() {
    let context = sample(&[(ANY, b"")], &[]);
    for id in 0..2 * ROOTS_MAX as u64 {
        assert_eq!(context.tree(TreeId(256 + id)).unwrap(), None);
        assert!(context.tree(TreeId::FS).unwrap().is_some());
        assert!(context.roots.read().items.len() <= ROOTS_MAX, "{id}");
    }
}

#[test]
fn subvolumes_that_are_being_deleted_are_apart() {
    let root = RootPointer::default();
    let present = root_item(root).encode(None);
    let mut dead = root_item(root);
    dead.refs = 0;
    dead.drop_progress = Key::new(300, ItemKind::INODE_ITEM, 0);
    let dead = dead.encode(None);
    let key = |id| Key::new(id, ItemKind::ROOT_ITEM, 0);
    let roots = [
        (key(256), present.as_bytes()),
        (key(257), dead.as_bytes()),
        (key(258), present.as_bytes()),
    ];
    let context = sample(&[(ANY, b"")], &roots);
    let ids = |list: Vec<Subvolume>| list.iter().map(|it| it.id.0).collect::<Vec<_>>();
    assert_eq!(ids(context.subvolumes().unwrap()), [5, 256, 258]);
    let deleted = context.deleted_subvolumes().unwrap();
    assert_eq!(deleted[0].item.drop_progress.object, 300);
    assert_eq!(ids(deleted), [257]);
}
