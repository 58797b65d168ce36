//! Aims of whole jobs: time over that of other programs, and the same bytes every time.

use std::collections::BTreeSet;

use super::{Aim, Bound, Evidence, Group};
use crate::measure::{Estimate, float, ratio};
use crate::programs::{self, Run};

/// Times a way of a job takes over platter's: job, way, bound.
const JOBS: &[(&str, &str, Bound)] = &[
    ("image of a directory", "mke2fs -d", Bound::AtLeast(4.0)),
    (
        "image of a directory",
        "cp -r to tmpfs",
        Bound::AtLeast(1.0 / 1.5),
    ),
    (
        "archive of an image",
        "kernel mount and tar",
        Bound::AtLeast(1.5),
    ),
    (
        "btrfs image of a directory",
        "mkfs.btrfs --rootdir",
        Bound::AtLeast(4.0),
    ),
    (
        "XFS image of a directory",
        "mkfs.xfs -p",
        Bound::AtLeast(4.0),
    ),
    (
        "XFS image of a directory",
        "mkfs.xfs, kernel mount and cp -a",
        Bound::AtLeast(1.5),
    ),
];

/// The jobs that make an image.
const MAKING: &[&str] = &[
    "image of a directory",
    "btrfs image of a directory",
    "XFS image of a directory",
];

pub(super) fn aims(evidence: Evidence<'_>) -> Vec<Aim> {
    let timed = JOBS.iter().map(|aim| of_job(runs_of(evidence, aim.0), aim));
    let made = MAKING
        .iter()
        .map(|job| same_bytes(runs_of(evidence, job), job));
    timed.chain(made).collect()
}

/// The runs of the jobs of the same format.
fn runs_of<'r>(evidence: Evidence<'r>, job: &str) -> &'r [Run] {
    let known = programs::JOBS.iter().find(|known| known.name == job);
    let record = known.and_then(|known| evidence.jobs.get(&known.format));
    record.map_or(&[], |record| &record.result)
}

fn of_job(runs: &[Run], &(job, way, bound): &(&str, &str, Bound)) -> Aim {
    let seconds = |way: &str| -> Vec<f64> {
        let of_way = runs.iter().filter(|run| run.job == job && run.way == way);
        of_way.map(|run| run.seconds).collect()
    };
    let ours = programs::ours(job).map(seconds).unwrap_or_default();
    let theirs = seconds(way);
    let what = format!("{job}: rate over {way}");
    let aim = Aim::new(Group::Jobs, &[job, way], what, (bound, "x"));
    aim.reaching(ratio(&theirs, &ours), ours.len().min(theirs.len()))
}

/// An image of the same tree is the same, whenever it is made.
fn same_bytes(runs: &[Run], job: &str) -> Aim {
    let ours = programs::ours(job).unwrap_or_default();
    let of_ours = runs.iter().filter(|run| run.job == job && run.way == ours);
    let made: Vec<&str> = of_ours.filter_map(|run| run.made.as_deref()).collect();
    let what = format!("{job}: different images of all that {ours} made");
    let aim = Aim::new(Group::Jobs, &[job, "bytes"], what, (Bound::AtMost(1.0), ""));
    let different: BTreeSet<_> = made.iter().collect();
    let different = Estimate::exactly(float(different.len() as u64));
    aim.reaching(different, made.len())
}

#[cfg(test)]
mod tests {
    use testkit::fs_type::FsType;

    use super::super::compared::made::kept;
    use super::super::{Jobs, Verdict};
    use super::*;

    #[test]
    fn every_aim_is_of_a_job_there_is() {
        for (job, way, _) in JOBS {
            let job = programs::JOBS.iter().find(|one| one.name == *job).unwrap();
            assert!(job.ways.iter().any(|one| one.name == *way), "{way}");
        }
    }

    fn run(way: &str, seconds: f64, made: &str) -> Run {
        Run {
            job: "image of a directory".to_owned(),
            way: way.to_owned(),
            files: 1,
            seconds,
            cpu_seconds: seconds,
            made: Some(made.to_owned()),
        }
    }

    #[test]
    fn jobs_are_judged_by_their_runs() {
        let ours = "platter mkfs --from";
        let runs = [
            run(ours, 1.0, "a"),
            run("mke2fs -d", 5.0, "b"),
            run("cp -r to tmpfs", 0.5, "c"),
            run(ours, 1.0, "d"),
        ];
        let jobs = Jobs::from([(FsType::Ext4, kept(runs.to_vec()))]);
        let aims = aims(Evidence {
            jobs: &jobs,
            ..Evidence::NOTHING
        });
        let verdict = |key: &str| {
            let aim = aims.iter().find(|aim| aim.key == key);
            aim.unwrap().verdict().unwrap()
        };
        assert_eq!(verdict("image-of-a-directory-mke2fs-d"), Verdict::Met);
        assert_eq!(
            verdict("image-of-a-directory-cp-r-to-tmpfs"),
            Verdict::Missed
        );
        assert_eq!(verdict("image-of-a-directory-bytes"), Verdict::Missed);
        assert_eq!(
            verdict("archive-of-an-image-kernel-mount-and-tar"),
            Verdict::NotMeasured
        );
    }
}
