//! What others published of the mechanisms, to compare with what is measured here.

/// Files in a second of five loops of `fs_mark`, 12 threads with 100,000 empty files of each in a loop: Filipe Manana, "btrfs:
/// reorder some members of struct `btrfs_delayed_ref_head`", 29 May 2023, before and after.
pub(super) const FILES_MADE: [[f64; 5]; 2] = [
    [112_631.3, 189_943.8, 150_719.2, 99_137.3, 111_733.9],
    [148_589.5, 227_743.8, 191_590.5, 179_812.3, 92_471.4],
];

/// Nanoseconds of insertions of heads in these runs, before and after: mean, median, standard deviation, 90 %, 95 %, 99 %, and
/// the longest. How many heads there were is not said.
pub(super) const INSERTIONS: [[f64; 7]; 2] = [
    [619.733, 548.0, 1834.231, 980.0, 1208.0, 2090.0, 940_647.0],
    [587.754, 542.0, 1030.422, 918.0, 1113.0, 1987.0, 299_200.0],
];

/// Times of commits on an SSD under four jobs of fio, means of 24 commits: Qu Wenruo, "btrfs: skip update of block group item if
/// used bytes are the same", 9 September 2022, before and after.
pub(super) struct Commits {
    /// The loop over the dirty groups. The unit is not named; by its size it is nanoseconds.
    pub(super) in_loop: [f64; 2],
    /// The time when no handle could begin.
    pub(super) critical: [f64; 2],
}

pub(super) const COMMITS: Commits = Commits {
    in_loop: [23_133.333_33, 18_970.833_33],
    critical: [229_247_198.5, 215_016_933.6],
};

/// Removal of 50 million files by 16 threads on a machine: Dave Chinner, "xfs: separate read-only variables in struct
/// `xfs_mount`", 12 May 2020, before and after.
pub(super) struct Removal {
    pub(super) machine: &'static str,
    pub(super) seconds: [f64; 2],
    /// Of the profile, in `xfs_agino_range` and in `xfs_verify_ino`, in percent, as far as published.
    pub(super) range_share: [Option<f64>; 2],
    pub(super) verify_share: [Option<f64>; 2],
}

pub(super) const REMOVALS: [Removal; 2] = [
    Removal {
        machine: "A",
        seconds: [800.0, 510.0],
        range_share: [Some(25.83), Some(9.77)],
        verify_share: [Some(6.95), Some(3.39)],
    },
    Removal {
        machine: "B",
        seconds: [330.0, 302.0],
        range_share: [Some(2.75), None],
        verify_share: [None, None],
    },
];

/// Times of 50,000 sets by each process, means of five runs: Jan Kara, "ext2, ext4: `MBCache` rewrite",
/// 22 February 2016, on 24 processors and a RAM disk. In each cell: the cache before, the new one with
/// an LRU list, with one for each NUMA node (`list_lru`), with referenced bits, and none.
pub(super) struct Published {
    pub(super) values: u64,
    pub(super) files: u64,
    milliseconds: [[u32; 5]; 7],
}

/// The columns of `milliseconds`.
const PROCESSES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The machine died of the load.
const NONE: u32 = u32::MAX;

impl Published {
    /// What was published, in seconds, of so many values, files and processes; in it, nothing where
    /// the machine died.
    pub(super) fn of(values: u64, files: u64, processes: u64) -> Option<[Option<f64>; 5]> {
        let column = PROCESSES.iter().position(|&column| column == processes)?;
        let row = SHARING
            .iter()
            .find(|row| (row.values, row.files) == (values, files))?;
        let seconds = |time| (time != NONE).then(|| f64::from(time) / 1e3);
        Some(row.milliseconds[column].map(seconds))
    }
}

const fn row(values: u64, files: u64, milliseconds: [[u32; 5]; 7]) -> Published {
    Published {
        values,
        files,
        milliseconds,
    }
}

#[rustfmt::skip]
const SHARING: &[Published] = &[
    row(10, 10, [[158, 157, 209, 155, 135], [208, 196, 263, 229, 154], [500, 277, 364, 305, 176], [798, 400, 380, 384, 237], [3258, 584, 593, 664, 500], [13_807, 1047, 1029, 1100, 986], [61_339, 2803, 3615, 2994, 1799]]),
    row(10, 100, [[172, 167, 161, 185, 126], [279, 222, 244, 222, 156], [520, 275, 275, 273, 199], [825, 341, 408, 333, 217], [2981, 505, 523, 523, 315], [12_022, 1202, 1210, 1125, 1293], [44_641, 2943, 2869, 3337, 13_056]]),
    row(10, 1000, [[185, 174, 187, 153, 160], [297, 239, 247, 227, 176], [445, 283, 276, 272, 957], [767, 340, 357, 324, 1975], [2329, 480, 498, 476, 5391], [6342, 1198, 1235, 1204, 8283], [16_440, 3888, 3817, 3896, 17_878]]),
    row(100, 10, [[162, 153, 180, 126, 126], [200, 186, 241, 165, 154], [362, 257, 313, 208, 181], [671, 496, 422, 379, 194], [1433, 943, 773, 676, 570], [3801, 1345, 1353, 1221, 1021], [7938, 2501, 2700, 2484, 1790]]),
    row(100, 100, [[153, 160, 164, 130, 144], [221, 199, 232, 217, 166], [404, 264, 300, 270, 180], [945, 379, 400, 322, 240], [1556, 485, 512, 496, 339], [3761, 1156, 1214, 1197, 1301], [7901, 2484, 2508, 2526, 13_039]]),
    row(100, 1000, [[215, 191, 205, 212, 156], [303, 246, 246, 247, 182], [471, 288, 305, 300, 896], [960, 347, 375, 347, 1892], [1647, 479, 530, 509, 4744], [3916, 1176, 1288, 1205, 8300], [8058, 3160, 3232, 3200, 17_616]]),
    row(1000, 10, [[151, 129, 179, 160, 130], [210, 163, 248, 193, 155], [326, 245, 313, 204, 191], [685, 521, 493, 365, 210], [1284, 859, 772, 613, 389], [3087, 2251, 1307, 1745, 896], [6451, 4801, 2693, 3736, 1806]]),
    row(1000, 100, [[154, 153, 156, 159, 120], [211, 191, 232, 194, 158], [276, 282, 286, 228, 170], [687, 506, 496, 400, 259], [1202, 877, 712, 632, 326], [3259, 1954, 1564, 1336, 1255], [8738, 2887, 14_421, 3111, 13_175]]),
    row(1000, 1000, [[145, 179, 184, 175, 156], [202, 222, 218, 220, 174], [449, 319, 836, 276, 965], [899, 333, 793, 353, 2002], [1577, 524, 529, 523, 4676], [4221, 1240, 1280, 1281, 8371], [9782, 3579, 3605, 3585, 17_425]]),
    row(10_000, 10, [[161, 154, 204, 158, 137], [198, 190, 271, 190, 153], [296, 256, 340, 229, 164], [662, 480, 475, 368, 239], [1192, 818, 785, 646, 349], [2989, 2200, 1237, 1725, 961], [6362, 4746, 2666, 3718, 1793]]),
    row(10_000, 100, [[176, 174, 136, 155, 123], [236, 203, 202, 188, 165], [326, 255, 267, 241, 182], [696, 511, 415, 387, 213], [1183, 855, 679, 689, 330], [4205, 3444, 1444, 2760, 1249], [19_510, 17_760, 15_203, 17_387, 12_828]]),
    row(10_000, 1000, [[199, 183, 183, 183, 164], [240, 227, 225, 226, 179], [1159, 1014, 1014, 1036, 985], [2286, 2154, 1987, 2019, 1997], [6023, 6039, 6594, 5657, 5069], [NONE, 10_933, 9272, 10_382, 8305], [NONE, 36_620, 27_886, 36_165, 17_683]]),
    row(100_000, 10, [[171, 162, 220, 163, 143], [204, 198, 272, 192, 154], [285, 230, 318, 218, 172], [692, 500, 505, 367, 210], [1225, 881, 827, 687, 338], [2990, 2243, 1266, 1696, 942], [6379, 4771, 2609, 3722, 1778]]),
    row(100_000, 100, [[151, 171, 176, 171, 153], [220, 210, 226, 201, 167], [295, 255, 265, 242, 175], [720, 518, 417, 387, 221], [1226, 844, 689, 672, 343], [3423, 2831, 1392, 2370, 1354], [19_234, 17_544, 15_419, 16_700, 13_172]]),
    row(100_000, 1000, [[192, 189, 188, 184, 164], [249, 225, 223, 218, 178], [1162, 1043, 1031, 1024, 1003], [2257, 2093, 2180, 2004, 1960], [5853, 4997, 6143, 5315, 5350], [NONE, 10_399, 8578, 9190, 8309], [NONE, 32_198, 19_465, 19_194, 17_210]]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sums_are_those_of_their_parts() {
        let sums = FILES_MADE.map(|loops| loops.iter().sum::<f64>());
        // The second is published as 840,207.5, of loops with one digit less.
        assert!((sums[0] - 664_165.5).abs() < 0.2 && (sums[1] - 840_207.5).abs() < 0.2);
        let change = |[before, after]: [f64; 2]| 100.0 * (after / before - 1.0);
        assert!((change(COMMITS.in_loop) + 18.0).abs() < 0.05);
        assert!((change(COMMITS.critical) + 6.2).abs() < 0.05);
    }

    #[test]
    fn the_published_grid_is_whole() {
        for values in [10, 100, 1000, 10_000, 100_000] {
            for files in [10, 100, 1000] {
                let cell = Published::of(values, files, 1).unwrap();
                let seconds = cell.map(|seconds| seconds.unwrap());
                assert!(seconds.iter().all(|seconds| (0.1..0.3).contains(seconds)));
            }
        }
        let before = Published::of(10, 10, 64).unwrap()[0].unwrap();
        assert!((before - 61.339).abs() < 1e-9);
        let dead = Published::of(100_000, 1000, 32).unwrap();
        assert_eq!(
            dead.map(|seconds| seconds.is_some()),
            [false, true, true, true, true]
        );
        assert!(Published::of(10, 10, 3).is_none());
    }
}
