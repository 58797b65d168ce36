//! Fast commits: what we replay is what was durable, and what the kernel shows.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use platter_block::sim::{CrashOptions, CrashState, Event, RecordingDevice, Request};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ext4::ondisk::InodeNr;
use platter_ext4::ondisk::features::RoCompat;
use platter_ext4::ondisk::inode::InodeRule;
use platter_ext4::ondisk::jbd2::LogBlock;
use platter_ext4::ondisk::jbd2::fast_commit::{FastCommitRule, continue_crc};
use platter_ext4::ondisk::superblock::DiskSuperblock;
use platter_ext4::recovery::{Onto, open_journal};
use platter_ext4::{Ext4, MountOptions};
use platter_ondisk::Rule;
use platter_vfs::{Filesystem, SystemClock};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, e2fsck};
use testkit::prng::Prng;
use zerocopy::FromBytes;

use super::{Cut, Recovered, Scene};

/// Crash states of one recovery that the kernel and `e2fsck` judge.
const JUDGED_MAX: usize = 2;

/// The magic number in the tail of a block of the orphan file.
const ORPHAN_MAGIC: [u8; 4] = 0x0b10_ca04u32.to_le_bytes();

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
            let in_memory = cut.recover_onto(Onto::Overlay)?;
            cut.recover()?
                .assert_same_blocks(&in_memory.image, "recovery in memory");
        }
    }
    Ok(())
}

/// Recovers a cut, and what each crash during that leaves. Where that is a transaction in the log in place
/// of the fast commits, the kernel has to agree with us in some states, and `e2fsck` where these are
/// erased. Returns how many crashes there were, and how many of those.
fn crash_recovery(cut: &Cut, seed: u64, judged_max: usize) -> Result<(usize, usize)> {
    let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", cut.image.clone()));
    let device = Arc::new(RecordingDevice::new(image));
    let recorded: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&device);
    let whole = Recovered::of(&recorded, None, Onto::Device)?;
    let places = cut.fast_commit_blocks()?;
    let head = *places.first().expect("a fast commit block");
    let options = CrashOptions {
        seed,
        ..CrashOptions::default()
    };
    let (mut states, mut in_log, mut erased) = (0, 0, 0);
    for state in device.recording().crash_states(options) {
        let Some(left) = left_by(&state?, cut)? else {
            continue;
        };
        let again = left.recover()?;
        whole.assert_same_blocks(&again.image, "recovery after a crash");
        states += 1;
        if again.report.log.transactions == 0 || again.report.fast_commits.records > 0 {
            continue;
        }
        in_log += 1;
        if in_log <= judged_max {
            let kernel = left.recovered_by_kernel()?;
            let ours = shown_of(&whole.save()?.image())?;
            assert_same(&ours, &shown_of(&kernel.image())?, "the kernel");
        }
        erased += usize::from(left.image[head] == 0);
        if left.image[head] == 0 && erased <= judged_max {
            let saved = left.save()?;
            let repairs = e2fsck::recover(&saved.image())?;
            ensure!(repairs.is_empty(), "{repairs:?}");
            let ours = shown_of(&whole.save()?.image())?;
            assert_same(&ours, &shown_of(&saved.image())?, "e2fsck");
        }
    }
    Ok((states, in_log))
}

/// What a crash during the recovery of `cut` left; `None` where it tore the superblock.
fn left_by(state: &CrashState<'_>, cut: &Cut) -> Result<Option<Cut>> {
    let mut image = vec![0; cut.image.len()];
    state.device()?.read_at(0, &mut image)?;
    let left = Cut {
        image,
        journal: None,
    };
    Ok(left.volume().is_ok().then_some(left))
}

/// Recovers a cut whose fast commits exceed a transaction, and what crashes leave once they are
/// applied in place: no transaction may be replayed over them. Returns what the recovery shows.
fn crash_in_place(cut: &Cut) -> Result<BTreeMap<Vec<u8>, Shown>> {
    let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", cut.image.clone()));
    let device = Arc::new(RecordingDevice::new(image));
    let recorded: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&device);
    let whole = Recovered::of(&recorded, None, Onto::Device)?;
    ensure!(whole.report.log.transactions > 0, "an empty log");
    let saved = whole.save()?;
    ensure!(e2fsck::check(&saved.image())? == Verdict::Clean);
    let expected = shown_of(&saved.image())?;
    let volume = cut.volume()?;
    let place = open_journal(&volume, None)?.map().locate(LogBlock(0));
    let place = place.map(|(place, _)| volume.geometry.offset_bytes(place));
    let recording = device.recording();
    let events = recording.events();
    let tail = events.iter().position(|event| match &event.request {
        Request::Write { offset, .. } => Some(*offset) == place,
        Request::Flush | Request::Discard(_) => false,
    });
    let tail = tail.expect("a write of the journal's superblock");
    let is_flush = |event: &&Event| event.request == Request::Flush;
    let flushes = events[..tail].iter().filter(is_flush).count();
    let options = CrashOptions {
        first_position: tail,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let mut states = 0;
    for state in recording.crash_states(options) {
        let state = state?;
        let Some(left) = left_by(&state, cut)?.filter(|_| state.flushes > flushes) else {
            continue;
        };
        let again = left.recover()?;
        assert_eq!(again.report.log.transactions, 0);
        let saved = again.save()?;
        let verdict = e2fsck::check(&saved.image())?;
        ensure!(verdict == Verdict::Clean, "{verdict:?}");
        assert_same(&shown_of(&saved.image())?, &expected, "the first recovery");
        states += 1;
    }
    println!("{states} crash states of a replay in place");
    ensure!(states > 20);
    Ok(expected)
}

/// All of the fast commits are applied, or none, so that the second recovery has what the first one had.
#[test]
fn crash_during_replay_of_fast_commits_loses_nothing() -> Result<()> {
    let layouts: [&[&str]; 3] = [
        &["-b", "1024"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        &["-b", "1024", "-O", "inline_data", "-I", "256"],
    ];
    let (mut states, mut in_log) = (0, 0);
    for (seed, layout) in (1..).zip(layouts) {
        let mut options = vec!["-t", "ext4", "-O", "fast_commit", "-J", "size=2"];
        options.extend(layout);
        let scene = Scene::make(12 << 10, &options)?;
        let cuts = scene.cuts("", files)?;
        for cut in &cuts {
            let counts = crash_recovery(cut, seed, JUDGED_MAX)?;
            (states, in_log) = (states + counts.0, in_log + counts.1);
        }
    }
    println!("{states} crash states, {in_log} with a transaction in place of the fast commits");
    ensure!(states > 300 && in_log > 20);
    Ok(())
}

/// Turns the feature `quota` of an image on or off, whose quota files stay: the kernel may lack it.
fn set_quota(superblock: &mut [u8], is_on: bool) -> Result<()> {
    let disk = DiskSuperblock::mut_from_bytes(superblock);
    let disk = disk.map_err(|_| anyhow!("no superblock"))?;
    let mut features = RoCompat::from_bits_retain(disk.feature_ro_compat.get());
    features.set(RoCompat::QUOTA, is_on);
    disk.feature_ro_compat.set(features.bits());
    disk.seal();
    Ok(())
}

fn superblock_of(image: &mut [u8]) -> &mut [u8] {
    &mut image[1024..2048]
}

/// Usage of owners has no records: it is counted from what the other ones changed.
#[test]
fn quota_counts_what_fast_commits_changed() -> Result<()> {
    let layouts: [&[&str]; 2] = [
        &["-b", "1024", "-O", "quota"],
        &["-b", "4096", "-O", "quota,ea_inode"],
    ];
    let files = tempfile::tempdir()?;
    for index in 0..20u32 {
        let path = files.path().join(format!("old{index}"));
        std::fs::write(&path, "old".repeat(2000))?;
        chown(&path, Some(1000 + index % 3), Some(7))?;
    }
    for layout in layouts {
        let mut options = vec!["-t", "ext4", "-O", "fast_commit", "-J", "size=4"];
        options.extend(layout);
        let scene = Scene::make_filled(16 << 10, &options, Some(files.path()))?;
        // mke2fs does not count what it fills a filesystem with.
        e2fsck::repair(&scene.image(), &["-f", "-y"])?;
        let mut image = std::fs::read(scene.image())?;
        set_quota(superblock_of(&mut image), false)?;
        std::fs::write(scene.image(), &image)?;
        let cuts = scene.cuts("", |root, cut| {
            // The kernel begins fast commits only after a transaction; this one changes no usage.
            std::fs::set_permissions(root.join("old0"), Permissions::from_mode(0o600))?;
            rustix::fs::syncfs(File::open(root)?)?;
            for index in 0..10u32 {
                let path = root.join(format!("new{index}"));
                std::fs::write(&path, "new".repeat(3000))?;
                // Half of the owners have nothing so far.
                chown(&path, Some(1001 + index), Some(index))?;
                fsync(&path)?;
                std::fs::remove_file(root.join(format!("old{index}")))?;
            }
            let shorter = root.join("old11");
            OpenOptions::new().write(true).open(&shorter)?.set_len(1)?;
            fsync(&shorter)?;
            cut()?;
            let other = root.join("old12");
            chown(&other, Some(1000), Some(3))?;
            fsync(&other)?;
            std::fs::remove_file(root.join("new3"))?;
            std::fs::rename(root.join("new4"), root.join("old13"))?;
            fsync(&root.join("old13"))
        })?;
        for (seed, mut cut) in (1..).zip(cuts) {
            set_quota(superblock_of(&mut cut.image), true)?;
            let recovered = cut.recover()?;
            ensure!(recovered.report.fast_commits.records > 0, "no fast commit");
            for image in [recovered.image, mounted(&cut)?.image] {
                let after = Cut {
                    image,
                    journal: None,
                };
                let features = after.volume()?.superblock.features;
                ensure!(features.ro_compat.contains(RoCompat::QUOTA));
                let verdict = e2fsck::check(&after.save()?.image())?;
                ensure!(verdict == Verdict::Clean, "{layout:?}: {verdict:?}");
            }
            let (states, _) = crash_recovery(&cut, seed, 0)?;
            ensure!(states > 20, "only {states} crash states");
        }
    }
    Ok(())
}

/// Mounts a cut for writing, and unmounts it.
fn mounted(cut: &Cut) -> Result<Cut> {
    let device = Arc::new(MemoryDevice::new("image", cut.image.clone()));
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    let below = Arc::<MemoryDevice>::clone(&device);
    Ext4::mount(below, &options, budget, clock)?.unmount()?;
    Ok(Cut {
        image: device.snapshot(),
        journal: None,
    })
}

/// A file whose last name is gone has no records any more, in use or not.
#[test]
fn removed_files_in_use_are_gone() -> Result<()> {
    let examined = examine(&make(&["-b", "1024"])?, |root, cut| {
        for name in ["open", "anchor", "second"] {
            std::fs::write(root.join(name), name.repeat(2000))?;
        }
        rustix::fs::syncfs(File::open(root)?)?;
        let open = OpenOptions::new().write(true).open(root.join("open"))?;
        std::fs::remove_file(root.join("open"))?;
        open.write_all_at(b"in use", 20_000)?;
        open.sync_all()?;
        std::fs::write(root.join("anchor"), "a")?;
        fsync(&root.join("anchor"))?;
        cut()?;
        std::fs::hard_link(root.join("second"), root.join("third"))?;
        std::fs::remove_file(root.join("second"))?;
        fsync(&root.join("third"))?;
        Ok(())
    })?;
    ensure!(
        examined.iter().any(|(_, records)| *records > 0),
        "no fast commit"
    );
    Ok(())
}

/// A file that is removed while it is open, as by `tmpfile(3)`, before any fast commit has it or after
/// one has. Kernels up to 6.18 refuse to mount what they wrote then; `e2fsck` accepts it.
#[test]
fn removed_new_files_are_gone() -> Result<()> {
    let examined = examine(&make(&["-b", "1024"])?, |root, cut| {
        std::fs::write(root.join("anchor"), "a")?;
        rustix::fs::syncfs(File::open(root)?)?;
        let mut open = Vec::new();
        for name in ["one", "two", "synced"] {
            let file = File::create(root.join(name))?;
            file.write_all_at(&[1; 3000], 0)?;
            if name == "synced" {
                file.sync_all()?;
                cut()?;
            }
            std::fs::remove_file(root.join(name))?;
            open.push(file);
        }
        std::fs::write(root.join("stays"), "s")?;
        fsync(&root.join("stays"))?;
        cut()?;
        open[0].sync_all()?;
        std::fs::write(root.join("anchor"), "b")?;
        fsync(&root.join("anchor"))
    })?;
    for (_, records) in &examined {
        ensure!(*records > 0, "no fast commit");
    }
    Ok(())
}

/// A file that was made without a name is an orphan until it gets one, and one whose last name is gone
/// until it is closed.
#[test]
fn first_name_of_a_file_comes_back() -> Result<()> {
    let layouts: [&[&str]; 2] = [
        &["-b", "1024"],
        &["-b", "1024", "-O", "inline_data", "-I", "256"],
    ];
    for layout in layouts {
        let examined = examine(&make(layout)?, |root, cut| {
            std::fs::write(root.join("anchor"), "a")?;
            let removed = File::create(root.join("removed"))?;
            removed.write_all_at(b"short enough", 0)?;
            std::fs::remove_file(root.join("removed"))?;
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            let unnamed = rustix::fs::open(root, flags, Mode::from_raw_mode(0o600))?;
            let unnamed = File::from(unnamed);
            unnamed.write_all_at(b"made without a name", 0)?;
            rustix::fs::syncfs(File::open(root)?)?;
            for grown in [&removed, &unnamed] {
                // The fast commit of a name does not have these bytes again.
                grown.write_all_at(&[7; 5000], 100)?;
                grown.sync_all()?;
            }
            cut()?;
            let place = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
            let name = root.join("name");
            rustix::fs::linkat(CWD, &*place, CWD, name.as_path(), AtFlags::SYMLINK_FOLLOW)?;
            unnamed.sync_all()?;
            cut()?;
            std::fs::write(root.join("anchor"), "b")?;
            fsync(&root.join("anchor"))
        })?;
        for (_, records) in &examined {
            ensure!(*records > 0, "{layout:?}: no fast commit");
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
