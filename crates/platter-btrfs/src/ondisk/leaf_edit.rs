//! Changes of the items of a leaf in place. Spec: `btrfs/leaf`.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::header::{DiskHeader, HEADER_BYTES};
use super::key::Key;
use super::leaf::{DiskItem, ITEM_BYTES, Leaf};

/// A verified leaf that is being changed. Its checksum is not kept.
#[derive(Debug)]
pub struct LeafMut<'a> {
    block: &'a mut [u8],
}

/// Items that are next to each other in a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items {
    /// As they were, the first one first.
    headers: Vec<DiskItem>,
    /// The data of the last one comes first.
    data: Vec<u8>,
}

impl Items {
    /// Items of a leaf. `None` if there are none such.
    #[must_use]
    pub fn of(leaf: &Leaf<'_>, range: Range<usize>) -> Option<Self> {
        let last = range.end.checked_sub(1)?;
        let end = leaf.data_range(range.start)?.end;
        let start = leaf.data_range(last)?.start;
        Some(Self {
            headers: leaf.headers(range)?.to_vec(),
            data: leaf.data(start..end)?.to_vec(),
        })
    }

    fn len(&self) -> usize {
        self.headers.len()
    }

    /// The key of the first one.
    #[must_use]
    pub fn first_key(&self) -> Option<Key> {
        self.headers.first().map(|item| Key::decode(&item.key))
    }
}

/// The bytes that items and their data may take in a leaf.
#[must_use]
pub fn capacity(node_bytes: u32) -> usize {
    usize::try_from(node_bytes)
        .unwrap_or(usize::MAX)
        .saturating_sub(HEADER_BYTES)
}

/// The bytes that items and their data do not take.
#[must_use]
pub fn free_bytes(block: &[u8]) -> usize {
    let leaf = Leaf::new(block);
    let front = leaf.len().saturating_mul(ITEM_BYTES);
    data_start(&leaf, block).saturating_sub(front)
}

/// Where the data of the last item begins.
fn data_start(leaf: &Leaf<'_>, block: &[u8]) -> usize {
    let all = block.len().saturating_sub(HEADER_BYTES);
    let last = leaf.len().checked_sub(1);
    last.and_then(|last| leaf.data_range(last))
        .map_or(all, |range| range.start)
}

impl<'a> LeafMut<'a> {
    /// The leaf in `block`, a whole block.
    pub fn new(block: &'a mut [u8]) -> Self {
        Self { block }
    }

    /// The leaf as it is.
    #[must_use]
    pub fn leaf(&self) -> Leaf<'_> {
        Leaf::new(self.block)
    }

    /// The bytes that items and their data do not take.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        free_bytes(self.block)
    }

    /// Inserts an item at `index`. Returns `false`, without a change, if it does not fit.
    pub fn insert(&mut self, index: usize, key: Key, data: &[u8]) -> bool {
        self.try_insert(index, key, data).is_some()
    }

    fn try_insert(&mut self, index: usize, key: Key, data: &[u8]) -> Option<()> {
        let needed = data.len().checked_add(ITEM_BYTES)?;
        let count = self.leaf().len();
        if index > count || needed > free_bytes(self.block) {
            return None;
        }
        let end = self.data_end(index)?;
        let offset = self.open_gap(index, end, data.len())?;
        let item = DiskItem {
            key: key.encode(),
            offset: u32::try_from(offset).ok()?.into(),
            len_bytes: u32::try_from(data.len()).ok()?.into(),
        };
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let at = index.checked_mul(ITEM_BYTES)?;
        let front = count.checked_mul(ITEM_BYTES)?;
        let next = at.checked_add(ITEM_BYTES)?;
        area.copy_within(at..front, next);
        area.get_mut(at..next)?.copy_from_slice(item.as_bytes());
        area.get_mut(offset..end)?.copy_from_slice(data);
        self.set_count(count.checked_add(1)?)
    }

    /// Inserts items at `index`. Returns `false`, without a change, if they do not fit.
    pub fn insert_items(&mut self, index: usize, items: &Items) -> bool {
        self.try_insert_items(index, items).is_some()
    }

    fn try_insert_items(&mut self, index: usize, items: &Items) -> Option<()> {
        let headers = items.headers.as_bytes();
        let needed = items.data.len().checked_add(headers.len())?;
        let count = self.leaf().len();
        if index > count || needed > free_bytes(self.block) {
            return None;
        }
        let end = self.data_end(index)?;
        let start = self.open_gap(index, end, items.data.len())?;
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let at = index.checked_mul(ITEM_BYTES)?;
        let next = at.checked_add(headers.len())?;
        area.copy_within(at..count.checked_mul(ITEM_BYTES)?, next);
        area.get_mut(at..next)?.copy_from_slice(headers);
        area.get_mut(start..end)?.copy_from_slice(&items.data);
        self.set_count(count.checked_add(items.len())?)?;
        let after = index.checked_add(items.len())?;
        let mut offset = end;
        for item in self.items_mut()?.get_mut(index..after)? {
            offset = offset.checked_sub(usize::try_from(item.len_bytes.get()).ok()?)?;
            item.offset.set(u32::try_from(offset).ok()?);
        }
        Some(())
    }

    /// Moves the data of the items from `index` on down by `len`. Returns where the gap before `end` begins.
    fn open_gap(&mut self, index: usize, end: usize, len: usize) -> Option<usize> {
        let low = data_start(&self.leaf(), self.block);
        let to = low.checked_sub(len)?;
        let area = self.block.get_mut(HEADER_BYTES..)?;
        area.copy_within(low..end, to);
        let shift = u32::try_from(len).ok()?;
        // The last one has space for that, and has the lowest offset.
        for item in self.items_mut()?.get_mut(index..)? {
            item.offset.set(item.offset.get().wrapping_sub(shift));
        }
        end.checked_sub(len)
    }

    /// Moves the data of the items from `index` on, which ends at `end`, up by `len`.
    fn close_gap(&mut self, index: usize, end: usize, len: usize) -> Option<()> {
        let low = data_start(&self.leaf(), self.block);
        let to = low.checked_add(len)?;
        let area = self.block.get_mut(HEADER_BYTES..)?;
        if low < end {
            area.copy_within(low..end, to);
        }
        let shift = u32::try_from(len).ok()?;
        // The first one ends at the gap.
        for item in self.items_mut()?.get_mut(index..)? {
            item.offset.set(item.offset.get().wrapping_add(shift));
        }
        Some(())
    }

    /// Removes items. Returns `false`, without a change, if there are none such.
    pub fn remove(&mut self, range: Range<usize>) -> bool {
        self.try_remove(range).is_some()
    }

    fn try_remove(&mut self, range: Range<usize>) -> Option<()> {
        let count = self.leaf().len();
        if range.end > count || range.is_empty() {
            return None;
        }
        let last = range.end.checked_sub(1)?;
        let end = self.data_end(range.start)?;
        let start = self.leaf().data_range(last)?.start;
        self.close_gap(range.end, start, end.checked_sub(start)?)?;
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let bytes = |index: usize| index.checked_mul(ITEM_BYTES);
        area.copy_within(bytes(range.end)?..bytes(count)?, bytes(range.start)?);
        self.set_count(count.checked_sub(range.len())?)
    }

    /// Replaces the data of an item. Returns `false`, without a change, if it does not fit.
    pub fn replace(&mut self, index: usize, data: &[u8]) -> bool {
        self.try_replace(index, data).is_some()
    }

    fn try_replace(&mut self, index: usize, data: &[u8]) -> Option<()> {
        let range = self.leaf().data_range(index)?;
        let (old, end) = (range.len(), range.end);
        let after = index.checked_add(1)?;
        if let Some(more) = data.len().checked_sub(old) {
            if more > free_bytes(self.block) {
                return None;
            }
            if more > 0 {
                self.open_gap(after, range.start, more)?;
            }
        } else {
            let less = old.checked_sub(data.len())?;
            self.close_gap(after, range.start, less)?;
        }
        let offset = end.checked_sub(data.len())?;
        let item = self.items_mut()?.get_mut(index)?;
        item.offset.set(u32::try_from(offset).ok()?);
        item.len_bytes.set(u32::try_from(data.len()).ok()?);
        let area = self.block.get_mut(HEADER_BYTES..)?;
        area.get_mut(offset..end)?.copy_from_slice(data);
        Some(())
    }

    /// The data of an item.
    #[must_use]
    pub fn data_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let range = self.leaf().data_range(index)?;
        self.block.get_mut(HEADER_BYTES..)?.get_mut(range)
    }

    /// Changes the key of an item, which must stay between its neighbours.
    pub fn set_key(&mut self, index: usize, key: Key) {
        let items = self.items_mut();
        if let Some(item) = items.and_then(|items| items.get_mut(index)) {
            item.key = key.encode();
        }
    }

    /// Where the data before that of item `index` begins.
    fn data_end(&self, index: usize) -> Option<usize> {
        match index.checked_sub(1) {
            Some(before) => Some(self.leaf().data_range(before)?.start),
            None => self.block.len().checked_sub(HEADER_BYTES),
        }
    }

    fn items_mut(&mut self) -> Option<&mut [DiskItem]> {
        let count = self.leaf().len();
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let items = <[DiskItem]>::mut_from_prefix_with_elems(area, count);
        items.ok().map(|(items, _)| items)
    }

    fn set_count(&mut self, count: usize) -> Option<()> {
        let (header, _) = DiskHeader::mut_from_prefix(self.block).ok()?;
        header.item_count.set(u32::try_from(count).ok()?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Locus;

    use super::*;
    use crate::ondisk::header::tests::sample;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::leaf;

    fn key(object: u64) -> Key {
        Key::new(object, ItemKind::INODE_ITEM, 0)
    }

    #[test]
    fn random_changes_agree_with_a_list() {
        let mut block = vec![0; 4096];
        assert!(leaf::encode(&mut block, &sample(0, 0), []));
        let mut list: Vec<(Key, Vec<u8>)> = Vec::new();
        let mut state = 1u64;
        let mut random = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % bound
        };
        for round in 0..6000u64 {
            let data = vec![round.to_le_bytes()[0]; random(120)];
            let index = random(list.len() + 1);
            let mut leaf = LeafMut::new(&mut block);
            let free = free_bytes(leaf.block);
            match random(6) {
                5 if index < list.len() => {
                    // Some that are next to each other are moved to somewhere else.
                    let end = (index + 1 + random(5)).min(list.len());
                    let items = Items::of(&leaf.leaf(), index..end).unwrap();
                    assert_eq!(items.first_key(), Some(list[index].0));
                    let moved: Vec<_> = list.drain(index..end).collect();
                    assert_eq!(items.len(), moved.len());
                    assert!(leaf.remove(index..end));
                    let to = random(list.len() + 1);
                    assert!(leaf.insert_items(to, &items));
                    list.splice(to..to, moved);
                }
                0 | 1 => {
                    // Keys are renumbered below.
                    let is_inserted = leaf.insert(index, key(0), &data);
                    assert_eq!(is_inserted, data.len() + ITEM_BYTES <= free);
                    if is_inserted {
                        list.insert(index, (key(0), data));
                    }
                }
                2 => {
                    let end = (index + random(4)).min(list.len());
                    assert_eq!(leaf.remove(index..end), index < end);
                    list.drain(index..end);
                }
                3 if index < list.len() => {
                    let is_replaced = leaf.replace(index, &data);
                    assert_eq!(is_replaced, data.len() <= free + list[index].1.len());
                    if is_replaced {
                        list[index].1 = data;
                    }
                }
                _ if index < list.len() => {
                    leaf.data_mut(index).unwrap().fill(9);
                    list[index].1.fill(9);
                }
                _ => {}
            }
            for (index, (object, item)) in (0..).zip(&mut list).enumerate() {
                item.0 = key(object);
                leaf.set_key(index, key(object));
            }
            let found = Leaf::verify(&block, Locus::UNKNOWN).unwrap();
            let expected = list.iter().map(|(key, data)| (*key, &data[..]));
            assert!(found.iter().eq(expected), "round {round}");
            let used: usize = list.iter().map(|it| it.1.len() + ITEM_BYTES).sum();
            assert_eq!(free_bytes(&block), capacity(4096) - used);
        }
    }
}
