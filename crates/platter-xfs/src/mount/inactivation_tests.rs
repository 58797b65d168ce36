//! Inodes without names become free together, and count as free space before.

use platter_vfs::{Condition, Context, CreateKind, Error, FallocateMode};

use super::tests::{create, mount, name, new_device};
use super::writing::has_unlinked;
use super::*;
use crate::ondisk::AgNr;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("file-{number}")).collect()
}

#[test]
fn unlinked_inodes_become_free_in_few_transactions() {
    let device = new_device();
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let inodes_used = || {
        let stat = xfs.stat_fs().unwrap();
        stat.inodes - stat.inodes_free
    };
    let used = inodes_used();
    let names = names(40);
    for text in &names {
        create(&*root, text, CreateKind::Regular).unwrap();
    }
    assert_eq!(inodes_used(), used + 40);
    let log = xfs.context().log().unwrap();
    let begun = log.changes();
    for text in &names {
        root.unlink(&Context::root(), name(text)).unwrap();
    }
    // Of each name, and of the first inodes.
    assert_eq!(log.changes() - begun, 40 + 1);
    assert!(has_unlinked(xfs.context()).unwrap());
    assert_eq!(inodes_used(), used);
    assert_eq!(log.changes() - begun, 40 + 2);
    assert!(!has_unlinked(xfs.context()).unwrap());
    drop(root);
    xfs.unmount().unwrap();
    assert_eq!(mount(&device).stat_fs().unwrap().blocks_free, {
        let fresh = mount(&new_device());
        fresh.stat_fs().unwrap().blocks_free
    });
}

#[test]
fn inodes_in_use_become_free_after_their_last_user() {
    let device = new_device();
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let file = create(&*root, "file", CreateKind::Regular).unwrap();
    root.unlink(&Context::root(), name("file")).unwrap();
    xfs.sync().unwrap();
    assert!(has_unlinked(xfs.context()).unwrap());
    assert_eq!(file.attr().unwrap().links, 0);
    drop(file);
    xfs.freeze().unwrap();
    assert!(!has_unlinked(xfs.context()).unwrap());
    xfs.thaw().unwrap();
    drop(root);
    xfs.unmount().unwrap();
}

#[test]
fn inodes_about_to_be_free_are_found_when_there_is_no_space() {
    let device = new_device();
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let file = create(&*root, "contents", CreateKind::Regular).unwrap();
    let chunks = || xfs.context().agi(AgNr(0)).unwrap().count;
    let names = names(200);
    // Those of the last chunk.
    let mut last = 0;
    for (index, text) in names.iter().enumerate() {
        let before = chunks();
        create(&*root, text, CreateKind::Regular).unwrap();
        if chunks() > before {
            last = index;
        }
        if last > 64 && index == last + 20 {
            break;
        }
    }
    let mut len = 64_u64 << 20;
    while len >= 4096 {
        let size = file.attr().unwrap().size_bytes;
        let mode = FallocateMode::Allocate { keep_size: false };
        if file.fallocate(size..size + len, mode).is_err() {
            len /= 2;
        }
    }
    // With the blocks of a chunk of inodes there is space for a file, and without them there is not.
    let chunk = u64::from(xfs.context().geometry().chunk_blocks());
    file.fallocate(0..chunk * 4096, FallocateMode::PunchHole)
        .unwrap();
    let error = create(&*root, "more", CreateKind::Regular).err().unwrap();
    assert!(
        matches!(error, Error::Condition(Condition::NoSpace)),
        "{error}"
    );
    for text in &names[last..=last + 20] {
        root.unlink(&Context::root(), name(text)).unwrap();
    }
    assert!(has_unlinked(xfs.context()).unwrap());
    create(&*root, "more", CreateKind::Regular).unwrap();
    assert!(!has_unlinked(xfs.context()).unwrap());
    drop((root, file));
    xfs.unmount().unwrap();
}
