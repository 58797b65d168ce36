//! A check lists what is broken and sums it up as fsck does.

use std::ops::ControlFlow;

use platter::block::Access;
use platter::vfs::{CheckReport, CheckSink, Finding};

use super::*;

#[derive(Default)]
struct Findings(Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

fn check(path: &Path) -> (CheckReport, Vec<Finding>) {
    let image = Image::open(path, Access::Read).unwrap();
    let mut findings = Findings::default();
    let report = MountOptions::new().check(&image, &mut findings).unwrap();
    (report, findings.0)
}

#[test]
fn a_new_filesystem_is_clean() {
    let workshop = Workshop::new();
    let (report, findings) = check(&workshop.filesystem("disk.img"));
    assert!(report.is_clean(), "{findings:?}");
    assert_eq!(report.exit_status(), 0);
}

#[test]
fn a_corrupt_filesystem_is_not() {
    let workshop = Workshop::new();
    let path = workshop.filesystem("disk.img");
    let image = fs::read(&path).unwrap();
    let at = image.windows(9).position(|bytes| bytes == b"contents\n");
    assert!(at.is_some());
    let name = b"file";
    let entry = image.windows(4).position(|bytes| bytes == name).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"f/le", entry as u64).unwrap();
    let (report, findings) = check(&path);
    assert!(!findings.is_empty());
    assert_eq!(report.exit_status() & 4, 4);
}

#[test]
fn a_filesystem_that_cannot_be_opened_is_a_finding() {
    let workshop = Workshop::new();
    let path = workshop.filesystem("disk.img");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"x", 1024 + 0x100).unwrap();
    let (report, findings) = check(&path);
    assert_eq!(findings[0].corruption.structure, "superblock");
    assert_eq!(report.exit_status(), 4);
}
