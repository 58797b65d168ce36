//! Filesystems that open only with `rescue=`.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use platter_btrfs::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags,
};
use platter_btrfs::ondisk::{LogicalAddr, Superblock, TreeId};
use platter_btrfs::{Btrfs, MountOptions, Rescue};
use platter_vfs::{Filesystem, Name};
use rustix::io::Errno;
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use zerocopy::{FromBytes, IntoBytes};

use super::image::{Pool, RULES, mount, mount_writable};

/// Overwrites all copies of a tree block.
fn overwrite(btrfs: &Btrfs, pool: &Pool, logical: LogicalAddr) -> Result<()> {
    overwrite_begin(btrfs, pool, logical, btrfs.superblock().node_bytes)
}

/// Overwrites the first bytes of all copies of a tree block: at least its checksum.
fn overwrite_begin(btrfs: &Btrfs, pool: &Pool, logical: LogicalAddr, len_bytes: u32) -> Result<()> {
    let blocks = &btrfs.super_block().context().blocks;
    let garbage = vec![0x77; len_bytes.try_into()?];
    for copy in 0..blocks.copies(logical) {
        let (member, at) = blocks.store().location(logical, copy).unwrap();
        let image = &pool.images[usize::from(member.index)];
        let image = File::options().write(true).open(image)?;
        image.write_all_at(&garbage, at.0)?;
    }
    Ok(())
}

fn with(rescue: Rescue) -> MountOptions {
    MountOptions {
        rescue,
        ..MountOptions::default()
    }
}

/// Compares platter's mount with the kernel's, both with the same option.
fn agree(pool: &Pool, rescue: Rescue, kernel: &str) -> Result<()> {
    assert!(mount(&pool.devices()?, &MountOptions::default()).is_err());
    agree_with_option(pool, rescue, kernel)
}

/// Compares platter's mount with the kernel's, which needs the option.
fn agree_with_option(pool: &Pool, rescue: Rescue, kernel: &str) -> Result<()> {
    let refused = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly);
    assert!(refused.is_err(), "the kernel mounts it without {kernel}");
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), kernel, Access::ReadOnly)?;
    let ours = mount(&pool.devices()?, &with(rescue))?;
    let outcome = compare(&ours, kernel.root(), RULES)?;
    assert!(outcome.files > 700, "{outcome}");
    assert_eq!(outcome.differences, 0, "{outcome}");
    Ok(())
}

#[test]
fn backup_root_is_used_where_the_latest_is_corrupt() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &[])?;
    pool.fill("compress=lzo")?;
    pool.run("", r#"echo later > "$1/later"; sync -f "$1""#)?;
    let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
    overwrite(&btrfs, &pool, btrfs.superblock().root.logical)?;
    let rescue = Rescue {
        uses_backup_root: true,
        ..Rescue::default()
    };
    agree(&pool, rescue, "rescue=usebackuproot")
}

/// A filesystem whose tree `id` has no readable root.
fn without_tree(id: TreeId) -> Result<Pool> {
    let pool = Pool::make(1, 200 << 10, &[])?;
    if id == TreeId::BLOCK_GROUP {
        pool.convert_to_group_tree()?;
    }
    pool.fill("")?;
    let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
    let tree = btrfs.super_block().context().required_tree(id)?;
    overwrite(&btrfs, &pool, tree.root.logical)?;
    Ok(pool)
}

const IGNORES_BAD_ROOTS: Rescue = Rescue {
    uses_backup_root: false,
    skips_log: false,
    ignores_bad_roots: true,
    ignores_data_checksums: false,
    ignores_metadata_checksums: false,
    ignores_superblock_flags: false,
};

/// Both mounts of a filesystem, although roots are bad.
fn with_bad_roots(pool: &Pool) -> Result<(Btrfs, Mount)> {
    let ours = mount(&pool.devices()?, &with(IGNORES_BAD_ROOTS))?;
    let options = "rescue=ignorebadroots";
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), options, Access::Replay)?;
    Ok((ours, kernel))
}

#[test]
fn data_is_not_verified_without_a_checksum_tree() -> Result<()> {
    agree(
        &without_tree(TreeId::CSUM)?,
        IGNORES_BAD_ROOTS,
        "rescue=ignorebadroots",
    )
}

#[test]
fn files_are_read_without_an_extent_tree() -> Result<()> {
    let pool = without_tree(TreeId::EXTENT)?;
    agree(&pool, IGNORES_BAD_ROOTS, "rescue=ignorebadroots")?;
    let (ours, kernel) = with_bad_roots(&pool)?;
    super::space::same_space(&ours, &kernel)
}

#[test]
fn files_are_read_without_a_device_tree() -> Result<()> {
    let pool = without_tree(TreeId::DEV)?;
    agree(&pool, IGNORES_BAD_ROOTS, "rescue=ignorebadroots")
}

/// The kernel reads the roots of these trees in any case.
#[test]
fn trees_that_reading_does_not_need_may_be_corrupt() -> Result<()> {
    for id in [TreeId::UUID, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP] {
        let pool = without_tree(id)?;
        let written = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadWrite);
        assert!(written.is_err(), "{id}: the kernel mounts it for writing");
        assert!(mount_writable(&pool).is_err(), "{id}");
        agree_with_option(&pool, IGNORES_BAD_ROOTS, "rescue=ignorebadroots")
            .with_context(|| id.to_string())?;
        let (ignoring, kernel) = with_bad_roots(&pool)?;
        super::space::same_space(&ignoring, &kernel)?;
        drop(ignoring);
        let ours = mount(&pool.devices()?, &MountOptions::default())?;
        let outcome = compare(&ours, kernel.root(), RULES)?;
        assert_eq!(outcome.differences, 0, "{id}: {outcome}");
        drop(ours);
        kernel.release(&pool.paths())?;
    }
    Ok(())
}

/// Overwrites the leaf of a tree of two levels that `choose` chooses.
fn overwrite_leaf(
    pool: &Pool,
    id: TreeId,
    choose: impl FnOnce(&[LogicalAddr]) -> Option<&LogicalAddr>,
) -> Result<()> {
    let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
    let context = btrfs.super_block().context();
    let tree = context.required_tree(id)?;
    assert_eq!(tree.root.level, 1);
    let root = context.blocks.read_root(tree)?;
    let leaves: Vec<_> = root.node().iter().map(|leaf| leaf.logical).collect();
    overwrite(&btrfs, pool, *choose(&leaves).unwrap())
}

/// Files whose checksums fill several leaves of 4 KiB.
const CHECKSUMMED: &str = r#"
for number in $(seq 16); do head -c 1M /dev/urandom > "$1/$number"; done
"#;

/// A mount reads the root of the checksum tree alone.
#[test]
fn checksums_in_a_corrupt_leaf_are_missed_by_reading() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
    pool.run("", CHECKSUMMED)?;
    overwrite_leaf(&pool, TreeId::CSUM, <[_]>::first)?;
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let (mut read, mut refused) = (0, 0);
    for entry in std::fs::read_dir(kernel.root())? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let name = entry.file_name();
        let file = ours.root()?.lookup(Name::new(name.as_bytes())?)?;
        let mut bytes = vec![0; usize::try_from(file.attr()?.size_bytes)?];
        match (file.read_at(0, &mut bytes), std::fs::read(entry.path())) {
            (Ok(_), Ok(theirs)) => {
                assert!(bytes == theirs, "{}", name.display());
                read += 1;
            }
            (Err(ours), Err(theirs)) => {
                // A tree block is corrupt; the kernel's page cache keeps one error for all causes.
                assert_eq!(ours.errno(), Errno::UCLEAN, "{}", name.display());
                let errno = theirs.raw_os_error();
                assert_eq!(errno, Some(Errno::IO.raw_os_error()), "{}", name.display());
                refused += 1;
            }
            (ours, theirs) => {
                let theirs = theirs.map(|bytes| bytes.len());
                panic!("{}: {ours:?}, {theirs:?}", name.display());
            }
        }
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
    Ok(())
}

#[test]
fn block_groups_after_a_corrupt_leaf_count_as_full() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
    pool.fill("")?;
    overwrite_leaf(&pool, TreeId::EXTENT, <[_]>::last)?;
    let (ours, kernel) = with_bad_roots(&pool)?;
    super::space::same_space(&ours, &kernel)
}

/// The length of the checksums that `mkfs.btrfs` chooses.
const CHECKSUM_BYTES: u32 = 4;

#[test]
fn blocks_without_a_matching_checksum_are_taken() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
    pool.fill("compress=zstd")?;
    let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
    let context = btrfs.super_block().context();
    let tree = context.required_tree(TreeId::FS)?;
    let root = context.blocks.read_root(tree)?;
    let mut blocks = vec![context.superblock.chunk_root.logical];
    blocks.extend([context.superblock.root.logical, tree.root.logical]);
    blocks.extend(root.node().iter().map(|pointer| pointer.logical));
    for logical in blocks {
        overwrite_begin(&btrfs, &pool, logical, CHECKSUM_BYTES)?;
    }
    let mut rescue = Rescue::default();
    assert!(rescue.add("ignoremetacsums"));
    agree(&pool, rescue, "rescue=ignoremetacsums")?;
    agree(&pool, Rescue::ALL, "rescue=all")
}

#[test]
fn superblock_flags_are_refused_and_ignored_as_by_the_kernel() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &[])?;
    pool.fill("")?;
    let image = File::options()
        .read(true)
        .write(true)
        .open(&pool.images[0])?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read_exact_at(&mut bytes, SUPERBLOCK_OFFSETS[0])?;
    let disk = DiskSuperblock::read_from_bytes(&bytes).unwrap();
    let whole = Superblock::decode(&disk, SUPERBLOCK_OFFSETS[0])?;
    let ignoring = Rescue {
        ignores_superblock_flags: true,
        ..Rescue::default()
    };
    for bit in [1, 2, 5, 31, 33, 34, 35, 36, 37, 38, 39, 40, 41, 63] {
        let mut changed = whole.clone();
        changed.flags |= SuperblockFlags::from_bits_retain(1 << bit);
        let encoded = changed.encode(&disk, SUPERBLOCK_OFFSETS[0]);
        image.write_all_at(encoded.as_bytes(), SUPERBLOCK_OFFSETS[0])?;
        for (rescue, options) in [
            (Rescue::default(), ""),
            (ignoring, "rescue=ignoresuperflags"),
        ] {
            let kernel = Mount::images(FsType::Btrfs, &pool.paths(), options, Access::ReadOnly);
            let ours = mount(&pool.devices()?, &with(rescue));
            let name = format!("bit {bit}, {options}");
            assert_eq!(ours.is_ok(), kernel.is_ok(), "{name}: {ours:?} {kernel:?}");
            if let (Ok(ours), Ok(kernel)) = (ours, kernel) {
                let outcome = compare(&ours, kernel.root(), RULES)?;
                assert_eq!(outcome.differences, 0, "{name}: {outcome}");
            }
        }
    }
    Ok(())
}

/// Flips a byte of the only copy of a file, and returns the file as it was and as it is on the device.
fn flipped(pool: &Pool) -> Result<[Vec<u8>; 2]> {
    pool.run(
        "",
        r#"head -c 65536 /dev/urandom > "$1/random"; sync -f "$1""#,
    )?;
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let before = std::fs::read(kernel.root().join("random"))?;
    kernel.unmount_all(&pool.paths())?;
    let image = std::fs::read(&pool.images[0])?;
    let mut sectors = image.chunks_exact(4096);
    let sector = sectors.position(|sector| sector == &before[8192..12288]);
    let at = sector.context("the file is on the device")? * 4096 + 5;
    let device = File::options().write(true).open(&pool.images[0])?;
    device.write_all_at(&[image[at] ^ 1], at as u64)?;
    let mut after = before.clone();
    after[8192 + 5] ^= 1;
    Ok([before, after])
}

#[test]
fn bad_data_is_refused_unless_checksums_are_ignored() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &["-d", "single"])?;
    let [before, after] = flipped(&pool)?;
    let name = Name::new(b"random")?;
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    let file = ours.root()?.lookup(name)?;
    let mut sector = vec![0xaa; 4096];
    let refused = file.read_at(8192, &mut sector).unwrap_err();
    assert_eq!(refused.errno(), Errno::IO, "{refused}");
    assert_ne!(sector[..], after[8192..12288], "bytes of a bad checksum");
    assert_eq!(file.read_at(12288, &mut sector)?, 4096);
    assert_eq!(sector, before[12288..16384]);
    drop((file, ours));
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let theirs = std::fs::read(kernel.root().join("random")).unwrap_err();
    assert_eq!(theirs.raw_os_error(), Some(Errno::IO.raw_os_error()));
    kernel.unmount_all(&pool.paths())?;

    let mut rescue = Rescue::default();
    assert!(rescue.add("idatacsums"));
    let options = "rescue=idatacsums";
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), options, Access::ReadOnly)?;
    assert_eq!(std::fs::read(kernel.root().join("random"))?, after);
    let file = mount(&pool.devices()?, &with(rescue))?
        .root()?
        .lookup(name)?;
    let mut bytes = vec![0; after.len()];
    assert_eq!(file.read_at(0, &mut bytes)?, bytes.len());
    assert_eq!(bytes, after);
    Ok(())
}
