//! Changes of files and directories, each durable by fast commits of the kernel.

use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_ext4::ondisk::features::RoCompat;
use platter_ext4::recovery::Onto;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{Filesystem, SystemClock};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use testkit::oracle::e2fsck::are_of_orphans;
use testkit::oracle::{Verdict, e2fsck};

use super::crash::crash_recovery;
use super::{
    assert_same, compare_with_kernel, examine, files, fsync, make, set_quota, shown_of,
    superblock_of,
};
use crate::recovery::{Cut, Scene};

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
/// one has. Kernels up to 6.18 refuse to mount what they wrote then; `e2fsck` replays it.
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
    for (cut, records) in &examined {
        ensure!(*records > 0, "no fast commit");
        let ours = shown_of(&cut.recover()?.save()?.image())?;
        let replayed = cut.save()?;
        let repairs = e2fsck::recover(&replayed.image())?;
        ensure!(
            repairs.is_empty() || are_of_orphans(&repairs),
            "{repairs:?}"
        );
        assert_same(&ours, &shown_of(&replayed.image())?, "e2fsck");
        if let Ok(mounted) = cut.recovered_by_kernel() {
            assert_same(&ours, &shown_of(&mounted.image())?, "the kernel");
        }
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
            std::fs::write(root.join("later"), "l")?;
            fsync(&root.join("later"))
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
