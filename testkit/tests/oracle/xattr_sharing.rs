//! Blocks of attributes that files share: the same changes, made by the kernel and by platter, lead to
//! the same attributes in as many blocks, and each goes on with what the other made.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter::block::{self, BlockDevice, FileDevice};
use platter_cache::MemoryBudget;
use platter_ext4::ondisk::InodeNr;
use platter_ext4::{Ext4, MountOptions, Recovery, SharingStatistics};
use platter_vfs::{
    CheckSink, Context, CreateKind, Error, Filesystem, Finding, Inode, Name, SystemClock, XattrMode,
};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{debugfs, e2fsck, mke2fs};
use testkit::prng::Prng;

/// Inodes and blocks small enough that attributes have no room where they are looked for first.
const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "4096", "-I", "128"],
    &["-t", "ext4", "-b", "1024", "-I", "256"],
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-I",
        "128",
        "-O",
        "^metadata_csum",
    ],
    &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data"],
    &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "ea_inode"],
    &["-t", "ext4", "-b", "4096", "-I", "256", "-O", "ea_inode"],
    &[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "bigalloc,ea_inode",
        "-C",
        "4096",
        "-I",
        "128",
    ],
];

/// One step of a workload. Files, names and values go by number.
#[derive(Debug, Clone, Copy)]
enum Step {
    Create(u64),
    Unlink(u64),
    Set { file: u64, name: u64, value: u64 },
    Remove { file: u64, name: u64 },
    Read { file: u64, name: u64 },
    Write { file: u64, length: u64 },
}

/// What a workload is drawn from.
#[derive(Debug, Clone, Copy)]
struct Scale {
    files: u64,
    names: u64,
    values: u64,
    steps: u64,
    /// Lengths of values go up to one of these.
    lengths: &'static [u64],
}

impl Scale {
    /// That many sets of one attribute, with values of 64 bytes.
    const fn of_sets(files: u64, values: u64, steps: u64) -> Self {
        Self {
            files,
            names: 1,
            values,
            steps,
            lengths: &[64],
        }
    }
}

fn name_of(number: u64) -> String {
    let number = usize::try_from(number).unwrap();
    let prefix = ["user.", "trusted.", "security."][number % 3];
    format!(
        "{prefix}name{number:x<length$}",
        length = 3 + number * 7 % 20
    )
}

fn file_of(number: u64) -> String {
    format!("file{number}")
}

impl Scale {
    fn value_of(&self, number: u64) -> Vec<u8> {
        let limit = self.lengths[usize::try_from(number % self.lengths.len() as u64).unwrap()];
        let mut random = Prng::new(number);
        let length = if self.lengths.len() == 1 {
            limit
        } else {
            random.below(limit)
        };
        random.bytes(usize::try_from(length).unwrap())
    }

    /// Sets alone, on files that are there from the start.
    fn sets(&self, random: &mut Prng) -> Vec<Step> {
        let creates = (0..self.files).map(Step::Create);
        let sets = (0..self.steps).map(|_| Step::Set {
            file: random.below(self.files),
            name: random.below(self.names),
            value: random.below(self.values),
        });
        creates.chain(sets).collect()
    }

    /// All kinds of steps.
    fn mixed(&self, random: &mut Prng) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.files).map(Step::Create).collect();
        for _ in 0..self.steps {
            let file = random.below(self.files);
            let name = random.below(self.names);
            steps.push(match random.below(20) {
                0 => Step::Unlink(file),
                1 | 2 => Step::Create(file),
                3 | 4 => Step::Remove { file, name },
                5 => Step::Read { file, name },
                6 => Step::Write {
                    file,
                    length: random.below(200),
                },
                _ => Step::Set {
                    file,
                    name,
                    value: random.below(self.values),
                },
            });
        }
        steps
    }
}

/// The kernel, or platter.
trait Side {
    fn take(&self, scale: &Scale, step: Step) -> Result<(), Errno>;
}

struct Kernel(Mount);

impl Side for Kernel {
    fn take(&self, scale: &Scale, step: Step) -> Result<(), Errno> {
        let path = |file| self.0.root().join(file_of(file));
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
        match step {
            Step::Create(file) => fs::File::create_new(path(file)).map(drop).map_err(errno),
            Step::Unlink(file) => fs::remove_file(path(file)).map_err(errno),
            Step::Set { file, name, value } => {
                let value = scale.value_of(value);
                rustix::fs::lsetxattr(path(file), name_of(name), &value, XattrFlags::empty())
            }
            Step::Remove { file, name } => rustix::fs::lremovexattr(path(file), name_of(name)),
            Step::Read { file, name } => {
                let mut value = vec![0; 64 << 10];
                rustix::fs::lgetxattr(path(file), name_of(name), &mut value).map(drop)
            }
            Step::Write { file, length } => {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(path(file))
                    .map_err(errno)?;
                std::io::Write::write_all(&mut &file, &vec![7; usize::try_from(length).unwrap()])
                    .map_err(errno)
            }
        }
    }
}

struct Ours(Ext4);

impl Side for Ours {
    fn take(&self, scale: &Scale, step: Step) -> Result<(), Errno> {
        let context = Context::root();
        let taken = match step {
            Step::Create(file) => self.create(&context, file),
            Step::Unlink(file) => self.root().unlink(&context, name(&file_of(file))),
            Step::Set { file, name, value } => self.file(file).and_then(|file| {
                let value = scale.value_of(value);
                file.set_xattr(&context, name_of(name).as_bytes(), &value, XattrMode::Set)
            }),
            Step::Remove { file, name } => self
                .file(file)
                .and_then(|file| file.remove_xattr(&context, name_of(name).as_bytes())),
            Step::Read { file, name } => self
                .file(file)
                .and_then(|file| file.get_xattr(name_of(name).as_bytes()).map(drop)),
            Step::Write { file, length } => self.file(file).and_then(|file| {
                file.write_at(0, &vec![7; usize::try_from(length).unwrap()])?;
                // The kernel moves inline contents out as it writes, platter as it writes back.
                file.sync(false)
            }),
        };
        taken.map_err(|error| error.errno())
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

impl Ours {
    fn mount(image: &Path, mbcache: bool) -> Self {
        Self(mount(image, false, mbcache))
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.0.root().unwrap()
    }

    fn file(&self, number: u64) -> Result<Arc<dyn Inode>, Error> {
        self.root().lookup(name(&file_of(number)))
    }

    fn create(&self, context: &Context, number: u64) -> Result<(), Error> {
        let file = file_of(number);
        let made = self
            .root()
            .create(context, name(&file), CreateKind::Regular, 0o644);
        made.map(drop)
    }

    fn unmount(self) -> SharingStatistics {
        let statistics = self.0.sharing().unwrap_or_default();
        self.0.unmount().unwrap();
        statistics
    }
}

fn mount(image: &Path, read_only: bool, mbcache: bool) -> Ext4 {
    let (access, recovery) = if read_only {
        (block::Access::Read, Recovery::InMemory)
    } else {
        (block::Access::Write, Recovery::OnDevice)
    };
    let options = block::OpenOptions {
        access,
        ..block::OpenOptions::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, options).unwrap());
    let options = MountOptions {
        read_only,
        recovery,
        mbcache: mbcache.then(Default::default),
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(64 << 20));
    Ext4::mount(device, &options, budget, Arc::new(SystemClock::new())).unwrap()
}

/// What an image holds of attributes.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Of each file, by name.
    attributes: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// How many blocks there are.
    blocks: usize,
    /// How many inodes are in use, those that hold values among them.
    inodes: u64,
}

/// Proves an image clean, and reads all of it.
fn find_clean(image: &Path, scale: &Scale, what: &str) -> Found {
    let (verdict, report) = e2fsck::report(image).unwrap();
    assert!(verdict.is_clean(), "{what}: {report}");
    let ours = mount(image, true, true);
    let mut findings = Findings::default();
    let report = ours.check(&mut findings);
    assert!(report.is_clean(), "{what}: {:?}", findings.0);
    let found = find(image, scale);
    let counted = ("attribute blocks", found.blocks as u64);
    assert!(report.counters.contains(&counted), "{what}: {counted:?}");
    found
}

/// Reads all of an image.
fn find(image: &Path, scale: &Scale) -> Found {
    let ours = Ours(mount(image, true, true));
    let mut found = Found {
        attributes: BTreeMap::new(),
        blocks: 0,
        inodes: 0,
    };
    let mut blocks = BTreeSet::new();
    for number in 0..scale.files {
        let Ok(file) = ours.file(number) else {
            continue;
        };
        let names = file.list_xattrs().unwrap().into_iter();
        let attributes = names.map(|name| {
            let value = file.get_xattr(&name).unwrap();
            (name, value)
        });
        found
            .attributes
            .insert(file_of(number), attributes.collect());
        let inode = InodeNr::new(u32::try_from(file.id().number).unwrap()).unwrap();
        let inode = platter_ext4::inode::read(ours.0.volume(), inode).unwrap();
        blocks.extend(inode.xattr_block.map(|block| block.0));
    }
    found.blocks = blocks.len();
    let space = ours.0.stat_fs().unwrap();
    found.inodes = space.inodes - space.inodes_free;
    found
}

#[derive(Default)]
struct Findings(Vec<String>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(format!("{finding:?}"));
        ControlFlow::Continue(())
    }
}

/// An image for each side, made alike.
struct Pair {
    _folder: tempfile::TempDir,
    kernels: PathBuf,
    ours: PathBuf,
    what: String,
    has_ea_inode: bool,
    /// A value found no room.
    was_full: Cell<bool>,
}

impl Pair {
    fn make(layout: &[&str], what: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [kernels, ours] = ["kernel", "platter"].map(|name| folder.path().join(name));
        for image in [&kernels, &ours] {
            let inodes = ["-N", "8192"];
            mke2fs::make(image, 64 << 10, &[layout, &inodes].concat(), None).unwrap();
        }
        Self {
            _folder: folder,
            kernels,
            ours,
            what: format!("{what}, {layout:?}"),
            has_ea_inode: layout.iter().any(|word| word.contains("ea_inode")),
            was_full: Cell::new(false),
        }
    }

    fn kernel(&self) -> Kernel {
        Kernel(Mount::image(&self.kernels, "", Access::ReadWrite).unwrap())
    }

    /// Takes the steps on both sides, each of which answers the same, and compares what they come to.
    fn take(&self, scale: &Scale, steps: &[Step]) -> (Found, SharingStatistics) {
        let (kernel, ours) = (self.kernel(), Ours::mount(&self.ours, true));
        for (at, &step) in steps.iter().enumerate() {
            let (expected, taken) = (kernel.take(scale, step), ours.take(scale, step));
            assert_eq!(taken, expected, "{}: step {at}, {step:?}", self.what);
            let is_full = taken == Err(Errno::NOSPC);
            self.was_full.set(is_full || self.was_full.get());
        }
        let was_full = self.was_full.get();
        kernel.0.unmount(&self.kernels).unwrap();
        let statistics = ours.unmount();
        let found = find_clean(&self.ours, scale, &self.what);
        // When a value in an inode is set again, the kernel may count a user of it too many, as e2fsck
        // says, and keep it for ever.
        let expected = if self.has_ea_inode {
            find(&self.kernels, scale)
        } else {
            find_clean(&self.kernels, scale, &format!("{}, kernel", self.what))
        };
        assert!(found.attributes == expected.attributes, "{}", self.what);
        assert!(found.inodes <= expected.inodes, "{}", self.what);
        assert!(
            self.has_ea_inode || found.inodes == expected.inodes,
            "{}",
            self.what
        );
        // The kernel forgets a block in which a value had no room.
        let may_be_fewer = was_full && found.blocks < expected.blocks;
        assert!(
            may_be_fewer || found.blocks == expected.blocks,
            "{}: {} blocks, {} by the kernel",
            self.what,
            found.blocks,
            expected.blocks
        );
        (found, statistics)
    }

    /// What the kernel shows of the image that platter wrote.
    fn seen_by_the_kernel(&self) -> BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> {
        let mount = Mount::image(&self.ours, "", Access::ReadOnly).unwrap();
        let entries = fs::read_dir(mount.root()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let files = names.filter(|name| name.starts_with("file"));
        let attributes = files.map(|file| {
            let attributes = kernel_attributes(&mount.root().join(&file));
            (file, attributes)
        });
        let attributes = attributes.collect();
        mount.unmount(&self.ours).unwrap();
        attributes
    }
}

fn kernel_attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..length].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}

#[test]
fn as_many_blocks_are_shared_as_by_the_kernel() {
    let mut random = Prng::named(b"xattr_sharing");
    for layout in LAYOUTS {
        let pair = Pair::make(layout, "sets");
        for scale in [Scale::of_sets(100, 10, 600), Scale::of_sets(200, 100, 800)] {
            let mut steps = scale.sets(&mut random);
            // The second time, some of the files are there.
            let is_there = |file| scale.files == 200 && file < 100;
            steps.retain(|step| !matches!(step, Step::Create(file) if is_there(*file)));
            let (found, statistics) = pair.take(&scale, &steps);
            if layout.contains(&"128") && !layout.contains(&"inline_data") {
                assert!(found.blocks <= usize::try_from(scale.values).unwrap() + 100);
                assert!(statistics.shared_blocks > 100, "{statistics:?}");
            }
        }
        assert_eq!(pair.seen_by_the_kernel().len(), 200);
    }
}

fn mixed_changes(lengths: &'static [u64], layouts: &[&[&str]]) {
    let scale = Scale {
        files: 40,
        names: 5,
        values: 12,
        steps: 700,
        lengths,
    };
    let mut random = Prng::named(b"mixed changes");
    for layout in layouts {
        let pair = Pair::make(layout, "mixed");
        let steps = scale.mixed(&mut random);
        // What is known of blocks is forgotten at an unmount, and found out again by reading.
        for part in steps.chunks(steps.len() / 3) {
            let (found, _) = pair.take(&scale, part);
            assert!(
                found.attributes == pair.seen_by_the_kernel(),
                "{}",
                pair.what
            );
        }
    }
}

#[test]
fn mixed_changes_lead_to_as_many_blocks_as_the_kernels() {
    mixed_changes(&[20, 60, 150], LAYOUTS);
}

#[test]
fn mixed_changes_that_need_much_room_lead_to_no_more_blocks() {
    mixed_changes(&[20, 60, 300, 900, 3000, 12_000], LAYOUTS);
}

#[test]
fn no_more_than_1024_files_share_a_block() {
    let scale = Scale::of_sets(1500, 2, 0);
    let pair = Pair::make(LAYOUTS[0], "full");
    let set = |file, value| Step::Set {
        file,
        name: 0,
        value,
    };
    let mut steps: Vec<Step> = (0..1500).map(Step::Create).collect();
    steps.extend((0..1500).map(|file| set(file, 0)));
    let (found, statistics) = pair.take(&scale, &steps);
    assert_eq!((found.blocks, statistics.shared_blocks), (2, 1498));
    // The full block gets room, and is filled again.
    let reads = (0..1500).map(|file| Step::Read { file, name: 0 });
    let leave = (0..50).map(|file| set(file * 20, 1));
    let back = (0..70).map(|file| set(file * 10, 0));
    let steps: Vec<Step> = reads.chain(leave).chain(back).collect();
    let (found, _) = pair.take(&scale, &steps);
    assert_eq!(found.blocks, 3);
    let mut random = Prng::named(b"full blocks");
    let steps: Vec<Step> = (0..3000)
        .map(|_| set(random.below(1500), random.below(2)))
        .collect();
    pair.take(&scale, &steps);
}

#[test]
fn without_the_cache_nothing_is_shared_anew_and_what_is_shared_stays() {
    let scale = Scale::of_sets(30, 2, 0);
    let pair = Pair::make(LAYOUTS[0], "no_mbcache");
    let sets = |from, to| {
        (from..to).map(|file| Step::Set {
            file,
            name: 0,
            value: 0,
        })
    };
    let creates = (0..30).map(Step::Create);
    let steps: Vec<Step> = creates.chain(sets(0, 20)).collect();
    assert_eq!(pair.take(&scale, &steps).0.blocks, 1);
    let ours = Ours::mount(&pair.ours, false);
    let change = sets(20, 30).chain([
        Step::Set {
            file: 3,
            name: 0,
            value: 1,
        },
        Step::Unlink(4),
        Step::Remove { file: 5, name: 0 },
    ]);
    for step in change {
        ours.take(&scale, step).unwrap();
    }
    assert_eq!(ours.unmount(), SharingStatistics::default());
    let found = find_clean(&pair.ours, &scale, &pair.what);
    assert_eq!(found.blocks, 12);
    assert!(found.attributes == pair.seen_by_the_kernel());
}

#[test]
fn threads_that_share_and_leave_blocks_count_right() {
    let scale = Scale::of_sets(60, 4, 600);
    for layout in [LAYOUTS[0], LAYOUTS[5]] {
        let scale = Scale {
            lengths: if layout == LAYOUTS[0] { &[64] } else { &[3000] },
            ..scale
        };
        let pair = Pair::make(layout, "threads");
        let ours = Ours::mount(&pair.ours, true);
        for file in 0..scale.files {
            ours.take(&scale, Step::Create(file)).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let ours = &ours;
                let run = move || {
                    let mut random = Prng::new(thread);
                    for _ in 0..scale.steps {
                        let (file, value) = (random.below(60), random.below(scale.values));
                        let step = match random.below(8) {
                            0 => Step::Remove { file, name: 0 },
                            1 => Step::Read { file, name: 0 },
                            _ => Step::Set {
                                file,
                                name: 0,
                                value,
                            },
                        };
                        match ours.take(&scale, step) {
                            Ok(()) | Err(Errno::NODATA) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                };
                std::thread::Builder::new()
                    .spawn_scoped(scope, run)
                    .unwrap();
            }
        });
        let statistics = ours.unmount();
        assert!(statistics.shared_blocks + statistics.shared_values > 100);
        let found = find_clean(&pair.ours, &scale, &pair.what);
        assert!(found.attributes == pair.seen_by_the_kernel());
    }
}

/// The block of attributes of a file.
fn block_of(image: &Path, file: u64) -> u64 {
    let report = debugfs::ask(image, &format!("stat {}", file_of(file))).unwrap();
    let report = String::from_utf8(report).unwrap();
    let (_, rest) = report.split_once("File ACL: ").unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn corrupted_count_of_users_is_an_error_and_not_a_loop() {
    let scale = Scale::of_sets(4, 2, 0);
    let set = |file| Step::Set {
        file,
        name: 0,
        value: 0,
    };
    for count in [0u32, 1025, u32::MAX] {
        let pair = Pair::make(LAYOUTS[0], "count");
        let ours = Ours::mount(&pair.ours, true);
        for file in 0..4 {
            ours.take(&scale, Step::Create(file)).unwrap();
        }
        ours.take(&scale, set(0)).unwrap();
        ours.take(&scale, set(1)).unwrap();
        ours.unmount();
        let at = block_of(&pair.ours, 0) * 1024 + 4;
        let image = fs::OpenOptions::new().write(true).open(&pair.ours).unwrap();
        image.write_all_at(&count.to_le_bytes(), at).unwrap();
        drop(image);
        let ours = Ours::mount(&pair.ours, true);
        let read = Step::Read { file: 0, name: 0 };
        assert_eq!(ours.take(&scale, read), Err(Errno::UCLEAN));
        assert_eq!(ours.take(&scale, set(1)), Err(Errno::UCLEAN));
        // Nobody is led to it.
        ours.take(&scale, set(2)).unwrap();
        ours.take(&scale, set(3)).unwrap();
        ours.unmount();
        assert_eq!(block_of(&pair.ours, 2), block_of(&pair.ours, 3));
        assert_ne!(block_of(&pair.ours, 2), block_of(&pair.ours, 0));
    }
}
