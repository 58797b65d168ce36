//! Profiles, checksums, compression, sizes of tree blocks and other features of new filesystems.

use anyhow::Result;
use platter_btrfs::MountOptions;
use platter_vfs::PathWalk;

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
