//! The check beside `btrfs check --readonly`: clean for both, or for neither.
//!
//! Where they disagree for a reason, `EXPLAINED` states it; any other disagreement fails. More corrupted
//! images, or one again: `PLATTER_BTRFS_VERDICTS=FIRST..END`, before
//! `cargo test -p testkit --test oracle btrfs::check::verdicts -- --nocapture`.

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;
use platter::block::Access;
use platter::{DeviceRole, Image, ImageSet, OpenOptions};
use platter_btrfs::MountOptions;
use platter_vfs::{CheckReport, CheckSink, Finding, Severity};
use testkit::fixtures::catalogue;
use testkit::fs_type::FsType;
use testkit::oracle::btrfs;
use testkit::prng::Prng;

use super::corrupt::{Change, Corpus};
use super::image::{Pool, mount};

/// Corrupted images of a test run.
const IMAGES: u64 = 60;

/// What only one of the two complains of, by a part of the complaint, and why.
const EXPLAINED: &[(&str, &str, &str)] = &[
    ("platter", "did not find the related", PRINTED),
    ("platter", "chunk mismatches its block group", PRINTED),
    (
        "platter",
        "pointers to a shared block disagree",
        ONE_POINTER,
    ),
    (
        "platter",
        "first key is not that of the pointer",
        ONE_POINTER,
    ),
    ("platter", "keys reach beyond the next pointer", ONE_POINTER),
    ("platter", "tree 18446744073709551607", RELOCATION),
    ("platter", "invalid encryption or encoding", ITEM),
    ("platter", "free space item at", ITEM),
];
/// Reasons.
const PRINTED: &str = "btrfs check prints it and exits with 0; the kernel refuses to mount";
const ONE_POINTER: &str = "btrfs check does not compare it; the kernel refuses the block";
const RELOCATION: &str = "btrfs check skips names of the data relocation tree";
const ITEM: &str = "btrfs check does not read the field";

/// The findings of a check.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

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

fn check(paths: &[&Path]) -> Result<(CheckReport, Vec<Finding>)> {
    let mut findings = Findings::default();
    let report = OpenOptions::new().check(images(paths)?, &mut findings)?;
    Ok((report, findings.0))
}

fn errors(findings: &[Finding]) -> Vec<String> {
    let errors = findings.iter().filter(|it| it.severity != Severity::Notice);
    errors
        .map(|finding| finding.corruption.to_string())
        .collect()
}

/// Both find nothing.
pub(super) fn is_clean(paths: &[&Path]) -> Result<()> {
    let (verdict, text) = btrfs::report(paths)?;
    assert!(verdict.is_clean(), "{text}");
    let (report, findings) = check(paths)?;
    assert!(report.is_clean(), "{:#?}", errors(&findings));
    Ok(())
}

/// Snapshots that share subtrees, quota groups of two levels, deleted and moved blocks.
const SHARING: &str = r#"
btrfs quota enable .
btrfs subvolume create sub
cp -a names text large sub/
btrfs qgroup create 1/7 .
btrfs qgroup assign 0/256 1/7 .
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
btrfs quota rescan -w .
btrfs qgroup show -p . | grep -q '^1/7'
echo more >> snap1/text
"#;

fn sharing() -> Result<Pool> {
    let pool = Pool::make(1, 300 << 10, &["-n", "4096"])?;
    pool.fill("compress=zstd")?;
    pool.run_at_path("rw", SHARING)?;
    Ok(pool)
}

#[test]
fn fixtures_of_the_catalogue_are_clean() -> Result<()> {
    let mut count = 0;
    for fixture in catalogue::others() {
        if fixture.fs_type == FsType::Btrfs {
            let built = fixture.build()?;
            is_clean(&[&built.image])?;
            count += 1;
        }
    }
    assert!(count >= 7, "{count}");
    Ok(())
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
    let script = r#"
btrfs subvolume create gone
cp -a names links text gone/
btrfs subvolume snapshot gone kept
sync -f .
btrfs subvolume delete --commit-after gone
cp --sparse=always IMAGE COPY
"#;
    let copy = Pool::empty(1)?;
    let script = script
        .replace("IMAGE", pool.images[0].to_str().unwrap())
        .replace("COPY", copy.images[0].to_str().unwrap());
    pool.run_at_path("commit=300", &script)?;
    let btrfs = mount(&copy.devices()?, &MountOptions::default())?;
    let deleted = btrfs.super_block().context.deleted_subvolumes()?;
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

    /// Why only one of the two complains; `None` if that is not known.
    fn explanation(&self) -> Option<&'static str> {
        let (by, complaints) = if self.platter.is_empty() {
            ("btrfs", &self.btrfs)
        } else {
            ("platter", &self.platter)
        };
        let explains = |complaint: &String| {
            let row = EXPLAINED
                .iter()
                .find(|(only, part, _)| *only == by && complaint.contains(part));
            row.map(|(_, _, reason)| *reason)
        };
        // What else it complains of follows from that.
        complaints.iter().find_map(explains)
    }
}

fn judge(corpus: &Corpus, number: u64) -> Result<Judged> {
    let path = corpus.path();
    let change = corpus.change(&mut Prng::new(number));
    let file = std::fs::File::options().write(true).open(path)?;
    for (at, bytes) in &change.writes {
        file.write_all_at(bytes, *at)?;
    }
    let asked = btrfs::report(&[path]);
    let checked = check(&[path]);
    for (at, bytes) in &change.writes {
        file.write_all_at(&corpus.original(*at, bytes.len())?, *at)?;
    }
    let btrfs = match asked {
        Ok((verdict, _)) => verdict.complaints(),
        // It does not survive everything.
        Err(error) => vec![format!("crashed: {error}")],
    };
    let platter = match checked {
        Ok((report, findings)) => {
            assert_eq!(report.is_clean(), errors(&findings).is_empty());
            errors(&findings)
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

#[test]
fn verdicts_on_corrupted_images_agree_or_are_explained() -> Result<()> {
    let numbers = std::env::var("PLATTER_BTRFS_VERDICTS").map_or(0..IMAGES, |text| {
        let (first, end) = text.split_once("..").unwrap();
        first.parse().unwrap()..end.parse().unwrap()
    });
    let plain = Pool::make(1, 160 << 10, &[])?;
    plain.fill("compress=lzo")?;
    let options = ["-m", "single", "-O", "^no-holes", "-R", "^free-space-tree"];
    let cached = Pool::make(1, 160 << 10, &options)?;
    cached.fill("space_cache")?;
    let shared = sharing()?;
    let mut corpora = Vec::new();
    for pool in [&plain, &cached, &shared] {
        corpora.push(Corpus::new(&pool.images[0])?);
    }
    let (mut clean, mut broken, mut differing, mut unexplained) = (0, 0, 0, 0);
    for number in numbers {
        let index = usize::try_from(number % corpora.len() as u64)?;
        let judged = judge(&corpora[index], number)?;
        clean += u32::from(judged.platter.is_empty() && judged.btrfs.is_empty());
        broken += u32::from(!judged.platter.is_empty() && !judged.btrfs.is_empty());
        if !judged.differs() {
            continue;
        }
        differing += 1;
        println!("image {} of {index}: {}", judged.number, judged.change.text);
        for line in judged.platter.iter().take(6) {
            println!("    platter: {line}");
        }
        for line in judged.btrfs.iter().take(6) {
            println!("    btrfs: {line}");
        }
        match judged.explanation() {
            Some(reason) => println!("    explained: {reason}"),
            None => {
                unexplained += 1;
                println!("    UNEXPLAINED");
            }
        }
    }
    println!("clean for both {clean}, for neither {broken}; {differing} disagreements");
    assert_eq!(unexplained, 0, "disagreements without an explanation");
    Ok(())
}
