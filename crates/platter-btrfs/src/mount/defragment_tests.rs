//! Extents that are written anew: how many are left, and what a crash leaves of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::sim::{CrashOptions, Recorder, RecordingDevice};
use platter_block::{BlockDevice, MemoryDevice};
use platter_vfs::{
    Condition, Context, CreateKind, Defragment, Error, Filesystem, Inode, Place, SetAttr,
};

use super::Btrfs;
use super::full_tests::{fill, is_full, unlink};
use super::write_tests::{compressing, mount, mount_with, name, read};
use crate::file::{Backing, Runs};
use crate::ondisk::TreeId;
use crate::ondisk::file_extent::Compression;
use crate::txn::tests::Random;
use crate::txn::tests::crash::store;
use crate::txn::tests::image::{Pool, mount_without_thread};

/// `FS_NOCOW_FL`.
const NOCOW: u32 = 0x80_0000;

/// Makes files in turns, a piece of each in a commit.
fn make_pieces(mounted: &Btrfs, paths: &[&str], pieces: u64, piece_bytes: usize) {
    let root = mounted.root().unwrap();
    let context = Context::root();
    for path in paths {
        root.create(&context, name(path), CreateKind::Regular, 0o644)
            .unwrap();
    }
    if let Ok(file) = root.lookup(name("nocow")) {
        let changes = SetAttr {
            flags: Some(NOCOW),
            ..SetAttr::default()
        };
        file.set_attr(&context, &changes).unwrap();
    }
    let mut random = Random(11);
    for piece in 0..pieces {
        for path in paths {
            let file = root.lookup(name(path)).unwrap();
            let bytes = half_noise(&mut random, piece_bytes);
            file.write_at(piece * piece_bytes as u64, &bytes).unwrap();
            file.sync(false).unwrap();
        }
        mounted.sync().unwrap();
    }
}

/// Whether each extent is compressed, and how long it is.
fn extents(file: &dyn Inode) -> Vec<(bool, u64)> {
    let mut found = Vec::new();
    file.extents(0..u64::MAX, &mut |extent| {
        found.push((extent.encoded, extent.file.end - extent.file.start));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

/// Where each extent begins in the file, and on disk.
fn places(file: &dyn Inode) -> Vec<(u64, Option<Place>)> {
    let mut found = Vec::new();
    file.extents(0..u64::MAX, &mut |extent| {
        found.push((extent.file.start, extent.physical));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

/// The compression of each extent, and its bytes on disk, as the items have them.
fn forms(mounted: &Btrfs, file: &dyn Inode) -> Vec<(Compression, u64)> {
    mounted.sync().unwrap();
    let size = file.attr().unwrap().size_bytes;
    let context = mounted.super_block().context();
    let tree = context.required_tree(TreeId::FS).unwrap();
    let mut runs = Runs::new(context, tree, file.id().number);
    let (mut at, mut found) = (0, Vec::new());
    while at < size {
        let run = runs.at(at).unwrap();
        match run.backing {
            Backing::Data {
                place, compression, ..
            } => found.push((compression, place.disk_bytes)),
            Backing::Inline {
                data, compression, ..
            } => found.push((compression, data.len() as u64)),
            Backing::Hole | Backing::Prealloc(_) => {}
        }
        at = run.file.end;
    }
    found
}

fn create(mounted: &Btrfs, path: &str) -> Arc<dyn Inode> {
    let root = mounted.root().unwrap();
    root.create(&Context::root(), name(path), CreateKind::Regular, 0o644)
        .unwrap()
}

fn by(method: &str) -> Defragment {
    Defragment {
        compression: Some(method.to_owned()),
        ..Defragment::default()
    }
}

fn end(pool: &Pool, mounted: Btrfs) {
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let byte = |_| u8::try_from(random.below(256)).unwrap();
    (0..len).map(byte).collect()
}

/// Bytes that compress to about half.
fn half_noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = noise(random, len);
    for run in bytes.chunks_mut(64).step_by(2) {
        run.fill(0);
    }
    bytes
}

#[test]
fn short_extents_become_as_long_as_their_checksums_allow() {
    for (csum, lens) in [("crc32c", &[12 << 20][..]), ("sha256", &[4 << 20; 3])] {
        let pool = Pool::make(1, 192, &["-m", "single", "--csum", csum]);
        let mounted = mount(&pool);
        make_pieces(&mounted, &["one", "two", "nocow"], 24, 512 << 10);
        let root = mounted.root().unwrap();
        for path in ["one", "nocow"] {
            let file = root.lookup(name(path)).unwrap();
            assert_eq!(extents(&*file).len(), 24, "{path}");
            let (before, contents) = (file.attr().unwrap(), read(&*file));
            let written = file.defragment(&Defragment::default()).unwrap();
            assert_eq!(written, 12 << 20, "{path}");
            let found: Vec<u64> = extents(&*file).iter().map(|(_, len)| *len).collect();
            if path == "one" {
                assert_eq!(found, lens, "{csum}");
            } else {
                // It has no checksums.
                assert!(found.len() < 4, "{found:?}");
            }
            let after = file.attr().unwrap();
            assert_eq!(
                (after.modified, after.changed, after.sectors),
                (before.modified, before.changed, before.sectors)
            );
            assert!(read(&*file) == contents, "{path}");
            assert_eq!(file.defragment(&Defragment::default()).unwrap(), 0);
        }
        let file = root.lookup(name("two")).unwrap();
        let unknown = Defragment {
            compression: Some("zip".to_owned()),
            ..Defragment::default()
        };
        assert!(matches!(
            file.defragment(&unknown),
            Err(Error::Condition(Condition::InvalidArgument))
        ));
        let long_enough = Defragment {
            extent_bytes: 512 << 10,
            ..Defragment::default()
        };
        assert_eq!(file.defragment(&long_enough).unwrap(), 0);
        assert_eq!(extents(&*file).len(), 24);
        drop((root, file));
        mounted.unmount().unwrap();
        drop(mounted);
        pool.assert_clean();
    }
}

#[test]
fn crash_while_extents_are_written_anew_loses_nothing() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    let paths = ["one", "two", "nocow", "three"];
    let mounted = mount(&pool);
    make_pieces(&mounted, &paths, 20, 24_000);
    let contents: BTreeMap<&str, Vec<u8>> = paths
        .iter()
        .map(|path| {
            let file = mounted.root().unwrap().lookup(name(path)).unwrap();
            (*path, read(&*file))
        })
        .collect();
    mounted.unmount().unwrap();
    drop(mounted);
    let bytes = std::fs::read(&pool.images()[0]).unwrap();
    // A superblock is written in one piece.
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("base", bytes).with_blocks(4096));
    let recorder = Recorder::new(vec![base]);
    let recorded: Vec<Arc<dyn BlockDevice>> = recorder
        .devices()
        .iter()
        .map(|device| -> Arc<dyn BlockDevice> { Arc::<RecordingDevice>::clone(device) })
        .collect();
    let mounted = mount_without_thread(&recorded);
    let root = mounted.root().unwrap();
    for path in paths {
        let request = Defragment {
            compression: (path == "two").then(|| "zstd".to_owned()),
            ..Defragment::default()
        };
        let file = root.lookup(name(path)).unwrap();
        assert!(file.defragment(&request).unwrap() > 400_000, "{path}");
        if path == "one" {
            file.sync(false).unwrap();
        } else {
            mounted.sync().unwrap();
        }
    }
    let two = root.lookup(name("two")).unwrap();
    assert!(extents(&*two).iter().any(|(encoded, _)| *encoded));
    drop((root, two));
    mounted.unmount().unwrap();
    drop(mounted);
    let recording = recorder.recording();
    let judged = Pool::empty(1);
    let (mut states, mut checked, mut old, mut new) = (0, 0, 0, 0);
    for state in recording.crash_states(CrashOptions::default()) {
        let state = state.unwrap();
        states += 1;
        if states % 3 != 0 {
            continue;
        }
        checked += 1;
        let devices: Vec<Arc<dyn BlockDevice>> = state
            .devices()
            .unwrap()
            .into_iter()
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect();
        let mounted = mount_without_thread(&devices);
        for (path, bytes) in &contents {
            let file = mounted.root().unwrap().lookup(name(path)).unwrap();
            assert!(read(&*file) == *bytes, "{path} at {}", state.position);
            match extents(&*file).len() {
                20 => old += 1,
                count => {
                    assert!(count < 5, "{path} at {}: {count}", state.position);
                    new += 1;
                }
            }
        }
        mounted.unmount().unwrap();
        drop(mounted);
        if checked % 20 == 0 {
            store(&*devices[0], &judged.images()[0]);
            judged.assert_clean();
        }
    }
    assert!(
        checked > 30 && old > 30 && new > 30,
        "{checked} of {states} states, files {old} before and {new} after"
    );
}

#[test]
fn compressed_extents_are_written_by_their_own_method() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let methods = [
        ("zlib", Compression::Zlib),
        ("lzo", Compression::Lzo),
        ("zstd", Compression::Zstd),
    ];
    for (method, compression) in methods {
        let mounted = mount_with(&pool, compressing(method));
        make_pieces(&mounted, &[method], 32, 32 << 10);
        mounted.unmount().unwrap();
        drop(mounted);
        let mounted = mount(&pool);
        let file = mounted.root().unwrap().lookup(name(method)).unwrap();
        let (before, contents) = (forms(&mounted, &*file), read(&*file));
        assert_eq!(before.len(), 32, "{method}");
        let written = file.defragment(&Defragment::default()).unwrap();
        assert_eq!(written, 1 << 20, "{method}");
        let after = forms(&mounted, &*file);
        assert_eq!(after.len(), 8, "{method}: {after:?}");
        assert!(after.iter().all(|(form, _)| *form == compression));
        let bytes = |forms: &[(Compression, u64)]| -> u64 {
            forms.iter().map(|(_, disk_bytes)| disk_bytes).sum()
        };
        assert!(bytes(&after) <= bytes(&before), "{method}: {after:?}");
        assert!(read(&*file) == contents, "{method}");
        assert_eq!(file.defragment(&Defragment::default()).unwrap(), 0);
        drop(file);
        end(&pool, mounted);
    }
}

#[test]
fn named_methods_compress_what_gets_shorter() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool);
    let mut random = Random(5);
    let contents = [
        ("text", half_noise(&mut random, 900_000)),
        ("inline", vec![b'x'; 1500]),
        ("sector", vec![b'x'; 3000]),
        ("random", noise(&mut random, 3 << 20)),
    ];
    for (path, bytes) in &contents {
        create(&mounted, path).write_at(0, bytes).unwrap();
    }
    mounted.sync().unwrap();
    let file = |path| mounted.root().unwrap().lookup(name(path)).unwrap();
    let random_places = places(&*file("random"));
    assert!(!random_places.is_empty());
    for (method, compression) in [
        ("zstd:7", Compression::Zstd),
        ("lzo", Compression::Lzo),
        ("zlib", Compression::Zlib),
    ] {
        for path in ["text", "inline"] {
            assert!(file(path).defragment(&by(method)).unwrap() > 0, "{path}");
            let found = forms(&mounted, &*file(path));
            let is_done = |(form, _): &(Compression, u64)| *form == compression;
            assert!(found.iter().all(is_done), "{path} {method}: {found:?}");
        }
        // Nothing of it gets shorter: it stays where it is.
        for path in ["random", "sector"] {
            assert_eq!(file(path).defragment(&by(method)).unwrap(), 0, "{path}");
        }
        assert_eq!(places(&*file("random")), random_places, "{method}");
        assert_eq!(file("text").defragment(&by(method)).unwrap(), 0);
        for (path, bytes) in &contents {
            assert!(read(&*file(path)) == *bytes, "{path} {method}");
        }
    }
    end(&pool, mounted);
}

#[test]
fn what_does_not_compress_still_becomes_longer() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool);
    let file = create(&mounted, "file");
    let mut random = Random(6);
    let mut contents = Vec::new();
    for piece in 0..12u64 {
        // The last is in part text.
        let mut bytes = noise(&mut random, 256 << 10);
        if piece == 11 {
            bytes[128 << 10..].fill(b'x');
        }
        file.write_at(piece << 18, &bytes).unwrap();
        mounted.sync().unwrap();
        contents.extend(bytes);
    }
    assert_eq!(extents(&*file).len(), 12);
    assert_eq!(file.defragment(&by("zstd")).unwrap(), 3 << 20);
    let found = extents(&*file);
    let plain = |len| (false, len);
    let expected = [plain(11 << 18), plain(128 << 10), (true, 128 << 10)];
    assert_eq!(found, expected);
    let stays = places(&*file);
    // The two plain extents can become one still; then nothing is left to do.
    assert_eq!(file.defragment(&by("zstd")).unwrap(), 23 << 17);
    assert_eq!(extents(&*file), [plain(23 << 17), (true, 128 << 10)]);
    assert_eq!(places(&*file)[1], stays[2]);
    assert_eq!(file.defragment(&by("zstd")).unwrap(), 0);
    assert!(read(&*file) == contents);
    drop(file);
    end(&pool, mounted);
}

#[test]
fn extents_at_the_ends_of_a_range_move_as_a_whole() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool);
    make_pieces(&mounted, &["file"], 20, 24 << 10);
    let file = mounted.root().unwrap().lookup(name("file")).unwrap();
    let (before, contents) = (places(&*file), read(&*file));
    let request = Defragment {
        range: 30_000..100_000,
        ..Defragment::default()
    };
    // From the second to the fifth.
    assert_eq!(file.defragment(&request).unwrap(), 4 * (24 << 10));
    let after = places(&*file);
    assert_eq!(after.len(), 17);
    assert_eq!(after[0], before[0]);
    assert_eq!(after[1].0, before[1].0);
    assert_eq!(after[2..], before[5..]);
    assert_eq!(file.defragment(&request).unwrap(), 0);
    assert!(read(&*file) == contents);
    drop(file);
    end(&pool, mounted);
}

/// A file of extents of a sector each.
fn sectors(mounted: &Btrfs, path: &str, at: u64, count: u64) -> Arc<dyn Inode> {
    let root = mounted.root().unwrap();
    let file = root
        .lookup(name(path))
        .unwrap_or_else(|_| create(mounted, path));
    for half in 0..2 {
        for sector in (half..count).step_by(2) {
            let bytes = [u8::try_from(sector % 251).unwrap(); 4096];
            file.write_at(at + (sector << 12), &bytes).unwrap();
        }
        mounted.sync().unwrap();
    }
    file
}

/// Takes all space for data, but for what `count` files had that were deleted, none next to another.
fn leave(mounted: &Btrfs, count: usize) {
    let root = mounted.root().unwrap();
    assert!(fill(&*root, "large", 300_000) > 2 * count);
    fill(&*root, "rest", 4000);
    mounted.sync().unwrap();
    for number in 0..count {
        unlink(&*root, &format!("large{}", 2 * number));
    }
    mounted.sync().unwrap();
}

#[test]
fn long_extent_does_not_keep_later_ones_from_moving() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool);
    let file = create(&mounted, "file");
    file.write_at(0, &vec![1; 2 << 20]).unwrap();
    mounted.sync().unwrap();
    sectors(&mounted, "file", 2 << 20, 64);
    assert_eq!(extents(&*file).len(), 65);
    let (first, contents) = (places(&*file)[0], read(&*file));
    // Enough for all, but nowhere for the first.
    leave(&mounted, 10);
    assert_eq!(file.defragment(&Defragment::default()).unwrap(), 256 << 10);
    assert_eq!(places(&*file)[0], first);
    assert_eq!(extents(&*file), [(false, 2 << 20), (false, 256 << 10)]);
    assert!(read(&*file) == contents);
    drop(file);
    end(&pool, mounted);
}

#[test]
fn smaller_steps_are_made_where_space_is_short() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool);
    let file = sectors(&mounted, "file", 0, 512);
    let contents = read(&*file);
    leave(&mounted, 0);
    let full = file.defragment(&Defragment::default());
    assert!(is_full(&full), "{full:?}");
    assert_eq!(extents(&*file).len(), 512);
    // 300 KB of the 2 MiB.
    leave_one(&mounted);
    let written = file.defragment(&Defragment::default()).unwrap();
    assert!(written > 256 << 10, "{written}");
    let count = extents(&*file).len();
    assert!(count < 64, "{count}");
    assert!(read(&*file) == contents);
    drop(file);
    end(&pool, mounted);
}

fn leave_one(mounted: &Btrfs) {
    unlink(&*mounted.root().unwrap(), "large1");
    mounted.sync().unwrap();
}

#[test]
fn defragment_in_full_metadata_loses_nothing() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096", "--csum", "sha256"]);
    let mounted = mount(&pool);
    let file = sectors(&mounted, "file", 0, 1024);
    let contents = read(&*file);
    leave(&mounted, 30);
    let root = mounted.root().unwrap();
    let long_name = |number: usize| format!("{number:0>240}");
    let mut count = 0;
    loop {
        let path = long_name(count);
        let made = root.create(&Context::root(), name(&path), CreateKind::Regular, 0o644);
        if is_full(&made) {
            break;
        }
        made.unwrap();
        count += 1;
    }
    assert!(count > 100, "{count}");
    mounted.sync().unwrap();
    let full = file.defragment(&Defragment::default());
    assert!(full.is_ok() || is_full(&full), "{full:?}");
    mounted.sync().unwrap();
    let writing = mounted.super_block().writing().unwrap();
    assert!(writing.failure().is_none());
    assert!(read(&*file) == contents);
    for number in 0..count {
        unlink(&*root, &long_name(number));
    }
    mounted.sync().unwrap();
    let written = file.defragment(&Defragment::default()).unwrap();
    assert!(full.is_ok() || written > 0);
    assert!(extents(&*file).len() < 64);
    assert!(read(&*file) == contents);
    drop((file, root));
    end(&pool, mounted);
}
