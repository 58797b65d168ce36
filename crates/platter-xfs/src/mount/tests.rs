//! Filesystems whose blocks are valid each, but contradict each other: what changes such blocks fails alone, and the
//! mount goes on. And what is read before it reaches the device.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::OnceLock;

use platter_block::MemoryDevice;
use platter_block::sim::Recorder;
use platter_ondisk::{Rule, Uuid};
use platter_vfs::{CheckSink, Context, CreateKind, Finding, FixedClock, Inode, Name, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::context::tests::broken_rule;
use crate::directory::DirectoryRule;
use crate::mapping::{Backing, ForkMap};
use crate::mkfs::{LEN_BYTES_MIN, MkfsOptions, Target, mkfs};
use crate::ondisk::agi::{AgiRule, DiskAgi, UNLINKED_BUCKETS};
use crate::ondisk::btree::{
    BtreeKind, DiskInodeChunk, DiskMapping, DiskShortHeaderV5, checksum_offset,
};
use crate::ondisk::da::{
    self, DaKind, DaNode, DaNodeRule, DiskDaEntry, DiskDaHeaderV5, DiskDaNodeCounts,
};
use crate::ondisk::dir::build;
use crate::ondisk::dir::free::DirFreeRule;
use crate::ondisk::dir::leaf::DirLeaf;
use crate::ondisk::inode::DiskInodeV3;
use crate::ondisk::{AgNr, FileBlock, FsBlock, Mapping, Site, checksum, dir};
use crate::tree::TreeRule;
use crate::txn::{LogDevice, find_position};

const BLOCK: usize = 4096;
/// So many names take two leaves.
const NAMES: usize = 700;

pub(super) fn clock() -> Arc<FixedClock> {
    Arc::new(FixedClock::new(Timestamp::default(), 1))
}

pub(super) fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(16 << 20))
}

pub(super) fn new_device() -> Arc<dyn BlockDevice> {
    device_of(&MkfsOptions::new(Uuid::from_bytes([7; 16])))
}

pub(super) fn device_of(options: &MkfsOptions) -> Arc<dyn BlockDevice> {
    let len = usize::try_from(LEN_BYTES_MIN).unwrap();
    let device = MemoryDevice::new("memory", vec![0; len]);
    let target = Target {
        device: &device,
        log: None,
        is_zero: true,
    };
    mkfs(&target, options, &*clock()).unwrap();
    Arc::new(device)
}

/// A layer above a device, which stays as it is.
fn layer_above(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let options = OverlayOptions::default();
    Arc::new(OverlayDevice::new(Arc::clone(device), options))
}

pub(super) fn mount(device: &Arc<dyn BlockDevice>) -> Xfs {
    let options = MountOptions::default();
    Xfs::mount_writable(Arc::clone(device), &options, budget(), clock()).unwrap()
}

pub(super) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

struct Findings(Vec<String>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding.corruption.to_string());
        ControlFlow::Continue(())
    }
}

/// A check finds nothing.
pub(super) fn assert_sound(device: &Arc<dyn BlockDevice>, context: &str) {
    let mut findings = Findings(Vec::new());
    let options = MountOptions::default();
    crate::check::check(device, &options, &budget(), &mut findings).unwrap();
    assert!(findings.0.is_empty(), "{context}: {:?}", findings.0);
}

fn hash(name: &str) -> u32 {
    da::hash(name.as_bytes())
}

pub(super) fn create(parent: &dyn Inode, text: &str, kind: CreateKind) -> Result<Arc<dyn Inode>> {
    parent.create(&Context::root(), name(text), kind, 0o755)
}

fn is_missing(parent: &dyn Inode, text: &str) -> bool {
    let found = parent.lookup(name(text));
    matches!(
        found,
        Err(platter_vfs::Error::Condition(Condition::NotFound))
    )
}

/// A block of the filesystem on the device, changed and sealed.
pub(super) fn change_block(
    device: &dyn BlockDevice,
    at: u64,
    (len, sum): (usize, usize),
    change: impl FnOnce(&mut [u8]),
) {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).unwrap();
    change(&mut bytes);
    checksum::seal(&mut bytes, sum);
    device.write_at(at, &bytes).unwrap();
}

/// A directory with a node and two leaves.
struct Directory {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    number: InodeNr,
    /// Where the node and the leaves lie.
    node: FsBlock,
    leaves: [FsBlock; 2],
    /// The hashes of each leaf.
    hashes: [Vec<u32>; 2],
}

impl Directory {
    /// The directory `many` of a device that is the same for all tests, next to an empty one.
    fn device() -> &'static Arc<dyn BlockDevice> {
        static DEVICE: OnceLock<Arc<dyn BlockDevice>> = OnceLock::new();
        DEVICE.get_or_init(|| {
            let device = new_device();
            let xfs = mount(&device);
            let root = xfs.root().unwrap();
            create(&*root, "other", CreateKind::Directory).unwrap();
            let many = create(&*root, "many", CreateKind::Directory).unwrap();
            for name in Self::names() {
                create(&*many, &name, CreateKind::Regular).unwrap();
            }
            drop((root, many));
            xfs.unmount().unwrap();
            device
        })
    }

    fn new() -> Self {
        let device = layer_above(Self::device());
        let xfs = Xfs::mount(Arc::clone(&device), &MountOptions::default(), budget()).unwrap();
        let many = xfs.root().unwrap().lookup(name("many")).unwrap();
        let number = InodeNr::new(many.id().number).unwrap();
        let context = xfs.context();
        let geometry = context.geometry().clone();
        let inode = inode::read(context, number).unwrap();
        let map = ForkMap::of_data(context, &inode).unwrap();
        let place = |block: u64| {
            let run = map.lookup(context, FileBlock(block)).unwrap();
            let Backing::Written(start) = run.backing else {
                panic!("block {block} is not mapped");
            };
            FsBlock(start)
        };
        let node = place(dir::leaf_start(&geometry).0);
        let children = node_entries(&read(&*device, &geometry, node));
        assert_eq!(children.len(), 2);
        let leaves = [0, 1].map(|index: usize| place(children[index].1.into()));
        let hashes: [Vec<u32>; 2] = leaves.map(|leaf| {
            let site = Site::new(&geometry, geometry.basic_block(leaf), number.get());
            let bytes = read(&*device, &geometry, leaf);
            let leaf = DirLeaf::decode(&bytes, DaKind::DirLeafN, &site).unwrap();
            leaf.entries.iter().map(|entry| entry.hash.get()).collect()
        });
        Self {
            device,
            geometry,
            number,
            node,
            leaves,
            hashes,
        }
    }

    /// The names of the directory. The hash of one is greater than those of all others by more than one.
    fn names() -> Vec<String> {
        let mut names: Vec<String> = (0..NAMES).map(|index| format!("name-{index}")).collect();
        let greatest = names.iter().map(|name| hash(name)).max().unwrap();
        let mut others = (0..).map(|index| format!("last-{index}"));
        names.extend(others.find(|name| hash(name) > greatest + 1));
        names
    }

    /// A name of the directory whose hash is within a range.
    fn name_within(hashes: &RangeInclusive<u32>) -> String {
        let mut names = Self::names().into_iter();
        names.find(|name| hashes.contains(&hash(name))).unwrap()
    }

    /// Changes what the node says are the greatest hashes below its children.
    fn set_node(&self, hashes: [u32; 2]) {
        let children = self.children().map(|(_, child)| child);
        let [first, second] = [0, 1].map(|index: usize| (hashes[index], children[index]));
        self.set_children(&[first, second]);
    }

    /// The greatest hashes below the children of the node, and the children.
    fn children(&self) -> [(u32, u32); 2] {
        let bytes = read(&*self.device, &self.geometry, self.node);
        node_entries(&bytes).try_into().unwrap()
    }

    fn set_children(&self, children: &[(u32, u32)]) {
        self.rebuild(self.node, |bytes, site| {
            let node = DaNode::decode(bytes, site).unwrap();
            build::node(children, node.level, node.links, site)
        });
    }

    /// Makes the greatest hash of the first leaf the least one of the second, and returns it.
    fn share_hash(&self) -> u32 {
        let shared = self.hashes[1][0];
        self.rebuild(self.leaves[0], |bytes, site| {
            let leaf = DirLeaf::decode(bytes, DaKind::DirLeafN, site).unwrap();
            let entries = leaf.entries.iter();
            let entries = entries.map(|entry| (entry.hash.get(), entry.address.get()));
            let mut entries: Vec<(u32, u32)> = entries.collect();
            entries.last_mut().unwrap().0 = shared;
            build::leaf(&entries, leaf.links, site)
        });
        shared
    }

    /// Builds a block of the hash tree anew.
    fn rebuild(&self, block: FsBlock, make: impl FnOnce(&[u8], &Site<'_>) -> Option<Vec<u8>>) {
        let geometry = &self.geometry;
        let site = Site::new(geometry, geometry.basic_block(block), self.number.get());
        let mut bytes = make(&read(&*self.device, geometry, block), &site).unwrap();
        checksum::seal(&mut bytes, DiskDaHeaderV5::CHECKSUM_OFFSET);
        let at = geometry.byte_offset(block);
        self.device.write_at(at, &bytes).unwrap();
    }

    /// Changes the mapping of the free index.
    fn remap_free_index(&self, change: impl FnOnce(Mapping) -> Mapping) {
        let geometry = &self.geometry;
        let free = dir::free_start(geometry);
        let place = geometry.locate_inode(self.number).unwrap();
        let block = geometry.fs_block(place.ag, place.block);
        let at = geometry.byte_offset(block) + place.offset as u64;
        let size = usize::try_from(geometry.inode_bytes()).unwrap();
        let sum = DiskInodeV3::CHECKSUM_OFFSET;
        change_block(&*self.device, at, (size, sum), |bytes| {
            let (_, literal) = DiskInodeV3::mut_from_prefix(bytes).unwrap();
            let mut slots = literal.chunks_exact_mut(size_of::<DiskMapping>());
            let found = slots.find_map(|slot| {
                let mapping = Mapping::unpack(DiskMapping::ref_from_bytes(slot).unwrap());
                (mapping.offset == free).then_some((slot, mapping))
            });
            let (slot, mapping) = found.expect("the mappings are in the inode");
            slot.copy_from_slice(change(mapping).pack().unwrap().as_bytes());
        });
    }

    /// Asserts that `change` of the directory fails so, and that nothing has changed and all else goes on.
    fn assert_fails_alone(&self, change: impl FnOnce(&dyn Inode) -> Result<()>, rule: &str) {
        let blocks = [self.node, self.leaves[0], self.leaves[1]];
        let before = blocks.map(|block| read(&*self.device, &self.geometry, block));
        let xfs = mount(&self.device);
        let root = xfs.root().unwrap();
        let many = root.lookup(name("many")).unwrap();
        let other = root.lookup(name("other")).unwrap();
        let attr = many.attr().unwrap();
        assert_eq!(broken_rule(change(&*many)), rule);
        assert_eq!(many.attr().unwrap(), attr);
        let made = create(&*other, "after", CreateKind::Regular).unwrap();
        made.sync(false).unwrap();
        xfs.sync().unwrap();
        assert!(!xfs.is_read_only());
        drop((root, many, other, made));
        xfs.unmount().unwrap();
        let after = blocks.map(|block| read(&*self.device, &self.geometry, block));
        assert!(before == after);
        let xfs = mount(&self.device);
        let other = xfs.root().unwrap().lookup(name("other")).unwrap();
        other.lookup(name("after")).unwrap();
        drop(other);
        xfs.unmount().unwrap();
    }
}

fn read(device: &dyn BlockDevice, geometry: &Geometry, block: FsBlock) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    device
        .read_at(geometry.byte_offset(block), &mut bytes)
        .unwrap();
    bytes
}

/// The hashes of a node, and its children.
fn node_entries(bytes: &[u8]) -> Vec<(u32, u32)> {
    let (_, rest) = DiskDaHeaderV5::ref_from_prefix(bytes).unwrap();
    let (counts, rest) = DiskDaNodeCounts::ref_from_prefix(rest).unwrap();
    let count = usize::from(counts.count.get());
    let (entries, _) = <[DiskDaEntry]>::ref_from_prefix_with_elems(&rest[4..], count).unwrap();
    let entries = entries.iter();
    entries
        .map(|entry| (entry.hash.get(), entry.child.get()))
        .collect()
}

#[test]
fn leaf_beyond_the_hash_of_the_next_one_gets_no_name() {
    let directory = Directory::new();
    let hashes = &directory.hashes[0];
    let (tenth, next) = (hashes[10], hashes[11]);
    assert!(next < hashes[hashes.len() - 1]);
    directory.set_node([tenth, next]);
    let mut names = (0..).map(|index| format!("new-{index}"));
    let new = names.find(|name| hash(name) <= tenth).unwrap();
    let add = |many: &dyn Inode| {
        assert!(is_missing(many, &new));
        let added = create(many, &new, CreateKind::Regular).map(drop);
        assert!(is_missing(many, &new));
        added
    };
    directory.assert_fails_alone(add, DaNodeRule::Order.text());
}

#[test]
fn leaf_below_the_hash_of_the_one_before_keeps_its_names() {
    let directory = Directory::new();
    let hashes = &directory.hashes[1];
    let last = hashes[hashes.len() - 1];
    assert!(hashes[hashes.len() - 2] < last - 1);
    // All hashes of the second leaf but the last one are below what the node says of the first leaf.
    directory.set_node([last - 1, last]);
    let gone = Directory::name_within(&(last..=last));
    let remove = |many: &dyn Inode| {
        let removed = many.unlink(&Context::root(), name(&gone));
        many.lookup(name(&gone)).unwrap();
        removed
    };
    directory.assert_fails_alone(remove, DaNodeRule::Order.text());
}

#[test]
fn leaf_that_is_mapped_as_the_free_index_too_keeps_its_names() {
    let directory = Directory::new();
    directory.remap_free_index(|mapping| Mapping {
        start: directory.leaves[0].0,
        ..mapping
    });
    let gone = Directory::name_within(&(0..=directory.hashes[0][10]));
    let remove = |many: &dyn Inode| {
        let removed = many.unlink(&Context::root(), name(&gone));
        many.lookup(name(&gone)).unwrap();
        removed
    };
    directory.assert_fails_alone(remove, "multiply-claimed block");
}

#[test]
fn free_index_of_no_entries_gets_no_name() {
    let directory = Directory::new();
    directory.remap_free_index(|mapping| Mapping {
        offset: FileBlock(FileBlock::MAX.0 - mapping.count),
        ..mapping
    });
    let add = |many: &dyn Inode| {
        let added = create(many, "new", CreateKind::Regular).map(drop);
        assert!(is_missing(many, "new"));
        added
    };
    directory.assert_fails_alone(add, DirectoryRule::FreeIndex.text());
}

#[test]
fn free_index_in_the_place_of_another_is_corrupt() {
    let directory = Directory::new();
    directory.remap_free_index(|mapping| Mapping {
        offset: FileBlock(mapping.offset.0 + 1),
        ..mapping
    });
    let add = |many: &dyn Inode| create(many, "new", CreateKind::Regular).map(drop);
    directory.assert_fails_alone(add, DirFreeRule::First.text());
}

/// Asserts that no name is removed where the tree leads to the first leaf, then to what `again` says, then to the
/// second one, with a name whose hash both leaves have.
fn assert_cycle(again: impl FnOnce(&Directory) -> u32) {
    let directory = Directory::new();
    let shared = directory.share_hash();
    let last = directory.hashes[1].last().unwrap();
    let [first, second] = directory.children().map(|(_, child)| child);
    let again = again(&directory);
    directory.set_children(&[(shared, first), (shared, again), (*last, second)]);
    let gone = Directory::name_within(&(shared..=shared));
    let remove = |many: &dyn Inode| many.unlink(&Context::root(), name(&gone));
    directory.assert_fails_alone(remove, DaNodeRule::Cycle.text());
}

#[test]
fn leaf_that_the_tree_leads_to_again_is_a_cycle() {
    assert_cycle(|directory| directory.children()[0].1);
}

#[test]
fn leaf_that_is_mapped_again_is_a_cycle() {
    assert_cycle(|directory| {
        let blocks = directory.children().map(|(_, child)| child);
        let other = blocks.into_iter().max().unwrap() + 1;
        directory.remap_free_index(|mapping| Mapping {
            offset: FileBlock(other.into()),
            start: directory.leaves[0].0,
            ..mapping
        });
        other
    });
}

#[test]
fn name_goes_where_a_free_index_is_gone() {
    const BLOCK_BYTES: u32 = 1024;
    // Entries of so long names fill a block of entries, and 480 of those a free index.
    const NAMES_PER_BLOCK: usize = 3;
    const BLOCKS_PER_INDEX: usize = 480;
    let device = device_of(&MkfsOptions {
        block_bytes: Some(BLOCK_BYTES),
        dir_block_bytes: Some(BLOCK_BYTES),
        ..MkfsOptions::new(Uuid::from_bytes([7; 16]))
    });
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let many = create(&*root, "many", CreateKind::Directory).unwrap();
    let names: Vec<String> = (0..(2 * BLOCKS_PER_INDEX + 1) * NAMES_PER_BLOCK)
        .map(|index| format!("{index:0255}"))
        .collect();
    let file = create(&*root, "file", CreateKind::Regular).unwrap();
    let link = |text: &str| many.link(&Context::root(), name(text), file.id());
    for text in &names {
        link(text).unwrap();
    }
    let number = InodeNr::new(many.id().number).unwrap();
    let free_indexes = || {
        let context = xfs.context();
        let start = dir::free_start(context.geometry());
        let inode = inode::read(context, number).unwrap();
        let map = ForkMap::of_data(context, &inode).unwrap();
        [0, 1, 2].map(|index| {
            let run = map.lookup(context, FileBlock(start.0 + index)).unwrap();
            matches!(run.backing, Backing::Written(_))
        })
    };
    assert_eq!(free_indexes(), [true, true, true]);
    let second = BLOCKS_PER_INDEX * NAMES_PER_BLOCK..2 * BLOCKS_PER_INDEX * NAMES_PER_BLOCK;
    for text in &names[second] {
        many.unlink(&Context::root(), name(text)).unwrap();
    }
    assert_eq!(free_indexes(), [true, false, true]);
    let new = "n".repeat(255);
    link(&new).unwrap();
    assert_eq!(free_indexes(), [true, true, true]);
    many.lookup(name(&new)).unwrap();
    many.lookup(name(names.last().unwrap())).unwrap();
    drop((root, many, file));
    xfs.unmount().unwrap();
}

/// Makes files until the inodes of the first chunk are in use; returns the error of the one that needs another.
fn fill_chunk(xfs: &Xfs) -> (usize, Result<()>) {
    let root = xfs.root().unwrap();
    let chunks = || xfs.context().agi(AgNr(0)).unwrap().count;
    let before = chunks();
    for index in 0.. {
        let made = create(&*root, &format!("file-{index}"), CreateKind::Regular).map(drop);
        if made.is_err() || chunks() != before {
            return (index, made);
        }
    }
    unreachable!("there are no more inodes than numbers")
}

/// The records of the inode B-tree of group 0, which has one leaf.
fn chunks(bytes: &[u8]) -> &[DiskInodeChunk] {
    let (header, rest) = DiskShortHeaderV5::ref_from_prefix(bytes).unwrap();
    let count = usize::from(header.common.records.get());
    <[DiskInodeChunk]>::ref_from_prefix_with_elems(rest, count)
        .unwrap()
        .0
}

#[test]
fn stale_chunk_over_free_blocks_fails_a_new_chunk_alone() {
    let device = new_device();
    // Where the next chunk comes to lie.
    let layer = layer_above(&device);
    let xfs = mount(&layer);
    let (files, made) = fill_chunk(&xfs);
    made.unwrap();
    let geometry = xfs.context().geometry().clone();
    let inobt = xfs.context().agi(AgNr(0)).unwrap().inobt.block;
    xfs.unmount().unwrap();
    drop(xfs);
    let tree = geometry.fs_block(AgNr(0), inobt);
    let bytes = read(&*layer, &geometry, tree);
    let [first, second] = chunks(&bytes) else {
        panic!("{} chunks", chunks(&bytes).len());
    };
    assert!(first.start.get() + 64 <= second.start.get());
    let stale = DiskInodeChunk {
        start: (second.start.get() + 32).into(),
        free: 0_u64.into(),
        free_count: 0,
        ..*second
    };
    let at = geometry.byte_offset(tree);
    let sum = checksum_offset(BtreeKind::Inobt);
    change_block(&*device, at, (BLOCK, sum), |bytes| {
        let (header, rest) = DiskShortHeaderV5::mut_from_prefix(bytes).unwrap();
        assert_eq!(header.common.records.get(), 1);
        header.common.records.set(2);
        let size = size_of::<DiskInodeChunk>();
        rest[size..2 * size].copy_from_slice(stale.as_bytes());
    });

    let before = read(&*device, &geometry, tree);
    let xfs = mount(&device);
    let (failed, made) = fill_chunk(&xfs);
    assert_eq!(failed, files);
    assert_eq!(broken_rule(made), TreeRule::Order.text());
    let root = xfs.root().unwrap();
    assert!(is_missing(&*root, &format!("file-{failed}")));
    // An inode is free again for another file.
    root.unlink(&Context::root(), name("file-0")).unwrap();
    xfs.sync().unwrap();
    let made = create(&*root, "after", CreateKind::Regular).unwrap();
    made.sync(false).unwrap();
    xfs.sync().unwrap();
    assert!(!xfs.is_read_only());
    drop((root, made));
    xfs.unmount().unwrap();
    let bytes = read(&*device, &geometry, tree);
    let starts = |bytes: &[u8]| -> Vec<u32> {
        chunks(bytes)
            .iter()
            .map(|chunk| chunk.start.get())
            .collect()
    };
    assert_eq!(starts(&bytes), starts(&before));
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    root.lookup(name("after")).unwrap();
    assert!(is_missing(&*root, "file-0"));
    drop(root);
    xfs.unmount().unwrap();
}

#[test]
fn unlinked_list_without_an_end_is_left_alone() {
    let device = new_device();
    let xfs = mount(&device);
    let file = create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
    let number = InodeNr::new(file.id().number).unwrap();
    let geometry = xfs.context().geometry().clone();
    drop(file);
    xfs.unmount().unwrap();
    let (ag, inode) = geometry.split_inode(number);
    let place = geometry.locate_inode(number).unwrap();
    let block = geometry.fs_block(place.ag, place.block);
    let at = geometry.byte_offset(block) + place.offset as u64;
    let size = usize::try_from(geometry.inode_bytes()).unwrap();
    change_block(
        &*device,
        at,
        (size, DiskInodeV3::CHECKSUM_OFFSET),
        |bytes| {
            let (disk, _) = DiskInodeV3::mut_from_prefix(bytes).unwrap();
            disk.core.links.set(0);
            disk.core.next_unlinked.set(inode.0);
        },
    );
    let sector = usize::try_from(geometry.sector_bytes()).unwrap();
    let at = geometry.ag_offset(ag) + 2 * sector as u64;
    change_block(&*device, at, (sector, DiskAgi::CHECKSUM_OFFSET), |bytes| {
        let (disk, _) = DiskAgi::mut_from_prefix(bytes).unwrap();
        // As many inodes as no group has.
        disk.count.set(u32::MAX);
        disk.unlinked[inode.0 as usize % UNLINKED_BUCKETS].set(inode.0);
    });
    // What cannot be freed stays on its list.
    let xfs = mount(&device);
    let agi = xfs.context().agi(ag).unwrap();
    assert_eq!(
        agi.unlinked[inode.0 as usize % UNLINKED_BUCKETS],
        Some(inode)
    );
    let made = create(&*xfs.root().unwrap(), "after", CreateKind::Regular);
    made.unwrap();
}

/// A device with a file that has a name, contents, and a place in a list of unlinked inodes.
pub(super) fn with_linked_inode_in_list() -> (Arc<dyn BlockDevice>, AgNr, usize) {
    let device = new_device();
    let xfs = mount(&device);
    let file = create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
    file.write_at(0, &[1; 3 * BLOCK]).unwrap();
    let number = InodeNr::new(file.id().number).unwrap();
    let geometry = xfs.context().geometry().clone();
    drop(file);
    xfs.unmount().unwrap();
    let (ag, inode) = geometry.split_inode(number);
    let bucket = inode.0 as usize % UNLINKED_BUCKETS;
    let sector = usize::try_from(geometry.sector_bytes()).unwrap();
    let at = geometry.ag_offset(ag) + 2 * sector as u64;
    change_block(&*device, at, (sector, DiskAgi::CHECKSUM_OFFSET), |bytes| {
        let (disk, _) = DiskAgi::mut_from_prefix(bytes).unwrap();
        disk.unlinked[bucket].set(inode.0);
    });
    (device, ag, bucket)
}

#[test]
fn linked_inode_in_a_list_of_unlinked_ones_stays() {
    let (device, ag, bucket) = with_linked_inode_in_list();
    for _ in 0..2 {
        let xfs = mount(&device);
        let root = xfs.root().unwrap();
        let file = root.lookup(name("file")).unwrap();
        let mut contents = vec![0; 3 * BLOCK];
        assert_eq!(file.read_at(0, &mut contents).unwrap(), contents.len());
        assert_eq!(contents, [1; 3 * BLOCK]);
        assert_eq!(file.attr().unwrap().links, 1);
        assert!(root.unlink(&Context::root(), name("file")).is_err());
        // Others can be removed.
        create(&*root, "other", CreateKind::Regular).unwrap();
        root.unlink(&Context::root(), name("other")).unwrap();
        drop((root, file));
        xfs.unmount().unwrap();
        let agi = xfs.context().agi(ag).unwrap();
        assert!(agi.unlinked[bucket].is_some());
    }
}

#[test]
fn target_in_two_blocks_is_read_before_it_is_written() {
    let device = device_of(&MkfsOptions {
        block_bytes: Some(1024),
        ..MkfsOptions::new(Uuid::from_bytes([7; 16]))
    });
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let target = "t".repeat(1023);
    for index in 0..8 {
        let kind = CreateKind::Symlink(target.clone().into_bytes());
        let link = create(&*root, &format!("link-{index}"), kind).unwrap();
        assert_eq!(link.read_link().unwrap(), target.as_bytes());
    }
    xfs.sync().unwrap();
    let link = root.lookup(name("link-3")).unwrap();
    assert_eq!(link.read_link().unwrap(), target.as_bytes());
    drop((root, link));
    xfs.unmount().unwrap();
}

/// Whether a log is dirty, so that Linux frees the unlinked inodes, and whether there are some.
fn dirty_and_unlinked(device: &Arc<dyn BlockDevice>) -> (bool, bool) {
    let superblock = Xfs::identify(&**device).unwrap();
    let log = LogDevice::open(&superblock, device, None).unwrap();
    let is_dirty = find_position(&log, true).unwrap().state == LogState::Dirty;
    let skipped = MountOptions {
        recovery: Recovery::Skip,
        ..MountOptions::default()
    };
    let xfs = Xfs::mount(Arc::clone(device), &skipped, budget()).unwrap();
    let mut groups = xfs.context().geometry().groups();
    let has_unlinked = groups.any(|ag| xfs.context().agi(ag).unwrap().has_unlinked());
    (is_dirty, has_unlinked)
}

#[test]
fn unlinked_inodes_are_left_to_a_log_that_is_recovered() {
    let recorder = Recorder::new(vec![new_device()]);
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let file = create(&*root, "file", CreateKind::Regular).unwrap();
    file.write_at(0, &[1; 3 * BLOCK]).unwrap();
    root.unlink(&Context::root(), name("file")).unwrap();
    xfs.sync().unwrap();
    let at = recorder.position();
    drop((file, root));
    xfs.unmount().unwrap();
    let recording = recorder.recording();
    let crashed = recording.replay(at).unwrap().into_iter();
    let crashed = crashed.map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
    // Every cut of the mount that recovers it.
    let recorder = Recorder::new(crashed.collect());
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    mount(&device).unmount().unwrap();
    assert_eq!(dirty_and_unlinked(&device), (false, false));
    let recording = recorder.recording();
    let mut with_unlinked = 0;
    for at in 0..recording.events().len() {
        let cut = recording.replay(at).unwrap().pop().unwrap();
        let cut: Arc<dyn BlockDevice> = Arc::new(cut);
        let (is_dirty, has_unlinked) = dirty_and_unlinked(&cut);
        assert!(is_dirty || !has_unlinked, "cut at {at}");
        with_unlinked += usize::from(has_unlinked);
        mount(&cut).unmount().unwrap();
        assert_eq!(dirty_and_unlinked(&cut), (false, false), "cut at {at}");
    }
    assert!(with_unlinked > 3, "{with_unlinked}");
}

fn contents(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(LEN_BYTES_MIN).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// An edit of an image with a file, before its commit. With what the change returns, which outlives the mount.
fn edit<T>(change: impl FnOnce(&dyn Inode) -> T) -> (ImageCommit, T) {
    edit_after(|_| (), change)
}

/// The same with more than a file.
fn edit_after<T>(
    prepare: impl FnOnce(&dyn Inode),
    change: impl FnOnce(&dyn Inode) -> T,
) -> (ImageCommit, T) {
    let device = new_device();
    let xfs = mount(&device);
    drop(create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap());
    prepare(&*xfs.root().unwrap());
    xfs.unmount().unwrap();
    let new: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("layer", contents(&*device)));
    let options = MountOptions {
        logging: Logging::Scratch,
        ..MountOptions::default()
    };
    let edited = Xfs::mount_writable(Arc::clone(&new), &options, budget(), clock()).unwrap();
    let kept = change(&*edited.root().unwrap());
    edited.unmount().unwrap();
    let commit = ImageCommit {
        unseen: Arc::clone(&device),
        device,
        new,
        written: std::iter::once(0..LEN_BYTES_MIN).collect(),
        options,
        budget: budget(),
    };
    (commit, kept)
}

#[test]
fn edit_that_leaves_an_unlinked_inode_leaves_a_log_to_recover() {
    let (commit, in_use) = edit(|root| {
        let in_use = root.lookup(name("file")).unwrap();
        root.unlink(&Context::root(), name("file")).unwrap();
        in_use
    });
    commit.run().unwrap();
    drop(in_use);
    let device = &commit.device;
    assert_eq!(dirty_and_unlinked(device), (true, true));
    mount(device).unmount().unwrap();
    assert_eq!(dirty_and_unlinked(device), (false, false));
}

/// Calls `work` with each of some directories of a generation, and with each of the names in them.
fn each_link(generation: &str, mut work: impl FnMut(&str, Option<&str>)) {
    for index in 0..8 {
        let directory = format!("{generation} {index}");
        work(&directory, None);
        for link in 0..40 {
            work(&directory, Some(&format!("link {link}")));
        }
    }
}

/// Makes directories, each with a block of names of one file.
fn add_links(root: &dyn Inode, generation: &str) {
    let file = root.lookup(name("file")).unwrap().id();
    each_link(generation, |directory, link| match link {
        None => drop(create(root, directory, CreateKind::Directory).unwrap()),
        Some(link) => {
            let directory = root.lookup(name(directory)).unwrap();
            directory.link(&Context::root(), name(link), file).unwrap();
        }
    });
}

fn remove_links(root: &dyn Inode, generation: &str) {
    each_link(generation, |directory, link| {
        if let Some(link) = link {
            let directory = root.lookup(name(directory)).unwrap();
            directory.unlink(&Context::root(), name(link)).unwrap();
        }
    });
    each_link(generation, |directory, link| {
        if link.is_none() {
            root.remove_dir(&Context::root(), name(directory)).unwrap();
        }
    });
}

/// Little of them differs, but they are logged whole.
#[test]
fn edit_gives_blocks_of_directories_to_others() {
    let (commit, ()) = edit_after(
        |root| add_links(root, "old"),
        |root| {
            remove_links(root, "old");
            add_links(root, "new");
        },
    );
    commit.run().unwrap();
    let xfs = mount(&commit.device);
    let root = xfs.root().unwrap();
    assert!(is_missing(&*root, "old 0"));
    each_link("new", |directory, link| {
        let directory = root.lookup(name(directory)).unwrap();
        assert!(link.is_none_or(|link| directory.lookup(name(link)).is_ok()));
    });
    drop(root);
    xfs.unmount().unwrap();
}

#[test]
fn edit_with_a_corrupt_agi_changes_nothing() {
    let (commit, ()) = edit(|root| root.unlink(&Context::root(), name("file")).unwrap());
    let superblock = Xfs::identify(&*commit.device).unwrap();
    let geometry = Geometry::new(&superblock);
    let (last, sector) = (geometry.groups().last().unwrap(), geometry.sector_bytes());
    let at = geometry.ag_offset(last) + 2 * u64::from(sector);
    for device in [&commit.device, &commit.new] {
        device.write_at(at, &[0; 4]).unwrap();
    }
    let before = contents(&*commit.device);
    assert_eq!(broken_rule(commit.run()), AgiRule::Magic.text());
    assert!(contents(&*commit.device) == before);
}

#[test]
fn covered_log_leaves_nothing_to_replay_but_the_superblock() {
    let device = new_device();
    let fs = mount(&device);
    let root = fs.root().unwrap();
    for number in 0..200 {
        create(&*root, &format!("file{number}"), CreateKind::Regular).unwrap();
    }
    fs.sync().unwrap();
    let position = || {
        let superblock = crate::superblock::read(&*device).unwrap();
        let log = LogDevice::open(&superblock, &device, None).unwrap();
        find_position(&log, true).unwrap()
    };
    let log = fs.context().log().unwrap();
    writing::cover(fs.context(), log).unwrap();
    let covered = position();
    assert_eq!(covered.state, LogState::Dirty);
    assert_eq!(covered.tail, covered.last, "the tail is the last record");
    // What comes after it is replayed again.
    create(&*root, "after", CreateKind::Regular).unwrap();
    fs.sync().unwrap();
    assert_eq!(position().tail, covered.last);
    drop(root);
    fs.shutdown().unwrap();
    drop(fs);
    let fs = mount(&device);
    let found = fs.root().unwrap().lookup(name("after"));
    assert!(found.is_ok());
    fs.unmount().unwrap();
}
