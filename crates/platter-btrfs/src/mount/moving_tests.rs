//! Files that are written in place while their data moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use platter_block::sim::CrashOptions;
use platter_vfs::devices::{Balance, Moved};
use platter_vfs::{Context, Filesystem, Inode};

use super::Btrfs;
use super::devices_in_use_tests::{assert_whole, devices, to_the_end};
use super::write_tests::{create, mount_in_place, name, read};
use crate::txn::tests::Random;
use crate::txn::tests::concurrent::wait_until;
use crate::txn::tests::crash::{devices_of, record};
use crate::txn::tests::image::Pool;

const FILES: usize = 12;
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 4096;
/// Files that are removed, so that the others are in chunks that are used in part.
const FILLERS: usize = 48;

/// Files of zeros, and a clone of each where that is asked for.
fn fill(fs: &Btrfs, has_clones: bool) -> Vec<Arc<dyn Inode>> {
    let root = fs.root().unwrap();
    let mut files = Vec::new();
    for number in 0..FILLERS {
        create(&*root, &format!("filler{number}"))
            .write_at(0, &Random(number as u64).bytes(1 << 20))
            .unwrap();
        if number % (FILLERS / FILES) == 0 {
            let file = create(&*root, &format!("file{}", files.len()));
            file.write_at(0, &vec![0; BLOCKS * BLOCK_BYTES]).unwrap();
            files.push(file);
        }
        fs.sync().unwrap();
    }
    for (number, file) in files.iter().enumerate().filter(|_| has_clones) {
        let clone = create(&*root, &format!("clone{number}"));
        let range = 0..(BLOCKS * BLOCK_BYTES) as u64;
        clone.clone_range(&**file, range, 0).unwrap();
    }
    for number in 0..FILLERS {
        let path = format!("filler{number}");
        root.unlink(&Context::root(), name(&path)).unwrap();
    }
    fs.sync().unwrap();
    files
}

/// Has a writer stop, also when a test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Moves what is in data chunks that are used in part, while `write` is called again and again.
fn move_while(fs: &Btrfs, mut write: impl FnMut() + Send) -> Moved {
    let words = Balance {
        data: Some("usage=90".to_owned()),
        ..Balance::default()
    };
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stops = Stops(&stop);
        let writer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        wait_until(|| count.load(Ordering::Relaxed) > 10 || writer.is_finished());
        let moved = devices(fs).balance(&words, &mut to_the_end);
        drop(stops);
        writer.join().unwrap();
        moved.unwrap()
    })
}

#[test]
fn clones_keep_their_contents_while_data_moves() {
    let pool = Pool::make(1, 400, &["-d", "single", "-m", "single"]);
    let fs = mount_in_place(&pool.devices());
    let files = fill(&fs, true);
    let mut written = vec![vec![0_u8; BLOCKS * BLOCK_BYTES]; FILES];
    let mut random = Random(1);
    let moved = move_while(&fs, || {
        let number = usize::try_from(random.below(FILES as u64)).unwrap();
        let at = usize::try_from(random.below(BLOCKS as u64)).unwrap() * BLOCK_BYTES;
        let bytes = random.bytes(BLOCK_BYTES as u64);
        files[number].write_at(at as u64, &bytes).unwrap();
        written[number][at..at + BLOCK_BYTES].copy_from_slice(&bytes);
        if random.below(3) == 0 {
            files[number].sync(false).unwrap();
        }
    });
    assert!(moved.removed > 0, "{moved:?}");
    drop(files);
    let assert_contents = |fs: &Btrfs| {
        let root = fs.root().unwrap();
        for (number, written) in written.iter().enumerate() {
            let read = |path: &str| read(&*root.lookup(name(path)).unwrap());
            assert!(read(&format!("file{number}")) == *written, "file{number}");
            let is_zeros = read(&format!("clone{number}"))
                .iter()
                .all(|byte| *byte == 0);
            assert!(is_zeros, "clone{number}");
        }
    };
    assert_contents(&fs);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
    let fs = mount_in_place(&pool.devices());
    assert_contents(&fs);
    fs.unmount().unwrap();
}

/// Power fails while data moves that is written in place: each state has what was synced before.
#[test]
fn synced_overwrites_of_data_that_moves_survive_a_crash() {
    let pool = Pool::make(1, 400, &["-d", "single", "-m", "single"]);
    let (recorder, recorded) = record(&pool);
    let fs = mount_in_place(&recorded);
    let files = fill(&fs, false);
    let first_position = recorder.mark();
    // How often each block was written, and what was synced when.
    let mut versions = BTreeMap::new();
    let mut synced = Vec::new();
    let mut random = Random(2);
    let moved = move_while(&fs, || {
        let number = usize::try_from(random.below(FILES as u64)).unwrap();
        let block = usize::try_from(random.below(BLOCKS as u64)).unwrap();
        let version: &mut u8 = versions.entry((number, block)).or_default();
        *version = version.saturating_add(1);
        let at = (block * BLOCK_BYTES) as u64;
        files[number]
            .write_at(at, &[*version; BLOCK_BYTES])
            .unwrap();
        files[number].sync(false).unwrap();
        synced.push((recorder.mark(), (number, block), *version));
    });
    assert!(moved.removed > 0, "{moved:?}");
    drop(files);
    drop(fs);
    let options = CrashOptions {
        first_position,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let recording = recorder.recording();
    // As each of them returned, what the device had may be lost.
    let mut marks: BTreeSet<_> = synced.iter().map(|(mark, ..)| *mark).collect();
    let mut judged = 0;
    for state in recording.crash_states(options) {
        if !marks.remove(&state.as_ref().unwrap().position) {
            continue;
        }
        judged += 1;
        let state = state.unwrap();
        let fs = mount_in_place(&devices_of(&state));
        let root = fs.root().unwrap();
        let read = |number| read(&*root.lookup(name(&format!("file{number}"))).unwrap());
        let contents: Vec<_> = (0..FILES).map(read).collect();
        for (_, (number, block), version) in synced.iter().filter(|it| it.0 <= state.position) {
            let found = contents[*number][block * BLOCK_BYTES];
            assert!(
                found >= *version,
                "at {}: block {block} of file{number} has {found}, and not {version}",
                state.position
            );
        }
    }
    assert!(judged > 20, "{judged} states");
}
