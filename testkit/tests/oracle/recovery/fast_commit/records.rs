//! Records that were changed or made up, and fast commits that are not whole.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use anyhow::{Result, ensure};
use platter_ext4::ondisk::InodeNr;
use platter_ext4::ondisk::inode::InodeRule;
use platter_ext4::ondisk::jbd2::fast_commit::{FastCommitRule, continue_crc};
use platter_ext4::recovery::{Onto, open_journal};
use platter_ondisk::Rule;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, e2fsck};
use testkit::prng::Prng;

use super::crash::crash_in_place;
use super::{fsync, make, set_quota, superblock_of};
use crate::recovery::{Cut, Scene};

/// The magic number in the tail of a block of the orphan file.
const ORPHAN_MAGIC: [u8; 4] = 0x0b10_ca04u32.to_le_bytes();

/// The records that are left of a cut in which one byte of the fast commit area was changed.
fn records_after(cut: &Cut, block: usize, offset: usize, resealed: bool) -> Result<u64> {
    let changed = changed(cut, block, offset, resealed);
    Ok(changed.recover()?.report.fast_commits.records)
}

/// A cut in which one byte of the fast commit area was changed.
fn changed(cut: &Cut, block: usize, offset: usize, resealed: bool) -> Cut {
    let mut image = cut.image.clone();
    let bytes = &mut image[block..block + 1024];
    bytes[offset] ^= 0x40;
    if resealed {
        seal(bytes);
    }
    Cut {
        image,
        journal: None,
    }
}

#[test]
fn fast_commits_end_where_one_is_not_whole() -> Result<()> {
    let scene = make(&["-b", "1024"])?;
    let cuts = scene.cuts("", |root, _| {
        // The kernel begins fast commits only after a transaction.
        std::fs::write(root.join("zero"), "zero")?;
        rustix::fs::syncfs(File::open(root)?)?;
        for name in ["one", "two", "three"] {
            std::fs::write(root.join(name), name)?;
            fsync(&root.join(name))?;
        }
        Ok(())
    })?;
    let cut = cuts.last().expect("the cut at the end");
    let all = cut.recover()?.report.fast_commits;
    ensure!(all.fast_commits == 3, "{all:?}");
    let places = cut.fast_commit_blocks()?;
    // An incomplete one ends them, except the first one, which is refused.
    let torn = changed(cut, places[0], 30, false);
    let refused = torn.recover().err().map(|error| error.to_string());
    let says_why = |error: String| error.contains(FastCommitRule::First.text());
    ensure!(refused.is_some_and(says_why) && torn.recovered_by_kernel().is_err());
    let first = records_after(cut, places[1], 30, false)?;
    let second = records_after(cut, places[2], 30, false)?;
    ensure!(0 < first && first < second && second < all.records);
    // Those after another transaction are left over from an earlier time.
    let head_sequence = 4 + 4;
    ensure!(records_after(cut, places[0], head_sequence, true)? == 0);
    // A feature of the records that is unknown is refused.
    let head_features = 4;
    ensure!(records_after(cut, places[0], head_features, true).is_err());
    Ok(())
}

/// Records changed at random, with their CRC updated.
#[test]
fn changed_records_never_panic() -> Result<()> {
    let scene = Scene::make(
        9 << 10,
        &["-t", "ext4", "-O", "fast_commit", "-J", "size=2"],
    )?;
    let cuts = scene.cuts("", |root, _| {
        std::fs::create_dir(root.join("subdir"))?;
        std::fs::write(root.join("subdir/a"), "a")?;
        std::fs::write(root.join("subdir/b"), "b")?;
        rustix::fs::syncfs(File::open(root)?)?;
        std::fs::remove_file(root.join("subdir/b"))?;
        std::fs::hard_link(root.join("subdir/a"), root.join("subdir/c"))?;
        std::fs::create_dir(root.join("made"))?;
        let file = File::create(root.join("made/file"))?;
        for index in 0..6 {
            file.write_all_at(b"piece", index * 9000)?;
        }
        file.set_len(20_000)?;
        Ok(file.sync_all()?)
    })?;
    let cut = cuts.last().expect("the cut at the end");
    ensure!(
        cut.recover()?.report.fast_commits.records > 0,
        "no fast commit"
    );
    let places = cut.fast_commit_blocks()?;
    let block = *places.first().expect("a fast commit block");
    let (mut prng, mut accepted) = (Prng::named(b"changed records"), 0);
    for _ in 0..400 {
        let mut image = cut.image.clone();
        let bytes = &mut image[block..block + 1024];
        for _ in 0..=prng.below(3) {
            let record = records(bytes).nth(usize::try_from(prng.below(12))?);
            let (at, length) = record.unwrap_or((0, 12));
            let offset = at + 4 + usize::try_from(prng.below(length.max(5) as u64 - 4))?;
            bytes[offset] = match prng.below(3) {
                0 => bytes[offset] ^ (1 << prng.below(8)),
                1 => 0xff,
                _ => u8::try_from(prng.below(256))?,
            };
        }
        seal(bytes);
        let changed = Cut {
            image,
            journal: None,
        };
        if let Ok(recovered) = changed.recover() {
            accepted += u32::from(recovered.report.fast_commits.records > 0);
        }
    }
    ensure!(
        accepted > 20,
        "only {accepted} changed fast commits were taken for whole"
    );
    Ok(())
}

/// Where the records of a block begin, and how long they are.
fn records(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let length = bytes.get(at + 2..at + 4)?;
        let length = 4 + usize::from(u16::from_le_bytes([length[0], length[1]]));
        let record = (at, length.min(bytes.len() - at));
        at += length;
        Some(record)
    })
}

/// Puts the right CRC into the first tail.
fn seal(bytes: &mut [u8]) {
    let mut crc = 0;
    let found: Vec<_> = records(bytes).collect();
    for (at, length) in found {
        if bytes[at] == 8 && length >= 12 {
            crc = continue_crc(crc, &bytes[at..at + 8]);
            bytes[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
            return;
        }
        crc = continue_crc(crc, &bytes[at..at + length]);
    }
}

/// A cut whose only fast commit is these records, by tag and value.
fn with_records(cut: &Cut, records: &[(u16, Vec<u8>)]) -> Result<Cut> {
    let mut image = cut.image.clone();
    let places = cut.fast_commit_blocks()?;
    let block = *places.first().expect("a fast commit block");
    // The head stays as the kernel wrote it; it names the transaction.
    let sequence = image[block + 8..block + 12].to_vec();
    let mut at = block + 12;
    let tail = (8, [sequence, vec![0; 4]].concat());
    for (tag, value) in records.iter().chain([&tail]) {
        let length = u16::try_from(value.len())?;
        let bytes = [&tag.to_le_bytes()[..], &length.to_le_bytes(), value].concat();
        image[at..at + bytes.len()].copy_from_slice(&bytes);
        at += bytes.len();
    }
    seal(&mut image[block..block + 1024]);
    Ok(Cut {
        image,
        journal: None,
    })
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn entry(parent: u32, inode: u32, name: &str) -> Vec<u8> {
    [&numbers(&[parent, inode])[..], name.as_bytes()].concat()
}

/// An extent of one block for a file.
fn range(inode: u32, first: u32, start: u32) -> Vec<u8> {
    [
        &numbers(&[inode, first])[..],
        &[1, 0, 0, 0],
        &start.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn impossible_records_are_refused_by_rule() -> Result<()> {
    let scene = make(&["-b", "1024"])?;
    let mut inodes = BTreeMap::new();
    let cuts = scene.cuts("", |root, _| {
        std::fs::write(root.join("file"), "f")?;
        std::fs::create_dir(root.join("subdir"))?;
        // Short enough to lie in its inode, which then has no extents.
        symlink("target", root.join("link"))?;
        rustix::fs::syncfs(File::open(root)?)?;
        std::fs::write(root.join("later"), "l")?;
        fsync(&root.join("later"))?;
        for name in ["file", "subdir", "link"] {
            let inode = root.join(name).symlink_metadata()?.ino();
            inodes.insert(name, u32::try_from(inode)?);
        }
        Ok(())
    })?;
    let cut = cuts.last().expect("the cut at the end");
    let (file, link, unused) = (inodes["file"], inodes["link"], 200);
    let refused_by = |records: &[(u16, Vec<u8>)], rule: &str| -> Result<()> {
        let error = with_records(cut, records)?.recover().err();
        let text = error.map_or_else(String::new, |error| error.to_string());
        ensure!(text.contains(rule), "{rule}: got '{text}'");
        Ok(())
    };
    let refused = |record, rule: FastCommitRule| refused_by(&[record], rule.text());
    refused((1, range(file, 5, 1 << 30)), FastCommitRule::Range)?;
    refused((1, range(file, u32::MAX, 5000)), FastCommitRule::Range)?;
    refused((1, range(link, 5, 5000)), FastCommitRule::NoExtents)?;
    refused((3, entry(2, unused, "new")), FastCommitRule::Missing)?;
    refused((4, entry(2, file, "a/b")), FastCommitRule::Name)?;
    refused((4, entry(2, file, "..")), FastCommitRule::Name)?;
    let mut inode = numbers(&[u32::MAX]);
    inode.extend([0; 128]);
    refused((6, inode), FastCommitRule::Inode)?;
    let mut no_type = made(unused, "x");
    no_type[0].1[4..6].copy_from_slice(&0o17_0644u16.to_le_bytes());
    refused_by(&no_type, InodeRule::Mode.text())?;
    // What is not there any more was undone by what came later.
    let passed_over = [
        (1, range(unused, 5, 5000)),
        (2, numbers(&[unused, 0, 1])),
        (4, entry(2, unused, "name")),
        (4, entry(unused, file, "name")),
        (4, entry(file, file, "name")),
        (5, entry(2, unused, "name")),
        (5, entry(2, file, "no such name")),
        (4, entry(2, file, "file")),
    ];
    let recovered = with_records(cut, &passed_over)?.recover()?;
    ensure!(recovered.report.fast_commits.records == 2 + passed_over.len() as u64);
    let verdict = e2fsck::check(&recovered.save()?.image())?;
    ensure!(verdict == Verdict::Clean, "{verdict:?}");
    Ok(())
}

/// The orphan file may have any numbers, such as that of the journal.
#[test]
fn orphan_file_makes_no_inode_a_file() -> Result<()> {
    let scene = make(&["-b", "1024", "-O", "orphan_file,^metadata_csum"])?;
    let mut orphan = 0;
    let cuts = scene.cuts("", |root, _| {
        let open = File::create(root.join("open"))?;
        orphan = u32::try_from(open.metadata()?.ino())?;
        std::fs::remove_file(root.join("open"))?;
        rustix::fs::syncfs(File::open(root)?)?;
        std::fs::write(root.join("later"), "l")?;
        fsync(&root.join("later"))
    })?;
    let mut cut = with_records(
        cuts.last().expect("the cut at the end"),
        &[(2, numbers(&[InodeNr::JOURNAL.get(), 0, 9]))],
    )?;
    // In the orphan file, and as it is in the log.
    let mut slots = 0;
    for block in cut.image.chunks_mut(1024) {
        if block[..4] == orphan.to_le_bytes() && block[1016..1020] == ORPHAN_MAGIC {
            block[..4].copy_from_slice(&InodeNr::JOURNAL.get().to_le_bytes());
            slots += 1;
        }
    }
    ensure!(slots > 0, "no slot of the orphan file");
    let recovered = cut.recover()?;
    ensure!(recovered.report.fast_commits.records > 0, "no fast commit");
    let after = Cut {
        image: recovered.image,
        journal: None,
    };
    let places = |cut: &Cut| -> Result<_> {
        let journal = open_journal(&cut.volume()?, None)?;
        Ok(journal.map().places())
    };
    assert_eq!(places(&after)?, places(&cut)?);
    Ok(())
}

/// The records of an empty file with a name in the root directory, as the first one of its kind.
fn made(inode: u32, name: &str) -> [(u16, Vec<u8>); 2] {
    let mut raw = numbers(&[inode]);
    raw.extend([0; 128]);
    let (mode, links, extents) = (4, 4 + 0x1a, 4 + 0x20);
    raw[mode..mode + 2].copy_from_slice(&0o10_0644u16.to_le_bytes());
    raw[links] = 1;
    raw[extents..extents + 4].copy_from_slice(&0x8_0000u32.to_le_bytes());
    [(6, raw), (3, entry(2, inode, name))]
}

/// The last inodes of groups, whose tables are all to be zeroed: more blocks than the log has.
#[test]
fn more_than_the_log_holds_is_replayed_in_place() -> Result<()> {
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-J",
        "size=2",
        "-E",
        "lazy_itable_init=1,nodiscard",
        "-O",
        "fast_commit",
    ];
    let scene = Scene::make(64 << 10, &options)?;
    let cuts = scene.cuts("noinit_itable", |root, _| {
        // A transaction without the superblock, in which the test turns on quota.
        std::fs::set_permissions(root, Permissions::from_mode(0o750))?;
        rustix::fs::syncfs(File::open(root)?)?;
        std::fs::write(root.join("later"), "l")?;
        fsync(&root.join("later"))
    })?;
    let cut = cuts.last().expect("the cut at the end");
    let per_group = cut.volume()?.geometry.inodes_per_group;
    let names = ["a", "b", "c", "d", "e"];
    let records = (2..).zip(names);
    let records: Vec<_> = records
        .flat_map(|(group, name)| made(group * per_group, name))
        .collect();
    let mut cut = with_records(cut, &records)?;
    for is_counted in [false, true] {
        set_quota(superblock_of(&mut cut.image), is_counted)?;
        if is_counted {
            let error = cut.recover().err().map(|error| error.to_string());
            let says_why =
                |error: &String| error.contains("fast commits than fit into the journal");
            ensure!(error.as_ref().is_some_and(says_why), "{error:?}");
        } else {
            let shown = crash_in_place(&cut)?;
            ensure!(names.iter().all(|name| shown.contains_key(name.as_bytes())));
        }
        let in_memory = cut.recover_onto(Onto::Overlay)?;
        ensure!(in_memory.report.fast_commits.records == 2 + records.len() as u64);
    }
    Ok(())
}

/// Blocks taken from the middle of a file leave extents that need a block of their own.
#[test]
fn holes_of_records_make_a_tree_that_the_kernel_reads() -> Result<()> {
    let scene = make(&["-b", "1024"])?;
    let mut inode = 0;
    let cuts = scene.cuts("", |root, _| {
        std::fs::write(root.join("file"), vec![b'f'; 100 << 10])?;
        rustix::fs::syncfs(File::open(root)?)?;
        inode = u32::try_from(root.join("file").metadata()?.ino())?;
        std::fs::write(root.join("later"), "l")?;
        fsync(&root.join("later"))
    })?;
    let cut = cuts.last().expect("the cut at the end");
    let holes = (0..100)
        .step_by(2)
        .map(|block| (2, numbers(&[inode, block, 1])));
    let saved = with_records(cut, &holes.collect::<Vec<_>>())?
        .recover()?
        .save()?;
    let verdict = e2fsck::check(&saved.image())?;
    ensure!(verdict == Verdict::Clean, "{verdict:?}");
    let mount = Mount::image(&saved.image(), "", Access::ReadOnly)?;
    let content = std::fs::read(mount.root().join("file"))?;
    for (index, block) in content.chunks(1024).enumerate() {
        let expected = if index % 2 == 0 { 0 } else { b'f' };
        ensure!(block.iter().all(|byte| *byte == expected), "block {index}");
    }
    Ok(())
}
