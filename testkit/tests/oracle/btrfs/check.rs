//! The check compared with `btrfs check --readonly`: clean for both, or for neither.
//!
//! Disagreements that `EXPLAINED` lists are documented; any other fails. `cargo xtask soak btrfs --only verdicts`
//! judges 1,000 images of one device and as many of RAID1 and RAID5; one again: `PLATTER_BTRFS_VERDICTS=FIRST..END`,
//! before `cargo test -p testkit --test oracle btrfs::check::verdicts -- --nocapture`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use platter::block::Access;
use platter::{DeviceRole, Image, ImageSet, MountOptions};

use platter_vfs::CheckReport;
use testkit::findings::Findings;
use testkit::oracle::btrfs;
use testkit::prng::Prng;

use super::corrupt::{Change, Corpus};
use super::image::{Pool, mount};

/// Corrupted images of a test run.
const IMAGES: u64 = 300;
/// Of several devices.
const IMAGES_OF_POOLS: u64 = 40;

/// What `btrfs check` does not complain of: a part of the complaint, and its kind in the table of
/// `docs/design/checking.md`, which says why.
const EXPLAINED: &[(&str, &str)] = &[
    ("did not find the related", CHUNK),
    ("chunk mismatches its block group", CHUNK),
    ("chunk stripe is on a device that has no item", CHUNK),
    ("chunks overlap", CHUNK),
    ("pointers to a shared block disagree", SHARED),
    ("first key is not that of the pointer", POINTER),
    ("keys reach beyond the next pointer", POINTER),
    ("tree 18446744073709551607", RELOCATION),
    ("free space item at", FREE_SPACE),
    ("free space item is not in its block group", FREE_SPACE),
    (
        "free space items do not have the form of the info flags",
        FREE_SPACE,
    ),
    ("free space info extent count is wrong", FREE_SPACE),
    ("invalid dir item type", ITEM),
    ("invalid extent flags", ITEM),
    ("invalid encryption or encoding", ITEM),
    ("entry exceeds the item", ITEM),
    ("invalid inode item key", ITEM),
    ("hash mismatch with key", ITEM),
    ("unknown flags", ITEM),
    ("unaligned key offset", ITEM),
    ("unaligned address or length", ITEM),
    ("unaligned file offset", ITEM),
    ("invalid generation for extent", ITEM),
    ("invalid name length", ITEM),
    ("invalid compression", ITEM),
    ("reference exceeds the item", ITEM),
    ("invalid location key", ITEM),
    ("tree 18446744073709551610", LOG),
    ("invalid nodesize or leafsize", SUPERBLOCK),
    ("unrecognized or unsupported super flag", SUPERBLOCK),
    ("parent transid verify failed", POINTER),
    ("invalid owner", POINTER),
    ("compressed extent exceeds 128 KiB", COMPRESSED),
    ("invalid block group type", ITEM),
    ("devid mismatch with key", ITEM),
    ("invalid root flags", ITEM),
    (" is missing", CHUNK),
    ("no root item", ROOT),
    ("fs tree not referenced", DELETED),
    ("backref revision is not the current one", REVISION),
];
const CHUNK: &str =
    "chunk, block group or device extent without its counterpart, chunks that overlap";
const SHARED: &str = "a pointer to a shared block with another generation, level or first key";
const POINTER: &str = "keys, generation or owner of a block that are not those of its pointer";
const LOG: &str = "a corrupt block of the log, but for its root";
const SUPERBLOCK: &str = "leaf size and flags of the superblock";
const RELOCATION: &str = "inodes and names of the data relocation tree";
const FREE_SPACE: &str = "keys, flags, places and number of free space items";
const ITEM: &str = "hash, key, type, flags, alignment, generation or lengths of an item";
const ROOT: &str = "the offset in the key of a root item";
const DELETED: &str = "a subvolume in deletion without an orphan item";
const REVISION: &str = "the revision of references in the header of a block";
const COMPRESSED: &str = "a compressed extent of more than 128 KiB";
/// What is found as well where items or blocks were refused: what they would have said is missing. A part of the
/// complaint, and the kinds that it can follow from.
const CONSEQUENCES: &[(&str, &[&str])] = &[
    ("no free space entry for unused range", &[FREE_SPACE, ITEM]),
    ("block group has no free space info", &[FREE_SPACE]),
    ("unresolved ref", &[ITEM, POINTER]),
    ("fs tree refs not found", &[POINTER]),
    ("counts for qgroup are different", &[COMPRESSED, ITEM]),
    ("backref was not found", &[COMPRESSED, ITEM, ROOT]),
    ("incorrect local backref count", &[ITEM]),
    ("a hole without an item", &[ITEM]),
    ("nbytes wrong", &[ITEM, COMPRESSED]),
    ("link count wrong", &[ITEM]),
    ("dir isize wrong", &[ITEM]),
    ("no inode item", &[ITEM]),
    ("has no extent item", &[ITEM]),
    ("block group used mismatches the extent items", &[ITEM]),
    ("super bytes used mismatches actual used", &[ITEM]),
    ("csum exists but there is no extent record", &[ITEM]),
    ("some csum missing", &[ITEM]),
    ("crosses the end of its block group or has none", &[ITEM]),
    ("dev extent's total-byte is not equal to byte-used", &[ROOT]),
    ("super num devices mismatches the device items", &[CHUNK]),
];
/// Begins the complaint of a `btrfs check` that did not end by itself.
const CRASHED: &str = "crashed: ";
/// What the table is in.
const DOCUMENTED: &str = include_str!("../../../../docs/design/checking.md");

pub(super) fn images(paths: &[&Path]) -> Result<ImageSet> {
    let mut opened = Vec::new();
    for path in paths {
        opened.push(Image::open(path, Access::Read)?);
    }
    let mut opened = opened.into_iter();
    let first = opened.next().unwrap();
    Ok(opened.fold(ImageSet::new(first), |set, image| {
        set.with(DeviceRole::Data, image)
    }))
}

pub(super) fn check(paths: &[&Path]) -> Result<(CheckReport, Findings)> {
    let mut findings = Findings::default();
    let report = MountOptions::new().check(images(paths)?, &mut findings)?;
    Ok((report, findings))
}

/// Both find nothing.
pub(super) fn is_clean(paths: &[&Path]) -> Result<()> {
    let (verdict, text) = btrfs::report(paths)?;
    assert!(verdict.is_clean(), "{text}");
    is_clean_for_platter(paths)
}

/// Platter finds nothing. For what btrfs check does not know.
pub(super) fn is_clean_for_platter(paths: &[&Path]) -> Result<()> {
    let (report, findings) = check(paths)?;
    assert!(report.is_clean(), "{:#?}", findings.errors());
    Ok(())
}

/// Snapshots that share subtrees, quota groups of two levels, deleted and moved blocks. A rescan that another change
/// began can make the one that is asked for fail.
const SHARING: &str = r"
btrfs quota enable .
btrfs subvolume create sub
cp -a names text large sub/
btrfs qgroup create 1/7 .
btrfs qgroup assign --no-rescan 0/256 1/7 .
for i in 1 2 3 4; do
    btrfs subvolume snapshot sub snap$i
    echo $i >> sub/text
    dd if=/dev/urandom of=snap$i/large bs=4096 count=3 seek=$i conv=notrunc status=none
    rm snap$i/names/name.3*
done
btrfs subvolume snapshot -r snap3 snap3/ro
btrfs subvolume delete snap2
sync -f .
btrfs balance start --full-balance .
echo balanced >> sub/text
sync -f .
tries=0
until btrfs quota rescan -w .; do
    tries=$((tries + 1))
    test $tries -lt 50
    sleep 0.1
done
btrfs qgroup show -p . | grep -q '^1/7'
echo more >> snap1/text
";

fn sharing() -> Result<Pool> {
    let pool = Pool::make(1, 300 << 10, &["-n", "4096"])?;
    pool.fill("compress=zstd")?;
    pool.run_at_path("rw", SHARING)?;
    Ok(pool)
}

#[test]
fn shared_subtrees_and_quota_groups_are_clean() -> Result<()> {
    is_clean(&sharing()?.paths())
}

#[test]
fn subvolume_in_deletion_is_clean() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &["-n", "4096"])?;
    pool.fill("")?;
    // The image is copied before the kernel drops the tree.
    let script = r"
btrfs subvolume create gone
cp -a names links text gone/
btrfs subvolume snapshot gone kept
sync -f .
btrfs subvolume delete --commit-after gone
cp --sparse=always IMAGE COPY
";
    let copy = Pool::empty(1)?;
    let script = script
        .replace("IMAGE", pool.images[0].to_str().unwrap())
        .replace("COPY", copy.images[0].to_str().unwrap());
    pool.run_at_path("commit=300", &script)?;
    let btrfs = mount(&copy.devices()?, &platter_btrfs::MountOptions::default())?;
    let deleted = btrfs.super_block().context().deleted_subvolumes()?;
    assert_eq!(deleted.len(), 1);
    is_clean(&copy.paths())
}

/// What each of the two says of a corrupted image.
struct Judged {
    number: u64,
    change: Change,
    platter: Vec<String>,
    btrfs: Vec<String>,
}

impl Judged {
    fn differs(&self) -> bool {
        self.platter.is_empty() != self.btrfs.is_empty()
    }

    /// The kinds of disagreement, or the complaints that are of no known kind.
    fn explain(&self) -> Result<BTreeSet<&'static str>, Vec<&String>> {
        let kind_of = |complaint: &String| {
            let row = EXPLAINED.iter().find(|(part, _)| complaint.contains(part));
            row.map(|(_, kind)| *kind)
        };
        let kinds: BTreeSet<_> = self.platter.iter().filter_map(kind_of).collect();
        let follows = |complaint: &String| {
            let mut rows = CONSEQUENCES
                .iter()
                .filter(|(part, _)| complaint.contains(part));
            rows.any(|(_, from)| from.iter().any(|kind| kinds.contains(kind)))
        };
        let is_left = |complaint: &&String| kind_of(complaint).is_none() && !follows(complaint);
        let left = self.platter.iter().filter(is_left);
        let left: Vec<_> = self.btrfs.iter().chain(left).collect();
        if left.is_empty() {
            Ok(kinds)
        } else {
            Err(left)
        }
    }
}

/// The kinds that the table of the documentation lists.
fn documented() -> BTreeSet<&'static str> {
    let section = DOCUMENTED.split("## btrfs\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let kinds = rows.filter_map(|row| row.split(" | ").next());
    kinds.filter(|kind| *kind != "kind").collect()
}

#[test]
fn explained_disagreements_are_documented() {
    let explained: BTreeSet<&str> = EXPLAINED.iter().map(|(_, kind)| *kind).collect();
    assert_eq!(explained, documented());
}

fn judge(corpus: &Corpus, number: u64) -> Result<Judged> {
    let paths: Vec<&Path> = corpus.images().iter().map(PathBuf::as_path).collect();
    let change = corpus.change(&mut Prng::new(number))?;
    let overwritten = change.apply(corpus.images())?;
    let asked = btrfs::report(&paths);
    let checked = check(&paths);
    overwritten.apply(corpus.images())?;
    let btrfs = match asked {
        Ok((verdict, _)) => verdict.complaints(),
        // It does not survive everything.
        Err(error) => vec![format!("{CRASHED}{error}")],
    };
    let platter = match checked {
        Ok((report, findings)) => {
            assert_eq!(report.is_clean(), findings.errors().is_empty());
            findings.errors()
        }
        Err(error) => vec![format!("refused: {error}")],
    };
    Ok(Judged {
        number,
        change,
        platter,
        btrfs,
    })
}

/// Judges the images that the variable names, or the first ones. Returns what differs in words, and how many
/// disagreements have no explanation.
fn judge_all(corpora: &[Corpus], images: u64) -> Result<(String, u32)> {
    let numbers = std::env::var("PLATTER_BTRFS_VERDICTS").map_or(0..images, |text| {
        let (first, end) = text.split_once("..").unwrap();
        first.parse().unwrap()..end.parse().unwrap()
    });
    let mut text = String::new();
    let (mut clean, mut broken, mut differing, mut unexplained) = (0, 0, 0, 0);
    let (mut judged_images, mut crashed) = (0, 0);
    for number in numbers {
        let index = usize::try_from(number % corpora.len() as u64)?;
        let judged = judge(&corpora[index], number)?;
        judged_images += 1;
        crashed += u32::from(judged.btrfs.iter().any(|line| line.starts_with(CRASHED)));
        clean += u32::from(judged.platter.is_empty() && judged.btrfs.is_empty());
        broken += u32::from(!judged.platter.is_empty() && !judged.btrfs.is_empty());
        if !judged.differs() {
            continue;
        }
        differing += 1;
        writeln!(
            text,
            "image {} of {index}: {}",
            judged.number, judged.change.text
        )?;
        for line in judged.platter.iter().take(6) {
            writeln!(text, "    platter: {line}")?;
        }
        for line in judged.btrfs.iter().take(6) {
            writeln!(text, "    btrfs: {line}")?;
        }
        match judged.explain() {
            Ok(kinds) => writeln!(text, "    explained: {kinds:?}")?,
            Err(left) => {
                unexplained += 1;
                for line in left {
                    writeln!(text, "    UNEXPLAINED: {line}")?;
                }
            }
        }
    }
    writeln!(
        text,
        "clean for both {clean}, for neither {broken}; {differing} disagreements; {crashed} crashes"
    )?;
    assert!(crashed <= 1 + judged_images / 50, "{text}");
    Ok((text, unexplained))
}

#[test]
fn verdicts_on_corrupted_images_agree_or_are_explained() -> Result<()> {
    let plain = Pool::make(1, 160 << 10, &[])?;
    plain.fill("compress=lzo")?;
    let options = ["-m", "single", "-O", "^no-holes", "-R", "^free-space-tree"];
    let cached = Pool::make(1, 160 << 10, &options)?;
    cached.fill("space_cache")?;
    let shared = sharing()?;
    let mut corpora = Vec::new();
    for pool in [&plain, &cached, &shared] {
        corpora.push(Corpus::new(pool)?);
    }
    let (text, unexplained) = judge_all(&corpora, IMAGES)?;
    println!("{text}");
    assert_eq!(unexplained, 0, "disagreements without an explanation");
    Ok(())
}

#[test]
fn verdicts_on_corrupted_pools_agree_or_are_explained() -> Result<()> {
    let mut pools = Vec::new();
    for (profile, devices) in [("raid1", 2), ("raid5", 3)] {
        let pool = Pool::make(devices, 160 << 10, &["-d", profile, "-m", profile])?;
        pool.fill("compress=zstd")?;
        pools.push(pool);
    }
    let corpora: Vec<Corpus> = pools.iter().map(Corpus::new).collect::<Result<_>>()?;
    let (text, unexplained) = judge_all(&corpora, IMAGES_OF_POOLS)?;
    println!("{text}");
    assert_eq!(unexplained, 0, "disagreements without an explanation");
    Ok(())
}
