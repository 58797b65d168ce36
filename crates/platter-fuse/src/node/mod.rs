//! The inodes the kernel knows by a number, and how often it was told of each.

mod lookups;

use std::sync::Arc;

use hashbrown::HashMap;
use platter_vfs::lock_rank::{LockRank, RankedMutex};
use platter_vfs::{Inode, InodeId};

use self::lookups::{Lookups, Node};

/// The number by which the kernel names an inode. It also shows it as the inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u64);

impl NodeId {
    /// The root directory.
    pub(crate) const ROOT: Self = Self(1);

    /// From here on up are the ids of inodes whose own number belongs to another inode already.
    const FIRST_SPARE: u64 = 1 << 63;
}

/// Independent parts of the table. A power of two.
const SHARDS: usize = 16;

/// The inodes the kernel holds. One that has a name is found again by its id whenever it is asked for, so
/// that as many as the kernel likes to hold take little memory; one that has none is kept alive until the
/// kernel forgets it, so that an unlinked file stays readable for whoever has it open.
///
/// # Invariants
/// - The root is always there.
/// - An inode has one node id as long as it is in the table.
#[derive(Debug)]
pub(crate) struct NodeTable {
    root: Arc<dyn Inode>,
    shards: [RankedMutex<Shard>; SHARDS],
    spare: RankedMutex<SpareIds>,
}

#[derive(Debug, Default)]
struct Shard {
    nodes: Lookups,
    /// Of nodes that are not called after their inode in the first tree.
    ids: HashMap<NodeId, InodeId>,
    nameless: HashMap<NodeId, Arc<dyn Inode>>,
}

/// What a node stands for.
#[derive(Debug)]
pub(crate) enum Known {
    /// An inode that can be found by its id.
    Named(InodeId),
    /// The root, or an inode that has no name or had none.
    Kept(Arc<dyn Inode>),
}

/// Ids of inodes whose own number belongs to another inode, as with two trees in one filesystem.
#[derive(Debug, Default)]
struct SpareIds {
    given: u64,
    by_inode: HashMap<InodeId, NodeId>,
}

impl NodeTable {
    pub(crate) fn new(root: Arc<dyn Inode>) -> Self {
        Self {
            root,
            shards: std::array::from_fn(|_| {
                RankedMutex::new(LockRank::NodeTable, Shard::default())
            }),
            spare: RankedMutex::new(LockRank::NodeNumbers, SpareIds::default()),
        }
    }

    /// What a node the kernel holds stands for.
    pub(crate) fn get(&self, node: NodeId) -> Option<Known> {
        if node == NodeId::ROOT {
            return Some(Known::Kept(Arc::clone(&self.root)));
        }
        let shard = self.shard(node).lock();
        shard.nodes.get(node)?;
        Some(match shard.nameless.get(&node) {
            Some(inode) => Known::Kept(Arc::clone(inode)),
            None => Known::Named(shard.id_of(node)),
        })
    }

    /// The node of an inode, if the kernel holds it.
    pub(crate) fn held(&self, id: InodeId) -> Option<NodeId> {
        let spare = self.spare.lock().by_inode.get(&id).copied();
        let node = spare.unwrap_or(NodeId(id.number));
        let shard = self.shard(node).lock();
        (shard.nodes.get(node).is_some() && shard.id_of(node) == id).then_some(node)
    }

    /// Keeps an inode that has lost its last name, or has none yet, until the kernel forgets it.
    pub(crate) fn keep(&self, node: NodeId, inode: &Arc<dyn Inode>) {
        let mut shard = self.shard(node).lock();
        if shard.nodes.get(node).is_some() {
            shard.nameless.insert(node, Arc::clone(inode));
        }
    }

    /// Notes that the kernel is about to be told of the attributes of a node.
    pub(crate) fn note_attr_told(&self, node: NodeId) {
        if let Some(node) = self.shard(node).lock().nodes.get_mut(node) {
            node.note_attr_told();
        }
    }

    /// Whether the kernel was told of a node's attributes since [that was taken](Self::take_attr_told).
    pub(crate) fn is_attr_told(&self, node: NodeId) -> bool {
        let shard = self.shard(node).lock();
        let kept = shard.nodes.get(node);
        kept.is_none_or(|kept| kept.is_attr_told())
    }

    /// Whether the kernel was told of a node's attributes since this was asked last.
    pub(crate) fn take_attr_told(&self, node: NodeId) -> bool {
        let mut shard = self.shard(node).lock();
        shard.nodes.get_mut(node).is_some_and(Node::take_attr_told)
    }

    /// The node of an inode the kernel is about to be told of, held once more.
    pub(crate) fn hold(&self, id: InodeId) -> NodeId {
        if id == self.root.id() {
            return NodeId::ROOT;
        }
        let node = NodeId(id.number);
        let own_number = node > NodeId::ROOT && node.0 < NodeId::FIRST_SPARE;
        // An inode that has a spare id keeps it, though its own number may be free by now.
        let mut spare = self.spare.lock();
        if let Some(&node) = spare.by_inode.get(&id) {
            let held = self.try_hold(node, id);
            assert!(held, "a spare id belongs to one inode");
            return node;
        }
        if own_number && self.try_hold(node, id) {
            return node;
        }
        let node = NodeId(NodeId::FIRST_SPARE + spare.given);
        spare.given += 1;
        spare.by_inode.insert(id, node);
        let held = self.try_hold(node, id);
        assert!(held, "a spare id is given once");
        node
    }

    /// The kernel forgot `lookups` of the times it was told of `node`.
    pub(crate) fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node).lock();
        if !shard.nodes.forget(node, lookups) {
            return;
        }
        let id = shard.id_of(node);
        shard.ids.remove(&node);
        let nameless = shard.nameless.remove(&node);
        drop(shard);
        if node.0 >= NodeId::FIRST_SPARE {
            self.forget_spare(id);
        }
        // Dropping the last user of an unlinked file frees it, which must not happen under a lock.
        drop(nameless);
    }

    /// How many inodes the kernel holds, the root left out.
    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().nodes.len())
            .sum()
    }

    /// Lets go of all inodes, when the kernel is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
    }

    /// Counts the inode in as `node`, unless that stands for another inode.
    fn try_hold(&self, node: NodeId, id: InodeId) -> bool {
        let mut shard = self.shard(node).lock();
        let known = shard.id_of(node);
        if known != id {
            if shard.nodes.get(node).is_some() {
                return false;
            }
            shard.ids.insert(node, id);
        }
        shard.nodes.hold(node);
        true
    }

    fn forget_spare(&self, id: InodeId) {
        let mut spare = self.spare.lock();
        let Some(&node) = spare.by_inode.get(&id) else {
            return;
        };
        if self.shard(node).lock().nodes.get(node).is_none() {
            spare.by_inode.remove(&id);
        }
    }

    fn shard(&self, node: NodeId) -> &RankedMutex<Shard> {
        let mixed = lookups::block_of(node).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }
}

impl Shard {
    /// The inode that a node stands for, if it stands for any.
    fn id_of(&self, node: NodeId) -> InodeId {
        let own = InodeId {
            tree: 0,
            number: node.0,
        };
        self.ids.get(&node).copied().unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use platter_vfs::memory::{MemFs, MemFsLimits};
    use platter_vfs::{CreateKind, Filesystem, FixedClock, Timestamp};

    use super::*;

    fn fs() -> MemFs {
        let clock = FixedClock::new(Timestamp::default(), 0);
        MemFs::new(Arc::new(clock), MemFsLimits::default())
    }

    fn table() -> NodeTable {
        NodeTable::new(fs().root().unwrap())
    }

    fn id(tree: u64, number: u64) -> InodeId {
        InodeId { tree, number }
    }

    /// The inode that a node is found by.
    fn named(table: &NodeTable, node: NodeId) -> Option<InodeId> {
        match table.get(node)? {
            Known::Named(id) => Some(id),
            Known::Kept(_) => None,
        }
    }

    #[test]
    fn an_inode_is_held_as_often_as_it_was_told_of() {
        let table = table();
        let node = table.hold(id(0, 12));
        assert_eq!(node, NodeId(12));
        assert_eq!(table.hold(id(0, 12)), node);
        table.forget(node, 1);
        assert!(table.get(node).is_some());
        table.forget(node, 1);
        assert!(table.get(node).is_none());
        assert_eq!(table.len(), 0);
        table.forget(node, 1);
    }

    #[test]
    fn the_root_is_always_there_under_its_own_number() {
        let table = table();
        let Some(Known::Kept(root)) = table.get(NodeId::ROOT) else {
            panic!("it is kept");
        };
        assert_eq!(table.hold(root.id()), NodeId::ROOT);
        table.forget(NodeId::ROOT, 100);
        assert!(table.get(NodeId::ROOT).is_some());
    }

    #[test]
    fn inodes_of_one_number_in_two_trees_have_two_nodes() {
        let table = table();
        let first = table.hold(id(0, 12));
        let second = table.hold(id(7, 12));
        assert_ne!(first, second);
        assert_eq!(table.hold(id(7, 12)), second);
        assert_eq!(named(&table, first), Some(id(0, 12)));
        assert_eq!(named(&table, second), Some(id(7, 12)));
        assert_eq!(table.held(id(7, 12)), Some(second));
        assert_eq!(table.held(id(8, 12)), None);
        table.forget(first, 1);
        assert_eq!(
            table.hold(id(7, 12)),
            second,
            "it keeps its node while it has one"
        );
        table.forget(second, 3);
        assert_eq!(
            table.hold(id(7, 12)),
            NodeId(12),
            "and gets the plain one when that is free"
        );
    }

    #[test]
    fn numbers_that_would_be_mistaken_get_another() {
        let table = table();
        for number in [0, 1, NodeId::FIRST_SPARE, u64::MAX] {
            let node = table.hold(id(3, number));
            assert!(node.0 >= NodeId::FIRST_SPARE);
            assert_eq!(named(&table, node), Some(id(3, number)));
        }
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn only_what_has_no_name_is_kept_and_only_until_it_is_forgotten() {
        let fs = fs();
        let inode = fs.plant(b"f", CreateKind::Regular, 0o644).unwrap();
        let table = NodeTable::new(fs.root().unwrap());
        let nobody = NodeId(inode.id().number);
        table.keep(nobody, &inode);
        assert_eq!(Arc::strong_count(&inode), 1, "nobody holds it");
        for ends_by_forgetting in [true, false] {
            let node = table.hold(inode.id());
            assert_eq!(Arc::strong_count(&inode), 1);
            table.keep(node, &inode);
            assert!(matches!(table.get(node), Some(Known::Kept(_))));
            assert_eq!(Arc::strong_count(&inode), 2);
            if ends_by_forgetting {
                table.forget(node, 1);
            } else {
                table.clear();
            }
            assert_eq!(Arc::strong_count(&inode), 1);
            assert!(table.get(node).is_none());
        }
    }
}
