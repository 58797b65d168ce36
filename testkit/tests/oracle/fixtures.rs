//! One test for each fixture of the catalogue.

use anyhow::Result;
use testkit::compare::{Rules, compare};
use testkit::findings::Findings;
use testkit::fixtures::{Built, Fixture, KernelView, Place, Truth, catalogue};
use testkit::oracle::{Verdict, e2fsck};
use testkit::volume;

macro_rules! fixtures {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                examine(catalogue::named(stringify!($name)))
            }
        )*

        #[test]
        fn every_fixture_has_a_test() {
            let mut tested = vec![$(stringify!($name)),*];
            let mut known: Vec<_> = catalogue::all().map(|fixture| fixture.name).collect();
            tested.sort_unstable();
            known.sort_unstable();
            assert_eq!(tested, known);
        }
    };
}

fixtures! {
    ext2_1k,
    ext2_2k,
    ext2_4k,
    ext3_1k,
    ext3_4k,
    ext4_1k,
    ext4_2k,
    ext4_4k,
    ext4_empty,
    revision0,
    no_filetype,
    no_extents,
    from_dir,
    tiny,
    block_8k,
    block_16k,
    block_32k,
    block_64k,
    block_64k_ext2,
    inode_128,
    inode_512,
    inode_1024,
    bits32,
    bits64_small_groups,
    no_flex_bg,
    flex_bg_4,
    meta_bg,
    meta_bg_32bit,
    bigalloc_16k,
    bigalloc_64k,
    no_sparse_super,
    sparse_super2,
    sparse_super2_one,
    partial_last_group,
    uninitialised_groups,
    deep_extents,
    large_dir,
    dir_nlink,
    csum_none,
    csum_groups,
    csum_groups_64bit,
    csum_seed,
    inline_data,
    inline_data_1k,
    inline_data_ext2,
    ea_inode,
    ea_inode_1k,
    orphan_file,
    quota,
    project,
    stable_inodes,
    mmp,
    encrypt_unused,
    verity,
    huge_file,
    casefold,
    hash_tea,
    hash_legacy,
    hash_unsigned,
    no_journal,
    label,
    dirty_ext3,
    dirty_ext4,
    dirty_1k,
    dirty_32bit,
    dirty_no_csum,
    dirty_csum_v1,
    dirty_async_commit,
    dirty_data_journal,
    dirty_data_journal_ext3,
    dirty_revoked,
    dirty_wrapped,
    dirty_wrapped_data,
    dirty_fast_commit,
    dirty_orphan_list,
    dirty_orphan_file,
    dirty_orphan_ext3,
    dirty_inline_data,
    dirty_bigalloc,
    dirty_journal_apart,
    on_gpt,
    on_gpt_4k_sectors,
    on_logical_partition,
    seed_ext2,
    seed_ext3,
    seed_ext4,
    seed_ext4_4k,
    seed_64k,
    seed_group_csum,
    seed_inline,
    seed_meta_bg,
    seed_bigalloc,
    seed_ea_inode,
    seed_orphan_file,
    seed_casefold,
    seed_dirty,
    seed_dirty_csum,
    seed_dirty_csum_v2,
}

/// Platter and the reference for the fixture show the same; the image stays as it was.
fn examine(fixture: &Fixture) -> Result<()> {
    let built = fixture.build()?;
    if !fixture.is_dirty && fixture.place == Place::Whole {
        let verdict = e2fsck::check(&built.image)?;
        assert_eq!(
            verdict,
            Verdict::Clean,
            "{} is no good fixture",
            fixture.name
        );
    }
    let written = std::fs::metadata(&built.image)?.modified()?;
    let volume = volume::open(&built)?;
    let outcome = match fixture.truth {
        Truth::Kernel(_) | Truth::KernelAfterE2fsck => {
            let view = KernelView::of(fixture, &built)?;
            compare(&**volume.filesystem(), view.root(), Rules::KERNEL_MOUNT)?
        }
        Truth::Directory => {
            let dir = tempfile::tempdir()?;
            fixture.fill_dir(dir.path())?;
            compare(&**volume.filesystem(), dir.path(), Rules::SOURCE_DIR)?
        }
    };
    outcome.assert_equal();
    examine_check(fixture, &built)?;
    assert_eq!(std::fs::metadata(&built.image)?.modified()?, written);
    Ok(())
}

/// The check of a fixture finds nothing to repair.
fn examine_check(fixture: &Fixture, built: &Built) -> Result<()> {
    let mut findings = Findings::default();
    let report = volume::options(built).check(&volume::image(built)?, &mut findings)?;
    let errors = findings.errors();
    assert!(report.is_clean(), "{}: {errors:#?}", fixture.name);
    Ok(())
}
