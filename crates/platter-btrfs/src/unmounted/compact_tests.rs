//! Balances that put the extents of several chunks into fewer: contents, and what subvolumes share, stay as they are.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use platter_block::sim::CrashOptions;
use platter_cache::MemoryBudget;
use platter_vfs::check::Severity;
use platter_vfs::devices::{Balance, Moved};
use platter_vfs::{CheckSink, Finding};

use super::tests::{request, request_of, to_the_end};
use crate::context::ListedExtent;
use crate::mount::{Btrfs, MountOptions};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{DeviceId, Key, TreeId};
use crate::pool::{BalanceArgs, BalanceFilter};
use crate::txn::WriteContext;
use crate::txn::tests::crash::{devices_of, record, store};
use crate::txn::tests::image::{CHECK_DATA, Pool};
use crate::txn::tests::locations::make_first_copies_older;

/// Chunks that are used in part, with extents of all forms, which snapshots and files share.
const FILL: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
btrfs -q subvolume create sub
for it in $(seq 60); do
    head -c 3000000 /dev/urandom > sub/large$it
    head -c 1500 /dev/urandom > sub/inline$it
done
sync -f .
btrfs -q subvolume snapshot -r sub snap1
btrfs -q subvolume snapshot sub snap2
# Parts of extents.
for it in 3 9 15 21 27; do
    dd if=/dev/urandom of=sub/large$it bs=4096 seek=100 count=50 conv=notrunc status=none
    dd if=/dev/urandom of=snap2/large$it bs=4096 seek=300 count=50 conv=notrunc status=none
    cp --reflink=always sub/large$it clone$it
    truncate -s 1000000 clone$it
done
for it in $(seq 60); do
    touch packed$it
    btrfs property set packed$it compression zstd
    seq $it 40000 > packed$it
done
touch plain && chattr +C plain
head -c 5000000 /dev/urandom > plain
for it in $(seq 20); do
    fallocate -l 1000000 allocated$it
    dd if=/dev/urandom of=allocated$it bs=4096 seek=10 count=9 conv=notrunc status=none
done
mkdir many
for it in $(seq 2000); do echo $it > many/file$it; done
sync -f .
btrfs -q subvolume snapshot snap2 snap3
for it in $(seq 60); do
    # What stays is in all chunks.
    if [ $((it % 3)) -ne 0 ]; then
        rm sub/large$it snap2/large$it snap3/large$it packed$it
    fi
done
for it in $(seq 100 1900); do rm many/file$it; done
btrfs -q property set snap1 ro false
for it in $(seq 60); do
    if [ $((it % 3)) -ne 0 ]; then rm snap1/large$it; fi
done
btrfs -q property set snap1 ro true
sync -f .
head -c 100000 /dev/urandom > snap2/large3
btrfs -q subvolume snapshot snap2 snap4
sync -f .
cd /
umount "$root"
mount -t btrfs -o "$options" "$device" "$root"
sync -f "$root"
"#;

const SUMS: &str = r#"
btrfs inspect-internal dump-tree -t root "$device" | grep -o 'ctransid [0-9]*'
mount -t btrfs -o "ro,$options" "$device" "$root"
cd "$root"
find . -type f | sort | xargs md5sum
find . -printf '%p %m %s %T@ %C@\n' | sort
cd /
"#;

/// The kernel changes what is shared, removes subvolumes, and balances.
const GO_ON: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
head -c 300000 /dev/urandom > sub/large6
rm snap2/large9
for it in $(seq 200); do echo $it > snap3/more$it; done
btrfs -q subvolume snapshot snap4 snap5
sync -f .
btrfs -q subvolume delete -c snap4 snap1 > /dev/null
btrfs -q subvolume sync .
rm -f snap5/large12 clone15
btrfs -q balance start --full-balance . > /dev/null
cd /
"#;

/// How much is used of which chunks.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    data_chunks: usize,
    metadata_chunks: usize,
    data_bytes: u64,
    metadata_bytes: u64,
}

fn usage(pool: &Pool) -> Usage {
    let fs = request(pool).open().unwrap();
    let of = |kind: BlockGroupFlags| {
        let groups = fs.groups().iter().filter(move |it| it.holds(kind));
        groups.map(|it| it.space().used).collect::<Vec<_>>()
    };
    let (data, metadata) = (of(BlockGroupFlags::DATA), of(BlockGroupFlags::METADATA));
    println!("{data:?} {metadata:?}");
    Usage {
        data_chunks: data.len(),
        metadata_chunks: metadata.len(),
        data_bytes: data.iter().sum(),
        metadata_bytes: metadata.iter().sum(),
    }
}

fn copy(from: &Path, to: &Path) {
    let mut cp = Command::new("cp");
    cp.args(["--sparse=always"]).args([from, to]);
    assert!(cp.status().unwrap().success());
}

fn balance(pool: &Pool, data: Option<&str>, metadata: Option<&str>) -> Moved {
    let balance = Balance {
        data: data.map(str::to_owned),
        metadata: metadata.map(str::to_owned),
        system: None,
        is_forced: true,
    };
    request(pool).balance(&balance, &mut to_the_end).unwrap()
}

fn assert_same(pool: &Pool, sums: &str) {
    let checked = pool.run(CHECK_DATA);
    let is_clean = checked.contains("no error found") && !checked.contains("ERROR");
    assert!(is_clean, "{checked}");
    assert!(pool.run(SUMS) == sums);
    assert_checked(pool);
}

/// Panics unless our checker finds nothing.
fn assert_checked(pool: &Pool) {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let mut found = Findings::default();
    let options = MountOptions::default();
    Btrfs::check(&pool.devices(), &options, &budget, &mut found).unwrap();
    // A crash may leave a copy of the superblock that is older.
    found.0.retain(|it| it.severity > Severity::Notice);
    assert!(found.0.is_empty(), "{:?}", found.0);
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

/// Balances a filesystem by the kernel, then as it was before by us. Returns what is used before, and after each.
fn balance_by_both(pool: &Pool, words: &str) -> [Usage; 3] {
    let before = usage(pool);
    let image = &pool.images()[0];
    let saved = image.with_extension("saved");
    copy(image, &saved);
    pool.run(&format!(
        "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\nbtrfs balance start -d{words} -m{words} \"$root\"\n"
    ));
    let by_kernel = usage(pool);
    fs::remove_file(image).unwrap();
    copy(&saved, image);
    let moved = balance(pool, Some(words), Some(words));
    assert!(moved.removed > 0, "{moved:?}");
    let by_us = usage(pool);
    println!("{before:?}\n{by_kernel:?}\n{by_us:?}");
    // What is shared stays so.
    assert_eq!(by_us.data_bytes, before.data_bytes);
    let most = before.metadata_bytes + before.metadata_bytes / 20;
    assert!(by_us.metadata_bytes <= most);
    [before, by_kernel, by_us]
}

#[test]
fn chunks_used_in_part_become_as_few_as_by_the_kernel() {
    let pool = Pool::make(1, 640, &["-d", "single", "-m", "single"]);
    pool.run(FILL);
    let sums = pool.run(SUMS);
    let [before, by_kernel, by_us] = balance_by_both(&pool, "usage=90");
    assert_same(&pool, &sums);
    assert!(by_us.data_chunks < before.data_chunks);
    assert!(by_us.data_chunks <= by_kernel.data_chunks);
    pool.run(GO_ON);
    let checked = pool.run(CHECK_DATA);
    assert!(checked.contains("no error found"), "{checked}");
}

/// Many tree blocks of several subvolumes in several chunks.
const FILL_METADATA: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
btrfs -q subvolume create sub
for dir in $(seq 40); do
    mkdir sub/dir$dir
    for it in $(seq 500); do printf '%02000d' $it > sub/dir$dir/file$it; done
done
btrfs -q subvolume snapshot sub snap1
btrfs -q subvolume snapshot -r sub snap2
for dir in $(seq 20); do
    for it in $(seq 500); do printf '%01999d' $it > snap1/dir$dir/file$it; done
done
sync -f .
btrfs -q subvolume snapshot snap1 snap3
btrfs -q property set snap2 ro false
for dir in $(seq 40); do
    if [ $((dir % 4)) -ne 0 ]; then
        rm -r sub/dir$dir snap1/dir$dir snap2/dir$dir snap3/dir$dir
    fi
done
btrfs -q property set snap2 ro true
touch snap3/dir4/file9
sync -f .
cd /
umount "$root"
mount -t btrfs -o "$options" "$device" "$root"
sync -f "$root"
"#;

/// The kernel changes what is shared, and removes subvolumes.
const GO_ON_METADATA: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
for dir in 4 16 28; do
    for it in $(seq 2 2 400); do echo $it > sub/dir$dir/file$it; rm snap3/dir$dir/file$it; done
done
btrfs -q subvolume snapshot snap3 snap4
sync -f .
btrfs -q subvolume delete -c snap1 snap3 > /dev/null
btrfs -q subvolume sync .
cd /
"#;

#[test]
fn metadata_chunks_become_as_few_as_by_the_kernel() {
    for mkfs in [
        &["-d", "single", "-m", "single"][..],
        &[
            "-d",
            "single",
            "-m",
            "single",
            "-O",
            "^skinny-metadata,^no-holes",
            "-n",
            "4096",
        ],
    ] {
        let pool = Pool::make(1, 400, mkfs);
        pool.run(FILL_METADATA);
        let sums = pool.run(SUMS);
        let [before, by_kernel, by_us] = balance_by_both(&pool, "usage=90");
        assert_same(&pool, &sums);
        assert!(by_us.metadata_chunks < before.metadata_chunks);
        assert!(by_us.metadata_chunks <= by_kernel.metadata_chunks);
        pool.run(GO_ON_METADATA);
        pool.assert_clean();
    }
}

#[test]
fn quota_groups_stay_as_they_are() {
    const SHOW: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs quota enable "$root"
btrfs -q quota rescan -w "$root"
btrfs -q qgroup create 1/7 "$root"
btrfs qgroup assign 0/256 1/7 "$root" > /dev/null 2>&1 || true
btrfs -q quota rescan -w "$root"
sync -f "$root"
btrfs qgroup show --raw "$root"
"#;
    let pool = Pool::make(1, 640, &["-d", "single", "-m", "single"]);
    pool.run(FILL);
    let before = pool.run(SHOW);
    let sums = pool.run(SUMS);
    let moved = balance(&pool, Some("usage=90"), Some("usage=90"));
    assert!(moved.removed > 0, "{moved:?}");
    // The checker counts them.
    assert_same(&pool, &sums);
    let after = pool.run(
        "mount -t btrfs -o \"ro,$options\" \"$device\" \"$root\"\nbtrfs qgroup show --raw \"$root\"\n",
    );
    assert!(before.contains("1/7"), "{before}");
    assert_eq!(after, before);
}

/// Power fails while chunks are emptied: each state is a valid filesystem with all files, and the balance goes on.
#[test]
fn balance_that_is_cut_leaves_extents_at_either_place() {
    let pool = Pool::make(1, 300, &["-d", "single", "-m", "single"]);
    pool.run(&FILL.replace("-c 3000000", "-c 1000000"));
    let sums = pool.run(SUMS);
    let (recorder, recorded) = record(&pool);
    let words = Balance {
        data: Some("usage=90".to_owned()),
        metadata: Some(String::new()),
        ..Balance::default()
    };
    let moved = request_of(recorded)
        .balance(&words, &mut to_the_end)
        .unwrap();
    assert!(moved.removed > 0, "{moved:?}");
    let recording = recorder.recording();
    let judged = Pool::empty(1);
    let count = recording.crash_states(CrashOptions::default()).count();
    let states = recording.crash_states(CrashOptions::default());
    for (index, state) in states.step_by(count / 9 + 1).enumerate() {
        for (device, path) in devices_of(&state.unwrap()).iter().zip(judged.images()) {
            store(&**device, path);
        }
        assert_same(&judged, &sums);
        if index % 4 == 1 {
            balance(&judged, Some("usage=90"), Some(""));
            assert_same(&judged, &sums);
        }
    }
    assert!(count > 100, "{count} states");
}

/// What is beyond the new end of a device goes where other chunks have space: there is no gap for a chunk.
#[test]
fn device_without_a_gap_is_made_shorter() {
    let pool = Pool::make(1, 640, &["-d", "single", "-m", "single"]);
    pool.run(&FILL.replace("seq 60", "seq 100"));
    let sums = pool.run(SUMS);
    let resized = request(&pool).resize_device(DeviceId(1), 300 << 20, &mut to_the_end);
    assert!(resized.unwrap().removed > 0);
    assert_same(&pool, &sums);
}

/// Files whose leaves a read-only snapshot shares, on devices of which the first has older leaves.
const FILL_OLDER: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
btrfs -q subvolume create sub
for it in $(seq 40); do
    head -c 1000000 /dev/urandom > sub/large$it
    printf right > sub/small$it
    head -c 2000000 /dev/urandom > filler$it
    sync -f .
done
btrfs -q subvolume snapshot -r sub snap
chmod 600 sub/small*
sync -f .
rm filler*
sync -f .
cd /
umount "$root"
mount -t btrfs -o "$options" "$device" "$root"
sync -f "$root"
"#;

#[test]
fn older_leaves_that_lead_to_data_are_not_copied() {
    let pool = Pool::make(2, 400, &["-d", "single", "-m", "raid1"]);
    pool.run(FILL_OLDER);
    let sums = pool.run(SUMS);
    let make_wrong = |bytes: &mut [u8]| {
        for at in 0..bytes.len() - 5 {
            if bytes[at..].starts_with(b"right") {
                bytes[at..at + 5].copy_from_slice(b"wrong");
            }
        }
    };
    assert!(make_first_copies_older(&pool, TreeId(256), make_wrong) > 1);
    let moved = balance(&pool, Some("usage=90"), None);
    assert!(moved.removed > 0, "{moved:?}");
    assert!(pool.run(SUMS) == sums);
}

/// Many extents in chunks that are used in part.
const FILL_FILES: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
for it in $(seq 300); do head -c 300000 /dev/urandom > file$it; done
sync -f .
for it in $(seq 300); do [ $((it % 3)) -eq 0 ] || rm file$it; done
sync -f .
cd /
umount "$root"
mount -t btrfs -o "$options" "$device" "$root"
sync -f "$root"
"#;

/// Adds to the number of references of each data extent.
fn add_to_references(fs: &WriteContext, count: u64) {
    let mut left = 0..u64::MAX;
    while let found = ListedExtent::next_of(fs.context(), &mut left).unwrap()
        && !found.is_empty()
    {
        let handle = fs.begin(256).unwrap();
        for extent in found.iter().filter(|it| !it.is_tree_block) {
            let key = Key::new(extent.start.0, ItemKind::EXTENT_ITEM, extent.len_bytes);
            let add = |data: &mut [u8]| {
                let refs = u64::from_le_bytes(data[..8].try_into().unwrap());
                data[..8].copy_from_slice(&refs.wrapping_add(count).to_le_bytes());
            };
            let edited = handle.edit(TreeId::EXTENT, |editor| editor.edit(key, add));
            edited.unwrap();
        }
    }
    fs.sync().unwrap();
}

/// Data whose references are not those that it has does not move: its chunks move as a whole.
#[test]
fn extent_that_stays_ends_the_attempt() {
    let pool = Pool::make(1, 400, &["-d", "single", "-m", "single"]);
    pool.run(FILL_FILES);
    let sums = pool.run(SUMS);
    let fs = request(&pool).open().unwrap();
    add_to_references(&fs, 1);
    let before = fs.committed().0;
    let filter = BalanceFilter {
        usage: Some(1..90),
        ..BalanceFilter::default()
    };
    let args = BalanceArgs {
        data: Some(filter),
        ..BalanceArgs::default()
    };
    let moved = crate::pool::balance(&fs, &args, &mut to_the_end).unwrap();
    let commits = fs.committed().0 - before;
    assert!(moved.moved > 1, "{moved:?}");
    assert!(commits < 16 * moved.moved, "{moved:?}, {commits} commits");
    add_to_references(&fs, u64::MAX);
    drop(fs);
    assert_same(&pool, &sums);
}
