//! Contents of files written, cut, punched and moved, with `e2fsck` and the kernel as the judges of
//! what is on the disk afterwards.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use platter::block::{Access, BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::{DataMode, Ext4, MountOptions};
use platter_vfs::{
    Condition, Context, Error, FallocateMode, Filesystem, Inode, Name, SeekTarget, SetAttr,
    SystemClock,
};
use rustix::fs::{FallocateFlags, fallocate};
use testkit::loopdev::{self, Mount};
use testkit::oracle::{e2fsck, mke2fs};
use testkit::prng::Prng;

/// Bytes that random changes stay within, of each file.
const BYTES_MAX: u64 = 700_000;
const OPEN_TRIES_MAX: u32 = 2000;
const FILES: usize = 4;
const ROUNDS: usize = 3;
const CHANGES: usize = 70;

/// The files of an image, and what they should hold.
struct Bench<'a> {
    path: &'a Path,
    /// What collapsing and inserting count in, in bytes.
    unit: u64,
    has_extents: bool,
    models: Vec<Vec<u8>>,
    random: Prng,
    data_mode: Option<DataMode>,
}

fn mount(path: &Path, data_mode: Option<DataMode>) -> Ext4 {
    let options = OpenOptions {
        access: Access::Write,
        ..OpenOptions::default()
    };
    // A loop device releases its image a moment after the kernel has unmounted it.
    let mut opened = FileDevice::open(path, options);
    for _ in 0..OPEN_TRIES_MAX {
        if opened.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        opened = FileDevice::open(path, options);
    }
    let device: Arc<dyn BlockDevice> = Arc::new(opened.unwrap());
    let options = MountOptions {
        read_only: false,
        data_mode,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    Ext4::mount(device, &options, budget, Arc::new(SystemClock::new())).unwrap()
}

fn at(byte: u64) -> usize {
    usize::try_from(byte).unwrap()
}

fn name(file: usize) -> String {
    format!("file{file}")
}

impl Bench<'_> {
    fn change(&mut self, file: usize, node: &dyn Inode) {
        let start = self.random.below(BYTES_MAX);
        let len_max = if self.random.below(6) == 0 {
            150_000
        } else {
            5000
        };
        let len = 1 + self.random.below(len_max);
        let size = self.models[file].len() as u64;
        let keep_size = self.random.below(2) == 0;
        match self.random.below(20) {
            0..7 => self.write(file, node, start, len),
            7..9 => self.write(file, node, size.min(BYTES_MAX), len),
            9 | 10 => self.resize(file, node, start),
            11 => self.resize(file, node, size / 2),
            12 => self.fallocate(file, node, start, len, FallocateMode::PunchHole),
            13 | 14 => {
                let mode = FallocateMode::Allocate { keep_size };
                self.fallocate(file, node, start, len, mode);
            }
            15 => {
                let mode = FallocateMode::ZeroRange { keep_size };
                self.fallocate(file, node, start, len, mode);
            }
            16 => self.fallocate(file, node, start, len, FallocateMode::CollapseRange),
            17 if size < 2 * BYTES_MAX => {
                self.fallocate(file, node, start, len, FallocateMode::InsertRange);
            }
            18 => node.sync(true).unwrap(),
            _ => self.compare(file, node),
        }
    }

    fn write(&mut self, file: usize, node: &dyn Inode, offset: u64, len: u64) {
        let data = self.random.bytes(at(len));
        node.write_at(offset, &data).unwrap();
        let model = &mut self.models[file];
        let end = at(offset + len);
        if model.len() < end {
            model.resize(end, 0);
        }
        model[at(offset)..end].copy_from_slice(&data);
    }

    fn resize(&mut self, file: usize, node: &dyn Inode, size: u64) {
        let changes = SetAttr {
            size_bytes: Some(size),
            ..SetAttr::default()
        };
        node.set_attr(&Context::root(), &changes).unwrap();
        self.models[file].resize(at(size), 0);
    }

    fn fallocate(
        &mut self,
        file: usize,
        node: &dyn Inode,
        start: u64,
        len: u64,
        mode: FallocateMode,
    ) {
        let moves = [FallocateMode::CollapseRange, FallocateMode::InsertRange].contains(&mode);
        let (start, len) = if moves {
            (
                start / self.unit * self.unit,
                len.next_multiple_of(self.unit),
            )
        } else {
            (start, len)
        };
        let end = start + len;
        let result = node.fallocate(start..end, mode);
        let refused = |condition| matches!(&result, Err(Error::Condition(c)) if *c == condition);
        if !self.has_extents && mode != FallocateMode::PunchHole {
            assert!(refused(Condition::NotSupported));
            return;
        }
        let model = &mut self.models[file];
        let size = model.len() as u64;
        let inside = at(start.min(size))..at(end.min(size));
        let longer = at(end.max(size));
        let is_outside = match mode {
            FallocateMode::CollapseRange => end >= size,
            FallocateMode::InsertRange => start >= size,
            FallocateMode::Allocate { .. }
            | FallocateMode::PunchHole
            | FallocateMode::ZeroRange { .. }
            | FallocateMode::UnshareRange { .. } => false,
        };
        if is_outside {
            assert!(refused(Condition::InvalidArgument));
            return;
        }
        result.unwrap();
        match mode {
            FallocateMode::Allocate { keep_size } | FallocateMode::UnshareRange { keep_size } => {
                if !keep_size {
                    model.resize(longer, 0);
                }
            }
            FallocateMode::ZeroRange { keep_size } => {
                model[inside].fill(0);
                if !keep_size {
                    model.resize(longer, 0);
                }
            }
            FallocateMode::PunchHole => model[inside].fill(0),
            FallocateMode::CollapseRange => drop(model.drain(inside)),
            FallocateMode::InsertRange => {
                let zeros = vec![0; at(len)];
                drop(model.splice(at(start)..at(start), zeros));
            }
        }
    }

    /// The bytes are those of the model, and reported holes read as zeros.
    fn compare(&self, file: usize, node: &dyn Inode) {
        let model = &self.models[file];
        assert_eq!(node.attr().unwrap().size_bytes, model.len() as u64);
        let mut bytes = vec![0; model.len()];
        assert_eq!(node.read_at(0, &mut bytes).unwrap(), model.len());
        assert_same(&bytes, model, "as platter reads it");
        let mut from = 0;
        while from < model.len() as u64 {
            let data = node
                .seek(from, SeekTarget::Data)
                .unwrap_or(model.len() as u64);
            assert!(model[at(from)..at(data)].iter().all(|&byte| byte == 0));
            if data == model.len() as u64 {
                break;
            }
            from = node.seek(data, SeekTarget::Hole).unwrap();
        }
    }

    fn round(&mut self) {
        let filesystem = mount(self.path, self.data_mode);
        let root = filesystem.root().unwrap();
        let nodes: Vec<_> = (0..FILES)
            .map(|file| {
                root.lookup(Name::new(name(file).as_bytes()).unwrap())
                    .unwrap()
            })
            .collect();
        for _ in 0..CHANGES {
            let file = at(self.random.below(FILES as u64));
            self.change(file, &*nodes[file]);
        }
        for (file, node) in nodes.iter().enumerate() {
            self.compare(file, &**node);
        }
        filesystem.unmount().unwrap();
    }

    fn judge(&self, options: &[&str]) {
        let (verdict, report) = e2fsck::report(self.path).unwrap();
        assert!(verdict.is_clean(), "{options:?}: {report}");
        let kernel = Mount::image(self.path, "", loopdev::Access::ReadOnly).unwrap();
        for (file, model) in self.models.iter().enumerate() {
            let bytes = fs::read(kernel.root().join(name(file))).unwrap();
            assert_same(&bytes, model, "as the kernel reads it");
        }
        kernel.unmount(self.path).unwrap();
    }
}

fn assert_same(bytes: &[u8], model: &[u8], how: &str) {
    assert_eq!(bytes.len(), model.len(), "{how}");
    let differs = bytes.iter().zip(model).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{how}: the bytes there differ");
}

fn assert_judged_clean(size_kib: u64, options: &[&str], unit: u64) {
    assert_judged_clean_with(size_kib, options, unit, None);
}

fn assert_judged_clean_with(
    size_kib: u64,
    options: &[&str],
    unit: u64,
    data_mode: Option<DataMode>,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let contents = dir.path().join("contents");
    let mut random = Prng::named(options.concat().as_bytes());
    fs::create_dir(&contents).unwrap();
    let models: Vec<_> = [0, 40, 100, 20_000].map(|len| random.bytes(len)).into();
    for (file, model) in models.iter().enumerate() {
        fs::write(contents.join(name(file)), model).unwrap();
    }
    mke2fs::make(&path, size_kib, options, Some(&contents)).unwrap();
    let mut bench = Bench {
        path: &path,
        unit,
        has_extents: options.contains(&"ext4"),
        models,
        random,
        data_mode,
    };
    for _ in 0..ROUNDS {
        bench.round();
        bench.judge(options);
    }
}

#[test]
fn files_of_ext2_and_ext3_are_what_was_written() {
    assert_judged_clean(30_000, &["-t", "ext2", "-b", "1024"], 1024);
    assert_judged_clean(30_000, &["-t", "ext2", "-b", "4096"], 4096);
    assert_judged_clean(40_000, &["-t", "ext3", "-b", "2048", "-J", "size=4"], 2048);
}

#[test]
fn files_of_ext4_are_what_was_written() {
    for block in ["1024", "2048", "4096"] {
        let unit = block.parse().unwrap();
        assert_judged_clean(40_000, &["-t", "ext4", "-b", block], unit);
    }
    let plain = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^metadata_csum,^64bit,^has_journal",
    ];
    assert_judged_clean(30_000, &plain, 1024);
}

#[test]
fn files_whose_contents_are_journaled_are_what_was_written() {
    for block in ["1024", "4096"] {
        let unit = block.parse().unwrap();
        let options = ["-t", "ext4", "-b", block, "-J", "size=8"];
        assert_judged_clean_with(50_000, &options, unit, Some(DataMode::Journal));
    }
}

/// A journal as small as can be, and groups so many that freeing a file takes several transactions.
#[test]
fn files_are_cut_and_freed_in_several_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let contents = dir.path().join("contents");
    fs::create_dir(&contents).unwrap();
    fs::write(contents.join("file"), b"contents").unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-g", "256", "-J", "size=1"];
    mke2fs::make(&path, 64_000, &options, Some(&contents)).unwrap();
    let filesystem = mount(&path, None);
    let free = filesystem.stat_fs().unwrap().blocks_free;
    let root = filesystem.root().unwrap();
    let name = Name::new(b"file").unwrap();
    let resize = |node: &dyn Inode, size| {
        let changes = SetAttr {
            size_bytes: Some(size),
            ..SetAttr::default()
        };
        node.set_attr(&Context::root(), &changes).unwrap();
    };
    let all = FallocateMode::Allocate { keep_size: false };
    let node = root.lookup(name).unwrap();
    node.fallocate(0..40_000_000, all).unwrap();
    node.sync(false).unwrap();
    resize(&*node, 8);
    assert_eq!(filesystem.stat_fs().unwrap().blocks_free, free);
    node.fallocate(0..40_000_000, all).unwrap();
    root.unlink(&Context::root(), name).unwrap();
    drop(node);
    assert_eq!(filesystem.stat_fs().unwrap().blocks_free, free + 1);
    filesystem.unmount().unwrap();
    let (verdict, report) = e2fsck::report(&path).unwrap();
    assert!(verdict.is_clean(), "{report}");
}

/// Linux may leave an indirect block whose blocks it punched out part by part.
#[test]
fn indirect_blocks_that_linux_emptied_are_freed() {
    let journal = ["-t", "ext3", "-b", "1024", "-J", "size=4"];
    for options in [&["-t", "ext2", "-b", "1024"][..], &journal] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let contents = dir.path().join("contents");
        fs::create_dir(&contents).unwrap();
        for file in 0..FILES {
            fs::write(contents.join(name(file)), vec![7; 3 << 20]).unwrap();
        }
        mke2fs::make(&path, 30_000, options, Some(&contents)).unwrap();
        let kernel = Mount::image(&path, "", loopdev::Access::ReadWrite).unwrap();
        // Each indirect block has 256 numbers, the first one from block 12 on.
        let mut parts: Vec<u64> = (12..3072).step_by(64).collect();
        for file in 0..FILES {
            let path = kernel.root().join(name(file));
            let file = fs::File::options().write(true).open(path).unwrap();
            for part in &parts {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, flags, part << 10, 64 << 10).unwrap();
            }
            parts.reverse();
        }
        kernel.unmount(&path).unwrap();
        let filesystem = mount(&path, None);
        let root = filesystem.root().unwrap();
        for file in 0..FILES {
            let name = name(file);
            let name = Name::new(name.as_bytes()).unwrap();
            if file < 2 {
                root.unlink(&Context::root(), name).unwrap();
                continue;
            }
            let changes = SetAttr {
                size_bytes: Some(1 << 20),
                ..SetAttr::default()
            };
            let node = root.lookup(name).unwrap();
            node.set_attr(&Context::root(), &changes).unwrap();
        }
        drop(root);
        filesystem.unmount().unwrap();
        let (verdict, report) = e2fsck::report(&path).unwrap();
        assert!(verdict.is_clean(), "{options:?}: {report}");
    }
}

#[test]
fn files_of_clusters_are_what_was_written() {
    let small = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"];
    assert_judged_clean(60_000, &small, 16_384);
    let large = ["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"];
    assert_judged_clean(100_000, &large, 65_536);
}

#[test]
fn files_that_begin_in_their_inodes_are_what_was_written() {
    let inline = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data"];
    assert_judged_clean(40_000, &inline, 1024);
    let inline = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-I",
        "1024",
        "-O",
        "inline_data",
    ];
    assert_judged_clean(40_000, &inline, 4096);
}
