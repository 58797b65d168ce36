//! What was measured of a format, as aims are judged by it.

use testkit::fs_type::FsType;

use super::{Aim, Bound, Evidence, Group};
use crate::measure::{Estimate, ratio};
use crate::peers::Measured;
use crate::report::peers::{Series, format_name};
use crate::side::Side;
use crate::work::Workload;

pub(super) struct Compared<'r> {
    pub(super) format: FsType,
    pub(super) measured: Option<&'r Measured>,
}

impl<'r> Compared<'r> {
    pub(super) fn of(evidence: Evidence<'r>, format: FsType) -> Self {
        let record = evidence.peers.get(&format);
        Self {
            format,
            measured: record.map(|record| &record.result),
        }
    }

    /// An aim, named by the format where that is not ext4.
    pub(super) fn aim(
        &self,
        group: Group,
        key: &[&str],
        what: &str,
        bound: (Bound, &'static str),
    ) -> Aim {
        if self.format == FsType::Ext4 {
            return Aim::new(group, key, what.to_owned(), bound);
        }
        let key = [&[self.format.kernel_name()], key].concat();
        let what = format!("{}, {what}", format_name(self.format));
        Aim::new(group, &key, what, bound)
    }

    /// The runs of a workload by so many threads.
    pub(super) fn series(&self, name: &str, threads: usize) -> Option<Series<'r>> {
        let workload = Workload::named(name).ok()?;
        Some(Series::of(self.measured?, workload, threads))
    }
}

/// The rate of a side over that of another, and the runs of both.
pub(super) fn over(
    series: &Series<'_>,
    [ours, theirs]: [Side; 2],
    phase: &str,
) -> (Estimate, usize) {
    let [ours, theirs] = [ours, theirs].map(|side| series.rates_as_named(side, phase));
    (ratio(&ours, &theirs), ours.len().min(theirs.len()))
}

/// The peer with the options that suit the work, where it was measured with them, too: without `big_writes`
/// the FUSE library of bindfs takes long writes in pieces of 4 KiB.
pub(super) fn at_its_best(series: &Series<'_>, side: Side) -> Side {
    if side == Side::Bindfs && series.has_side(Side::BindfsLong) {
        Side::BindfsLong
    } else {
        side
    }
}

/// Runs to judge by, made up.
#[cfg(test)]
pub(super) mod made {
    use super::super::Peers;
    use super::*;
    use crate::measure::Quiet;
    use crate::peers::Sample;
    use crate::record::{Extent, Record};

    /// A run of a workload by one thread, with one phase of a second.
    pub(in super::super) fn sample(
        side: Side,
        format: FsType,
        workload: &str,
        phase: &str,
        amount: u64,
    ) -> Sample {
        let sample = serde_json::json!({
            "side": side,
            "format": format,
            "workload": workload,
            "count": amount,
            "threads": 1,
            "cache_bytes": 0,
            "mount_seconds": 0.0,
            "phases": [{
                "name": phase,
                "unit": "operation",
                "amount": amount,
                "seconds": 1.0,
                "client_cpu_seconds": 0.0,
                "server_cpu_seconds": null,
                "asked": {},
            }],
            "client_peak_bytes": 0,
            "server_peak_bytes": null,
        });
        serde_json::from_value(sample).unwrap()
    }

    pub(in super::super) fn kept<T>(result: T) -> Record<T> {
        let quiet = [Quiet::look(Extent::Quick).unwrap(); 2];
        Record::of(String::new(), quiet, result).unwrap()
    }

    /// Aims of runs of one format.
    pub(in super::super) fn judged(
        aims: fn(Evidence<'_>) -> Vec<Aim>,
        format: FsType,
        samples: Vec<Sample>,
    ) -> Vec<Aim> {
        let measured = Measured {
            samples,
            ..Measured::default()
        };
        let peers = Peers::from([(format, kept(measured))]);
        aims(Evidence {
            peers: &peers,
            ..Evidence::NOTHING
        })
    }
}
