//! Every shape of log with every workload.

use platter_xfs::ondisk::features::Incompat;
use platter_xfs::recovery::RecoveryReport;
use platter_xfs::txn::LogState;

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

/// Inodes have parent pointers, which attribute intents change.
pub(super) const PARENTS: Shape = Shape {
    name: "parent pointers",
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

/// Logs that a recovery on the device ended, and the mount after it has not.
const ENDED_LOGS: usize = 4;

#[test]
fn kernel_frees_what_a_cut_recovery_leaves_unlinked() {
    let scene = Scene::make(&PLAIN).unwrap();
    scene.work(Shutdown::Flushed, work::unlinked).unwrap();
    let before = scene.log_position().unwrap();
    let theirs = scene.recovered_by_the_kernel().unwrap();
    let (_, recording) = scene.mounted_by_platter().unwrap();
    let (mut ended, mut inodes_freed) = (0, 0);
    for at in scene.log_writes(&recording).unwrap() {
        let cut = Scene::of_position(&PLAIN, &recording, at).unwrap();
        let position = cut.log_position().unwrap();
        let is_ended = position.after_recovery(&before).state == LogState::Clean;
        if position.state == LogState::Clean || !is_ended {
            continue;
        }
        let found = cut.recovered_by_the_kernel().unwrap();
        listing::compare(&found, &theirs).unwrap_or_else(|error| panic!("cut at {at}: {error:#}"));
        let problems = cut.problems_after_the_kernel().unwrap();
        assert!(problems.is_empty(), "cut at {at}: {problems:#?}");
        let (_, report) = cut.recovered().unwrap();
        inodes_freed += report.inodes_freed;
        ended += 1;
        if ended == ENDED_LOGS {
            break;
        }
    }
    assert!(ended > 0 && inodes_freed > 0, "{ended} {inodes_freed}");
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
