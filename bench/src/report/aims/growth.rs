//! Aims of what grows: rates that stay, mounts of large images, memory, threads.

use super::{Aim, Bound, Evidence, Group};
use crate::measure::{Estimate, float, median, ratio};
use crate::peers::Sample;
use crate::report::number::short;
use crate::scale;
use crate::side::Side;

const MIB: f64 = 1024.0 * 1024.0;

pub(super) fn aims(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = vec![create(evidence)];
    aims.extend(image(evidence));
    aims.extend(threads(evidence));
    aims.push(memory(evidence));
    aims
}

/// The library's samples of what grows, at one size.
fn at<'r>(evidence: Evidence<'r>, name: &str, size: u64) -> Vec<&'r Sample> {
    let grown = evidence.scale.into_iter().flatten();
    let samples = grown.filter(|grown| grown.name == name);
    let samples = samples.flat_map(|grown| &grown.samples);
    let samples = samples.filter(|at| at.size == size).map(|at| &at.sample);
    samples
        .filter(|sample| sample.side == Side::Library)
        .collect()
}

fn rates(samples: &[&Sample], phase: &str) -> Vec<f64> {
    let parts = samples.iter().flat_map(|sample| &sample.phases);
    let parts = parts.filter(|part| part.name == phase);
    parts.map(|part| part.units() / part.seconds).collect()
}

/// The rate of a phase at a size over that at another.
fn rate_over(
    evidence: Evidence<'_>,
    name: &str,
    phase: &str,
    sizes: [u64; 2],
) -> (Estimate, usize) {
    let [rates, of] = sizes.map(|size| rates(&at(evidence, name, size), phase));
    (ratio(&rates, &of), rates.len().min(of.len()))
}

fn create(evidence: Evidence<'_>) -> Aim {
    let [few, many] = scale::ends("create", evidence.extent);
    let what = format!(
        "library: rate of create at {} files in a directory over that at {}",
        short(float(many)),
        short(float(few))
    );
    let aim = Aim::new(
        Group::Growth,
        &["growth create"],
        what,
        (Bound::AtLeast(0.7), "x"),
    );
    let (reached, runs) = rate_over(evidence, "create", "create", [many, few]);
    aim.reaching(reached, runs)
}

fn image(evidence: Evidence<'_>) -> [Aim; 2] {
    let [_, size] = scale::ends("image", evidence.extent);
    let samples = at(evidence, "image", size);
    let figures = |figure: fn(&Sample) -> f64| -> Vec<f64> {
        samples.iter().map(|sample| figure(sample)).collect()
    };
    let milliseconds = figures(|sample| sample.mount_seconds * 1e3);
    let memory = figures(|sample| float(sample.client_peak_bytes) / MIB);
    let tib = short(float(size) / MIB);
    let aim = |key, what, bound| Aim::new(Group::Growth, &["growth image", key], what, bound);
    let time = format!("library: mount of a clean image of {tib} TiB");
    let peak = format!("library: memory of the process that mounts {tib} TiB");
    [
        aim("time", time, (Bound::AtMost(50.0), " ms"))
            .reaching(median(&milliseconds), milliseconds.len()),
        aim("memory", peak, (Bound::AtMost(64.0), " MiB")).reaching(median(&memory), memory.len()),
    ]
}

fn threads(evidence: Evidence<'_>) -> [Aim; 3] {
    ["create", "stat", "unlink"].map(|phase| {
        let what = format!("library: {phase} by 2 threads in different directories over 1");
        let key = ["growth threads", phase];
        let (reached, runs) = rate_over(evidence, "threads", phase, [2, 1]);
        Aim::new(Group::Growth, &key, what, (Bound::AtLeast(1.6), "x")).reaching(reached, runs)
    })
}

/// The most that a run took over what its caches may, of those that filled their caches.
fn memory(evidence: Evidence<'_>) -> Aim {
    let grown = evidence.scale.into_iter().flatten();
    let grown = grown.flat_map(|grown| grown.samples.iter().map(|at| &at.sample));
    let peers = evidence.peers.values();
    let peers = peers.flat_map(|record| &record.result.samples);
    let above = grown.chain(peers).filter_map(Sample::above_budget_bytes);
    let above = above.filter(|&bytes| bytes > 0);
    let above: Vec<f64> = above.map(|bytes| float(bytes) / MIB).collect();
    let what =
        "memory above the budget of the caches, the most of all runs that reach it".to_owned();
    let bound = (Bound::AtMost(64.0), " MiB");
    let aim = Aim::new(Group::Growth, &["growth memory above budget"], what, bound);
    let most = above.iter().copied().fold(0.0, f64::max);
    let reached = Estimate {
        low: above.iter().copied().fold(most, f64::min),
        ..Estimate::exactly(most)
    };
    aim.reaching(reached, above.len())
}
