//! Mounts of a format, compared with the kernel and other FUSE servers.

use testkit::fs_type::FsType;

use crate::measure::{Estimate, median, ratio};
use crate::peers::Measured;
use crate::report::charts::{Bar, ratio_bars};
use crate::report::number::{short, with_range};
use crate::report::page::Page;
use crate::report::peers::{Series, format_name, links, per_second};
use crate::report::raw::{Raw, peers_command};
use crate::side::Side;
use crate::work::Workload;

/// The work that a reader asks for first, by workload and phase, done by one thread.
const WORK: &[(&str, &str)] = &[
    ("files", "create"),
    ("files", "stat"),
    ("files", "cold stat"),
    ("files", "unlink"),
    ("tree", "unpack"),
    ("tree", "cold find"),
    ("tree", "cold tar"),
    ("sequential", "write"),
    ("sequential", "cold read"),
    ("random", "write"),
    ("random", "cold read"),
    ("durable", "create, write, fsync"),
];

/// The columns of rates.
const SIDES: [Side; 5] = [
    Side::Device,
    Side::Fuse,
    Side::Library,
    Side::Kernel,
    Side::Fuse2fs,
];
/// Those that the default is compared with.
const PEERS: [Side; 2] = [Side::Kernel, Side::Fuse2fs];

pub(super) fn write(page: &mut Page, raw: &Raw, format: FsType) {
    let Some(record) = raw.peers.get(&format) else {
        let command = peers_command(format);
        page.paragraph(&format!(
            "Mounts compared with the kernel and FUSE peers: **not measured**; `{command}` measures them."
        ));
        return;
    };
    let rows: Vec<Row<'_>> = rows(&record.result).collect();
    let has = |side: &Side| rows.iter().any(|row| !row.rates(*side).is_empty());
    let sides: Vec<Side> = SIDES.into_iter().filter(has).collect();
    let peers: Vec<Side> = PEERS.into_iter().filter(has).collect();
    let more = links(page, format);
    page.paragraph(&format!(
        "By `{}`, one thread, rates in a second; *durable* is on a disk, the rest in memory. {} More: {more}.",
        record.command,
        verdicts(&rows, &peers, format)
    ));
    let mut head = vec![format!("{}, in a second", format_name(format))];
    head.extend(sides.iter().map(|side| column(*side, format)));
    head.extend(
        peers
            .iter()
            .map(|side| format!("default / {}", side.name(format))),
    );
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let texts: Vec<_> = rows.iter().map(|row| row.texts(&sides, &peers)).collect();
    page.table(&head, &texts);
    let bars = rows.iter().flat_map(|row| row.bars(&peers, format));
    let bars: Vec<Bar> = bars.collect();
    let title = format!(
        "{}: rate of a mount over /dev/fuse over that of its peers; right is faster",
        format_name(format)
    );
    let name = format!("summary-{}", format.kernel_name());
    page.picture(&name, &title, ratio_bars(&title, &bars));
}

fn column(side: Side, format: FsType) -> String {
    let name = side.name(format);
    if side == Side::Device {
        format!("{name} (default)")
    } else {
        name.to_owned()
    }
}

/// One kind of work.
struct Row<'r> {
    series: Series<'r>,
    name: String,
    phase: &'static str,
}

fn rows(measured: &Measured) -> impl Iterator<Item = Row<'_>> {
    let rows = WORK.iter().filter_map(|&(name, phase)| {
        let series = Series::of(measured, Workload::named(name).ok()?, 1);
        Some(Row {
            series,
            name: format!("{name}: {phase}"),
            phase,
        })
    });
    rows.filter(|row| !row.rates(Side::Device).is_empty())
}

impl Row<'_> {
    fn rates(&self, side: Side) -> Vec<f64> {
        self.series.rates_as_named(side, self.phase)
    }

    /// The rate of one side over that of another, where both were measured.
    fn over(&self, sides: [Side; 2]) -> Option<Estimate> {
        let [ours, theirs] = sides.map(|side| self.rates(side));
        (!ours.is_empty() && !theirs.is_empty()).then(|| ratio(&ours, &theirs))
    }

    fn texts(&self, sides: &[Side], peers: &[Side]) -> Vec<String> {
        let unit = per_second(self.series.unit(self.phase));
        let mut texts = vec![if unit == "MiB/s" {
            format!("{}, MiB", self.name)
        } else {
            self.name.clone()
        }];
        texts.extend(sides.iter().map(|side| {
            let rates = self.rates(*side);
            if rates.is_empty() {
                "-".to_owned()
            } else {
                short(median(&rates).value)
            }
        }));
        texts.extend(peers.iter().map(|peer| {
            self.over([Side::Device, *peer])
                .map_or_else(|| "-".to_owned(), with_range)
        }));
        texts
    }

    fn bars(&self, peers: &[Side], format: FsType) -> Vec<Bar> {
        let bar = |peer: &Side| {
            Some(Bar {
                name: format!("{} / {}", self.name, peer.name(format)),
                ratio: self.over([Side::Device, *peer])?,
            })
        };
        peers.iter().filter_map(bar).collect()
    }
}

/// In how much of the work a mount is faster and slower than each peer, by default and over rings.
fn verdicts(rows: &[Row<'_>], peers: &[Side], format: FsType) -> String {
    let verdict = |peer: &Side| {
        let [by_default, rings] = [Side::Device, Side::Fuse].map(|ours| tally(rows, [ours, *peer]));
        format!(
            "Compared with {}, a mount is {by_default} by default, and {rings} over rings.",
            peer.name(format).replace(", ", " over ")
        )
    };
    let verdicts: Vec<String> = peers.iter().map(verdict).collect();
    verdicts.join(" ")
}

fn tally(rows: &[Row<'_>], sides: [Side; 2]) -> String {
    let ratios: Vec<Estimate> = rows.iter().filter_map(|row| row.over(sides)).collect();
    let faster = ratios.iter().filter(|ratio| ratio.low > 1.0).count();
    let slower = ratios.iter().filter(|ratio| ratio.high < 1.0).count();
    format!(
        "faster in {faster} and slower in {slower} of {} rows",
        ratios.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_of_work_there_is() {
        for (name, phase) in WORK {
            let workload = Workload::named(name).unwrap();
            assert!(workload.phases.iter().any(|one| one.name == *phase));
        }
    }
}
