//! Locations of the metadata of new groups. Spec: `ext4/blockgroup`.

use std::ops::Range;

use platter_vfs::{Condition, Result};

use crate::groups::layout::{head, own};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr};

/// The descriptors of new groups, and the blocks of their metadata.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The first new group.
    first: GroupNr,
    pub(crate) descs: Vec<GroupDesc>,
    /// Ascending, with adjacent ranges merged.
    taken: Vec<Range<u64>>,
}

impl Layout {
    /// Places bitmaps and inode tables of all groups from `from` on: those of a flex group
    /// together, if they fit.
    ///
    /// # Errors
    /// `NoSpace` if a group cannot hold its own metadata.
    pub(crate) fn place(geometry: &Geometry, from: GroupNr) -> Result<Self> {
        let mut descs = Vec::new();
        let mut first = from.0;
        while first < geometry.groups_count {
            let flex = geometry.groups_per_flex;
            let end = (first - first % flex)
                .saturating_add(flex)
                .min(geometry.groups_count);
            let groups = first..end;
            let together = place_together(geometry, groups.clone());
            match together {
                Some(placed) => descs.extend(placed),
                None => {
                    for group in groups {
                        let alone = place_together(geometry, group..group + 1);
                        descs.extend(alone.ok_or(Condition::NoSpace)?);
                    }
                }
            }
            first = end;
        }
        let mut taken: Vec<Range<u64>> = Vec::new();
        for (group, desc) in (from.0..).map(GroupNr).zip(&descs) {
            taken.push(head(geometry, group));
            taken.extend(own(geometry, desc));
        }
        taken.retain(|range| !range.is_empty());
        taken.sort_unstable_by_key(|range| range.start);
        taken.dedup_by(|later, earlier| {
            let touches = earlier.end == later.start;
            if touches {
                earlier.end = later.end;
            }
            touches
        });
        Ok(Self {
            first: from,
            descs,
            taken,
        })
    }

    /// Returns the groups with their descriptors.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupNr, &GroupDesc)> {
        (self.first.0..).map(GroupNr).zip(&self.descs)
    }

    /// Returns the metadata blocks of a group.
    pub(super) fn taken_in(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .taken
            .partition_point(|range| range.end <= blocks.start);
        let rest = self.taken.get(first..).unwrap_or_default().iter();
        let end = blocks.end;
        rest.take_while(move |range| range.start < end)
            .map(move |range| range.start.max(blocks.start)..range.end.min(blocks.end))
    }

    /// Whether a group's block bitmap follows from its descriptor and the geometry.
    pub(super) fn is_plain(&self, geometry: &Geometry, group: GroupNr) -> bool {
        let blocks = blocks_of(geometry, group);
        let taken: u64 = self.taken_in(blocks.clone()).map(|range| len(&range)).sum();
        let index = group.0.checked_sub(self.first.0);
        let Some(desc) = index.and_then(|index| self.descs.get(index as usize)) else {
            return false;
        };
        let inside = |range: &Range<u64>| range.start >= blocks.start && range.end <= blocks.end;
        let own = own(geometry, desc).into_iter().filter(inside);
        let expected: u64 = own.map(|range| len(&range)).sum();
        taken == expected + len(&head(geometry, group))
    }
}

/// Returns the blocks of a group.
pub(super) fn blocks_of(geometry: &Geometry, group: GroupNr) -> Range<u64> {
    let first = geometry.group_first_block(group).0;
    first..first + u64::from(geometry.group_blocks(group))
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// Places the metadata of some groups contiguously from the start of the first: block bitmaps,
/// inode bitmaps, inode tables. Returns `None` if it does not fit into those groups.
fn place_together(geometry: &Geometry, groups: Range<u32>) -> Option<Vec<GroupDesc>> {
    let mut cursor = Cursor {
        geometry,
        at: geometry.group_first_block(GroupNr(groups.start)).0,
        end: blocks_of(geometry, GroupNr(groups.end - 1)).end,
    };
    let mut place = |count: u32| -> Option<Vec<BlockNr>> {
        groups.clone().map(|_| cursor.take(count)).collect()
    };
    let (blocks, inodes) = (place(1)?, place(1)?);
    let tables = place(geometry.inode_table_blocks)?;
    let places = blocks.into_iter().zip(inodes).zip(tables);
    let desc = |((block_bitmap, inode_bitmap), inode_table)| GroupDesc {
        block_bitmap,
        inode_bitmap,
        inode_table,
        free_clusters: 0,
        free_inodes: geometry.inodes_per_group,
        used_dirs: 0,
        unused_inodes: 0,
        flags: GroupFlags::empty(),
        stored_flags: GroupFlags::empty(),
        block_bitmap_checksum: 0,
        inode_bitmap_checksum: 0,
    };
    Some(places.map(desc).collect())
}

/// Iterates over the blocks of some groups, skipping superblock and descriptor copies.
struct Cursor<'g> {
    geometry: &'g Geometry,
    at: u64,
    end: u64,
}

impl Cursor<'_> {
    /// Returns the next `count` contiguous blocks.
    fn take(&mut self, count: u32) -> Option<BlockNr> {
        loop {
            let end = self.at.checked_add(u64::from(count))?;
            if end > self.end {
                return None;
            }
            let first = self.geometry.group_of_block(BlockNr(self.at))?;
            let last = self.geometry.group_of_block(BlockNr(end - 1))?;
            let in_the_way = (first.0..=last.0)
                .map(|group| head(self.geometry, GroupNr(group)))
                .find(|head| head.start < end && self.at < head.end);
            let Some(head) = in_the_way else {
                let start = BlockNr(self.at);
                self.at = end;
                return Some(start);
            };
            self.at = head.end;
        }
    }
}
