//! Aims compared with others: rates of work over a peer's.

use testkit::fs_type::FsType;

use super::compared::{Compared, at_its_best, over};
use super::{Aim, Bound, COMPARED, Evidence, Group, Reached, Scope};
use crate::measure::{Estimate, median, ratio};
use crate::report::number::short;
use crate::report::peers::Series;
use crate::side::Side;

/// A rate over a peer's: workload, phase, times.
type OfWork = (&'static str, &'static str, f64);

/// Rates of one side over those of another, by one thread.
struct Rates {
    group: Group,
    ours: Side,
    theirs: Side,
    scope: Scope,
    works: &'static [OfWork],
}

const OVER_BINDFS: Rates = Rates {
    group: Group::Bindfs,
    ours: Side::Fuse,
    theirs: Side::Bindfs,
    scope: Scope::Both,
    works: &[
        ("files", "create", 1.5),
        ("files", "unlink", 1.5),
        ("tree", "cold ls -lR", 2.0),
        ("xattr", "setxattr", 1.0),
        ("sequential", "write", 3.0),
        ("sequential", "cold read", 1.0),
        ("random", "direct write", 2.0),
    ],
};

const OVER_KERNEL: Rates = Rates {
    group: Group::Library,
    ours: Side::Library,
    theirs: Side::Kernel,
    scope: Scope::Both,
    works: &[
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
};

const RATES: &[Rates] = &[
    Rates {
        group: Group::Fuse2fs,
        ours: Side::Fuse,
        theirs: Side::Fuse2fs,
        scope: Scope::Both,
        works: &[
            ("files", "create", 40.0),
            ("files", "stat", 40.0),
            ("files", "unlink", 40.0),
            ("xattr", "setxattr", 5.0),
            ("sequential", "cold read", 5.0),
            ("sequential", "write", 5.0),
            ("random", "write", 5.0),
        ],
    },
    OVER_BINDFS,
    OVER_KERNEL,
];

/// Those of btrfs and XFS.
const RATES_OF_OTHERS: &[Rates] = &[
    Rates {
        scope: Scope::Device,
        works: &[("files", "create", 1.5), ("files", "unlink", 1.5)],
        ..OVER_BINDFS
    },
    Rates {
        scope: Scope::Rings,
        works: &[("files", "create", 5.0), ("files", "unlink", 5.0)],
        ..OVER_BINDFS
    },
    Rates {
        works: &[
            ("files", "create", 2.0),
            ("files", "unlink", 2.0),
            ("tree", "cold find", 2.0),
            ("tree", "cold ls -lR", 2.0),
            ("sequential", "cold read", 1.0),
            ("sequential", "write", 1.0),
            ("random", "write", 1.0),
            ("durable", "create, write, fsync", 1.0),
        ],
        ..OVER_KERNEL
    },
];

/// Milliseconds that a snapshot on btrfs takes at most.
const SNAPSHOT_MS: f64 = 10.0;
/// The rate of the kernel that is reached at least in writing with zstd.
const COMPRESSED: OfWork = ("compressed", "write, fsync", 0.9);

pub(super) fn aims(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = Vec::new();
    for format in FsType::ALL {
        let peers = Compared::of(evidence, format);
        let rates = match format {
            FsType::Ext4 => RATES,
            FsType::Btrfs | FsType::Xfs => RATES_OF_OTHERS,
        };
        for rates in rates {
            let works = rates.works.iter();
            aims.extend(works.map(|work| peers.of_work(rates, work)));
        }
        if format == FsType::Btrfs {
            aims.push(peers.of_work(&OVER_KERNEL, &COMPRESSED));
            aims.push(peers.snapshots());
        }
        aims.push(peers.written_and_synced());
        aims.push(peers.writes_of_appends());
    }
    aims
}

impl Compared<'_> {
    fn of_work(&self, rates: &Rates, &(name, phase, times): &OfWork) -> Aim {
        let &Rates {
            group,
            ours,
            theirs,
            scope,
            ..
        } = rates;
        let phase_key = format!("{phase} {}", scope.word());
        let key = [theirs.word(), name, &phase_key];
        let bound = (Bound::AtLeast(times), "x");
        let what = format!("{name}: {phase}{}", scope.shown());
        let aim = Aim {
            scope,
            ..self.aim(group, &key, &what, bound)
        };
        let Some(series) = self.series(name, 1) else {
            return aim;
        };
        let theirs = at_its_best(&series, theirs);
        let over_theirs = |side: Side| over(&series, [side, theirs], phase);
        let (reached, runs) = over_theirs(ours);
        let mut aim = aim.reaching(reached, runs);
        if theirs == Side::BindfsLong {
            aim.what.push_str(" (with `big_writes`)");
        }
        if group.is_mounted() {
            let (reached, runs) = over_theirs(Side::Device);
            aim.by_default = Reached::of(reached, runs);
            aim.compared = COMPARED.map(|(side, _)| {
                let (reached, runs) = over_theirs(side);
                (runs > 0).then_some(reached)
            });
            let mut mounts = [ours, Side::Device].into_iter();
            aim.difference = mounts.find_map(|side| unwritten(&series, side, phase));
        }
        aim
    }

    /// A file written in order and made durable. The kernel's write ends in its page cache, and the image is
    /// written by `fsync`; ours mostly writes the image at once.
    fn written_and_synced(&self) -> Aim {
        let (name, phases) = ("sequential", ["write", "fsync"]);
        let key = [Side::Kernel.word(), name, "write and fsync"];
        let bound = (Bound::AtLeast(1.0), "x");
        let aim = self.aim(Group::Library, &key, "sequential: write and fsync", bound);
        let Some(series) = self.series(name, 1) else {
            return aim;
        };
        let rates = |side: Side| series.rates_of_both(side, phases);
        let (ours, kernel) = (rates(Side::Library), rates(Side::Kernel));
        aim.reaching(ratio(&ours, &kernel), ours.len().min(kernel.len()))
    }

    /// The longest snapshot of all runs: the mean would hide one that waits.
    fn snapshots(&self) -> Aim {
        let (name, phase) = ("snapshots", "snapshot");
        let bound = (Bound::AtMost(SNAPSHOT_MS), " ms");
        let what = "snapshots: the longest, of a subvolume with many files, each after a change";
        let aim = self.aim(Group::Library, &["longest", name, phase], what, bound);
        let Some(series) = self.series(name, 1) else {
            return aim;
        };
        let parts = series.parts(Side::Library, phase).into_iter();
        let longest: Vec<f64> = parts
            .filter_map(|part| Some(part.longest_seconds? * 1e3))
            .collect();
        let most = longest.iter().copied().fold(0.0, f64::max);
        let reached = Estimate {
            low: longest.iter().copied().fold(most, f64::min),
            ..Estimate::exactly(most)
        };
        aim.reaching(reached, longest.len())
    }

    /// The writes to the device of a durable append, over those of the kernel.
    fn writes_of_appends(&self) -> Aim {
        let (name, phase) = ("append", "append, fsync");
        let bound = (Bound::AtMost(1.0), "x");
        let what = "append: writes to the device over the kernel's";
        let key = [Side::Kernel.word(), name, "writes"];
        let aim = self.aim(Group::Library, &key, what, bound);
        let Some(series) = self.series(name, 1) else {
            return aim;
        };
        let writes = |side: Side| -> Vec<f64> {
            let parts = series.parts(side, phase).into_iter();
            let each = parts.filter_map(|part| Some(part.per(part.asked.device.as_ref()?.writes)));
            each.collect()
        };
        let (ours, kernel) = (writes(Side::Library), writes(Side::Kernel));
        aim.reaching(ratio(&ours, &kernel), ours.len().min(kernel.len()))
    }
}

/// That our mount keeps writes in its cache which are to go past it, as those of the kernel's driver do.
fn unwritten(series: &Series<'_>, ours: Side, phase: &str) -> Option<String> {
    let writes = |side: Side| {
        let parts = series.parts(side, phase).into_iter();
        let each = parts.filter_map(|part| Some(part.per(part.asked.device?.writes)));
        let each: Vec<f64> = each.collect();
        (!each.is_empty()).then(|| median(&each).value)
    };
    let (ours, kernel) = (writes(ours)?, writes(Side::Kernel)?);
    let is_unwritten = phase.starts_with("direct") && ours < kernel / 2.0;
    is_unwritten.then(|| {
        format!(
            "platter issues {} writes to the image for each operation, {} {}",
            short(ours),
            series.name(Side::Kernel),
            short(kernel)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::compared::made::{judged, sample};
    use super::*;
    use crate::peers::Sample;
    use crate::side::DeviceAsked;
    use crate::work;

    #[test]
    fn every_aim_is_of_work_there_is() {
        for rates in RATES.iter().chain(RATES_OF_OTHERS) {
            for &(name, phase, _) in rates.works {
                let workload = work::ALL.iter().find(|workload| workload.name == name);
                let phases = workload.unwrap().phases;
                assert!(phases.iter().any(|one| one.name == phase), "{name} {phase}");
            }
        }
    }

    #[test]
    fn each_transport_of_other_formats_has_its_own_aim() {
        let side = |side, amount| sample(side, FsType::Xfs, "files", "create", amount);
        let samples = [(Side::Fuse, 40), (Side::Device, 20), (Side::Bindfs, 10)];
        let samples = samples.map(|(one, amount)| side(one, amount)).to_vec();
        let aims = judged(aims, FsType::Xfs, samples);
        let aim = |key: &str| aims.iter().find(|aim| aim.key == key).unwrap();
        let rings = aim("xfs-bindfs-files-create");
        assert_eq!(rings.verdict(), Some(Verdict::Missed));
        assert_eq!(rings.default_verdict(), None);
        let device = aim("xfs-bindfs-files-create-device");
        assert_eq!(device.default_verdict(), Some(Verdict::Met));
        assert_eq!(device.verdict(), None);
    }

    #[test]
    fn runs_without_rings_are_not_judged_as_over_them() {
        let mut samples = [Side::Fuse, Side::Device, Side::Bindfs]
            .map(|side| sample(side, FsType::Ext4, "files", "create", 10));
        samples[0].phases[0].asked.by_rings = Some(false);
        let aims = judged(aims, FsType::Ext4, samples.to_vec());
        let mut aims = aims.iter();
        let aim = aims.find(|aim| aim.key == "bindfs-files-create").unwrap();
        assert_eq!(aim.verdict(), Some(Verdict::NotMeasured));
        assert_eq!(aim.default_verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn direct_writes_that_reach_no_image_are_not_judged() {
        let key = "bindfs-random-direct-write";
        let aim = |writes: u64| {
            let sides = [
                (Side::Fuse, writes),
                (Side::Device, 100),
                (Side::Kernel, 100),
            ];
            let with = |(side, writes): (Side, u64)| {
                let mut sample = sample(side, FsType::Ext4, "random", "direct write", 100);
                sample.phases[0].asked.device = Some(DeviceAsked {
                    writes,
                    ..DeviceAsked::default()
                });
                sample
            };
            let mut samples: Vec<Sample> = sides.map(with).to_vec();
            samples.push(sample(
                Side::Bindfs,
                FsType::Ext4,
                "random",
                "direct write",
                10,
            ));
            let aims = judged(aims, FsType::Ext4, samples);
            aims.into_iter().find(|aim| aim.key == key).unwrap()
        };
        let written = aim(100);
        assert_eq!(written.verdict(), Some(Verdict::Met));
        let unwritten = aim(0);
        assert_eq!(unwritten.verdict(), Some(Verdict::NotJudged));
        assert_eq!(unwritten.default_verdict(), Some(Verdict::NotJudged));
        let expected =
            "platter issues 0 writes to the image for each operation, kernel ext4 1".to_owned();
        assert_eq!(unwritten.difference, Some(expected));
    }

    #[test]
    fn what_is_written_in_order_is_judged_with_its_fsync() {
        let with = |side, [write, fsync]: [f64; 2]| {
            let mut sample = sample(side, FsType::Xfs, "sequential", "write", 100);
            sample.phases[0].seconds = write;
            let mut synced = sample.phases[0].clone();
            synced.name = "fsync".to_owned();
            (synced.amount, synced.seconds) = (1, fsync);
            sample.phases.push(synced);
            sample
        };
        let samples = vec![
            with(Side::Library, [1.0, 0.25]),
            with(Side::Kernel, [0.25, 1.0]),
        ];
        let aims = judged(aims, FsType::Xfs, samples);
        let aim = |key: &str| aims.iter().find(|aim| aim.key == key).unwrap();
        let both = aim("xfs-kernel-sequential-write-and-fsync");
        assert_eq!(both.shown(both.reached), "1x (1 to 1)");
        assert_eq!(both.verdict(), Some(Verdict::Met));
        let written = aim("xfs-kernel-sequential-write");
        assert_eq!(written.verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn the_longest_snapshot_is_judged() {
        let mut samples = Vec::new();
        for longest in [0.002, 0.011, 0.003] {
            let (side, format) = (Side::Library, FsType::Btrfs);
            let mut sample = sample(side, format, "snapshots", "snapshot", 1000);
            sample.phases[0].longest_seconds = Some(longest);
            samples.push(sample);
        }
        let aims = judged(aims, FsType::Btrfs, samples);
        let key = "btrfs-longest-snapshots-snapshot";
        let aim = aims.iter().find(|aim| aim.key == key).unwrap();
        assert_eq!(aim.verdict(), Some(Verdict::Missed));
        assert_eq!(aim.shown(aim.reached), "11 ms (2 to 11)");
    }
}
