//! Quota groups under changes: after each commit their usage is what a recount finds, and the kernel goes on with it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::sim::{CrashOptions, Recorder, RecordingDevice};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::Rule;
use platter_vfs::check::{CheckReport, CheckSink, Finding, Severity};
use platter_vfs::{
    Condition, Context, CreateKind, Error, FallocateMode, Filesystem, Inode, SetAttr, Subvolumes,
    SystemClock,
};

use super::write_tests::name;
use super::{Btrfs, MountOptions, open_for_check};
use crate::check::QgroupUseRule;
use crate::compress::Method;
use crate::context::FsContext;
use crate::ondisk::TreeId;
use crate::ops::DataPolicy;
use crate::qgroup::{CountingLimits, QuotaState, Uncounted};
use crate::txn::tests::Random;
use crate::txn::tests::crash::store;
use crate::txn::tests::image::Pool;
use crate::txn::tests::quotas::enable_simple;
use crate::txn::{WriteOptions, space};

/// Quota groups on three levels, and a snapshot, by the kernel. A rescan that is in progress while groups change may
/// count them wrong.
const GROUPS: &str = r#"
mount -t btrfs "$device" "$root"
btrfs -q subvolume create "$root"/s0
btrfs -q subvolume create "$root"/s1
for i in $(seq 200); do
    head -c $((i * 97)) /dev/urandom > "$root"/s0/file$i
    echo $i > "$root"/s1/file$i
done
for i in $(seq 600); do
    head -c 1000 /dev/urandom > "$root"/s0/inline$i
done
btrfs quota enable "$root"
while ! btrfs quota rescan -w "$root"; do sleep 0.1; done
btrfs qgroup create 1/0 "$root"
btrfs qgroup create 1/1 "$root"
btrfs qgroup create 2/0 "$root"
btrfs qgroup assign --no-rescan 0/256 1/0 "$root" || true
btrfs qgroup assign --no-rescan 0/257 1/1 "$root" || true
btrfs qgroup assign --no-rescan 1/0 2/0 "$root" || true
btrfs qgroup assign --no-rescan 1/1 2/0 "$root" || true
btrfs -q subvolume snapshot "$root"/s0 "$root"/s2
while ! btrfs quota rescan -w "$root"; do sleep 0.1; done
sync -f "$root"
"#;

/// A rescan of the kernel finds the usage that is stored; then it makes changes of its own.
const RESCAN: &str = r#"
mount -t btrfs "$device" "$root"
btrfs qgroup show --raw -p "$root" > "$root".before 2> "$root".errors
cat "$root".errors
while ! btrfs quota rescan -w "$root"; do sleep 0.1; done
btrfs qgroup show --raw -p "$root" > "$root".after
cat "$root".before
diff "$root".before "$root".after
for i in "$root"/s*; do
    echo new > $i/kernel
    rm -f $i/file1
done
sync -f "$root"
"#;

#[derive(Default)]
struct Findings(Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

fn check(devices: &[Arc<dyn BlockDevice>]) -> (CheckReport, Vec<Finding>) {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let mut findings = Findings::default();
    let options = MountOptions::default();
    let report = Btrfs::check(devices, &options, &budget, &mut findings).unwrap();
    assert!(!report.cancelled);
    (report, findings.0)
}

/// The last commit, without the log.
fn committed(devices: &[Arc<dyn BlockDevice>]) -> FsContext {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let mut options = MountOptions::default();
    options.rescue.skips_log = true;
    open_for_check(devices, &options, &budget).unwrap()
}

fn state(devices: &[Arc<dyn BlockDevice>]) -> QuotaState {
    QuotaState::read(&committed(devices)).unwrap()
}

/// Whether a finding is of this rule, and leaves the filesystem clean.
fn is_notice(finding: &Finding, rule: QgroupUseRule) -> bool {
    let corruption = &finding.corruption;
    finding.severity == Severity::Notice
        && corruption.structure == QgroupUseRule::STRUCTURE
        && corruption.rule == rule.text()
}

/// Panics unless usage is right by the state of the last commit, and a recount finds it for all groups.
fn assert_counted(devices: &[Arc<dyn BlockDevice>], mounted: Option<&Btrfs>) {
    let is_of_quota = |it: &&Finding| {
        it.corruption.structure == QgroupUseRule::STRUCTURE || it.severity == Severity::Error
    };
    let (report, found) = check(devices);
    let found: Vec<_> = found.iter().filter(is_of_quota).collect();
    let writing = mounted.and_then(|mounted| mounted.super_block().writing());
    assert!(found.is_empty(), "{found:#?} {writing:#?}");
    let is_uncounted = |(noun, _): &(&str, u64)| *noun == "uncounted qgroups";
    assert!(!report.counters.iter().any(is_uncounted), "{report:?}");
    let state = state(devices);
    let is_right = matches!(state, QuotaState::Consistent);
    assert!(is_right, "{state:?} {writing:#?}");
}

fn mount(devices: &[Arc<dyn BlockDevice>], compresses: bool) -> Btrfs {
    mount_within(devices, compresses, CountingLimits::DEFAULT)
}

fn mount_within(
    devices: &[Arc<dyn BlockDevice>],
    compresses: bool,
    counting: CountingLimits,
) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let options = MountOptions {
        commit_interval: None,
        data: DataPolicy {
            compression: compresses.then(|| Method::parse("zstd")).flatten(),
            ..DataPolicy::default()
        },
        transactions: WriteOptions {
            counting,
            ..WriteOptions::default()
        },
        ..MountOptions::default()
    };
    Btrfs::mount_writable(devices, &options, budget, clock).unwrap()
}

fn subvolumes(mounted: &Btrfs) -> &dyn Subvolumes {
    mounted.subvolumes().unwrap()
}

fn file(dir: &dyn Inode, path: &str) -> Arc<dyn Inode> {
    let context = Context::root();
    dir.lookup(name(path)).unwrap_or_else(|_| {
        dir.create(&context, name(path), CreateKind::Regular, 0o644)
            .unwrap()
    })
}

/// Subvolumes that change.
struct Load {
    random: Random,
    names: Vec<String>,
    made: usize,
}

impl Load {
    fn pick(&mut self) -> String {
        let at = self.random.below(self.names.len() as u64);
        self.names[usize::try_from(at).unwrap()].clone()
    }

    fn path(&mut self) -> String {
        let kind = if self.random.below(4) == 0 {
            "inline"
        } else {
            "file"
        };
        format!("{kind}{}", self.random.below(200))
    }

    /// Changes a file.
    fn change(&mut self, root: &dyn Inode) {
        let (dir, path) = (self.pick(), self.path());
        let dir = root.lookup(name(&dir)).unwrap();
        let random = &mut self.random;
        match random.below(10) {
            0 | 1 => {
                let _ = dir.unlink(&Context::root(), name(&path));
            }
            2 => {
                let changes = SetAttr {
                    size_bytes: Some(random.below(50_000)),
                    ..SetAttr::default()
                };
                let file = file(&*dir, &path);
                file.set_attr(&Context::root(), &changes).unwrap();
            }
            3..=5 => {
                let len = random.below(40_000);
                let bytes = random.bytes(len);
                file(&*dir, &path)
                    .write_at(random.below(60_000), &bytes)
                    .unwrap();
            }
            6 => {
                let bytes = vec![7; 90_000];
                file(&*dir, &path)
                    .write_at(random.below(60_000), &bytes)
                    .unwrap();
            }
            _ => {
                let (from, source) = (self.pick(), self.path());
                let from = root.lookup(name(&from)).unwrap();
                let Ok(source) = from.lookup(name(&source)) else {
                    return;
                };
                let size = source.attr().unwrap().size_bytes;
                let at = self.random.below(size + 1) & !4095;
                let to = self.random.below(80_000) & !4095;
                // Ranges of one file may overlap.
                let _ = file(&*dir, &path).clone_range(&*source, at..size, to);
            }
        }
    }

    /// Changes a file, and makes it durable.
    fn sync_file(&mut self, root: &dyn Inode) {
        let (dir, path) = (self.pick(), self.path());
        let dir = root.lookup(name(&dir)).unwrap();
        let file = file(&*dir, &path);
        let len = self.random.below(30_000);
        let bytes = self.random.bytes(len);
        file.write_at(self.random.below(60_000), &bytes).unwrap();
        file.sync(false).unwrap();
    }

    /// Makes or deletes a subvolume, or changes files only.
    fn step(&mut self, mounted: &Btrfs, changes: u64) {
        let root = mounted.root().unwrap();
        for _ in 0..=self.random.below(changes) {
            self.change(&*root);
        }
        let context = Context::root();
        let ops = subvolumes(mounted);
        match self.random.below(6) {
            0 | 1 if self.names.len() < 9 => {
                let from = self.pick();
                let from = root.lookup(name(&from)).unwrap();
                let to = format!("s{}", self.made);
                let is_read_only = false;
                ops.snapshot(&context, from.id().tree, root.id(), name(&to), is_read_only)
                    .unwrap();
                self.names.push(to);
                self.made += 1;
            }
            2 if self.names.len() > 3 => {
                let at = self.random.below(self.names.len() as u64);
                let gone = self.names.remove(usize::try_from(at).unwrap());
                ops.delete(&context, root.id(), name(&gone), None).unwrap();
            }
            3 => {
                let to = format!("s{}", self.made);
                let new = ops.create(&context, root.id(), name(&to)).unwrap();
                file(&*new, "file0").write_at(0, b"first").unwrap();
                self.names.push(to);
                self.made += 1;
            }
            _ => {}
        }
        // What is changed after a snapshot is in the same transaction as the next sync.
        self.change(&*root);
    }
}

fn load(seed: u64) -> Load {
    Load {
        random: Random(seed),
        names: ["s0", "s1", "s2"].map(str::to_owned).into(),
        made: 3,
    }
}

#[test]
fn usage_is_right_after_every_commit() {
    for (seed, node, compresses) in [(1, "4096", false), (2, "4096", true), (3, "16384", true)] {
        let pool = Pool::make(1, 256, &["-m", "single", "-n", node]);
        pool.run(GROUPS);
        assert_counted(&pool.devices(), None);
        let mut load = load(seed);
        for _ in 0..2 {
            let devices = pool.devices();
            let mounted = mount(&devices, compresses);
            for _ in 0..20 {
                load.step(&mounted, 12);
                mounted.sync().unwrap();
                assert_counted(&devices, Some(&mounted));
            }
            mounted.unmount().unwrap();
            drop((mounted, devices));
            pool.assert_clean();
            assert_counted(&pool.devices(), None);
            let shown = pool.run(RESCAN);
            assert!(!shown.contains("inconsistent"), "{shown}");
            pool.assert_clean();
        }
    }
}

/// The image of a pool in memory.
fn in_memory(pool: &Pool) -> Arc<dyn BlockDevice> {
    let bytes = std::fs::read(&pool.images()[0]).unwrap();
    Arc::new(MemoryDevice::new("base", bytes).with_blocks(4096))
}

/// A recorder of what is written to the image of a pool, and its device.
fn record(pool: &Pool) -> (Recorder, Vec<Arc<dyn BlockDevice>>) {
    let recorder = Recorder::new(vec![in_memory(pool)]);
    let recorded = recorder.devices().iter();
    let recorded = recorded
        .map(|device| -> Arc<dyn BlockDevice> { Arc::<RecordingDevice>::clone(device) })
        .collect();
    (recorder, recorded)
}

#[test]
fn usage_is_right_after_a_crash_at_any_write() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    pool.run(GROUPS);
    let (recorder, recorded) = record(&pool);
    let mounted = mount(&recorded, false);
    let mut load = load(4);
    for _ in 0..6 {
        load.step(&mounted, 8);
        mounted.sync().unwrap();
    }
    mounted.unmount().unwrap();
    drop(mounted);
    let judged = Pool::empty(1);
    let mut states = 0;
    let mut usages = BTreeMap::new();
    for state in recorder.recording().crash_states(CrashOptions::default()) {
        let devices: Vec<Arc<dyn BlockDevice>> = state
            .unwrap()
            .devices()
            .unwrap()
            .into_iter()
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect();
        states += 1;
        assert_counted(&devices, None);
        if states % 20 != 0 {
            continue;
        }
        // Deletions that were cut go on.
        let mounted = mount(&devices, false);
        *usages.entry(mounted.superblock().generation).or_insert(0) += 1;
        mounted.sync().unwrap();
        mounted.unmount().unwrap();
        drop(mounted);
        assert_counted(&devices, None);
        if states % 100 == 0 {
            store(&*devices[0], &judged.images()[0]);
            judged.assert_clean();
        }
    }
    assert!(
        states > 60 && usages.len() > 3,
        "{states} states, {usages:?}"
    );
}

#[test]
fn usage_that_is_not_right_stays_as_it_is() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    pool.run(GROUPS);
    pool.run(
        "mount -t btrfs \"$device\" \"$root\"\nbtrfs qgroup create 1/7 \"$root\"\nbtrfs qgroup assign --no-rescan 0/256 1/7 \"$root\" || true\nbtrfs -q subvolume create \"$root\"/x\n",
    );
    let show = "btrfs inspect-internal dump-tree -t quota \"$device\" | grep -o 'QGROUP_INFO [0-9/]*\\|referenced .*\\|exclusive .*\\|flags .*'\n";
    let before = pool.run(show);
    assert!(
        before.contains("INCONSISTENT") && before.contains("QGROUP_INFO 1/7"),
        "{before}"
    );
    let is_said = || {
        let (_, found) = check(&pool.devices());
        let is_inconsistent = |it: &Finding| is_notice(it, QgroupUseRule::Inconsistent);
        found.iter().any(is_inconsistent)
    };
    assert!(is_said(), "{before}");
    let mounted = mount(&pool.devices(), false);
    let mut load = load(9);
    for _ in 0..5 {
        let root = mounted.root().unwrap();
        load.change(&*root);
        mounted.sync().unwrap();
    }
    mounted.unmount().unwrap();
    drop(mounted);
    assert!(is_said());
    assert_eq!(pool.run(show), before);
    pool.run("mount -t btrfs \"$device\" \"$root\"\nwhile ! btrfs quota rescan -w \"$root\"; do sleep 0.1; done\n");
    assert_counted(&pool.devices(), None);
}

#[test]
fn quotas_that_are_off_limit_nothing() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let limit = "mount -t btrfs \"$device\" \"$root\"\nbtrfs quota enable \"$root\"\nbtrfs qgroup limit 1M 0/5 \"$root\"\nbtrfs subvolume create \"$root\"/s\n";
    pool.run(limit);
    let write = |dir: &str| {
        let mounted = mount(&pool.devices(), false);
        let root = mounted.root().unwrap();
        let dir = if dir.is_empty() {
            root
        } else {
            root.lookup(name(dir)).unwrap()
        };
        let written = file(&*dir, "file").write_at(0, &vec![1; 2 << 20]);
        drop(dir);
        mounted.unmount().unwrap();
        matches!(written, Err(Error::Condition(Condition::QuotaExceeded)))
    };
    assert!(write(""));
    assert!(!write("s"));
    pool.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs quota disable \"$root\"\n");
    assert!(!write(""));
    pool.assert_clean();
}

#[test]
fn edit_stays_within_limits_without_a_commit() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    pool.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs quota enable \"$root\"\nbtrfs qgroup limit 10M 0/5 \"$root\"\n");
    let fs = pool.open(WriteOptions::TOGETHER);
    let sectors = |mib: u64| mib << 8;
    space::reserve_delayed(&fs, TreeId::FS, sectors(6)).unwrap();
    let is_refused = |result| matches!(result, Err(Error::Condition(Condition::QuotaExceeded)));
    assert!(is_refused(space::reserve_delayed(
        &fs,
        TreeId::FS,
        sectors(6)
    )));
    assert!(is_refused(space::reserve_data(&fs, TreeId::FS, 6 << 20)));
    space::release_delayed(&fs, TreeId::FS, sectors(6));
    space::reserve_delayed(&fs, TreeId::FS, sectors(6)).unwrap();
    space::release_delayed(&fs, TreeId::FS, sectors(6));
    // Handles take of it as well, but for those that free space.
    let rest = (10 << 20) - (3 << 14) - 16384;
    space::reserve_data(&fs, TreeId::FS, rest).unwrap();
    assert!(is_refused(fs.begin_charged(TreeId::FS, 64).map(drop)));
    drop(fs.begin_freeing(64).unwrap());
    space::release_reserved_data(&fs, TreeId::FS, rest);
    drop(fs.begin_charged(TreeId::FS, 64).unwrap());
    space::reserve_data(&fs, TreeId::FS, rest).unwrap();
}

/// A filesystem whose top-level subvolume may have 10 MiB.
fn limited() -> Pool {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    pool.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs quota enable \"$root\"\nbtrfs qgroup limit 10M 0/5 \"$root\"\n");
    pool
}

/// Reserves data of the top-level subvolume until limits leave less than three tree blocks.
fn reserve_rest(mounted: &Btrfs) -> u64 {
    let fs = mounted.super_block().writing().unwrap();
    let mut reserved = 0;
    for step in [1 << 20, 1 << 14] {
        while space::reserve_data(fs, TreeId::FS, step).is_ok() {
            reserved += step;
        }
    }
    reserved
}

fn release_rest(mounted: &Btrfs, reserved: u64) {
    let fs = mounted.super_block().writing().unwrap();
    space::release_reserved_data(fs, TreeId::FS, reserved);
}

fn is_over<T>(result: &platter_vfs::Result<T>) -> bool {
    matches!(result, Err(Error::Condition(Condition::QuotaExceeded)))
}

fn read_all(file: &dyn Inode) -> Vec<u8> {
    let len = usize::try_from(file.attr().unwrap().size_bytes).unwrap();
    let mut bytes = vec![0; len];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), len);
    bytes
}

#[test]
fn file_in_its_item_becomes_shorter_at_the_limit() {
    let pool = limited();
    let mounted = mount(&pool.devices(), false);
    let root = mounted.root().unwrap();
    let short = file(&*root, "short");
    short.write_at(0, &[7; 1500]).unwrap();
    mounted.sync().unwrap();
    let reserved = reserve_rest(&mounted);
    assert!(is_over(&short.write_at(1500, &[8; 9000])));
    let changes = SetAttr {
        size_bytes: Some(700),
        ..SetAttr::default()
    };
    short.set_attr(&Context::root(), &changes).unwrap();
    assert_eq!(read_all(&*short), [7; 700]);
    release_rest(&mounted, reserved);
    drop((short, root));
    mounted.unmount().unwrap();
    drop(mounted);
    assert_counted(&pool.devices(), None);
}

#[test]
fn what_a_limit_refuses_leaves_contents_as_they_are() {
    let pool = limited();
    let mounted = mount(&pool.devices(), false);
    let root = mounted.root().unwrap();
    let long = file(&*root, "long");
    long.write_at(0, &vec![7; 1 << 20]).unwrap();
    let other = file(&*root, "other");
    other.write_at(0, &[8; 10]).unwrap();
    mounted.sync().unwrap();
    let reserved = reserve_rest(&mounted);
    let zero = || long.fallocate(4096..900_000, FallocateMode::ZeroRange { keep_size: true });
    assert!(is_over(&zero()));
    assert!(read_all(&*long) == vec![7; 1 << 20]);
    let clone = || other.clone_range(&*long, 0..1 << 16, 1 << 21);
    assert!(is_over(&clone()));
    assert_eq!(other.attr().unwrap().size_bytes, 10);
    release_rest(&mounted, reserved);
    zero().unwrap();
    clone().unwrap();
    let mut expected = vec![7; 1 << 20];
    expected[4096..900_000].fill(0);
    assert!(read_all(&*long) == expected);
    assert_eq!(other.attr().unwrap().size_bytes, (1 << 21) + (1 << 16));
    // Nothing stays reserved.
    mounted.sync().unwrap();
    let again = reserve_rest(&mounted);
    assert!(again > 7 << 20, "{again}");
    release_rest(&mounted, again);
    drop((long, other, root));
    mounted.unmount().unwrap();
    drop(mounted);
    assert_counted(&pool.devices(), None);
}

#[test]
fn files_are_written_back_before_a_name_is_refused() {
    let pool = limited();
    let mounted = mount(&pool.devices(), false);
    let root = mounted.root().unwrap();
    let long = file(&*root, "long");
    long.write_at(0, &vec![7; 1 << 20]).unwrap();
    mounted.sync().unwrap();
    // Once it is committed, this takes nothing. Longer writes do not wait in the cache.
    for part in 0..16 {
        long.write_at(part << 16, &vec![8; 1 << 16]).unwrap();
    }
    let reserved = reserve_rest(&mounted);
    file(&*root, "other");
    assert!(read_all(&*long) == vec![8; 1 << 20]);
    release_rest(&mounted, reserved);
    drop((long, root));
    mounted.unmount().unwrap();
    drop(mounted);
    assert_counted(&pool.devices(), None);
}

#[test]
fn usage_is_right_after_logs_are_replayed() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    pool.run(GROUPS);
    let (recorder, recorded) = record(&pool);
    let mounted = mount(&recorded, false);
    let mut load = load(5);
    for round in 0..6 {
        load.step(&mounted, 4);
        if round % 2 == 0 {
            mounted.sync().unwrap();
        }
        let root = mounted.root().unwrap();
        for _ in 0..4 {
            load.sync_file(&*root);
        }
        // A log of what was not durable before.
        load.change(&*root);
        load.sync_file(&*root);
    }
    mounted.unmount().unwrap();
    drop((mounted, recorded));
    let judged = Pool::empty(1);
    let (mut logs, mut states) = (0, 0);
    for state in recorder.recording().crash_states(CrashOptions::default()) {
        let devices = state.unwrap().devices().unwrap().into_iter();
        let devices: Vec<_> = devices
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect();
        states += 1;
        if committed(&devices).superblock.log_root.is_none() {
            continue;
        }
        logs += 1;
        if logs % 12 != 1 {
            continue;
        }
        assert_counted(&devices, None);
        let mounted = mount(&devices, false);
        mounted.unmount().unwrap();
        drop(mounted);
        assert!(committed(&devices).superblock.log_root.is_none());
        assert_counted(&devices, None);
        if logs % 120 == 1 {
            store(&*devices[0], &judged.images()[0]);
            judged.assert_clean();
        }
    }
    println!("{logs} of {states} states have a log");
    assert!(logs > 40, "{logs} of {states} states have a log");
}

#[test]
fn deletion_of_a_shared_subvolume_commits_in_between() {
    // More than one leaf and one node of the subvolume trace, less than all of it.
    let counting = CountingLimits {
        traced_many: 20,
        traced_max: 250,
        ..CountingLimits::DEFAULT
    };
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    pool.run(GROUPS);
    // The snapshot, whose blocks are those of its source; and the source, whose blocks the snapshot keeps.
    for gone in ["s2", "s0"] {
        let devices = [in_memory(&pool)];
        let mounted = mount_within(&devices, false, counting);
        let before = mounted.superblock().generation.0;
        let root = mounted.root().unwrap();
        let ops = subvolumes(&mounted);
        ops.delete(&Context::root(), root.id(), name(gone), None)
            .unwrap();
        drop(root);
        mounted.sync().unwrap();
        assert!(mounted.super_block().dead_subvolumes.is_empty());
        let commits = mounted.last_commit().unwrap().generation.0 - before;
        println!("deletion of {gone}: {commits} commits");
        assert!(commits > 3, "{commits}");
        assert_counted(&devices, Some(&mounted));
        mounted.unmount().unwrap();
        drop(mounted);
        let judged = Pool::empty(1);
        store(&*devices[0], &judged.images()[0]);
        judged.assert_clean();
        let shown = judged.run(RESCAN);
        assert!(!shown.contains("inconsistent"), "{shown}");
    }
}

/// Changes that take more than one of the limits.
type Excess = fn(&Btrfs);

fn write_files(mounted: &Btrfs) {
    let dir = mounted.root().unwrap().lookup(name("s1")).unwrap();
    for number in 0..100 {
        let path = format!("new{number}");
        file(&*dir, &path).write_at(0, &[1; 5000]).unwrap();
    }
}

fn take_snapshot(mounted: &Btrfs) {
    let root = mounted.root().unwrap();
    let source = root.lookup(name("s0")).unwrap().id().tree;
    let ops = subvolumes(mounted);
    ops.snapshot(&Context::root(), source, root.id(), name("snap"), false)
        .unwrap();
}

#[test]
fn usage_beyond_the_limits_is_inconsistent() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    pool.run(GROUPS);
    let most = CountingLimits::DEFAULT;
    let cases: [(CountingLimits, Excess, Uncounted); 6] = [
        (
            CountingLimits {
                traced_max: 60,
                ..most
            },
            write_files,
            Uncounted::Extents,
        ),
        (
            CountingLimits {
                looks_max: 60,
                ..most
            },
            write_files,
            Uncounted::References,
        ),
        (
            CountingLimits {
                group_ids_max: 2,
                ..most
            },
            write_files,
            Uncounted::Groups,
        ),
        (
            CountingLimits {
                walk_blocks_max: 60,
                ..most
            },
            take_snapshot,
            Uncounted::Snapshot,
        ),
        (
            CountingLimits {
                traced_max: 200,
                ..most
            },
            take_snapshot,
            Uncounted::Snapshot,
        ),
        (
            CountingLimits {
                looks_max: 500,
                ..most
            },
            take_snapshot,
            Uncounted::References,
        ),
    ];
    for (limits, exceed, expected) in cases {
        let devices = [in_memory(&pool)];
        let mounted = mount_within(&devices, false, limits);
        let described = |key: &str| {
            let description = mounted.describe();
            description.detail(key).map(ToString::to_string)
        };
        assert_eq!(described("quota_groups").unwrap(), "consistent");
        assert_eq!(described("quota_groups_reason"), None);
        exceed(&mounted);
        mounted.sync().unwrap();
        assert_eq!(described("quota_groups").unwrap(), "inconsistent");
        // What came first is reported.
        mounted.sync().unwrap();
        let reason = described("quota_groups_reason").unwrap();
        assert_eq!(reason, expected.to_string(), "{limits:?}");
        mounted.unmount().unwrap();
        drop(mounted);
        let (report, found) = check(&devices);
        assert!(report.is_clean(), "{limits:?} {found:#?}");
        let is_said = |it: &Finding| is_notice(it, QgroupUseRule::Inconsistent);
        assert!(found.iter().any(is_said), "{limits:?} {found:#?}");
        // The next mount, and one that only reads, find it on disk.
        let state = state(&devices);
        let is_stored = matches!(state, QuotaState::Inconsistent(Uncounted::Inconsistent));
        assert!(is_stored, "{state:?}");
        let judged = Pool::empty(1);
        store(&*devices[0], &judged.images()[0]);
        let shown = judged.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs qgroup show \"$root\" 2>&1\nwhile ! btrfs quota rescan -w \"$root\"; do sleep 0.1; done\n");
        assert!(shown.contains("inconsistent"), "{shown}");
        assert_counted(&judged.devices(), None);
    }
}

#[test]
fn older_state_is_inconsistent_as_in_the_kernel() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    pool.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs quota enable \"$root\"\nwhile ! btrfs quota rescan -w \"$root\"; do sleep 0.1; done\n");
    assert_counted(&pool.devices(), None);
    // btrfs-progs do not keep usage in this.
    pool.run("btrfs filesystem label \"$device\" other\n");
    let (report, found) = check(&pool.devices());
    let is_said = |it: &Finding| is_notice(it, QgroupUseRule::Generation);
    assert!(report.is_clean() && found.iter().any(is_said), "{found:#?}");
    let state = state(&pool.devices());
    let is_other = matches!(state, QuotaState::Inconsistent(Uncounted::Generation));
    assert!(is_other, "{state:?}");
    // It is stored by a commit.
    let shown = pool.run("mount -t btrfs \"$device\" \"$root\"\necho new > \"$root\"/file\nsync -f \"$root\"\nbtrfs qgroup show \"$root\" 2>&1\n");
    assert!(shown.contains("inconsistent"), "{shown}");
}

/// An extent of 256 MiB, of which the end is left.
const PREALLOCATED: &str = r#"
mount -t btrfs "$device" "$root"
btrfs -q subvolume create "$root"/s0
btrfs quota enable "$root"
while ! btrfs quota rescan -w "$root"; do sleep 0.1; done
fallocate -l 256M "$root"/s0/file
sync -f "$root"
fallocate -p -l 200M "$root"/s0/file
umount "$root"
btrfs inspect-internal dump-tree -t extent "$device"
"#;

#[test]
fn references_to_the_end_of_a_long_extent_are_followed() {
    let pool = Pool::make(1, 4096, &["-m", "single"]);
    let extents = pool.run(PREALLOCATED);
    assert!(extents.contains("EXTENT_ITEM 268435456"), "{extents}");
    let devices = pool.devices();
    let mounted = mount(&devices, false);
    let dir = mounted.root().unwrap().lookup(name("s0")).unwrap();
    file(&*dir, "file").write_at(250 << 20, &[1; 5000]).unwrap();
    mounted.sync().unwrap();
    assert_counted(&devices, Some(&mounted));
    dir.unlink(&Context::root(), name("file")).unwrap();
    drop(dir);
    mounted.unmount().unwrap();
    drop((mounted, devices));
    assert_counted(&pool.devices(), None);
}

/// Subvolumes as those of [`GROUPS`], without groups.
const SUBVOLUMES: &str = r#"
mount -t btrfs "$device" "$root"
btrfs -q subvolume create "$root"/s0
btrfs -q subvolume create "$root"/s1
for i in $(seq 100); do
    head -c $((i * 97)) /dev/urandom > "$root"/s0/file$i
    echo $i > "$root"/s1/file$i
done
btrfs -q subvolume snapshot "$root"/s0 "$root"/s2
"#;

/// Panics unless simple quotas count what they should.
fn assert_charged(devices: &[Arc<dyn BlockDevice>]) {
    let (report, found) = check(devices);
    let is_of_quota = |it: &&Finding| {
        it.corruption.structure == QgroupUseRule::STRUCTURE || it.severity == Severity::Error
    };
    let found: Vec<_> = found.iter().filter(is_of_quota).collect();
    assert!(found.is_empty(), "{found:#?}");
    let is_uncounted = |(noun, _): &(&str, u64)| *noun == "uncounted qgroups";
    assert!(!report.counters.iter().any(is_uncounted), "{report:?}");
    assert!(matches!(state(devices), QuotaState::Simple));
}

#[test]
fn simple_usage_is_right_after_every_commit() {
    let pool = Pool::make(1, 256, &["-m", "single", "-n", "4096"]);
    pool.run(SUBVOLUMES);
    enable_simple(&pool, &[5, 256, 257, 258]);
    let mut load = load(11);
    for round in 0..2 {
        let devices = pool.devices();
        let mounted = mount(&devices, round == 0);
        for _ in 0..20 {
            load.step(&mounted, 12);
            mounted.sync().unwrap();
            assert_charged(&devices);
        }
        mounted.unmount().unwrap();
        drop((mounted, devices));
        assert_charged(&pool.devices());
        // The kernel goes on with it, and checks what it reads.
        pool.run("mount -t btrfs \"$device\" \"$root\"\nfor i in \"$root\"/s*; do\n    echo new > $i/kernel\n    rm -f $i/file1 $i/file2\ndone\nsync -f \"$root\"\n");
        assert_charged(&pool.devices());
    }
}

#[test]
fn simple_usage_is_right_after_a_crash_at_any_write() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    pool.run(SUBVOLUMES);
    enable_simple(&pool, &[5, 256, 257, 258]);
    let (recorder, recorded) = record(&pool);
    let mounted = mount(&recorded, false);
    let mut load = load(12);
    for round in 0..6 {
        load.step(&mounted, 8);
        if round % 2 == 0 {
            mounted.sync().unwrap();
        }
        load.sync_file(&*mounted.root().unwrap());
    }
    mounted.unmount().unwrap();
    drop(mounted);
    let mut states = 0;
    for state in recorder.recording().crash_states(CrashOptions::default()) {
        let devices = state.unwrap().devices().unwrap().into_iter();
        let devices: Vec<_> = devices
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect();
        states += 1;
        assert_charged(&devices);
        if states % 10 == 0 {
            // Logs are replayed, and deletions go on.
            mount(&devices, false).unmount().unwrap();
            assert_charged(&devices);
        }
    }
    assert!(states > 60, "{states} states");
}
