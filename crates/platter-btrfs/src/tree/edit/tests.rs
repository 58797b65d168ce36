//! Random changes of a tree against an ordered map, over several transactions.

use platter_ondisk::Rule as _;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::ondisk::key::ItemKind;
use crate::tree::delayed::DelayedInodes;
use crate::tree::tests::{START, Sample, tree};

/// A transaction that only counts blocks: each address is used once.
pub(crate) struct Counting {
    generation: Generation,
    next: RefCell<u64>,
    live: RefCell<BTreeSet<u64>>,
}

impl CopyOnWrite for Counting {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn allocate(&self, _: &TreeState, _: u8, _: Key, _: LogicalAddr) -> Result<LogicalAddr> {
        let mut next = self.next.borrow_mut();
        *next += 4096;
        self.live.borrow_mut().insert(*next);
        Ok(LogicalAddr(*next))
    }

    fn copied(&self, _: &TreeState, old: &TreeBlock, new: &[u8], _: bool) -> Result<()> {
        assert_eq!(old.bytes().len(), new.len());
        assert!(
            self.live.borrow_mut().remove(&old.logical().0),
            "{old:?} is not of the tree"
        );
        Ok(())
    }

    fn freed(&self, _: &TreeState, logical: LogicalAddr, _: u8) -> Result<()> {
        assert!(self.live.borrow_mut().remove(&logical.0));
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn key(object: u64) -> Key {
    Key::new(object, ItemKind::XATTR_ITEM, object % 3)
}

fn data(random: &mut Random, size_max: u64) -> Vec<u8> {
    let byte = random.below(256).to_le_bytes()[0];
    let len = usize::try_from(random.below(size_max)).unwrap();
    vec![byte; len]
}

/// The blocks of a tree; each is as full as its neighbours allow.
fn walk(blocks: &TreeBlocks, tree: Tree, found: &mut BTreeSet<u64>) {
    fn visit(blocks: &TreeBlocks, at: LogicalAddr, found: &mut BTreeSet<u64>) {
        let block = blocks
            .read(at, &crate::ondisk::tree_block::Expected::default())
            .unwrap();
        assert!(found.insert(at.0), "{at} twice");
        if block.level() > 0 {
            for pointer in block.node().iter() {
                visit(blocks, pointer.logical, found);
            }
        }
    }
    visit(blocks, tree.root.logical, found);
}

fn agree(editor: &TreeEditor<'_, Counting>, map: &BTreeMap<Key, Vec<u8>>) {
    let mut cursor = editor.cursor();
    cursor.seek(Key::MIN).unwrap();
    for (key, data) in map {
        assert_eq!(cursor.item(), Some((*key, &data[..])));
        cursor.step().unwrap();
    }
    assert_eq!(cursor.item(), None);
}

/// The recent paths are those that searches find now, and lead to all keys up to their ends.
fn recent_paths_are_current(editor: &TreeEditor<'_, Counting>) {
    for (low, path) in editor.recent.iter() {
        let last = path.leaf().unwrap().end;
        let last = last.map_or(Key::MAX, predecessor);
        for key in [low, last] {
            let mut at = editor.tree().root.logical;
            let mut end = None;
            for (depth, step) in path.steps().iter().enumerate() {
                assert_eq!((step.logical, step.end), (at, end), "step {depth}");
                let block = editor.own_block(at).unwrap();
                if depth == path.depth() {
                    assert_eq!(block.level(), 0);
                    break;
                }
                let node = block.node();
                let index = node.index_for(key);
                assert_eq!(step.index, index, "step {depth} to {key:?}");
                at = node.pointer(index).unwrap().logical;
                end = node.pointer(index + 1).map(|next| next.key).or(end);
            }
        }
    }
}

/// The key before another one.
fn predecessor(key: Key) -> Key {
    let Key {
        object,
        kind,
        offset,
    } = key;
    match (kind.0.checked_sub(1), offset.checked_sub(1)) {
        (_, Some(offset)) => Key::new(object, kind, offset),
        (Some(kind), None) => Key::new(object, ItemKind(kind), u64::MAX),
        (None, None) => Key::new(object - 1, ItemKind(u8::MAX), u64::MAX),
    }
}

fn look_up(editor: &TreeEditor<'_, Counting>, map: &BTreeMap<Key, Vec<u8>>, key: Key) {
    let item = |(key, data): (&Key, &Vec<u8>)| (*key, data.clone());
    assert_eq!(editor.get(key).unwrap().as_ref(), map.get(&key));
    let after = map.range(key..).next().map(item);
    assert_eq!(editor.key_from(key).unwrap(), after.as_ref().map(|it| it.0));
    assert_eq!(editor.at_or_after(key).unwrap(), after);
    let before = map.range(..=key).next_back().map(item);
    assert_eq!(editor.at_or_before(key).unwrap(), before);
}

fn compare(seed: u64, rounds: u64, spread: u64, size_max: u64) {
    let mut random = Random(seed);
    let mut sample = Sample::new();
    let root = sample.leaf(&[(key(1), b"x")]);
    let blocks = sample.blocks();
    let mut map = BTreeMap::from([(key(1), b"x".to_vec())]);
    let mut state = TreeState {
        tree: tree(root, 0),
        last_snapshot: Generation(0),
        is_shareable: true,
        used_bytes: 4096,
    };
    let mut cow = Counting {
        generation: Generation(9),
        next: RefCell::new(START + (1 << 19)),
        live: RefCell::new(BTreeSet::from([root.logical.0])),
    };
    let mut levels = 0;
    let mut recent = RecentPaths::default();
    let mut delayed = DelayedInodes::default();
    for transaction in 0..6 {
        cow.generation.0 += 1;
        let mut editor = TreeEditor::going_on(&blocks, &cow, &mut state, (recent, &mut delayed));
        for round in 0..rounds {
            if round % 8 == 0 {
                let recent = editor.into_recent();
                editor = TreeEditor::going_on(&blocks, &cow, &mut state, (recent, &mut delayed));
            }
            let object = random.below(spread);
            let key = key(object);
            let grows = random.below(10) < if transaction < 4 { 7 } else { 3 };
            if grows {
                let data = data(&mut random, size_max);
                let old = map.get(&key);
                if random.below(3) == 0 {
                    assert_eq!(editor.get_for_change(key).unwrap().as_ref(), old);
                }
                if random.below(2) == 0 && old.is_none() {
                    editor.insert(key, &data).unwrap();
                } else {
                    editor.set(key, &data).unwrap();
                }
                map.insert(key, data);
            } else if random.below(4) == 0 {
                let last = super::tests::key(object + random.below(spread / 20 + 2));
                let range = map.range(key..=last).map(|(key, _)| *key);
                let keys: Vec<_> = range.collect();
                let removed = editor.remove_range(key, last).unwrap();
                assert_eq!(removed, keys.len());
                for key in keys {
                    map.remove(&key);
                }
            } else {
                let removed = editor.remove(key).unwrap();
                assert_eq!(removed, map.remove(&key).is_some());
            }
            levels = levels.max(editor.tree().root.level);
            recent_paths_are_current(&editor);
            look_up(&editor, &map, super::tests::key(random.below(spread)));
        }
        assert!(editor.insert(*map.keys().next().unwrap(), b"").is_err());
        agree(&editor, &map);
        let tree = editor.tree();
        recent = editor.into_recent();
        let mut found = BTreeSet::new();
        walk(&blocks, tree, &mut found);
        assert_eq!(found, *cow.live.borrow(), "blocks in use");
        assert_eq!(state.used_bytes, found.len() as u64 * 4096);
        for at in &found {
            blocks.finish(LogicalAddr(*at)).unwrap();
        }
    }
    cow.generation.0 += 1;
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    assert!(levels > 0);
    assert_eq!(editor.remove_range(Key::MIN, Key::MAX).unwrap(), map.len());
    agree(&editor, &BTreeMap::new());
    assert_eq!(editor.tree().root.level, 0);
    assert_eq!(cow.live.borrow().len(), 1);
}

#[test]
fn random_changes_agree_with_an_ordered_map() {
    compare(1, 1200, 3000, 60);
    compare(2, 500, 400, 1500);
    compare(3, 300, 300, 3900);
    compare(4, 2500, 20_000, 8);
}

/// A tree of one block, in a transaction that begins.
fn of_block(root: crate::ondisk::node::KeyPointer, level: u8) -> (TreeState, Counting) {
    let state = TreeState {
        tree: tree(root, level),
        last_snapshot: Generation(0),
        is_shareable: true,
        used_bytes: 4096,
    };
    let cow = Counting {
        generation: Generation(10),
        next: RefCell::new(START + (1 << 19)),
        live: RefCell::new(BTreeSet::from([root.logical.0])),
    };
    (state, cow)
}

#[test]
fn impossible_changes_are_refused() {
    use crate::context::tests::rule;
    let mut sample = Sample::new();
    let root = sample.leaf(&[(key(3), b"three"), (key(6), b"six")]);
    let blocks = sample.blocks();
    let (mut state, cow) = of_block(root, 0);
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    assert_eq!(
        rule(editor.insert(key(3), b"")),
        TreeEditRule::Exists.text()
    );
    let large = editor.insert(key(9), &[0; 4000]);
    assert_eq!(rule(large), TreeEditRule::TooLarge.text());
    let absent = editor.edit(key(9), |data| data.fill(0));
    assert_eq!(rule(absent), TreeEditRule::Missing.text());
    for (old, new) in [(key(3), key(7)), (key(9), key(10)), (key(6), key(3))] {
        let moved = editor.set_key(old, new);
        assert_eq!(rule(moved), TreeEditRule::Missing.text());
    }
    editor.set_key(key(3), key(1)).unwrap();
    editor.edit(key(6), |data| data.fill(b'x')).unwrap();
    assert_eq!(editor.get(key(1)).unwrap().unwrap(), b"three");
    assert_eq!(editor.get(key(6)).unwrap().unwrap(), b"xxx");
}

#[test]
fn tree_of_eight_levels_does_not_grow() {
    use crate::context::tests::rule;
    let mut sample = Sample::new();
    let pointers: Vec<_> = (1..=crate::ondisk::node_edit::capacity(4096) as u64)
        .map(|object| crate::ondisk::node::KeyPointer {
            key: key(object),
            logical: LogicalAddr(START),
            generation: Generation(9),
        })
        .collect();
    let root = sample.node(7, &pointers);
    let blocks = sample.blocks();
    let (mut state, cow) = of_block(root, 7);
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    let grown = editor.insert(key(0), b"");
    assert_eq!(rule(grown), TreeEditRule::TooHigh.text());
}

#[test]
fn block_of_another_shape_is_corrupt() {
    use crate::context::tests::rule;
    let mut sample = Sample::new();
    let root = sample.leaf(&[(key(3), b"three")]);
    let blocks = sample.blocks();
    let (mut state, cow) = of_block(root, 0);
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    editor.remove(key(3)).unwrap();
    // The root is said to be a node.
    state.tree.root.level = 1;
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    assert_eq!(rule(editor.insert(key(4), b"")), TreeEditRule::Shape.text());
}

#[test]
fn tree_whose_keys_overlap_is_not_pruned() {
    use crate::context::tests::rule;
    use crate::ondisk::tree_block::TreeBlockRule;
    let mut sample = Sample::new();
    let leaves = [
        sample.leaf(&[(key(3), b"three"), (key(9), b"nine")]),
        sample.leaf(&[(key(6), b"six")]),
    ];
    let root = sample.node(1, &leaves);
    let blocks = sample.blocks();
    let (mut state, cow) = of_block(root, 1);
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    let mut end = None;
    // Where the second leaf began is known in the next step, too.
    for dropped in [1, 0] {
        let mut count = 0;
        let pruned = prune(&mut editor, &mut end, |_| {
            count += 1;
            Ok(Cut::Done)
        });
        assert_eq!(rule(pruned), TreeBlockRule::EndKey.text());
        assert_eq!((count, end), (dropped, Some(key(6))));
    }
}

#[test]
fn items_in_order_fill_leaves() {
    let mut sample = Sample::new();
    let root = sample.leaf(&[(key(0), &[0; 50])]);
    let blocks = sample.blocks();
    let mut state = TreeState {
        tree: tree(root, 0),
        last_snapshot: Generation(0),
        is_shareable: true,
        used_bytes: 4096,
    };
    let cow = Counting {
        generation: Generation(10),
        next: RefCell::new(START + (1 << 19)),
        live: RefCell::new(BTreeSet::from([root.logical.0])),
    };
    let mut editor = TreeEditor::new(&blocks, &cow, &mut state);
    for object in 1..1060 {
        editor.insert(key(object), &[1; 50]).unwrap();
    }
    // 53 items of 75 bytes in each leaf.
    let leaves = cow.live.borrow().len() - 1;
    assert_eq!(leaves, 1060 / 53);
    assert!(editor.insert(key(5000), &[0; 4000]).is_err(), "too large");
}
