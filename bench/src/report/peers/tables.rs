//! Tables and pictures of one workload.

use super::series::{Series, per_second};
use crate::measure::{float, median, ratio};
use crate::peers::{Measured, Part, Sampled};
use crate::report::charts::{Bar, histogram, ratio_bars};
use crate::report::number::{short, time, with_range};
use crate::report::page::Page;
use crate::side::{DeviceAsked, Side};

/// What is compared with what, where both were measured.
const PAIRS: &[(Side, Side)] = &[
    (Side::Device, Side::Fuse2fs),
    (Side::Device, Side::Bindfs),
    (Side::Device, Side::BindfsLong),
    (Side::Device, Side::Kernel),
    (Side::Fuse, Side::Device),
    (Side::Fuse, Side::NullFuse),
    (Side::Device, Side::NullDevice),
    (Side::Fuse, Side::Kernel),
    (Side::Unchecked, Side::Fuse),
    (Side::Gathered, Side::Device),
    (Side::Library, Side::Kernel),
];

impl Series<'_> {
    pub(super) fn write(&self, page: &mut Page, measured: &Measured) {
        let (name, threads, title) = (self.workload.name, self.threads, self.title());
        let count = self.samples[0].count;
        page.paragraph(&format!(
            "## {title}\n\nThe work: {}. Count: {count}.",
            self.workload.about
        ));
        let label = format!("{}-{name}-{threads}", self.format.kernel_name());
        let bars: Vec<Bar> = PAIRS.iter().flat_map(|&pair| self.bars(pair)).collect();
        if !bars.is_empty() {
            let title = format!("{title}: rate of the first over the second; right is faster");
            page.picture(&format!("ratio-{label}"), &title, ratio_bars(&title, &bars));
        }
        for phase in self.phases() {
            self.table(page, phase, measured);
        }
        self.memory(page);
    }

    fn bars(&self, (ours, theirs): (Side, Side)) -> Vec<Bar> {
        if !self.has_side(ours) || !self.has_side(theirs) {
            return Vec::new();
        }
        let bar = |phase: &str| Bar {
            name: format!("{phase}: {} / {}", self.name(ours), self.name(theirs)),
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
        let unit = self.unit(phase);
        let per_second = per_second(unit);
        let cpu = format!("CPU µs/{unit}");
        let per_unit = ["requests", "writes", "KiB written", "flushes"];
        let per_unit = per_unit.map(|what| format!("{what}/{unit}"));
        let head = [
            phase,
            "runs",
            per_second,
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
            .map(|sampled| (self.name(sampled.side), &sampled.latencies))
            .collect();
        if !latencies.is_empty() {
            let title = format!("{}: latency of {phase}", self.title());
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
            let name = format!(
                "latency-{}-{}-{}-{word}",
                self.format.kernel_name(),
                self.workload.name,
                self.threads
            );
            page.picture(&name, &title, histogram(&title, &latencies));
        }
    }

    fn is_of(&self, sampled: &Sampled, phase: &str) -> bool {
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
        let is_null = matches!(side, Side::NullFuse | Side::NullDevice);
        let is_counted = side.is_platter_mounted() || is_null;
        vec![
            self.name(side).to_owned(),
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
                self.name(side).to_owned(),
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
