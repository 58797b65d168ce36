//! Edits and their ends: nothing, everything, and every moment between.

use std::fmt::Write;

use platter_block::lock::Mutex;
use platter_block::sim::{CrashOptions, RecordingDevice};
use platter_block::{BatchPiece, BlockDevice, IoError, MemoryDevice};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{
    CheckProgress, CheckReport, CheckSink, Description, FileKind, Filesystem, Finding, FixedClock,
    Inode, InodeId, StatFs, Timestamp, TreeWalk, WalkEvent, WalkOrder,
};

use super::scratch::{STORE_PART_BYTES, store_for};
use super::*;
use crate::Format;
use crate::copy::CopyOptions;
use crate::devices::Devices;
use crate::driver::samples::{GENERATIONS, NEWEST, mkfs};
use crate::driver::{Generation, Identity, MkfsOptions, MountRequest};
use crate::{MemoryBudget, Progress, Recovery};

const LEN_BYTES: usize = 4 << 20;

fn clock() -> Arc<FixedClock> {
    let now = Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 0,
    };
    Arc::new(FixedClock::new(now, 1))
}

fn options() -> MountOptions {
    MountOptions::new().clock(clock())
}

/// A small filesystem with a few files.
pub(super) fn sample(generation: Generation) -> Arc<MemoryDevice> {
    sample_of(generation, LEN_BYTES)
}

fn sample_of(generation: Generation, len_bytes: usize) -> Arc<MemoryDevice> {
    let memory = MemoryDevice::new("disk", vec![0; len_bytes]);
    // A superblock is written whole or not at all, as every filesystem of this kind has it.
    let memory = Arc::new(memory.with_blocks(1024));
    let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&memory);
    let budget = Arc::new(MemoryBudget::new(1 << 20));
    let mut options = MkfsOptions::new(generation);
    options.block_bytes = Some(1024);
    mkfs(&device, &options, true, budget, &*clock()).unwrap();
    let edit = begin(&memory);
    edit.make_dirs(b"/a/b/c", None).unwrap();
    for name in ["/a/one", "/a/b/two", "/three"] {
        write(&edit, name, &[7; 3000]);
    }
    edit.commit().unwrap();
    memory
}

fn image(device: &Arc<impl BlockDevice + 'static>) -> Image {
    let device: Arc<dyn BlockDevice> = Arc::clone(device) as Arc<dyn BlockDevice>;
    Image::new("disk", device)
}

pub(super) fn begin(device: &Arc<impl BlockDevice + 'static>) -> Edit {
    Edit::begin(&options(), image(device), image(device)).unwrap()
}

pub(super) fn write(edit: &Edit, path: &str, bytes: &[u8]) {
    edit.write(path.as_bytes(), bytes).unwrap();
}

/// A change of several directories and inodes, with names that come, go and move.
fn change(edit: &Edit) {
    edit.make_dirs(b"/new/directory", None).unwrap();
    write(edit, "/new/directory/file", &vec![9; 20_000]);
    write(edit, "/three", b"short");
    edit.rename(b"/a/b", b"/new", Target::Into, Existing::Refuse)
        .unwrap();
    edit.remove(b"/a", Removal::Tree, Missing::Refuse).unwrap();
    edit.symlink(b"new/b/two", b"/link", Target::Name, Existing::Refuse)
        .unwrap();
    edit.set_xattr(b"/three", b"user.comment", b"value", Symlinks::Follow)
        .unwrap();
}

/// All that can be seen of a filesystem, or why it cannot be.
fn listing(image: &Image, recovery: Recovery) -> String {
    let volume = match options().recovery(recovery).mount(image) {
        Ok(volume) => volume,
        Err(error) => return error.to_string(),
    };
    let root = volume.filesystem().root().unwrap();
    let walk = TreeWalk::new(volume.filesystem().clone(), root, WalkOrder::Name);
    let mut text = String::new();
    for event in walk {
        match event {
            WalkEvent::Visit(visited) => {
                let (path, attr) = (visited.path.escape_ascii(), &visited.attr);
                let file = volume.open_no_follow(&visited.path).unwrap();
                let contents = match attr.kind {
                    FileKind::Regular => file.read_all(1 << 20).unwrap(),
                    FileKind::Symlink => file.read_link().unwrap(),
                    FileKind::Directory
                    | FileKind::CharDevice
                    | FileKind::BlockDevice
                    | FileKind::Fifo
                    | FileKind::Socket => Vec::new(),
                };
                let xattrs = file.xattrs().unwrap();
                writeln!(
                    text,
                    "/{path} {:o} {} {} {} {} {:?} {xattrs:?}",
                    attr.mode(),
                    attr.uid,
                    attr.gid,
                    attr.links,
                    attr.size_bytes,
                    contents.iter().max().copied().unwrap_or_default(),
                )
                .unwrap();
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Failed { path, error } => {
                writeln!(text, "/{}: {error}", path.escape_ascii()).unwrap();
            }
        }
    }
    text
}

struct Findings(Vec<String>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> std::ops::ControlFlow<()> {
        self.0.push(finding.corruption.to_string());
        std::ops::ControlFlow::Continue(())
    }

    fn progress(&mut self, _: CheckProgress) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
}

fn demand_clean(image: &Image, recovery: Recovery) {
    let mut findings = Findings(Vec::new());
    let checked = options().recovery(recovery).check(image, &mut findings);
    assert!(checked.unwrap().is_clean(), "{:#?}", findings.0);
}

/// `s_state` says that the filesystem needs no check.
fn says_clean(image: &Image) -> bool {
    let mut state = [0; 2];
    image.device().read_at(1024 + 0x3a, &mut state).unwrap();
    state[0] & 1 != 0
}

#[test]
fn edit_that_is_dropped_has_changed_no_byte() {
    for generation in GENERATIONS {
        let memory = sample(generation);
        let before = memory.snapshot();
        let edit = begin(&memory);
        change(&edit);
        assert!(edit.volume().open("/new/b/two").is_ok());
        drop(edit);
        assert!(memory.snapshot() == before);
    }
}

#[test]
fn cancelled_edit_changes_nothing() {
    for generation in GENERATIONS {
        let memory = sample(generation);
        let before = memory.snapshot();
        let progress = Progress::default();
        let edit = begin(&memory).progress(progress.clone());
        change(&edit);
        progress.cancel();
        let removed = edit.remove(b"/new", Removal::Tree, Missing::Refuse);
        assert_eq!(removed.unwrap_err().code(), "cancelled");
        assert_eq!(edit.commit().unwrap_err().code(), "cancelled");
        assert!(memory.snapshot() == before);
    }
}

#[test]
fn committed_edit_is_there_and_leaves_the_image_offline() {
    for generation in GENERATIONS {
        let memory = sample(generation);
        let edit = begin(&memory);
        change(&edit);
        edit.commit().unwrap();
        let image = image(&memory);
        demand_clean(&image, Recovery::Skip);
        assert!(says_clean(&image));
        let found = listing(&image, Recovery::Skip);
        assert_eq!(found, listing(&image, Recovery::Replay));
        assert!(
            found.contains("/new/b/two 1006") && !found.contains("/a/"),
            "{found}"
        );
        let details = options().mount(&image).unwrap().describe().features;
        assert!(
            details
                .iter()
                .all(|feature| feature.name != "needs_recovery")
        );
    }
}

#[test]
fn power_cut_leaves_the_state_before_or_after() {
    for generation in GENERATIONS {
        let memory = sample(generation);
        let before = listing(&image(&memory), Recovery::Replay);
        let recording = Arc::new(RecordingDevice::new(
            Arc::<MemoryDevice>::clone(&memory) as Arc<dyn BlockDevice>
        ));
        let edit = begin(&recording);
        change(&edit);
        edit.commit().unwrap();
        let after = listing(&image(&recording), Recovery::Replay);
        assert_ne!(before, after);
        let has_journal = generation != Generation::Ext2;
        let recorded = recording.recording();
        let mut seen = [0; 3];
        for state in recorded.crash_states(CrashOptions::default()) {
            let cut = image(&Arc::new(state.unwrap().device().unwrap()));
            if !has_journal && !says_clean(&cut) {
                // It asks for a check.
                seen[2] += 1;
                continue;
            }
            let found = listing(&cut, Recovery::Replay);
            assert!(found == before || found == after, "{found}");
            demand_clean(&cut, Recovery::Replay);
            seen[usize::from(found == after)] += 1;
        }
        println!("{generation:?}: {seen:?} before, after, to be checked");
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

/// Writes batches, and keeps what the device was before and after each.
#[derive(Debug)]
struct Witness {
    device: Arc<MemoryDevice>,
    seen: Mutex<Vec<Vec<u8>>>,
}

impl BatchWriter for Witness {
    fn write(&self, pieces: &[BatchPiece]) -> Result<(), IoError> {
        let before = self.device.snapshot();
        for (offset, bytes) in pieces {
            self.device.write_at(*offset, bytes)?;
        }
        let after = self.device.snapshot();
        self.seen.lock().extend([before, after]);
        Ok(())
    }
}

#[test]
fn between_batches_the_image_is_sound_without_a_replay() {
    for generation in GENERATIONS {
        let memory = sample(generation);
        let before = listing(&image(&memory), Recovery::Skip);
        let witness = Arc::new(Witness {
            device: Arc::clone(&memory),
            seen: Mutex::default(),
        });
        let base: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&memory);
        let burst = Arc::new(BatchDevice::new(base, Arc::<Witness>::clone(&witness)));
        let edit = Edit::begin(&options(), image(&memory), image(&burst)).unwrap();
        change(&edit);
        edit.commit().unwrap();
        let after = listing(&image(&memory), Recovery::Skip);
        let mut was = [0; 2];
        let seen = std::mem::take(&mut *witness.seen.lock());
        for bytes in seen {
            let found = image(&Arc::new(MemoryDevice::new("seen", bytes)));
            demand_clean(&found, Recovery::Skip);
            let found = listing(&found, Recovery::Skip);
            assert!(found == before || found == after, "{found}");
            was[usize::from(found == after)] += 1;
        }
        assert!(was[0] > 0 && was[1] > 0, "{was:?}");
    }
}

#[test]
fn image_that_needs_recovery_is_recovered_with_the_edit() {
    let memory = sample(NEWEST);
    let recording = Arc::new(RecordingDevice::new(
        Arc::<MemoryDevice>::clone(&memory) as Arc<dyn BlockDevice>
    ));
    let edit = begin(&recording);
    change(&edit);
    edit.commit().unwrap();
    let after = listing(&image(&recording), Recovery::Replay);
    let recorded = recording.recording();
    let states = recorded.crash_states(CrashOptions::default());
    let armed = states.map(|state| Arc::new(state.unwrap().device().unwrap()));
    let armed = armed.filter(|cut| {
        listing(&image(cut), Recovery::Replay) == after
            && listing(&image(cut), Recovery::Skip) != after
    });
    let mut count = 0;
    for cut in armed.step_by(7) {
        let edit = begin(&cut);
        edit.make_dir(b"/later", None).unwrap();
        drop(edit);
        assert_ne!(listing(&image(&cut), Recovery::Skip), after);
        let edit = begin(&cut);
        edit.make_dir(b"/later", None).unwrap();
        edit.commit().unwrap();
        demand_clean(&image(&cut), Recovery::Skip);
        let found = listing(&image(&cut), Recovery::Skip);
        assert!(
            found.contains("/later ") && found.contains("/new/b/two"),
            "{found}"
        );
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn change_larger_than_the_journal_is_made_all_the_same() {
    let memory = sample_of(NEWEST, 24 << 20);
    let edit = begin(&memory);
    for number in 0..5000 {
        edit.truncate(
            format!("/{number}").as_bytes(),
            SizeChange::Set(0),
            Creation::IfMissing,
        )
        .unwrap();
    }
    edit.commit().unwrap();
    let image = image(&memory);
    demand_clean(&image, Recovery::Skip);
    assert!(says_clean(&image));
    let volume = options().mount(&image).unwrap();
    assert!(volume.open("/4999").is_ok());
}

#[test]
fn trees_are_copied_within_the_image_but_not_into_themselves() {
    let memory = sample(NEWEST);
    let edit = begin(&memory);
    let mut ignore = |_: CopyInEvent<'_>| {};
    let options = CopyOptions {
        recursive: true,
        preserve: crate::copy::Preserve::ALL,
        no_clobber: false,
    };
    let mut copy = CopyIn::new(options, Owner::default());
    let source = |path: &str| CopySource::Image(edit.volume().open(path).unwrap());
    let mut copy = |from: &str, to: &[u8]| {
        let from = (&source(from), Symlinks::NoFollow);
        copy.copy(&edit, from, (to, Target::Into), &mut ignore)
    };
    copy("/a", b"/copy").unwrap();
    assert_eq!(edit.volume().read("/copy/b/two").unwrap(), [7; 3000]);
    copy("/copy", b"/a").unwrap();
    assert!(edit.volume().open("/a/copy/b/two").is_ok());
    for (from, to, errno) in [
        ("/a", "/a/b/within", "would be copied into itself"),
        ("/three", "/three", "is the same file as its target"),
        ("/three", "/a/b", ""),
    ] {
        match copy(from, to.as_bytes()) {
            Ok(()) => assert_eq!(errno, ""),
            Err(error) => assert!(error.to_string().ends_with(errno), "{error}"),
        }
    }
}

#[test]
fn cancelled_copy_ends_at_the_next_file() {
    let memory = sample(NEWEST);
    let edit = begin(&memory);
    let how = CopyOptions {
        recursive: true,
        ..CopyOptions::default()
    };
    let progress = Progress::default();
    let mut copy = CopyIn::new(how, Owner::default()).progress(progress.clone());
    let source = CopySource::Image(edit.volume().open("/a").unwrap());
    let mut cancel = |_: CopyInEvent<'_>| progress.cancel();
    let from = (&source, Symlinks::Follow);
    let copied = copy.copy(&edit, from, (&b"/copy"[..], Target::Into), &mut cancel);
    let error = copied.unwrap_err();
    assert_eq!(error.code(), "cancelled");
    assert_eq!(progress.files(), 1);
    assert_eq!(copy.summary().files, 1);
    drop(edit);
    let volume = options().mount(image(&memory)).unwrap();
    assert!(!volume.exists("/copy").unwrap());
}

#[test]
fn names_follow_the_rules_of_the_commands() {
    let memory = sample(NEWEST);
    let edit = begin(&memory);
    let message = |result: crate::Result<()>| result.err().map(|error| error.to_string());
    let is = |text: &str| Some(text.to_owned());
    assert_eq!(
        message(edit.make_dir(b"/a", None)),
        is("disk:/a: file exists")
    );
    assert_eq!(message(edit.make_dirs(b"a//b/./x/y/", None)), None);
    assert_eq!(
        message(edit.make_dirs(b"/three/x", None)),
        is("disk:/three: not a directory")
    );
    let remove = |path: &str| edit.remove(path.as_bytes(), Removal::File, Missing::Refuse);
    assert_eq!(message(remove("/a")), is("disk:/a: is a directory"));
    assert_eq!(message(remove("/a/.")), is("disk:/a/.: invalid argument"));
    assert_eq!(
        message(remove("/three/")),
        is("disk:/three/: not a directory")
    );
    assert_eq!(
        message(remove("/none")),
        is("disk:/none: no such file or directory")
    );
    let gone = |path: &[u8]| edit.remove(path, Removal::File, Missing::PassOver);
    assert_eq!(
        [message(gone(b"/none")), message(gone(b"/three/x"))],
        [None, None]
    );
    assert_eq!(
        message(edit.remove(b"/a", Removal::EmptyDirectory, Missing::Refuse)),
        is("disk:/a: directory not empty")
    );
    let rename = |from: &str, to: &str, meaning| {
        message(edit.rename(from.as_bytes(), to.as_bytes(), meaning, Existing::Replace))
    };
    assert_eq!(
        rename("/three", "/a", Target::Name),
        is("disk:/a: is a directory")
    );
    assert_eq!(
        rename("/a", "/three", Target::Name),
        is("disk:/three: not a directory")
    );
    assert_eq!(
        rename("/a", "/a/b", Target::Into),
        is("disk:/a/b/a: invalid argument")
    );
    assert_eq!(
        rename("/a", "/a", Target::Name),
        is("disk:/a: is the same file as its target")
    );
    assert_eq!(
        rename("/three", "/none/", Target::Name),
        is("disk:/none/: not a directory")
    );
    assert_eq!(
        message(edit.link(b"/three", b"/a", Target::Into, Existing::Refuse)),
        None
    );
    assert_eq!(
        rename("/three", "/a/three", Target::Into),
        is("disk:/three: is the same file as its target")
    );
    assert_eq!(message(remove("/three")), None);
    assert_eq!(
        message(edit.link(b"/a", b"/x", Target::Into, Existing::Refuse)),
        is("disk:/a: operation not permitted")
    );
    edit.symlink(b"none", b"/dangling", Target::Into, Existing::Refuse)
        .unwrap();
    assert_eq!(
        message(edit.symlink(b"x", b"/dangling", Target::Into, Existing::Refuse)),
        is("disk:/dangling: file exists")
    );
    edit.symlink(b"x", b"/dangling", Target::Into, Existing::Replace)
        .unwrap();
    assert_eq!(edit.volume().read_link("/dangling").unwrap(), b"x");
    assert!(
        edit.change_mode(b"/dangling", &"755".parse().unwrap(), Scope::File)
            .is_err()
    );
    edit.change_mode(b"/", &"go-rwx".parse().unwrap(), Scope::Tree)
        .unwrap();
    let attr = edit.volume().metadata("/a/three").unwrap();
    assert_eq!(attr.permissions() & 0o77, 0);
    edit.commit().unwrap();
    demand_clean(&image(&memory), Recovery::Skip);
}

#[test]
fn what_is_written_above_a_long_image_has_a_place() {
    let len_bytes = 2 * STORE_PART_BYTES + 12_345;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(len_bytes).unwrap();
    let base = FileDevice::open(file.path(), platter_block::OpenOptions::default()).unwrap();
    let store = store_for(&base).unwrap();
    assert_eq!(store.geometry().len_bytes, len_bytes);
    for at in [0, STORE_PART_BYTES - 2, len_bytes - 4] {
        store.write_at(at, b"seam").unwrap();
        let mut found = [0; 4];
        store.read_at(at, &mut found).unwrap();
        assert_eq!(&found, b"seam");
    }
}

#[test]
fn contents_are_written_as_the_host_writes_them() {
    let disk = sample(NEWEST);
    let edit = begin(&disk);
    edit.symlink(b"/new", b"/link", Target::Name, Existing::Refuse)
        .unwrap();
    edit.write(b"/link", b"a long text").unwrap();
    edit.write(b"/new", b"short").unwrap();
    edit.append(b"/link", b", and more").unwrap();
    edit.append(b"/log", b"line\n").unwrap();
    edit.write(b"/a/one", b"").unwrap();
    for (path, errno) in [
        (&b"/a"[..], rustix::io::Errno::ISDIR),
        (b"/none/file", rustix::io::Errno::NOENT),
        (b"/new/file", rustix::io::Errno::NOTDIR),
    ] {
        assert_eq!(edit.write(path, b"x").unwrap_err().errno(), errno);
        assert_eq!(edit.append(path, b"x").unwrap_err().errno(), errno);
    }
    edit.commit().unwrap();
    let volume = options().mount(image(&disk)).unwrap();
    let read = |path: &str| volume.read(path).unwrap();
    assert_eq!(read("/link"), b"short, and more");
    assert_eq!(read("/log"), b"line\n");
    assert_eq!(read("/a/one"), b"");
}

#[test]
fn files_that_outlive_an_edit_do_not_lock_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, sample(NEWEST).snapshot()).unwrap();
    let spec = ImageSpec::new(&path);
    for is_kept in [true, false] {
        let edit = options().edit(&spec).unwrap();
        edit.write(b"/file", b"text").unwrap();
        let volume = edit.volume().clone();
        let (file, other) = (
            volume.open("/file").unwrap(),
            volume.open("/three").unwrap(),
        );
        let mut reader = file.clone();
        if is_kept {
            edit.commit().unwrap();
        } else {
            drop(edit);
        }
        let mut buf = [0; 4];
        for error in [
            file.read_at(0, &mut buf).unwrap_err(),
            other.read_all(10_000).unwrap_err(),
            file.attr().unwrap_err(),
            volume.open("/three").unwrap_err(),
            volume.read_dir("/").unwrap_err(),
        ] {
            let message = error.to_string();
            assert!(matches!(error.cause, Cause::Ended), "{message}");
            assert!(
                message.ends_with("the edit that it belongs to has ended"),
                "{message}"
            );
        }
        assert!(std::io::Read::read(&mut reader, &mut buf).is_err());
        // Another process may write at once.
        let next = options().edit(&spec).unwrap();
        assert_eq!(next.volume().open("/file").is_ok(), is_kept);
        if is_kept {
            next.remove(b"/file", Removal::File, Missing::Refuse)
                .unwrap();
        }
        next.commit().unwrap();
        drop((volume, file, other));
    }
}

/// Commits in place: what was made is in the image once it is unmounted.
struct InPlace;

/// A file tree in memory whose only trace in the image is where it ends.
#[derive(Debug)]
struct Marked {
    memory: MemFs,
    device: Arc<dyn BlockDevice>,
}

/// What the image begins with once it was committed.
const MARK: &[u8] = b"committed";

impl Driver for InPlace {
    fn format(&self) -> Format {
        Format::Btrfs
    }

    fn identify(&self, _: &Devices) -> platter_vfs::Result<Identity> {
        Err(unsupported(self.format(), "identifying"))
    }

    fn mount(&self, request: MountRequest) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        assert_eq!(request.purpose, Purpose::EditInPlace);
        assert_eq!(request.writing.unwrap().commit_interval, None);
        Ok(Arc::new(Marked {
            memory: MemFs::new(clock(), MemFsLimits::default()),
            device: Arc::clone(request.devices.first()),
        }))
    }

    fn check(&self, _: MountRequest, _: &mut dyn CheckSink) -> platter_vfs::Result<CheckReport> {
        Err(unsupported(self.format(), "a check"))
    }

    fn edit_strategy(&self) -> EditStrategy<'_> {
        EditStrategy::InPlace
    }
}

impl Filesystem for Marked {
    fn describe(&self) -> Description {
        self.memory.describe()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn root(&self) -> platter_vfs::Result<Arc<dyn Inode>> {
        self.memory.root()
    }

    fn inode(&self, id: InodeId) -> platter_vfs::Result<Arc<dyn Inode>> {
        self.memory.inode(id)
    }

    fn stat_fs(&self) -> platter_vfs::Result<StatFs> {
        self.memory.stat_fs()
    }

    fn sync(&self) -> platter_vfs::Result<()> {
        Ok(self.device.write_at(0, MARK)?)
    }

    fn unmount(&self) -> platter_vfs::Result<()> {
        self.sync()
    }
}

#[test]
fn edit_in_place_reaches_the_image_with_its_commit() {
    let memory = Arc::new(MemoryDevice::new("disk", vec![0; 4096]));
    let before = memory.snapshot();
    let begin = || Edit::begin_with(&InPlace, &options(), image(&memory), image(&memory)).unwrap();
    let dropped = begin();
    dropped.make_dirs(b"/a/b", None).unwrap();
    let left = dropped.volume().clone();
    drop(dropped);
    assert!(memory.snapshot() == before);
    let error = left.filesystem().sync().unwrap_err();
    assert!(matches!(error, platter_vfs::Error::Io(_)), "{error}");
    assert!(memory.snapshot() == before, "what outlives it has no image");
    let committed = begin();
    write(&committed, "/file", b"contents");
    committed.commit().unwrap();
    assert!(memory.snapshot().starts_with(MARK));
}
