//! What others published of the mechanisms, to stand beside what is measured here.

/// Times of 50,000 sets by each process, means of five runs: Jan Kara, "ext2, ext4: `MBCache` rewrite",
/// 22 February 2016, on 24 processors and a RAM disk. In each cell: the cache before, the new one with
/// an LRU list, with one for each NUMA node (`list_lru`), with referenced bits, and none.
pub(super) struct Published {
    pub(super) values: u64,
    pub(super) files: u64,
    milliseconds: [[u32; 5]; 4],
}

/// The columns of `milliseconds`.
const PROCESSES: [u64; 4] = [1, 2, 4, 16];

impl Published {
    /// What was published of so many values, files and processes.
    pub(super) fn of(values: u64, files: u64, processes: u64) -> Option<[f64; 5]> {
        let column = PROCESSES.iter().position(|&column| column == processes)?;
        let row = SHARING
            .iter()
            .find(|row| (row.values, row.files) == (values, files))?;
        let cell = row.milliseconds[column];
        Some(cell.map(|milliseconds| f64::from(milliseconds) / 1e3))
    }
}

const fn row(values: u64, files: u64, milliseconds: [[u32; 5]; 4]) -> Published {
    Published {
        values,
        files,
        milliseconds,
    }
}

#[rustfmt::skip]
const SHARING: &[Published] = &[
    row(10, 10, [[158, 157, 209, 155, 135], [208, 196, 263, 229, 154], [500, 277, 364, 305, 176], [3258, 584, 593, 664, 500]]),
    row(10, 100, [[172, 167, 161, 185, 126], [279, 222, 244, 222, 156], [520, 275, 275, 273, 199], [2981, 505, 523, 523, 315]]),
    row(10, 1000, [[185, 174, 187, 153, 160], [297, 239, 247, 227, 176], [445, 283, 276, 272, 957], [2329, 480, 498, 476, 5391]]),
    row(100, 10, [[162, 153, 180, 126, 126], [200, 186, 241, 165, 154], [362, 257, 313, 208, 181], [1433, 943, 773, 676, 570]]),
    row(100, 100, [[153, 160, 164, 130, 144], [221, 199, 232, 217, 166], [404, 264, 300, 270, 180], [1556, 485, 512, 496, 339]]),
    row(100, 1000, [[215, 191, 205, 212, 156], [303, 246, 246, 247, 182], [471, 288, 305, 300, 896], [1647, 479, 530, 509, 4744]]),
    row(1000, 10, [[151, 129, 179, 160, 130], [210, 163, 248, 193, 155], [326, 245, 313, 204, 191], [1284, 859, 772, 613, 389]]),
    row(1000, 100, [[154, 153, 156, 159, 120], [211, 191, 232, 194, 158], [276, 282, 286, 228, 170], [1202, 877, 712, 632, 326]]),
    row(1000, 1000, [[145, 179, 184, 175, 156], [202, 222, 218, 220, 174], [449, 319, 836, 276, 965], [1577, 524, 529, 523, 4676]]),
    row(10_000, 10, [[161, 154, 204, 158, 137], [198, 190, 271, 190, 153], [296, 256, 340, 229, 164], [1192, 818, 785, 646, 349]]),
    row(10_000, 100, [[176, 174, 136, 155, 123], [236, 203, 202, 188, 165], [326, 255, 267, 241, 182], [1183, 855, 679, 689, 330]]),
    row(10_000, 1000, [[199, 183, 183, 183, 164], [240, 227, 225, 226, 179], [1159, 1014, 1014, 1036, 985], [6023, 6039, 6594, 5657, 5069]]),
    row(100_000, 10, [[171, 162, 220, 163, 143], [204, 198, 272, 192, 154], [285, 230, 318, 218, 172], [1225, 881, 827, 687, 338]]),
    row(100_000, 100, [[151, 171, 176, 171, 153], [220, 210, 226, 201, 167], [295, 255, 265, 242, 175], [1226, 844, 689, 672, 343]]),
    row(100_000, 1000, [[192, 189, 188, 184, 164], [249, 225, 223, 218, 178], [1162, 1043, 1031, 1024, 1003], [5853, 4997, 6143, 5315, 5350]]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_grid_is_whole() {
        for values in [10, 100, 1000, 10_000, 100_000] {
            for files in [10, 100, 1000] {
                let cell = Published::of(values, files, 1).unwrap();
                assert!(cell.iter().all(|seconds| (0.1..0.3).contains(seconds)));
            }
        }
        let before = Published::of(10, 10, 16).unwrap()[0];
        assert!((before - 3.258).abs() < 1e-9);
        assert!(Published::of(10, 10, 3).is_none());
    }
}
