//! Platter compared with its peers.

use super::Page;
use super::charts::{Bar, histogram, ratio_bars};
use super::number::{short, time, with_range};
use crate::measure::{float, median, ratio};
use crate::peers::{Measured, Part, Sample};
use crate::record::Record;
use crate::side::{DeviceAsked, Side};
use crate::work::{self, Workload};

/// What is compared with what, where both were measured.
const PAIRS: &[(Side, Side)] = &[
    (Side::Fuse, Side::Fuse2fs),
    (Side::Fuse, Side::Bindfs),
    (Side::Fuse, Side::BindfsLong),
    (Side::Fuse, Side::NullFuse),
    (Side::Fuse, Side::Device),
    (Side::Unchecked, Side::Fuse2fs),
    (Side::Gathered, Side::Fuse2fs),
    (Side::Fuse, Side::Kernel),
    (Side::Library, Side::Kernel),
];

/// A workload with a number of threads.
pub(super) struct Series<'r> {
    workload: &'static Workload,
    threads: usize,
    samples: Vec<&'r Sample>,
}

pub(super) fn write(page: &mut Page, record: &Record<Measured>) {
    page.paragraph("## Compared with its peers");
    page.provenance(record);
    for failure in &record.result.failures {
        page.paragraph(&format!("**Not measured to the end:** {failure}."));
    }
    super::requests::write(page, &record.result);
    for workload in work::ALL {
        for &threads in workload.threads {
            let series = Series::of(&record.result, workload, threads);
            if !series.samples.is_empty() {
                series.write(page, &record.result);
            }
        }
    }
}

impl<'r> Series<'r> {
    pub(super) fn of(measured: &'r Measured, workload: &'static Workload, threads: usize) -> Self {
        let mut series = Self {
            workload,
            threads,
            samples: Vec::new(),
        };
        let samples = measured.samples.iter();
        series.samples = samples.filter(|sample| series.has(sample)).collect();
        series
    }

    fn has(&self, sample: &Sample) -> bool {
        sample.workload == self.workload.name && sample.threads == self.threads
    }

    fn write(&self, page: &mut Page, measured: &Measured) {
        let (name, threads) = (self.workload.name, self.threads);
        let count = self.samples[0].count;
        let plural = if threads == 1 { "thread" } else { "threads" };
        page.paragraph(&format!(
            "### {name}, {threads} {plural}\n\nThe work: {}. Count: {count}.",
            self.workload.about
        ));
        let label = format!("{name}-{threads}");
        let bars: Vec<Bar> = PAIRS.iter().flat_map(|&pair| self.bars(pair)).collect();
        if !bars.is_empty() {
            let title =
                format!("{name}, {threads} {plural}: rate over the peer's; right is faster");
            page.picture(&format!("ratio-{label}"), &title, ratio_bars(&title, &bars));
        }
        for phase in self.phases() {
            self.table(page, phase, measured);
        }
        self.memory(page);
    }

    /// The names of what was measured, in order.
    fn phases(&self) -> Vec<&str> {
        let parts = self.samples[0].phases.iter();
        parts.map(|part| part.name.as_str()).collect()
    }

    fn sides(&self) -> Vec<Side> {
        let is_there = |side: &Side| self.samples.iter().any(|sample| sample.side == *side);
        Side::ALL.into_iter().filter(is_there).collect()
    }

    pub(super) fn parts(&self, side: Side, phase: &str) -> Vec<&'r Part> {
        let samples = self.samples.iter().filter(|sample| sample.side == side);
        let parts = samples.flat_map(|sample| &sample.phases);
        parts.filter(|part| part.name == phase).collect()
    }

    /// How much each run did in a second.
    pub(super) fn rates(&self, side: Side, phase: &str) -> Vec<f64> {
        let rate = |part: &Part| part.units() / part.seconds.max(1e-9);
        self.parts(side, phase).into_iter().map(rate).collect()
    }

    fn bars(&self, (ours, theirs): (Side, Side)) -> Vec<Bar> {
        let sides = self.sides();
        if !sides.contains(&ours) || !sides.contains(&theirs) {
            return Vec::new();
        }
        let bar = |phase: &str| Bar {
            name: format!("{phase}: {} / {}", ours.name(), theirs.name()),
            ratio: ratio(&self.rates(ours, phase), &self.rates(theirs, phase)),
        };
        let phases = self.phases().into_iter();
        // A sync that has nothing to do takes no time that could be compared.
        phases
            .filter(|phase| !phase.starts_with("sync"))
            .map(bar)
            .collect()
    }

    fn table(&self, page: &mut Page, phase: &str, measured: &Measured) {
        let sides = self.sides();
        let is_timed = self.workload.phases.iter().any(|known| known.name == phase);
        if !is_timed {
            return;
        }
        let unit = self.parts(sides[0], phase).first().map_or("", |part| {
            if part.unit == "byte" {
                "MiB"
            } else {
                "operation"
            }
        });
        let per_second = format!("{unit}s/s");
        let cpu = format!("CPU µs/{unit}");
        let per_unit = ["requests", "writes", "KiB written", "flushes"];
        let per_unit = per_unit.map(|what| format!("{what}/{unit}"));
        let head = [
            phase,
            "runs",
            &per_second,
            "p50",
            "p99",
            &cpu,
            &per_unit[0],
            &per_unit[1],
            &per_unit[2],
            &per_unit[3],
        ];
        let rows: Vec<_> = sides
            .iter()
            .map(|&side| self.row(side, phase, measured))
            .collect();
        page.table(&head, &rows);
        let latencies: Vec<_> = measured
            .latencies
            .iter()
            .filter(|sampled| self.is_of(sampled, phase))
            .map(|sampled| (sampled.side.name(), &sampled.latencies))
            .collect();
        if !latencies.is_empty() {
            let title = format!("{}: latency of {phase}", self.workload.name);
            let word: String = phase
                .chars()
                .map(|letter| {
                    if letter.is_alphanumeric() {
                        letter
                    } else {
                        '-'
                    }
                })
                .collect();
            let name = format!("latency-{}-{}-{word}", self.workload.name, self.threads);
            page.picture(&name, &title, histogram(&title, &latencies));
        }
    }

    fn is_of(&self, sampled: &crate::peers::Sampled, phase: &str) -> bool {
        sampled.workload == self.workload.name
            && sampled.threads == self.threads
            && sampled.phase == phase
    }

    fn row(&self, side: Side, phase: &str, measured: &Measured) -> Vec<String> {
        let parts = self.parts(side, phase);
        let over_runs = |figure: &dyn Fn(&Part) -> Option<f64>| {
            let figures: Vec<f64> = parts.iter().filter_map(|part| figure(part)).collect();
            (!figures.is_empty()).then(|| median(&figures).value)
        };
        let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), short);
        let counted = measured.counted.iter().filter(|sample| self.has(sample));
        let counted = counted.filter(|sample| sample.side == side);
        let counted = counted.flat_map(|sample| &sample.phases);
        let counted: Vec<&Part> = counted.filter(|part| part.name == phase).collect();
        let device = |what: &dyn Fn(&DeviceAsked) -> Option<u64>| {
            let parts = parts.iter().chain(&counted);
            let per_unit = |part: &&Part| Some(part.per(what(part.asked.device.as_ref()?)?));
            let figures: Vec<f64> = parts.filter_map(per_unit).collect();
            shown((!figures.is_empty()).then(|| median(&figures).value))
        };
        let sampled = measured
            .latencies
            .iter()
            .find(|sampled| self.is_of(sampled, phase) && sampled.side == side);
        let quantile = |share: f64| {
            let quantile = sampled.and_then(|sampled| sampled.latencies.quantile(share));
            quantile.map_or_else(|| "-".to_owned(), time)
        };
        let cpu = |part: &Part| {
            let seconds = part.client_cpu_seconds + part.server_cpu_seconds.unwrap_or(0.0);
            Some(seconds * 1e6 / part.units())
        };
        let is_counted = side.is_platter_mounted() || side == Side::NullFuse;
        vec![
            side.name().to_owned(),
            parts.len().to_string(),
            with_range(median(&self.rates(side, phase))),
            quantile(0.5),
            quantile(0.99),
            shown(over_runs(&cpu)),
            shown(over_runs(&|part| {
                is_counted.then(|| part.per(part.asked.requests()))
            })),
            device(&|device| Some(device.writes)),
            device(&|device| Some(device.write_bytes? >> 10)),
            device(&|device| Some(device.flushes)),
        ]
    }

    fn memory(&self, page: &mut Page) {
        let mib = |bytes: Vec<f64>| {
            let shown = median(&bytes).value / f64::from(1 << 20);
            if bytes.is_empty() {
                "-".to_owned()
            } else {
                short(shown)
            }
        };
        let row = |side: Side| {
            let samples = || {
                self.samples
                    .iter()
                    .filter(move |sample| sample.side == side)
            };
            let client = samples().map(|sample| float(sample.client_peak_bytes));
            let server = samples().filter_map(|sample| sample.server_peak_bytes);
            vec![
                side.name().to_owned(),
                mib(client.collect()),
                mib(server.map(float).collect()),
            ]
        };
        let rows: Vec<_> = self.sides().into_iter().map(row).collect();
        let head = [
            "peak memory",
            "MiB of the working process",
            "MiB of the server",
        ];
        page.table(&head, &rows);
    }
}
