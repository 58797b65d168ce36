//! Three layouts of the mount object. They differ in where one byte of the geometry lies, and in whether
//! running transactions are counted in one place.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the size of a sector in basic blocks lies, which each check of an inode number needs, and whether
/// transactions that run are counted.
pub trait MountLayout: Debug + Send + Sync + 'static {
    /// Its name in reports.
    const NAME: &'static str;
    /// In the geometry: `SectorShift` or nothing.
    type Apart: ShiftSlot;
    /// Next to the count of transactions: `SectorShift` or nothing.
    type Adjacent: ShiftSlot;
    /// The count of transactions: `ActiveTransactions` or nothing.
    type Active: ActiveSlot;
}

/// The byte next to the counter, as in `struct xfs_mount` before Linux 5.8.
#[derive(Debug)]
pub struct Packed;

/// The byte in the geometry, and the counter apart.
#[derive(Debug)]
pub struct Separated;

/// The byte in the geometry, and no counter: the [gate](platter_vfs::writing::FreezeGate) knows what a freeze asks.
#[derive(Debug)]
pub struct Counterless;

impl MountLayout for Packed {
    const NAME: &'static str = "packed";
    type Apart = ();
    type Adjacent = SectorShift;
    type Active = ActiveTransactions;
}

impl MountLayout for Separated {
    const NAME: &'static str = "separated";
    type Apart = SectorShift;
    type Adjacent = ();
    type Active = ActiveTransactions;
}

impl MountLayout for Counterless {
    const NAME: &'static str = "counterless";
    type Apart = SectorShift;
    type Adjacent = ();
    type Active = ();
}

/// Size of a sector in basic blocks, as a power of two (`m_sectbb_log`).
#[derive(Debug)]
pub struct SectorShift(u8);

/// Transactions that run (`m_active_trans`).
#[derive(Debug, Default)]
pub struct ActiveTransactions(AtomicU32);

/// A place that may hold the byte.
pub trait ShiftSlot: Debug + Send + Sync {
    /// The place, filled if it holds the byte.
    fn new(shift: u8) -> Self;
    /// The byte, if it is here.
    fn get(&self) -> Option<u8>;
}

/// A place that may hold the count.
pub trait ActiveSlot: Debug + Default + Send + Sync {
    /// A transaction begins.
    fn enter(&self);
    /// A transaction ends.
    fn leave(&self);
    /// Transactions that run, if they are counted here.
    fn get(&self) -> Option<u32>;
}

impl ShiftSlot for SectorShift {
    fn new(shift: u8) -> Self {
        Self(shift)
    }

    fn get(&self) -> Option<u8> {
        Some(self.0)
    }
}

impl ShiftSlot for () {
    fn new(_: u8) -> Self {}

    fn get(&self) -> Option<u8> {
        None
    }
}

impl ActiveSlot for ActiveTransactions {
    fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn get(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed))
    }
}

impl ActiveSlot for () {
    fn enter(&self) {}

    fn leave(&self) {}

    fn get(&self) -> Option<u32> {
        None
    }
}
