//! Block groups and their free space, as the trees of a transaction that is closed have them.

use std::ops::Range;

use platter_ondisk::{Corrupt, rules};
use platter_vfs::Result;

use super::group::BlockGroup;
use super::ranges::Ranges;
use crate::chunk::ChunkMap;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::free_space::{FreeSpaceInfo, FreeSpaceRange};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, LogicalAddr};
use crate::tree::{Cursor, Tree, TreeBlocks};

rules! {
    /// The rules of block groups and free space together.
    enum LoadRule of "block group" {
        /// Each chunk has a block group, of its length and type.
        NoGroup => "chunk without a matching block group",
        /// Each block group has an info item of its free space.
        NoInfo => "missing free space info",
        /// Free ranges are in their group, and do not overlap.
        Range => "free space overlaps or is outside of the block group",
        /// The info item counts the free extents.
        Count => "wrong number of free space extents",
    }
}

/// Where free space is found.
#[derive(Debug, Clone, Copy)]
pub enum FreeSpaceForm {
    /// In the free space tree.
    Tree(Tree),
    /// Between the items of the extent tree.
    Extents(Tree),
}

/// The block groups of all chunks. Their items are in `tree`.
pub fn load_groups(blocks: &TreeBlocks, tree: Tree, chunks: &ChunkMap) -> Result<Vec<BlockGroup>> {
    let mut groups = Vec::new();
    let mut cursor = Cursor::new(blocks, tree);
    for chunk in chunks.iter() {
        let key = Key::new(chunk.start.0, ItemKind::BLOCK_GROUP_ITEM, chunk.len_bytes);
        cursor.seek(key)?;
        let missing = || Corrupt::new(tree.locus(key), LoadRule::NoGroup);
        let found = cursor.item().filter(|(found, _)| *found == key);
        let (_, data) = found.ok_or_else(missing)?;
        let item = BlockGroupItem::decode(key, data, tree.locus(key))?;
        if item.flags != chunk.flags {
            return Err(missing().into());
        }
        groups.push(BlockGroup::new(item, true, chunk.superblock_ranges()));
    }
    Ok(groups)
}

/// The free ranges of a group, copies of the superblock included.
pub fn load_free_space(
    blocks: &TreeBlocks,
    form: FreeSpaceForm,
    group: &BlockGroup,
) -> Result<Ranges> {
    let format = blocks.format();
    match form {
        FreeSpaceForm::Tree(tree) => from_tree(blocks, tree, group, format.sector_bytes),
        FreeSpaceForm::Extents(tree) => from_extents(blocks, tree, group, format.node_bytes),
    }
}

fn from_tree(blocks: &TreeBlocks, tree: Tree, group: &BlockGroup, sector: u32) -> Result<Ranges> {
    let (start, end) = (group.start(), group.end());
    let info_key = Key::new(start.0, ItemKind::FREE_SPACE_INFO, group.len_bytes());
    let broken = |key: Key, rule| Corrupt::new(tree.locus(key), rule);
    let mut cursor = Cursor::new(blocks, tree);
    cursor.seek(info_key)?;
    let found = cursor.item().filter(|(key, _)| *key == info_key);
    let (_, data) = found.ok_or_else(|| broken(info_key, LoadRule::NoInfo))?;
    let info = FreeSpaceInfo::decode(data, tree.locus(info_key))?;
    cursor.step()?;
    let mut free = Ranges::default();
    while let Some((key, data)) = cursor.item()
        && key.object < end.0
    {
        let locus = tree.locus(key);
        let range = FreeSpaceRange::decode(key, sector, locus)?;
        let inside = range.start.0..range.start.0 + range.len_bytes;
        if inside.start < start.0 || inside.end > end.0 {
            return Err(broken(key, LoadRule::Range).into());
        }
        let is_added = if key.kind == ItemKind::FREE_SPACE_BITMAP {
            range.check_bitmap(data, sector, locus)?;
            add_bits(&mut free, &inside, data, sector.into())
        } else {
            free.add(inside)
        };
        if !is_added {
            return Err(broken(key, LoadRule::Range).into());
        }
        cursor.step()?;
    }
    if u32::try_from(free.count()) != Ok(info.extent_count) {
        return Err(broken(info_key, LoadRule::Count).into());
    }
    Ok(free)
}

/// Adds the runs of bits that are set, one for each sector of `range`.
fn add_bits(free: &mut Ranges, range: &Range<u64>, bits: &[u8], sector: u64) -> bool {
    let is_set = |at: &u64| {
        let index = (at - range.start) / sector;
        let byte = usize::try_from(index / 8).ok().and_then(|at| bits.get(at));
        byte.is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    };
    let mut at = range.start;
    while at < range.end {
        let run_end = |from: u64, is_free: bool| {
            let mut end = from;
            while end < range.end && is_set(&end) == is_free {
                end += sector;
            }
            end
        };
        let first = run_end(at, false);
        at = run_end(first, true);
        if !free.add(first..at) {
            return false;
        }
    }
    true
}

fn from_extents(
    blocks: &TreeBlocks,
    tree: Tree,
    group: &BlockGroup,
    node_bytes: u32,
) -> Result<Ranges> {
    let mut free = Ranges::default();
    let mut at = group.start().0;
    let mut cursor = Cursor::new(blocks, tree);
    cursor.seek(Key::new(at, ItemKind(0), 0))?;
    while let Some(key) = cursor.key()
        && key.object < group.end().0
    {
        let len_bytes = match key.kind {
            ItemKind::EXTENT_ITEM => Some(key.offset),
            ItemKind::METADATA_ITEM => Some(node_bytes.into()),
            _ => None,
        };
        if let Some(len_bytes) = len_bytes {
            let end = LogicalAddr(key.object).checked_add(len_bytes);
            let end = end.filter(|end| *end <= group.end() && key.object >= at);
            let rule = || Corrupt::new(tree.locus(key), LoadRule::Range);
            let end = end.ok_or_else(rule)?;
            free.add(at..key.object);
            at = end.0;
        }
        cursor.step()?;
    }
    free.add(at..group.end().0);
    Ok(free)
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule as _;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::context::tests::rule;
    use crate::ondisk::chunk_item::tests::sample as chunk;
    use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
    use crate::ondisk::free_space::FreeSpaceFlags;
    use crate::tree::tests::{Sample, tree};

    const START: u64 = 1 << 24;
    const LEN: u64 = 1 << 20;

    fn text(rule: LoadRule) -> &'static str {
        rule.text()
    }

    fn group_item(flags: BlockGroupFlags) -> BlockGroupItem {
        BlockGroupItem {
            start: LogicalAddr(START),
            len_bytes: LEN,
            used_bytes: 4096,
            chunk_object: 256,
            flags,
        }
    }

    #[test]
    fn chunk_needs_a_group_of_its_type() {
        let load = |start, flags| {
            let mut sample = Sample::new();
            let disk = group_item(flags).encode();
            let key = Key::new(start, ItemKind::BLOCK_GROUP_ITEM, LEN);
            let root = sample.leaf(&[(key, disk.as_bytes())]);
            let mut chunk = chunk(START, Profile::Single, 1);
            chunk.flags = BlockGroupFlags::METADATA;
            let map = ChunkMap::new(vec![chunk]).unwrap();
            load_groups(&sample.blocks(), tree(root, 0), &map)
        };
        let found = load(START, BlockGroupFlags::METADATA).unwrap();
        assert_eq!(found[0].space().used, 4096);
        for result in [
            load(START, BlockGroupFlags::DATA),
            load(START + LEN, BlockGroupFlags::METADATA),
        ] {
            assert_eq!(rule(result), text(LoadRule::NoGroup));
        }
    }

    fn free_space(items: &[(Key, &[u8])]) -> Result<Ranges> {
        let mut sample = Sample::new();
        let root = sample.leaf(items);
        let group = BlockGroup::new(group_item(BlockGroupFlags::METADATA), true, Vec::new());
        let form = FreeSpaceForm::Tree(tree(root, 0));
        load_free_space(&sample.blocks(), form, &group)
    }

    fn info(extent_count: u32) -> Vec<u8> {
        let flags = FreeSpaceFlags::empty();
        let info = FreeSpaceInfo {
            extent_count,
            flags,
        };
        info.encode().as_bytes().to_vec()
    }

    #[test]
    fn free_space_is_read_from_extents_and_bitmaps() {
        let info_key = Key::new(START, ItemKind::FREE_SPACE_INFO, LEN);
        let extent = |at, len| Key::new(START + at, ItemKind::FREE_SPACE_EXTENT, len);
        let bitmap = Key::new(START, ItemKind::FREE_SPACE_BITMAP, LEN);
        let mut bits = [0; 32];
        (bits[0], bits[1], bits[31]) = (0b1100_0001, 1, 0x80);
        let found = free_space(&[(info_key, &info(3)), (bitmap, &bits)]).unwrap();
        let at = |from: u64, to: u64| START + from * 4096..START + to * 4096;
        assert!(found.iter().eq([at(0, 1), at(6, 9), at(255, 256)]));
        let two = [(info_key, &info(1)[..]), (extent(8192, 4096), &[])];
        assert_eq!(free_space(&two).unwrap().len_bytes(), 4096);
        let none = free_space(&[(extent(0, 4096), &[])]);
        assert_eq!(rule(none), text(LoadRule::NoInfo));
        let miscounted = free_space(&[(info_key, &info(2)), (extent(0, 4096), &[])]);
        assert_eq!(rule(miscounted), text(LoadRule::Count));
        for items in [
            vec![(extent(0, LEN + 4096), &[][..])],
            vec![(extent(0, 8192), &[][..]), (extent(4096, 4096), &[][..])],
        ] {
            let head = (info_key, &info(1)[..]);
            let all: Vec<_> = [head].into_iter().chain(items).collect();
            assert_eq!(rule(free_space(&all)), text(LoadRule::Range));
        }
    }

    #[test]
    fn free_space_is_what_extents_leave() {
        let metadata = |at| Key::new(START + at, ItemKind::METADATA_ITEM, 0);
        let data = |at, len| Key::new(START + at, ItemKind::EXTENT_ITEM, len);
        let load = |keys: &[Key]| {
            let mut sample = Sample::new();
            let items: Vec<_> = keys.iter().map(|key| (*key, &[][..])).collect();
            let root = sample.leaf(&items);
            let group = BlockGroup::new(group_item(BlockGroupFlags::METADATA), true, Vec::new());
            let form = FreeSpaceForm::Extents(tree(root, 0));
            load_free_space(&sample.blocks(), form, &group)
        };
        let found = load(&[metadata(0), metadata(4096), data(16384, 8192)]).unwrap();
        let at = |from: u64, to: u64| START + from..START + to;
        assert!(found.iter().eq([at(8192, 16384), at(24576, LEN)]));
        let overlap = load(&[data(0, 8192), metadata(4096)]);
        assert_eq!(rule(overlap), text(LoadRule::Range));
    }
}
