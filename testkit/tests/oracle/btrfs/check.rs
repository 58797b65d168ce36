//! The check compared with `btrfs check --readonly`: clean for both, or for neither.
//!
//! Disagreements that `EXPLAINED` lists are documented; any other fails. `cargo xtask soak btrfs --only verdicts`
//! judges 1,000 images of one device and as many of RAID1 and RAID5; one again: `PLATTER_BTRFS_VERDICTS=FIRST..END`,
//! before `cargo test -p testkit --test oracle btrfs::check::verdicts -- --nocapture`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use platter::block::Access as ImageAccess;
use platter::{DeviceRole, Image, ImageSet, MountOptions};

use platter_vfs::CheckReport;
use testkit::findings::Findings;
use testkit::oracle::btrfs;
use testkit::prng::Prng;

use super::corrupt::{Change, Corpus};
use super::image::{Pool, mount};
use super::kernel::{self, Refusal};

/// Corrupted images of a test run.
const IMAGES: u64 = 300;
/// Of several devices.
const IMAGES_OF_POOLS: u64 = 40;

/// A complaint of the check: its structure, what of its locus (nothing: any), and its rule.
///
/// In the rule, `...` at an end stands for any text.
struct Pattern {
    structure: &'static str,
    locus: &'static str,
    rule: &'static str,
}

const fn of(structure: &'static str, rule: &'static str) -> Pattern {
    Pattern {
        structure,
        locus: "",
        rule,
    }
}

const fn within(locus: &'static str, structure: &'static str) -> Pattern {
    Pattern {
        structure,
        locus,
        rule: "...",
    }
}

impl Pattern {
    fn fits(&self, complaint: &str) -> bool {
        let complaint = complaint.strip_prefix(REFUSED).unwrap_or(complaint);
        let Some((place, rule)) = complaint.split_once(": ") else {
            return false;
        };
        let Some((structure, locus)) = place.split_once(" at ") else {
            return false;
        };
        let is_rule = match (self.rule.strip_prefix("..."), self.rule.strip_suffix("...")) {
            (Some(end), _) => rule.ends_with(end),
            (None, Some(begin)) => rule.starts_with(begin),
            (None, None) => rule == self.rule,
        };
        structure == self.structure && locus.contains(self.locus) && is_rule
    }
}

/// What `btrfs check` does not complain of, and its kind in the table of `docs/design/checking.md`, which says why.
const EXPLAINED: &[(Pattern, &str)] = &[
    (
        of(
            "device extent",
            "device extent did not find the related chunk",
        ),
        CHUNK,
    ),
    (
        of(
            "device extent",
            "device extent did not find the related device",
        ),
        CHUNK,
    ),
    (
        of("chunk", "chunk did not find the related block group"),
        CHUNK,
    ),
    (
        of("chunk", "chunk stripe did not find the related dev extent"),
        CHUNK,
    ),
    (of("chunk", "chunk mismatches its block group"), CHUNK),
    (
        of("chunk", "chunk stripe is on a device that has no item"),
        CHUNK,
    ),
    (
        of("block group", "block group did not find the related chunk"),
        CHUNK,
    ),
    (of("chunk map", "chunks overlap"), CHUNK),
    (of("tree block", "... is missing"), CHUNK),
    (
        of("tree block", "pointers to a shared block disagree"),
        SHARED,
    ),
    (
        of("tree block", "first key is not that of the pointer"),
        POINTER,
    ),
    (
        of("tree block", "keys reach beyond the next pointer"),
        POINTER,
    ),
    (of("tree block", "parent transid verify failed"), POINTER),
    (of("tree block", "invalid owner"), POINTER),
    (within("tree 18446744073709551607", "inode"), RELOCATION),
    (within("tree 18446744073709551607", "inode ref"), RELOCATION),
    (of("free space item", "invalid start or length"), FREE_SPACE),
    (of("free space item", "unknown flags"), FREE_SPACE),
    (
        of("free space", "free space item is not in its block group"),
        FREE_SPACE,
    ),
    (
        of(
            "free space",
            "free space items do not have the form of the info flags",
        ),
        FREE_SPACE,
    ),
    (
        of("free space", "free space info extent count is wrong"),
        FREE_SPACE,
    ),
    (of("dir item", "invalid dir item type"), ITEM),
    (of("dir item", "entry exceeds the item"), ITEM),
    (of("dir item", "hash mismatch with key"), ITEM),
    (of("dir item", "invalid name length"), ITEM),
    (of("dir item", "invalid location key"), ITEM),
    (of("extent item", "invalid extent flags"), ITEM),
    (of("extent", "invalid generation for extent"), ITEM),
    (of("file extent", "invalid encryption or encoding"), ITEM),
    (of("file extent", "unaligned address or length"), ITEM),
    (of("file extent", "unaligned file offset"), ITEM),
    (of("file extent", "invalid compression"), ITEM),
    (of("inode", "inode extref hash mismatch with key"), EXTREF),
    (of("inode", "invalid inode item key"), ITEM),
    (of("inode item", "unknown flags"), ITEM),
    (of("inode ref", "invalid name length"), ITEM),
    (of("inode ref", "reference exceeds the item"), ITEM),
    (of("root ref", "invalid name length"), ITEM),
    (of("root item", "invalid root flags"), ITEM),
    (of("qgroup item", "unknown flags"), ITEM),
    (of("csum item", "unaligned key offset"), ITEM),
    (of("block group item", "invalid block group type"), ITEM),
    (of("chunk item", "invalid block group type"), ITEM),
    (of("device item", "devid mismatch with key"), ITEM),
    (within("tree 18446744073709551610", "tree block"), LOG),
    (within("tree 18446744073709551610", "leaf"), LOG),
    (within("tree 18446744073709551610", "node"), LOG),
    (of("superblock", "invalid nodesize or leafsize"), SUPERBLOCK),
    (
        of("superblock", "unrecognized or unsupported super flag"),
        SUPERBLOCK,
    ),
    (
        of("file extent", "compressed extent exceeds 128 KiB"),
        COMPRESSED,
    ),
    (
        of("root tree", "failed to read tree root: no root item"),
        ROOT,
    ),
    (of("root item", "fs tree not referenced"), DELETED),
    (
        of(
            "extent",
            "owner ref check failed: backref revision is not the current one",
        ),
        REVISION,
    ),
];
const CHUNK: &str =
    "chunk, block group or device extent without its counterpart, chunks that overlap";
const SYSTEM_CHUNK: &str = "the item of a system chunk that is not the one of the superblock";
const SHARED: &str = "a pointer to a shared block with another generation, level or first key";
const POINTER: &str = "keys, generation or owner of a block that are not those of its pointer";
const LOG: &str = "a corrupt block of the log, but for its root";
const SUPERBLOCK: &str = "leaf size and flags of the superblock";
const RELOCATION: &str = "inodes and names of the data relocation tree";
const FREE_SPACE: &str = "keys, flags, places and number of free space items";
const ITEM: &str = "hash, key, type, flags, alignment, generation or lengths of an item";
const EXTREF: &str = "the hash in the key of an inode extref";
const ROOT: &str = "the offset in the key of a root item";
const DELETED: &str = "a subvolume in deletion without an orphan item";
const REVISION: &str = "the revision of references in the header of a block";
const COMPRESSED: &str = "a compressed extent of more than 128 KiB";
/// What is noticed where a chunk that the kernel takes from the superblock has another item: then [`CHUNK`] is
/// [`SYSTEM_CHUNK`].
const SYSTEM_CHUNK_NOTICE: Pattern = of("superblock", "sys_chunk_array mismatches the chunk tree");
/// Kinds that are errors because the kernel refuses to mount such a filesystem,
const NOT_MOUNTED: &[&str] = &[CHUNK, LOG, SUPERBLOCK];
/// and those because it refuses to read such a block or item, which the mount may do.
const NOT_READ: &[&str] = &[SHARED, POINTER, ITEM, ROOT];
/// What is found as well where items or blocks were refused: what they would have said is missing. The kinds are those
/// that it can follow from.
const CONSEQUENCES: &[(Pattern, &[&str])] = &[
    (
        of("free space", "no free space entry for unused range"),
        &[FREE_SPACE, ITEM],
    ),
    (
        of("free space", "block group has no free space info"),
        &[FREE_SPACE],
    ),
    (of("inode ref", "unresolved ref: ..."), &[ITEM, POINTER]),
    (of("root item", "unresolved ref: ..."), &[ITEM, POINTER]),
    (of("root item", "fs tree refs not found"), &[POINTER]),
    (
        of("qgroup", "counts for qgroup are different"),
        &[COMPRESSED, ITEM],
    ),
    (
        of(
            "extent",
            "backref was not found: ref mismatch on extent item",
        ),
        &[COMPRESSED, ITEM, ROOT],
    ),
    (of("extent", "incorrect local backref count"), &[ITEM]),
    (of("extent", "has no extent item"), &[ITEM, POINTER]),
    (of("extent", "bad full backref"), &[POINTER]),
    (
        of(
            "extent",
            "extent crosses the end of its block group or has none",
        ),
        &[ITEM, POINTER],
    ),
    (
        of("inode", "file extent discount: a hole without an item"),
        &[ITEM],
    ),
    (of("inode", "nbytes wrong"), &[ITEM, COMPRESSED]),
    (of("inode", "link count wrong"), &[ITEM]),
    (of("inode", "dir isize wrong"), &[ITEM]),
    (of("inode", "no inode item"), &[ITEM]),
    (of("inode", "some csum missing"), &[ITEM]),
    (
        of("csum item", "csum exists but there is no extent record"),
        &[ITEM, POINTER],
    ),
    (
        of(
            "block group",
            "block group used mismatches the extent items",
        ),
        &[ITEM, POINTER],
    ),
    (
        of("superblock", "super bytes used mismatches actual used"),
        &[ITEM, POINTER],
    ),
    (
        of(
            "superblock",
            "super num devices mismatches the device items",
        ),
        &[CHUNK],
    ),
    (
        of(
            "device",
            "dev extent's total-byte is not equal to byte-used",
        ),
        &[ROOT],
    ),
];
/// Begins the complaint of a check that could not begin.
const REFUSED: &str = "refused: ";
/// What the table is in.
const DOCUMENTED: &str = include_str!("../../../../docs/design/checking.md");

pub(super) fn images(paths: &[&Path]) -> Result<ImageSet> {
    let mut opened = Vec::new();
    for path in paths {
        opened.push(Image::open(path, ImageAccess::Read)?);
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
btrfs subvolume sync .
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

/// Changes that `fsync` makes durable without a commit, of some hundred files.
const SYNCED: &str = r"
cd $1
for number in $(seq 300); do
    echo $number > name$number
    setfattr -n user.name -v value$number name$number
    sync name$number
done
seq 20000 >> text
sync text
";

/// A filesystem that was in use when its device was copied.
fn logged() -> Result<Pool> {
    let pool = Pool::make(1, 160 << 10, &["-n", "4096"])?;
    pool.fill("")?;
    pool.copy_with_log(SYNCED)
}

#[test]
fn filesystem_with_a_log_is_clean() -> Result<()> {
    is_clean(&logged()?.paths())
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
    /// Whether platter notices a difference between the superblock and the items of system chunks.
    has_system_chunk_notice: bool,
    btrfs: Vec<String>,
    kernel: Kernel,
}

/// What the kernel says of an image.
enum Kernel {
    NotAsked,
    Reads,
    Refuses(Refusal),
}

impl Judged {
    fn differs(&self) -> bool {
        self.platter.is_empty() != self.btrfs.is_empty()
    }

    /// Whether the explanation is that the kernel refuses the image.
    fn needs_kernel(&self) -> bool {
        self.differs() && (self.is_one_of(NOT_MOUNTED) || self.is_one_of(NOT_READ))
    }

    /// Whether what the kernel refuses is what the explanation says.
    fn is_confirmed_by(&self, refusal: &Refusal) -> bool {
        match refusal {
            Refusal::Mount(_) => true,
            Refusal::Read(_) => self.is_one_of(NOT_READ),
        }
    }

    fn is_one_of(&self, kinds: &[&str]) -> bool {
        let explained = self.explain().unwrap_or_default();
        kinds.iter().any(|kind| explained.contains(kind))
    }

    /// The kinds of disagreement, or the complaints that are of no known kind.
    fn explain(&self) -> Result<BTreeSet<&'static str>, Vec<&String>> {
        let kind_of = |complaint: &String| {
            let row = EXPLAINED
                .iter()
                .find(|(pattern, _)| pattern.fits(complaint));
            match row.map(|(_, kind)| *kind) {
                Some(CHUNK) if self.has_system_chunk_notice => Some(SYSTEM_CHUNK),
                kind => kind,
            }
        };
        let kinds: BTreeSet<_> = self.platter.iter().filter_map(kind_of).collect();
        let follows = |complaint: &String| {
            let mut rows = CONSEQUENCES
                .iter()
                .filter(|(pattern, _)| pattern.fits(complaint));
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
    let mut explained: BTreeSet<&str> = EXPLAINED.iter().map(|(_, kind)| *kind).collect();
    explained.insert(SYSTEM_CHUNK);
    assert_eq!(explained, documented());
}

/// Judges a corrupted image; `None` if `btrfs check` does not survive it.
fn judge(corpus: &Corpus, number: u64) -> Result<Option<Judged>> {
    let paths: Vec<&Path> = corpus.images().iter().map(PathBuf::as_path).collect();
    let change = corpus.change(&mut Prng::new(number))?;
    let overwritten = change.apply(corpus.images())?;
    let asked = match btrfs::report(&paths) {
        Err(error) if error.is::<btrfs::Crash>() => None,
        asked => Some(asked?),
    };
    let checked = check(&paths);
    let (platter, notices) = match checked {
        Ok((report, findings)) => {
            assert_eq!(report.is_clean(), findings.errors().is_empty());
            (findings.errors(), findings.notices())
        }
        Err(error) => (vec![format!("{REFUSED}{error}")], Vec::new()),
    };
    let mut judged = Judged {
        number,
        change,
        platter,
        has_system_chunk_notice: notices
            .iter()
            .any(|notice| SYSTEM_CHUNK_NOTICE.fits(notice)),
        btrfs: Vec::new(),
        kernel: Kernel::NotAsked,
    };
    let is_judged = asked.is_some();
    if let Some((verdict, _)) = asked {
        judged.btrfs = verdict.complaints();
        if judged.needs_kernel() {
            judged.kernel = kernel::refuses(corpus)?.map_or(Kernel::Reads, Kernel::Refuses);
        }
    }
    overwritten.apply(corpus.images())?;
    Ok(is_judged.then_some(judged))
}

/// Judges the images that the variable names, or as many of the first ones as `btrfs check` survives. Returns what
/// differs in words, and how many disagreements have no explanation.
fn judge_all(corpora: &[Corpus], images: u64) -> Result<(String, u32)> {
    let named = std::env::var("PLATTER_BTRFS_VERDICTS").ok().map(|text| {
        let (first, end) = text.split_once("..").unwrap();
        first.parse().unwrap()..end.parse().unwrap()
    });
    let wanted = named
        .as_ref()
        .map_or(images, |named| named.end - named.start);
    let is_counted = named.is_none();
    for corpus in corpora {
        let refusal = kernel::refuses(corpus)?;
        assert!(refusal.is_none(), "of an intact filesystem: {refusal:?}");
    }
    let mut text = String::new();
    let (mut clean, mut broken, mut differing, mut unexplained) = (0, 0, 0, 0);
    let (mut judged_images, mut crashed, mut refused) = (0, 0, 0);
    for number in named.unwrap_or(0..u64::MAX) {
        if is_counted && judged_images == images {
            break;
        }
        let index = usize::try_from(number % corpora.len() as u64)?;
        let Some(judged) = judge(&corpora[index], number)? else {
            crashed += 1;
            assert!(crashed <= 1 + wanted / 50, "{crashed} crashes\n{text}");
            continue;
        };
        judged_images += 1;
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
        match &judged.kernel {
            Kernel::NotAsked => {}
            Kernel::Refuses(refusal) if judged.is_confirmed_by(refusal) => {
                refused += 1;
                writeln!(text, "    kernel: {refusal}")?;
            }
            Kernel::Refuses(refusal) => {
                unexplained += 1;
                writeln!(text, "    UNEXPLAINED: the kernel mounts it, and {refusal}")?;
            }
            Kernel::Reads => {
                unexplained += 1;
                writeln!(text, "    UNEXPLAINED: the kernel does not refuse it")?;
            }
        }
    }
    writeln!(
        text,
        "{judged_images} images: clean for both {clean}, for neither {broken}; {differing} disagreements, of which the \
         kernel confirms {refused}; {crashed} crashes"
    )?;
    Ok((text, unexplained))
}

#[test]
fn verdicts_on_corrupted_images_agree_or_are_explained() -> Result<()> {
    let plain = Pool::make(1, 160 << 10, &[])?;
    plain.fill("compress=lzo")?;
    let options = ["-m", "single", "-O", "^no-holes", "-R", "^free-space-tree"];
    let cached = Pool::make(1, 160 << 10, &options)?;
    cached.fill("space_cache")?;
    let (shared, logged) = (sharing()?, logged()?);
    let mut corpora = Vec::new();
    for pool in [&plain, &cached, &shared, &logged] {
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
