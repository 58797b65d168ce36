//! Tuned images: compared with what `xfs_db` makes of copies, before `xfs_repair` and a kernel that writes to them, and cut
//! at any write.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use platter::block::{BlockDevice, MemoryDevice, OverlayDevice, OverlayOptions};
use platter::vfs::Tune;
use platter::{DeviceRole, ImageSpec, MemoryBudget, MountOptions};
use platter_block::sim::{CrashOptions, CrashState, Recorder};
use platter_ondisk::{Locus, Uuid};
use platter_vfs::Filesystem;
use platter_vfs::clock::SystemClock;
use platter_xfs::ondisk::Superblock;
use platter_xfs::{ImageCommit, Logging, Xfs};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::subject::store;
use testkit::{program, tool};

use super::images::{Images, paths};

const NEW: &str = "0b8e6a52-3c1d-4f7e-9a60-5d2f81c4e793";
const OTHER: &str = "5f0c21d7-88ab-4c39-b4e1-6a9e0d3f7214";

/// How a filesystem is made.
#[derive(Debug, Clone, Copy)]
struct Shape {
    options: &'static [&'static str],
    mib: u64,
    external_log: bool,
    /// What can be switched on.
    switched: &'static [&'static str],
}

const USUAL: Shape = Shape {
    options: &["-d", "agcount=3", "-m", "bigtime=0,inobtcount=0"],
    mib: 80,
    external_log: false,
    switched: &["bigtime", "inobtcount"],
};
/// With a log as long as `nrext64` needs.
const LONG_LOG: Shape = Shape {
    options: &[
        "-d",
        "agcount=3",
        "-l",
        "size=64m",
        "-m",
        "bigtime=0,inobtcount=0,rmapbt=1",
        "-i",
        "nrext64=0",
    ],
    mib: 512,
    switched: &["bigtime", "nrext64", "inobtcount"],
    ..USUAL
};
const RMAP: Shape = Shape {
    options: &["-d", "agcount=3", "-m", "bigtime=0,inobtcount=0,rmapbt=1"],
    ..USUAL
};
const LARGE_SECTORS: Shape = Shape {
    options: &["-s", "size=4096", "-m", "bigtime=0,inobtcount=0"],
    ..USUAL
};
const STRIPED_LOG: Shape = Shape {
    options: &["-l", "su=64k", "-m", "bigtime=0,inobtcount=0"],
    ..USUAL
};
const SMALL_BLOCKS: Shape = Shape {
    options: &["-b", "size=1024", "-m", "bigtime=0,inobtcount=0"],
    ..USUAL
};
const EXTERNAL_LOG: Shape = Shape {
    external_log: true,
    ..RMAP
};
const SHAPES: [Shape; 7] = [
    USUAL,
    LONG_LOG,
    RMAP,
    LARGE_SECTORS,
    STRIPED_LOG,
    SMALL_BLOCKS,
    EXTERNAL_LOG,
];

impl Shape {
    /// Switches on what can be.
    fn switches(&self) -> Vec<Tune> {
        self.switched.iter().map(|name| switch(name)).collect()
    }
}

struct Scene {
    images: Images,
    shape: Shape,
}

impl Scene {
    /// A filesystem that a kernel filled.
    fn make(shape: Shape) -> Result<Self> {
        let images = Images::make(shape.mib, shape.options, shape.external_log)?;
        let scene = Self { images, shape };
        scene.write("", "first", 300)?;
        Ok(scene)
    }

    fn images(&self, suffix: &str) -> Vec<PathBuf> {
        self.images.paths(suffix)
    }

    /// Mounts it by the kernel, which makes a directory with so many files.
    fn write(&self, suffix: &str, name: &str, files: usize) -> Result<()> {
        let (mount, images) = self.images.kernel_mount(suffix)?;
        let directory = mount.root().join(name);
        fs::create_dir(&directory)?;
        for number in 0..files {
            fs::write(directory.join(number.to_string()), name)?;
        }
        mount.unmount_all(&paths(&images))
    }

    fn tune(&self, changes: &[Tune]) -> Result<()> {
        let images = self.images("");
        let mut options = MountOptions::new();
        if let Some(log) = images.get(1) {
            options = options.device(DeviceRole::Log, log);
        }
        let edit = options.edit(&ImageSpec::new(&images[0]))?;
        edit.tune(changes)?;
        Ok(edit.commit()?)
    }

    fn assert_clean(&self, suffix: &str, context: &str) {
        let images = self.images(suffix);
        let (verdict, text) = xfs::report(&paths(&images)).unwrap();
        let shape = self.shape;
        assert_eq!(verdict, Verdict::Clean, "{shape:?}: {context}: {text}");
    }

    /// What `xfs_db` prints for commands.
    fn xfs_db(&self, suffix: &str, commands: &[&str]) -> Result<String> {
        let images = self.images(suffix);
        let mut xfs_db = tool::command("xfs_db");
        xfs_db.arg("-x");
        if let Some(log) = images.get(1) {
            xfs_db.arg("-l").arg(log);
        }
        for command in commands {
            xfs_db.args(["-c", command]);
        }
        let finished = tool::succeed(xfs_db.arg(&images[0]))?;
        Ok(String::from_utf8(finished.stdout)?)
    }

    /// What the superblock of a group says; of a copy, what has the same meaning there.
    fn superblock(&self, suffix: &str, ag: usize) -> Result<Vec<String>> {
        let text = self.xfs_db(suffix, &[&format!("sb {ag}"), "print"])?;
        let lines = text.lines().filter(|line| {
            let name = line.split(' ').next().unwrap_or_default();
            let is_identity = ["uuid", "fname", "meta_uuid"].contains(&name);
            let is_own = ["crc", "lsn"].contains(&name);
            is_identity || name.starts_with("features") || (ag == 0 && !is_own)
        });
        Ok(lines.map(str::to_owned).collect())
    }
}

fn uuid(text: &str) -> Tune {
    Tune::Uuid(text.parse().unwrap())
}

fn label(text: &str) -> Tune {
    Tune::Label(text.as_bytes().to_vec())
}

fn switch(name: &str) -> Tune {
    let name = name.to_owned();
    Tune::Feature { name, on: true }
}

#[test]
fn label_and_uuid_are_those_that_xfs_db_sets() -> Result<()> {
    for shape in SHAPES {
        let scene = Scene::make(shape)?;
        for (text, step) in [(NEW, "to"), (OTHER, "on"), (xfs::UUID, "back")] {
            let context = format!("{shape:?}: {step}");
            scene.images.copy("", ".theirs")?;
            let commands = [format!("uuid {text}"), format!("label {step}")];
            let commands = commands.each_ref().map(String::as_str);
            scene.xfs_db(".theirs", &commands)?;
            scene.tune(&[label(step), uuid(text)])?;
            for ag in 0..3 {
                let (ours, theirs) = (scene.superblock("", ag)?, scene.superblock(".theirs", ag)?);
                assert_eq!(ours, theirs, "{context}: {ag}");
            }
            scene.assert_clean("", step);
            scene.write("", step, 100).context(context)?;
            scene.assert_clean("", "after the kernel wrote to it");
        }
        let version = scene.xfs_db("", &["version"])?;
        ensure!(!version.contains("META_UUID"), "{version}");
    }
    Ok(())
}

#[test]
fn features_are_switched_on_and_used_by_the_kernel() -> Result<()> {
    for shape in SHAPES {
        let scene = Scene::make(shape)?;
        // Several leaves of the inode B-tree, where blocks are small.
        scene.write("", "many", 5000)?;
        scene.images.copy("", ".one")?;
        let mut changes = shape.switches();
        scene.tune(&changes)?;
        scene.assert_clean("", "switched on");
        changes.extend([uuid(NEW), label("all")]);
        scene.images.copy(".one", "")?;
        scene.tune(&changes)?;
        scene.assert_clean("", "with a UUID");
        let version = scene.xfs_db("", &["version"])?;
        for name in ["BIGTIME", "INOBTCNT", "META_UUID"] {
            ensure!(version.contains(name), "{shape:?}: {version}");
        }
        let is_wide = shape.switched.contains(&"nrext64");
        ensure!(
            version.contains("NREXT64") == is_wide,
            "{shape:?}: {version}"
        );
        scene.write("", "more", 3000)?;
        scene.assert_clean("", "after the kernel wrote to it");
    }
    Ok(())
}

#[test]
fn changes_that_are_refused_leave_the_image() -> Result<()> {
    let options = &["-m", "bigtime=0,finobt=0,inobtcount=0"];
    let shape = Shape { options, ..USUAL };
    let scene = Scene::make(shape)?;
    let images = scene.images("");
    let image = &images[0];
    let before = fs::read(image)?;
    for (arguments, expected) in [
        ("-L good -O inobtcount", "requires finobt"),
        ("-L good -O finobt", "need a new B-tree"),
        ("-O bigtime,finobt", "need a new B-tree"),
        ("-O rmapbt", "need a new B-tree"),
        ("-O ^reflink", "never switched off"),
        ("-O bigtime,quota", "switching quota on"),
        ("-L good -O nrext64", "at least 64 MiB"),
        ("-U 00000000-0000-0000-0000-000000000000", "not all zeros"),
    ] {
        let mut platter = program::platter()?;
        platter.arg("tune").args(arguments.split(' ')).arg(image);
        let output = platter.output()?;
        let text = String::from_utf8(output.stderr)?;
        ensure!(!output.status.success(), "{arguments}");
        ensure!(text.contains(expected), "{arguments}: {text}");
        ensure!(fs::read(image)? == before, "{arguments}");
    }
    let mut platter = program::platter()?;
    platter.args(["tune", "-L", "good", "-U", NEW, "-O", "bigtime"]);
    tool::succeed(platter.arg(image))?;
    scene.assert_clean("", "tuned by the command");
    scene.write("", "more", 10)?;
    scene.assert_clean("", "after the kernel wrote to it");
    Ok(())
}

#[test]
fn uuid_changes_though_a_kernel_left_a_dirty_log() -> Result<()> {
    for shape in [USUAL, EXTERNAL_LOG] {
        let scene = Scene::make(shape)?;
        let images = scene.images("");
        let paths = paths(&images);
        let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::ReadWrite)?;
        fs::create_dir(mount.root().join("logged"))?;
        let mut io = tool::command("xfs_io");
        io.args(["-x", "-c", "shutdown -f"]).arg(mount.root());
        tool::succeed(&mut io)?;
        mount.release(&paths)?;
        let (_, text) = xfs::report(&paths)?;
        ensure!(text.contains("valuable metadata changes"), "{text}");
        scene.tune(&[uuid(NEW), switch("inobtcount")])?;
        scene.assert_clean("", "recovered and tuned");
        let mount = Mount::images(FsType::Xfs, &paths, "", Access::ReadWrite)?;
        ensure!(mount.root().join("logged").exists(), "{shape:?}");
        mount.unmount_all(&paths)?;
        scene.assert_clean("", "after the kernel's mount");
    }
    Ok(())
}

type Device = Arc<dyn BlockDevice>;

fn options(devices: &[Device]) -> platter_xfs::MountOptions {
    platter_xfs::MountOptions {
        log: devices.get(1).cloned(),
        ..platter_xfs::MountOptions::default()
    }
}

fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(32 << 20))
}

fn mount(devices: &[Device], options: &platter_xfs::MountOptions) -> Result<Xfs> {
    let (device, clock) = (Arc::clone(&devices[0]), Arc::new(SystemClock::default()));
    Ok(Xfs::mount_writable(device, options, budget(), clock)?)
}

fn load(images: &[PathBuf]) -> Result<Vec<Device>> {
    let load = |image: &PathBuf| -> Result<Device> {
        Ok(Arc::new(MemoryDevice::new("image", fs::read(image)?)))
    };
    images.iter().map(load).collect()
}

/// Tunes a filesystem as an edit of its image does.
fn tune_devices(devices: &[Device], changes: &[Tune]) -> Result<()> {
    let above = |device: &Device| {
        let options = OverlayOptions::default();
        Arc::new(OverlayDevice::new(Arc::clone(device), options))
    };
    let layer = above(&devices[0]);
    let mut layers: Vec<Device> = vec![Arc::<OverlayDevice>::clone(&layer)];
    layers.extend(devices.get(1).map(|log| -> Device { above(log) }));
    let scratch = platter_xfs::MountOptions {
        logging: Logging::Scratch,
        ..options(&layers)
    };
    let fs = mount(&layers, &scratch)?;
    fs.tune(changes)?;
    fs.unmount()?;
    let held = layer.held().into_iter();
    let commit = ImageCommit {
        device: Arc::clone(&devices[0]),
        unseen: Arc::clone(&devices[0]),
        written: held
            .map(|(at, bytes)| at..at + bytes.len() as u64)
            .collect(),
        new: layer,
        options: platter_xfs::MountOptions {
            log: devices.get(1).cloned(),
            ..scratch
        },
        budget: budget(),
    };
    Ok(commit.run()?)
}

fn superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut sector = vec![0; 4096];
    device.read_at(0, &mut sector)?;
    Ok(Superblock::decode(&sector, Locus::group(0))?)
}

/// Whether all was tuned, where nothing else may be.
fn is_tuned(device: &dyn BlockDevice) -> Result<bool> {
    let found = superblock(device)?;
    let new: Uuid = NEW.parse()?;
    let (uuid, features) = (found.uuid, found.features);
    let tuned = [
        uuid == new,
        found.label == b"tuned",
        features.has_bigtime(),
        features.has_inobtcount(),
    ];
    ensure!(tuned == [uuid == new; 4], "a part of it is: {tuned:?}");
    Ok(uuid == new)
}

/// What a power failure left is mounted by the kernel, and by platter before it or after it, which leaves it clean. Returns
/// whether it is tuned.
fn judge(state: &CrashState<'_>, scene: &Scene) -> Result<bool> {
    let devices = || -> Result<Vec<Device>> {
        let devices = state.devices()?.into_iter();
        Ok(devices
            .map(|device| -> Device { Arc::new(device) })
            .collect())
    };
    let save = |devices: &[Device], suffix: &str| -> Result<()> {
        let images = scene.images(suffix);
        let mut pairs = devices.iter().zip(&images);
        pairs.try_for_each(|(device, image)| store(&**device, image))
    };
    let cut = devices()?;
    let is_new = is_tuned(&*cut[0])?;
    save(&cut, ".kernel")?;
    scene.write(".kernel", "by the kernel", 10)?;
    let written = load(&scene.images(".kernel"))?;
    mount(&written, &options(&written))?.unmount()?;
    save(&written, ".kernel")?;
    let (verdict, text) = xfs::report(&paths(&scene.images(".kernel")))?;
    ensure!(verdict == Verdict::Clean, "mounted by both: {text}");
    mount(&cut, &options(&cut))?.unmount()?;
    ensure!(is_tuned(&*cut[0])? == is_new, "a mount changed it");
    save(&cut, ".ours")?;
    let (verdict, text) = xfs::report(&paths(&scene.images(".ours")))?;
    ensure!(verdict == Verdict::Clean, "mounted by platter: {text}");
    scene.write(".ours", "by the kernel", 10)?;
    Ok(is_new)
}

#[test]
fn change_of_the_uuid_that_is_cut_is_whole_or_absent() {
    let mut changes = USUAL.switches();
    changes.extend([uuid(NEW), label("tuned")]);
    for (shape, seed) in [USUAL, EXTERNAL_LOG].into_iter().zip(1..) {
        let scene = Scene::make(shape).unwrap();
        let recorder = Recorder::new(load(&scene.images("")).unwrap());
        let devices = recorder.devices().iter();
        let devices: Vec<Device> = devices
            .map(|device| -> Device { Arc::clone(device) as _ })
            .collect();
        tune_devices(&devices, &changes).unwrap();
        let after = recorder.mark();
        let recording = recorder.recording();
        let options = CrashOptions {
            seed,
            mixes_per_position: 1,
            subset_writes_max: 4,
            ..CrashOptions::default()
        };
        let mut found = [0, 0];
        for (state, index) in recording.crash_states(options).zip(0..) {
            let state = state.unwrap();
            let is_new = judge(&state, &scene)
                .with_context(|| format!("{shape:?}: state {index} at {}", state.position))
                .unwrap();
            assert!(is_new || state.position < after, "{shape:?}: state {index}");
            found[usize::from(is_new)] += 1;
        }
        println!("{shape:?}: {found:?} states");
        assert!(found[0] > 3 && found[1] > 3, "{found:?}");
    }
}
