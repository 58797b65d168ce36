//! Sizes in all combinations with features off and on. Normal tests take one in so many of them;
//! `PLATTER_XFS_ALL_SHAPES` takes all.

use std::collections::BTreeSet;

use super::{Shape, compare_with_the_kernel};

/// One in so many shapes.
const ONE_IN: usize = 22;

/// Features as `mkfs.xfs` had them with Linux 4.19, by default now, and all of them.
const FEATURES: [&str; 3] = [
    "finobt=1,reflink=0,rmapbt=0,inobtcount=0,bigtime=0",
    "finobt=1,reflink=1,rmapbt=0,inobtcount=1,bigtime=1",
    "finobt=1,reflink=1,rmapbt=1,inobtcount=1,bigtime=1",
];

/// Sector, block, directory block and inode sizes, and features.
fn all() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for block in [1024, 4096, 16384, 65536] {
        for sector in [512, 4096_u32] {
            for directory in BTreeSet::from([4096.max(block), 65536]) {
                for inode in [512, 2048] {
                    let fits = sector <= block && inode * 2 <= block;
                    let sizes =
                        FEATURES.map(|features| (block, sector, directory, inode, features));
                    shapes.extend(sizes.into_iter().filter(|_| fits));
                }
            }
        }
    }
    shapes.into_iter().map(shape).collect()
}

type Sizes = (u32, u32, u32, u32, &'static str);

fn shape((block, sector, directory, inode, features): Sizes) -> Shape {
    let wide = u32::from(features == FEATURES[2]);
    let options = [
        format!("-bsize={block}"),
        format!("-ssize={sector}"),
        format!("-nsize={directory}"),
        format!("-isize={inode},nrext64={wide}"),
        format!("-m{features}"),
    ];
    let name = options.join(" ");
    let options = options.map(|option| &*option.leak());
    Shape {
        name: name.leak(),
        // Large blocks need a larger log.
        size_mib: if block >= 16384 { 512 } else { 160 },
        options: Vec::from(options).leak(),
        external_log_mib: None,
        is_fragmented: false,
    }
}

#[test]
fn xfs_of_combined_sizes_is_read_as_in_the_kernel() {
    let all = all();
    assert!(all.len() >= 60, "{}", all.len());
    let is_whole = std::env::var_os("PLATTER_XFS_ALL_SHAPES").is_some();
    let step = if is_whole { 1 } else { ONE_IN };
    for shape in all.iter().skip(step / 2).step_by(step) {
        compare_with_the_kernel(shape).unwrap_or_else(|error| panic!("{}: {error:#}", shape.name));
    }
}
