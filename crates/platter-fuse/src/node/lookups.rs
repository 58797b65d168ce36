//! The kernel's lookup count of each inode, in little memory: there may be millions.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::NodeId;

/// Inodes whose numbers lie side by side are kept together. Filesystems give neighbours to files that
/// are neighbours, so that most places are taken.
const TOGETHER_BITS: u32 = 5;
const TOGETHER: usize = 1 << TOGETHER_BITS;

/// The nodes the kernel holds.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    blocks: HashMap<u64, Box<Block>>,
    held: usize,
}

/// # Invariants
/// `held` of the places are not [`FREE`](Node::FREE), and not none.
#[derive(Debug)]
struct Block {
    places: [Node; TOGETHER],
    held: usize,
}

/// What is kept of a node: whether its attributes were sent to the kernel since it was last asked to
/// drop them, and its lookup count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node(u32);

impl Lookups {
    /// What is kept of a node that the kernel holds.
    pub(super) fn get(&self, node: NodeId) -> Option<&Node> {
        let block = self.blocks.get(&block_of(node))?;
        block
            .places
            .get(place_of(node))
            .filter(|node| node.is_held())
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        let block = self.blocks.get_mut(&block_of(node))?;
        let place = block.places.get_mut(place_of(node))?;
        place.is_held().then_some(place)
    }

    /// Counts a lookup of a node, whose attributes are about to be sent to the kernel.
    pub(super) fn hold(&mut self, node: NodeId) {
        let block = self.blocks.entry(block_of(node)).or_insert_with(|| {
            Box::new(Block {
                places: [Node::FREE; TOGETHER],
                held: 0,
            })
        });
        let place = &mut block.places[place_of(node)];
        if !place.is_held() {
            block.held += 1;
            self.held += 1;
        }
        place.hold();
    }

    /// Subtracts `lookups`, which the kernel forgot, from the lookup count of `node`. Returns whether the
    /// kernel held it until then and no longer does.
    pub(super) fn forget(&mut self, node: NodeId, lookups: u64) -> bool {
        let Entry::Occupied(mut entry) = self.blocks.entry(block_of(node)) else {
            return false;
        };
        let block = entry.get_mut();
        let place = &mut block.places[place_of(node)];
        if !place.is_held() || !place.forget(lookups) {
            return false;
        }
        *place = Node::FREE;
        self.held -= 1;
        block.held -= 1;
        if block.held == 0 {
            entry.remove();
        }
        true
    }

    /// How many nodes the kernel holds.
    pub(super) fn len(&self) -> usize {
        self.held
    }
}

/// The block that holds a node. Nodes of one block are best kept in one table.
pub(super) fn block_of(node: NodeId) -> u64 {
    node.0 >> TOGETHER_BITS
}

fn place_of(node: NodeId) -> usize {
    usize::try_from(node.0 % TOGETHER as u64).unwrap_or_default()
}

impl Node {
    const ATTR_SENT: u32 = 1 << 31;
    const LOOKUPS: u32 = !Self::ATTR_SENT;
    const FREE: Self = Self(0);

    fn is_held(self) -> bool {
        self.0 & Self::LOOKUPS != 0
    }

    /// So often that it cannot be counted, and it is never forgotten.
    fn is_stuck(self) -> bool {
        self.0 & Self::LOOKUPS == Self::LOOKUPS
    }

    fn hold(&mut self) {
        if !self.is_stuck() {
            self.0 += 1;
        }
        self.0 |= Self::ATTR_SENT;
    }

    /// Whether nothing is left.
    fn forget(&mut self, lookups: u64) -> bool {
        if self.is_stuck() {
            return false;
        }
        let lookups = u32::try_from(lookups).unwrap_or(u32::MAX);
        let left = (self.0 & Self::LOOKUPS).saturating_sub(lookups);
        self.0 = self.0 & Self::ATTR_SENT | left;
        left == 0
    }

    /// Records that the attributes are about to be sent to the kernel.
    pub(super) fn note_attr_sent(&mut self) {
        self.0 |= Self::ATTR_SENT;
    }

    pub(super) fn is_attr_sent(self) -> bool {
        self.0 & Self::ATTR_SENT != 0
    }

    /// Returns whether the attributes were sent to the kernel since the last call.
    pub(super) fn take_attr_sent(&mut self) -> bool {
        let is_sent = self.is_attr_sent();
        self.0 &= !Self::ATTR_SENT;
        is_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_held_and_forgotten_one_by_one() {
        let mut lookups = Lookups::default();
        let last = TOGETHER as u64 - 1;
        let nodes = [2, 3, last, last + 1, u64::MAX].map(NodeId);
        for node in nodes {
            assert!(lookups.get(node).is_none());
            lookups.hold(node);
            lookups.hold(node);
            assert!(lookups.get(node).is_some());
        }
        assert_eq!((lookups.len(), lookups.blocks.len()), (5, 3));
        for node in nodes {
            assert!(!lookups.forget(node, 1));
            assert!(lookups.forget(node, 1));
            assert!(lookups.get(node).is_none() && lookups.get_mut(node).is_none());
            assert!(!lookups.forget(node, 1));
        }
        assert_eq!((lookups.len(), lookups.blocks.len()), (0, 0));
    }

    #[test]
    fn recording_sent_attributes_leaves_the_count_alone() {
        let mut lookups = Lookups::default();
        let node = NodeId(70);
        lookups.hold(node);
        let kept = lookups.get_mut(node).unwrap();
        assert!(kept.take_attr_sent());
        assert!(!kept.take_attr_sent());
        kept.note_attr_sent();
        assert!(kept.is_attr_sent());
        assert!(lookups.forget(node, 1));
    }

    #[test]
    fn a_node_with_a_saturated_lookup_count_is_never_forgotten() {
        let mut lookups = Lookups::default();
        let node = NodeId(70);
        lookups.hold(node);
        lookups.get_mut(node).unwrap().0 = Node::LOOKUPS - 1;
        for _ in 0..3 {
            lookups.hold(node);
        }
        assert!(!lookups.forget(node, u64::MAX));
        assert!(lookups.get(node).unwrap().is_attr_sent());
    }

    #[test]
    fn a_node_takes_half_a_word() {
        assert_eq!(size_of::<Block>(), 4 * TOGETHER + size_of::<usize>());
    }
}
