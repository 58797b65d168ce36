//! Aims of applications: a time of at most twice the kernel's.

use testkit::fs_type::FsType;

use super::{Aim, Bound, Evidence, Group};
use crate::applications::{Measured, SUITES, TIMES_OF_KERNEL_MAX};
use crate::measure::ratio;
use crate::report::peers::format_name;
use crate::side::Side;

pub(super) fn aims(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = Vec::new();
    for format in FsType::ALL {
        for step in SUITES.iter().flat_map(|suite| suite.steps) {
            let seconds = |side: Side| {
                let place = (format, side, step.name);
                let figures = |measured: &Measured| measured.figures(place, |run| run.seconds);
                evidence.applications.map(figures).unwrap_or_default()
            };
            let (ours, kernel) = (seconds(Side::Device), seconds(Side::Kernel));
            let key = ["application", format.kernel_name(), step.name];
            let what = format!(
                "{}, {}: time over that of the kernel",
                format_name(format),
                step.name
            );
            let bound = (Bound::AtMost(TIMES_OF_KERNEL_MAX), "x");
            let aim = Aim::new(Group::Applications, &key, what, bound);
            aims.push(aim.reaching(ratio(&ours, &kernel), ours.len().min(kernel.len())));
        }
    }
    aims
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Verdict;
    use super::*;
    use crate::applications::Run;
    use crate::side::Asked;

    fn run(side: Side, step: &str, seconds: f64) -> Run {
        Run {
            side,
            format: FsType::Xfs,
            step: step.to_owned(),
            seconds,
            cpu_seconds: seconds,
            server_cpu_seconds: None,
            asked: Asked::default(),
        }
    }

    #[test]
    fn applications_are_judged_by_the_time_of_the_kernel() {
        let measured = Measured {
            runs: vec![
                run(Side::Device, "rm -rf", 1.9),
                run(Side::Kernel, "rm -rf", 1.0),
                run(Side::Device, "rsync -a", 2.1),
                run(Side::Kernel, "rsync -a", 1.0),
                run(Side::Kernel, "ripgrep", 1.0),
            ],
            ..Measured::default()
        };
        let aims = aims(Evidence {
            applications: Some(&measured),
            ..Evidence::NOTHING
        });
        let verdicts = aims.iter().map(|aim| (&*aim.key, aim.verdict().unwrap()));
        let mut verdicts: BTreeMap<&str, Verdict> = verdicts.collect();
        assert_eq!(verdicts.remove("application-xfs-rm-rf"), Some(Verdict::Met));
        assert_eq!(
            verdicts.remove("application-xfs-rsync-a"),
            Some(Verdict::Missed)
        );
        assert!(verdicts.contains_key("application-xfs-ripgrep"));
        let mut rest = verdicts.values();
        assert!(rest.all(|verdict| *verdict == Verdict::NotMeasured));
    }
}
