//! Trees of many levels, compared with what they should hold.

use std::collections::{BTreeMap, BTreeSet};

use platter_ondisk::{Corrupt, Locus};

use super::*;
use crate::ondisk::FileBlock;
use crate::ondisk::btree::DiskMapping;
use crate::ondisk::extent::Mapping;

const KIND: BtreeKind = BtreeKind::Bmap;
/// Entries of a block.
const ENTRIES_MAX: usize = 4;

/// Blocks in memory.
struct Blocks {
    root: u64,
    nodes: BTreeMap<u64, Node<DiskMapping>>,
    next: u64,
    /// Blocks that were allocated.
    allocated: u64,
}

impl Blocks {
    fn new() -> Self {
        let leaf = Node {
            at: 1,
            level: 0,
            left: None,
            right: None,
            records: Vec::new(),
            keys: Vec::new(),
            pointers: Vec::new(),
        };
        Self {
            root: 1,
            nodes: BTreeMap::from([(1, leaf)]),
            next: 2,
            allocated: 0,
        }
    }

    fn insert(&mut self, at: u64) {
        insert(self, KIND, record(at)).unwrap();
    }

    fn remove(&mut self, at: u64) {
        remove::<DiskMapping>(self, KIND, (at, 0, 0)).unwrap();
    }

    /// The levels from the root to the leaves, each from left to right, by what nodes lead to.
    fn levels(&self) -> Vec<Vec<&Node<DiskMapping>>> {
        let mut levels = vec![vec![&self.nodes[&self.root]]];
        while levels[levels.len() - 1][0].level > 0 {
            let below = levels[levels.len() - 1]
                .iter()
                .flat_map(|node| node.pointers.iter().map(|at| &self.nodes[at]));
            levels.push(below.collect());
        }
        levels
    }

    /// Asserts what holds for all trees, and returns the places of the records.
    fn assert_valid(&self) -> Vec<u64> {
        let levels = self.levels();
        let count: usize = levels.iter().map(Vec::len).sum();
        assert_eq!(count, self.nodes.len());
        for level in &levels {
            for (index, node) in level.iter().enumerate() {
                let left = index.checked_sub(1).map(|left| level[left].at);
                assert_eq!(node.left, left);
                assert_eq!(node.right, level.get(index + 1).map(|right| right.at));
                assert!(node.len() <= ENTRIES_MAX);
                assert!(node.at == self.root || node.len() >= ENTRIES_MAX / 2);
                for (key, at) in node.keys.iter().zip(&node.pointers) {
                    assert_eq!(
                        Some(key.get()),
                        self.nodes[at].key().map(zerocopy::U64::get)
                    );
                }
            }
        }
        let leaves = levels[levels.len() - 1].iter();
        let records = leaves.flat_map(|leaf| &leaf.records);
        records
            .map(|record| Mapping::unpack(record).offset.0)
            .collect()
    }
}

fn record(at: u64) -> DiskMapping {
    let mapping = Mapping {
        offset: FileBlock(at),
        start: 1000 + at,
        count: 1,
        is_unwritten: false,
    };
    mapping.pack().unwrap()
}

impl TreeBlocks for Blocks {
    fn broken(&self, rule: TreeRule) -> Error {
        Corrupt::new(Locus::UNKNOWN, rule).into()
    }

    fn alloc(&mut self, _kind: BtreeKind) -> Result<u64> {
        self.next += 1;
        self.allocated += 1;
        Ok(self.next)
    }

    fn free(&mut self, _kind: BtreeKind, at: u64) -> Result<()> {
        assert!(self.nodes.remove(&at).is_some());
        Ok(())
    }
}

impl TreeHost<DiskMapping> for Blocks {
    fn load_root(&self, _kind: BtreeKind) -> Result<Node<DiskMapping>> {
        Ok(self.nodes[&self.root].clone())
    }

    fn load(&self, _kind: BtreeKind, at: u64, level: u16) -> Result<Node<DiskMapping>> {
        let node = self.nodes[&at].clone();
        assert_eq!(node.level, level);
        Ok(node)
    }

    fn store(&mut self, _kind: BtreeKind, node: &Node<DiskMapping>) -> Result<()> {
        self.nodes.insert(node.at, node.clone());
        Ok(())
    }

    fn entries_max(&self, _kind: BtreeKind, _node: &Node<DiskMapping>) -> usize {
        ENTRIES_MAX
    }

    fn grow_root(&mut self, kind: BtreeKind, root: Node<DiskMapping>) -> Result<()> {
        let mut left = root;
        let inserted = left.len();
        let right = split(self, kind, &mut left, inserted)?;
        self.store(kind, &left)?;
        let first = left.key().map(|key| (key, left.at));
        let children = first.into_iter().chain(right).collect();
        self.root = self.alloc(kind)?;
        let root = Node::above(self.root, left.level + 1, children);
        self.store(kind, &root)
    }

    fn shrink_root(&mut self, kind: BtreeKind, root: Node<DiskMapping>) -> Result<()> {
        match (root.level, root.pointers.as_slice()) {
            (1.., [only]) => {
                self.root = *only;
                self.free(kind, root.at)
            }
            _ => self.store(kind, &root),
        }
    }
}

#[test]
fn tree_of_many_levels_holds_what_was_inserted() {
    let mut blocks = Blocks::new();
    let mut model = BTreeSet::new();
    let mut numbers: u64 = 1;
    let mut levels = 0;
    for round in 0..6000_u64 {
        numbers = numbers
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (numbers >> 33) % 1500;
        let grows = round % 3000 < 1500;
        if model.contains(&at) {
            model.remove(&at);
            blocks.remove(at);
        } else if grows {
            model.insert(at);
            blocks.insert(at);
        }
        if round % 20 == 0 {
            let found = blocks.assert_valid();
            assert!(found.iter().eq(&model), "round {round}");
        }
        levels = levels.max(blocks.levels().len());
    }
    for at in model {
        blocks.remove(at);
    }
    assert_eq!(blocks.assert_valid(), []);
    assert_eq!(blocks.nodes.len(), 1);
    assert!(levels >= 5, "{levels}");
}

/// A full leaf that ends its parent gives an entry to the first leaf of the next parent.
#[test]
fn full_block_shares_with_its_cousins() {
    let mut blocks = Blocks::new();
    for at in 0..40 {
        blocks.insert(at * 10);
    }
    let levels = blocks.levels();
    let [.., parents, leaves] = &levels[..] else {
        panic!("no levels");
    };
    assert!(parents.len() >= 3);
    let last = parents[0].pointers.last().copied().unwrap();
    let index = leaves.iter().position(|leaf| leaf.at == last).unwrap();
    let (first, space) = (leaves[index].clone(), leaves[index + 1].clone());
    assert!(first.len() == ENTRIES_MAX && space.len() == ENTRIES_MAX);
    blocks.remove(Mapping::unpack(&space.records[1]).offset.0);
    let allocated = blocks.allocated;
    blocks.insert(Mapping::unpack(&first.records[0]).offset.0 + 1);
    assert_eq!(blocks.allocated, allocated);
    assert_eq!(blocks.nodes[&first.at].len(), ENTRIES_MAX);
    assert_eq!(blocks.nodes[&space.at].len(), ENTRIES_MAX);
    blocks.assert_valid();
}

#[test]
fn neighbour_that_leads_elsewhere_is_inconsistent() {
    let mut blocks = Blocks::new();
    for at in 0..40 {
        blocks.insert(at * 10);
    }
    let leaves: Vec<u64> = blocks.levels()[2..]
        .last()
        .unwrap()
        .iter()
        .map(|leaf| leaf.at)
        .collect();
    let second = blocks.nodes.get_mut(&leaves[1]).unwrap();
    second.left = Some(leaves[3]);
    let first = blocks.nodes[&leaves[0]].clone();
    let gone = (0..first.len()).try_for_each(|index| {
        let at = Mapping::unpack(&first.records[index]).offset.0;
        remove::<DiskMapping>(&mut blocks, KIND, (at, 0, 0))
    });
    assert!(matches!(gone, Err(Error::Corrupt(_))), "{gone:?}");
}
