//! Losses that a profile tolerates: the same bytes as before.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::Result;
use platter_block::BlockDevice;
use platter_btrfs::MountOptions;
use platter_btrfs::ondisk::chunk_item::{ChunkItem, Profile};
use platter_vfs::Filesystem;
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::prng::Prng;

use super::image::{Pool, RULES, mount};

/// What each profile is made with, on how many devices, and how many of them may be missing.
const PROFILES: [(&str, usize, usize); 6] = [
    ("raid1", 2, 1),
    ("raid1c3", 3, 2),
    ("raid1c4", 4, 3),
    ("raid10", 4, 1),
    ("raid5", 3, 1),
    ("raid6", 4, 2),
];

fn pool(profile: &str, devices: usize) -> Result<Pool> {
    let pool = Pool::make(devices, 160 << 10, &["-d", profile, "-m", profile])?;
    pool.fill("compress=zstd")?;
    Ok(pool)
}

/// Every set of `lost` devices.
fn sets(devices: usize, lost: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1u32 << devices)
        .filter(move |set| set.count_ones() as usize == lost)
        .map(move |set| (0..devices).filter(|index| set >> index & 1 != 0).collect())
}

/// Compares mounts without some devices with the kernel's mount of all.
fn missing(profile: &str) -> Result<()> {
    let (_, count, tolerated) = PROFILES.into_iter().find(|it| it.0 == profile).unwrap();
    let pool = pool(profile, count)?;
    let devices = pool.devices()?;
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let degraded = MountOptions {
        degraded: true,
        ..MountOptions::default()
    };
    for lost in 1..=tolerated {
        for set in sets(count, lost) {
            let left: Vec<Arc<dyn BlockDevice>> = (0..count)
                .filter(|index| !set.contains(index))
                .map(|index| Arc::clone(&devices[index]))
                .collect();
            let refused = mount(&left, &MountOptions::default()).unwrap_err();
            assert!(refused.to_string().contains("without devid"), "{refused}");
            let outcome = compare(&mount(&left, &degraded)?, kernel.root(), RULES)?;
            assert!(outcome.files > 700, "{outcome}");
            assert_eq!(
                outcome.differences, 0,
                "{profile} without {set:?}: {outcome}"
            );
        }
    }
    Ok(())
}

#[test]
fn raid1_without_devices() -> Result<()> {
    missing("raid1")
}

#[test]
fn raid1c3_without_devices() -> Result<()> {
    missing("raid1c3")
}

#[test]
fn raid1c4_without_devices() -> Result<()> {
    missing("raid1c4")
}

#[test]
fn raid10_without_devices() -> Result<()> {
    missing("raid10")
}

#[test]
fn raid5_without_devices() -> Result<()> {
    missing("raid5")
}

#[test]
fn raid6_without_devices() -> Result<()> {
    missing("raid6")
}

/// Overwrites all that one device holds, but for its superblocks, and compares. Each block and sector
/// then has one copy that does not match.
fn corrupted(profile: &str, index: usize) -> Result<()> {
    let (_, count, _) = PROFILES.into_iter().find(|it| it.0 == profile).unwrap();
    let pool = pool(profile, count)?;
    // What has no checksum is not seen to be corrupt.
    pool.run("", r#"rm "$1/nodatacow""#)?;
    let corrupt = tempfile::tempdir()?;
    let path = corrupt.path().join("image");
    std::fs::copy(&pool.images[index], &path)?;
    let image = std::fs::File::options().write(true).open(&path)?;
    let garbage = vec![0xd5; 1 << 20];
    for at in (1..160).filter(|mib| *mib != 64) {
        image.write_all_at(&garbage, at << 20)?;
    }
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let mut devices = pool.devices()?;
    let options = platter_block::OpenOptions {
        access: platter_block::Access::Read,
        direct: false,
    };
    devices[index] = Arc::new(platter_block::FileDevice::open(&path, options)?);
    let btrfs = mount(&devices, &MountOptions::default())?;
    let outcome = compare(&btrfs, kernel.root(), RULES)?;
    assert!(outcome.files > 700, "{outcome}");
    assert_eq!(outcome.differences, 0, "{profile} {index}: {outcome}");
    let fs = btrfs.super_block();
    let found = fs.context().blocks.bad_copies().found + fs.data.other_copies();
    assert!(found > 0, "no copy was found bad");
    assert_eq!(fs.data.mismatches(), 0);
    btrfs.unmount()?;
    Ok(())
}

#[test]
fn raid1_with_a_corrupt_device() -> Result<()> {
    corrupted("raid1", 0)
}

#[test]
fn raid10_with_a_corrupt_device() -> Result<()> {
    corrupted("raid10", 2)
}

#[test]
fn raid5_with_a_corrupt_device() -> Result<()> {
    corrupted("raid5", 1)
}

#[test]
fn raid6_with_a_corrupt_device() -> Result<()> {
    corrupted("raid6", 3)
}

/// What is corrupted at once: a tree block, or four sectors.
const PIECE_BYTES: u64 = 16384;

/// How many of `stripes` stripes in a row hold one piece and what replaces it, and how many of these may
/// be corrupt.
fn sets_of_copies(chunk: &ChunkItem) -> (usize, usize) {
    // Both copies of DUP are lost with their device, but not both at once with a piece of it.
    let bad = chunk
        .profile
        .tolerated_failures()
        .max(chunk.profile.copies() - 1);
    let set = if chunk.profile == Profile::Raid10 {
        2
    } else {
        chunk.stripes.len()
    };
    (set, bad.into())
}

/// Corrupts, of each piece of each chunk, as many copies as the profile tolerates, chosen at random.
/// Those of parity profiles are all of one row; of others, all but one copy.
fn corrupt_at_random(chunks: &[ChunkItem], images: &[File], prng: &mut Prng) -> Result<u64> {
    let mut count = 0;
    for chunk in chunks {
        let (set, bad) = sets_of_copies(chunk);
        for offset in (0..chunk.stripe_len_bytes()).step_by(16384) {
            for stripes in chunk.stripes.chunks(set) {
                let mut left: Vec<_> = stripes.iter().collect();
                for _ in 0..bad {
                    let chosen = usize::try_from(prng.below(left.len() as u64))?;
                    let stripe = left.swap_remove(chosen);
                    let image = &images[usize::try_from(stripe.device.0 - 1)?];
                    let garbage = vec![0x5a; usize::try_from(PIECE_BYTES)?];
                    image.write_all_at(&garbage, stripe.offset.0 + offset)?;
                    count += 1;
                }
            }
        }
    }
    Ok(count)
}

/// Compares a filesystem of which every piece has corrupt copies with the kernel's mount of the whole.
fn with_random_copies_corrupt(profile: &str, count: usize) -> Result<()> {
    let size_kib = if profile == "dup" {
        300 << 10
    } else {
        160 << 10
    };
    let pool = Pool::make(count, size_kib, &["-d", profile, "-m", profile])?;
    pool.fill("compress=zstd")?;
    // What has no checksum is not seen to be corrupt.
    pool.run("", r#"rm "$1/nodatacow""#)?;
    let chunks: Vec<ChunkItem> = {
        let whole = mount(&pool.devices()?, &MountOptions::default())?;
        let store = whole.super_block().context().blocks.store();
        store.map().iter().cloned().collect()
    };
    let corrupt = Pool::empty(count)?;
    let mut images = Vec::new();
    for (from, to) in pool.images.iter().zip(&corrupt.images) {
        std::fs::copy(from, to)?;
        images.push(File::options().write(true).open(to)?);
    }
    let pieces = corrupt_at_random(&chunks, &images, &mut Prng::named(profile.as_bytes()))?;
    assert!(pieces > 1000, "{pieces} pieces are corrupt");
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let btrfs = mount(&corrupt.devices()?, &MountOptions::default())?;
    let outcome = compare(&btrfs, kernel.root(), RULES)?;
    assert!(outcome.files > 700, "{outcome}");
    assert_eq!(outcome.differences, 0, "{profile}: {outcome}");
    let fs = btrfs.super_block();
    assert!(fs.context().blocks.bad_copies().found > 0);
    assert!(fs.data.other_copies() > 0);
    assert_eq!(fs.data.mismatches(), 0);
    Ok(())
}

macro_rules! with_random_copies_corrupt {
    ($($name:ident: $profile:literal on $devices:literal;)+) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                with_random_copies_corrupt($profile, $devices)
            }
        )+
    };
}

with_random_copies_corrupt! {
    dup_with_corrupt_copies: "dup" on 1;
    raid1_with_corrupt_copies: "raid1" on 2;
    raid1c3_with_corrupt_copies: "raid1c3" on 3;
    raid1c4_with_corrupt_copies: "raid1c4" on 4;
    raid10_with_corrupt_copies: "raid10" on 4;
    raid5_with_corrupt_copies: "raid5" on 3;
    raid6_with_corrupt_copies: "raid6" on 4;
}
