//! Power failures at every write of several commits: each state is that of a commit, and of no older one
//! than the last that had returned.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_block::sim::{CrashOptions, CrashState, Recorder, RecordingDevice};
use platter_block::{BlockDevice, MemoryDevice};
use platter_vfs::Trim;

use super::Random;
use super::image::{self, Pool};
use super::xattrs::{Xattrs, change};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::dir_item::Xattr;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::{WriteContext, WriteOptions, chunks, trim, unused};

/// The attributes of the root directory.
pub(super) fn read(fs: &WriteContext) -> Xattrs {
    let mut found = Xattrs::new();
    let tree = fs.tree(TreeId::FS).unwrap();
    let root = tree.lock().now.tree;
    let mut cursor = crate::tree::Cursor::new(fs.blocks(), root);
    let first = Key::new(FIRST_FREE_OBJECT, ItemKind::XATTR_ITEM, 0);
    cursor.seek(first).unwrap();
    while let Some((key, data)) = cursor.item()
        && (key.object, key.kind) == (first.object, first.kind)
    {
        for xattr in Xattr::decode_all(key, data, root.locus(key)).unwrap() {
            let name = String::from_utf8(xattr.name.to_vec()).unwrap();
            found.insert(name, xattr.value.to_vec());
        }
        cursor.step().unwrap();
    }
    found
}

/// Writes what is not zero of a device into a file.
pub(crate) fn store(device: &dyn BlockDevice, path: &Path) {
    let len_bytes = device.geometry().len_bytes;
    let mut file = File::create(path).unwrap();
    file.set_len(len_bytes).unwrap();
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < len_bytes {
        device.read_at(at, &mut piece).unwrap();
        if piece.iter().any(|byte| *byte != 0) {
            std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at)).unwrap();
            file.write_all(&piece).unwrap();
        }
        at += piece.len() as u64;
    }
}

/// Records what becomes of copies of the images.
pub(crate) fn record(pool: &Pool) -> (Recorder, Vec<Arc<dyn BlockDevice>>) {
    let base = |path: &PathBuf| -> Arc<dyn BlockDevice> {
        let bytes = std::fs::read(path).unwrap();
        // A superblock is written in one piece, as on disks with sectors of 4096 bytes.
        Arc::new(MemoryDevice::new("base", bytes).with_blocks(4096))
    };
    let recorder = Recorder::new(pool.images().iter().map(base).collect());
    let recorded = recorder.devices().iter();
    let recorded = recorded.map(|it| -> Arc<dyn BlockDevice> { Arc::<RecordingDevice>::clone(it) });
    let recorded = recorded.collect();
    (recorder, recorded)
}

/// The devices that a power failure left.
pub(crate) fn devices_of(state: &CrashState<'_>) -> Vec<Arc<dyn BlockDevice>> {
    let devices = state.devices().unwrap().into_iter();
    devices
        .map(|it| -> Arc<dyn BlockDevice> { Arc::new(it) })
        .collect()
}

/// Panics unless `btrfs check` finds nothing, for which images are written.
pub(super) fn assert_clean(devices: &[Arc<dyn BlockDevice>], images: &Pool) {
    for (device, path) in devices.iter().zip(images.images()) {
        store(&**device, path);
    }
    images.assert_clean();
}

fn examine(devices: usize, mkfs: &[&str], commits: u64, checked_of: usize) {
    examine_with(devices, mkfs, (commits, checked_of), false);
}

/// Examines states of commits, which discard what they free, and other free space, where that is asked for.
fn examine_with(
    devices: usize,
    mkfs: &[&str],
    (commits, checked_of): (u64, usize),
    discards: bool,
) {
    let pool = Pool::make(devices, 128, mkfs);
    let (recorder, recorded) = record(&pool);
    let options = WriteOptions {
        discards,
        ..WriteOptions::default()
    };
    let fs = image::open(&recorded, options).unwrap();
    let first = fs.superblock().generation.0;
    let mut random = Random(devices as u64);
    let mut xattrs = Xattrs::new();
    // The attributes of each commit, and the position in the log when it had returned.
    let mut history = vec![xattrs.clone()];
    let mut returned = BTreeMap::from([(0, 0)]);
    for commit in 1..=commits {
        // Chunks come and go as well.
        if commit % 2 == 1 {
            let kind = BlockGroupFlags::DATA;
            assert!(chunks::grow_space(&fs, kind, fs.groups().free_bytes(kind)).unwrap());
        } else {
            assert!(unused::remove_groups(&fs).unwrap() > 0);
        }
        change(&fs, &mut random, &mut xattrs, 60);
        fs.sync().unwrap();
        history.push(xattrs.clone());
        returned.insert(recorder.mark(), commit);
        if discards {
            let all = Trim {
                start_bytes: 0,
                len_bytes: u64::MAX,
                min_bytes: 0,
            };
            assert!(trim::trim(&fs, &all).unwrap() > 0);
        }
    }
    drop(fs);
    let recording = recorder.recording();
    let mut states = 0;
    let judged = Pool::empty(devices);
    for state in recording.crash_states(CrashOptions::default()) {
        let state = state.unwrap();
        let devices = devices_of(&state);
        let fs = image::open(&devices, WriteOptions::default()).unwrap();
        let commit = fs.superblock().generation.0 - first;
        let (_, durable) = returned.range(..=state.position).next_back().unwrap();
        assert!(
            commit >= *durable,
            "commit {durable} was lost at {}",
            state.position
        );
        let found = read(&fs);
        assert!(
            found == history[usize::try_from(commit).unwrap()],
            "commit {commit}"
        );
        drop(fs);
        if states % checked_of == 0 {
            assert_clean(&devices, &judged);
        }
        states += 1;
    }
    assert!(states > 60, "{states} states");
}

#[test]
fn discards_leave_what_a_power_failure_needs() {
    examine_with(1, &[], (4, 9), true);
    examine_with(2, &["-d", "raid1", "-m", "raid1"], (3, 9), true);
}

#[test]
fn crash_leaves_one_of_the_commits() {
    examine(1, &[], 4, 25);
}

#[test]
fn crash_between_two_mirrors_leaves_one_of_the_commits() {
    examine(2, &["-d", "raid1", "-m", "raid1"], 3, 60);
}

#[test]
fn crash_within_rows_with_parity_leaves_one_of_the_commits() {
    examine(3, &["-d", "raid5", "-m", "raid5"], 2, 60);
    examine(4, &["-d", "raid6", "-m", "raid6"], 2, 90);
}
