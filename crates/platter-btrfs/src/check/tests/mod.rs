//! A filesystem in memory is clean; one change breaks one rule.

mod maker;
mod references;
mod files;
mod space;
mod relocated;

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Rule;
use platter_vfs::Result;
use platter_vfs::check::{CheckReport, CheckSink, Finding, Severity};

use super::*;
use maker::*;

#[derive(Default)]
struct Findings(Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

type Run = fn(
    &[Arc<dyn BlockDevice>],
    &MountOptions,
    &Arc<MemoryBudget>,
    &mut dyn CheckSink,
) -> Result<CheckReport>;

fn run(run: Run, maker: &Maker) -> (CheckReport, Vec<Finding>) {
    let options = MountOptions {
        degraded: true,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    let mut findings = Findings::default();
    let report = run(&maker.make(), &options, &budget, &mut findings).unwrap();
    (report, findings.0)
}

fn check(maker: &Maker) -> (CheckReport, Vec<Finding>) {
    run(Btrfs::check, maker)
}

/// The finding of a rule that a change breaks.
fn broken<R: Rule>(run_check: Run, rule: R, change: impl FnOnce(&mut Maker)) -> Finding {
    let mut maker = Maker::new();
    change(&mut maker);
    let (_, findings) = run(run_check, &maker);
    let is_it = |finding: &&Finding| {
        finding.corruption.structure == R::STRUCTURE && finding.corruption.rule == rule.text()
    };
    let found = findings.iter().find(is_it).cloned();
    found.unwrap_or_else(|| panic!("{rule:?} is not among {findings:#?}"))
}

/// A change that leaves the filesystem not clean.
fn breaks<R: Rule>(rule: R, change: impl FnOnce(&mut Maker)) -> Finding {
    let finding = broken(Btrfs::check, rule, change);
    assert_eq!(finding.severity, Severity::Error, "{finding:?}");
    finding
}

/// A change that is worth knowing.
fn notices<R: Rule>(rule: R, change: impl FnOnce(&mut Maker)) -> Finding {
    let finding = broken(Btrfs::check, rule, change);
    assert_eq!(finding.severity, Severity::Notice, "{finding:?}");
    finding
}

#[test]
fn intact_filesystem_is_clean() {
    let (report, findings) = check(&Maker::new());
    assert!(findings.is_empty(), "{findings:#?}");
    assert!(report.is_clean());
    let counters = [
        ("devices", 1),
        ("inodes", 6),
        ("tree blocks", 13),
        ("extents", 14),
    ];
    assert_eq!(report.counters, counters);
    let (report, findings) = run(Btrfs::verify_data, &Maker::new());
    assert!(findings.is_empty(), "{findings:#?}");
    assert_eq!(report.counters, [("sectors", 2)]);
}

#[test]
fn cancelled_check_says_so() {
    struct Stop;
    impl CheckSink for Stop {
        fn finding(&mut self, _: Finding) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    let mut maker = Maker::new();
    maker.superblock.bytes_used += NODE;
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    let options = MountOptions::default();
    let report = Btrfs::check(&maker.make(), &options, &budget, &mut Stop).unwrap();
    assert!(report.cancelled && !report.is_clean());
}
