//! Fast commits: what we replay is what was durable, and what the kernel shows.

mod crash;
mod operations;
mod records;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use platter_ext4::ondisk::features::RoCompat;
use platter_ext4::ondisk::superblock::DiskSuperblock;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::e2fsck;
use zerocopy::FromBytes;

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
        assert_same(&shown_of(&saved.image())?, durable, "the live mount");
        // Files without a name are left as orphans, which a check without changes does not accept.
        let repairs = e2fsck::recover(&saved.image())?;
        ensure!(repairs.is_empty(), "after us: {repairs:?}");
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
