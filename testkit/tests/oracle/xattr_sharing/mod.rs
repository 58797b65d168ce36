//! Blocks of attributes that files share: the same changes, made by the kernel and by platter, lead to
//! the same attributes in as many blocks, and each goes on with what the other made.

mod steps;
mod sides;
mod pair;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use platter_ext4::SharingStatistics;
use rustix::io::Errno;
use testkit::oracle::debugfs;
use testkit::prng::Prng;

use pair::{Pair, find_clean};
use sides::{Ours, Side};
use steps::{Scale, Step, file_of};

/// Inodes and blocks small enough that attributes have no space where they are looked for first.
const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "4096", "-I", "128"],
    &["-t", "ext4", "-b", "1024", "-I", "256"],
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-I",
        "128",
        "-O",
        "^metadata_csum",
    ],
    &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data"],
    &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "ea_inode"],
    &["-t", "ext4", "-b", "4096", "-I", "256", "-O", "ea_inode"],
    &[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "bigalloc,ea_inode",
        "-C",
        "4096",
        "-I",
        "128",
    ],
];

#[test]
fn as_many_blocks_are_shared_as_by_the_kernel() {
    let mut random = Prng::named(b"xattr_sharing");
    for layout in LAYOUTS {
        let pair = Pair::make(layout, "sets");
        for scale in [Scale::of_sets(100, 10, 600), Scale::of_sets(200, 100, 800)] {
            let mut steps = scale.sets(&mut random);
            // The second time, some of the files are there.
            let is_there = |file| scale.files == 200 && file < 100;
            steps.retain(|step| !matches!(step, Step::Create(file) if is_there(*file)));
            let (found, statistics) = pair.take(&scale, &steps);
            if layout.contains(&"128") && !layout.contains(&"inline_data") {
                assert!(found.blocks <= usize::try_from(scale.values).unwrap() + 100);
                assert!(statistics.shared_blocks > 100, "{statistics:?}");
            }
        }
        assert_eq!(pair.seen_by_the_kernel().len(), 200);
    }
}

fn mixed_changes(lengths: &'static [u64], layouts: &[&[&str]]) {
    let scale = Scale {
        files: 40,
        names: 5,
        values: 12,
        steps: 700,
        lengths,
    };
    let mut random = Prng::named(b"mixed changes");
    for layout in layouts {
        let pair = Pair::make(layout, "mixed");
        let steps = scale.mixed(&mut random);
        // What is known of blocks is forgotten at an unmount, and found out again by reading.
        for part in steps.chunks(steps.len() / 3) {
            let (found, _) = pair.take(&scale, part);
            assert!(
                found.attributes == pair.seen_by_the_kernel(),
                "{}",
                pair.what
            );
        }
    }
}

#[test]
fn mixed_changes_lead_to_as_many_blocks_as_the_kernels() {
    mixed_changes(&[20, 60, 150], LAYOUTS);
}

#[test]
fn mixed_changes_that_need_much_space_lead_to_no_more_blocks() {
    mixed_changes(&[20, 60, 300, 900, 3000, 12_000], LAYOUTS);
}

#[test]
fn no_more_than_1024_files_share_a_block() {
    let scale = Scale::of_sets(1500, 2, 0);
    let pair = Pair::make(LAYOUTS[0], "full");
    let set = |file, value| Step::Set {
        file,
        name: 0,
        value,
    };
    let mut steps: Vec<Step> = (0..1500).map(Step::Create).collect();
    steps.extend((0..1500).map(|file| set(file, 0)));
    let (found, statistics) = pair.take(&scale, &steps);
    assert_eq!((found.blocks, statistics.shared_blocks), (2, 1498));
    // The full block gets space, and is filled again.
    let reads = (0..1500).map(|file| Step::Read { file, name: 0 });
    let leave = (0..50).map(|file| set(file * 20, 1));
    let back = (0..70).map(|file| set(file * 10, 0));
    let steps: Vec<Step> = reads.chain(leave).chain(back).collect();
    let (found, _) = pair.take(&scale, &steps);
    assert_eq!(found.blocks, 3);
    let mut random = Prng::named(b"full blocks");
    let steps: Vec<Step> = (0..3000)
        .map(|_| set(random.below(1500), random.below(2)))
        .collect();
    pair.take(&scale, &steps);
}

#[test]
fn no_mbcache_only_keeps_existing_sharing() {
    let scale = Scale::of_sets(30, 2, 0);
    let pair = Pair::make(LAYOUTS[0], "no_mbcache");
    let sets = |from, to| {
        (from..to).map(|file| Step::Set {
            file,
            name: 0,
            value: 0,
        })
    };
    let creates = (0..30).map(Step::Create);
    let steps: Vec<Step> = creates.chain(sets(0, 20)).collect();
    assert_eq!(pair.take(&scale, &steps).0.blocks, 1);
    let ours = Ours::mount(&pair.ours, false);
    let change = sets(20, 30).chain([
        Step::Set {
            file: 3,
            name: 0,
            value: 1,
        },
        Step::Unlink(4),
        Step::Remove { file: 5, name: 0 },
    ]);
    for step in change {
        ours.take(&scale, step).unwrap();
    }
    assert_eq!(ours.unmount(), SharingStatistics::default());
    let found = find_clean(&pair.ours, &scale, &pair.what);
    assert_eq!(found.blocks, 12);
    assert!(found.attributes == pair.seen_by_the_kernel());
}

#[test]
fn threads_that_share_and_leave_blocks_count_right() {
    let scale = Scale::of_sets(60, 4, 600);
    for layout in [LAYOUTS[0], LAYOUTS[5]] {
        let scale = Scale {
            lengths: if layout == LAYOUTS[0] { &[64] } else { &[3000] },
            ..scale
        };
        let pair = Pair::make(layout, "threads");
        let ours = Ours::mount(&pair.ours, true);
        for file in 0..scale.files {
            ours.take(&scale, Step::Create(file)).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let ours = &ours;
                let run = move || {
                    let mut random = Prng::new(thread);
                    for _ in 0..scale.steps {
                        let (file, value) = (random.below(60), random.below(scale.values));
                        let step = match random.below(8) {
                            0 => Step::Remove { file, name: 0 },
                            1 => Step::Read { file, name: 0 },
                            _ => Step::Set {
                                file,
                                name: 0,
                                value,
                            },
                        };
                        match ours.take(&scale, step) {
                            Ok(()) | Err(Errno::NODATA) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                };
                std::thread::Builder::new()
                    .spawn_scoped(scope, run)
                    .unwrap();
            }
        });
        let statistics = ours.unmount();
        assert!(statistics.shared_blocks + statistics.shared_values > 100);
        let found = find_clean(&pair.ours, &scale, &pair.what);
        assert!(found.attributes == pair.seen_by_the_kernel());
    }
}

/// The block of attributes of a file.
fn block_of(image: &Path, file: u64) -> u64 {
    let report = debugfs::ask(image, &format!("stat {}", file_of(file))).unwrap();
    let report = String::from_utf8(report).unwrap();
    let (_, rest) = report.split_once("File ACL: ").unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn corrupted_count_of_users_is_an_error_and_not_a_loop() {
    let scale = Scale::of_sets(4, 2, 0);
    let set = |file| Step::Set {
        file,
        name: 0,
        value: 0,
    };
    for count in [0u32, 1025, u32::MAX] {
        let pair = Pair::make(LAYOUTS[0], "count");
        let ours = Ours::mount(&pair.ours, true);
        for file in 0..4 {
            ours.take(&scale, Step::Create(file)).unwrap();
        }
        ours.take(&scale, set(0)).unwrap();
        ours.take(&scale, set(1)).unwrap();
        ours.unmount();
        let at = block_of(&pair.ours, 0) * 1024 + 4;
        let image = fs::OpenOptions::new().write(true).open(&pair.ours).unwrap();
        image.write_all_at(&count.to_le_bytes(), at).unwrap();
        drop(image);
        let ours = Ours::mount(&pair.ours, true);
        let read = Step::Read { file: 0, name: 0 };
        assert_eq!(ours.take(&scale, read), Err(Errno::UCLEAN));
        assert_eq!(ours.take(&scale, set(1)), Err(Errno::UCLEAN));
        // No lookup finds it.
        ours.take(&scale, set(2)).unwrap();
        ours.take(&scale, set(3)).unwrap();
        ours.unmount();
        assert_eq!(block_of(&pair.ours, 2), block_of(&pair.ours, 3));
        assert_ne!(block_of(&pair.ours, 2), block_of(&pair.ours, 0));
    }
}
