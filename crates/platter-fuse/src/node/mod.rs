//! The inodes the kernel knows by a number, and the lookup count of each.

mod lookups;

use std::sync::Arc;

use hashbrown::HashMap;
use platter_vfs::lock::{Mutex, rank};
use platter_vfs::{Filesystem, Inode, InodeId, Result};

use self::lookups::{Lookups, Node};

/// The number by which the kernel names an inode: the number that the filesystem shows for it, where the
/// kernel has no other use for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u64);

impl NodeId {
    /// The root directory.
    pub(crate) const ROOT: Self = Self(1);

    /// From here on up are the ids of inodes whose shown number cannot be one.
    const FIRST_SPARE: u64 = 3 << 62;

    /// The node id that is the shown number of an inode, unless the number is reserved.
    fn of_number(number: u64) -> Option<Self> {
        (Self::ROOT.0 + 1..Self::FIRST_SPARE)
            .contains(&number)
            .then_some(Self(number))
    }

    fn is_spare(self) -> bool {
        self.0 >= Self::FIRST_SPARE
    }
}

/// Independent parts of the table. A power of two.
const SHARDS: usize = 16;

/// The inodes the kernel holds. One that has a name is found again by its id whenever it is asked for, so
/// that as many as the kernel likes to hold take little memory; one that has none is kept alive until the
/// kernel forgets it, so that an unlinked file stays readable for processes that have it open.
///
/// # Invariants
/// - The root is always there.
/// - An inode has one node id as long as it is in the table.
#[derive(Debug)]
pub(crate) struct NodeTable {
    fs: Arc<dyn Filesystem>,
    root: Arc<dyn Inode>,
    /// Node id to inode id.
    shards: [Mutex<Shard, { rank(1, 2) }>; SHARDS],
    /// Node ids to be used again.
    spare: Mutex<SpareIds, { rank(1, 1) }>,
}

#[derive(Debug, Default)]
struct Shard {
    nodes: Lookups,
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

/// Ids of inodes whose shown number cannot be one. Hardly any filesystem has such inodes.
#[derive(Debug, Default)]
struct SpareIds {
    given: u64,
    by_inode: HashMap<InodeId, NodeId>,
    by_node: HashMap<NodeId, InodeId>,
}

impl NodeTable {
    pub(crate) fn new(fs: Arc<dyn Filesystem>) -> Result<Self> {
        Ok(Self {
            root: fs.root()?,
            fs,
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            spare: Mutex::new(SpareIds::default()),
        })
    }

    /// What a node the kernel holds stands for.
    pub(crate) fn get(&self, node: NodeId) -> Option<Known> {
        if node == NodeId::ROOT {
            return Some(Known::Kept(Arc::clone(&self.root)));
        }
        let id = self.id_of(node)?;
        let shard = self.shard(node).lock();
        shard.nodes.get(node)?;
        Some(match shard.nameless.get(&node) {
            Some(inode) => Known::Kept(Arc::clone(inode)),
            None => Known::Named(id),
        })
    }

    /// The inode that a node stands for, whether the kernel holds it or not.
    pub(crate) fn id_of(&self, node: NodeId) -> Option<InodeId> {
        if node == NodeId::ROOT {
            return Some(self.root.id());
        }
        if node.is_spare() {
            return self.spare.lock().by_node.get(&node).copied();
        }
        self.fs.inode_shown_as(node.0)
    }

    /// The node of an inode, if the kernel holds it.
    pub(crate) fn held(&self, id: InodeId) -> Option<NodeId> {
        if id == self.root.id() {
            return Some(NodeId::ROOT);
        }
        let node = NodeId::of_number(self.fs.shown_number(id));
        let node = node.or_else(|| self.spare.lock().by_inode.get(&id).copied())?;
        let is_held = self.shard(node).lock().nodes.get(node).is_some();
        is_held.then_some(node)
    }

    /// Keeps an inode that has lost its last name, or has none yet, until the kernel forgets it.
    pub(crate) fn keep(&self, node: NodeId, inode: &Arc<dyn Inode>) {
        let mut shard = self.shard(node).lock();
        if shard.nodes.get(node).is_some() {
            shard.nameless.insert(node, Arc::clone(inode));
        }
    }

    /// Records that the attributes of a node are about to be sent to the kernel.
    pub(crate) fn note_attr_sent(&self, node: NodeId) {
        if let Some(node) = self.shard(node).lock().nodes.get_mut(node) {
            node.note_attr_sent();
        }
    }

    /// Returns whether a node's attributes were sent to the kernel since
    /// [`take_attr_sent`](Self::take_attr_sent) was last called.
    pub(crate) fn is_attr_sent(&self, node: NodeId) -> bool {
        let shard = self.shard(node).lock();
        let kept = shard.nodes.get(node);
        kept.is_none_or(|kept| kept.is_attr_sent())
    }

    /// Returns whether a node's attributes were sent to the kernel since the last call.
    pub(crate) fn take_attr_sent(&self, node: NodeId) -> bool {
        let mut shard = self.shard(node).lock();
        shard.nodes.get_mut(node).is_some_and(Node::take_attr_sent)
    }

    /// Returns the node of an inode that is about to be sent to the kernel, and counts a lookup of it.
    pub(crate) fn hold(&self, id: InodeId) -> NodeId {
        if id == self.root.id() {
            return NodeId::ROOT;
        }
        if let Some(node) = NodeId::of_number(self.fs.shown_number(id)) {
            self.shard(node).lock().nodes.hold(node);
            return node;
        }
        let mut spare = self.spare.lock();
        let next = NodeId(NodeId::FIRST_SPARE + spare.given);
        let node = *spare.by_inode.entry(id).or_insert(next);
        if node == next {
            spare.given += 1;
            spare.by_node.insert(node, id);
        }
        self.shard(node).lock().nodes.hold(node);
        node
    }

    /// Subtracts `lookups`, which the kernel forgot, from the lookup count of `node`.
    pub(crate) fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node).lock();
        if !shard.nodes.forget(node, lookups) {
            return;
        }
        let nameless = shard.nameless.remove(&node);
        drop(shard);
        if node.is_spare() {
            self.forget_spare(node);
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

    /// Releases all inodes, when the kernel is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
    }

    /// Takes back a spare id, unless the kernel has looked it up again.
    fn forget_spare(&self, node: NodeId) {
        let mut spare = self.spare.lock();
        if self.shard(node).lock().nodes.get(node).is_some() {
            return;
        }
        if let Some(id) = spare.by_node.remove(&node) {
            spare.by_inode.remove(&id);
        }
    }

    fn shard(&self, node: NodeId) -> &Mutex<Shard, { rank(1, 2) }> {
        let mixed = lookups::block_of(node).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use platter_memfs::{MemFs, MemFsLimits};
    use platter_vfs::{CreateKind, Description, FixedClock, ShownNumbers, StatFs, Timestamp};

    use super::*;

    fn fs() -> MemFs {
        let clock = FixedClock::new(Timestamp::default(), 0);
        MemFs::new(Arc::new(clock), MemFsLimits::default())
    }

    fn table() -> NodeTable {
        NodeTable::new(Arc::new(fs())).unwrap()
    }

    /// A filesystem of several trees, as far as its numbers go.
    #[derive(Debug)]
    struct Trees(MemFs, ShownNumbers);

    impl Filesystem for Trees {
        fn describe(&self) -> Description {
            self.0.describe()
        }

        fn is_read_only(&self) -> bool {
            true
        }

        fn root(&self) -> Result<Arc<dyn Inode>> {
            self.0.root()
        }

        fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
            self.0.inode(id)
        }

        fn shown_number(&self, id: InodeId) -> u64 {
            self.1.shown(id)
        }

        fn inode_shown_as(&self, number: u64) -> Option<InodeId> {
            self.1.inode(number)
        }

        fn stat_fs(&self) -> Result<StatFs> {
            self.0.stat_fs()
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn unmount(&self) -> Result<()> {
            Ok(())
        }
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
    fn an_inode_is_held_once_for_each_lookup() {
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
        let trees = Trees(fs(), ShownNumbers::new(0, [7]));
        let table = NodeTable::new(Arc::new(trees)).unwrap();
        let first = table.hold(id(0, 12));
        let second = table.hold(id(7, 12));
        let listed = table.hold(id(7, 1 << 50));
        assert_eq!((first, second), (NodeId(12), NodeId((1 << 48) + 12)));
        assert_eq!(table.hold(id(7, 12)), second);
        assert_eq!(named(&table, first), Some(id(0, 12)));
        assert_eq!(named(&table, second), Some(id(7, 12)));
        assert_eq!(named(&table, listed), Some(id(7, 1 << 50)));
        assert_eq!(table.held(id(7, 12)), Some(second));
        assert_eq!(table.held(id(8, 12)), None);
        table.forget(first, 1);
        assert_eq!(table.hold(id(7, 12)), second);
        assert_eq!(table.id_of(first), Some(id(0, 12)), "a handle finds it");
    }

    #[test]
    fn numbers_that_the_kernel_reserves_get_spare_nodes() {
        let table = table();
        let numbers = [0, 1, NodeId::FIRST_SPARE, u64::MAX].map(|number| id(0, number));
        // The root of this filesystem has number 1.
        let numbers = numbers.map(|id| {
            if id.number == 1 {
                InodeId { tree: 3, ..id }
            } else {
                id
            }
        });
        let nodes = numbers.map(|id| table.hold(id));
        assert_eq!(nodes.map(NodeId::is_spare), [true; 4]);
        assert_eq!(numbers.map(|id| table.hold(id)), nodes);
        assert_eq!(nodes.map(|node| named(&table, node)), numbers.map(Some));
        assert_eq!(numbers.map(|id| table.held(id)), nodes.map(Some));
        assert_eq!(table.len(), 4);
        for node in nodes {
            table.forget(node, 2);
            assert_eq!(table.id_of(node), None);
        }
        assert_ne!(
            table.hold(numbers[0]),
            nodes[0],
            "no spare id is given twice"
        );
    }

    #[test]
    fn only_what_has_no_name_is_kept_and_only_until_it_is_forgotten() {
        let fs = Arc::new(fs());
        let inode = fs.plant(b"f", CreateKind::Regular, 0o644).unwrap();
        let table = NodeTable::new(fs).unwrap();
        let unheld = NodeId(inode.id().number);
        table.keep(unheld, &inode);
        assert_eq!(Arc::strong_count(&inode), 1, "the kernel does not hold it");
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
