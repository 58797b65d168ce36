//! Images cut out of recorded kernel workloads, recovered by the tools, by the kernel, and by us.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use platter_block::sim::{CrashOptions, CrashState};

use super::*;
use crate::crash::ImageFiles;
use crate::oracle;
use crate::prng::Prng;
use crate::subject::{Devices, devices_of_files, scene, shared};

/// The number of files of the workload, and of its rounds.
const FILES: u64 = 6;
const ROUNDS: u64 = 3;

/// By position in the log, the files that were synced by then, with their contents.
type Synced = Vec<(usize, BTreeMap<String, Vec<u8>>)>;

/// Creates and overwrites files, renames some, and syncs each by `fsync`.
fn workload(recording: &KernelRecording) -> Synced {
    let root = recording.root();
    let mut now = BTreeMap::new();
    let mut synced = vec![(0, now.clone())];
    std::fs::create_dir(root.join("dir")).unwrap();
    for number in 0..FILES * ROUNDS {
        let name = format!("dir/file{}", number % FILES);
        let length = 1000 + 7000 * usize::try_from(number % 3).unwrap();
        let contents = Prng::new(number).bytes(length);
        let path = root.join(&name);
        let mut file = File::create(root.join("dir/new")).unwrap();
        file.write_all(&contents).unwrap();
        file.sync_all().unwrap();
        std::fs::rename(root.join("dir/new"), &path).unwrap();
        file.write_all_at(&contents[..10], 100).unwrap();
        file.sync_all().unwrap();
        let mut contents = contents;
        contents.copy_within(..10, 100);
        now.insert(name, contents);
        synced.push((recording.recorder().mark(), now.clone()));
    }
    synced
}

fn record(fs_type: FsType, initial: Devices, options: &str) -> (Recording, Synced) {
    let recording = KernelRecording::start(fs_type, initial, options).unwrap();
    let synced = workload(&recording);
    (recording.power_off().unwrap(), synced)
}

/// States at which something was synced before, one in so many.
fn states(recording: &Recording, one_in: usize) -> impl Iterator<Item = CrashState<'_>> {
    let options = CrashOptions {
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let states = recording.crash_states(options).map(Result::unwrap);
    states.skip(one_in / 2).step_by(one_in)
}

/// The files that must be found with these contents after a crash at `position`: those that were
/// synced last, except the one that the next round replaces.
fn expected(synced: &Synced, position: usize) -> BTreeMap<String, Vec<u8>> {
    let (before, after): (Vec<_>, Vec<_>) =
        synced.iter().partition(|(synced, _)| *synced <= position);
    let mut expected = before.last().unwrap().1.clone();
    if let Some((_, next)) = after.first() {
        expected.retain(|name, contents| next.get(name) == Some(contents));
    }
    expected
}

fn assert_held(root: &Path, expected: &BTreeMap<String, Vec<u8>>, position: usize) {
    for (name, contents) in expected {
        let found = std::fs::read(root.join(name));
        let is_same = found.is_ok_and(|found| found == *contents);
        assert!(is_same, "{name} after a crash at {position}");
    }
}

/// Mounts the states with the kernel, which replays their logs, and runs the checker then. Returns
/// how many had something to replay.
fn recover_by_kernel(
    fs_type: FsType,
    recording: &Recording,
    synced: &Synced,
    one_in: usize,
) -> usize {
    let mut replayed = 0;
    for state in states(recording, one_in) {
        let images = ImageFiles::of(&shared(state.devices().unwrap())).unwrap();
        let paths = images.paths();
        replayed += usize::from(!crate::loopdev::is_clean(fs_type, &paths).unwrap());
        let mount = Mount::images(fs_type, &paths, "", Access::ReadWrite).unwrap();
        assert_held(
            mount.root(),
            &expected(synced, state.position),
            state.position,
        );
        mount.unmount_all(&paths).unwrap();
        let verdict = oracle::fsck(fs_type, &paths).unwrap();
        assert!(verdict.is_clean(), "{}: {verdict:?}", state.position);
    }
    replayed
}

#[test]
fn ext4_journals_cut_anywhere_are_replayed_by_all() {
    let scene = scene("ext4_4k").unwrap();
    let (recording, synced) = record(FsType::Ext4, scene.images().unwrap(), "");
    let mut dirty = 0;
    for state in states(&recording, 20) {
        let devices = shared(state.devices().unwrap());
        let expected = expected(&synced, state.position);
        let images = ImageFiles::of(&devices).unwrap();
        dirty += usize::from(!crate::loopdev::is_clean(FsType::Ext4, &images.paths()).unwrap());
        let mut lines = images.recover(scene).unwrap();
        // The kernel counts in the groups, and stores the sums when it unmounts.
        lines.retain(|line| !line.starts_with("Free ") && line != "Fix? yes");
        assert!(lines.is_empty(), "{}: {lines:?}", state.position);
        let left = images.complaints(scene).unwrap();
        assert!(left.is_empty(), "{}: {left:?}", state.position);
        let mount = Mount::images(FsType::Ext4, &images.paths(), "", Access::ReadOnly).unwrap();
        assert_held(mount.root(), &expected, state.position);
        drop(mount);
        let fs = scene.mount(&devices, 1).unwrap();
        for (name, contents) in &expected {
            let file = platter_vfs::PathWalk::new(&*fs).resolve_no_follow(name.as_bytes());
            let mut found = vec![0; contents.len() + 1];
            let count = file.unwrap().read_at(0, &mut found).unwrap();
            assert!(
                found[..count] == **contents,
                "{name} after a crash at {}",
                state.position
            );
        }
        fs.unmount().unwrap();
        assert!(
            scene.check(&devices).unwrap().is_empty(),
            "{}",
            state.position
        );
    }
    assert!(dirty > 10, "{dirty}");
}

#[test]
fn btrfs_log_trees_are_cut_out_of_fsyncs() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    oracle::btrfs::make(&[&image], 128 << 10, &["-m", "single"]).unwrap();
    let initial = devices_of_files(&[&image], 4096).unwrap();
    let (recording, synced) = record(FsType::Btrfs, initial, "commit=300");
    let replayed = recover_by_kernel(FsType::Btrfs, &recording, &synced, 25);
    assert!(replayed > 5, "{replayed}");
}

#[test]
fn btrfs_mirror_is_recorded_over_both_members() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    oracle::btrfs::make(&[&one, &two], 160 << 10, &["-d", "raid1", "-m", "raid1"]).unwrap();
    let initial = devices_of_files(&[&one, &two], 4096).unwrap();
    let (recording, synced) = record(FsType::Btrfs, initial, "commit=300");
    let members: std::collections::BTreeSet<_> = recording
        .events()
        .iter()
        .map(|event| event.member)
        .collect();
    assert_eq!(members.len(), 2);
    let replayed = recover_by_kernel(FsType::Btrfs, &recording, &synced, 200);
    assert!(replayed > 0, "{replayed}");
}

#[test]
fn xfs_logs_cut_anywhere_are_recovered_by_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    oracle::xfs::make(&image, 32 << 10, &["-m", "rmapbt=1"]).unwrap();
    let initial = devices_of_files(&[&image], 512).unwrap();
    let (recording, synced) = record(FsType::Xfs, initial, "");
    let replayed = recover_by_kernel(FsType::Xfs, &recording, &synced, 20);
    assert!(replayed > 10, "{replayed}");
}

#[test]
fn refused_mount_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let initial = devices_of_files(&[&image], 512).unwrap();
    assert!(KernelRecording::start(FsType::Xfs, initial, "").is_err());
}
