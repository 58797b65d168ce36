//! The mount object: geometry that all threads read, apart from what they write.
//!
//! Each check of an inode number reads the geometry of the mount, and each transaction writes to the gate and
//! the counters. If the two shared a cache line, every transaction would invalidate the line for every other
//! processor that looks at an inode number. The classes of all fields are tables that the compiler checks.

mod classes;
mod padded;
mod layouts;
mod counter;
mod group;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use platter_cache::layout::Layout as FieldLayout;
use platter_vfs::Result;
use platter_vfs::writing::{FreezeGate, Writer};

use crate::ondisk::{AgNr, FsSize, Geometry, InodeLocation, InodeNr, Superblock};

use classes::classed;

pub use classes::Classed;
pub use counter::StripedCounter;
pub use group::{PerAg, PerAgTable, Shelves};
pub use layouts::{ActiveSlot, Counterless, MountLayout, Packed, Separated, ShiftSlot};
pub use padded::Padded;

/// The layout of the mount object of the driver.
#[cfg(not(any(feature = "packed", feature = "separated")))]
pub type Layout = Counterless;
/// The layout of the mount object of the driver.
#[cfg(feature = "packed")]
pub type Layout = Packed;
/// The layout of the mount object of the driver.
#[cfg(all(feature = "separated", not(feature = "packed")))]
pub type Layout = Separated;

/// The mount object of the driver.
pub type Mount = XfsMount<Layout>;

#[cfg(any(test, feature = "bench"))]
thread_local! {
    static CHECKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Inode numbers that this thread has checked.
#[cfg(any(test, feature = "bench"))]
#[must_use]
pub fn checks_of_thread() -> u64 {
    CHECKS.get()
}

/// Batches of the counters of inodes and of blocks (`XFS_ICOUNT_BATCH`, `XFS_FDBLOCKS_BATCH`).
const INODES_BATCH: i64 = 128;
const BLOCKS_BATCH: i64 = 1024;
/// Blocks of each group that Linux keeps for the B-trees of its free space.
const SET_ASIDE_PER_GROUP: u64 = 8;

/// What all threads of a mounted filesystem share (`struct xfs_mount`).
#[derive(Debug)]
#[repr(C, align(128))]
pub struct XfsMount<L: MountLayout = Counterless> {
    geometry: Geometry,
    sector_shift: L::Apart,
    written: Written<L>,
    gate: FreezeGate,
    free_blocks: StripedCounter,
    inodes: StripedCounter,
    free_inodes: StripedCounter,
    groups: Padded<PerAgTable>,
}

/// What transactions write.
#[derive(Debug)]
#[repr(C, align(128))]
struct Written<L: MountLayout> {
    sector_shift: L::Adjacent,
    active: L::Active,
    inode_rotor: AtomicU32,
}

classed!(XfsMount<L> {
    ReadOnly: geometry, sector_shift;
    Apart: written, gate, free_blocks, inodes, free_inodes, groups;
});
classed!(Written<L> {
    ReadOnly: sector_shift;
    Hot: active, inode_rotor;
});
classed!(Geometry {
    ReadOnly: features, meta_uuid, sector_bits, block_bits, inode_bits, dir_block_bits, ag_block_bits,
        ag_blocks, rt_blocks, rt_extent_blocks, rt_group_block_bits, rt_group_blocks, rt_group_count,
        inode_alignment, sparse_inode_alignment;
    Rare: growth;
});

const _: () = {
    assert!(XfsMount::<Counterless>::LAYOUT.is_parted());
    assert!(XfsMount::<Separated>::LAYOUT.is_parted());
    assert!(Written::<Counterless>::LAYOUT.is_parted());
    assert!(Written::<Separated>::LAYOUT.is_parted());
    // The layout that the others are compared with.
    assert!(!Written::<Packed>::LAYOUT.is_parted());
};

/// Where the fields of the driver's mount object lie, and those of a group.
pub const LAYOUTS: [FieldLayout; 3] = [Mount::LAYOUT, Written::<Layout>::LAYOUT, PerAg::LAYOUT];

/// A transaction that runs, until it is dropped. It is counted only once it is past the gate.
#[derive(Debug)]
#[must_use]
pub struct Running<'m, L: MountLayout = Layout> {
    active: &'m L::Active,
    _writer: Writer<'m>,
}

impl<L: MountLayout> XfsMount<L> {
    /// The mount object of a filesystem.
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        let geometry = Geometry::new(superblock);
        let shift = geometry.sector_units_bits();
        let count = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let set_aside = count(set_aside(&geometry));
        let blocks = count(superblock.free_data_blocks);
        Self {
            sector_shift: L::Apart::new(shift),
            written: Written {
                sector_shift: L::Adjacent::new(shift),
                active: L::Active::default(),
                inode_rotor: AtomicU32::new(0),
            },
            gate: FreezeGate::default(),
            free_blocks: StripedCounter::new(blocks, BLOCKS_BATCH, set_aside),
            inodes: StripedCounter::new(count(superblock.inode_count), INODES_BATCH, 0),
            free_inodes: StripedCounter::new(count(superblock.free_inodes), INODES_BATCH, 0),
            groups: Padded::default(),
            geometry,
        }
    }

    /// Sizes and counts.
    #[inline]
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Size of a sector in basic blocks, as a power of two, from where the layout keeps it.
    #[inline]
    #[must_use]
    pub fn sector_shift(&self) -> u8 {
        let apart = self.sector_shift.get();
        apart
            .or(self.written.sector_shift.get())
            .unwrap_or_default()
    }

    /// Where an inode lies; `None` for a number that no inode can have (`xfs_verify_ino`).
    #[must_use]
    pub fn locate_inode(&self, inode: InodeNr) -> Option<InodeLocation> {
        #[cfg(any(test, feature = "bench"))]
        CHECKS.set(CHECKS.get() + 1);
        self.geometry.locate_inode_after(inode, self.sector_shift())
    }

    /// Begins a transaction; waits while the filesystem is frozen.
    pub fn begin(&self) -> Running<'_, L> {
        let writer = self.gate.enter();
        self.written.active.enter();
        Running {
            active: &self.written.active,
            _writer: writer,
        }
    }

    /// Transactions that run, where the layout counts them.
    #[must_use]
    pub fn active(&self) -> Option<u32> {
        self.written.active.get()
    }

    /// Keeps transactions out until the [thaw](Self::thaw), and waits for those that run.
    ///
    /// # Errors
    /// `Busy` if it is frozen already.
    pub fn freeze(&self) -> Result<()> {
        self.gate.freeze()
    }

    /// Lets transactions begin again.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not frozen.
    pub fn thaw(&self) -> Result<()> {
        self.gate.thaw()
    }

    /// Free blocks of the data device, those included that nothing but B-trees may have.
    #[must_use]
    pub fn free_blocks(&self) -> &StripedCounter {
        &self.free_blocks
    }

    /// Inodes that exist, free ones included.
    #[must_use]
    pub fn inodes(&self) -> &StripedCounter {
        &self.inodes
    }

    /// Inodes that exist and are free.
    #[must_use]
    pub fn free_inodes(&self) -> &StripedCounter {
        &self.free_inodes
    }

    /// Blocks that Linux keeps for the B-trees of free space.
    #[must_use]
    pub fn set_aside(&self) -> u64 {
        set_aside(&self.geometry)
    }

    /// An allocation group.
    pub fn group(&self, number: AgNr) -> Arc<PerAg> {
        self.groups.get(number, &self.geometry)
    }

    /// The group that the next directory goes to: each in turn.
    pub fn next_directory_group(&self) -> AgNr {
        let turn = self.written.inode_rotor.fetch_add(1, Ordering::Relaxed);
        let count = self.geometry.ag_count().max(1);
        AgNr(turn.checked_rem(count).unwrap_or_default())
    }

    /// The filesystem reaches further from now on. What lies beyond is initialised and durable; one thread
    /// grows it at a time.
    pub fn grow(&self, size: FsSize) {
        let publication = self.geometry.growth.begin();
        publication.set(size);
        drop(publication);
        self.groups.measure(&self.geometry);
        let set_aside = i64::try_from(self.set_aside()).unwrap_or(i64::MAX);
        // The floor of a mount for writing is higher.
        self.free_blocks.raise_exact_below(set_aside);
    }

    /// The tables of the mount object and of what lies in it, with where each begins.
    #[must_use]
    pub fn tables() -> [(&'static str, usize, FieldLayout); 3] {
        let geometry = std::mem::offset_of!(Self, geometry);
        let written = std::mem::offset_of!(Self, written);
        [
            ("", 0, Self::LAYOUT),
            ("geometry.", geometry, Geometry::LAYOUT),
            ("written.", written, Written::<L>::LAYOUT),
        ]
    }
}

fn set_aside(geometry: &Geometry) -> u64 {
    SET_ASIDE_PER_GROUP.saturating_mul(geometry.ag_count().into())
}

impl<L: MountLayout> Drop for Running<'_, L> {
    fn drop(&mut self) {
        self.active.leave();
    }
}

#[cfg(test)]
pub(crate) mod tests;
