//! Logs that platter writes, and the kernel: it replays them, mounts what was unmounted, and `xfs_repair`
//! judges both.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use platter_block::sim::{Recorder, Request};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_cache::buffer::BlockSize;
use platter_ondisk::Locus;
use platter_xfs::FsContext;
use platter_xfs::ag::{Groups, space};
use platter_xfs::inode;
use platter_xfs::ondisk::features::Incompat;
use platter_xfs::ondisk::inode::DiskInodeV3;
use platter_xfs::ondisk::{AgBlock, AgNr, BasicBlock, InodeNr, Superblock};
use platter_xfs::txn::{BlockType, Log, LogDevice, LogState, Transaction, find_position};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::tool;
use zerocopy::FromBytes;

use super::listing;
use super::scene::{Scene, Shape};

/// Transactions of a test.
const TRANSACTIONS: u64 = 150;
/// Files whose inodes change.
const FILES: usize = 40;

const PLAIN: Shape = Shape {
    name: "plain",
    size_mib: 64,
    options: &["-m", "rmapbt=0,reflink=0"],
    external_mib: None,
    mount_options: "",
    incompat: Incompat::empty(),
};

const SHAPES: &[Shape] = &[
    Shape {
        name: "smallest log",
        options: &["-l", "size=4m", "-m", "rmapbt=0,reflink=0"],
        ..PLAIN
    },
    Shape {
        name: "stripe unit of 32 KiB",
        size_mib: 128,
        options: &["-l", "sunit=64", "-m", "rmapbt=0,reflink=0"],
        ..PLAIN
    },
    Shape {
        name: "stripe unit of 256 KiB",
        size_mib: 256,
        options: &["-l", "sunit=512", "-m", "rmapbt=0,reflink=0,bigtime=1"],
        ..PLAIN
    },
    Shape {
        name: "sectors of 4 KiB",
        options: &["-s", "size=4096", "-m", "rmapbt=0,reflink=0"],
        ..PLAIN
    },
    Shape {
        name: "external log",
        external_mib: Some(8),
        ..PLAIN
    },
    Shape {
        name: "small blocks and wide counters",
        options: &[
            "-b",
            "size=1024",
            "-i",
            "nrext64=1,sparse=1",
            "-m",
            "rmapbt=0,reflink=0",
        ],
        ..PLAIN
    },
];

/// Files of several forms of forks, in directories.
fn populate(root: &Path) -> Result<()> {
    for index in 0..FILES {
        let dir = root.join(format!("subdir{}", index % 4));
        fs::create_dir_all(&dir)?;
        let path = dir.join(format!("file{index}"));
        match index % 4 {
            0 => std::os::unix::fs::symlink("target", &path)?,
            1 => {
                fs::write(&path, vec![1; 5000 * index])?;
                let value = vec![b'v'; index];
                rustix::fs::setxattr(&path, "user.a", &value, rustix::fs::XattrFlags::empty())?;
            }
            2 => {
                let file = fs::File::create(&path)?;
                for hole in 0..40 {
                    std::os::unix::fs::FileExt::write_at(&file, b"x", hole * 16_384)?;
                }
            }
            _ => fs::create_dir(&path)?,
        }
    }
    Ok(())
}

/// A filesystem in memory that platter writes.
struct Written {
    recorder: Recorder,
    devices: Vec<Arc<dyn BlockDevice>>,
    context: FsContext,
    inodes: Vec<InodeNr>,
    dice: u64,
    /// Extents that were allocated, and belong to nothing.
    allocated: Vec<(AgNr, AgBlock, u32)>,
    /// The newest contents of all blocks: what the trees of the groups are changed in.
    newest: Mutex<Arc<MemoryDevice>>,
}

impl Written {
    fn open(scene: &Scene, inodes: Vec<InodeNr>) -> Result<Self> {
        let mut initial: Vec<Arc<dyn BlockDevice>> = Vec::new();
        let mut newest = None;
        for image in scene.images("") {
            let bytes = fs::read(image)?;
            newest.get_or_insert_with(|| Arc::new(MemoryDevice::new("newest", bytes.clone())));
            initial.push(Arc::new(MemoryDevice::new("image", bytes)));
        }
        let recorder = Recorder::new(initial);
        let devices: Vec<Arc<dyn BlockDevice>> = recorder
            .devices()
            .iter()
            .map(|device| -> Arc<dyn BlockDevice> { Arc::clone(device) as _ })
            .collect();
        let data = Arc::clone(&devices[0]);
        let mut sector = vec![0; 4096];
        data.read_at(0, &mut sector)?;
        let superblock = Superblock::decode(&sector, Locus::UNKNOWN)?;
        let log = LogDevice::open(&superblock, &data, devices.get(1))?;
        let position = find_position(&log, true)?;
        assert_eq!(position.state, LogState::Clean);
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let context = FsContext::new(data, None, superblock, budget);
        context.open_log(log, &position)?;
        Ok(Self {
            recorder,
            devices,
            context,
            inodes,
            dice: 1,
            allocated: Vec::new(),
            newest: Mutex::new(newest.context("an image")?),
        })
    }

    fn log(&self) -> &Log {
        self.context.log().expect("it was opened")
    }

    fn below(&mut self, end: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % end
    }

    /// Runs transactions that change inodes, allocate and free.
    fn work(&mut self, transactions: u64) -> Result<()> {
        for _ in 0..transactions {
            match self.below(3) {
                0 => self.change_groups(false)?,
                _ => self.change_inodes()?,
            }
            match self.below(12) {
                0..3 => self.log().force_all()?,
                3 => self.log().quiesce()?,
                _ => {}
            }
        }
        while !self.allocated.is_empty() {
            self.change_groups(true)?;
        }
        Ok(())
    }

    fn change_inodes(&mut self) -> Result<()> {
        let count = 1 + self.below(5);
        let changes: Vec<_> = (0..count)
            .map(|_| {
                (
                    self.below(self.inodes.len() as u64),
                    self.below(1 << 20),
                    self.below(512),
                )
            })
            .collect();
        let mut transaction = Transaction::begin(self.context.mount(), self.log(), 16 << 10, 1)?;
        for (index, time, bits) in changes {
            let number = self.inodes[usize::try_from(index)?];
            let place = inode::place_in_log(&self.context, number)?;
            transaction.edit_inode(&place, |image| {
                let (disk, _) = DiskInodeV3::mut_from_prefix(image).expect("an inode");
                let mode = disk.core.mode.get() & !0o777;
                disk.core
                    .mode
                    .set(mode | u16::try_from(bits).unwrap_or_default());
                disk.core.uid.set(u32::try_from(time).unwrap_or_default());
                disk.core
                    .gid
                    .set(u32::try_from(time / 2).unwrap_or_default());
                disk.change_count.set(disk.change_count.get() + 1);
                Ok(())
            })?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Allocates an extent, or frees one, by the code that recovery changes groups with. What it would write
    /// becomes a transaction.
    fn change_groups(&mut self, only_free: bool) -> Result<()> {
        let newest = Arc::clone(&self.newest.lock().expect("no panic"));
        let recorder = Recorder::new(vec![newest]);
        let view: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
        let geometry = self.context.geometry();
        let mut groups = Groups::new(view, geometry);
        let frees = only_free || self.below(2) == 0;
        if frees && !self.allocated.is_empty() {
            let index = self.below(self.allocated.len() as u64);
            let (ag, start, count) = self.allocated.swap_remove(usize::try_from(index)?);
            space::free_extent(&mut groups.get(ag)?, start, count)?;
        } else {
            let ag = self.below(self.context.geometry().ag_count().into());
            let ag = AgNr(u32::try_from(ag)?);
            let most = 1 + u32::try_from(self.below(30))?;
            let extent = space::alloc_extent(&mut groups.get(ag)?, most)?;
            self.allocated
                .extend(extent.map(|(start, count)| (ag, start, count)));
        }
        groups.write_all()?;
        drop(groups);
        let mut transaction = Transaction::begin(self.context.mount(), self.log(), 64 << 10, 1)?;
        for event in recorder.recording().events() {
            let Request::Write { offset, data } = &event.request else {
                continue;
            };
            let at = BasicBlock::of_byte(*offset);
            let size = BlockSize::new(u32::try_from(data.len())?).context("a block")?;
            let what = BlockType::of_block(self.context.geometry(), at, data);
            let what = what.context("a block of a group")?;
            transaction.edit(at, size, &what, |bytes| {
                bytes.copy_from_slice(data);
                Ok(())
            })?;
        }
        transaction.commit()?;
        let mut bytes = vec![0; usize::try_from(recorder.devices()[0].geometry().len_bytes)?];
        recorder.devices()[0].read_at(0, &mut bytes)?;
        *self.newest.lock().expect("no panic") = Arc::new(MemoryDevice::new("newest", bytes));
        Ok(())
    }

    /// Writes the devices as they are into the images of a scene.
    fn store(&self, scene: &Scene) -> Result<()> {
        for (device, image) in self.devices.iter().zip(scene.images("")) {
            let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes)?];
            device.read_at(0, &mut bytes)?;
            fs::write(image, bytes)?;
        }
        Ok(())
    }
}

/// A filesystem with files, unmounted, and the numbers of its inodes.
fn scene(shape: &Shape) -> Result<(Scene, Vec<InodeNr>)> {
    let scene = Scene::make(shape)?;
    let images = scene.images("");
    let paths: Vec<&Path> = images.iter().map(std::path::PathBuf::as_path).collect();
    let mount = Mount::images(FsType::Xfs, &paths, shape.mount_options, Access::ReadWrite)?;
    populate(mount.root())?;
    let mut inodes = Vec::new();
    for index in 0..FILES {
        let path = mount
            .root()
            .join(format!("subdir{}/file{index}", index % 4));
        let number = std::os::unix::fs::MetadataExt::ino(&path.symlink_metadata()?);
        inodes.extend(InodeNr::new(number));
    }
    mount.unmount_all(&paths)?;
    Ok((scene, inodes))
}

fn attributes(context: &FsContext, inodes: &[InodeNr]) -> Result<Vec<(u32, u32, u32, u64)>> {
    let attributes = inodes.iter().map(|&number| {
        let inode = inode::read(context, number)?;
        Ok((inode.permissions, inode.uid, inode.gid, inode.change_count))
    });
    attributes.collect()
}

/// The image of a scene after its recovery, opened anew.
fn reopened(scene: &Scene, inodes: &[InodeNr]) -> Result<Vec<(u32, u32, u32, u64)>> {
    let images = scene.images(".ours");
    let data: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("ours", fs::read(&images[0])?));
    let mut sector = vec![0; 4096];
    data.read_at(0, &mut sector)?;
    let superblock = Superblock::decode(&sector, Locus::UNKNOWN)?;
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    attributes(&FsContext::new(data, None, superblock, budget), inodes)
}

fn replay_and_compare(shape: &Shape) -> Result<()> {
    let (scene, inodes) = scene(shape)?;
    let mut written = Written::open(&scene, inodes.clone())?;
    written.work(TRANSACTIONS)?;
    written.log().force_all()?;
    let expected = attributes(&written.context, &inodes)?;
    written.store(&scene)?;
    print_log(&scene)?;
    let (ours, report) = scene.recovered()?;
    assert!(report.log.transactions > 0, "{}: {report:?}", shape.name);
    assert_eq!(reopened(&scene, &inodes)?, expected, "{}", shape.name);
    let theirs = scene.recovered_by_the_kernel()?;
    listing::compare(&ours, &theirs)?;
    let images = scene.images(".kernel");
    let paths: Vec<&Path> = images.iter().map(std::path::PathBuf::as_path).collect();
    let (verdict, text) = xfs::report(&paths)?;
    if verdict != Verdict::Clean {
        bail!("{}: {text}", shape.name);
    }
    Ok(())
}

/// Has `xfs_logprint` read the whole log.
fn print_log(scene: &Scene) -> Result<()> {
    let images = scene.images("");
    let mut logprint = tool::command("xfs_logprint");
    if let [_, log] = &images[..] {
        logprint.arg("-l").arg(log);
    }
    let finished = tool::finish(logprint.arg(&images[0]))?;
    let text = finished.text();
    assert_eq!(finished.code()?, 0, "{text}");
    // A number may end in `bad`.
    let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let complaints = ["ERROR", "Bad", "bad", "unknown", "illegal"];
    let complaint = words.find(|word| complaints.contains(word));
    assert_eq!(complaint, None, "{text}");
    assert!(
        text.contains("CHECKPOINT") || text.contains("TRAN"),
        "{text}"
    );
    Ok(())
}

fn unmount_and_compare(shape: &Shape) -> Result<()> {
    let (scene, inodes) = scene(shape)?;
    let mut written = Written::open(&scene, inodes.clone())?;
    written.work(TRANSACTIONS)?;
    let expected = attributes(&written.context, &inodes)?;
    written.log().unmount()?;
    assert_eq!(attributes(&written.context, &inodes)?, expected);
    written.store(&scene)?;
    let images = scene.images("");
    let paths: Vec<&Path> = images.iter().map(std::path::PathBuf::as_path).collect();
    let (verdict, text) = xfs::report(&paths)?;
    if verdict != Verdict::Clean {
        bail!("{}: {text}", shape.name);
    }
    // The kernel would refuse to skip a recovery that is needed, of a mount that may write.
    let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::ReadWrite)?;
    for (index, (permissions, uid, gid, _)) in expected.iter().enumerate() {
        use std::os::unix::fs::MetadataExt;
        let path = mount
            .root()
            .join(format!("subdir{}/file{index}", index % 4));
        let found = path.symlink_metadata()?;
        let found = (found.mode() & 0o7777, found.uid(), found.gid());
        assert_eq!(found, (*permissions, *uid, *gid), "{}: {index}", shape.name);
    }
    fs::write(mount.root().join("afterwards"), b"works")?;
    mount.unmount_all(&paths)?;
    assert_eq!(xfs::check(&paths)?, Verdict::Clean, "{}", shape.name);
    Ok(())
}

fn all(test: fn(&Shape) -> Result<()>) {
    for shape in SHAPES {
        test(shape).unwrap_or_else(|error| panic!("{}: {error:#}", shape.name));
    }
}

#[test]
fn log_written_by_platter_is_replayed_by_the_kernel() {
    all(replay_and_compare);
}

#[test]
fn unmounted_xfs_is_clean_for_repair_and_the_kernel() {
    all(unmount_and_compare);
}

/// Cuts of the recorded writes that the kernel recovers too.
const CUTS: usize = 6;

#[test]
fn cut_xfs_log_of_platter_recovers_as_in_the_kernel() {
    let shape = &SHAPES[0];
    let (scene, inodes) = scene(shape).unwrap();
    let mut written = Written::open(&scene, inodes).unwrap();
    // Extents that belong to nothing would be lost for a checker: inodes alone.
    for _ in 0..TRANSACTIONS {
        written.change_inodes().unwrap();
        if written.below(4) == 0 {
            written.log().force_all().unwrap();
        }
    }
    written.log().force_all().unwrap();
    let recording = written.recorder.recording();
    let end = recording.events().len();
    for cut in 1..=CUTS {
        let devices = recording.replay(end * cut / (CUTS + 1)).unwrap();
        for (device, image) in devices.iter().zip(scene.images("")) {
            let len = usize::try_from(device.geometry().len_bytes).unwrap();
            let mut bytes = vec![0; len];
            device.read_at(0, &mut bytes).unwrap();
            fs::write(image, bytes).unwrap();
        }
        let (ours, _) = scene.recovered().unwrap();
        let theirs = scene.recovered_by_the_kernel().unwrap();
        listing::compare(&ours, &theirs).unwrap();
    }
}
