//! Files that reach to the last byte that a file can have.

use std::ops::ControlFlow;

use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{
    Condition, Context, CreateKind, Error, FallocateMode, Filesystem, Inode, SeekTarget, SetAttr,
};

use super::write_tests::{finish, mount, name, read};
use crate::txn::tests::image::Pool;

/// The largest size.
const SIZE_MAX: u64 = i64::MAX.unsigned_abs();
/// Where the last sector begins that a file can have.
const LAST_SECTOR: u64 = SIZE_MAX & !4095;

fn resize(file: &dyn Inode, size_bytes: u64) {
    let size = SetAttr {
        size_bytes: Some(size_bytes),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &size).unwrap();
}

fn last_bytes(file: &dyn Inode, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let read = file.read_at(SIZE_MAX - len, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

/// Where the extents of the file begin and end.
fn extents(file: &dyn Inode) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut sink = |extent: platter_vfs::Extent| {
        found.push((extent.file.start, extent.file.end));
        ControlFlow::Continue(())
    };
    file.extents(0..u64::MAX, &mut sink).unwrap();
    found
}

/// Writes, shares and frees the last bytes of files.
fn change(mounted: &super::Btrfs) {
    let root = mounted.root().unwrap();
    let create = |path| {
        let made = root.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
        made.unwrap()
    };
    let file = create("file");
    file.write_at(SIZE_MAX - 3, b"abc").unwrap();
    let refused = file.write_at(SIZE_MAX - 3, b"abcd").unwrap_err();
    assert!(matches!(refused, Error::Condition(Condition::FileTooLarge)));
    file.sync(false).unwrap();
    assert_eq!(last_bytes(&*file, 4), b"\0abc");
    assert_eq!(extents(&*file), [(LAST_SECTOR, 1 << 63)]);
    assert_eq!(file.seek(0, SeekTarget::Data).unwrap(), LAST_SECTOR);
    let hole = file.seek(SIZE_MAX - 1, SeekTarget::Hole).unwrap();
    assert_eq!(hole, SIZE_MAX);
    mounted.sync().unwrap();
    let copy = create("copy");
    copy.clone_range(&*file, LAST_SECTOR..SIZE_MAX, LAST_SECTOR)
        .unwrap();
    copy.sync(false).unwrap();
    assert_eq!(last_bytes(&*copy, 3), b"abc");
    file.dedupe_range(&*copy, LAST_SECTOR..SIZE_MAX, LAST_SECTOR)
        .unwrap();
    let last = SIZE_MAX - 5000..SIZE_MAX;
    for mode in [
        FallocateMode::ZeroRange { keep_size: false },
        FallocateMode::Allocate { keep_size: false },
        FallocateMode::PunchHole,
    ] {
        file.fallocate(last.clone(), mode).unwrap();
        file.sync(false).unwrap();
        assert_eq!(last_bytes(&*file, 3), [0; 3]);
    }
    file.write_at(SIZE_MAX - 5000, &[7; 5000]).unwrap();
    file.sync(false).unwrap();
    assert_eq!(last_bytes(&*file, 5000), [7; 5000]);
    resize(&*file, SIZE_MAX - 4500);
    resize(&*file, SIZE_MAX);
    file.sync(false).unwrap();
    let mut expected = vec![0; 5000];
    expected[..500].fill(7);
    assert_eq!(last_bytes(&*file, 5000), expected);
    let sized = create("sized");
    resize(&*sized, SIZE_MAX);
    sized.sync(false).unwrap();
    resize(&*sized, SIZE_MAX - 1);
    resize(&*sized, SIZE_MAX);
    mounted.sync().unwrap();
    resize(&*sized, 100);
    assert_eq!(read(&*sized), [0; 100]);
    resize(&*sized, SIZE_MAX);
    let ops = mounted.subvolumes().unwrap();
    let (top, context) = (root.id(), Context::root());
    let snapshot = ops.snapshot(&context, top.tree, top, name("snapshot"), true);
    let sent = snapshot.unwrap().id().tree;
    let mut stream = Vec::new();
    ops.send(sent, &SendOptions::default(), &mut stream)
        .unwrap();
    assert!(stream.len() < 1 << 20, "{}", stream.len());
}

#[test]
fn files_reach_to_the_last_byte_there_can_be() {
    for options in [&["-m", "single"][..], &["-m", "single", "-O", "^no-holes"]] {
        let pool = Pool::make(1, 128, options);
        let mounted = mount(&pool);
        change(&mounted);
        finish(&pool, mounted);
        pool.run(
            "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\n\
             test \"$(stat -c %s \"$root\"/file)\" = 9223372036854775807\n\
             test \"$(tail -c 3 \"$root\"/copy)\" = abc\n\
             printf xyz | dd of=\"$root\"/made bs=1 seek=9223372036854775804 conv=fsync status=none\n",
        );
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        let made = root.lookup(name("made")).unwrap();
        assert_eq!(last_bytes(&*made, 3), b"xyz");
        drop(made);
        for path in ["file", "copy", "sized", "made"] {
            root.unlink(&Context::root(), name(path)).unwrap();
        }
        drop(root);
        finish(&pool, mounted);
    }
}

#[test]
fn last_byte_that_was_synced_outlives_a_crash() {
    for options in [&["-m", "single"][..], &["-m", "single", "-O", "^no-holes"]] {
        let pool = Pool::make(1, 128, options);
        let mounted = pool.mount_without_thread();
        let root = mounted.root().unwrap();
        mounted.sync().unwrap();
        let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
        let file = file.unwrap();
        file.write_at(SIZE_MAX - 3, b"abc").unwrap();
        file.sync(false).unwrap();
        drop((file, root));
        // As after a crash.
        drop(mounted);
        let mounted = mount(&pool);
        let file = mounted.root().unwrap().lookup(name("file")).unwrap();
        assert_eq!(last_bytes(&*file, 4), b"\0abc");
        drop(file);
        finish(&pool, mounted);
    }
}
