//! A leaf: item headers from the front, their data from the back. Spec: `btrfs/leaf`.

use std::ops::Range;

use platter_ondisk::Locus;
use platter_ondisk::endian::Le32;
use platter_ondisk::{Corrupt, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::{DiskHeader, HEADER_BYTES, Header};
use super::key::{DiskKey, Key};

/// An item header.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskItem {
    /// `key`.
    pub key: DiskKey,
    /// `offset`: of the data, from the end of the block's header.
    pub offset: Le32,
    /// `size`.
    pub len_bytes: Le32,
}

/// The size of an item header.
pub const ITEM_BYTES: usize = 25;

const _: () = assert!(size_of::<DiskItem>() == ITEM_BYTES);

rules! {
    /// The rules of a leaf.
    pub enum LeafRule of "leaf" {
        /// The item headers are within the block.
        ItemCount => "nritems is beyond the block",
        /// Keys ascend.
        KeyOrder => "bad key order",
        /// Each item's data ends where that of the item before it begins, the first at the end.
        ItemOffset => "unexpected item end",
        /// Data does not overlap the item headers.
        Overlap => "item data overlaps the item headers",
    }
}

/// A view of the items of a leaf.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    items: &'a [DiskItem],
    /// All that follows the header.
    data: &'a [u8],
}

impl<'a> Leaf<'a> {
    /// The leaf in `bytes`, a whole block. Items that are not within the block are left out:
    /// [`verify`](Self::verify) refuses such a leaf.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let Ok((header, data)) = DiskHeader::ref_from_prefix(bytes) else {
            return Self {
                items: &[],
                data: &[],
            };
        };
        let count = usize::try_from(header.item_count.get()).unwrap_or(usize::MAX);
        let items = <[DiskItem]>::ref_from_prefix_with_elems(data, count);
        Self {
            items: items.map_or(&[], |(items, _)| items),
            data,
        }
    }

    /// Checks the rules of a leaf, but for those of its items' data.
    pub fn verify(bytes: &'a [u8], locus: Locus) -> Result<Self, Corrupt<LeafRule>> {
        let leaf = Self::new(bytes);
        let header = DiskHeader::ref_from_prefix(bytes);
        let count = header.map_or(0, |(header, _)| header.item_count.get());
        if u32::try_from(leaf.items.len()) != Ok(count) {
            return Err(Corrupt::new(locus, LeafRule::ItemCount));
        }
        let headers_end = u32::try_from(size_of_val(leaf.items)).unwrap_or(u32::MAX);
        let mut end = u32::try_from(leaf.data.len()).unwrap_or(u32::MAX);
        let mut last: Option<Key> = None;
        for item in leaf.items {
            let key = Key::decode(&item.key);
            let broken = |rule| Err(Corrupt::new(locus.at_key(key.into()), rule));
            if last.is_some_and(|last| last >= key) {
                return broken(LeafRule::KeyOrder);
            }
            let offset = item.offset.get();
            if offset.checked_add(item.len_bytes.get()) != Some(end) {
                return broken(LeafRule::ItemOffset);
            }
            if offset < headers_end {
                return broken(LeafRule::Overlap);
            }
            end = offset;
            last = Some(key);
        }
        Ok(leaf)
    }

    /// How many items it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The key of an item.
    #[must_use]
    pub fn key(&self, index: usize) -> Option<Key> {
        self.items.get(index).map(|item| Key::decode(&item.key))
    }

    /// An item's key and data.
    #[must_use]
    pub fn item(&self, index: usize) -> Option<(Key, &'a [u8])> {
        let data = self.data.get(self.data_range(index)?)?;
        Some((self.key(index)?, data))
    }

    /// The bytes that an item takes, of its header and its data.
    #[must_use]
    pub fn item_bytes(&self, index: usize) -> usize {
        let data = self.data_range(index).map_or(0, |range| range.len());
        data.saturating_add(ITEM_BYTES)
    }

    /// The headers of some items.
    pub(super) fn headers(&self, range: Range<usize>) -> Option<&'a [DiskItem]> {
        self.items.get(range)
    }

    /// What lies in a range after the header.
    pub(super) fn data(&self, range: Range<usize>) -> Option<&'a [u8]> {
        self.data.get(range)
    }

    /// Where an item's data lies after the header.
    pub(super) fn data_range(&self, index: usize) -> Option<Range<usize>> {
        let item = self.items.get(index)?;
        let start = usize::try_from(item.offset.get()).ok()?;
        let len = usize::try_from(item.len_bytes.get()).ok()?;
        Some(start..start.checked_add(len)?)
    }

    /// The index of the first item at or after `key`.
    #[must_use]
    pub fn lower_bound(&self, key: Key) -> usize {
        self.items
            .partition_point(|item| Key::decode(&item.key) < key)
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &'a [u8])> + use<'a> {
        let leaf = *self;
        (0..leaf.len()).filter_map(move |index| leaf.item(index))
    }
}

/// Encodes a leaf with `items` into `block`, without a checksum. Returns `false`, and leaves `block`
/// undefined, if they do not fit.
pub fn encode<'a>(
    block: &mut [u8],
    header: &Header,
    items: impl IntoIterator<Item = (Key, &'a [u8])>,
) -> bool {
    try_encode(block, header, items).is_some()
}

fn try_encode<'a>(
    block: &mut [u8],
    header: &Header,
    items: impl IntoIterator<Item = (Key, &'a [u8])>,
) -> Option<()> {
    block.fill(0);
    let area = block.get_mut(HEADER_BYTES..)?;
    let mut front = 0usize;
    let mut end = area.len();
    let mut count = 0u32;
    for (key, data) in items {
        let start = end.checked_sub(data.len())?;
        let next = front.checked_add(ITEM_BYTES)?;
        if next > start {
            return None;
        }
        let item = DiskItem {
            key: key.encode(),
            offset: u32::try_from(start).ok()?.into(),
            len_bytes: u32::try_from(data.len()).ok()?.into(),
        };
        area.get_mut(front..next)?.copy_from_slice(item.as_bytes());
        area.get_mut(start..end)?.copy_from_slice(data);
        front = next;
        end = start;
        count = count.checked_add(1)?;
    }
    let header = Header {
        item_count: count,
        level: 0,
        ..*header
    };
    let bytes = header.encode();
    block
        .get_mut(..HEADER_BYTES)?
        .copy_from_slice(bytes.as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::header::tests::sample;
    use crate::ondisk::key::ItemKind;

    fn key(object: u64) -> Key {
        Key::new(object, ItemKind::INODE_ITEM, 0)
    }

    fn block(items: &[(Key, &[u8])]) -> Vec<u8> {
        let mut block = vec![0; 4096];
        assert!(encode(&mut block, &sample(0, 0), items.iter().copied()));
        block
    }

    #[test]
    fn leaf_survives_encoding() {
        let items: [(Key, &[u8]); 3] = [(key(1), b"one"), (key(2), b""), (key(5), b"five")];
        let block = block(&items);
        let leaf = Leaf::verify(&block, Locus::UNKNOWN).unwrap();
        assert_eq!(leaf.iter().collect::<Vec<_>>(), items);
        assert_eq!(leaf.lower_bound(key(3)), 2);
        assert_eq!(leaf.lower_bound(key(2)), 1);
        assert_eq!(leaf.lower_bound(Key::MAX), 3);
        assert_eq!(leaf.item(3), None);
    }

    #[test]
    fn items_that_do_not_fit_are_not_encoded() {
        let data = vec![0; 4096 - HEADER_BYTES - ITEM_BYTES];
        let mut block = vec![0; 4096];
        let header = sample(0, 0);
        assert!(encode(&mut block, &header, [(key(1), &data[..])]));
        let items = [(key(1), &data[..]), (key(2), &[][..])];
        assert!(!encode(&mut block, &header, items));
    }

    #[test]
    fn broken_leaves_are_refused() {
        let good = block(&[(key(1), b"one"), (key(2), b"two")]);
        let broken = |change: &dyn Fn(&mut [DiskItem])| {
            let mut block = good.clone();
            let area = &mut block[HEADER_BYTES..];
            let (items, _) = <[DiskItem]>::mut_from_prefix_with_elems(area, 2).unwrap();
            change(items);
            Leaf::verify(&block, Locus::UNKNOWN).unwrap_err().rule
        };
        let rule = broken(&|items| items[1].key = items[0].key);
        assert_eq!(rule, LeafRule::KeyOrder);
        let rule = broken(&|items| items[0].len_bytes.set(2));
        assert_eq!(rule, LeafRule::ItemOffset);
        let rule = broken(&|items| items[1].offset.set(u32::MAX));
        assert_eq!(rule, LeafRule::ItemOffset);
        let rule = broken(&|items| {
            let end = items[0].offset.get();
            items[1].offset.set(10);
            items[1].len_bytes.set(end - 10);
        });
        assert_eq!(rule, LeafRule::Overlap);
        let mut block = good;
        let (header, _) = DiskHeader::mut_from_prefix(&mut block[..]).unwrap();
        header.item_count.set(1 << 20);
        let rule = Leaf::verify(&block, Locus::UNKNOWN).unwrap_err().rule;
        assert_eq!(rule, LeafRule::ItemCount);
    }
}
