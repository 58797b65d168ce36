//! One test for each group of shapes.

use super::{Shape, compare_with_the_kernel};

const PLAIN: Shape = Shape {
    name: "plain",
    size_mib: 160,
    options: &[],
    external_log_mib: None,
    is_fragmented: false,
};

/// Block, sector, inode and directory block sizes.
const SIZES: &[Shape] = &[
    Shape {
        name: "blocks of 1 KiB",
        options: &["-b", "size=1024"],
        ..PLAIN
    },
    Shape {
        name: "blocks of 16 KiB",
        options: &["-b", "size=16384"],
        ..PLAIN
    },
    Shape {
        name: "blocks of 64 KiB",
        options: &["-b", "size=65536"],
        size_mib: 512,
        ..PLAIN
    },
    Shape {
        name: "sectors of 1 KiB",
        options: &["-s", "size=1024"],
        size_mib: 96,
        ..PLAIN
    },
    Shape {
        name: "sectors of 2 KiB, blocks of 2 KiB",
        options: &["-s", "size=2048", "-b", "size=2048"],
        size_mib: 96,
        ..PLAIN
    },
    Shape {
        name: "sectors of 4 KiB, inodes of 1 KiB",
        options: &["-s", "size=4096", "-i", "size=1024"],
        ..PLAIN
    },
    Shape {
        name: "directory blocks of 64 KiB, inodes of 2 KiB",
        options: &["-n", "size=65536", "-i", "size=2048"],
        ..PLAIN
    },
];

/// Directory blocks whose parts are not neighbours.
const FRAGMENTED: &[Shape] = &[
    Shape {
        name: "directory blocks of 8 KiB over blocks of 1 KiB",
        options: &["-b", "size=1024", "-n", "size=8192", "-i", "sparse=1"],
        is_fragmented: true,
        size_mib: 96,
        ..PLAIN
    },
    Shape {
        name: "directory blocks of 64 KiB over blocks of 4 KiB",
        options: &["-n", "size=65536", "-m", "rmapbt=1"],
        is_fragmented: true,
        size_mib: 96,
        ..PLAIN
    },
];

/// Features on and off, groups of an odd size, an external log.
const FEATURES: &[Shape] = &[
    PLAIN,
    Shape {
        name: "no newer features",
        options: &[
            "-m",
            "reflink=0,finobt=0,inobtcount=0,bigtime=0,rmapbt=0",
            "-i",
            "sparse=0",
        ],
        ..PLAIN
    },
    Shape {
        name: "wide counters, reverse mapping",
        options: &["-i", "nrext64=1", "-m", "rmapbt=1,reflink=1"],
        ..PLAIN
    },
    Shape {
        name: "groups of an odd size",
        options: &["-d", "agsize=41951232"],
        ..PLAIN
    },
    Shape {
        name: "external log",
        external_log_mib: Some(16),
        ..PLAIN
    },
];

fn all(shapes: &[Shape]) {
    for shape in shapes {
        compare_with_the_kernel(shape).unwrap_or_else(|error| panic!("{}: {error:#}", shape.name));
    }
}

#[test]
fn xfs_of_all_sizes_is_read_as_in_the_kernel() {
    all(SIZES);
}

#[test]
fn xfs_in_small_pieces_is_read_as_in_the_kernel() {
    all(FRAGMENTED);
}

#[test]
fn xfs_with_and_without_features_is_read_as_in_the_kernel() {
    all(FEATURES);
}
