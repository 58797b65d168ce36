//! An allocation group in memory: what all threads read of it apart from its locks; and the table of all
//! groups, which a reader walks without a lock while it grows.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use platter_ondisk::endian::join_u32;

use super::classes::{Classed, classed};
use crate::ondisk::{AgNr, Geometry};

/// An allocation group in memory (`struct xfs_perag`).
///
/// # Invariants
/// The blocks that may hold inodes are one word, so that a reader never has the first of before and the
/// last of after a change.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct PerAg {
    number: AgNr,
    len_blocks: AtomicU32,
    inode_blocks: AtomicU64,
}

classed!(PerAg {
    ReadOnly: number;
    Rare: len_blocks, inode_blocks;
});
const _: () = assert!(PerAg::LAYOUT.is_parted());

impl PerAg {
    fn new(number: AgNr, geometry: &Geometry) -> Self {
        let group = Self {
            number,
            len_blocks: AtomicU32::new(0),
            inode_blocks: AtomicU64::new(0),
        };
        group.measure(geometry);
        group
    }

    /// Takes over how far the group reaches.
    fn measure(&self, geometry: &Geometry) {
        let inodes = geometry.inode_blocks(self.number, geometry.sector_units_bits());
        let inodes = join_u32(inodes.start, inodes.end);
        self.len_blocks
            .store(geometry.ag_len(self.number), Ordering::Relaxed);
        self.inode_blocks.store(inodes, Ordering::Relaxed);
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> AgNr {
        self.number
    }

    /// Its blocks.
    #[must_use]
    pub fn len_blocks(&self) -> u32 {
        self.len_blocks.load(Ordering::Relaxed)
    }

    /// The blocks that may hold inodes.
    #[must_use]
    pub fn inode_blocks(&self) -> Range<u32> {
        let word = self.inode_blocks.load(Ordering::Relaxed);
        let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
        half(word >> 32)..half(word)
    }
}

/// Shelves of the table: the first has one place, and each other one as many as all before it.
const SHELVES: usize = 33;

type Shelf<T> = Box<[OnceLock<T>]>;

/// Objects by number, on shelves that never move: one is found without a lock while there come to be more.
#[derive(Debug)]
pub struct Shelves<T> {
    shelves: [OnceLock<Shelf<T>>; SHELVES],
}

impl<T> Default for Shelves<T> {
    fn default() -> Self {
        Self {
            shelves: [const { OnceLock::new() }; SHELVES],
        }
    }
}

impl<T> Shelves<T> {
    /// The object with this number, which is made at its first use.
    pub fn get(&self, number: AgNr, fresh: impl FnOnce() -> T) -> &T {
        let (shelf, place) = locate(number);
        let places = || {
            let count = 1_usize << shelf.saturating_sub(1);
            (0..count).map(|_| OnceLock::new()).collect()
        };
        let shelf = self.shelves[shelf].get_or_init(places);
        shelf[place].get_or_init(fresh)
    }

    /// The objects that were made.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let shelves = self.shelves.iter().filter_map(OnceLock::get);
        shelves.flatten().filter_map(OnceLock::get)
    }
}

/// All groups by number. A group may be found before the superblock counts it; it is then as long as the
/// geometry says, which is zero.
#[derive(Debug, Default)]
pub struct PerAgTable {
    groups: Shelves<Arc<PerAg>>,
}

impl PerAgTable {
    /// The group with this number, whose object is made at its first use. The number is one that the device
    /// is long enough for, or a few more: the table grows with it.
    pub fn get(&self, number: AgNr, geometry: &Geometry) -> Arc<PerAg> {
        let fresh = || Arc::new(PerAg::new(number, geometry));
        Arc::clone(self.groups.get(number, fresh))
    }

    /// Takes over how far groups reach, after the geometry changed.
    pub(super) fn measure(&self, geometry: &Geometry) {
        self.groups.iter().for_each(|group| group.measure(geometry));
    }
}

fn locate(number: AgNr) -> (usize, usize) {
    let Some(bits) = number.0.checked_ilog2() else {
        return (0, 0);
    };
    let place = number.0 - (1 << bits);
    (bits as usize + 1, place as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::{FsSize, Growth};

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let places: Vec<_> = (0..1025).map(|number| locate(AgNr(number))).collect();
        for (number, &(shelf, place)) in places.iter().enumerate() {
            assert!(place < 1 << shelf.saturating_sub(1), "{number}");
            assert!(number == 0 || places[number - 1] < (shelf, place));
        }
        assert_eq!(locate(AgNr(u32::MAX)), (32, (1 << 31) - 1));
    }

    #[test]
    fn group_is_one_object_and_grows_in_place() {
        let mut geometry = sample_geometry();
        let table = PerAgTable::default();
        let (last, beyond) = (table.get(AgNr(3), &geometry), table.get(AgNr(4), &geometry));
        assert!(Arc::ptr_eq(&last, &table.get(AgNr(3), &geometry)));
        assert_eq!((last.len_blocks(), last.number()), (4096, AgNr(3)));
        assert_eq!((beyond.len_blocks(), beyond.inode_blocks().len()), (0, 0));
        geometry.growth = Growth::new(FsSize {
            ag_count: 5,
            data_blocks: 4 * 4096 + 1024,
        });
        table.measure(&geometry);
        assert_eq!(beyond.len_blocks(), 1024);
        assert_eq!(beyond.inode_blocks(), geometry.inode_blocks(AgNr(4), 0));
    }
}
