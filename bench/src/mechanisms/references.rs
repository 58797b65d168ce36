//! Delayed references of btrfs: what it costs to insert, find and delete a head by how many there are, in each index.

use std::thread;

use anyhow::{Result, anyhow, bail, ensure};
use platter_btrfs::delayed_refs::IndexKind;
use platter_btrfs::delayed_refs::index::{ArrayIndex, HeadIndex, Inserted, SideIndex, TreeIndex};
use platter_btrfs::delayed_refs::layout::{
    AlignedHead, HeadState, HotHead, LineHead, SHAPES, SplitHead,
};
use platter_btrfs::delayed_refs::slab::Slot;
use serde::{Deserialize, Serialize};
use testkit::prng::Prng;

use super::head_loads::Queued;
use crate::measure::{
    deviation, float, instructions_each, mean, median, misses_each, now, stay_on_processor,
};
use crate::record::Extent;

/// The part of this program that valgrind looks at.
pub(crate) const PART: &str = "heads";

/// Heads that are there when calls are timed.
const PRESENT: [u64; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
const PRESENT_QUICK: [u64; 2] = [100, 1000];
/// One of so many calls is timed, and how many are.
const TIMED_ONE_IN: u64 = 64;
const TIMED: u64 = 2000;
const TIMED_QUICK: u64 = 20;
const ROUNDS: usize = 10;
/// Extents lie so far apart.
const EXTENT_BYTES: u64 = 16 << 10;
/// Heads that are there when instructions and misses are counted, at least, and calls of two runs.
const COUNTED_PRESENT: u64 = 10_000;
const COUNTED_CALLS: [u64; 2] = [20_000, 60_000];
/// Has no factor in common with the number of heads that deletions begin with.
const PRIME: u64 = 48_271;

/// What is done with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    Insert,
    Find,
    Delete,
}

/// How long calls took, in nanoseconds, without what reading the clock takes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) index: String,
    pub(crate) present: u64,
    pub(crate) call: Call,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    /// Median, 90 %, 95 %, 99 %, and the longest.
    pub(crate) quantiles: [f64; 5],
}

/// How heads lie in memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) index: String,
    pub(crate) len_bytes: usize,
    pub(crate) per_page: usize,
    pub(crate) lines_per_level: Option<f64>,
}

/// What a call takes by valgrind's count.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) index: String,
    pub(crate) call: Call,
    pub(crate) instructions: f64,
    /// Of the first level's data cache.
    pub(crate) misses: f64,
}

/// Everything measured of this mechanism.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) timed: Vec<Timed>,
    pub(crate) counted: Vec<Counted>,
    pub(crate) made: Vec<Queued>,
}

/// Input of the process that valgrind looks at.
#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    /// A place in the list of indexes.
    index: usize,
    call: Call,
    count: u64,
}

impl Call {
    pub(crate) const ALL: [Self; 3] = [Self::Insert, Self::Find, Self::Delete];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Find => "find",
            Self::Delete => "delete",
        }
    }
}

/// The numbers of heads that calls are timed with.
pub(crate) const fn all_present() -> [u64; 5] {
    PRESENT
}

macro_rules! of_kind {
    ($kind:expr, $function:ident($($argument:expr),*)) => {
        match $kind {
            IndexKind::Split => $function::<TreeIndex<SplitHead>>($($argument),*),
            IndexKind::Hot => $function::<TreeIndex<HotHead>>($($argument),*),
            IndexKind::Aligned => $function::<TreeIndex<AlignedHead>>($($argument),*),
            IndexKind::Line => $function::<TreeIndex<LineHead>>($($argument),*),
            IndexKind::Side => $function::<SideIndex>($($argument),*),
            IndexKind::Array => $function::<ArrayIndex>($($argument),*),
        }
    };
}

/// Measures all indexes alone, in turns. Where it fails, what was measured before is there.
pub(crate) fn measure(
    measured: &mut Measured,
    extent: Extent,
    rounds: Option<usize>,
) -> Result<()> {
    let (present, timed, usual) = match extent {
        Extent::Quick => (&PRESENT_QUICK[..], TIMED_QUICK, 1),
        Extent::Full => (&PRESENT[..], TIMED, ROUNDS),
    };
    measured.shapes = shapes();
    for shape in &measured.shapes {
        println!(
            "  {}: {} bytes, {} in a page, {:?} lines a level",
            shape.index, shape.len_bytes, shape.per_page, shape.lines_per_level
        );
    }
    let mut kinds = IndexKind::ALL.to_vec();
    for &present in present {
        for _ in 0..rounds.unwrap_or(usual) {
            for &kind in &kinds {
                measured.timed.extend(time_alone(kind, present, timed)?);
            }
            kinds.reverse();
        }
        show(present, &measured.timed);
    }
    measured.counted = count(extent)?;
    Ok(())
}

fn shapes() -> Vec<Shape> {
    let shapes = SHAPES.iter().map(|shape| Shape {
        index: shape.name.to_owned(),
        len_bytes: shape.len_bytes,
        per_page: shape.per_page,
        lines_per_level: shape
            .milli_lines_per_level
            .map(|lines| float(lines as u64) / 1000.0),
    });
    shapes.collect()
}

fn show(present: u64, runs: &[Timed]) {
    for call in Call::ALL {
        print!("  {present:>8} heads, {}:", call.name());
        for kind in IndexKind::ALL {
            let is_of =
                |run: &&Timed| (run.present, run.call, &*run.index) == (present, call, kind.name());
            let medians = runs.iter().filter(is_of).map(|run| run.quantiles[0]);
            let medians: Vec<f64> = medians.collect();
            print!(" {} {:.0} ns;", kind.name(), median(&medians).value);
        }
        println!();
    }
}

/// Addresses without order, each once.
#[derive(Debug)]
struct Addresses {
    next: u64,
    mask: u64,
}

impl Addresses {
    fn new(count: u64) -> Self {
        Self {
            next: 0,
            mask: count.next_power_of_two() - 1,
        }
    }

    fn draw(&mut self) -> u64 {
        let address = self.nth(self.next);
        self.next += 1;
        address
    }

    /// The address that was drawn as the one with this number.
    fn nth(&self, number: u64) -> u64 {
        // Multiplication by an odd number permutes the numbers below a power of two.
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask) * EXTENT_BYTES
    }
}

/// An index with heads, all of which are known.
struct Filled<I> {
    index: I,
    addresses: Addresses,
    heads: Vec<(u64, Slot)>,
    random: Prng,
}

impl<I: HeadIndex> Filled<I> {
    fn new(present: u64, calls: u64) -> Result<Self> {
        let mut filled = Self {
            index: I::default(),
            addresses: Addresses::new(present + calls),
            heads: Vec::new(),
            random: Prng::new(present),
        };
        for _ in 0..present {
            let address = filled.addresses.draw();
            let slot = insert(&mut filled.index, address)?;
            filled.heads.push((address, slot));
        }
        Ok(filled)
    }

    fn any(&mut self) -> Result<usize> {
        Ok(usize::try_from(self.random.below(self.heads.len() as u64))?)
    }
}

fn insert<I: HeadIndex>(index: &mut I, address: u64) -> Result<Slot> {
    let state = HeadState {
        len_bytes: EXTENT_BYTES,
        ..HeadState::default()
    };
    match index.insert(address, state) {
        Inserted::New(slot) => Ok(slot),
        Inserted::Exists(_) | Inserted::Full => bail!("a head at {address} was not inserted"),
    }
}

/// Times calls in a thread that stays on one processor.
fn time_alone(kind: IndexKind, present: u64, timed: u64) -> Result<[Timed; 3]> {
    let timing = move || -> Result<[Timed; 3]> {
        stay_on_processor(0)?;
        of_kind!(kind, time(present, timed))
    };
    let thread = thread::Builder::new().spawn(timing)?;
    thread.join().map_err(|_| anyhow!("a thread failed"))?
}

/// Times calls with so many heads.
fn time<I: HeadIndex>(present: u64, timed: u64) -> Result<[Timed; 3]> {
    let mut filled = Filled::<I>::new(present, timed * TIMED_ONE_IN)?;
    let clock = clock_nanoseconds();
    let mut taken = Call::ALL.map(|_| Vec::new());
    for call in 0..timed * TIMED_ONE_IN {
        let is_timed = call.is_multiple_of(TIMED_ONE_IN);
        let new = filled.addresses.draw();
        let (found, gone) = (filled.any()?, filled.any()?);
        let [inserting, finding, deleting] = &mut taken;
        let index = &mut filled.index;
        let (wanted, at) = filled.heads[found];
        let slot = watch(is_timed, finding, || index.find(wanted));
        ensure!(slot == Some(at), "a head was not found");
        let slot = watch(is_timed, inserting, || insert(index, new))?;
        let (_, old) = std::mem::replace(&mut filled.heads[gone], (new, slot));
        watch(is_timed, deleting, || index.remove(old));
    }
    let mut taken = taken.into_iter();
    Ok(Call::ALL.map(|call| summary::<I>(present, call, taken.next().unwrap_or_default(), clock)))
}

fn watch<T>(is_timed: bool, taken: &mut Vec<f64>, call: impl FnOnce() -> T) -> T {
    if !is_timed {
        return std::hint::black_box(call());
    }
    let start = now();
    let value = std::hint::black_box(call());
    let nanoseconds = start.elapsed().as_nanos();
    taken.push(float(u64::try_from(nanoseconds).unwrap_or(u64::MAX)));
    value
}

/// What reading the clock twice takes.
fn clock_nanoseconds() -> f64 {
    let mut taken = Vec::new();
    for _ in 0..1001 {
        watch(true, &mut taken, || ());
    }
    median(&taken).value
}

fn summary<I: HeadIndex>(present: u64, call: Call, taken: Vec<f64>, clock: f64) -> Timed {
    let mut taken: Vec<f64> = taken
        .into_iter()
        .map(|taken| (taken - clock).max(0.0))
        .collect();
    taken.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let index = (taken.len() * percent / 100).min(taken.len().saturating_sub(1));
        taken.get(index).copied().unwrap_or_default()
    };
    Timed {
        index: I::NAME.to_owned(),
        present,
        call,
        mean: mean(&taken),
        deviation: deviation(&taken),
        quantiles: [50, 90, 95, 99, 100].map(at),
    }
}

/// Counts what calls take.
fn count(extent: Extent) -> Result<Vec<Counted>> {
    let mut counted = Vec::new();
    for (index, kind) in IndexKind::ALL.iter().enumerate() {
        for call in Call::ALL {
            let orders = |count| Orders { index, call, count };
            let counted_one = Counted {
                index: kind.name().to_owned(),
                call,
                instructions: instructions_each(PART, COUNTED_CALLS, orders)?,
                misses: misses_each(PART, COUNTED_CALLS, orders)?,
            };
            println!("  {counted_one:?}");
            counted.push(counted_one);
            if extent == Extent::Quick {
                // That they can be counted is all that is of interest of a debugging build.
                return Ok(counted);
            }
        }
    }
    Ok(counted)
}

/// The process' part, which valgrind looks at.
pub(crate) fn perform(orders: &str) -> Result<()> {
    let Orders { index, call, count } = serde_json::from_str(orders)?;
    let kind = IndexKind::ALL.get(index);
    let kind = *kind.ok_or_else(|| anyhow!("no index {index}"))?;
    of_kind!(kind, perform_calls(call, count))
}

fn perform_calls<I: HeadIndex>(call: Call, count: u64) -> Result<()> {
    // The same addresses, however many calls there are. What is deleted is there before, and the last head deleted leaves
    // as many as there are when the first one is inserted.
    let (present, calls) = match call {
        Call::Insert | Call::Find => (COUNTED_PRESENT, COUNTED_CALLS[1]),
        Call::Delete => (COUNTED_PRESENT + COUNTED_CALLS[1], 0),
    };
    let mut filled = Filled::<I>::new(present, calls)?;
    for number in 0..count {
        match call {
            Call::Find => {
                // Computed: a table of the addresses would take its part of the cache.
                let number = filled.random.below(COUNTED_PRESENT);
                let address = filled.addresses.nth(number);
                std::hint::black_box(filled.index.find(address));
            }
            Call::Insert => {
                let address = filled.addresses.draw();
                insert(&mut filled.index, address)?;
            }
            Call::Delete => {
                // Each once, in no order of slots.
                let at = usize::try_from(number * PRIME % present)?;
                let (_, slot) = filled.heads[at];
                filled.index.remove(slot);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_timed_and_performs_counted_calls() {
        for &kind in IndexKind::ALL {
            let runs = of_kind!(kind, time(64, 3)).unwrap();
            assert!(runs.iter().all(|run| run.index == kind.name()));
            for call in Call::ALL {
                of_kind!(kind, perform_calls(call, 5)).unwrap();
            }
        }
    }
}
