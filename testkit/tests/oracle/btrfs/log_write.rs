//! Log trees that this driver writes: images as they are after `fsync`, without a commit, which the kernel and this
//! driver replay, and what an `fsync` costs compared with the kernel's.

use std::fs::OpenOptions as FileOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use platter_block::{Access as DeviceAccess, BlockDevice, CountingDevice, FileDevice, OpenOptions};
use platter_btrfs::{Btrfs, MountOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{CreateKind, FallocateMode, Filesystem, RenameMode, SystemClock};
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::workload::{Fill, Operation, Session, Span};

use super::image::{Pool, mount};

/// Calls of `fsync` that are counted.
const CALLS: u64 = 16;

fn writable(pool: &Pool) -> Result<Arc<CountingDevice>> {
    let options = OpenOptions {
        access: DeviceAccess::Write,
        direct: false,
    };
    let device = FileDevice::open(&pool.images[0], options)?;
    Ok(Arc::new(CountingDevice::new(Arc::new(device))))
}

fn mount_to_write(device: &Arc<CountingDevice>) -> Result<Btrfs> {
    let devices = [Arc::clone(device) as Arc<dyn BlockDevice>];
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    // Nothing is committed that no call asks for.
    let options = MountOptions::default();
    Ok(Btrfs::mount_writable(&devices, &options, budget, clock)?)
}

fn create(path: &str) -> Operation {
    Operation::Create(path.to_owned(), CreateKind::Regular, 0o644)
}

fn directory(path: &str) -> Operation {
    Operation::Create(path.to_owned(), CreateKind::Directory, 0o755)
}

fn write(path: &str, offset: u64, len: usize) -> Operation {
    let seed = offset + len as u64;
    Operation::Write(path.to_owned(), Fill { offset, len, seed })
}

fn rename(from: &str, to: &str) -> Operation {
    Operation::Rename(from.to_owned(), to.to_owned(), RenameMode::Replace)
}

fn link(from: &str, to: &str) -> Operation {
    Operation::Link(from.to_owned(), to.to_owned())
}

fn unlink(path: &str) -> Operation {
    Operation::Unlink(path.to_owned())
}

fn fsync(path: &str) -> Operation {
    Operation::Fsync(path.to_owned(), false)
}

fn xattr(path: &str, len: usize) -> Operation {
    let fill = Fill {
        offset: 0,
        len,
        seed: 5,
    };
    Operation::SetXattr(path.to_owned(), "user.first", fill)
}

/// What is there before, and durable.
fn before() -> Vec<Operation> {
    vec![
        create("text"),
        write("text", 0, 100_000),
        xattr("text", 40),
        create("old"),
        write("old", 0, 9000),
        link("old", "second"),
        directory("dir"),
        create("dir/one"),
        create("dir/two"),
        write("dir/two", 0, 5000),
        create("dir/three"),
        directory("other"),
        directory("other/empty"),
        Operation::Sync,
    ]
}

/// A name, whether the log makes the changes durable (a commit is right as well, but not meant), and the changes.
type Case = (&'static str, bool, Vec<Operation>);

/// Changes of contents and attributes.
fn changes_of_files() -> Vec<Case> {
    let fallocate = |path: &str, range, mode| Operation::Fallocate(path.to_owned(), range, mode);
    let clone = |from: &str, to: &str| {
        Operation::CloneRange(Span {
            from: from.to_owned(),
            range: 0..8192,
            to: to.to_owned(),
            offset: 0,
        })
    };
    vec![
        (
            "new",
            true,
            vec![create("new"), write("new", 0, 70_000), fsync("new")],
        ),
        (
            "short",
            true,
            vec![create("new"), write("new", 0, 70), fsync("new")],
        ),
        (
            "append",
            true,
            vec![
                write("text", 100_000, 5000),
                fsync("text"),
                write("text", 105_000, 5000),
                fsync("text"),
            ],
        ),
        (
            "overwrite",
            true,
            vec![
                write("text", 8192, 30_000),
                fsync("text"),
                write("text", 16_384, 9000),
                fsync("text"),
            ],
        ),
        (
            "truncate",
            true,
            vec![
                Operation::Truncate("text".to_owned(), 5001),
                write("text", 60_000, 10),
                fsync("text"),
            ],
        ),
        (
            "hole",
            true,
            vec![
                fallocate("text", 8192..40_000, FallocateMode::PunchHole),
                fsync("text"),
            ],
        ),
        (
            "allocated",
            true,
            vec![
                fallocate(
                    "text",
                    120_000..200_000,
                    FallocateMode::Allocate { keep_size: true },
                ),
                fsync("text"),
                write("text", 120_000, 3000),
                fsync("text"),
            ],
        ),
        (
            "clone",
            true,
            vec![create("new"), clone("text", "new"), fsync("new")],
        ),
        (
            "attribute",
            true,
            vec![
                Operation::RemoveXattr("text".to_owned(), "user.first"),
                xattr("dir", 10),
                Operation::SetPermissions("text".to_owned(), 0o600),
                fsync("text"),
                fsync("dir"),
            ],
        ),
    ]
}

/// Changes of names.
fn changes_of_names() -> Vec<Case> {
    vec![
        (
            "rename",
            true,
            vec![rename("text", "renamed"), fsync("renamed")],
        ),
        (
            "rename back",
            true,
            vec![
                rename("text", "aside"),
                rename("aside", "text"),
                fsync("text"),
            ],
        ),
        (
            "move",
            true,
            vec![rename("dir/two", "other/two"), fsync("other/two")],
        ),
        (
            "replace",
            true,
            vec![
                create("tmp"),
                write("tmp", 0, 20_000),
                fsync("tmp"),
                rename("tmp", "text"),
                fsync(""),
            ],
        ),
        (
            "replace one of two names",
            true,
            vec![create("tmp"), rename("tmp", "second"), fsync("second")],
        ),
        ("link", true, vec![link("text", "dir/link"), fsync("text")]),
        (
            "link in a directory",
            true,
            vec![link("text", "dir/link"), fsync("dir")],
        ),
        (
            "unlink",
            true,
            vec![unlink("dir/two"), create("dir/four"), fsync("dir")],
        ),
        (
            "unlink one of two names",
            true,
            vec![unlink("second"), fsync("old")],
        ),
    ]
}

/// Changes of directories, and of what is in the log.
fn changes_of_directories() -> Vec<Case> {
    let symlink = Operation::Create(
        "new/link".to_owned(),
        CreateKind::Symlink(b"to".into()),
        0o777,
    );
    vec![
        (
            "directories",
            true,
            vec![
                directory("new"),
                directory("new/below"),
                create("new/below/file"),
                write("new/below/file", 0, 5000),
                fsync("new/below/file"),
                symlink,
                fsync("new"),
            ],
        ),
        (
            "renamed after the log",
            true,
            vec![
                create("new"),
                fsync("new"),
                rename("new", "dir/new"),
                create("last"),
                fsync("last"),
            ],
        ),
        (
            "removed after the log",
            true,
            vec![
                create("dir/new"),
                write("dir/new", 0, 50_000),
                fsync("dir/new"),
                fsync("dir"),
                unlink("dir/new"),
                create("last"),
                fsync("last"),
            ],
        ),
        (
            "name of a file that stays",
            false,
            vec![
                rename("text", "aside"),
                create("text"),
                write("text", 0, 10),
                fsync("text"),
            ],
        ),
        (
            "moved directory",
            false,
            vec![rename("other/empty", "dir/empty"), fsync("dir/empty")],
        ),
        (
            "emptied directory",
            false,
            vec![
                rename("dir/one", "one"),
                unlink("dir/two"),
                unlink("dir/three"),
                Operation::RemoveDir("dir".to_owned()),
                fsync(""),
            ],
        ),
        (
            "removed directory",
            true,
            vec![
                Operation::RemoveDir("other/empty".to_owned()),
                fsync("other"),
            ],
        ),
    ]
}

/// Has this driver make changes, and compares replays of what is on the device then. Returns whether there is a log.
fn examine(name: &str, mkfs: &[&str], changes: &[Operation]) -> Result<bool> {
    let pool = Pool::make(1, 120 << 10, mkfs)?;
    let device = writable(&pool)?;
    let fs = mount_to_write(&device)?;
    let mut session = Session::new(&fs);
    for operation in before().iter().chain(changes) {
        session
            .apply(operation)
            .with_context(|| format!("{name}: {operation:?}"))?;
    }
    let frozen = Pool::empty(1)?;
    std::fs::copy(&pool.images[0], &frozen.images[0])?;
    let ours = mount(&frozen.devices()?, &MountOptions::default())?;
    let has_log = ours.superblock().log_root.is_some();
    let replayed = Pool::empty(1)?;
    std::fs::copy(&frozen.images[0], &replayed.images[0])?;
    let rules = replayed.replay_rules()?;
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), "", Access::ReadWrite)?;
    let outcome = compare(&ours, kernel.root(), rules)?;
    ensure!(outcome.differences == 0, "{name}: {outcome}");
    for operation in changes {
        if let Operation::Fsync(path, _) = operation {
            let here = kernel.root().join(path);
            ensure!(
                here.exists() || is_gone(changes, path),
                "{name}: /{path} is gone"
            );
        }
    }
    kernel.unmount_all(&replayed.paths())?;
    let judge = |pool: &Pool| testkit::oracle::fsck(FsType::Btrfs, &pool.paths());
    ensure!(
        judge(&replayed)?.complaints().is_empty(),
        "{name}: after the kernel's replay"
    );
    drop(ours);
    // The same by this driver's replay.
    let device = writable(&frozen)?;
    mount_to_write(&device)?.unmount()?;
    ensure!(
        judge(&frozen)?.complaints().is_empty(),
        "{name}: after the replay"
    );
    fs.unmount()?;
    Ok(has_log)
}

/// Whether a path is renamed or removed later.
fn is_gone(changes: &[Operation], path: &str) -> bool {
    let synced = changes.iter().position(|it| *it == fsync(path));
    let after = changes.iter().skip(synced.unwrap_or(0));
    let leaves = |it: &Operation| {
        let moved = matches!(it, Operation::Rename(from, ..) if from == path);
        moved || *it == unlink(path)
    };
    after.clone().any(leaves)
}

fn examine_all(mkfs: &[&str]) -> Result<()> {
    let all = [
        changes_of_files(),
        changes_of_names(),
        changes_of_directories(),
    ];
    for (name, logs, changes) in all.into_iter().flatten() {
        let has_log = examine(name, mkfs, &changes)?;
        ensure!(has_log == logs, "{name}: has a log: {has_log}");
    }
    Ok(())
}

#[test]
fn logs_are_replayed_by_the_kernel() -> Result<()> {
    examine_all(&["-m", "single"])
}

#[test]
fn logs_of_small_blocks_with_holes_are_replayed_by_the_kernel() -> Result<()> {
    examine_all(&[
        "-m",
        "single",
        "-n",
        "4096",
        "-O",
        "^no-holes",
        "--csum",
        "sha256",
    ])
}

/// Writes of the kernel for calls of `fsync`, each after an append of 4 KiB.
fn kernel_writes(pool: &Pool) -> Result<u64> {
    let device = pool.attach()?.remove(0);
    let devices = [device.path()];
    let mounted = Mount::devices(FsType::Btrfs, &devices, "commit=300", Access::ReadWrite)?;
    let mut file = FileOptions::new()
        .create(true)
        .append(true)
        .open(mounted.root().join("file"))?;
    file.write_all(&[1; 4096])?;
    mounted.sync()?;
    let name = device.path().file_name().context("the name of a device")?;
    let path = Path::new("/sys/block").join(name).join("stat");
    let count = || -> Result<u64> {
        let text = std::fs::read_to_string(&path)?;
        Ok(text.split_whitespace().nth(4).context("a count")?.parse()?)
    };
    let first = count()?;
    for call in 0..CALLS {
        file.write_all(&[u8::try_from(call)?; 4096])?;
        file.sync_all()?;
    }
    let writes = count()? - first;
    drop(file);
    mounted.release(&[])?;
    Ok(writes)
}

#[test]
fn fsync_of_an_append_writes_no_more_than_the_kernel() -> Result<()> {
    for mkfs in [&["-m", "single"][..], &["-m", "dup"]] {
        let pool = Pool::make(1, 160 << 10, mkfs)?;
        let theirs = kernel_writes(&pool)?;
        let pool = Pool::make(1, 160 << 10, mkfs)?;
        let device = writable(&pool)?;
        let fs = mount_to_write(&device)?;
        let mut session = Session::new(&fs);
        session.apply(&create("file"))?;
        session.apply(&write("file", 0, 4096))?;
        session.apply(&Operation::Sync)?;
        let before = device.counts();
        for call in 1..=CALLS {
            session.apply(&write("file", call * 4096, 4096))?;
            session.apply(&fsync("file"))?;
        }
        let counts = device.counts();
        let (ours, flushes) = (
            counts.writes - before.writes,
            counts.flushes - before.flushes,
        );
        println!(
            "{mkfs:?}: {CALLS} calls: {ours} writes and {flushes} flushes; the kernel's: {theirs} writes"
        );
        ensure!(
            ours <= theirs,
            "{mkfs:?}: {ours} writes instead of {theirs}"
        );
        ensure!(flushes == 2 * CALLS, "{mkfs:?}: {flushes} flushes");
        fs.unmount()?;
    }
    Ok(())
}
