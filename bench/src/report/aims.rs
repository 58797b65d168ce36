//! What platter aims at, and what it reached: worked out from the raw runs, and judged by nobody.

use super::Page;
use super::number::short;
use super::peers::Series;
use crate::measure::{Estimate, median, ratio};
use crate::peers::{Measured, Sample};
use crate::programs::Run;
use crate::scale::Grown;
use crate::side::Side;
use crate::work::Workload;

/// What there is to judge by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evidence<'r> {
    pub(super) peers: Option<&'r Measured>,
    pub(super) jobs: Option<&'r [Run]>,
    pub(super) scale: Option<&'r [Grown]>,
}

/// A bound of what is to be reached.
#[derive(Debug, Clone, Copy)]
enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

/// A rate over a peer's: workload, phase, times.
type OfWork = (&'static str, &'static str, f64);

/// By one thread.
const BESIDE: &[(&str, Side, Side, &[OfWork])] = &[
    (
        "Through FUSE, beside fuse2fs",
        Side::Fuse,
        Side::Fuse2fs,
        &[
            ("files", "create", 40.0),
            ("files", "stat", 40.0),
            ("files", "unlink", 40.0),
            ("xattr", "setxattr", 5.0),
            ("sequential", "cold read", 5.0),
            ("sequential", "write", 5.0),
            ("random", "write", 5.0),
        ],
    ),
    (
        "Through FUSE, beside bindfs on tmpfs",
        Side::Fuse,
        Side::Bindfs,
        &[
            ("files", "create", 1.5),
            ("files", "unlink", 1.5),
            ("tree", "cold ls -lR", 2.0),
            ("xattr", "setxattr", 1.0),
            ("sequential", "write", 3.0),
            ("sequential", "cold read", 1.0),
            ("random", "direct write", 2.0),
        ],
    ),
    (
        "As a library, beside the kernel's ext4 through system calls",
        Side::Library,
        Side::Kernel,
        &[
            ("files", "create", 3.0),
            ("files", "unlink", 3.0),
            ("xattr", "setxattr", 2.0),
            ("tree", "cold find", 2.0),
            ("tree", "cold ls -lR", 2.0),
            ("sequential", "cold read", 1.0),
            ("sequential", "write", 1.0),
            ("random", "write", 1.0),
            ("durable", "create, write, fsync", 1.0),
        ],
    ),
];

/// Times a way of a job takes over platter's: job, way, bound.
const JOBS: &[(&str, &str, Aim)] = &[
    ("image of a directory", "mke2fs -d", Aim::AtLeast(4.0)),
    (
        "image of a directory",
        "cp -r to tmpfs",
        Aim::AtLeast(1.0 / 1.5),
    ),
    (
        "archive of an image",
        "kernel mount and tar",
        Aim::AtLeast(1.5),
    ),
];

const HEAD: &[&str] = &["what", "aim", "reached", "runs", "verdict"];
const MIB: f64 = 1024.0 * 1024.0;

/// Tells of all aims that there is something to judge by.
pub(super) fn tell(page: &mut Page, evidence: Evidence<'_>) {
    page.paragraph(
        "## Aims\n\nRates are medians over medians, with the range that holds the true ratio with 95 % \
         confidence. An aim is *met* where the whole range is, and *met by the median* where its lower \
         end is not.",
    );
    if let Some(measured) = evidence.peers {
        for &(title, ours, theirs, aims) in BESIDE {
            let rows = aims.iter();
            let rows = rows.filter_map(|aim| beside(measured, ours, theirs, aim));
            table(page, title, &rows.collect::<Vec<_>>());
        }
    }
    if let Some(runs) = evidence.jobs {
        let rows = JOBS.iter().filter_map(|aim| job(runs, aim));
        table(
            page,
            "Whole jobs of platter's program",
            &rows.collect::<Vec<_>>(),
        );
    }
    table(page, "As things grow", &growth(evidence));
}

fn table(page: &mut Page, title: &str, rows: &[Vec<String>]) {
    if !rows.is_empty() {
        page.paragraph(&format!("### {title}"));
        page.table(HEAD, rows);
    }
}

impl Aim {
    fn verdict(self, reached: Estimate) -> &'static str {
        let is_in = |value: f64| match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        };
        let worst = match self {
            Self::AtLeast(_) => reached.low,
            Self::AtMost(_) => reached.high,
        };
        match (is_in(worst), is_in(reached.value)) {
            (true, _) => "met",
            (false, true) => "met by the median",
            (false, false) => "**missed**",
        }
    }

    /// A row of the table.
    fn row(self, what: String, reached: Estimate, runs: usize, unit: &str) -> Vec<String> {
        let aim = match self {
            Self::AtLeast(least) => format!("at least {}{unit}", short(least)),
            Self::AtMost(most) => format!("at most {}{unit}", short(most)),
        };
        let Estimate { value, low, high } = reached;
        let (value, low, high) = (short(value), short(low), short(high));
        let shown = format!("{value}{unit} ({low} to {high})");
        let verdict = self.verdict(reached).to_owned();
        vec![what, aim, shown, runs.to_string(), verdict]
    }
}

fn beside(
    measured: &Measured,
    ours: Side,
    theirs: Side,
    &(name, phase, times): &OfWork,
) -> Option<Vec<String>> {
    let series = Series::of(measured, Workload::named(name).ok()?, 1);
    let [our_rates, their_rates] = [ours, theirs].map(|side| series.rates(side, phase));
    let runs = our_rates.len().min(their_rates.len());
    if runs == 0 {
        return None;
    }
    let reached = ratio(&our_rates, &their_rates);
    let what = format!("{name}: {phase}");
    Some(Aim::AtLeast(times).row(what, reached, runs, "x"))
}

fn job(runs: &[Run], &(job, way, aim): &(&str, &str, Aim)) -> Option<Vec<String>> {
    let of_job = || runs.iter().filter(move |run| run.job == job);
    let seconds = |way: &str| -> Vec<f64> {
        let of_way = of_job().filter(|run| run.way == way);
        of_way.map(|run| run.seconds).collect()
    };
    let ours = crate::programs::ours(job)?;
    let (ours, theirs) = (seconds(ours), seconds(way));
    let count = ours.len().min(theirs.len());
    let what = format!("{job}: rate over {way}");
    (count > 0).then(|| aim.row(what, ratio(&theirs, &ours), count, "x"))
}

fn growth(evidence: Evidence<'_>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for grown in evidence.scale.into_iter().flatten() {
        match grown.name.as_str() {
            "create" => rows.extend(create(grown)),
            "image" => rows.extend(image(grown)),
            "threads" => rows.extend(threads(grown)),
            _ => {}
        }
    }
    rows.extend(memory(evidence));
    rows
}

/// The library's samples at one size.
fn at(grown: &Grown, size: u64) -> Vec<&Sample> {
    let samples = grown.samples.iter().filter(|at| at.size == size);
    let samples = samples.map(|at| &at.sample);
    samples
        .filter(|sample| sample.side == Side::Library)
        .collect()
}

fn rates(samples: &[&Sample], phase: &str) -> Vec<f64> {
    let parts = samples.iter().flat_map(|sample| &sample.phases);
    let parts = parts.filter(|part| part.name == phase);
    parts.map(|part| part.units() / part.seconds).collect()
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn create(grown: &Grown) -> Option<Vec<String>> {
    let sizes = || grown.samples.iter().map(|at| at.size);
    let (few, many) = (sizes().min()?, sizes().max()?);
    let [at_few, at_many] = [few, many].map(|size| rates(&at(grown, size), "create"));
    let what = format!(
        "library: rate of create at {} files in a folder over that at {}",
        short(many as f64),
        short(few as f64)
    );
    let runs = at_few.len().min(at_many.len());
    Some(Aim::AtLeast(0.7).row(what, ratio(&at_many, &at_few), runs, "x"))
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn image(grown: &Grown) -> Vec<Vec<String>> {
    let Some(size) = grown.samples.iter().map(|at| at.size).max() else {
        return Vec::new();
    };
    let samples = at(grown, size);
    let seconds: Vec<f64> = samples.iter().map(|one| one.mount_seconds * 1e3).collect();
    let memory = samples.iter().map(|one| one.client_peak_bytes as f64 / MIB);
    let memory: Vec<f64> = memory.collect();
    let tib = short(size as f64 / MIB);
    vec![
        Aim::AtMost(50.0).row(
            format!("library: mount of a clean image of {tib} TiB"),
            median(&seconds),
            seconds.len(),
            " ms",
        ),
        Aim::AtMost(64.0).row(
            format!("library: memory of the process that mounts {tib} TiB"),
            median(&memory),
            memory.len(),
            " MiB",
        ),
    ]
}

fn threads(grown: &Grown) -> Vec<Vec<String>> {
    let row = |phase: &str| {
        let [one, two] = [1, 2].map(|size| rates(&at(grown, size), phase));
        let what = format!("library: {phase} by 2 threads in different folders over 1");
        let runs = one.len().min(two.len());
        (runs > 0).then(|| Aim::AtLeast(1.6).row(what, ratio(&two, &one), runs, "x"))
    };
    let phases = ["create", "stat", "unlink"].into_iter();
    phases.filter_map(row).collect()
}

/// The most that any run took over what its caches may.
#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^52")]
fn memory(evidence: Evidence<'_>) -> Option<Vec<String>> {
    let grown = evidence.scale.into_iter().flatten();
    let grown = grown.flat_map(|grown| grown.samples.iter().map(|at| &at.sample));
    let peers = evidence.peers.into_iter();
    let peers = peers.flat_map(|measured| &measured.samples);
    let above: Vec<f64> = grown
        .chain(peers)
        .filter_map(Sample::above_budget_bytes)
        .map(|bytes| bytes as f64 / MIB)
        .collect();
    let most = above.iter().copied().reduce(f64::max)?;
    let reached = Estimate {
        value: most,
        low: above.iter().copied().fold(most, f64::min),
        high: most,
    };
    let what = "memory above the budget of the caches, the most of all runs".to_owned();
    Some(Aim::AtMost(64.0).row(what, reached, above.len(), " MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{programs, work};

    #[test]
    fn every_aim_is_of_work_there_is() {
        for (_, _, _, aims) in BESIDE {
            for &(name, phase, _) in *aims {
                let workload = work::ALL.iter().find(|workload| workload.name == name);
                let phases = workload.unwrap().phases;
                assert!(phases.iter().any(|one| one.name == phase), "{name} {phase}");
            }
        }
        for (job, way, _) in JOBS {
            let job = programs::JOBS.iter().find(|one| one.name == *job).unwrap();
            assert!(job.ways.iter().any(|one| one.name == *way), "{way}");
        }
    }

    #[test]
    fn a_range_on_both_sides_of_an_aim_is_told_from_one_beyond_it() {
        let reached = Estimate {
            value: 2.0,
            low: 1.5,
            high: 2.5,
        };
        assert_eq!(Aim::AtLeast(1.5).verdict(reached), "met");
        assert_eq!(Aim::AtLeast(1.8).verdict(reached), "met by the median");
        assert_eq!(Aim::AtLeast(2.1).verdict(reached), "**missed**");
        assert_eq!(Aim::AtMost(2.5).verdict(reached), "met");
        assert_eq!(Aim::AtMost(2.2).verdict(reached), "met by the median");
        assert_eq!(Aim::AtMost(1.0).verdict(reached), "**missed**");
    }
}
