//! Log trees of random changes: images cut between the writes of the kernel while `fsync` is called many times, compared
//! with the kernel's replay of a copy. Only images that have a log count. Files are in several subvolumes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use platter_block::sim::{CrashOptions, CrashState, Loss, Recording, Request};
use platter_btrfs::ondisk::Superblock;
use platter_btrfs::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use platter_btrfs::{MountOptions, Rescue};
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::kernel_recording::KernelRecording;
use testkit::loopdev::{Access, Mount};
use testkit::prng::Prng;
use testkit::subject::devices_of_files;
use testkit::tool;
use zerocopy::FromBytes;

use super::changes::{Changes, Done};
use super::image::{Pool, log_roots, mount};

/// How many images with a log there are, unless the variable says otherwise.
const IMAGES: usize = 2 * LAYOUTS.len();
const IMAGES_VARIABLE: &str = "PLATTER_TEST_LOGS";
/// Images with a log of one filesystem, at most.
const IMAGES_OF_ONE_MAX: usize = 8;
/// Changes before the first `fsync`, and before the snapshot.
const CHANGES_FIRST: usize = 40;
/// Calls of `fsync` in one filesystem.
const SYNCS: usize = 24;
/// Changes before each `fsync`.
const CHANGES_MAX: u64 = 5;

/// How a filesystem is made and mounted.
struct Layout {
    devices: usize,
    /// Options of `mkfs.btrfs`.
    mkfs: &'static [&'static str],
    mount: &'static str,
    has_group_tree: bool,
}

const fn layout(devices: usize, mkfs: &'static [&'static str], mount: &'static str) -> Layout {
    Layout {
        devices,
        mkfs,
        mount,
        has_group_tree: false,
    }
}

/// One layout after the other.
const LAYOUTS: &[Layout] = &[
    layout(1, &["-n", "4096"], "compress=zstd"),
    layout(2, &["-d", "raid1", "-m", "raid1"], ""),
    layout(1, &["-m", "dup"], ""),
    layout(1, &["-M"], "compress=lzo"),
    Layout {
        has_group_tree: true,
        ..layout(1, &["-n", "4096"], "")
    },
    layout(1, &["-R", "quota"], ""),
    layout(1, &["-O", "^no-holes"], ""),
    layout(1, &["-n", "4096", "--csum", "xxhash"], "nodatasum"),
    layout(1, &["-n", "4096", "-O", "^no-holes"], "compress-force=lzo"),
    layout(
        2,
        &["-d", "raid0", "-m", "raid1", "--csum", "sha256"],
        "max_inline=0",
    ),
];

/// Makes two subvolumes.
const SUBVOLUMES: &str = "btrfs subvolume create one; btrfs subvolume create two";
const SNAPSHOT: &str = "btrfs subvolume snapshot one snapshot";

/// Lets the kernel change a new filesystem, with many calls of `fsync`. Returns all it wrote, and what was done.
fn record(number: usize) -> Result<(Recording, Done)> {
    let layout = &LAYOUTS[number % LAYOUTS.len()];
    let pool = Pool::make(layout.devices, 160 << 10, layout.mkfs)?;
    if layout.has_group_tree {
        pool.convert_to_group_tree()?;
    }
    let devices = devices_of_files(&pool.paths(), 512)?;
    let options = format!("commit=300,{}", layout.mount);
    let recording = KernelRecording::start(FsType::Btrfs, devices, &options)?;
    let root = recording.root();
    let places: [PathBuf; 3] = ["", "one", "two"].map(|name| root.join(name));
    run(root, SUBVOLUMES)?;
    let mut changes = Changes::new(&places, number as u64 + 1);
    for _ in 0..CHANGES_FIRST {
        changes.change()?;
    }
    run(root, SNAPSHOT)?;
    changes.add_snapshot(&places[1], &root.join("snapshot"));
    for _ in 0..CHANGES_FIRST {
        changes.change()?;
    }
    rustix::fs::syncfs(File::open(root)?)?;
    for _ in 0..SYNCS {
        changes.change_some(CHANGES_MAX)?;
        changes.fsync()?;
    }
    let done = changes.finish();
    Ok((recording.power_off()?, done))
}

fn run(dir: &Path, script: &str) -> Result<()> {
    let mut shell = tool::command("sh");
    tool::succeed(shell.args(["-e", "-c", script]).current_dir(dir))?;
    Ok(())
}

/// The ranges of positions at which the superblock names the same log.
fn logs(recording: &Recording) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut has_log = false;
    for (index, event) in recording.events().iter().enumerate() {
        let Request::Write { offset, data } = &event.request else {
            continue;
        };
        let at = SUPERBLOCK_OFFSETS[0].checked_sub(*offset);
        let Some(bytes) = at.and_then(|at| data.get(usize::try_from(at).ok()?..)) else {
            continue;
        };
        if let Ok((superblock, _)) = DiskSuperblock::ref_from_prefix(bytes) {
            if has_log && let Some(last) = found.last_mut() {
                last.end = index + 1;
            }
            has_log = superblock.log_root.get() != 0;
            if has_log {
                found.push(index + 1..recording.events().len() + 1);
            }
        }
    }
    found
}

/// An image that a power failure left.
struct Cut {
    name: String,
    image: Pool,
    /// Whether a write reached the disk in part.
    is_torn: bool,
}

/// A cut at one of these positions: with all that was written before, or without some of the writes that no flush
/// followed.
fn cut(recording: &Recording, range: &Range<usize>, prng: &mut Prng) -> Result<Cut> {
    let position = range.start + usize::try_from(prng.below(range.len() as u64))?;
    if prng.below(2) == 0 {
        return Ok(Cut {
            name: format!("after request {position}"),
            image: Pool::of_devices(&recording.replay(position)?)?,
            is_torn: false,
        });
    }
    let options = CrashOptions {
        seed: prng.next_u64(),
        first_position: position,
        mixes_per_position: 3,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let states = recording.crash_states(options);
    let states: Vec<CrashState<'_>> = states
        .take_while(|state| state.as_ref().map_or(true, |it| it.position == position))
        .collect::<Result<_, _>>()?;
    let state = &states[usize::try_from(prng.below(states.len() as u64))?];
    let is_torn = |(_, loss): &(usize, Loss)| !matches!(loss, Loss::Kept | Loss::Dropped);
    Ok(Cut {
        name: format!("state at request {position}, {:?}", state.losses),
        image: Pool::of_devices(&state.devices()?)?,
        is_torn: state.losses.iter().any(is_torn),
    })
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    logs: usize,
    /// Images in which several subvolumes have a log tree.
    of_several_subvolumes: usize,
    /// Images with torn writes that the kernel does not mount.
    refused: usize,
    /// Images whose superblock with a log did not reach the disk of which the kernel takes it.
    without_log: usize,
    done: Done,
}

/// The superblocks of devices; of a corrupt one none.
fn superblocks(image: &Pool) -> Result<Vec<Option<Superblock>>> {
    let read = |path: &Path| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        File::open(path)?.read_exact_at(&mut bytes, SUPERBLOCK_OFFSETS[0])?;
        let disk = DiskSuperblock::read_from_bytes(&bytes).expect("as long as a superblock");
        Ok(Superblock::decode(&disk, SUPERBLOCK_OFFSETS[0]).ok())
    };
    image.paths().into_iter().map(read).collect()
}

/// Whether the superblock that the kernel takes names a log: of those with the newest generation, that of the first
/// device. Here one that names a log is taken.
fn kernel_sees_log(superblocks: &[Option<Superblock>]) -> bool {
    let mut newest: Option<&Superblock> = None;
    for superblock in superblocks.iter().flatten() {
        if newest
            .as_ref()
            .is_none_or(|newest| newest.generation < superblock.generation)
        {
            newest = Some(superblock);
        }
    }
    newest.is_some_and(|superblock| superblock.log_root.is_some())
}

/// Compares the image with the kernel's replay of it. Returns whether there is a log.
fn examine(cut: &Cut, tally: &mut Tally) -> Result<bool> {
    let superblocks = superblocks(&cut.image)?;
    let has_log = kernel_sees_log(&superblocks);
    let options = MountOptions {
        rescue: Rescue {
            skips_log: !has_log,
            ..Rescue::default()
        },
        ..MountOptions::default()
    };
    let ours = mount(&cut.image.devices()?, &options);
    let replayed = cut.image.copy()?;
    let rules = replayed.replay_rules()?;
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), "", Access::Replay);
    let (ours, kernel) = match (ours, kernel) {
        (Ok(ours), Ok(kernel)) => (ours, kernel),
        (Err(_), Err(_)) if cut.is_torn => {
            tally.refused += 1;
            return Ok(false);
        }
        // The superblock of another device than the first is replaced here by its copy.
        (Ok(_), Err(_)) if cut.is_torn && superblocks.iter().skip(1).any(Option::is_none) => {
            tally.refused += 1;
            return Ok(false);
        }
        (ours, kernel) => bail!(
            "platter: {:?}, the kernel: {:?}",
            ours.map(|_| "mounted"),
            kernel.map(|_| "mounted")
        ),
    };
    let outcome = compare(&ours, kernel.root(), rules)?;
    ensure!(outcome.differences == 0, "{outcome}");
    ensure!(outcome.files > CHANGES_FIRST as u64 / 4, "{outcome}");
    if !has_log {
        tally.without_log += 1;
        return Ok(false);
    }
    tally.logs += 1;
    tally.of_several_subvolumes += usize::from(log_roots(&ours)? > 1);
    Ok(true)
}

/// Compares cuts of one filesystem, until so many have a log.
fn examine_filesystem(number: usize, wanted: usize, tally: &mut Tally) -> Result<()> {
    let (recording, done) = record(number).with_context(|| format!("filesystem {number}"))?;
    tally.done.add(&done);
    let mut logs = logs(&recording);
    ensure!(!logs.is_empty(), "filesystem {number} never had a log");
    let mut prng = Prng::new(number as u64);
    let mut found = 0;
    while found < wanted && !logs.is_empty() {
        let chosen = usize::try_from(prng.below(logs.len() as u64))?;
        let range = logs.swap_remove(chosen);
        let cut = cut(&recording, &range, &mut prng)?;
        let has_log =
            examine(&cut, tally).with_context(|| format!("filesystem {number}, {}", cut.name))?;
        found += usize::from(has_log);
        ensure!(tally.without_log <= 10 + tally.logs / 4, "{tally:?}");
    }
    Ok(())
}

#[test]
fn logs_of_random_changes_are_replayed_as_by_the_kernel() -> Result<()> {
    let wanted = std::env::var(IMAGES_VARIABLE).ok();
    let wanted = wanted.map_or(Ok(IMAGES), |count| count.parse())?;
    let of_one = wanted.div_ceil(LAYOUTS.len()).min(IMAGES_OF_ONE_MAX);
    let mut tally = Tally::default();
    let mut number = 0;
    while tally.logs < wanted {
        let left = wanted - tally.logs;
        examine_filesystem(number, of_one.min(left), &mut tally)?;
        assert!(tally.refused <= 1 + wanted / 20, "{tally:?}");
        number += 1;
    }
    println!("{number} filesystems, {tally:?}");
    if wanted >= IMAGES {
        tally.done.has_every_kind()?;
        assert!(tally.of_several_subvolumes > 0, "{tally:?}");
    }
    Ok(())
}
