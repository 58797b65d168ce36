//! M1: the mount object of XFS in its three layouts, and what all threads of a mount share.

use super::published::REMOVALS;
use super::{Entry, Kept, NO_FUSE, begin, has_effect, lines, verdict};
use crate::measure::{Estimate, float, median, ratio};
use crate::mechanisms::{LAYOUTS, Measured, MountRuns, Sweep, TREE_THREADS, Trees, mount_pauses};
use crate::report::number::{short, with_range};
use crate::report::page::{Page, not_measured};
use crate::report::raw::MECHANISMS;

const FILE: &str = "xfs-mount.md";

const ABOUT: &str = "\
A cache line that one processor writes has to be fetched by every other one that reads anything in it. Linux 5.8 \
separated the geometry of a mounted XFS from its counters for that, and later removed the counter of active transactions.

Published with the change: `rm -rf` of 50 million files by 16 threads took 8m30s instead of 13m20s, and on another machine \
5m02s instead of 5m30s ([below](#times-and-those-published)).";

const SWEEP: &str = "\
## Checks of inode numbers next to transactions

On the driver's own mount object in three layouts: *packed*, with the byte that each check of an inode number reads next to \
the count of active transactions, as before Linux 5.8; *separated*, with the byte in the geometry; *counterless*, \
which the driver uses, without the count. One thread checks inode numbers, the other begins and ends transactions, with \
spins between them. Nanoseconds for each check, and transactions in a second.";

const TREES: &str = "\
## Trees removed

Trees of empty files, made and removed by two threads on a device in memory, each its own, with the driver built in each \
layout, in turns. *Restarted* are changes that found another one in their allocation group and began again. The share of \
checks in the time of the threads is their number times what one takes in the sweep above, in the same layout with the \
fewest transactions.";

const TIMES: &str = "\
## Times, and those published

Seconds in which all files were removed, and the part of the time that checks of inode numbers take, in percent: here of \
all checks, published of a profile, which names two functions of them.";

const CONCLUSION: &str = "\
## What can be concluded

The layout is as the table says, on every machine, and so is the cost of a read next to a counter on this one. The cost for \
sixteen processors that take one line from each other, and between sockets, cannot be measured on two. The removal of a \
tree can gain from a layout only at a rate of transactions at which the sweep shows a difference: compare the two columns \
of transactions/s.";

pub(super) fn page(record: Option<&Kept>) -> Page {
    let measured = record.map(|record| &record.result);
    let title = "M1: the XFS mount object, read-only fields apart from counters";
    let mut page = begin((FILE, title, ABOUT), NO_FUSE, record, measured.is_some());
    let Some(measured) = measured else {
        return page;
    };
    page.paragraph(SWEEP);
    if measured.mount.sweep.is_empty() {
        page.not_measured(MECHANISMS);
    } else {
        sweep(&mut page, &measured.mount);
    }
    page.paragraph(TREES);
    if measured.mount.trees.is_empty() {
        page.not_measured(MECHANISMS);
    } else {
        trees(&mut page, &measured.mount);
    }
    lines::write(&mut page, &measured.shapes, &measured.lines);
    page.paragraph(CONCLUSION);
    page
}

pub(super) fn entry(measured: Option<&Measured>) -> Entry {
    let alone = measured.and_then(|measured| lines::shared_over_apart(&measured.lines));
    let mount = measured.and_then(|measured| Sharing::of(&measured.mount.sweep));
    Entry {
        number: "M1",
        name: "mount object with read-only fields apart from counters (XFS)",
        file: FILE,
        published: "removing 50 million files by 16 threads: 13m20s to 8m30s, on another machine 5m30s to 5m02s",
        own: alone.map(|alone| own(alone, mount)),
        conclusion: alone.map(|alone| conclusion(alone, mount)),
    }
}

/// What a check costs in the packed layout over the separated one.
#[derive(Clone, Copy)]
struct Sharing {
    /// With transactions as often as possible.
    busiest: Estimate,
    /// With as few as were measured.
    idlest: Estimate,
}

impl Sharing {
    /// Nothing, where a layout was not measured.
    fn of(runs: &[Sweep]) -> Option<Self> {
        let over = |pause: u32| {
            let taken = |layout: &str| figures(runs, (pause, layout), |run| run.ns_per_check);
            let [packed, separated] = [LAYOUTS[0], LAYOUTS[1]].map(taken);
            (!packed.is_empty() && !separated.is_empty()).then(|| ratio(&packed, &separated))
        };
        let [busiest, .., idlest] = mount_pauses();
        Some(Self {
            busiest: over(busiest)?,
            idlest: over(idlest)?,
        })
    }
}

fn own(alone: Estimate, mount: Option<Sharing>) -> String {
    let alone = format!(
        "a read next to a busy counter over one apart from it: {}",
        verdict(alone)
    );
    let mount = mount.map_or_else(
        || format!("on the mount object: {}", not_measured(MECHANISMS)),
        |Sharing { busiest, idlest }| {
            format!(
                "a check in the packed layout over the separated one: {} with the most transactions, {} with the fewest",
                verdict(busiest),
                verdict(idlest)
            )
        },
    );
    format!("{alone}; {mount}")
}

fn conclusion(alone: Estimate, mount: Option<Sharing>) -> String {
    let alone = if has_effect(alone) && alone.value > 1.0 {
        "Sharing a line with a busy counter costs time"
    } else {
        "Sharing a line with a busy counter costs no visible time on two processors"
    };
    let mount = match mount {
        None => "",
        Some(sharing) if has_effect(sharing.idlest) => {
            "; the layouts differ at the rate of transactions of a mount, too"
        }
        Some(_) => "; at the rate of transactions of a mount the layouts do not differ",
    };
    format!("{alone}{mount}. That trees are removed faster cannot be concluded on two processors.")
}

fn sweep(page: &mut Page, runs: &MountRuns) {
    let rows: Vec<_> = mount_pauses().map(|pause| row(&runs.sweep, pause)).into();
    let mut head = vec!["spins between transactions"];
    head.extend(LAYOUTS);
    head.extend(["transactions/s, packed", "transactions/s, counterless"]);
    page.table(&head, &rows);
}

/// The runs of a layout, with what a check takes in it.
struct OfLayout<'r> {
    layout: &'static str,
    runs: Vec<&'r Trees>,
    check: f64,
}

impl<'r> OfLayout<'r> {
    /// Those that were measured.
    fn all(measured: &'r MountRuns) -> Vec<Self> {
        let [.., fewest] = mount_pauses();
        let of = |layout: &'static str| {
            let taken = figures(&measured.sweep, (fewest, layout), |run| run.ns_per_check);
            let runs = measured.trees.iter();
            Self {
                layout,
                runs: runs.filter(|run| run.layout == layout).collect(),
                check: median(&taken).value,
            }
        };
        let all = LAYOUTS.into_iter().map(of);
        all.filter(|it| !it.runs.is_empty()).collect()
    }

    fn figures(&self, of: impl Fn(&Trees) -> f64) -> Vec<f64> {
        self.runs.iter().map(|run| of(run)).collect()
    }

    fn row(&self) -> Vec<String> {
        let figure = |of: fn(&Trees) -> f64| with_range(median(&self.figures(of)));
        vec![
            self.layout.to_owned(),
            self.runs.first().map_or(0, |run| run.files).to_string(),
            figure(|run| run.create_seconds),
            figure(|run| run.remove_seconds),
            figure(|run| float(run.files as u64) / run.remove_seconds),
            figure(|run| float(run.transactions) / run.remove_seconds),
            figure(|run| float(run.checks) / float(run.files as u64)),
            with_range(median(&shares(self))),
            figure(|run| float(run.conflicts)),
        ]
    }
}

/// What checks take of the time of all threads, in percent, of each run.
fn shares(of: &OfLayout<'_>) -> Vec<f64> {
    of.figures(|run| share(run, of.check))
}

fn trees(page: &mut Page, runs: &MountRuns) {
    let all = OfLayout::all(runs);
    let rows: Vec<_> = all.iter().map(OfLayout::row).collect();
    page.table(
        &[
            "layout",
            "files",
            "made, s",
            "removed, s",
            "removals/s",
            "transactions/s",
            "checks/removal",
            "share of checks, %",
            "restarted",
        ],
        &rows,
    );
    page.paragraph(TIMES);
    page.table(&["", "before", "after", "after over before"], &times(&all));
}

/// What the removal takes here without and with the separation, and without the counter; and what was published.
fn times(all: &[OfLayout<'_>]) -> Vec<Vec<String>> {
    let of = |layout: &str| all.iter().find(|it| it.layout == layout);
    let mut rows = Vec::new();
    let mut own = |what: &str, figures: fn(&OfLayout<'_>) -> Vec<f64>| {
        for after in &LAYOUTS[1..] {
            let (Some(before), Some(after)) = (of(LAYOUTS[0]), of(after)) else {
                continue;
            };
            let (old, new) = (figures(before), figures(after));
            rows.push(vec![
                format!("{what}, {} to {}", before.layout, after.layout),
                with_range(median(&old)),
                with_range(median(&new)),
                verdict(ratio(&new, &old)),
            ]);
        }
    };
    own("removed, s", |it| it.figures(|run| run.remove_seconds));
    own("checks, %", shares);
    for published in REMOVALS {
        let mut row = |what: &str, [before, after]: [Option<f64>; 2]| {
            let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), short);
            let over = before.zip(after).map(|(before, after)| after / before);
            rows.push(vec![
                format!("published, machine {}: {what}", published.machine),
                shown(before),
                shown(after),
                shown(over),
            ]);
        };
        row("removed, s", published.seconds.map(Some));
        row("`xfs_agino_range`, %", published.range_share);
        if published.verify_share[0].is_some() {
            row("`xfs_verify_ino`, %", published.verify_share);
        }
    }
    rows
}

/// What checks of `check` nanoseconds take of the time of all threads, in percent.
fn share(run: &Trees, check: f64) -> f64 {
    let all = run.remove_seconds * 1e9 * float(TREE_THREADS as u64);
    100.0 * float(run.checks) * check / all
}

fn figures(runs: &[Sweep], (pause, layout): (u32, &str), figure: fn(&Sweep) -> f64) -> Vec<f64> {
    let wanted = |run: &&Sweep| run.pause == pause && run.layout == layout;
    runs.iter().filter(wanted).map(figure).collect()
}

fn row(runs: &[Sweep], pause: u32) -> Vec<String> {
    let of = |layout: &str, figure: fn(&Sweep) -> f64| figures(runs, (pause, layout), figure);
    let mut row = vec![pause.to_string()];
    let checks = LAYOUTS.map(|layout| with_range(median(&of(layout, |run| run.ns_per_check))));
    row.extend(checks);
    let rates = [LAYOUTS[0], LAYOUTS[2]].map(|layout| {
        let rates = of(layout, |run| run.transactions_per_second);
        short(median(&rates).value)
    });
    row.extend(rates);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_of_all_threads() {
        let run = Trees {
            layout: LAYOUTS[2].to_owned(),
            files: 1000,
            create_seconds: 1.0,
            remove_seconds: 1.0,
            transactions: 1000,
            checks: 10_000_000,
            conflicts: 0,
        };
        let share = share(&run, 2.0);
        assert!((share - 1.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn the_conclusion_needs_both_ends_of_the_sweep() {
        let run = |pause, layout: &str, ns_per_check| Sweep {
            layout: layout.to_owned(),
            pause,
            ns_per_check,
            transactions_per_second: 1.0,
        };
        let [busiest, .., idlest] = mount_pauses();
        let mut runs = vec![run(busiest, LAYOUTS[0], 4.0), run(busiest, LAYOUTS[1], 2.0)];
        assert!(Sharing::of(&runs).is_none());
        runs.extend([run(idlest, LAYOUTS[0], 2.0), run(idlest, LAYOUTS[1], 2.0)]);
        let sharing = Sharing::of(&runs);
        let text = conclusion(Estimate::exactly(3.0), sharing);
        assert!(text.contains("costs time; at the rate"), "{text}");
        assert!(text.contains("do not differ"), "{text}");
        let text = own(Estimate::exactly(3.0), None);
        assert!(text.contains(MECHANISMS), "{text}");
    }
}
