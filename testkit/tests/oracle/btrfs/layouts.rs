//! Profiles, checksums, compression, sizes of tree blocks and other features of new filesystems.
//!
//! Combinations of all of these at random, so many or one again: `PLATTER_BTRFS_LAYOUTS=FIRST..END`, before
//! `cargo test -p testkit --test oracle btrfs::layouts::combinations -- --nocapture`.

use anyhow::{Context, Result};
use platter_btrfs::MountOptions;
use platter_vfs::PathWalk;
use testkit::prng::Prng;

use super::check;
use super::image::{Pool, mount};

/// Makes, fills and compares a filesystem.
fn examine(devices: usize, size_mib: u64, mkfs: &[&str], mount: &str) -> Result<()> {
    let pool = Pool::make(devices, size_mib << 10, mkfs)?;
    pool.fill(mount)?;
    pool.agree()?;
    check::is_clean(&pool.paths())
}

macro_rules! layouts {
    ($($name:ident: $devices:literal x $size_mib:literal, [$($mkfs:literal),*], $mount:literal;)+) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                examine($devices, $size_mib, &[$($mkfs),*], $mount)
            }
        )+
    };
}

layouts! {
    defaults: 1 x 160, [], "";
    checksum_xxhash_with_zlib: 1 x 160, ["--csum", "xxhash"], "compress-force=zlib";
    checksum_sha256_with_lzo: 1 x 160, ["--csum", "sha256"], "compress-force=lzo";
    checksum_blake2_with_zstd: 1 x 160, ["--csum", "blake2"], "compress-force=zstd";
    nodes_of_4k: 1 x 160, ["-n", "4096"], "compress=zstd";
    nodes_of_64k: 1 x 500, ["-n", "65536"], "compress=lzo";
    mixed_groups: 1 x 100, ["-M"], "compress=zlib";
    holes_and_space_cache: 1 x 160, ["-O", "^no-holes", "-R", "^free-space-tree"], "space_cache";
    space_cache_on_raid0: 3 x 200, ["-d", "raid0", "-m", "raid0", "-R", "^free-space-tree"], "space_cache";
    space_cache_on_raid10: 4 x 200, ["-d", "raid10", "-m", "raid1", "-R", "^free-space-tree"], "space_cache";
    quota: 1 x 160, ["-R", "quota"], "";
    no_checksums: 1 x 160, [], "nodatasum";
    no_inline: 1 x 160, [], "max_inline=0";
    single: 2 x 160, ["-d", "single", "-m", "single"], "";
    raid0: 3 x 160, ["-d", "raid0", "-m", "raid0"], "compress=zstd";
    raid1: 2 x 160, ["-d", "raid1", "-m", "raid1"], "";
    raid1c3: 3 x 160, ["-d", "raid1c3", "-m", "raid1c3"], "";
    raid1c4: 4 x 160, ["-d", "raid1c4", "-m", "raid1c4"], "";
    raid10: 4 x 160, ["-d", "raid10", "-m", "raid10"], "compress=lzo";
    raid5: 3 x 160, ["-d", "raid5", "-m", "raid5"], "";
    raid6: 4 x 160, ["-d", "raid6", "-m", "raid6"], "compress=zstd";
}

#[test]
fn properties_are_attributes() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    pool.run(
        "",
        r#"echo x > "$1/file"; setfattr -n btrfs.compression -v zlib "$1/file""#,
    )?;
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    let inode = PathWalk::new(&ours).resolve(b"file")?;
    assert_eq!(inode.list_xattrs()?, [b"btrfs.compression"]);
    assert_eq!(inode.get_xattr(b"btrfs.compression")?, b"zlib");
    Ok(())
}

/// Combinations of a test run.
const COMBINATIONS: u64 = 2;

/// Profiles, and on how many devices they are made.
const PROFILES: [(&str, usize); 9] = [
    ("single", 1),
    ("dup", 1),
    ("raid0", 3),
    ("raid1", 2),
    ("raid1c3", 3),
    ("raid1c4", 4),
    ("raid10", 4),
    ("raid5", 3),
    ("raid6", 4),
];

/// How a filesystem is made and mounted.
#[derive(Debug)]
struct Combination {
    devices: usize,
    size_mib: u64,
    mkfs: Vec<&'static str>,
    mount: String,
    has_group_tree: bool,
}

impl Combination {
    fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let mut pick = |count: usize| usize::try_from(prng.below(count as u64)).unwrap_or(0);
        let is_mixed = pick(8) == 0;
        // Each profile of data comes before one comes again.
        let data = PROFILES[usize::try_from(seed).unwrap_or(0) % PROFILES.len()];
        let metadata = if is_mixed {
            data
        } else {
            PROFILES[pick(PROFILES.len())]
        };
        let node = if is_mixed { 0 } else { pick(3) };
        let mut mkfs = vec!["-d", data.0, "-m", metadata.0];
        mkfs.extend(["-n", ["4096", "16384", "65536"][node]]);
        mkfs.extend(["--csum", ["crc32c", "xxhash", "sha256", "blake2"][pick(4)]]);
        if is_mixed {
            mkfs.push("-M");
        }
        let (has_holes, space) = (pick(4) == 0, pick(4));
        if has_holes {
            mkfs.extend(["-O", "^no-holes"]);
        }
        if space == 0 {
            mkfs.extend(["-R", "^free-space-tree"]);
        }
        let compression = [
            "",
            "compress=zlib",
            "compress-force=lzo",
            "compress-force=zstd:9",
        ];
        let mut mount = compression[pick(4)].to_owned();
        if space == 0 {
            mount.push_str(",space_cache");
        }
        let is_parity = [data, metadata]
            .iter()
            .any(|it| it.0.len() == 5 && it.0 > "raid4");
        Self {
            devices: data.1.max(metadata.1),
            size_mib: if node == 2 || data.1 == 1 { 500 } else { 200 },
            mkfs,
            mount: mount.trim_start_matches(',').to_owned(),
            has_group_tree: !has_holes && space > 1 && !is_parity,
        }
    }

    fn examine(&self) -> Result<()> {
        let pool = Pool::make(self.devices, self.size_mib << 10, &self.mkfs)?;
        if self.has_group_tree {
            pool.convert_to_group_tree()?;
        }
        pool.fill(&self.mount)?;
        pool.agree()?;
        check::is_clean(&pool.paths())
    }
}

#[test]
fn combinations_of_features() -> Result<()> {
    let numbers = std::env::var("PLATTER_BTRFS_LAYOUTS").map_or(0..COMBINATIONS, |text| {
        let (first, end) = text.split_once("..").unwrap();
        first.parse().unwrap()..end.parse().unwrap()
    });
    for number in numbers {
        let combination = Combination::new(number);
        println!("{number}: {combination:?}");
        combination
            .examine()
            .with_context(|| format!("{number}: {combination:?}"))?;
    }
    Ok(())
}
