//! Aims of checking: at most the time and the memory of the checker of the format.

use testkit::fs_type::FsType;

use super::{Aim, Bound, Evidence, Group};
use crate::checks::{Content, Measured, Run, Tool, pairs};
use crate::measure::{float, ratio};
use crate::report::peers::format_name;

pub(super) fn aims(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = Vec::new();
    for format in FsType::ALL {
        for content in Content::ALL {
            for &tools in pairs(format) {
                if !tools[0].copies_out() {
                    aims.extend(of_pair(evidence.checks, (format, content), tools));
                }
            }
        }
    }
    aims
}

fn of_pair(
    measured: Option<&Measured>,
    (format, content): (FsType, Content),
    [ours, theirs]: [Tool; 2],
) -> [Aim; 2] {
    let aim = |what: &str, figure: fn(&Run) -> f64| {
        let [mine, others] = [ours, theirs].map(|tool| {
            let figures = |measured: &Measured| measured.figures((format, content, tool), figure);
            measured.map(figures).unwrap_or_default()
        });
        let key = ["check", format.kernel_name(), content.name(), what];
        let (format, content) = (format_name(format), content.name());
        let what = format!("{format}, {content}: {what} over that of {}", theirs.name());
        let aim = Aim::new(Group::Checks, &key, what, (Bound::AtMost(1.0), "x"));
        aim.reaching(ratio(&mine, &others), mine.len().min(others.len()))
    };
    [
        aim("time", |run| run.seconds),
        aim("memory", |run| float(run.peak_bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Verdict;
    use super::*;

    fn run(tool: Tool, seconds: f64, peak_bytes: u64) -> Run {
        Run {
            format: FsType::Ext4,
            content: Content::Small,
            tool,
            seconds,
            cpu_seconds: seconds,
            peak_bytes,
        }
    }

    #[test]
    fn checks_have_aims_of_time_and_memory() {
        let measured = Measured {
            images: Vec::new(),
            runs: vec![
                run(Tool::PlatterCheck, 1.0, 3),
                run(Tool::E2fsck, 2.0, 2),
                run(Tool::PlatterCp, 9.0, 9),
            ],
            counted: Vec::new(),
        };
        let aims = aims(Evidence {
            checks: Some(&measured),
            ..Evidence::NOTHING
        });
        let verdicts = aims.iter().map(|aim| (&*aim.key, aim.verdict().unwrap()));
        let verdicts: BTreeMap<&str, Verdict> = verdicts.collect();
        assert_eq!(verdicts["check-ext4-small-files-time"], Verdict::Met);
        assert_eq!(verdicts["check-ext4-small-files-memory"], Verdict::Missed);
        let of_rest = |verdict: &&Verdict| **verdict == Verdict::NotMeasured;
        let unmeasured = verdicts.values().filter(of_rest).count();
        assert_eq!((verdicts.len(), unmeasured), (12, 10));
    }
}
