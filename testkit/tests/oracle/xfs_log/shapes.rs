//! Every shape of log with every workload.

use platter_xfs::ondisk::features::Incompat;
use platter_xfs::recovery::RecoveryReport;

use super::cut::crossing_the_end;
use super::scene::{Scene, Shape, Shutdown, Work};
use super::{listing, recover_and_compare, work};

pub(super) const PLAIN: Shape = Shape {
    name: "plain",
    size_mib: 64,
    options: &["-m", "rmapbt=0,reflink=0"],
    external_mib: None,
    mount_options: "",
    incompat: Incompat::empty(),
};

/// Files may exchange their contents.
pub(super) const EXCHANGE: Shape = Shape {
    name: "exchange of ranges",
    options: &["-m", "rmapbt=1,reflink=1"],
    incompat: Incompat::EXCHRANGE,
    ..PLAIN
};

/// Inodes point to their parents; these pointers are changed by attribute intents.
pub(super) const PARENTS: Shape = Shape {
    name: "pointers to parents",
    options: &["-m", "rmapbt=1,reflink=1"],
    incompat: Incompat::PARENT.union(Incompat::EXCHRANGE),
    ..PLAIN
};

/// A log that wraps.
const SMALLEST: Shape = Shape {
    name: "smallest log",
    options: &["-l", "size=4m", "-m", "rmapbt=0,reflink=0"],
    ..PLAIN
};

/// Stripe units, a small log that wraps, sectors of 4 KiB, and a log of its own.
pub(super) const SHAPES: &[Shape] = &[
    PLAIN,
    Shape {
        name: "stripe unit of 32 KiB",
        size_mib: 128,
        options: &["-l", "sunit=64"],
        ..PLAIN
    },
    Shape {
        name: "stripe unit of 256 KiB",
        size_mib: 256,
        options: &["-l", "sunit=512", "-m", "rmapbt=1,reflink=1"],
        mount_options: "logbsize=256k",
        ..PLAIN
    },
    SMALLEST,
    Shape {
        name: "sectors of 4 KiB",
        options: &["-s", "size=4096", "-m", "rmapbt=1,reflink=1"],
        ..PLAIN
    },
    Shape {
        name: "external log",
        external_mib: Some(8),
        ..PLAIN
    },
    Shape {
        name: "rmap and reflink, records of 256 KiB",
        options: &["-m", "rmapbt=1,reflink=1,finobt=1,inobtcount=1,bigtime=1"],
        mount_options: "logbsize=256k",
        ..PLAIN
    },
    Shape {
        name: "small blocks and wide counters",
        options: &[
            "-b",
            "size=1024",
            "-i",
            "nrext64=1,sparse=1",
            "-n",
            "size=8192",
        ],
        ..PLAIN
    },
];

fn all(shutdown: Shutdown, work: Work) {
    for shape in SHAPES {
        recovered(shape, shutdown, work);
    }
}

fn recovered(shape: &Shape, shutdown: Shutdown, work: Work) -> RecoveryReport {
    recover_and_compare(shape, shutdown, work)
        .unwrap_or_else(|error| panic!("{}: {error:#}", shape.name))
}

#[test]
fn xfs_log_of_names_recovers_as_in_the_kernel() {
    all(Shutdown::Flushed, work::names);
    recovered(&PARENTS, Shutdown::Flushed, work::names);
}

/// The cycle of a log without a record.
const FIRST_CYCLE: u32 = 1;

#[test]
fn xfs_log_of_rounds_recovers_as_in_the_kernel() {
    for shape in SHAPES {
        let report = recovered(shape, Shutdown::Flushed, work::rounds);
        let has_wrapped = report.position.cycle > FIRST_CYCLE;
        assert!(has_wrapped || shape.name != SMALLEST.name, "{report:?}");
    }
}

#[test]
fn abruptly_ended_xfs_log_recovers_as_in_the_kernel() {
    all(Shutdown::Abrupt, work::rounds);
}

#[test]
fn xfs_log_across_its_end_recovers_as_in_the_kernel() {
    let made = Scene::make(&SMALLEST).unwrap();
    let recording = made.recorded(work::rounds).unwrap();
    let scene = crossing_the_end(&made, &recording).unwrap();
    let (ours, report) = scene.recovered().unwrap();
    assert!(report.position.tail > report.position.head, "{report:?}");
    let theirs = scene.recovered_by_the_kernel().unwrap();
    listing::compare(&ours, &theirs).unwrap();
}

#[test]
fn unlinked_open_files_are_freed_by_the_recovery() {
    for shape in SHAPES.iter().chain([&PARENTS]) {
        let report = recovered(shape, Shutdown::Flushed, work::unlinked);
        assert!(report.inodes_freed >= 160, "{}: {report:?}", shape.name);
    }
}

#[test]
fn unlinked_clones_drop_their_references_in_the_recovery() {
    for shape in SHAPES
        .iter()
        .filter(|shape| shape.options.concat().contains("reflink=1"))
    {
        let report = recovered(shape, Shutdown::Flushed, work::clones);
        assert!(report.inodes_freed >= 20, "{}: {report:?}", shape.name);
    }
}
