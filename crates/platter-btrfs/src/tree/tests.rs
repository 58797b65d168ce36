//! Trees made in memory: search, iteration in both directions, and pointers that are not right.

use std::sync::Arc;

use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Uuid;
use platter_vfs::Error;

use super::*;
use crate::chunk::{ChunkMap, ChunkStore, Member, Members};
use crate::ondisk::chunk_item::Profile;
use crate::ondisk::header::tests::sample as header;
use crate::ondisk::key::ItemKind;
use crate::ondisk::node::KeyPointer;
use crate::ondisk::tree_block::tests::FORMAT;
use crate::ondisk::{DeviceId, Generation, LogicalAddr, leaf, node};

/// Where the chunk begins in the logical space.
pub(crate) const START: u64 = 1 << 30;

/// A filesystem of tree blocks, in two copies on one device.
pub(crate) struct Sample {
    device: Vec<u8>,
    next: u64,
}

impl Sample {
    pub(crate) fn new() -> Self {
        Self {
            device: vec![0; 4 << 20],
            next: START,
        }
    }

    /// Writes a block, sealed, into both copies. Returns its address.
    fn put(&mut self, mut block: Vec<u8>) -> u64 {
        FORMAT.seal(&mut block);
        let logical = self.next;
        for copy in [1 << 20, 2 << 20] {
            let at = usize::try_from(copy + logical - START).unwrap();
            self.device[at..at + block.len()].copy_from_slice(&block);
        }
        self.next += block.len() as u64;
        logical
    }

    pub(crate) fn leaf(&mut self, items: &[(Key, &[u8])]) -> KeyPointer {
        self.leaf_of(TreeId::FS, items)
    }

    /// A leaf of a tree.
    pub(crate) fn leaf_of(&mut self, owner: TreeId, items: &[(Key, &[u8])]) -> KeyPointer {
        let mut block = vec![0; 4096];
        let header = crate::ondisk::header::Header {
            owner,
            ..header(self.next, 0)
        };
        assert!(leaf::encode(&mut block, &header, items.iter().copied()));
        let logical = LogicalAddr(self.put(block));
        KeyPointer {
            key: items[0].0,
            logical,
            generation: Generation(9),
        }
    }

    pub(crate) fn node(&mut self, level: u8, pointers: &[KeyPointer]) -> KeyPointer {
        let mut block = vec![0; 4096];
        assert!(node::encode(
            &mut block,
            &header(self.next, level),
            pointers
        ));
        let logical = LogicalAddr(self.put(block));
        KeyPointer {
            key: pointers[0].key,
            logical,
            generation: Generation(9),
        }
    }

    /// Changes a byte of one copy of a block.
    fn corrupt(&mut self, pointer: KeyPointer, copy: u64) {
        let at = (1 << 20) * (1 + copy) + (pointer.logical.0 - START) + 3000;
        self.device[usize::try_from(at).unwrap()] ^= 1;
    }

    pub(crate) fn blocks(self) -> TreeBlocks {
        let mut chunk = crate::ondisk::chunk_item::tests::sample(START, Profile::Dup, 2);
        chunk.flags |= crate::ondisk::chunk_item::BlockGroupFlags::METADATA;
        let member = Member {
            id: DeviceId(1),
            uuid: Uuid::from_u128(1),
            fsid: Uuid::from_u128(0),
            total_bytes: None,
            generation: None,
            index: 0,
            device: Some(Arc::new(MemoryDevice::new("device", self.device))),
        };
        let map = ChunkMap::new(vec![chunk]).unwrap();
        let store = ChunkStore::new("sample".into(), map, Members::new(vec![member]));
        TreeBlocks::new(Arc::new(store), FORMAT, MemoryBudget::new(1 << 20).into())
    }
}

pub(crate) fn tree(root: KeyPointer, level: u8) -> Tree {
    Tree {
        id: TreeId::FS,
        root: RootPointer {
            logical: root.logical,
            generation: root.generation,
            level,
        },
    }
}

fn key(object: u64) -> Key {
    Key::new(object, ItemKind::INODE_ITEM, 0)
}

fn leaf_of(sample: &mut Sample, objects: std::ops::Range<u64>) -> KeyPointer {
    let items: Vec<(Key, &[u8])> = objects.map(|object| (key(2 * object), &b"x"[..])).collect();
    sample.leaf(&items)
}

/// Three levels: items with the even objects below 120.
fn three_levels(sample: &mut Sample) -> (Tree, Vec<KeyPointer>) {
    let leaves: Vec<_> = (0..6)
        .map(|at| leaf_of(sample, at * 10..at * 10 + 10))
        .collect();
    let left = sample.node(1, &leaves[..2]);
    let right = sample.node(1, &leaves[2..]);
    (tree(sample.node(2, &[left, right]), 2), leaves)
}

fn found(cursor: &Cursor<'_>) -> Option<u64> {
    cursor.key().map(|key| key.object)
}

#[test]
fn search_finds_the_first_item_at_or_after_a_key() {
    let mut sample = Sample::new();
    let (tree, _) = three_levels(&mut sample);
    let blocks = sample.blocks();
    let mut cursor = Cursor::new(&blocks, tree);
    for object in (0..=120).chain([19, 38, 39, 40, 0]) {
        cursor.seek(key(object)).unwrap();
        let expected = object.next_multiple_of(2);
        assert_eq!(found(&cursor), (expected < 120).then_some(expected));
        let exists = cursor.seek_at_or_before(key(object)).unwrap();
        assert!(exists);
        assert_eq!(found(&cursor), Some((object & !1).min(118)));
    }
    assert!(!cursor.seek_at_or_before(Key::MIN).unwrap());
}

#[test]
fn iteration_visits_all_items_in_both_directions() {
    let mut sample = Sample::new();
    let (tree, _) = three_levels(&mut sample);
    let blocks = sample.blocks();
    let mut cursor = Cursor::new(&blocks, tree);
    cursor.seek(Key::MIN).unwrap();
    for object in 0..60 {
        assert_eq!(found(&cursor), Some(2 * object));
        cursor.step().unwrap();
    }
    assert_eq!(cursor.item(), None);
    cursor.step().unwrap();
    assert_eq!(cursor.item(), None);
    cursor.seek(Key::MAX).unwrap();
    for object in (0..60).rev() {
        assert!(cursor.step_back().unwrap());
        assert_eq!(found(&cursor), Some(2 * object));
    }
    assert!(!cursor.step_back().unwrap());
}

#[test]
fn empty_tree_has_no_items() {
    let mut sample = Sample::new();
    let mut block = vec![0; 4096];
    let header = header(sample.next, 0);
    assert!(leaf::encode(&mut block, &header, []));
    let root = KeyPointer {
        key: Key::MIN,
        logical: LogicalAddr(sample.put(block)),
        generation: Generation(9),
    };
    let blocks = sample.blocks();
    let mut cursor = Cursor::new(&blocks, tree(root, 0));
    cursor.seek(Key::MIN).unwrap();
    assert_eq!(cursor.item(), None);
    assert!(!cursor.seek_at_or_before(Key::MAX).unwrap());
}

#[test]
fn corrupt_copy_is_passed_over() {
    let mut sample = Sample::new();
    let (tree, leaves) = three_levels(&mut sample);
    sample.corrupt(leaves[1], 0);
    sample.corrupt(leaves[2], 1);
    sample.corrupt(leaves[4], 0);
    sample.corrupt(leaves[4], 1);
    let blocks = sample.blocks();
    let mut cursor = Cursor::new(&blocks, tree);
    for object in [20, 40, 60] {
        cursor.seek(key(object)).unwrap();
        assert_eq!(found(&cursor), Some(object));
    }
    assert_eq!(blocks.bad_copies().found, 1);
    let Err(Error::Corrupt(corruption)) = cursor.seek(key(80)) else {
        panic!("not found corrupt");
    };
    assert_eq!(corruption.rule, "checksum verify failed");
}

/// The rule that reading a tree to its end breaks.
fn broken(sample: Sample, tree: Tree) -> String {
    let blocks = sample.blocks();
    let mut cursor = Cursor::new(&blocks, tree);
    let mut result = cursor.seek(Key::MIN);
    while result.is_ok() && cursor.item().is_some() {
        result = cursor.step();
    }
    match result {
        Err(Error::Corrupt(corruption)) => corruption.rule.into_owned(),
        other => panic!("expected corruption, got {other:?}"),
    }
}

#[test]
fn pointer_that_does_not_fit_its_block_is_corrupt() {
    let change = |change: &dyn Fn(&mut KeyPointer)| {
        let mut sample = Sample::new();
        let first = leaf_of(&mut sample, 0..10);
        let mut second = leaf_of(&mut sample, 10..20);
        change(&mut second);
        let root = sample.node(1, &[first, second]);
        broken(sample, tree(root, 1))
    };
    let rule = change(&|pointer| pointer.generation.0 += 1);
    assert_eq!(rule, "parent transid verify failed");
    let rule = change(&|pointer| pointer.key.object += 1);
    assert_eq!(rule, "first key is not that of the pointer");
    let rule = change(&|pointer| pointer.logical.0 = START + 8192);
    assert_eq!(rule, "level is not that of the pointer");
}

#[test]
fn leaf_whose_keys_reach_into_the_next_is_corrupt() {
    let mut sample = Sample::new();
    let first = leaf_of(&mut sample, 0..11);
    let second = leaf_of(&mut sample, 10..20);
    let root = sample.node(1, &[first, second]);
    let rule = broken(sample, tree(root, 1));
    assert_eq!(rule, "keys reach beyond the next pointer");
}

#[test]
fn node_that_leads_to_itself_is_corrupt() {
    let mut sample = Sample::new();
    let own = KeyPointer {
        key: key(0),
        logical: LogicalAddr(START),
        generation: Generation(9),
    };
    let root = sample.node(3, &[own]);
    assert_eq!(
        broken(sample, tree(root, 3)),
        "level is not that of the pointer"
    );
}
