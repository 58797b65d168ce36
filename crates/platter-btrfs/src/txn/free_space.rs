//! The free space tree: extents or bitmaps of each block group, whichever takes less space.

use std::ops::Range;

use platter_ondisk::{Corrupt, rules};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::Editor;
use crate::block_group::{BlockGroup, Ranges};
use crate::ondisk::Key;
use crate::ondisk::free_space::{BITMAP_BITS, FreeSpaceFlags, FreeSpaceInfo};
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;

rules! {
    /// The rules of the free space tree that is changed.
    pub(super) enum FreeSpaceTreeRule of "free space tree" {
        /// Each block group has an info item.
        NoInfo => "missing free space info for block group",
        /// What is allocated was free, and what is freed was not.
        Range => "free space does not match the extents",
    }
}

/// The number of extents that a group has at most, and that it has at least with bitmaps.
///
/// More extents than that take more space than bitmaps; a hundred fewer, so that the form does not change
/// back and forth.
pub(super) fn thresholds(len_bytes: u64, sector_bytes: u64) -> (u32, u32) {
    const SLACK: u64 = 100;
    let bitmaps = len_bytes.div_ceil(BITMAP_BITS * sector_bytes);
    let bytes = bitmaps * (ITEM_BYTES as u64 + BITMAP_BITS / 8);
    let high = bytes / ITEM_BYTES as u64;
    let low = high.saturating_sub(SLACK);
    let clamp = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    (clamp(high), clamp(low))
}

/// The free space of a group in the free space tree, which is locked.
pub(super) struct GroupSpace<'a, 'e, 'f> {
    pub(super) editor: &'a mut Editor<'e, 'f>,
    pub(super) group: &'a BlockGroup,
    pub(super) sector_bytes: u64,
}

impl GroupSpace<'_, '_, '_> {
    fn info_key(&self) -> Key {
        let group = self.group;
        Key::new(
            group.start().0,
            ItemKind::FREE_SPACE_INFO,
            group.len_bytes(),
        )
    }

    fn broken(&self, at: u64, rule: FreeSpaceTreeRule) -> platter_vfs::Error {
        let key = Key::new(at, ItemKind::FREE_SPACE_EXTENT, 0);
        Corrupt::new(self.editor.tree().locus(key), rule).into()
    }

    fn info(&self) -> Result<FreeSpaceInfo> {
        let key = self.info_key();
        let data = self.editor.get(key)?;
        let data = data.ok_or_else(|| self.broken(key.object, FreeSpaceTreeRule::NoInfo))?;
        Ok(FreeSpaceInfo::decode(&data, self.editor.tree().locus(key))?)
    }

    fn set_info(&mut self, info: FreeSpaceInfo) -> Result<()> {
        let key = self.info_key();
        self.editor.set(key, info.encode().as_bytes())
    }

    /// A range is allocated.
    pub(super) fn remove(&mut self, range: &Range<u64>) -> Result<()> {
        self.change(range, false)
    }

    /// A range is free.
    pub(super) fn add(&mut self, range: &Range<u64>) -> Result<()> {
        self.change(range, true)
    }

    fn change(&mut self, range: &Range<u64>, is_freed: bool) -> Result<()> {
        let mut info = self.info()?;
        let uses_bitmaps = info.flags.contains(FreeSpaceFlags::USING_BITMAPS);
        let difference = match (uses_bitmaps, is_freed) {
            (false, true) => self.add_extent(range)?,
            (false, false) => self.remove_extent(range)?,
            (true, _) => self.change_bits(range, is_freed)?,
        };
        let count = info.extent_count.checked_add_signed(difference);
        let count = count.ok_or_else(|| self.broken(range.start, FreeSpaceTreeRule::Range))?;
        info.extent_count = count;
        let (high, low) = thresholds(self.group.len_bytes(), self.sector_bytes);
        if !uses_bitmaps && count > high {
            self.convert(FreeSpaceFlags::USING_BITMAPS)?;
            info.flags = FreeSpaceFlags::USING_BITMAPS;
        } else if uses_bitmaps && count < low {
            self.convert(FreeSpaceFlags::empty())?;
            info.flags = FreeSpaceFlags::empty();
        }
        self.set_info(info)
    }

    /// The extent that an address is in, or ends at.
    fn extent_at_or_before(&self, address: u64) -> Result<Option<Range<u64>>> {
        let key = Key::new(address, ItemKind::FREE_SPACE_EXTENT, u64::MAX);
        let found = self.editor.at_or_before(key)?;
        let found = found.filter(|(key, _)| {
            key.kind == ItemKind::FREE_SPACE_EXTENT && key.object >= self.group.start().0
        });
        Ok(found.map(|(key, _)| key.object..key.object.saturating_add(key.offset)))
    }

    fn insert_extent(&mut self, range: &Range<u64>) -> Result<()> {
        self.editor.insert(extent_key(range), &[])
    }

    /// Removes a part of a free extent. Returns by how much their number changed.
    fn remove_extent(&mut self, range: &Range<u64>) -> Result<i32> {
        let found = self.extent_at_or_before(range.start)?;
        let found = found.filter(|found| found.end >= range.end);
        let found = found.ok_or_else(|| self.broken(range.start, FreeSpaceTreeRule::Range))?;
        self.editor.remove(extent_key(&found))?;
        let mut difference = -1;
        for rest in [found.start..range.start, range.end..found.end] {
            if !rest.is_empty() {
                self.insert_extent(&rest)?;
                difference += 1;
            }
        }
        Ok(difference)
    }

    /// Adds a free extent, which becomes one with its neighbours. Returns by how much their number changed.
    fn add_extent(&mut self, range: &Range<u64>) -> Result<i32> {
        let mut merged = range.clone();
        let mut difference = 1;
        if let Some(before) = self.extent_at_or_before(range.start)? {
            if before.end > range.start {
                return Err(self.broken(range.start, FreeSpaceTreeRule::Range));
            }
            if before.end == range.start {
                self.editor.remove(extent_key(&before))?;
                merged.start = before.start;
                difference -= 1;
            }
        }
        if range.end < self.group.end().0 {
            let key = Key::new(range.end, ItemKind::FREE_SPACE_EXTENT, 0);
            let after = self.editor.at_or_after(key)?;
            if let Some((key, _)) = after
                && key.object == range.end
                && key.kind == ItemKind::FREE_SPACE_EXTENT
            {
                self.editor.remove(key)?;
                merged.end = key.object + key.offset;
                difference -= 1;
            }
        }
        self.insert_extent(&merged)?;
        Ok(difference)
    }

    /// The key of the bitmap that an address is in.
    fn bitmap_key(&self, address: u64) -> Key {
        let span = BITMAP_BITS * self.sector_bytes;
        let group = self.group;
        let start = group.start().0 + (address - group.start().0) / span * span;
        let len_bytes = span.min(group.end().0 - start);
        Key::new(start, ItemKind::FREE_SPACE_BITMAP, len_bytes)
    }

    fn bit(&self, address: u64) -> Result<bool> {
        let key = self.bitmap_key(address);
        let data = self.editor.get(key)?;
        let index = (address - key.object) / self.sector_bytes;
        let byte = data.and_then(|data| data.get(byte_of(index)).copied());
        let byte = byte.ok_or_else(|| self.broken(address, FreeSpaceTreeRule::Range))?;
        Ok(byte & mask_of(index) != 0)
    }

    /// Sets or clears the bits of a range. Returns by how much the number of free extents changed.
    fn change_bits(&mut self, range: &Range<u64>, is_freed: bool) -> Result<i32> {
        let sector_bytes = self.sector_bytes;
        let group = self.group.start().0..self.group.end().0;
        let before = range.start > group.start && self.bit(range.start - sector_bytes)?;
        let after = range.end < group.end && self.bit(range.end)?;
        let mut at = range.start;
        while at < range.end {
            let key = self.bitmap_key(at);
            let end = range.end.min(key.object + key.offset);
            let bits = (at - key.object) / sector_bytes..(end - key.object) / sector_bytes;
            let is_right = self.editor.edit(key, |data| {
                for index in bits {
                    let Some(byte) = data.get_mut(byte_of(index)) else {
                        return false;
                    };
                    if (*byte & mask_of(index) != 0) == is_freed {
                        return false;
                    }
                    *byte ^= mask_of(index);
                }
                true
            })?;
            if !is_right {
                return Err(self.broken(at, FreeSpaceTreeRule::Range));
            }
            at = end;
        }
        let neighbours = i32::from(before) + i32::from(after);
        // A run of its own, one that joins two, or a part of one.
        Ok(if is_freed {
            1 - neighbours
        } else {
            neighbours - 1
        })
    }

    /// All free ranges, as the items have them.
    fn ranges(&self) -> Result<Ranges> {
        let mut ranges = Ranges::default();
        let group = self.group;
        let mut cursor = self.editor.cursor();
        cursor.seek(Key::new(group.start().0, ItemKind::FREE_SPACE_EXTENT, 0))?;
        while let Some((key, data)) = cursor.item()
            && key.object < group.end().0
        {
            if key.kind == ItemKind::FREE_SPACE_EXTENT {
                ranges.add(key.object..key.object.saturating_add(key.offset));
            } else {
                for index in 0..key.offset / self.sector_bytes {
                    let byte = data.get(byte_of(index)).copied().unwrap_or_default();
                    if byte & mask_of(index) != 0 {
                        let start = key.object + index * self.sector_bytes;
                        ranges.add(start..start + self.sector_bytes);
                    }
                }
            }
            cursor.step()?;
        }
        Ok(ranges)
    }

    /// Replaces all items but the info by those of the other form.
    fn convert(&mut self, form: FreeSpaceFlags) -> Result<()> {
        let ranges = self.ranges()?;
        let group = self.group.start().0..self.group.end().0;
        let first = Key::new(group.start, ItemKind::FREE_SPACE_EXTENT, 0);
        let last = Key::new(group.end - 1, ItemKind(u8::MAX), u64::MAX);
        self.editor.remove_range(first, last)?;
        self.insert_ranges(&ranges, form)
    }

    /// Inserts all items of a group of which the tree has none.
    pub(super) fn fill(&mut self, free: &Ranges) -> Result<()> {
        let (high, _) = thresholds(self.group.len_bytes(), self.sector_bytes);
        let extent_count = u32::try_from(free.count()).unwrap_or(u32::MAX);
        let flags = if extent_count > high {
            FreeSpaceFlags::USING_BITMAPS
        } else {
            FreeSpaceFlags::empty()
        };
        self.set_info(FreeSpaceInfo {
            extent_count,
            flags,
        })?;
        self.insert_ranges(free, flags)
    }

    /// Inserts the items of free ranges.
    fn insert_ranges(&mut self, ranges: &Ranges, form: FreeSpaceFlags) -> Result<()> {
        let group = self.group.start().0..self.group.end().0;
        if form.is_empty() {
            return ranges
                .iter()
                .try_for_each(|range| self.insert_extent(&range));
        }
        let mut at = group.start;
        while at < group.end {
            let key = self.bitmap_key(at);
            let sectors = key.offset / self.sector_bytes;
            let mut bytes = vec![0; byte_of(sectors.next_multiple_of(8))];
            for index in 0..sectors {
                let start = at + index * self.sector_bytes;
                if ranges.intersects(&(start..start + self.sector_bytes)) {
                    bytes[byte_of(index)] |= mask_of(index);
                }
            }
            self.editor.insert(key, &bytes)?;
            at += key.offset;
        }
        Ok(())
    }
}

fn extent_key(range: &Range<u64>) -> Key {
    Key::new(
        range.start,
        ItemKind::FREE_SPACE_EXTENT,
        range.end - range.start,
    )
}

fn byte_of(index: u64) -> usize {
    usize::try_from(index / 8).unwrap_or(usize::MAX)
}

fn mask_of(index: u64) -> u8 {
    1 << (index % 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_where_bitmaps_take_less_space() {
        // A group of 1 GiB has 128 bitmaps of 281 bytes with their headers, as much as 1438 extents.
        assert_eq!(thresholds(1 << 30, 4096), (1438, 1338));
        assert_eq!(thresholds(8 << 20, 4096), (11, 0));
    }
}
