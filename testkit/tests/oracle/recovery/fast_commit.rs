//! Fast commits: what we replay is what was durable, and what the kernel shows.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use anyhow::{Result, ensure};
use platter_ext4::ondisk::jbd2::fast_commit::{FastCommitRule, continue_crc};
use platter_ondisk::Rule;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, e2fsck};
use testkit::prng::Prng;

use super::{Cut, Scene};

/// What a path shows of a file that must be the same after any recovery.
type Shown = (u32, u64, u64, Vec<u8>);

fn make(options: &[&str]) -> Result<Scene> {
    let mut all = vec!["-t", "ext4", "-O", "fast_commit", "-J", "size=8"];
    all.extend(options);
    Scene::make(64 << 10, &all)
}

fn fsync(path: &Path) -> Result<()> {
    Ok(File::open(path)?.sync_all()?)
}

/// Everything below `root`, with link counts, sizes and contents.
fn shown(root: &Path) -> Result<BTreeMap<Vec<u8>, Shown>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            let about = path.symlink_metadata()?;
            let content = if about.is_dir() {
                open.push(path.clone());
                Vec::new()
            } else if about.is_symlink() {
                std::fs::read_link(&path)?
                    .into_os_string()
                    .into_encoded_bytes()
            } else if about.is_file() {
                std::fs::read(&path)?
            } else {
                about.rdev().to_be_bytes().to_vec()
            };
            let size = if about.is_dir() { 0 } else { about.size() };
            let name = path
                .strip_prefix(root)?
                .as_os_str()
                .as_encoded_bytes()
                .to_vec();
            found.insert(name, (about.mode(), about.nlink(), size, content));
        }
    }
    Ok(found)
}

fn shown_of(image: &Path) -> Result<BTreeMap<Vec<u8>, Shown>> {
    let mount = Mount::image(image, "", Access::ReadOnly)?;
    shown(mount.root())
}

fn assert_same(ours: &BTreeMap<Vec<u8>, Shown>, theirs: &BTreeMap<Vec<u8>, Shown>, source: &str) {
    for name in ours.keys().chain(theirs.keys()) {
        let name_text = String::from_utf8_lossy(name);
        let (ours, theirs) = (ours.get(name), theirs.get(name));
        assert!(
            ours == theirs,
            "{name_text}: {:?}, {source} has {:?}",
            brief(ours),
            brief(theirs)
        );
    }
}

fn brief(shown: Option<&Shown>) -> Option<(u32, u64, u64)> {
    shown.map(|(mode, links, size, _)| (*mode, *links, *size))
}

/// Runs the workload, and holds every cut against what was there when it was taken: all was
/// durable then.
fn examine(
    scene: &Scene,
    workload: impl FnOnce(&Path, &mut dyn FnMut() -> Result<()>) -> Result<()>,
) -> Result<Vec<(Cut, u64)>> {
    let mut durable = Vec::new();
    let cuts = scene.cuts("", |root, cut| {
        let mut note = || -> Result<()> {
            durable.push(shown(root)?);
            cut()
        };
        workload(root, &mut note)?;
        durable.push(shown(root)?);
        Ok(())
    })?;
    ensure!(
        durable.len() == cuts.len(),
        "a crash state without its contents"
    );
    let mut examined = Vec::new();
    for (cut, durable) in cuts.into_iter().zip(&durable) {
        let ours = cut.recover()?;
        let saved = ours.save()?;
        let verdict = e2fsck::check(&saved.image())?;
        ensure!(verdict == Verdict::Clean, "after us: {verdict:?}");
        assert_same(&shown_of(&saved.image())?, durable, "the live mount");
        let records = ours.report.fast_commits.records;
        examined.push((cut, records));
    }
    Ok(examined)
}

/// Demands that the kernel's recovery of a cut shows what ours does.
fn compare_with_kernel(cut: &Cut) -> Result<()> {
    let ours = cut.recover()?.save()?;
    let kernel = cut.recovered_by_kernel()?;
    assert_same(
        &shown_of(&ours.image())?,
        &shown_of(&kernel.image())?,
        "the kernel",
    );
    Ok(())
}

/// Names and contents of files come and go, each made durable by its own fast commit.
fn files(root: &Path, cut: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let dir = root.join("subdir");
    std::fs::create_dir(&dir)?;
    for index in 0..20 {
        std::fs::write(
            dir.join(format!("old{index}")),
            format!("old {index}").repeat(300),
        )?;
    }
    std::fs::write(root.join("large"), vec![b'L'; 600_000])?;
    rustix::fs::syncfs(File::open(root)?)?;
    let new = dir.join("new");
    std::fs::write(&new, "hello")?;
    fsync(&new)?;
    cut()?;
    std::fs::hard_link(dir.join("old1"), dir.join("second name"))?;
    fsync(&dir.join("old1"))?;
    std::fs::remove_file(dir.join("old2"))?;
    let file = OpenOptions::new().append(true).open(&new)?;
    file.write_all_at(&vec![b'n'; 30_000], 5)?;
    file.sync_all()?;
    cut()?;
    std::fs::rename(&new, dir.join("renamed"))?;
    fsync(&dir.join("renamed"))?;
    std::fs::rename(dir.join("old4"), dir.join("old5"))?;
    fsync(&dir.join("old5"))?;
    cut()?;
    let large = OpenOptions::new().write(true).open(root.join("large"))?;
    large.write_all_at(&[b'x'; 5000], 2_000_000)?;
    large.sync_all()?;
    large.set_len(100_000)?;
    large.sync_all()?;
    cut()?;
    for index in 0..60 {
        let path = dir.join(format!(
            "one of many names that fill their directory {index}"
        ));
        std::fs::write(&path, "x".repeat(index * 40))?;
        fsync(&path)?;
    }
    Ok(())
}

#[test]
fn fast_commits_replay_like_the_kernel() -> Result<()> {
    let layouts: [&[&str]; 4] = [
        &["-b", "1024"],
        &["-b", "4096"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        &["-b", "4096", "-O", "bigalloc", "-C", "16384"],
    ];
    for layout in layouts {
        let examined = examine(&make(layout)?, files)?;
        ensure!(examined.len() == 5, "a cut was not taken");
        for (cut, records) in &examined {
            ensure!(*records > 0, "{layout:?}: a cut held no fast commit");
            compare_with_kernel(cut)?;
        }
    }
    Ok(())
}

/// The kernel forgets the links of the parent when it replays a new directory, so that only the
/// live mount is the judge here.
#[test]
fn new_directories_keep_their_links() -> Result<()> {
    let examined = examine(&make(&["-b", "1024"])?, |root, cut| {
        std::fs::create_dir(root.join("parent"))?;
        rustix::fs::syncfs(File::open(root)?)?;
        let mut path = root.join("parent");
        for depth in 0..5 {
            path = path.join(format!("level{depth}"));
            std::fs::create_dir(&path)?;
            let file = path.join("file");
            std::fs::write(&file, "deep")?;
            fsync(&file)?;
            cut()?;
        }
        std::fs::remove_file(path.join("file"))?;
        std::fs::remove_dir(&path)?;
        fsync(&root.join("parent/level0/file"))?;
        Ok(())
    })?;
    ensure!(
        examined.iter().any(|(_, records)| *records > 0),
        "no fast commit"
    );
    Ok(())
}

/// Whether as records or, as the kernel decides for some of them, in a transaction.
#[test]
fn special_files_and_links_come_back() -> Result<()> {
    examine(&make(&["-b", "1024"])?, |root, cut| {
        std::fs::write(root.join("anchor"), "a")?;
        rustix::fs::syncfs(File::open(root)?)?;
        let mut mknod = testkit::tool::command("mknod");
        testkit::tool::succeed(mknod.arg(root.join("null")).args(["c", "1", "3"]))?;
        let mut mkfifo = testkit::tool::command("mkfifo");
        testkit::tool::succeed(mkfifo.arg(root.join("fifo")))?;
        std::fs::write(root.join("anchor"), "b")?;
        fsync(&root.join("anchor"))?;
        cut()?;
        symlink("a short target", root.join("short"))?;
        symlink("a long target/".repeat(20), root.join("long"))?;
        std::fs::write(root.join("anchor"), "c")?;
        fsync(&root.join("anchor"))?;
        Ok(())
    })?;
    Ok(())
}

/// A file in so many pieces that its extents need blocks of their own, in records alone.
#[test]
fn file_of_many_pieces_comes_back() -> Result<()> {
    for layout in [["-b", "1024"], ["-b", "4096"]] {
        let examined = examine(&make(&layout)?, |root, cut| {
            std::fs::write(root.join("pieces"), "p")?;
            rustix::fs::syncfs(File::open(root)?)?;
            let file = OpenOptions::new().write(true).open(root.join("pieces"))?;
            for index in 0..450u64 {
                file.write_all_at(format!("piece {index}").as_bytes(), index * 3 * 4096)?;
                if index % 25 == 24 {
                    file.sync_all()?;
                }
                if index == 149 {
                    cut()?;
                }
            }
            file.sync_all()?;
            Ok(())
        })?;
        let in_records = examined.iter().any(|(_, records)| *records > 0);
        ensure!(in_records, "no fast commit");
        for (cut, _) in &examined {
            compare_with_kernel(cut)?;
        }
    }
    Ok(())
}

/// Names go into a hashed directory, and into one that must grow.
#[test]
fn hashed_directory_takes_names() -> Result<()> {
    let examined = examine(&make(&["-b", "1024"])?, |root, cut| {
        let dir = root.join("hashed");
        std::fs::create_dir(&dir)?;
        for index in 0..400 {
            File::create(dir.join(format!("a name that was there before {index}")))?;
        }
        rustix::fs::syncfs(File::open(root)?)?;
        for index in 0..100 {
            std::fs::remove_file(dir.join(format!("a name that was there before {index}")))?;
            let path = dir.join(format!("a name that came later {index}"));
            File::create(&path)?.sync_all()?;
            if index == 10 {
                cut()?;
            }
        }
        Ok(())
    })?;
    for (cut, records) in &examined {
        ensure!(*records > 0, "no fast commit");
        compare_with_kernel(cut)?;
    }
    Ok(())
}

/// Contents and names in inodes. The kernel's own replay is judged where no directory is made.
#[test]
fn inline_contents_come_back() -> Result<()> {
    let scene = make(&["-b", "1024", "-O", "inline_data", "-I", "256"])?;
    let examined = examine(&scene, |root, cut| {
        std::fs::create_dir(root.join("small"))?;
        std::fs::write(root.join("small/a"), "tiny")?;
        rustix::fs::syncfs(File::open(root)?)?;
        std::fs::write(root.join("small/b"), "tiny too")?;
        fsync(&root.join("small/b"))?;
        cut()?;
        std::fs::remove_file(root.join("small/a"))?;
        std::fs::write(root.join("at the root"), "x".repeat(100))?;
        fsync(&root.join("at the root"))?;
        cut()?;
        std::fs::create_dir(root.join("new"))?;
        for index in 0..9 {
            let path = root.join(format!("new/a name that soon fills an inode {index}"));
            std::fs::write(&path, "y".repeat(index * 30))?;
            fsync(&path)?;
        }
        Ok(())
    })?;
    for (_, records) in &examined {
        ensure!(*records > 0, "no fast commit");
    }
    compare_with_kernel(&examined[0].0)?;
    compare_with_kernel(&examined[1].0)
}

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
    let refused = |record: (u16, Vec<u8>), rule: FastCommitRule| -> Result<()> {
        let error = with_records(cut, &[record])?.recover().err();
        let text = error.map_or_else(String::new, |error| error.to_string());
        ensure!(text.contains(rule.text()), "{rule:?}: got '{text}'");
        Ok(())
    };
    refused((1, range(file, 5, 1 << 30)), FastCommitRule::Range)?;
    refused((1, range(file, u32::MAX, 5000)), FastCommitRule::Range)?;
    refused((1, range(link, 5, 5000)), FastCommitRule::NoExtents)?;
    refused((3, entry(2, unused, "new")), FastCommitRule::Missing)?;
    refused((4, entry(2, file, "a/b")), FastCommitRule::Name)?;
    refused((4, entry(2, file, "..")), FastCommitRule::Name)?;
    let mut inode = numbers(&[u32::MAX]);
    inode.extend([0; 128]);
    refused((6, inode), FastCommitRule::Inode)?;
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
