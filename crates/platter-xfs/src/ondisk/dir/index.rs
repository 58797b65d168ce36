//! Leaves and free indexes of version 5 changed in place. What is changed is added to the chunks of the block.
//! Spec: `xfs/directories`.

use std::ops::Range;

use platter_ondisk::endian::Be16;
use zerocopy::{FromBytes, IntoBytes};

use super::build::{HashEntry, LEAF_ENTRY, PADDING};
use super::data::DiskDirHeaderV5;
use super::free::{self, DiskFreeCounts, NO_FREE};
use super::leaf::{DiskLeafCounts, DiskLeafEntry};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::da::{DaKind, DiskDaHeaderV5};

/// The counts of a leaf that is one of several, and all its places for entries; `None` if some of them are of names
/// that were removed.
fn leaf_parts(bytes: &mut [u8]) -> Option<(&mut DiskLeafCounts, &mut [DiskLeafEntry])> {
    let (header, rest) = DiskDaHeaderV5::mut_from_prefix(bytes).ok()?;
    if header.common.magic.get() != DaKind::DirLeafN.magic(true) {
        return None;
    }
    let (counts, rest) = DiskLeafCounts::mut_from_prefix(rest).ok()?;
    let rest = rest.get_mut(PADDING..)?;
    let most = rest.len().checked_div(LEAF_ENTRY)?;
    let (entries, _) = <[DiskLeafEntry]>::mut_from_prefix_with_elems(rest, most).ok()?;
    (counts.stale.get() == 0).then_some((counts, entries))
}

/// Adds the chunks of these entries of a leaf, and of its counts.
fn note_entries(within: &mut Chunks, entries: Range<usize>) {
    let counts = size_of::<DiskDaHeaderV5>();
    let first = counts
        .saturating_add(size_of::<DiskLeafCounts>())
        .saturating_add(PADDING);
    let at = |entry: usize| first.saturating_add(entry.saturating_mul(LEAF_ENTRY));
    within.add_bytes(counts..first);
    within.add_bytes(at(entries.start)..at(entries.end));
}

/// Adds an entry to a leaf that is one of several, after all others whose hash is not greater. Returns the greatest
/// hash; `None`, and nothing changed, if it does not fit, or has entries of removed names.
#[must_use]
pub fn insert_in_leaf(
    bytes: &mut [u8],
    within: &mut Chunks,
    (hash, address): HashEntry,
) -> Option<u32> {
    let (counts, entries) = leaf_parts(bytes)?;
    let count = usize::from(counts.count.get());
    let more = counts.count.get().checked_add(1)?;
    let entries = entries.get_mut(..usize::from(more))?;
    let sorted = entries.get(..count)?;
    let at = sorted.partition_point(|other| other.hash.get() <= hash);
    entries.copy_within(at..count, at.checked_add(1)?);
    *entries.get_mut(at)? = DiskLeafEntry {
        hash: hash.into(),
        address: address.into(),
    };
    counts.count.set(more);
    note_entries(within, at..usize::from(more));
    entries.last().map(|last| last.hash.get())
}

/// Takes an entry out of a leaf that is one of several. Returns the greatest hash that is left; `None`, and nothing
/// changed, if it has no such entry, or none but that, or entries of removed names.
#[must_use]
pub fn remove_from_leaf(
    bytes: &mut [u8],
    within: &mut Chunks,
    (hash, address): HashEntry,
) -> Option<u32> {
    let (counts, entries) = leaf_parts(bytes)?;
    let less = counts.count.get().checked_sub(1).filter(|&less| less > 0)?;
    let entries = entries.get_mut(..=usize::from(less))?;
    let first = entries.partition_point(|other| other.hash.get() < hash);
    let same = entries.get_mut(first..)?;
    let mut of_hash = same.iter().take_while(|other| other.hash.get() == hash);
    let at = of_hash.position(|other| other.address.get() == address)?;
    same.get_mut(at..)?.copy_within(1.., 0);
    let (last, left) = entries.split_last_mut()?;
    last.as_mut_bytes().fill(0);
    counts.count.set(less);
    note_entries(
        within,
        first.checked_add(at)?..usize::from(less).checked_add(1)?,
    );
    left.last().map(|last| last.hash.get())
}

/// Stores the longest free region of a block of entries in its free index; `None`, and nothing changed, if the
/// index does not say that the block exists, or is none.
#[must_use]
pub fn set_free(bytes: &mut [u8], within: &mut Chunks, place: usize, best: u16) -> Option<()> {
    let (header, rest) = DiskDirHeaderV5::mut_from_prefix(bytes).ok()?;
    if header.magic.get() != free::magic(true) {
        return None;
    }
    let (counts, rest) = DiskFreeCounts::mut_from_prefix(rest).ok()?;
    let valid = usize::try_from(counts.valid.get()).ok()?;
    let rest = rest.get_mut(PADDING..)?;
    let (slots, _) = <[Be16]>::mut_from_prefix_with_elems(rest, valid).ok()?;
    let slot = slots.get_mut(place)?;
    (slot.get() != NO_FREE).then(|| {
        if slot.get() == best {
            return;
        }
        slot.set(best);
        let start = size_of::<DiskDirHeaderV5>()
            .saturating_add(size_of::<DiskFreeCounts>())
            .saturating_add(PADDING)
            .saturating_add(place.saturating_mul(size_of::<Be16>()));
        within.add_bytes(start..start.saturating_add(size_of::<Be16>()));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::da::DaLinks;
    use crate::ondisk::dir::build;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::identity::Site;
    use crate::ondisk::types::BasicBlock;

    const LINKS: DaLinks = DaLinks {
        next: Some(7),
        previous: Some(5),
    };

    fn built(entries: &[HashEntry]) -> Vec<u8> {
        let geometry = sample_geometry();
        build::leaf(entries, LINKS, &Site::new(&geometry, BasicBlock(80), 131)).unwrap()
    }

    /// Inserts as the tree does that builds leaves again.
    fn insert(entries: &mut Vec<HashEntry>, entry: HashEntry) {
        let at = entries.partition_point(|other| other.0 <= entry.0);
        entries.insert(at, entry);
    }

    #[test]
    fn leaf_changed_in_place_is_the_one_that_is_built() {
        let most = build::leaf_entries_max(&sample_geometry());
        let mut entries: Vec<HashEntry> = Vec::new();
        let mut bytes = built(&entries);
        let mut number = 1_u32;
        let mut random = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number >> 8
        };
        for step in 0..6000_u32 {
            // It grows at first, and shrinks at the end; hashes repeat.
            let grows = random() % 6000 > step;
            let (before, mut within) = (bytes.clone(), Chunks::default());
            if grows || entries.is_empty() {
                let entry = (random() % 64, step + 1);
                let inserted = insert_in_leaf(&mut bytes, &mut within, entry);
                assert_eq!(inserted.is_some(), entries.len() < most, "{step}");
                if inserted.is_some() {
                    insert(&mut entries, entry);
                    assert_eq!(inserted, entries.last().map(|last| last.0));
                }
            } else {
                let place = random() as usize % entries.len();
                let entry = entries[place];
                let other = (entry.0, u32::MAX);
                assert_eq!(remove_from_leaf(&mut bytes, &mut within, other), None);
                let removed = remove_from_leaf(&mut bytes, &mut within, entry);
                assert_eq!(removed.is_some(), entries.len() > 1, "{step}");
                if removed.is_some() {
                    entries.remove(place);
                    assert_eq!(removed, entries.last().map(|last| last.0));
                }
            }
            assert!(bytes == built(&entries), "{step}");
            let differ = Chunks::between(Some(&before), &bytes, within);
            let all = Chunks::between(Some(&before), &bytes, Chunks::ALL);
            assert_eq!(differ, all, "{step}");
        }
    }

    #[test]
    fn leaf_with_stale_entries_is_left_alone() {
        let mut bytes = built(&[(1, 1), (2, 2)]);
        let (_, rest) = DiskDaHeaderV5::mut_from_prefix(&mut bytes).unwrap();
        DiskLeafCounts::mut_from_prefix(rest)
            .unwrap()
            .0
            .stale
            .set(1);
        let (before, mut within) = (bytes.clone(), Chunks::default());
        assert_eq!(insert_in_leaf(&mut bytes, &mut within, (3, 3)), None);
        assert_eq!(remove_from_leaf(&mut bytes, &mut within, (1, 1)), None);
        assert_eq!(bytes, before);
    }

    #[test]
    fn free_index_is_set_only_where_a_block_exists() {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let built = |bests: &[u16]| build::free_index(0, bests, &site).unwrap();
        let (mut bytes, mut within) = (built(&[8, NO_FREE, 16]), Chunks::default());
        let before = bytes.clone();
        assert_eq!(set_free(&mut bytes, &mut within, 2, 24), Some(()));
        assert_eq!(bytes, built(&[8, NO_FREE, 24]));
        assert_eq!(Chunks::between(Some(&before), &bytes, within), within);
        assert_eq!(set_free(&mut bytes, &mut within, 1, 24), None);
        assert_eq!(set_free(&mut bytes, &mut within, 3, 24), None);
        assert_eq!(bytes, built(&[8, NO_FREE, 24]));
        let mut leaf = self::built(&[(1, 1), (2, 2)]);
        assert_eq!(set_free(&mut leaf, &mut within, 0, 24), None);
        assert_eq!(leaf, self::built(&[(1, 1), (2, 2)]));
    }
}
