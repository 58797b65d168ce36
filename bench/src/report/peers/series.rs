//! The runs of one workload.

use testkit::fs_type::FsType;

use crate::peers::{Measured, Part, Sample};
use crate::side::Side;
use crate::work::Workload;

/// A workload with a number of threads.
pub(in crate::report) struct Series<'r> {
    pub(super) workload: &'static Workload,
    pub(super) threads: usize,
    pub(super) format: FsType,
    pub(super) samples: Vec<&'r Sample>,
}

/// The unit of a rate.
pub(in crate::report) fn per_second(unit: &str) -> &'static str {
    if unit == "MiB" {
        "MiB/s"
    } else {
        "operations/s"
    }
}

impl<'r> Series<'r> {
    pub(in crate::report) fn of(
        measured: &'r Measured,
        workload: &'static Workload,
        threads: usize,
    ) -> Self {
        let mut series = Self {
            workload,
            threads,
            format: FsType::default(),
            samples: Vec::new(),
        };
        let samples = measured.samples.iter();
        series.samples = samples.filter(|sample| series.has(sample)).collect();
        if let Some(sample) = series.samples.first() {
            series.format = sample.format;
        }
        series
    }

    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Whether there are runs of a side.
    pub(in crate::report) fn has_side(&self, side: Side) -> bool {
        self.samples.iter().any(|sample| sample.side == side)
    }

    /// The unit of what a phase does in a second.
    pub(in crate::report) fn unit(&self, phase: &str) -> &'static str {
        let parts = self.samples.iter().flat_map(|sample| &sample.phases);
        let mut parts = parts.filter(|part| part.name == phase);
        match parts.next() {
            Some(part) if part.unit == "byte" => "MiB",
            _ => "operation",
        }
    }

    pub(super) fn has(&self, sample: &Sample) -> bool {
        sample.workload == self.workload.name && sample.threads == self.threads
    }

    pub(super) fn title(&self) -> String {
        let plural = if self.threads == 1 {
            "thread"
        } else {
            "threads"
        };
        format!("{}, {} {plural}", self.workload.name, self.threads)
    }

    pub(in crate::report) fn name(&self, side: Side) -> &'static str {
        side.name(self.format)
    }

    /// The names of what was measured, in order.
    pub(super) fn phases(&self) -> Vec<&str> {
        let parts = self.samples[0].phases.iter();
        parts.map(|part| part.name.as_str()).collect()
    }

    pub(super) fn sides(&self) -> Vec<Side> {
        let is_there = |side: &Side| self.has_side(*side);
        Side::ALL.into_iter().filter(is_there).collect()
    }

    pub(in crate::report) fn parts(&self, side: Side, phase: &str) -> Vec<&'r Part> {
        let samples = self.samples.iter().filter(|sample| sample.side == side);
        let parts = samples.flat_map(|sample| &sample.phases);
        parts.filter(|part| part.name == phase).collect()
    }

    /// How much each run did in a second.
    pub(in crate::report) fn rates(&self, side: Side, phase: &str) -> Vec<f64> {
        let rate = |part: &Part| part.units() / part.seconds.max(1e-9);
        self.parts(side, phase).into_iter().map(rate).collect()
    }

    /// How much of the first phase each run did in a second that it took for both.
    pub(in crate::report) fn rates_of_both(
        &self,
        side: Side,
        [first, second]: [&str; 2],
    ) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.side == side);
        let rate = |sample: &&Sample| {
            let part = |name: &str| sample.phases.iter().find(|part| part.name == name);
            let (first, second) = (part(first)?, part(second)?);
            Some(first.units() / (first.seconds + second.seconds).max(1e-9))
        };
        samples.filter_map(rate).collect()
    }

    /// As `rates`, without runs that were to be over rings and were not.
    pub(in crate::report) fn rates_as_named(&self, side: Side, phase: &str) -> Vec<f64> {
        let samples = self.samples.iter().copied();
        let named = Self {
            samples: samples
                .filter(|sample| !sample.is_without_rings())
                .collect(),
            ..*self
        };
        named.rates(side, phase)
    }
}
