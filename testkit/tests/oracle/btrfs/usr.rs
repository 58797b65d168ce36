//! Real files with each compressor, and with sectors that the kernel does not mount here.

use std::path::Path;

use anyhow::Result;
use platter_btrfs::MountOptions;
use testkit::compare::{Rules, compare};
use testkit::oracle::btrfs;
use testkit::tool;

use super::image::{Pool, RULES, mount};

fn usr_with(compressor: &str) -> Result<()> {
    let whole = std::env::var_os("PLATTER_TEST_WHOLE_USR").is_some();
    let size_mib = if whole { 12 << 10 } else { 300 };
    let pool = Pool::make(1, size_mib << 10, &[])?;
    pool.run(
        &format!("compress-force={compressor}"),
        include_str!("../copy_usr.sh"),
    )?;
    let outcome = pool.compare(&MountOptions::default(), "", RULES)?;
    assert!(outcome.files > 500 && outcome.bytes > 4 << 20, "{outcome}");
    assert_eq!(outcome.differences, 0, "{outcome}");
    Ok(())
}

#[test]
fn usr_with_zlib() -> Result<()> {
    usr_with("zlib")
}

#[test]
fn usr_with_lzo() -> Result<()> {
    usr_with("lzo")
}

#[test]
fn usr_with_zstd() -> Result<()> {
    usr_with("zstd")
}

/// Files of many sizes, below a directory of their own.
const SOURCE: &str = r#"
set -e
cd "$1"
seq 100000 > text
for size in 0 1 2000 4095 4096 4097 65535 65536 65537 200000; do head -c $size text > size.$size; done
dd if=/dev/urandom of=random bs=300000 count=1 status=none
mkdir -p a/b/c
i=0
while [ $i -lt 300 ]; do echo $i > a/b/name.$i; i=$((i + 1)); done
ln -s target a/link
ln -s "$(printf 'l%.0s' $(seq 900))" a/long
ln text a/hard
setfattr -n user.name -v value text
chmod 4755 size.1
"#;

/// Reads what `mkfs.btrfs` made of a directory.
fn made_from_directory(options: &[&str]) -> Result<()> {
    let source = tempfile::tempdir()?;
    let mut shell = tool::command("sh");
    shell.args(["-c", SOURCE, "sh"]).arg(source.path());
    tool::succeed(&mut shell)?;
    let pool = Pool::empty(1)?;
    let image: &Path = &pool.images[0];
    btrfs::make_filled(&[image], 400 << 10, options, Some(source.path()))?;
    assert!(btrfs::check(&[image])?.is_clean());
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    assert!(ours.superblock().sector_bytes > 4096);
    // Directories have one link each.
    let rules = Rules {
        links: false,
        ..Rules::SOURCE_DIR
    };
    let outcome = compare(&ours, source.path(), rules)?;
    assert!(outcome.files > 300, "{outcome}");
    assert_eq!(outcome.differences, 0, "{outcome}");
    Ok(())
}

#[test]
fn sectors_of_64k_are_read() -> Result<()> {
    made_from_directory(&["-s", "65536", "-n", "65536"])
}

#[test]
fn sectors_of_16k_are_read() -> Result<()> {
    made_from_directory(&["-s", "16384", "-n", "32768", "--csum", "blake2"])
}

#[test]
fn sectors_of_8k_are_read() -> Result<()> {
    made_from_directory(&["-s", "8192", "-n", "16384", "--csum", "sha256"])
}

#[test]
fn sectors_of_32k_are_read() -> Result<()> {
    made_from_directory(&["-s", "32768", "-n", "65536", "--csum", "xxhash"])
}
