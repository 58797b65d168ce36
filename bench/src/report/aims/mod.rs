//! What platter aims at, and what it reached: computed from the raw runs.

mod group;
mod compared;
mod rates;
mod jobs;
mod stock;
mod growth;
mod checks;
mod applications;
mod table;

pub(super) use self::group::Group;
pub(super) use self::table::{counts, write};
use std::collections::BTreeMap;

use testkit::fs_type::FsType;

use super::number::short;
use crate::measure::Estimate;
use crate::peers::Measured;
use crate::programs::Run;
use crate::record::{Extent, Record};
use crate::scale::Grown;
use crate::side::Side;

/// What is kept of the comparison with peers, by what images hold.
pub(super) type Peers = BTreeMap<FsType, Record<Measured>>;

/// What is kept of jobs, by what images hold.
pub(super) type Jobs = BTreeMap<FsType, Record<Vec<Run>>>;

/// What there is to judge by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evidence<'r> {
    pub(super) extent: Extent,
    pub(super) peers: &'r Peers,
    pub(super) jobs: &'r Jobs,
    pub(super) scale: Option<&'r [Grown]>,
    pub(super) checks: Option<&'r crate::checks::Measured>,
    pub(super) applications: Option<&'r crate::applications::Measured>,
}

#[cfg(test)]
impl Evidence<'static> {
    /// What there is where nothing was measured.
    const NOTHING: Self = {
        static PEERS: Peers = Peers::new();
        static JOBS: Jobs = Jobs::new();
        Self {
            extent: Extent::Full,
            peers: &PEERS,
            jobs: &JOBS,
            scale: None,
            checks: None,
            applications: None,
        }
    };
}

/// Something to be reached, and how far it was.
#[derive(Debug)]
pub(super) struct Aim {
    pub(super) group: Group,
    /// Names it among all, as a file can be named.
    pub(super) key: String,
    /// Names what is written about it where it is missed: the key, or what several aims have in common.
    pub(super) reason: String,
    what: String,
    bound: Bound,
    unit: &'static str,
    scope: Scope,
    /// Nothing, where it was not measured. Of mounts, over rings.
    reached: Option<Reached>,
    /// The same over the device, which is what a mount is by default. Nothing but of mounts.
    by_default: Option<Reached>,
    /// What others reach, to compare it with: by [`COMPARED`].
    compared: [Option<Estimate>; COMPARED.len()],
    /// Why the two sides do not do the same, if they do not.
    difference: Option<String>,
}

/// The transports over which an aim of a mount is to be reached. Aims of what is not mounted have both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Both,
    Rings,
    Device,
}

/// A bound of what is to be reached.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Clone, Copy)]
struct Reached {
    estimate: Estimate,
    runs: usize,
}

/// What is to be said of an aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    /// And the end of the range is beyond it.
    MetByTheMedian,
    Missed,
    NotMeasured,
    /// The two sides do not do the same.
    NotJudged,
}

/// Sides with which the aims of mounts are compared, and what each shows.
const COMPARED: [(Side, &str); 4] = [
    (Side::NullFuse, "null server, rings"),
    (Side::NullDevice, "null server, `/dev/fuse`"),
    (Side::Unchecked, "rings, with `noperm`"),
    (Side::Gathered, "`/dev/fuse`, with `writeback=on`"),
];

/// All aims, whatever there is to judge them by.
pub(super) fn all(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = stock::aims(evidence);
    aims.extend(rates::aims(evidence));
    aims.extend(jobs::aims(evidence));
    aims.extend(growth::aims(evidence));
    aims.extend(checks::aims(evidence));
    aims.extend(applications::aims(evidence));
    aims
}

impl Aim {
    fn new(group: Group, key: &[&str], what: String, (bound, unit): (Bound, &'static str)) -> Self {
        let key = as_key(key);
        Self {
            group,
            reason: key.clone(),
            key,
            what,
            bound,
            unit,
            scope: Scope::Both,
            reached: None,
            by_default: None,
            compared: [None; COMPARED.len()],
            difference: None,
        }
    }

    /// With what so many runs reached; of no runs, nothing.
    fn reaching(mut self, estimate: Estimate, runs: usize) -> Self {
        self.reached = Reached::of(estimate, runs);
        self
    }

    /// How it is judged; of mounts, over rings. Nothing, where it is no aim over rings.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        (self.scope != Scope::Device).then(|| self.judged(self.reached))
    }

    /// How it is judged by what a mount is by default. Nothing, where it is no aim over that.
    pub(super) fn default_verdict(&self) -> Option<Verdict> {
        let is_judged = self.group.is_mounted() && self.scope != Scope::Rings;
        is_judged.then(|| self.judged(self.by_default))
    }

    /// Whether it is missed, over any transport that it is judged by.
    pub(super) fn is_missed(&self) -> bool {
        [self.verdict(), self.default_verdict()].contains(&Some(Verdict::Missed))
    }

    fn judged(&self, reached: Option<Reached>) -> Verdict {
        match (reached, &self.difference) {
            (None, _) => Verdict::NotMeasured,
            (Some(_), Some(_)) => Verdict::NotJudged,
            (Some(reached), None) => self.bound.verdict(reached.estimate),
        }
    }

    fn bound(&self) -> String {
        let (words, figure) = match self.bound {
            Bound::AtLeast(least) => ("at least", least),
            Bound::AtMost(most) => ("at most", most),
        };
        format!("{words} {}{}", short(figure), self.unit)
    }

    fn shown(&self, reached: Option<Reached>) -> String {
        let shown = |reached: Reached| with_unit(reached.estimate, self.unit);
        reached.map_or_else(|| "-".to_owned(), shown)
    }
}

impl Scope {
    /// Distinguishes aims of the same work. Those over rings have the shorter names.
    const fn word(self) -> &'static str {
        match self {
            Self::Both | Self::Rings => "",
            Self::Device => "device",
        }
    }

    const fn shown(self) -> &'static str {
        match self {
            Self::Both => "",
            Self::Rings => ", over rings",
            Self::Device => ", over `/dev/fuse`",
        }
    }
}

impl Reached {
    /// Nothing, of no runs.
    fn of(estimate: Estimate, runs: usize) -> Option<Self> {
        (runs > 0).then_some(Self { estimate, runs })
    }
}

fn with_unit(estimate: Estimate, unit: &str) -> String {
    let Estimate { value, low, high } = estimate;
    let (value, low, high) = (short(value), short(low), short(high));
    format!("{value}{unit} ({low} to {high})")
}

impl Bound {
    pub(super) fn verdict(self, reached: Estimate) -> Verdict {
        let is_in = |value: f64| match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        };
        let worst = match self {
            Self::AtLeast(_) => reached.low,
            Self::AtMost(_) => reached.high,
        };
        match (is_in(worst), is_in(reached.value)) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::MetByTheMedian,
            (false, false) => Verdict::Missed,
        }
    }
}

impl Verdict {
    pub(super) const ALL: [Self; 5] = [
        Self::Met,
        Self::MetByTheMedian,
        Self::Missed,
        Self::NotMeasured,
        Self::NotJudged,
    ];

    pub(super) const fn shown(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::MetByTheMedian => "met by the median",
            Self::Missed => "**missed**",
            Self::NotMeasured => "**not measured**",
            Self::NotJudged => "not judged",
        }
    }
}

/// Letters and digits of all parts, with one line between words.
fn as_key(parts: &[&str]) -> String {
    let parts = parts.join("-");
    let words = parts.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
impl Aim {
    /// One that reached so much of 2.
    pub(super) fn of_two(key: &str, reached: Option<f64>) -> Self {
        let bound = (Bound::AtLeast(2.0), "x");
        let aim = Self::new(Group::Library, &[key], format!("what {key} does"), bound);
        match reached {
            Some(value) => aim.reaching(Estimate::exactly(value), 1),
            None => aim,
        }
    }

    /// One of a mount, that reached so much of 2 over rings and over the device.
    pub(super) fn of_mount(key: &str, [rings, device]: [f64; 2]) -> Self {
        Self {
            group: Group::Fuse2fs,
            by_default: Reached::of(Estimate::exactly(device), 1),
            ..Self::of_two(key, Some(rings))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_aim_has_a_name_of_its_own() {
        let aims = all(Evidence::NOTHING);
        let keys: BTreeSet<&str> = aims.iter().map(|aim| aim.key.as_str()).collect();
        assert_eq!(keys.len(), aims.len(), "{keys:?}");
        assert!(keys.contains("fuse2fs-files-create") && keys.contains("kernel-tree-cold-ls-lr"));
        let mut verdicts = aims.iter().filter_map(Aim::verdict);
        assert!(verdicts.all(|verdict| verdict == Verdict::NotMeasured));
    }

    #[test]
    fn range_around_an_aim_differs_from_one_beyond_it() {
        let reached = Estimate {
            value: 2.0,
            low: 1.5,
            high: 2.5,
        };
        let at_least = |least| Bound::AtLeast(least).verdict(reached);
        assert_eq!(at_least(1.5), Verdict::Met);
        assert_eq!(at_least(1.8), Verdict::MetByTheMedian);
        assert_eq!(at_least(2.1), Verdict::Missed);
        let at_most = |most| Bound::AtMost(most).verdict(reached);
        assert_eq!(at_most(2.5), Verdict::Met);
        assert_eq!(at_most(2.2), Verdict::MetByTheMedian);
        assert_eq!(at_most(1.0), Verdict::Missed);
    }
}
