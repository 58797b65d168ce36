//! Checking the invariants of the whole tree, for tests.

use super::raw::{NodeRef, SLOT_BITS, SLOTS, Seen};
use super::store::subtree_counts;
use super::{Locked, Mark};
use crate::sync::Ordering;

impl<T> Locked<'_, T> {
    /// Checks every rule of the tree's structure, walking all of it.
    ///
    /// # Panics
    /// At the first rule that does not hold.
    pub fn assert_invariants(&self) {
        let array = self.array;
        let (nodes, value_nodes, marks) = match self.seen_head() {
            Seen::Node(root) => {
                let marks = self.check_node(root);
                let (nodes, value_nodes) = subtree_counts(self, root);
                (nodes, value_nodes, marks.map(|bits| bits != 0))
            }
            Seen::Sibling(_) | Seen::Retry => panic!("the head is no slot of a node"),
            Seen::Empty => (0, 0, [false; Mark::COUNT]),
            Seen::Value(_) | Seen::Item(_) => {
                (0, 0, Mark::ALL.map(|mark| array.is_any_marked(mark)))
            }
        };
        assert_eq!(array.node_count(), nodes, "nodes are counted");
        assert_eq!(
            array.value_node_count(),
            value_nodes,
            "value nodes are counted"
        );
        let bits = array.head_marks.load(Ordering::Relaxed);
        for mark in Mark::ALL {
            let is_marked = bits & mark.bit() != 0;
            assert_eq!(
                is_marked,
                marks[mark.index()],
                "the head's mark is the root's union"
            );
        }
    }

    fn seen_slot<'a>(&'a self, node: NodeRef<'a, T>, offset: u8) -> Seen<'a, T> {
        node.slot(offset).load(&self.pin).seen()
    }

    /// Checks a subtree; returns the node's mark bits. The depth is bounded by the levels.
    fn check_node<'a>(&'a self, node: NodeRef<'a, T>) -> [u64; Mark::COUNT] {
        let mut count = 0;
        let mut value_count = 0;
        let mut allowed_marks = [0; Mark::COUNT];
        for offset in 0..SLOTS {
            let bit = 1_u64 << offset;
            count += 1;
            match self.seen_slot(node, offset) {
                Seen::Empty => count -= 1,
                Seen::Retry => panic!("a node in the tree asks to retry"),
                Seen::Value(_) | Seen::Item(_) => {
                    value_count += u8::from(matches!(self.seen_slot(node, offset), Seen::Value(_)));
                    for mark in Mark::ALL {
                        allowed_marks[mark.index()] |= node.marks(mark) & bit;
                    }
                }
                Seen::Sibling(canonical) => {
                    assert!(canonical < offset, "a sibling leads to an earlier slot");
                    match self.seen_slot(node, canonical) {
                        Seen::Value(_) => value_count += 1,
                        Seen::Item(_) => {}
                        Seen::Empty | Seen::Sibling(_) | Seen::Retry | Seen::Node(_) => {
                            panic!("a sibling leads to a canonical slot")
                        }
                    }
                    let between = canonical + 1..offset;
                    for at in between {
                        assert!(
                            matches!(self.seen_slot(node, at), Seen::Sibling(other) if other == canonical),
                            "siblings follow their canonical slot"
                        );
                    }
                }
                Seen::Node(below) => {
                    assert_eq!(
                        below.shift() + SLOT_BITS,
                        node.shift(),
                        "levels follow each other"
                    );
                    let marks = self.check_node(below);
                    for mark in Mark::ALL {
                        if marks[mark.index()] != 0 {
                            allowed_marks[mark.index()] |= bit;
                        }
                    }
                }
            }
        }
        assert!(count > 0, "an empty node is freed");
        assert_eq!(node.count(), count, "the count matches the slots");
        assert_eq!(
            node.value_count(),
            value_count,
            "the value count matches the slots"
        );
        for mark in Mark::ALL {
            let bits = node.marks(mark);
            assert_eq!(
                bits,
                allowed_marks[mark.index()],
                "marks are unions of what is below"
            );
        }
        Mark::ALL.map(|mark| node.marks(mark))
    }
}
