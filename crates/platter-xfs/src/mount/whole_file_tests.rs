//! Files that are made as a whole, in a full filesystem, with writes that fail, by several threads, and cut.

use std::thread;

use platter_block::Operation;
use platter_block::sim::{CrashOptions, Effect, Fault, FaultDevice, Recorder, When};
use platter_ondisk::Uuid;
use platter_vfs::{Condition, Context, CreateKind, Error, Inode, Timestamp, Unmade, WholeFile};

use super::tests::{assert_sound, create, device_of, mount, name, new_device};
use super::*;
use crate::mkfs::MkfsOptions;

/// Names of so many files, each `width` bytes long at least.
fn names(count: usize, width: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{number:0width$}"))
        .collect()
}

fn whole<'a>(names: &'a [String], contents: &'a [u8]) -> Vec<WholeFile<'a>> {
    let file = |text: &'a String| WholeFile {
        name: name(text),
        uid: 1,
        gid: 2,
        permissions: 0o640,
        modified: Timestamp::default(),
        contents,
    };
    names.iter().map(file).collect()
}

fn directory(xfs: &Xfs, text: &str) -> Arc<dyn Inode> {
    create(&*xfs.root().unwrap(), text, CreateKind::Directory).unwrap()
}

/// Free blocks and free inodes, which are as many after another mount.
fn free(xfs: &Xfs) -> (u64, u64) {
    let found = xfs.stat_fs().unwrap();
    (found.blocks_free, found.inodes_free)
}

/// Unmounts, and compares what was counted with what the groups have.
fn assert_counted(xfs: Xfs, device: &Arc<dyn BlockDevice>, context: &str) {
    let counted = free(&xfs);
    xfs.unmount().unwrap();
    drop(xfs);
    assert_sound(device, context);
    let xfs = mount(device);
    assert_eq!(free(&xfs), counted, "{context}");
    xfs.unmount().unwrap();
}

#[test]
fn full_filesystem_has_those_before_the_first_that_failed() {
    let device = new_device();
    let xfs = mount(&device);
    let dir = directory(&xfs, "dir");
    xfs.sync().unwrap();
    let before = free(&xfs).0;
    let names = names(100_000, 4);
    let contents = vec![7; 50_000];
    let files = whole(&names, &contents);
    let Unmade { index, error } = dir.create_whole(&files).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::NoSpace)));
    assert!(index > 100, "{index}");
    let mut read = vec![0; contents.len()];
    for file in &files[..index] {
        let inode = dir.lookup(file.name).unwrap();
        assert_eq!(inode.read_at(0, &mut read).unwrap(), read.len());
        assert!(read == contents);
        drop(inode);
        dir.unlink(&Context::root(), file.name).unwrap();
    }
    xfs.sync().unwrap();
    // Some of the inodes stay, and the directory has its blocks.
    assert!(before - free(&xfs).0 < 200);
    drop(dir);
    assert_counted(xfs, &device, "full");
}

#[test]
fn contents_that_are_not_written_take_no_space() {
    let memory = new_device();
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&faulty) as _;
    let xfs = mount(&device);
    let dir = directory(&xfs, "dir");
    xfs.sync().unwrap();
    faulty.arm(Fault {
        operation: Operation::Write,
        when: When::Nth(1),
        effect: Effect::Tear { seed: 1 },
    });
    let (names, contents) = (names(20, 1), [7; 5000]);
    // One after the other, they are.
    dir.create_whole(&whole(&names, &contents)).unwrap();
    assert_eq!(faulty.hits(), 1);
    xfs.sync().unwrap();
    drop(dir);
    assert_counted(xfs, &memory, "write failed");
}

#[test]
fn threads_that_make_whole_files_begin_again() {
    let device = new_device();
    let xfs = mount(&device);
    let dirs: Vec<_> = names(4, 1)
        .iter()
        .map(|text| directory(&xfs, text))
        .collect();
    let (names, contents) = (names(600, 3), [7; 5000]);
    thread::scope(|scope| {
        for dir in &dirs {
            scope.spawn(|| dir.create_whole(&whole(&names, &contents)).unwrap());
        }
    });
    for dir in &dirs {
        for text in &names {
            assert_eq!(
                dir.lookup(name(text)).unwrap().attr().unwrap().size_bytes,
                5000
            );
        }
    }
    drop(dirs);
    assert_counted(xfs, &device, "threads");
}

#[test]
fn long_names_with_pointers_to_parents_are_made_together() {
    let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
    options.set_feature("parent", true).unwrap();
    let device = device_of(&options);
    let xfs = mount(&device);
    let dir = directory(&xfs, "dir");
    let names = names(300, 255);
    dir.create_whole(&whole(&names, b"contents")).unwrap();
    for text in &names {
        dir.lookup(name(text)).unwrap();
    }
    drop(dir);
    assert_counted(xfs, &device, "long names");
}

#[test]
fn inodes_stay_within_the_part_of_the_space_they_may_take() {
    let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
    options.inode_percent = 1;
    let device = device_of(&options);
    let xfs = mount(&device);
    let most = xfs.context().inodes_max().unwrap();
    let dir = directory(&xfs, "dir");
    let names = names(20_000, 1);
    let Unmade { index, error } = dir.create_whole(&whole(&names, &[])).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::NoSpace)));
    let made = u64::try_from(xfs.context().mount().inodes().sum()).unwrap();
    assert!(made <= most, "{made} of {most}");
    assert!(index as u64 + 64 > most - 64, "{index} of {most}");
    drop(dir);
    assert_counted(xfs, &device, "inodes");
}

/// A name that is there leads to all contents, whatever part of the writes was done.
#[test]
fn crash_leaves_whole_files_or_none() {
    let recorder = Recorder::new(vec![new_device()]);
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    let xfs = mount(&device);
    let dir = directory(&xfs, "dir");
    xfs.sync().unwrap();
    let before = recorder.mark();
    let (names, contents) = (names(100, 1), [7; 5000]);
    let files = whole(&names, &contents);
    for part in files.chunks(25) {
        dir.create_whole(part).unwrap();
        dir.sync(false).unwrap();
    }
    let after = recorder.mark();
    drop((dir, xfs));
    let options = CrashOptions {
        first_position: before,
        ..CrashOptions::default()
    };
    let mut counts = std::collections::BTreeSet::new();
    for state in recorder.recording().crash_states(options) {
        let state = state.unwrap();
        let context = format!("at {}", state.position);
        let cut: Arc<dyn BlockDevice> = Arc::new(state.device().unwrap());
        let xfs = mount(&cut);
        let dir = xfs.root().unwrap().lookup(name("dir")).unwrap();
        let mut count = 0;
        for file in &files {
            let Ok(found) = dir.lookup(file.name) else {
                break;
            };
            let mut read = vec![0; 6000];
            assert_eq!(found.read_at(0, &mut read).unwrap(), 5000, "{context}");
            assert!(read[..5000] == contents, "{context}");
            count += 1;
        }
        assert!(count == 100 || state.position < after, "{context}: {count}");
        counts.insert(count);
        drop(dir);
        xfs.unmount().unwrap();
        drop(xfs);
        assert_sound(&cut, &context);
    }
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [0, 25, 50, 75, 100]);
}
