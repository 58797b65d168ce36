//! The check compared with `xfs_repair -n`: clean for both, or for neither, on clean and on corrupt images.
//!
//! Disagreements that `EXPLAINED` lists are documented; any other fails. `cargo xtask soak xfs --only xfs-verdicts`
//! judges 630; how many of each image: `PLATTER_XFS_VERDICTS`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use platter::block::Access as ImageAccess;
use platter::{DeviceRole, Image, MountOptions};
use platter_vfs::{CheckReport, Severity};
use rustix::fs::FallocateFlags;
use testkit::findings::Findings;
use testkit::fixtures::xfs_quota::{self, uses};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::prng::Prng;
use testkit::tool;

use super::corruption::Corrupter;
use super::printed::ask;
use super::trash::Trash;
use super::{population, version4};

/// How many corruptions each image gets.
const CORRUPTIONS: u64 = 22;
/// How many one of the other shapes gets.
const CORRUPTIONS_OF_OTHERS: u64 = 6;
/// How many of these `xfs_db` makes.
const TRASHINGS: u64 = 12;

/// What `xfs_repair -n` does not complain of: how a complaint begins and ends, and its kind in the table of
/// `docs/design/checking.md`, which says why.
const EXPLAINED: &[(&str, &str, &str)] = &[
    ("attribute leaf", "bad CRC", LEAF),
    ("attribute leaf", "bad UUID", LEAF),
    ("attribute leaf", "bad owner", LEAF),
    ("hash tree node", "bad CRC", LEAF),
    ("hash tree node", "bad UUID", LEAF),
    ("hash tree node", "bad owner", LEAF),
    ("reverse mapping", "unknown reverse-mapping record", MAPPING),
    ("hash tree node", "bad sibling pointers", SIBLING),
    ("remote attribute value", "bad owner", VALUE),
    ("remote attribute value", "bad offset", VALUE),
    ("inode", "padding is not zero", PADDING),
    (
        "B-tree block",
        "key does not match the block it points to",
        KEY,
    ),
    ("B-tree block", "bad sibling pointers", KEY),
    ("AGFL", "bad UUID", FREE_LIST),
    ("AGFL", "bad magic number", FREE_LIST),
    ("AGFL", "bad sequence number", FREE_LIST),
    ("log", "metadata LSN is ahead of log", AHEAD),
    ("extent record", "blocks lie outside the filesystem", BLOCK),
    (
        "superblock",
        "unknown features enabled or corrupted feature masks",
        COPY,
    ),
    ("non-null quota flags in superblock", "", QUOTA),
    ("non-null user quota inode field in superblock", "", QUOTA),
    ("non-null group quota inode field in superblock", "", QUOTA),
    (
        "non-null project quota inode field in superblock",
        "",
        QUOTA,
    ),
    (
        "Superblock earlier than Version 5 has XFS_{P|G}QUOTA_{ENFD|CHKD} bits.",
        "",
        QUOTA,
    ),
];
/// What `xfs_repair` says where it skips a group because of its copy of the superblock, of what it does not see there.
const SKIPPED_GROUP: &[(&str, &str)] = &[
    ("would reset bad sb for ag ", ""),
    ("bad uncorrected agheader ", ", skipping ag..."),
    ("Metadata corruption detected at ", "/0x200"),
    ("sb_icount ", ""),
    ("sb_ifree ", ""),
    ("sb_fdblocks ", ""),
    ("", ": Badness in key lookup (length)"),
    ("bp=(bno ", ")"),
    ("imap claims in-use inode ", ", would correct imap"),
    ("found inodes not in the inode allocation tree", ""),
];
const LEAF: &str = "checksum, UUID or owner of a hash tree node, or of an attribute leaf below one";
const MAPPING: &str = "reverse mappings of extents that no file has, or longer than those of files";
const SIBLING: &str = "siblings of a hash tree node";
const KEY: &str = "keys and siblings of B-trees of groups";
const VALUE: &str = "owner or offset of a block of an attribute's value";
const PADDING: &str = "padding of an inode";
const FREE_LIST: &str = "magic number, UUID or sequence number of a free list";
const AHEAD: &str = "log sequence number of a B-tree block, ahead of the log";
const BLOCK: &str = "block numbers with high bits that lie outside the filesystem";
const COPY: &str = "unknown features of version 4 in a copy of the superblock";
const QUOTA: &str = "quota inodes or flags in a copy of the superblock";
/// What the table is in.
const DOCUMENTED: &str = include_str!("../../../../docs/design/checking.md");

/// Checks an image.
fn check(image: &Path, log: Option<&Path>) -> Result<(CheckReport, Findings)> {
    let image = Image::open(image, ImageAccess::Read)?;
    let options = match log {
        Some(log) => MountOptions::new().device(DeviceRole::Log, log),
        None => MountOptions::new(),
    };
    let mut findings = Findings::default();
    let report = options.check(&image, &mut findings)?;
    Ok((report, findings))
}

/// What is found in an image.
pub(super) fn findings_in(image: &Path) -> Result<Vec<String>> {
    let (_, findings) = check(image, None)?;
    Ok(findings
        .0
        .iter()
        .map(|found| format!("{found:?}"))
        .collect())
}

/// The texts of the errors that are found in an image.
pub(super) fn errors_in(image: &Path) -> Result<Vec<String>> {
    Ok(check(image, None)?.1.errors())
}

/// A filesystem that `xfs_repair` finds clean is clean here.
pub(super) fn assert_clean(image: &Path, log: Option<&Path>) -> Result<()> {
    let images: Vec<&Path> = std::iter::once(image).chain(log).collect();
    assert_eq!(xfs::check(&images)?, Verdict::Clean);
    let (report, findings) = check(image, log)?;
    assert!(report.is_clean() && findings.0.is_empty(), "{findings:?}");
    Ok(())
}

/// What `xfs_repair` 6.1 says of names of one hash in several leaves.
const HASH_IN_SEVERAL_LEAVES: &[&str] = &[
    "directory block hashvalue inconsistency, expected > 952692595 / saw 952692595",
    "bad directory block in inode",
    "bad hash path in directory",
    "bad hash table for directory inode",
    "would rebuild directory inode",
];

/// A filesystem that was filled is clean here; for `xfs_repair`, too, but for names of one hash in several leaves,
/// which version 6.1 takes for a corruption, and the kernel does not.
pub(super) fn assert_filled_is_clean(images: &[&Path]) -> Result<()> {
    let (report, findings) = check(images[0], images.get(1).copied())?;
    assert!(report.is_clean() && findings.0.is_empty(), "{findings:?}");
    let (verdict, text) = xfs::report(images)?;
    let is_known = |line: &String| {
        HASH_IN_SEVERAL_LEAVES
            .iter()
            .any(|known| line.contains(known))
    };
    match verdict {
        Verdict::Clean => {}
        Verdict::NotClean(lines)
            if lines.iter().all(is_known)
                && lines
                    .iter()
                    .any(|line| line.contains(HASH_IN_SEVERAL_LEAVES[0])) => {}
        Verdict::NotClean(_) | Verdict::Refused(_) => panic!("{text}"),
    }
    Ok(())
}

/// The kinds of a disagreement, by the complaints of the only one that has some: all of them must be known, or those
/// that are not are returned.
fn explanation(complaints: &[String]) -> Result<BTreeSet<&'static str>, Vec<String>> {
    let mut kinds = BTreeSet::new();
    let (mut left, mut follows) = (Vec::new(), Vec::new());
    for complaint in complaints {
        let is_of =
            |begin: &str, end: &str| complaint.starts_with(begin) && complaint.ends_with(end);
        let row = EXPLAINED.iter().find(|(begin, end, _)| is_of(begin, end));
        match row {
            Some((_, _, kind)) => {
                kinds.insert(*kind);
            }
            None if SKIPPED_GROUP.iter().any(|(begin, end)| is_of(begin, end)) => {
                follows.push(complaint.clone());
            }
            None => left.push(complaint.clone()),
        }
    }
    if !kinds.contains(QUOTA) {
        left.append(&mut follows);
    }
    if left.is_empty() {
        Ok(kinds)
    } else {
        Err(left)
    }
}

/// The kinds that the table of the documentation lists.
fn documented() -> BTreeSet<&'static str> {
    let section = DOCUMENTED.split("## XFS\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let kinds = rows.filter_map(|row| row.split(" | ").next());
    kinds.filter(|kind| *kind != "kind").collect()
}

#[test]
fn explained_disagreements_of_xfs_are_documented() {
    let explained: BTreeSet<&str> = EXPLAINED.iter().map(|(_, _, kind)| *kind).collect();
    assert!(explained.is_subset(&documented()), "{explained:?}");
}

/// What was done to an image.
pub(super) struct Change {
    pub(super) what: String,
    /// Where other bytes were, and which.
    pub(super) before: Vec<(u64, Vec<u8>)>,
}

/// Corrupts structures that are found by their magic numbers, and compares the verdicts.
fn agree_on_corruptions(
    corpus: &Corpus,
    seed: &str,
    count: u64,
) -> Result<BTreeMap<&'static str, u32>> {
    let image = &corpus.image;
    let corrupter = Corrupter::of(std::fs::read(image)?);
    let file = File::options().write(true).open(image)?;
    let corrupt = |prng: &mut Prng| {
        let corruption = corrupter.corrupt(prng);
        file.write_all_at(&corruption.bytes, corruption.at)?;
        let what = corruption.to_string();
        let before = vec![(corruption.at, corruption.before)];
        Ok(Change { what, before })
    };
    agree(corpus, seed, count, corrupt)
}

/// Has `xfs_db` corrupt an image, and compares the verdicts.
fn agree_on_trash(corpus: &Corpus, seed: &str) -> Result<BTreeMap<&'static str, u32>> {
    let trash = Trash::of(&corpus.image)?;
    agree(corpus, seed, TRASHINGS, |prng| trash.corrupt(prng))
}

/// Corrupts an image again and again, and compares the verdicts. Returns how often they were which.
fn agree(
    corpus: &Corpus,
    seed: &str,
    count: u64,
    corrupt: impl Fn(&mut Prng) -> Result<Change>,
) -> Result<BTreeMap<&'static str, u32>> {
    assert_clean(&corpus.image, None)?;
    let count = count_of_long_run()?.unwrap_or(count);
    let image = &*corpus.image;
    let file = File::options().write(true).open(image)?;
    let mut unexplained = Vec::new();
    let mut tally = BTreeMap::new();
    for nth in 0..count {
        let mut prng = Prng::named(format!("{seed} {nth}").as_bytes());
        let change = corrupt(&mut prng)?;
        let checked = check(image, None);
        let verdict = xfs::judge_corrupted(&[image]);
        for (at, bytes) in &change.before {
            file.write_all_at(bytes, *at)?;
        }
        let ours = match checked {
            Ok((report, findings)) => {
                assert_eq!(report.is_clean(), findings.errors().is_empty());
                findings.errors()
            }
            Err(error) => vec![format!("refused: {error}")],
        };
        let theirs = verdict
            .with_context(|| change.what.clone())?
            .map(Verdict::complaints);
        let what = match (&ours[..], theirs.as_deref()) {
            (_, None) => "xfs_repair died",
            ([], Some([])) => "clean for both",
            ([_, ..], Some([_, ..])) => "clean for neither",
            (found, Some([])) | ([], Some(found)) => match explanation(found) {
                Ok(kinds) => kinds.first().copied().expect("a complaint has a kind"),
                Err(left) => {
                    let by = if ours.is_empty() {
                        "xfs_repair"
                    } else {
                        "platter"
                    };
                    let left = left[..left.len().min(12)].join("; ");
                    unexplained.push(format!("{seed} {nth}: {}\n    {by}: {left}", change.what));
                    "UNEXPLAINED"
                }
            },
        };
        *tally.entry(what).or_insert(0) += 1;
    }
    ensure!(
        unexplained.is_empty(),
        "{tally:?}\n{}",
        unexplained.join("\n")
    );
    let total: u32 = tally.values().sum();
    let unjudged = tally.get("xfs_repair died").copied().unwrap_or_default();
    assert!(unjudged <= 1 + total / 50, "{tally:?}");
    Ok(tally)
}

/// How many corruptions a long run makes of each image.
fn count_of_long_run() -> Result<Option<u64>> {
    let named = std::env::var("PLATTER_XFS_VERDICTS").ok();
    Ok(named.map(|count| count.parse()).transpose()?)
}

/// An image to corrupt.
struct Corpus {
    _dir: tempfile::TempDir,
    image: PathBuf,
}

impl Corpus {
    /// An image that the kernel fills.
    fn filled_by(options: &[&str], fill: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        xfs::make(&image, 96 << 10, options)?;
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
        fill(mount.root()).context("filling")?;
        // `xfs_repair` 6.1 does not find names of one hash in several leaves.
        std::fs::remove_dir_all(mount.root().join("directories/same"))?;
        mount.unmount_all(&[&image])?;
        Ok(Self { _dir: dir, image })
    }

    fn filled(options: &[&str]) -> Result<Self> {
        let fill = |root: &Path| population::fill(root, false);
        Self::filled_by(options, fill)
    }

    fn of_version_4() -> Result<Self> {
        let source = version4::source()?;
        let image = version4::make(&source, &["-n", "ftype=0"])?;
        Ok(Self {
            _dir: source.into_dir(),
            image,
        })
    }

    /// With quota, which the kernel here does not know.
    fn of_quota() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        xfs_quota::make(&image, 96 << 10, &uses())?;
        Ok(Self { _dir: dir, image })
    }

    /// With chunks of inodes that have holes.
    fn of_sparse_inodes() -> Result<Self> {
        let corpus = Self::filled_by(&["-i", "sparse=1"], |root| {
            leave_pieces(root)?;
            population::fill(root, false)
        })?;
        assert!(has_holes(&corpus.image)?, "no chunk is sparse");
        Ok(corpus)
    }
}

/// Blocks of a piece of free space: an aligned half of a chunk of inodes fits, and no aligned chunk.
const PIECE: u64 = 7;
/// Blocks that are free besides, and more inodes than fit into what is left there.
const RESERVE: u64 = 64;
const INODES: usize = 3000;

/// Leaves free space in pieces, each of so many blocks of 16, and makes inodes in them.
fn leave_pieces(root: &Path) -> Result<()> {
    // Space that is reserved for the superuser would be left in one piece.
    let mut io = tool::command("xfs_io");
    tool::succeed(io.args(["-x", "-c", "resblks 1"]).arg(root))?;
    let block = rustix::fs::statvfs(root)?.f_bsize;
    let filler = File::create(root.join("filler"))?;
    let free = rustix::fs::statvfs(root)?.f_bavail.saturating_sub(RESERVE);
    rustix::fs::fallocate(&filler, FallocateFlags::empty(), 0, free * block)?;
    let blocks = filler.metadata()?.len() / block;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for at in (0..blocks).step_by(16) {
        rustix::fs::fallocate(&filler, punch, at * block, PIECE * block)?;
    }
    let dir = root.join("inodes");
    std::fs::create_dir(&dir)?;
    for number in 0..INODES {
        File::create(dir.join(number.to_string()))?;
    }
    // Space for contents.
    filler.set_len(blocks / 2 * block)?;
    Ok(())
}

/// Whether the first block of a tree of inodes has a record with holes.
fn has_holes(image: &Path) -> Result<bool> {
    for group in 0..4 {
        let commands = [format!("agi {group}"), "addr root".into(), "print".into()];
        let text = ask(image, &commands)?;
        let mut holes = text
            .split(":[")
            .skip(1)
            .filter_map(|record| record.split(',').nth(1));
        if holes.any(|holes| !matches!(holes, "0" | "0x0")) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn xfs_check_agrees_on_corruptions_of_version_5() -> Result<()> {
    let corpus = Corpus::filled(&["-m", "rmapbt=1,reflink=1"])?;
    println!("{:?}", agree_on_corruptions(&corpus, "rmap", CORRUPTIONS)?);
    println!("{:?}", agree_on_trash(&corpus, "trash")?);
    Ok(())
}

#[test]
fn xfs_check_agrees_on_corruptions_of_small_blocks() -> Result<()> {
    let small = ["-b", "size=1024", "-n", "size=4096", "-i", "sparse=0"];
    let corpus = Corpus::filled(&small)?;
    println!("{:?}", agree_on_corruptions(&corpus, "small", CORRUPTIONS)?);
    Ok(())
}

#[test]
fn xfs_check_agrees_on_corruptions_of_version_4() -> Result<()> {
    let corpus = Corpus::of_version_4()?;
    let agreed = agree_on_corruptions(&corpus, "version 4", CORRUPTIONS)?;
    println!("{agreed:?}");
    println!("{:?}", agree_on_trash(&corpus, "trash of version 4")?);
    Ok(())
}

type MakeCorpus = fn() -> Result<Corpus>;

/// Other images. Normal tests take the first one.
const OTHERS: [(&str, MakeCorpus); 4] = [
    ("quota", Corpus::of_quota),
    ("sparse inodes", Corpus::of_sparse_inodes),
    ("directory blocks of 64 KiB", || {
        Corpus::filled(&["-n", "size=65536"])
    }),
    ("all features, blocks of 1 KiB", || {
        Corpus::filled(&[
            "-b",
            "size=1024",
            "-m",
            "rmapbt=1,reflink=1",
            "-i",
            "nrext64=1",
        ])
    }),
];

#[test]
fn xfs_check_agrees_on_corruptions_of_other_shapes() -> Result<()> {
    let others = match count_of_long_run()? {
        Some(_) => &OTHERS[..],
        None => &OTHERS[..1],
    };
    let mut failures = Vec::new();
    for (name, make) in others {
        let agreed = agree_on_corruptions(&make()?, name, CORRUPTIONS_OF_OTHERS);
        match agreed {
            Ok(agreed) => println!("{name}: {agreed:?}"),
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// The log of a filesystem in use: `xfs_repair -n` ignores it and says so; here it is replayed first.
#[test]
fn xfs_check_sees_the_filesystem_after_its_log() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs::make(&image, 64 << 10, &["-m", "rmapbt=1,reflink=1"])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    for number in 0..300 {
        std::fs::write(mount.root().join(format!("file-{number}")), b"contents")?;
    }
    let mut io = tool::command("xfs_io");
    io.args(["-x", "-c", "shutdown -f"]).arg(mount.root());
    tool::succeed(&mut io)?;
    drop(mount);
    // The kernel has released the image once its device is gone.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(matches!(xfs::check(&[&image])?, Verdict::Refused(_)));
    let before = std::fs::read(&image)?;
    let (report, findings) = check(&image, None)?;
    assert!(report.is_clean(), "{findings:?}");
    let [notice] = &findings.0[..] else {
        panic!("{findings:?}");
    };
    assert_eq!(
        (notice.severity, notice.corruption.structure),
        (Severity::Notice, "log")
    );
    assert!(before == std::fs::read(&image)?, "the image was changed");
    Ok(())
}
