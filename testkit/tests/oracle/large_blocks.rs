//! Filesystems whose blocks are larger than a page, which this kernel does not mount: `e2fsck` and `debugfs`
//! judge what is written.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use platter::{MountOptions, Volume, WriteOptions};
use platter_cache::MemoryBudget;
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Error, FallocateMode, FixedClock, Inode, Name, Timestamp};
use testkit::oracle::{debugfs, mke2fs};
use testkit::prng::Prng;
use testkit::workload::{Abilities, Fill, Generator, History, Mix, Operation, Pace, Session, Tree};

use crate::images::{assert_clean, write};

/// Size of the images: a journal has 1024 blocks at least.
const SIZE_KIB: u64 = 256 << 10;
/// The longest that the file gets that random operations change.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Block size, further options of mke2fs, and default mount options.
const LAYOUTS: &[(u64, &[&str], &str)] = &[
    (8192, &["-t", "ext4"], ""),
    (16384, &["-t", "ext4"], ""),
    (65536, &["-t", "ext4"], ""),
    (16384, &["-t", "ext3"], ""),
    (65536, &["-t", "ext2"], ""),
    (16384, &["-t", "ext4", "-O", "inline_data"], ""),
    (65536, &["-t", "ext4", "-O", "^has_journal"], ""),
    (8192, &["-t", "ext4", "-O", "bigalloc", "-C", "65536"], ""),
    (16384, &["-t", "ext4"], "journal_data"),
];

fn make(image: &Path, block_bytes: u64, options: &[&str]) {
    let block = block_bytes.to_string();
    let mut all = vec!["-F", "-N", "1024", "-b", &block];
    all.extend(options);
    mke2fs::make(image, SIZE_KIB, &all, None).unwrap();
}

fn open(image: &Path, cache_bytes: u64) -> Volume {
    let options = WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    };
    let spec = platter::ImageSpec::parse(image).unwrap();
    let budget = Arc::new(MemoryBudget::new(cache_bytes));
    let options = MountOptions::new().writing(options).budget(budget);
    options.open(&spec).unwrap()
}

#[test]
fn workload_on_blocks_above_a_page_leaves_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (seed, (block_bytes, options, mount_options)) in (1..).zip(LAYOUTS) {
        make(&image, *block_bytes, options);
        if !mount_options.is_empty() {
            mke2fs::tune(&image, &["-o", mount_options]).unwrap();
        }
        let has_extents = options.contains(&"ext4");
        let is_clustered = options.contains(&"bigalloc");
        let mix = Mix {
            one_sync_in: 10,
            one_whole_sync_in: 5,
            one_refused_in: 25,
            abilities: Abilities {
                fallocate: has_extents,
                shift_bytes: match (has_extents, is_clustered) {
                    (false, _) => 0,
                    (true, true) => 65536,
                    (true, false) => *block_bytes,
                },
                ..Abilities::default()
            },
            names: true,
        };
        let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
        let model = MemFs::new(clock, MemFsLimits::default());
        let mut history = History::new(Tree::read(&model, None).unwrap());
        let mut generator = Generator::new(seed, mix, &[""], "n");
        for round in 0..3 {
            let volume = open(&image, 16 << 20);
            let fs = &**volume.filesystem();
            let (mut ours, mut theirs) = (Session::new(fs), Session::new(&model));
            for _ in 0..150 {
                let operation = generator.next(history.now());
                let (done, expected) = (ours.apply(&operation), theirs.apply(&operation));
                assert!(
                    is_same(&done, &expected),
                    "{block_bytes} {options:?} {operation:?}: {done:?} {expected:?}"
                );
                let pace = Pace {
                    begin: 0,
                    end: None,
                };
                history.add(operation, pace, done.is_ok(), &theirs).unwrap();
            }
            for close in generator.close_all() {
                ours.apply(&close).unwrap();
                theirs.apply(&close).unwrap();
            }
            drop((ours, theirs));
            fs.unmount().unwrap();
            drop(volume);
            assert_clean(&image, (block_bytes, options, round));
            let volume = open(&image, 16 << 20);
            let left = Tree::read(&**volume.filesystem(), None).unwrap();
            let expected = Tree::read(&model, None).unwrap();
            let differences = left.differences(&expected);
            assert!(
                differences.is_empty(),
                "{block_bytes} {options:?}: {differences:?}"
            );
            volume.filesystem().unmount().unwrap();
        }
    }
}

fn is_same(ours: &platter_vfs::Result<()>, model: &platter_vfs::Result<()>) -> bool {
    match (ours, model) {
        (Ok(()), Ok(())) => true,
        (Err(Error::Condition(ours)), Err(Error::Condition(model))) => ours == model,
        _ => false,
    }
}

/// A file, and what it has to hold.
struct File {
    volume: Volume,
    inode: Arc<dyn Inode>,
    model: Vec<u8>,
    prng: Prng,
    block_bytes: u64,
}

impl File {
    fn open(image: &Path, block_bytes: u64, model: Vec<u8>, prng: Prng) -> Self {
        // Less than the file and its metadata need.
        let volume = open(image, 3 << 20);
        let root = volume.filesystem().root().unwrap();
        let name = Name::new(b"file").unwrap();
        let inode = root.lookup(name).unwrap();
        Self {
            volume,
            inode,
            model,
            prng,
            block_bytes,
        }
    }

    fn apply(&self, operation: &Operation) {
        let fs = &**self.volume.filesystem();
        let done = Session::new(fs).apply(operation);
        done.unwrap_or_else(|error| panic!("{operation:?}: {error}"));
    }

    /// A range that may have any alignment.
    fn range(&mut self) -> Range<u64> {
        let start = self.prng.below(FILE_BYTES_MAX);
        let len = 1 + self.prng.below(200_000);
        let unit = [1, 1, 4096, self.block_bytes][usize::try_from(self.prng.below(4)).unwrap()];
        let start = start - start % unit;
        start..(start + len.next_multiple_of(unit)).min(FILE_BYTES_MAX)
    }

    fn bytes(&self, range: &Range<u64>) -> Range<usize> {
        let len = self.model.len();
        let at = |offset| usize::try_from(offset).unwrap().min(len);
        at(range.start)..at(range.end)
    }

    fn lengthen(&mut self, end: u64) {
        let end = usize::try_from(end).unwrap();
        self.model.resize(self.model.len().max(end), 0);
    }

    fn allocate(&self, range: &Range<u64>, mode: FallocateMode) {
        self.apply(&Operation::Fallocate("file".into(), range.clone(), mode));
    }

    fn step(&mut self) {
        let range = self.range();
        let size = self.model.len() as u64;
        match self.prng.below(20) {
            0..=6 => {
                let fill = Fill {
                    offset: range.start,
                    len: usize::try_from(range.end - range.start).unwrap(),
                    seed: self.prng.next_u64(),
                };
                self.lengthen(range.end);
                let bytes = self.bytes(&range);
                self.model[bytes].copy_from_slice(&fill.bytes());
                self.apply(&Operation::Write("file".into(), fill));
            }
            7..=12 => {
                let expected = &self.model[self.bytes(&range)];
                let mut found = vec![0; usize::try_from(range.end - range.start).unwrap()];
                let count = self.inode.read_at(range.start, &mut found).unwrap();
                assert!(found[..count] == *expected, "read of {range:?}");
            }
            13 => {
                self.model.resize(usize::try_from(range.start).unwrap(), 0);
                self.apply(&Operation::Truncate("file".into(), range.start));
            }
            14 => {
                self.lengthen(range.end);
                self.allocate(&range, FallocateMode::Allocate { keep_size: false });
            }
            15 => {
                let bytes = self.bytes(&range);
                self.model[bytes].fill(0);
                self.allocate(&range, FallocateMode::PunchHole);
            }
            16 => {
                let keep_size = self.prng.below(2) == 0;
                if !keep_size {
                    self.lengthen(range.end);
                }
                let bytes = self.bytes(&range);
                self.model[bytes].fill(0);
                self.allocate(&range, FallocateMode::ZeroRange { keep_size });
            }
            17 => {
                let aligned = self.aligned(&range);
                if !aligned.is_empty() && aligned.end < size {
                    self.model.drain(self.bytes(&aligned));
                    self.allocate(&aligned, FallocateMode::CollapseRange);
                }
            }
            18 => {
                let aligned = self.aligned(&range);
                let len = aligned.end - aligned.start;
                if len > 0 && aligned.start < size && size + len <= FILE_BYTES_MAX {
                    let at = self.bytes(&aligned).start;
                    let zeros = vec![0; usize::try_from(len).unwrap()];
                    self.model.splice(at..at, zeros);
                    self.allocate(&aligned, FallocateMode::InsertRange);
                }
            }
            _ => self.apply(&Operation::Fsync("file".into(), true)),
        }
    }

    fn aligned(&self, range: &Range<u64>) -> Range<u64> {
        let down = |offset: u64| offset - offset % self.block_bytes;
        down(range.start)..down(range.end)
    }
}

#[test]
fn file_of_blocks_above_a_page_holds_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for block_bytes in [16384, 65536] {
        make(&image, block_bytes, &["-t", "ext4"]);
        let volume = open(&image, 16 << 20);
        write(&volume, "file", &[]);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        let mut state = (Vec::new(), Prng::new(block_bytes));
        for _ in 0..20 {
            let mut file = File::open(&image, block_bytes, state.0, state.1);
            for _ in 0..1000 {
                file.step();
            }
            file.volume.filesystem().unmount().unwrap();
            assert_clean(&image, block_bytes);
            let found = debugfs::ask(&image, "cat /file").unwrap();
            assert!(
                found == file.model,
                "debugfs, of {} bytes",
                file.model.len()
            );
            state = (file.model, file.prng);
        }
    }
}
