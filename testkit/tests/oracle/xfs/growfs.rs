//! Mounted filesystems that grow, compared with what `xfs_growfs` makes of a copy, and cut at any write.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use platter::{DeviceRole, ImageSpec, MountOptions, Volume, WriteOptions};
use platter_block::sim::{CrashOptions, CrashState, Recorder, Recording};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::clock::SystemClock;
use platter_vfs::devices::NewLength;
use platter_vfs::{Context, CreateKind, Filesystem};
use platter_xfs::ondisk::{Geometry, Superblock};
use platter_xfs::{Xfs, check};
use testkit::findings::Findings;
use testkit::oracle::{Verdict, xfs};
use testkit::subject::store;
use testkit::tool;

use super::images::{Images, paths};
use super::writing::name;

const MIB: u64 = 1 << 20;

/// How a filesystem is made, and how long it becomes, step by step.
#[derive(Debug, Clone, Copy)]
struct Shape {
    options: &'static [&'static str],
    external_log: bool,
    steps_mib: &'static [u64],
}

const USUAL: Shape = Shape {
    options: &["-d", "agsize=32m"],
    external_log: false,
    steps_mib: &[90, 97, 200],
};
const RMAP: Shape = Shape {
    options: &["-d", "agsize=32m", "-m", "rmapbt=1"],
    ..USUAL
};
const PLAIN: Shape = Shape {
    options: &[
        "-d",
        "agsize=32m",
        "-m",
        "finobt=0,reflink=0,bigtime=0",
        "-i",
        "sparse=0",
    ],
    ..USUAL
};
const SMALL_BLOCKS: Shape = Shape {
    options: &["-d", "agsize=16m", "-b", "size=1024", "-m", "rmapbt=1"],
    ..USUAL
};
const LARGE_SECTORS: Shape = Shape {
    options: &["-d", "agsize=32m", "-s", "size=4096"],
    ..USUAL
};
const EXTERNAL_LOG: Shape = Shape {
    external_log: true,
    ..RMAP
};
const SHAPES: [Shape; 6] = [
    USUAL,
    RMAP,
    PLAIN,
    SMALL_BLOCKS,
    LARGE_SECTORS,
    EXTERNAL_LOG,
];

struct Scene {
    images: Images,
}

impl Scene {
    /// A filesystem of 80 MiB.
    fn make(shape: Shape) -> Result<Self> {
        let images = Images::make(80, shape.options, shape.external_log)?;
        Ok(Self { images })
    }

    fn images(&self, suffix: &str) -> Vec<PathBuf> {
        self.images.paths(suffix)
    }

    fn open(&self, suffix: &str) -> Volume {
        let images = self.images(suffix);
        let mut options = MountOptions::new().writing(WriteOptions {
            commit_interval: None,
            ..WriteOptions::default()
        });
        if let Some(log) = images.get(1) {
            options = options.device(DeviceRole::Log, log);
        }
        options
            .open(&ImageSpec::parse(&images[0]).unwrap())
            .unwrap()
    }

    /// Makes the kernel grow the mounted filesystem, and runs `commands` in its root directory then.
    fn grow_by_the_kernel(&self, suffix: &str, mib: u64, commands: &str) -> Result<()> {
        let images = self.images(suffix);
        File::options()
            .write(true)
            .open(&images[0])?
            .set_len(mib * MIB)?;
        let dir = self.images.dir().join("mountpoint");
        fs::create_dir_all(&dir)?;
        let log = images.get(1).map(|log| log.display().to_string());
        let script = r#"
            set -e
            options=loop,nouuid
            if [ -n "$3" ]; then
                log=$(losetup -f --show "$3")
                trap 'losetup -d $log' EXIT
                options=$options,logdev=$log
            fi
            mount -t xfs -o $options "$1" "$2"
            xfs_growfs -d "$2" >&2
            (cd "$2"; eval "$4")
            umount "$2"
        "#;
        let mut unshare = tool::command("unshare");
        unshare.args(["-m", "sh", "-c", script, "sh"]);
        unshare.args([images[0].as_path(), &dir]);
        unshare.args([log.as_deref().unwrap_or_default(), commands]);
        tool::succeed(&mut unshare)?;
        // The kernel has released the image once its device is gone.
        std::thread::sleep(std::time::Duration::from_millis(200));
        Ok(())
    }
}

fn grow(fs: &dyn Filesystem, mib: u64) -> platter_vfs::Result<u64> {
    let devices = fs.devices().unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let resized = devices.resize_device(None, NewLength::Bytes(mib * MIB), go_on);
    Ok(resized?.after_bytes)
}

fn assert_clean(images: &[PathBuf], context: &str) {
    let (verdict, text) = xfs::report(&paths(images)).unwrap();
    assert_eq!(verdict, Verdict::Clean, "{context}: {text}");
}

/// What `xfs_db` prints of the superblock, and of how long each group is and how much of it is free. Checksums and
/// sequence numbers are left out, and so are where a free list begins and what is on it.
fn printed(images: &[PathBuf]) -> Vec<String> {
    let print = |commands: &[String]| {
        let mut xfs_db = tool::command("xfs_db");
        xfs_db.arg("-r");
        if let Some(log) = images.get(1) {
            xfs_db.arg("-l").arg(log);
        }
        for command in commands {
            xfs_db.args(["-c", command]);
        }
        let finished = tool::finish(xfs_db.arg(&images[0])).unwrap();
        assert!(finished.status.success(), "{}", finished.text());
        String::from_utf8(finished.stdout).unwrap()
    };
    let superblock = print(&["sb 0".into(), "print".into()]);
    let mut lines: Vec<String> = superblock
        .lines()
        .filter(|line| !line.starts_with("crc") && !line.starts_with("lsn"))
        .map(str::to_owned)
        .collect();
    let value = |text: &str, key: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let value = line.unwrap_or_else(|| panic!("{key} in {text}"));
        value.trim_start_matches(" = ").parse().unwrap()
    };
    for ag in 0..value(&superblock, "agcount") {
        let copy = print(&[format!("sb {ag}"), "print dblocks agcount".into()]);
        let agf = print(&[
            format!("agf {ag}"),
            "print length freeblks flcount btreeblks".into(),
        ]);
        let agi = print(&[format!("agi {ag}"), "print length count freecount".into()]);
        let free = value(&agf, "freeblks") + value(&agf, "flcount") + value(&agf, "btreeblks");
        let length = value(&agf, "length");
        lines.push(format!("{ag}: {copy} {length} {free} {agi}"));
    }
    lines
}

fn write(fs: &dyn Filesystem, text: &str, mib: usize) -> platter_vfs::Result<()> {
    let root = fs.root()?;
    let file = root.create(&Context::root(), name(text), CreateKind::Regular, 0o644)?;
    file.write_at(0, &vec![7; mib << 20])?;
    file.sync(false)
}

#[test]
fn growth_equals_that_of_the_kernel() {
    for shape in SHAPES {
        let scene = Scene::make(shape).unwrap();
        let (mount, images) = scene.images.kernel_mount("").unwrap();
        fs::write(mount.root().join("before"), vec![1; 5 << 20]).unwrap();
        mount.unmount_all(&paths(&images)).unwrap();
        for &mib in shape.steps_mib {
            let context = format!("{shape:?}: {mib} MiB");
            scene.images.copy("", ".kernel").unwrap();
            scene.grow_by_the_kernel(".kernel", mib, "").unwrap();
            let volume = scene.open("");
            let found = grow(&**volume.filesystem(), mib).unwrap();
            assert_eq!(found, mib * MIB, "{context}");
            volume.close().unwrap();
            let (ours, theirs) = (printed(&images), printed(&scene.images(".kernel")));
            assert_eq!(ours, theirs, "{context}");
            assert_clean(&images, &context);
        }
        let volume = scene.open("");
        write(&**volume.filesystem(), "of platter", 90).unwrap();
        grow(&**volume.filesystem(), 260).unwrap();
        write(&**volume.filesystem(), "grown again", 40).unwrap();
        volume.close().unwrap();
        assert_clean(&images, "written by platter");
        let (mount, images) = scene.images.kernel_mount("").unwrap();
        let read = |name: &str| fs::read(mount.root().join(name)).unwrap();
        assert!(read("before") == vec![1; 5 << 20], "{shape:?}");
        assert!(read("of platter") == vec![7; 90 << 20], "{shape:?}");
        assert!(read("grown again") == vec![7; 40 << 20], "{shape:?}");
        fs::write(mount.root().join("after"), vec![2; 60 << 20]).unwrap();
        mount.unmount_all(&paths(&images)).unwrap();
        assert_clean(&images, "written by the kernel");
    }
}

#[test]
fn log_of_a_kernel_that_grew_is_recovered() {
    // What the log holds after the growth lies in new groups, too.
    let commands = "
        mkdir many
        for n in $(seq 400); do mkdir many/$n; echo $n >many/$n/file; done
        head -c 50000000 /dev/zero | tr '\\0' x >large
        sync
        xfs_io -x -c 'shutdown -f' .
    ";
    for shape in [USUAL, RMAP, EXTERNAL_LOG] {
        let scene = Scene::make(shape).unwrap();
        scene.grow_by_the_kernel("", 200, commands).unwrap();
        let images = scene.images("");
        let volume = scene.open("");
        assert!(volume.filesystem().stat_fs().unwrap().blocks > 40_000);
        for n in [1, 200, 400] {
            let text = volume.read(format!("/many/{n}/file").as_str()).unwrap();
            assert_eq!(text, format!("{n}\n").into_bytes());
        }
        assert!(volume.read("/large").unwrap() == vec![b'x'; 50_000_000]);
        volume.close().unwrap();
        assert_clean(&images, &format!("{shape:?}"));
    }
}

/// All that a mount wrote that grew, and where what was durable.
struct Recorded {
    recording: Recording,
    /// From here on, the file `before` is there; then, the new size; then, the file `after`.
    durable: [usize; 3],
}

fn record(scene: &Scene, mib: u64) -> Result<Recorded> {
    let mut initial: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for (image, index) in scene.images("").iter().zip(0..) {
        let mut bytes = fs::read(image)?;
        if index == 0 {
            bytes.resize(usize::try_from(mib * MIB)?, 0);
        }
        initial.push(Arc::new(MemoryDevice::new("image", bytes)));
    }
    let recorder = Recorder::new(initial);
    let devices = recorder.devices().iter();
    let devices: Vec<_> = devices
        .map(|device| -> Arc<dyn BlockDevice> { Arc::clone(device) as _ })
        .collect();
    let fs = mount(&devices)?;
    write(&fs, "before", 1)?;
    let before = recorder.mark();
    // What the log holds is not in its place.
    fs.root()?
        .create(&Context::root(), name("dir"), CreateKind::Directory, 0o755)?;
    grow(&fs, mib)?;
    let grown = recorder.mark();
    write(&fs, "after", 60)?;
    for number in 0..40 {
        let text = format!("dir{number}");
        fs.root()?
            .create(&Context::root(), name(&text), CreateKind::Directory, 0o755)?;
    }
    fs.sync()?;
    let after = recorder.mark();
    let recording = recorder.recording();
    drop(fs);
    Ok(Recorded {
        recording,
        durable: [before, grown, after],
    })
}

fn mount(devices: &[Arc<dyn BlockDevice>]) -> platter_vfs::Result<Xfs> {
    let options = platter_xfs::MountOptions {
        log: devices.get(1).cloned(),
        ..platter_xfs::MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(32 << 20));
    let clock = Arc::new(SystemClock::default());
    Xfs::mount_writable(Arc::clone(&devices[0]), &options, budget, clock)
}

/// Devices that platter recovered are sound, and have what was durable; so have those that the kernel did, where that is
/// asked.
fn judge(state: &CrashState<'_>, recorded: &Recorded, scene: &Scene, asks: bool) -> Result<bool> {
    let devices = || -> Result<Vec<Arc<dyn BlockDevice>>> {
        let devices = state.devices()?.into_iter();
        Ok(devices
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect())
    };
    let ours = devices()?;
    let fs = mount(&ours).context("mount")?;
    let is_there = |file: &str| fs.root()?.lookup(name(file)).map(drop);
    let [before, grown, after] = recorded.durable.map(|at| at <= state.position);
    if before {
        is_there("before").context("before")?;
    }
    if after {
        is_there("after").context("after")?;
    }
    fs.unmount()?;
    drop(fs);
    let mut sector = vec![0; 4096];
    ours[0].read_at(0, &mut sector)?;
    let superblock = Superblock::decode(&sector, Locus::group(0))?;
    let len = Geometry::new(&superblock).len_bytes();
    let has_grown = len > 80 * MIB;
    ensure!(has_grown || !grown, "it has its old length");
    let mut findings = Findings::default();
    let options = platter_xfs::MountOptions {
        log: ours.get(1).cloned(),
        ..platter_xfs::MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(32 << 20));
    check::check(&ours[0], &options, &budget, &mut findings)?;
    ensure!(findings.0.is_empty(), "{findings:?}");
    if asks {
        let images = scene.images(".ours");
        for (device, image) in ours.iter().zip(&images) {
            store(&**device, image)?;
        }
        let (verdict, text) = xfs::report(&paths(&images))?;
        ensure!(verdict == Verdict::Clean, "recovered by platter: {text}");
        let images = scene.images(".kernel");
        for (device, image) in devices()?.iter().zip(&images) {
            store(&**device, image)?;
        }
        let (mount, images) = scene
            .images
            .kernel_mount(".kernel")
            .context("the kernel's mount")?;
        for (file, is_durable) in [("before", before), ("after", after)] {
            let found = mount.root().join(file).exists();
            ensure!(found || !is_durable, "the kernel has no {file}");
        }
        mount.unmount_all(&paths(&images))?;
        let (verdict, text) = xfs::report(&paths(&images))?;
        ensure!(verdict == Verdict::Clean, "recovered by the kernel: {text}");
    }
    Ok(has_grown)
}

#[test]
fn growth_that_is_cut_is_whole_or_absent() {
    for (shape, seed) in [USUAL, RMAP, EXTERNAL_LOG].into_iter().zip(1..) {
        let scene = Scene::make(shape).unwrap();
        let recorded = record(&scene, 170).unwrap();
        let options = CrashOptions {
            seed,
            first_position: recorded.durable[0],
            mixes_per_position: 1,
            subset_writes_max: 3,
            tears_writes: true,
        };
        let (mut found, mut asked) = ([0, 0], 0);
        // Up to the growth, each state; then some.
        let mut later = 0;
        for (state, index) in recorded.recording.crash_states(options).zip(0..) {
            let state = state.unwrap();
            if state.position > recorded.durable[1] {
                later += 1;
                if later % 9 != 0 {
                    continue;
                }
            }
            let asks = index % 7 == 0;
            let has_grown = judge(&state, &recorded, &scene, asks)
                .with_context(|| format!("{shape:?}: state {index} at {}", state.position))
                .unwrap();
            found[usize::from(has_grown)] += 1;
            asked += usize::from(asks);
        }
        println!("{shape:?}: {found:?} states, {asked} of them before the kernel");
        assert!(found[0] > 10 && found[1] > 10 && asked > 5, "{found:?}");
    }
}
