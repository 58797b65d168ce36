//! Adding pages to the page cache's index: how many walks and nodes it takes, and how long, when
//! evicted pages have left shadows, small or large, or when there are none.

use std::time::Duration;

use anyhow::{Result, ensure};
use platter_cache::xarray::{Counts, Insertion, New, Order, Ref, XArray};
use serde::{Deserialize, Serialize};

use crate::abba::{self, Times};
use crate::measure::float;
use crate::record::Extent;

/// Pages added in one run; fewer where each splits.
const ADDS: u64 = 1 << 16;
const SPLITTING_ADDS: u64 = 1 << 10;
const ROUNDS: usize = 10;
/// Pages that readahead adds at once.
const BATCH: usize = 64;

type Array = XArray<u64>;

/// A way to add pages; see [`Insertion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    ThreeWalks,
    OneWalk,
    MinimalSplit,
    /// 64 pages at once.
    Batched,
}

/// What the pages meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Before {
    /// Nothing.
    Nothing,
    /// A shadow of one page each.
    Pages,
    /// A shadow of 512 pages each, which has to be split.
    LargeFolios,
    /// Shadows of one page each, and the new pages come in order.
    Sequence,
}

impl Before {
    pub(crate) const ALL: [Self; 4] = [
        Self::Nothing,
        Self::Pages,
        Self::LargeFolios,
        Self::Sequence,
    ];

    /// The ways that differ, each compared with the one before.
    pub(crate) const fn ways(self) -> [Way; 3] {
        match self {
            Self::Nothing | Self::Pages | Self::LargeFolios => {
                [Way::ThreeWalks, Way::OneWalk, Way::MinimalSplit]
            }
            Self::Sequence => [Way::ThreeWalks, Way::MinimalSplit, Way::Batched],
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no shadows, random pages",
            Self::Pages => "page shadows, random pages",
            Self::LargeFolios => "2 MiB shadows, a page in each",
            Self::Sequence => "page shadows, pages in order",
        }
    }

    /// How many pages are added in one run.
    const fn adds(self) -> u64 {
        match self {
            Self::Nothing | Self::Pages | Self::Sequence => ADDS,
            Self::LargeFolios => SPLITTING_ADDS,
        }
    }

    /// An array as an eviction left it.
    fn array(self) -> Result<Array> {
        let array = Array::new();
        let (entries, order) = match self {
            Self::Nothing => (0, Order::ZERO),
            Self::Pages | Self::Sequence => (self.adds(), Order::ZERO),
            Self::LargeFolios => (self.adds(), large()),
        };
        let mut locked = array.lock();
        let mut cursor = locked.cursor(0, order);
        for number in 0..entries {
            cursor.seek(number * order.span(), order);
            ensure!(
                cursor.store(New::Value(number)).is_ok(),
                "shadows do not overlap"
            );
        }
        drop(locked);
        Ok(array)
    }

    /// Where the pages go.
    fn indexes(self) -> Vec<u64> {
        // Multiplication by an odd number permutes the numbers below a power of two.
        let random = |number: u64| number.wrapping_mul(0x9e37_79b1) % self.adds();
        let index = |number| match self {
            Self::Nothing | Self::Pages => random(number),
            Self::LargeFolios => random(number) * large().span() + number % large().span(),
            Self::Sequence => number,
        };
        (0..self.adds()).map(index).collect()
    }
}

const fn large() -> Order {
    match Order::new(9) {
        Some(order) => order,
        None => Order::MAX,
    }
}

impl Way {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ThreeWalks => "three walks",
            Self::OneWalk => "one walk",
            Self::MinimalSplit => "one walk, minimal split",
            Self::Batched => "64 pages at once",
        }
    }

    /// What the caches call it.
    pub(crate) const fn insertion(self) -> Insertion {
        match self {
            Self::ThreeWalks => Insertion::ThreeWalks,
            Self::OneWalk => Insertion::OneWalk,
            Self::MinimalSplit => Insertion::MinimalSplit,
            Self::Batched => Insertion::Batched,
        }
    }

    fn add_all(self, array: &Array, indexes: &[u64], page: &Ref<u64>) -> Result<()> {
        let refused = match self {
            Self::Batched => indexes.chunks(BATCH).any(|batch| {
                let pages = batch.iter().map(|_| (page.clone(), Order::ZERO));
                let added = array.lock().add_range(batch[0], pages, |_, _| {});
                added != batch.len()
            }),
            Self::ThreeWalks | Self::OneWalk | Self::MinimalSplit => indexes.iter().any(|&index| {
                let added = array.add_by(self.insertion(), index, Order::ZERO, page.clone());
                added.is_err()
            }),
        };
        ensure!(!refused, "no page is added twice");
        Ok(())
    }
}

/// What adding a page took.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) way: Way,
    pub(crate) before: Before,
    pub(crate) walks_per_add: f64,
    pub(crate) nodes_per_add: f64,
}

/// Two ways in turns.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) before: Before,
    pub(crate) times: [Times; 2],
    /// Medians.
    pub(crate) ns_per_add: [f64; 2],
}

/// Everything measured of this mechanism.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) counts: Vec<Count>,
    pub(crate) comparisons: Vec<Comparison>,
}

/// Counts and times all ways.
pub(crate) fn measure(extent: Extent) -> Result<Measured> {
    let rounds = match extent {
        Extent::Quick => 1,
        Extent::Full => ROUNDS,
    };
    let mut measured = Measured {
        counts: Vec::new(),
        comparisons: Vec::new(),
    };
    println!("{:<31}{:<25}{:>7}{:>9}", "", "", "walks", "nodes");
    for before in Before::ALL {
        count(before, &mut measured)?;
    }
    println!(
        "\nper page added; times in turns, {} runs each, medians with 95 % intervals:",
        2 * rounds
    );
    for before in Before::ALL {
        let [first, second, third] = before.ways();
        compare(before, [first, second], rounds, &mut measured)?;
        compare(before, [second, third], rounds, &mut measured)?;
    }
    Ok(measured)
}

/// Adds so many pages, and nothing else that takes time: for a count of instructions.
pub(crate) fn add_some(before: Before, way: Way, count: u64) -> Result<()> {
    let array = before.array()?;
    let indexes = before.indexes();
    let count = usize::try_from(count)?.min(indexes.len());
    way.add_all(&array, &indexes[..count], &Ref::new(0))
}

fn count(before: Before, measured: &mut Measured) -> Result<()> {
    for way in before.ways() {
        let array = before.array()?;
        let indexes = before.indexes();
        let start = Counts::now();
        way.add_all(&array, &indexes, &Ref::new(0))?;
        let counts = Counts::now().since(start);
        array.lock().assert_invariants();
        let count = Count {
            way,
            before,
            walks_per_add: per_add(counts.walks, before),
            nodes_per_add: per_add(counts.nodes, before),
        };
        let (name, way) = (before.name(), way.name());
        let (walks, nodes) = (count.walks_per_add, count.nodes_per_add);
        println!("{name:<31}{way:<25}{walks:>7.3}{nodes:>9.3}");
        measured.counts.push(count);
    }
    Ok(())
}

fn compare(before: Before, ways: [Way; 2], rounds: usize, measured: &mut Measured) -> Result<()> {
    let indexes = before.indexes();
    let page = Ref::new(0);
    let times = abba::alternate(ways.map(Way::name), rounds, |way| {
        let array = before.array()?;
        let (taken, ()) = abba::time(|| ways[way].add_all(&array, &indexes, &page))?;
        Ok::<Duration, _>(taken)
    })?;
    let ns = |seconds: f64| seconds * 1e9 / float(before.adds());
    println!("{}", before.name());
    for times in &times {
        let (low, high) = times.interval();
        let (median, low, high) = (ns(times.median()), ns(low), ns(high));
        println!("{median:>10.1} ns ({low:.1} to {high:.1})  {}", times.name);
    }
    let [first, second] = &times;
    let disjoint =
        second.interval().1 < first.interval().0 || first.interval().1 < second.interval().0;
    let change = (second.median() / first.median() - 1.0) * 100.0;
    if disjoint {
        println!("{change:>+10.1} %");
    } else {
        println!("    no effect ({change:+.1} % within the intervals)");
    }
    let ns_per_add = [ns(first.median()), ns(second.median())];
    measured.comparisons.push(Comparison {
        before,
        times,
        ns_per_add,
    });
    Ok(())
}

fn per_add(count: u64, before: Before) -> f64 {
    float(count) / float(before.adds())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(way: Way, before: Before) -> (u64, u64) {
        let array = before.array().unwrap();
        let indexes = before.indexes();
        let start = Counts::now();
        way.add_all(&array, &indexes, &Ref::new(0)).unwrap();
        let counts = Counts::now().since(start);
        array.lock().assert_invariants();
        (counts.walks / before.adds(), counts.nodes / before.adds())
    }

    #[test]
    fn walks_and_nodes_are_those_of_the_mechanism() {
        let all = [Way::ThreeWalks, Way::OneWalk, Way::MinimalSplit];
        let counts = |before| all.map(|way| counted(way, before));
        assert_eq!(counts(Before::Nothing), [(2, 0), (1, 0), (1, 0)]);
        assert_eq!(counts(Before::Pages), [(3, 0), (1, 0), (1, 0)]);
        assert_eq!(counts(Before::LargeFolios), [(4, 8), (3, 8), (1, 1)]);
        assert_eq!(
            counted(Way::Batched, Before::Sequence),
            (0, 0),
            "one for 64 pages"
        );
    }
}
