//! Images whose features are switched on and off, before `btrfs check` and a kernel that wrote to them before and does
//! so afterwards.

use anyhow::{Context, Result};
use platter::edit::{Existing, Missing, Removal, Target};
use platter::vfs::Tune;
use platter_btrfs::ondisk::features::{CompatRo, Incompat};
use testkit::{program, tool};

use super::edited::{assert_clean, edit, superblock_bytes, superblock_line};
use super::image::Pool;

/// `EMLINK`.
const EMLINK: i32 = 31;

/// Files with holes, and one with as many names as fit in an item of 4 KiB.
const BEFORE: &str = "
cd $1
for file in $(seq 60); do
    head -c 9000 /dev/urandom > a$file
    truncate -s 1M a$file
    printf end | dd of=a$file bs=1 seek=2000000 conv=notrunc 2>/dev/null
done
echo text > linked
for link in $(seq 15); do ln linked $(printf '%0200d' $link); done
sync -f .
rm a3 a?3
md5sum a* > sums
";

/// What was there is as it was. More names than fit in an item come and go, and so do contents and holes.
const AFTER: &str = "
cd $1
md5sum --check --quiet sums
rm -f $(printf '%0200d ' $(seq 100 250))
for link in $(seq 100 250); do ln linked $(printf '%0200d' $link); done
for file in $(seq 20); do
    fallocate --punch-hole -o 4096 -l 500000 a${file}0 2>/dev/null || true
    head -c 70000 /dev/urandom > b$file
    truncate -s 500000 b$file
done
sync -f .
rm b1? $(printf '%0200d' 120)
rm -f $(printf '%0200d ' $(seq 130 250))
truncate -s 3M b2
md5sum a* b* > sums
";

/// Sixty block groups of data, of which some become empty.
const GROUPS: &str = "
cd $1
fallocate -l 62G filler
sync -f .
fallocate --punch-hole -o 10G -l 5G filler
";

fn features(words: &str) -> Vec<Tune> {
    let feature = |word: &str| Tune::Feature {
        name: word.trim_start_matches('^').to_owned(),
        on: !word.starts_with('^'),
    };
    words.split(',').map(feature).collect()
}

/// Switches features, and writes a file in the same edit. Panics unless they are as they were switched.
fn switch(pool: &Pool, words: &str) -> Result<()> {
    let tuned = edit(pool)?;
    tuned.write(b"/before", &vec![3; 300_000])?;
    tuned.tune(&features(words))?;
    tuned.write(b"/written", &vec![5; 300_000])?;
    tuned.remove(b"/before", Removal::File, Missing::Refuse)?;
    tuned.commit()?;
    assert_clean(pool, words)
}

fn flags(pool: &Pool, name: &str) -> Result<u64> {
    let line = superblock_line(&pool.images[0], name)?;
    let digits = line.strip_prefix("0x").context("no flags")?;
    Ok(u64::from_str_radix(digits, 16)?)
}

fn compat_ro(pool: &Pool) -> Result<CompatRo> {
    Ok(CompatRo::from_bits_retain(flags(pool, "compat_ro_flags")?))
}

fn incompat(pool: &Pool) -> Result<Incompat> {
    Ok(Incompat::from_bits_retain(flags(pool, "incompat_flags")?))
}

#[test]
fn flags_are_switched_on() -> Result<()> {
    let all = Incompat::EXTENDED_IREF | Incompat::SKINNY_METADATA | Incompat::NO_HOLES;
    for node in ["4096", "16384"] {
        let pool = Pool::make(
            1,
            300 << 10,
            &["-n", node, "-O", "^extref,^skinny-metadata,^no-holes"],
        )?;
        pool.run("", BEFORE)?;
        let before = incompat(&pool)?;
        assert!(!before.intersects(all), "{before:?}");
        switch(&pool, "extref,skinny-metadata,no-holes")?;
        assert_eq!(incompat(&pool)?, before | all);
        pool.run("", AFTER)?;
        assert_clean(&pool, "after the kernel wrote to it")?;
        // Nothing is committed where nothing changes.
        let before = superblock_bytes(&pool.images[0])?;
        let same = edit(&pool)?;
        same.tune(&features("no-holes,extref"))?;
        same.commit()?;
        assert!(superblock_bytes(&pool.images[0])? == before);
        pool.run("", AFTER)?;
        assert_clean(&pool, "in the end")?;
    }
    Ok(())
}

#[test]
fn images_without_extref_are_edited() -> Result<()> {
    let pool = Pool::make(1, 300 << 10, &["-O", "^extref"])?;
    pool.run("", BEFORE)?;
    let edited = edit(&pool)?;
    let link = |number: u32| {
        let name = format!("/{number:0200}");
        edited.link(b"/linked", name.as_bytes(), Target::Name, Existing::Refuse)
    };
    let most = (100..300).find(|number| link(*number).is_err());
    let refused = link(most.context("all names fit")?).unwrap_err();
    assert_eq!(refused.raw_os_error(), EMLINK);
    edited.commit()?;
    assert_clean(&pool, "after an edit")?;
    pool.run("", "cd $1; test $(stat -c %h linked) -gt 60; rm 0*1")?;
    assert_clean(&pool, "after the kernel wrote to it")
}

#[test]
fn trees_of_space_and_groups_are_built_and_removed() -> Result<()> {
    let trees =
        CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID | CompatRo::BLOCK_GROUP_TREE;
    for (devices, options, cache) in [
        (1, &["-R", "^free-space-tree"][..], "space_cache=v1"),
        (
            1,
            &["-R", "^free-space-tree", "-O", "^no-holes"],
            "nospace_cache",
        ),
        (
            2,
            &["-R", "^free-space-tree", "-m", "raid1", "-d", "raid1"],
            "space_cache=v1",
        ),
    ] {
        let context = format!("{options:?}");
        let pool = Pool::make(devices, 100 << 20, options)?;
        pool.run(cache, BEFORE)?;
        pool.run(cache, GROUPS)?;
        assert!(!compat_ro(&pool)?.intersects(trees), "{context}");
        let refused = edit(&pool)?;
        let error = refused.tune(&features("block-group-tree")).unwrap_err();
        assert!(error.to_string().contains("without free-space-tree"));
        drop(refused);
        let before = superblock_bytes(&pool.images[0])?;
        let dropped = edit(&pool)?;
        dropped.tune(&features("free-space-tree"))?;
        drop(dropped);
        assert!(superblock_bytes(&pool.images[0])? == before, "{context}");
        switch(&pool, "block-group-tree,free-space-tree,no-holes")?;
        assert!(compat_ro(&pool)?.contains(trees), "{context}");
        assert!(incompat(&pool)?.contains(Incompat::NO_HOLES), "{context}");
        pool.run("", AFTER)?;
        assert_clean(&pool, "with both trees")?;
        switch(&pool, "^block-group-tree")?;
        assert_eq!(
            compat_ro(&pool)? & trees,
            trees.difference(CompatRo::BLOCK_GROUP_TREE)
        );
        pool.run("", "cd $1; md5sum --check --quiet sums; rm filler b?")?;
        assert_clean(&pool, "without the block group tree")?;
        switch(&pool, "block-group-tree")?;
        pool.run("", "cd $1; fallocate -l 10G filler; md5sum a* > sums")?;
        assert_clean(&pool, "in the end")?;
    }
    Ok(())
}

#[test]
fn command_switches_features_by_their_names() -> Result<()> {
    let pool = Pool::make(1, 300 << 10, &["-R", "^free-space-tree"])?;
    let image = &pool.images[0];
    let run = |words: &str| -> Result<()> {
        let mut platter = program::platter()?;
        platter.args(["tune", "-O", words]).arg(image);
        tool::succeed(&mut platter)?;
        Ok(())
    };
    run("free-space-tree,block-group-tree")?;
    assert!(compat_ro(&pool)?.contains(CompatRo::BLOCK_GROUP_TREE));
    assert_clean(&pool, "with a block group tree")?;
    run("^block-group-tree")?;
    assert!(!compat_ro(&pool)?.contains(CompatRo::BLOCK_GROUP_TREE));
    assert_clean(&pool, "without one")?;
    let mut refused = program::platter()?;
    refused.args(["tune", "-O", "^no-holes"]).arg(image);
    let output = refused.output()?;
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr)?;
    assert!(text.contains("switching no-holes off"), "{text}");
    Ok(())
}
