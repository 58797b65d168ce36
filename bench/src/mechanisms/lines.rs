//! What it costs that a value which is only read is next to one which others write: one thread counts,
//! another reads, in three layouts and with more and less to count.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use platter_cache::layout::{Field, Layout};
use serde::{Deserialize, Serialize};

use crate::measure::{self, float, median, stay_on_processor};
use crate::record::Extent;

const READS_QUICK: u64 = 10_000;
const READS: u64 = 20_000_000;
const ROUNDS: usize = 10;
/// What the writer does between two counts: so many turns of nothing.
const PAUSES: [u32; 4] = [0, 16, 128, 1024];

/// How far the two are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Distance {
    /// In one line.
    Line,
    /// In the two lines of a pair.
    Pair,
    /// In two pairs.
    Apart,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) distance: Distance,
    pub(crate) pause: u32,
    pub(crate) ns_per_read: f64,
    pub(crate) counts_per_second: f64,
}

/// A value that is only read, with a counter in each place it may have.
#[repr(C, align(128))]
struct Shared {
    value: AtomicU64,
    in_line: AtomicU64,
    rest_of_line: [u64; 6],
    in_pair: AtomicU64,
    rest_of_pair: [u64; 7],
    apart: AtomicU64,
}

const _: () = assert!(std::mem::offset_of!(Shared, in_line) < 64);
const _: () = assert!(std::mem::offset_of!(Shared, in_pair) == 64);
const _: () = assert!(std::mem::offset_of!(Shared, apart) == 128);

/// A structure that all threads share, as it was when this was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) len_bytes: usize,
    pub(crate) fields: Vec<Place>,
}

/// A field of it, and the pairs of lines it lies in, first and last.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) pairs: (usize, usize),
}

/// All structures whose layout is checked.
pub(crate) fn shapes() -> Vec<Shape> {
    let place = |field: &Field| Place {
        name: field.name.to_owned(),
        class: field.class.name().to_owned(),
        pairs: field.pairs(),
    };
    let shape = |layout: &Layout| Shape {
        name: layout.name.to_owned(),
        len_bytes: layout.len_bytes,
        fields: layout.fields.iter().map(place).collect(),
    };
    let layouts = [
        &platter_ext4::LAYOUTS[..],
        &platter_xfs::LAYOUTS,
        &platter_xfs::xfs_mount::LAYOUTS,
        &platter_cache::LAYOUTS,
    ];
    layouts.into_iter().flatten().map(shape).collect()
}

impl Distance {
    pub(crate) const ALL: [Self; 3] = [Self::Line, Self::Pair, Self::Apart];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Line => "same line",
            Self::Pair => "same pair of lines",
            Self::Apart => "apart",
        }
    }

    fn counter(self, shared: &Shared) -> &AtomicU64 {
        match self {
            Self::Line => &shared.in_line,
            Self::Pair => &shared.in_pair,
            Self::Apart => &shared.apart,
        }
    }
}

/// The pauses that are measured, from the busiest counter to the idlest.
pub(crate) const fn pauses() -> [u32; 4] {
    PAUSES
}

/// Measures all layouts, in turns.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let (reads, usual) = match extent {
        Extent::Quick => (READS_QUICK, 1),
        Extent::Full => (READS, ROUNDS),
    };
    let mut runs = Vec::new();
    for pause in PAUSES {
        let mut distances = Distance::ALL;
        for _ in 0..rounds.unwrap_or(usual) {
            for distance in distances {
                runs.push(run(distance, pause, reads)?);
            }
            distances.reverse();
        }
        show(pause, &runs);
    }
    Ok(runs)
}

fn show(pause: u32, runs: &[Run]) {
    print!("  {pause:>5} turns between counts:");
    for distance in Distance::ALL {
        let of_distance = |run: &&Run| (run.pause, run.distance) == (pause, distance);
        let taken = runs.iter().filter(of_distance).map(|run| run.ns_per_read);
        let taken: Vec<f64> = taken.collect();
        print!(" {} {:.2} ns;", distance.name(), median(&taken).value);
    }
    println!();
}

fn run(distance: Distance, pause: u32, reads: u64) -> Result<Run> {
    let shared = Box::new(Shared {
        value: AtomicU64::new(12),
        in_line: AtomicU64::new(0),
        rest_of_line: [0; 6],
        in_pair: AtomicU64::new(0),
        rest_of_pair: [0; 7],
        apart: AtomicU64::new(0),
    });
    let counter = distance.counter(&shared);
    let is_done = AtomicBool::new(false);
    let taken = thread::scope(|scope| {
        let count = || -> Result<()> {
            let is_placed = stay_on_processor(1);
            is_done.fetch_or(is_placed.is_err(), Ordering::Relaxed);
            while !is_done.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    counter.fetch_add(1, Ordering::Relaxed);
                    (0..pause).for_each(|_| std::hint::spin_loop());
                }
            }
            is_placed
        };
        let read = || -> Result<(Duration, u64)> {
            stay_on_processor(0)?;
            // The counter counts before anything is timed.
            while counter.load(Ordering::Relaxed) == 0 && !is_done.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let (before, start) = (counter.load(Ordering::Relaxed), measure::now());
            let mut sum = 0_u64;
            for number in 0..reads {
                sum = sum.wrapping_add(number >> shared.value.load(Ordering::Relaxed));
            }
            std::hint::black_box(sum);
            Ok((start.elapsed(), counter.load(Ordering::Relaxed) - before))
        };
        let writer = thread::Builder::new().spawn_scoped(scope, count)?;
        let reader = thread::Builder::new().spawn_scoped(scope, read)?;
        let taken = reader.join();
        is_done.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("a thread failed"))??;
        taken.map_err(|_| anyhow!("a thread failed"))?
    })?;
    let (seconds, counts) = (taken.0.as_secs_f64(), taken.1);
    Ok(Run {
        distance,
        pause,
        ns_per_read: seconds * 1e9 / float(reads),
        counts_per_second: float(counts) / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_and_a_counter_end() {
        for distance in Distance::ALL {
            let run = run(distance, 16, 1000).unwrap();
            assert!(run.ns_per_read > 0.0 && run.counts_per_second >= 0.0);
        }
    }
}
