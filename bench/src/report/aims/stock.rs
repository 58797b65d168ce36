//! Aims of mounts over the device, which is the transport that every user has: compared with a server that does
//! nothing over the same, and with bindfs.

use testkit::fs_type::FsType;

use super::compared::{Compared, at_its_best, over};
use super::{Aim, Bound, Evidence, Group, as_key};
use crate::measure::median;
use crate::side::Side;
use crate::work::Workload;

/// Work, by any number of threads: workload, phase, and the rate over that of the null server.
const WORK: &[(&str, &str, f64)] = &[
    ("files", "create", 0.8),
    ("files", "cold stat", 0.8),
    ("files", "unlink", 0.8),
    ("xattr", "setxattr", 0.8),
    ("sequential", "write", 1.0),
    ("sequential", "cold read", 1.0),
];
/// The rate over that of bindfs.
const TIMES_BINDFS: f64 = 3.0;
/// Where a mount that no process uses is measured.
const IDLE: (&str, &str) = ("idle", "idle");

pub(super) fn aims(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = Vec::new();
    for format in FsType::ALL {
        let peers = Compared::of(evidence, format);
        for &(name, phase, times) in WORK {
            for threads in threads(name) {
                for (theirs, times) in [(Side::NullDevice, times), (Side::Bindfs, TIMES_BINDFS)] {
                    let work = (name, phase, threads);
                    aims.push(rate(&peers, theirs, work, times));
                }
            }
        }
        aims.push(idle(&peers));
    }
    aims
}

/// By how many threads a workload is done.
fn threads(name: &str) -> impl Iterator<Item = usize> {
    let workload = Workload::named(name).into_iter();
    workload.flat_map(|workload| workload.threads).copied()
}

/// The rate of a mount over that of a peer.
fn rate(
    peers: &Compared<'_>,
    theirs: Side,
    (name, phase, threads): (&str, &str, usize),
    times: f64,
) -> Aim {
    let series = peers.series(name, threads);
    let at_best = series.as_ref();
    let at_best = at_best.map_or(theirs, |series| at_its_best(series, theirs));
    let peer = if at_best == Side::BindfsLong {
        "bindfs with `big_writes`"
    } else if at_best == Side::Bindfs {
        "bindfs"
    } else {
        "null server"
    };
    let plural = if threads == 1 { "thread" } else { "threads" };
    let what = format!("{name}: {phase}, {threads} {plural}, over {peer}");
    let number = threads.to_string();
    let key = ["stock", theirs.word(), name, phase, &number];
    let aim = peers.aim(Group::Stock, &key, &what, (Bound::AtLeast(times), "x"));
    let aim = Aim {
        reason: as_key(&[peers.format.kernel_name(), "stock", name, phase]),
        ..aim
    };
    let Some(series) = series else {
        return aim;
    };
    let (reached, runs) = over(&series, [Side::Device, at_best], phase);
    aim.reaching(reached, runs)
}

/// Processor time of the server while nothing uses the mount.
fn idle(peers: &Compared<'_>) -> Aim {
    let (name, phase) = IDLE;
    let what = "idle: processor time of the server while no process uses the mount";
    let bound = (Bound::AtMost(0.0), " s");
    let aim = peers.aim(Group::Stock, &["stock", name], what, bound);
    let Some(series) = peers.series(name, 1) else {
        return aim;
    };
    let parts = series.parts(Side::Device, phase).into_iter();
    let seconds: Vec<f64> = parts.filter_map(|part| part.server_cpu_seconds).collect();
    aim.reaching(median(&seconds), seconds.len())
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::compared::made::{judged, sample};
    use super::*;

    fn aim<'a>(aims: &'a [Aim], key: &str) -> &'a Aim {
        let found = aims.iter().find(|aim| aim.key == key);
        found.unwrap_or_else(|| panic!("{key} is not in {aims:?}"))
    }

    #[test]
    fn every_stock_aim_is_of_work_there_is() {
        let idle = [(IDLE.0, IDLE.1, 0.0)];
        for &(name, phase, _) in WORK.iter().chain(&idle) {
            let phases = Workload::named(name).unwrap().phases;
            assert!(phases.iter().any(|one| one.name == phase), "{name} {phase}");
        }
    }

    #[test]
    fn mounts_are_judged_by_the_null_server_of_their_transport() {
        let of = |side, amount| sample(side, FsType::Xfs, "files", "unlink", amount);
        let mut samples = vec![
            of(Side::Device, 90),
            of(Side::NullDevice, 100),
            // What rings reach is no measure of this.
            of(Side::Fuse, 10),
            of(Side::NullFuse, 1000),
            of(Side::Bindfs, 40),
        ];
        let mut two = of(Side::Device, 70);
        two.threads = 2;
        samples.push(two.clone());
        two.side = Side::NullDevice;
        two.phases[0].amount = 100;
        samples.push(two);
        let aims = judged(aims, FsType::Xfs, samples);
        let verdict = |key| aim(&aims, key).verdict().unwrap();
        assert_eq!(
            verdict("xfs-stock-null-device-files-unlink-1"),
            Verdict::Met
        );
        assert_eq!(
            verdict("xfs-stock-null-device-files-unlink-2"),
            Verdict::Missed
        );
        assert_eq!(verdict("xfs-stock-bindfs-files-unlink-1"), Verdict::Missed);
        assert_eq!(
            verdict("xfs-stock-bindfs-files-unlink-2"),
            Verdict::NotMeasured
        );
        assert_eq!(verdict("stock-bindfs-files-unlink-1"), Verdict::NotMeasured);
        let reason = &aim(&aims, "xfs-stock-bindfs-files-unlink-1").reason;
        assert_eq!(reason, "xfs-stock-files-unlink");
    }

    #[test]
    fn bindfs_is_compared_at_its_best() {
        let of = |side, amount| sample(side, FsType::Ext4, "sequential", "write", amount);
        let samples = vec![
            of(Side::Device, 100),
            of(Side::Bindfs, 4),
            of(Side::BindfsLong, 60),
        ];
        let aims = judged(aims, FsType::Ext4, samples);
        let aim = aim(&aims, "stock-bindfs-sequential-write-1");
        assert_eq!(aim.verdict(), Some(Verdict::Missed));
        assert!(aim.what.ends_with("over bindfs with `big_writes`"));
    }

    #[test]
    fn an_idle_mount_takes_no_processor_time() {
        let with = |seconds: f64| {
            let mut sample = sample(Side::Device, FsType::Ext4, "idle", "idle", 10);
            sample.phases[0].server_cpu_seconds = Some(seconds);
            let aims = judged(aims, FsType::Ext4, vec![sample]);
            aim(&aims, "stock-idle").verdict().unwrap()
        };
        assert_eq!(with(0.0), Verdict::Met);
        assert_eq!(with(0.01), Verdict::Missed);
    }
}
