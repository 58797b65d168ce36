//! Seeded corruptions of the metadata of one filesystem.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use platter_btrfs::MountOptions;
use platter_btrfs::chunk::Placement;
use platter_btrfs::ondisk::chunk_item::ChunkItem;
use platter_btrfs::ondisk::header::HEADER_BYTES;
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::root_item::RootItem;
use platter_btrfs::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use platter_btrfs::ondisk::tree_block::{Expected, TreeBlockFormat};
use platter_btrfs::ondisk::{ChecksumKind, Key, LogicalAddr, TreeId, leaf};
use platter_ondisk::Locus;
use testkit::prng::Prng;
use zerocopy::FromBytes;

use super::image::{Pool, mount};

/// Where the superblock has its stripe size.
const STRIPE_SIZE: std::ops::Range<usize> = 156..160;

/// Where something is stored: the number of an image, and the byte there.
type Place = (usize, u64);

/// A tree block: its bytes, and where its copies lie.
struct Block {
    bytes: Vec<u8>,
    places: Vec<Place>,
    /// Where the parity of RAID5 that covers it lies.
    parity: Option<Place>,
}

/// A filesystem whose structures are known.
pub(super) struct Corpus {
    images: Vec<PathBuf>,
    format: TreeBlockFormat,
    /// The blocks of each tree.
    trees: Vec<(u64, Vec<Block>)>,
    /// The trees that have a root.
    roots: BTreeSet<u64>,
    has_log: bool,
    superblock: Vec<u8>,
}

/// What is written where, and what it does.
pub(super) struct Change {
    writes: Vec<(Place, Vec<u8>)>,
    pub(super) text: String,
}

impl Change {
    /// Makes the change. Returns the one that undoes it.
    pub(super) fn apply(&self, images: &[PathBuf]) -> Result<Self> {
        let mut overwritten = Vec::new();
        for ((image, at), bytes) in &self.writes {
            let file = File::options()
                .read(true)
                .write(true)
                .open(&images[*image])?;
            let mut old = vec![0; bytes.len()];
            file.read_exact_at(&mut old, *at)?;
            file.write_all_at(bytes, *at)?;
            overwritten.push(((*image, *at), old));
        }
        overwritten.reverse();
        Ok(Self {
            writes: overwritten,
            text: format!("undone: {}", self.text),
        })
    }
}

impl Corpus {
    pub(super) fn new(pool: &Pool) -> Result<Self> {
        let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
        let context = btrfs.super_block().context();
        let blocks = &context.blocks;
        let mut trees: BTreeMap<u64, BTreeMap<u64, Block>> = BTreeMap::new();
        let mut pending = vec![
            context.superblock.root.logical,
            context.superblock.chunk_root.logical,
        ];
        let log_root = context.superblock.log_root.map(|root| root.logical);
        pending.extend(log_root);
        let mut roots = BTreeSet::from([TreeId::ROOT.0, TreeId::CHUNK.0]);
        while let Some(logical) = pending.pop() {
            let block = blocks.read(logical, &Expected::default())?;
            let header = block.header().unwrap();
            let tree = trees.entry(header.owner.0).or_default();
            if tree.contains_key(&logical.0) {
                continue;
            }
            for (key, data) in block.leaf().iter().filter(|_| header.level == 0) {
                if key.kind == ItemKind::ROOT_ITEM {
                    let item = RootItem::decode(data, context.sector_bytes(), Locus::UNKNOWN)?;
                    pending.push(item.root.logical);
                    roots.insert(key.object);
                }
            }
            if header.level > 0 {
                pending.extend(block.node().iter().map(|pointer| pointer.logical));
            }
            // A copy that parity reconstructs is stored nowhere.
            let place = |copy| {
                let (member, at) = blocks.store().location(logical, copy)?;
                Some((usize::try_from(member.id.0 - 1).ok()?, at.0))
            };
            tree.insert(
                logical.0,
                Block {
                    bytes: block.bytes().to_vec(),
                    places: (0..blocks.copies(logical)).filter_map(place).collect(),
                    parity: parity_of(blocks.store().map().find(logical)?, logical),
                },
            );
        }
        let mut superblock = vec![0; SUPERBLOCK_BYTES];
        File::open(&pool.images[0])?.read_exact_at(&mut superblock, SUPERBLOCK_OFFSETS[0])?;
        Ok(Self {
            images: pool.images.clone(),
            format: *blocks.format(),
            trees: trees
                .into_iter()
                .map(|(tree, blocks)| (tree, blocks.into_values().collect()))
                .collect(),
            roots,
            has_log: log_root.is_some(),
            superblock,
        })
    }

    /// The numbers of the trees that the root tree and the superblock name, but for log trees.
    pub(super) fn roots(&self) -> impl Iterator<Item = u64> {
        let roots = self.roots.iter().copied();
        roots.filter(|tree| *tree != TreeId::TREE_LOG.0)
    }

    pub(super) fn has_log(&self) -> bool {
        self.has_log
    }

    pub(super) fn images(&self) -> &[PathBuf] {
        &self.images
    }

    /// A change that the numbers choose.
    pub(super) fn change(&self, prng: &mut Prng) -> Result<Change> {
        if prng.below(25) == 0 {
            return Ok(self.change_superblock(prng));
        }
        let (tree, blocks) = &self.trees[pick(prng, self.trees.len())];
        let block = &blocks[pick(prng, blocks.len())];
        let mut bytes = block.bytes.clone();
        let is_leaf = bytes[100] == 0;
        let what = match prng.below(10) {
            0 => change_number(&mut bytes, 32, HEADER_BYTES - 32, prng),
            1 => change_byte(&mut bytes, HEADER_BYTES, 800, prng),
            2 | 3 if is_leaf => self.drop_item(&mut bytes, prng),
            _ if is_leaf => change_item(&mut bytes, prng),
            _ => change_number(&mut bytes, HEADER_BYTES, 33 * 4, prng),
        };
        let is_sealed = prng.below(2) == 0;
        if is_sealed {
            self.format.seal(&mut bytes);
        }
        let copies = block.places.len() + usize::from(block.parity.is_some());
        let is_partial = !is_sealed && copies > 1 && prng.below(2) == 0;
        let count = if is_partial { 1 } else { copies };
        let text = format!(
            "tree {tree}, block at {:?}, {count} of {copies} copies{}: {what}",
            block.places,
            if is_sealed { ", sealed" } else { "" }
        );
        let places = block.places.iter().take(count);
        let mut writes: Vec<_> = places.map(|place| (*place, bytes.clone())).collect();
        if let Some(place) = block.parity.filter(|_| !is_partial) {
            writes.push((place, self.parity_after(place, &block.bytes, &bytes)?));
        }
        Ok(Change { writes, text })
    }

    /// The parity at a place after a block that it covers was replaced.
    fn parity_after(&self, (image, at): Place, old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        let mut parity = vec![0; new.len()];
        File::open(&self.images[image])?.read_exact_at(&mut parity, at)?;
        for ((parity, old), new) in parity.iter_mut().zip(old).zip(new) {
            *parity ^= old ^ new;
        }
        Ok(parity)
    }

    fn change_superblock(&self, prng: &mut Prng) -> Change {
        let mut bytes = self.superblock.clone();
        let what = change_number(&mut bytes, 32, 0x32b - 32, prng);
        // Only btrfs check reads it.
        bytes[STRIPE_SIZE].copy_from_slice(&self.superblock[STRIPE_SIZE]);
        let is_sealed = prng.below(2) == 0;
        if is_sealed {
            let kind = self.format.checksum_kind;
            let sum = ChecksumKind::of(kind, &bytes[32..]);
            bytes[..32].copy_from_slice(&sum);
        }
        assert!(DiskSuperblock::ref_from_bytes(&bytes).is_ok());
        Change {
            writes: vec![((0, SUPERBLOCK_OFFSETS[0]), bytes)],
            text: format!("superblock, sealed {is_sealed}: {what}"),
        }
    }

    /// A change of the data of an item, in all copies and with right checksums.
    pub(super) fn change_data(
        &self,
        tree: TreeId,
        key: Key,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<Change> {
        let blocks = self.trees.iter().filter(|(id, _)| *id == tree.0);
        let mut leaves = blocks
            .flat_map(|(_, blocks)| blocks)
            .filter(|block| block.bytes[100] == 0);
        let has_key = |block: &&Block| leaf::Leaf::new(&block.bytes).iter().any(|it| it.0 == key);
        let block = leaves.find(has_key).context("the item is there")?;
        let mut items: Vec<(Key, Vec<u8>)> = leaf::Leaf::new(&block.bytes)
            .iter()
            .map(|(key, data)| (key, data.to_vec()))
            .collect();
        let item = items.iter_mut().find(|(found, _)| *found == key);
        change(&mut item.context("the item is there")?.1);
        let mut bytes = block.bytes.clone();
        let header = self.format.verify(logical_of(&bytes), &bytes)?;
        let left = items.iter().map(|(key, data)| (*key, &data[..]));
        assert!(leaf::encode(&mut bytes, &header, left));
        self.format.seal(&mut bytes);
        Ok(Change {
            writes: block
                .places
                .iter()
                .map(|place| (*place, bytes.clone()))
                .collect(),
            text: format!("the data of {} changed", named(key)),
        })
    }

    /// Removes an item; what is left is a valid leaf.
    fn drop_item(&self, bytes: &mut [u8], prng: &mut Prng) -> String {
        let old = bytes.to_vec();
        let header = self.format.verify(logical_of(&old), &old).unwrap();
        let items: Vec<_> = leaf::Leaf::new(&old).iter().collect();
        if items.is_empty() {
            return "nothing".to_owned();
        }
        let gone = pick(prng, items.len());
        let left = items.iter().enumerate().filter(|(index, _)| *index != gone);
        let left = left.map(|(_, item)| *item);
        assert!(leaf::encode(bytes, &header, left));
        format!("item {} dropped", named(items[gone].0))
    }
}

/// Where the parity that covers an address of RAID5 lies.
fn parity_of(chunk: &ChunkItem, logical: LogicalAddr) -> Option<Place> {
    let segment = chunk.segment(logical, 1);
    let Placement::Parity { row, .. } = segment.placement else {
        return None;
    };
    let stripe = chunk.stripe_of_role(row, chunk.data_stripes());
    let image = usize::try_from(chunk.stripes[stripe].device.0 - 1).ok()?;
    Some((image, chunk.device_addr(stripe, segment.offset).0))
}

fn logical_of(bytes: &[u8]) -> LogicalAddr {
    LogicalAddr(u64::from_le_bytes(bytes[48..56].try_into().unwrap()))
}

fn named(key: Key) -> String {
    format!("{} {key}", key.kind.name().unwrap_or("unknown"))
}

fn pick(prng: &mut Prng, count: usize) -> usize {
    usize::try_from(prng.below(count as u64)).unwrap()
}

/// Changes the key, the place or the data of an item.
fn change_item(bytes: &mut [u8], prng: &mut Prng) -> String {
    let count = u32::from_le_bytes(bytes[96..100].try_into().unwrap());
    if count == 0 {
        return "nothing".to_owned();
    }
    let index = pick(prng, count as usize);
    let entry = HEADER_BYTES + index * 25;
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let start = HEADER_BYTES + number(entry + 17) as usize;
    let len = number(entry + 21) as usize;
    let key = leaf::Leaf::new(bytes).key(index).unwrap();
    let what = if prng.below(8) == 0 || len == 0 {
        change_byte(bytes, entry, 25, prng)
    } else {
        change_number(bytes, start, len, prng)
    };
    format!("{}: {what}", named(key))
}

/// Changes a byte, or adds to or takes off a number that begins there.
fn change_number(bytes: &mut [u8], start: usize, len: usize, prng: &mut Prng) -> String {
    let at = start + pick(prng, len);
    match prng.below(4) {
        0 => {
            let step = [1, 0xff, 16, 0xf0][pick(prng, 4)];
            bytes[at] = bytes[at].wrapping_add(step);
            format!("byte {} of it changed by {step:#x}", at - start)
        }
        1 => {
            bytes[at] = 0;
            format!("byte {} of it zeroed", at - start)
        }
        _ => change_byte(bytes, start, len, prng),
    }
}

fn change_byte(bytes: &mut [u8], start: usize, len: usize, prng: &mut Prng) -> String {
    let at = (start + pick(prng, len)).min(bytes.len() - 1);
    let bit = 1 << prng.below(8);
    bytes[at] ^= bit;
    format!("byte {} of it changed by bit {bit:#x}", at - start)
}
