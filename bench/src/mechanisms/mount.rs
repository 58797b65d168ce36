//! The mount object of XFS: one thread checks inode numbers by it while another begins and ends transactions, in its
//! three layouts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use platter_block::MemoryDevice;
use platter_xfs::ondisk::{InodeNr, Superblock};
use platter_xfs::superblock;
use platter_xfs::xfs_mount::{Counterless, MountLayout, Packed, Separated, XfsMount};
use serde::{Deserialize, Serialize};

use super::removal::{self, Trees};
use crate::measure::{self, float, median, stay_on_processor};
use crate::record::Extent;

const CHECKS_QUICK: u64 = 10_000;
const CHECKS: u64 = 20_000_000;
const ROUNDS: usize = 10;
/// What the writer does between two transactions: so many turns of nothing.
const PAUSES: [u32; 4] = [0, 16, 128, 1024];

/// One run of the sweep.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) layout: String,
    pub(crate) pause: u32,
    pub(crate) ns_per_check: f64,
    pub(crate) transactions_per_second: f64,
}

/// What was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) sweep: Vec<Sweep>,
    pub(crate) trees: Vec<Trees>,
}

/// Runs the sweep of a layout: so many checks, concurrently with transactions with a pause.
type SweepOf = fn(&Superblock, u32, u64) -> Result<Sweep>;

/// The layouts by name, in the order of their tables.
pub(crate) const LAYOUTS: [&str; 3] = [Packed::NAME, Separated::NAME, Counterless::NAME];

/// The pauses that are measured, from the most transactions to the fewest.
pub(crate) const fn pauses() -> [u32; 4] {
    PAUSES
}

/// Measures all layouts, in turns, and trees.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Measured> {
    let (checks, usual) = match extent {
        Extent::Quick => (CHECKS_QUICK, 1),
        Extent::Full => (CHECKS, ROUNDS),
    };
    let superblock = superblock::read(&MemoryDevice::new("image", removal::make(extent)?))?;
    let mut measured = Measured::default();
    let mut layouts: [SweepOf; 3] = [sweep::<Packed>, sweep::<Separated>, sweep::<Counterless>];
    for pause in PAUSES {
        for _ in 0..rounds.unwrap_or(usual) {
            for layout in layouts {
                measured.sweep.push(layout(&superblock, pause, checks)?);
            }
            layouts.reverse();
        }
        show(pause, &measured.sweep);
    }
    measured.trees = removal::measure(extent, rounds.unwrap_or(usual))?;
    Ok(measured)
}

fn show(pause: u32, runs: &[Sweep]) {
    print!("  {pause:>5} turns between transactions:");
    for layout in LAYOUTS {
        let of_layout = |run: &&Sweep| run.pause == pause && run.layout == layout;
        let taken: Vec<f64> = runs
            .iter()
            .filter(of_layout)
            .map(|run| run.ns_per_check)
            .collect();
        print!(" {layout} {:.2} ns;", median(&taken).value);
    }
    println!();
}

/// One thread begins transactions at the mount object, the other checks inode numbers.
fn sweep<L: MountLayout>(superblock: &Superblock, pause: u32, checks: u64) -> Result<Sweep> {
    let mount = Box::new(XfsMount::<L>::new(superblock));
    let first = superblock.root_inode.get();
    let numbers: Vec<_> = (first..first + 64).filter_map(InodeNr::new).collect();
    ensure!(numbers.len() == 64, "inode numbers are not zero");
    let (begun, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (elapsed, transactions) = thread::scope(|scope| {
        let write = || -> Result<()> {
            let is_placed = stay_on_processor(1);
            is_done.fetch_or(is_placed.is_err(), Ordering::Relaxed);
            let mut count = 0_u64;
            while !is_done.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    drop(mount.begin());
                    (0..pause).for_each(|_| std::hint::spin_loop());
                }
                count += 64;
                begun.store(count, Ordering::Relaxed);
            }
            is_placed
        };
        let check = || -> Result<(Duration, u64)> {
            stay_on_processor(0)?;
            while begun.load(Ordering::Relaxed) == 0 && !is_done.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let (before, start) = (begun.load(Ordering::Relaxed), measure::now());
            let mut found = 0_u64;
            for _ in 0..checks / 64 {
                for &number in &numbers {
                    found += u64::from(mount.locate_inode(number).is_some());
                }
            }
            let elapsed = start.elapsed();
            ensure!(found == checks / 64 * 64, "an inode number was refused");
            Ok((elapsed, begun.load(Ordering::Relaxed) - before))
        };
        let writer = thread::Builder::new().spawn_scoped(scope, write)?;
        let checker = thread::Builder::new().spawn_scoped(scope, check)?;
        let taken = checker.join();
        is_done.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("a thread failed"))??;
        taken.map_err(|_| anyhow!("a thread failed"))?
    })?;
    let seconds = elapsed.as_secs_f64();
    Ok(Sweep {
        layout: L::NAME.to_owned(),
        pause,
        ns_per_check: seconds * 1e9 / float(checks / 64 * 64),
        transactions_per_second: float(transactions) / seconds,
    })
}
