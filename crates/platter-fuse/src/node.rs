//! The inodes the kernel knows by a number, and how often it was told of each.

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use platter_vfs::lock_rank::{LockRank, RankedMutex};
use platter_vfs::{Inode, InodeId};

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

/// The inodes the kernel holds, each kept alive until it forgets it, so that an unlinked file stays
/// readable for whoever has it open.
///
/// # Invariants
/// - The root is always there.
/// - An inode has one node id as long as it is in the table.
#[derive(Debug)]
pub(crate) struct NodeTable {
    root: Arc<dyn Inode>,
    shards: [RankedMutex<HashMap<NodeId, Node>>; SHARDS],
    spare: RankedMutex<SpareIds>,
}

#[derive(Debug)]
struct Node {
    inode: Arc<dyn Inode>,
    /// How often the kernel was told of it and did not forget it since.
    lookups: u64,
    /// The kernel was told of its attributes since it was last told to drop them.
    is_attr_told: bool,
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
            shards: std::array::from_fn(|_| RankedMutex::new(LockRank::NodeTable, HashMap::new())),
            spare: RankedMutex::new(LockRank::NodeNumbers, SpareIds::default()),
        }
    }

    /// The inode of a node the kernel holds.
    pub(crate) fn get(&self, node: NodeId) -> Option<Arc<dyn Inode>> {
        if node == NodeId::ROOT {
            return Some(Arc::clone(&self.root));
        }
        let shard = self.shard(node).lock();
        shard.get(&node).map(|node| Arc::clone(&node.inode))
    }

    /// Notes that the kernel is about to be told of the attributes of a node.
    pub(crate) fn note_attr_told(&self, node: NodeId) {
        if let Some(node) = self.shard(node).lock().get_mut(&node) {
            node.is_attr_told = true;
        }
    }

    /// Whether the kernel was told of a node's attributes since [that was taken](Self::take_attr_told).
    pub(crate) fn is_attr_told(&self, node: NodeId) -> bool {
        let shard = self.shard(node).lock();
        shard.get(&node).is_none_or(|node| node.is_attr_told)
    }

    /// Whether the kernel was told of a node's attributes since this was asked last.
    pub(crate) fn take_attr_told(&self, node: NodeId) -> bool {
        let mut shard = self.shard(node).lock();
        shard
            .get_mut(&node)
            .is_some_and(|node| std::mem::take(&mut node.is_attr_told))
    }

    /// The node of an inode the kernel is about to be told of, held once more.
    pub(crate) fn hold(&self, inode: &Arc<dyn Inode>) -> NodeId {
        let id = inode.id();
        if id == self.root.id() {
            return NodeId::ROOT;
        }
        let node = NodeId(id.number);
        let own_number = node > NodeId::ROOT && node.0 < NodeId::FIRST_SPARE;
        // An inode that has a spare id keeps it, though its own number may be free by now.
        let mut spare = self.spare.lock();
        if let Some(&node) = spare.by_inode.get(&id) {
            let held = self.try_hold(node, inode);
            assert!(held, "a spare id belongs to one inode");
            return node;
        }
        if own_number && self.try_hold(node, inode) {
            return node;
        }
        let node = NodeId(NodeId::FIRST_SPARE + spare.given);
        spare.given += 1;
        spare.by_inode.insert(id, node);
        let held = self.try_hold(node, inode);
        assert!(held, "a spare id is given once");
        node
    }

    /// The kernel forgot `lookups` of the times it was told of `node`.
    pub(crate) fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node).lock();
        let Entry::Occupied(mut entry) = shard.entry(node) else {
            return;
        };
        let held = entry.get_mut();
        held.lookups = held.lookups.saturating_sub(lookups);
        if held.lookups > 0 {
            return;
        }
        let forgotten = entry.remove();
        drop(shard);
        if node.0 >= NodeId::FIRST_SPARE {
            self.forget_spare(forgotten.inode.id());
        }
        // Dropping the last user of an unlinked file frees it, which must not happen under a lock.
        drop(forgotten);
    }

    /// How many inodes the kernel holds, the root left out.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Lets go of all inodes, when the kernel is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
    }

    /// Counts the inode in as `node`, unless that stands for another inode.
    fn try_hold(&self, node: NodeId, inode: &Arc<dyn Inode>) -> bool {
        let mut shard = self.shard(node).lock();
        match shard.entry(node) {
            Entry::Vacant(entry) => {
                let inode = Arc::clone(inode);
                entry.insert(Node {
                    inode,
                    lookups: 1,
                    is_attr_told: true,
                });
                true
            }
            Entry::Occupied(mut entry) if entry.get().inode.id() == inode.id() => {
                let node = entry.get_mut();
                node.lookups += 1;
                node.is_attr_told = true;
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn forget_spare(&self, id: InodeId) {
        let mut spare = self.spare.lock();
        let Some(&node) = spare.by_inode.get(&id) else {
            return;
        };
        if !self.shard(node).lock().contains_key(&node) {
            spare.by_inode.remove(&id);
        }
    }

    fn shard(&self, node: NodeId) -> &RankedMutex<HashMap<NodeId, Node>> {
        let mixed = node.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use platter_vfs::memory::{MemFs, MemFsLimits};
    use platter_vfs::{
        Attr, CreateKind, DirCursor, DirSink, ExtentSink, Filesystem, FixedClock, Name, Result,
        SeekTarget, Timestamp,
    };

    use super::*;

    fn fs() -> MemFs {
        let clock = FixedClock::new(Timestamp::default(), 0);
        MemFs::new(Arc::new(clock), MemFsLimits::default())
    }

    fn table() -> NodeTable {
        NodeTable::new(fs().root().unwrap())
    }

    /// An inode of which only the id matters.
    fn inode(tree: u64, number: u64) -> Arc<dyn Inode> {
        Arc::new(OnlyId(InodeId { tree, number }))
    }

    #[derive(Debug)]
    struct OnlyId(InodeId);

    impl Inode for OnlyId {
        fn id(&self) -> InodeId {
            self.0
        }

        fn attr(&self) -> Result<Attr> {
            unreachable!("the table asks for the id alone")
        }

        fn lookup(&self, _: Name<'_>) -> Result<Arc<dyn Inode>> {
            unreachable!("the table asks for the id alone")
        }

        fn read_dir(&self, _: DirCursor, _: &mut DirSink<'_>) -> Result<()> {
            unreachable!("the table asks for the id alone")
        }

        fn read_link(&self) -> Result<Vec<u8>> {
            unreachable!("the table asks for the id alone")
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
            unreachable!("the table asks for the id alone")
        }

        fn seek(&self, _: u64, _: SeekTarget) -> Result<u64> {
            unreachable!("the table asks for the id alone")
        }

        fn extents(&self, _: Range<u64>, _: &mut ExtentSink<'_>) -> Result<()> {
            unreachable!("the table asks for the id alone")
        }

        fn get_xattr(&self, _: &[u8]) -> Result<Vec<u8>> {
            unreachable!("the table asks for the id alone")
        }

        fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
            unreachable!("the table asks for the id alone")
        }
    }

    #[test]
    fn an_inode_is_held_as_often_as_it_was_told_of() {
        let table = table();
        let node = table.hold(&inode(0, 12));
        assert_eq!(node, NodeId(12));
        assert_eq!(table.hold(&inode(0, 12)), node);
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
        let root = table.get(NodeId::ROOT).unwrap();
        assert_eq!(table.hold(&root), NodeId::ROOT);
        table.forget(NodeId::ROOT, 100);
        assert!(table.get(NodeId::ROOT).is_some());
    }

    #[test]
    fn inodes_of_one_number_in_two_trees_have_two_nodes() {
        let table = table();
        let first = table.hold(&inode(0, 12));
        let second = table.hold(&inode(7, 12));
        assert_ne!(first, second);
        assert_eq!(table.hold(&inode(7, 12)), second);
        assert_eq!(
            table.get(second).unwrap().id(),
            InodeId {
                tree: 7,
                number: 12
            }
        );
        table.forget(first, 1);
        assert_eq!(
            table.hold(&inode(7, 12)),
            second,
            "it keeps its node while it has one"
        );
        table.forget(second, 3);
        assert_eq!(
            table.hold(&inode(7, 12)),
            NodeId(12),
            "and gets the plain one when that is free"
        );
    }

    #[test]
    fn numbers_that_would_be_mistaken_get_another() {
        let table = table();
        for number in [0, 1, NodeId::FIRST_SPARE, u64::MAX] {
            let node = table.hold(&inode(3, number));
            assert!(node.0 >= NodeId::FIRST_SPARE);
            assert_eq!(table.get(node).unwrap().id(), InodeId { tree: 3, number });
        }
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn a_forgotten_inode_is_let_go_of() {
        let fs = fs();
        let inode = fs.plant(b"f", CreateKind::Regular, 0o644).unwrap();
        let table = NodeTable::new(fs.root().unwrap());
        let held = Arc::downgrade(&inode);
        let node = table.hold(&inode);
        drop(inode);
        assert!(held.upgrade().is_some());
        table.forget(node, 1);
        assert!(held.upgrade().is_none());
        let inode = fs.plant(b"g", CreateKind::Regular, 0o644).unwrap();
        let held = Arc::downgrade(&inode);
        table.hold(&inode);
        drop(inode);
        table.clear();
        assert!(held.upgrade().is_none());
    }
}
