//! Contents on their way through the page cache, and what is left without it.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::disk::{PAGE, PAGE_BYTES};
use super::{MemFs, MemFsLimits};
use platter_vfs::{
    Condition, Context, CreateKind, Error, Extent, FallocateMode, Filesystem, FixedClock, Inode,
    Name, PathWalk, SeekTarget, SetAttr, Timestamp,
};

/// Bytes that a random file has at most, about.
const BYTES: u64 = 60_000;

struct Random(u32);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(self.0 >> 8) % bound
    }
}

fn fs(pages: u64) -> MemFs {
    let clock = FixedClock::new(Timestamp::default(), 0);
    let limits = MemFsLimits {
        pages,
        ..MemFsLimits::default()
    };
    MemFs::new(Arc::new(clock), limits)
}

fn file(fs: &MemFs, name: &str) -> Arc<dyn Inode> {
    fs.plant(name.as_bytes(), CreateKind::Regular, 0o644)
        .unwrap()
}

fn resize(file: &dyn Inode, size_bytes: u64) {
    let changes = SetAttr {
        size_bytes: Some(size_bytes),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &changes).unwrap();
}

fn read(file: &dyn Inode) -> Vec<u8> {
    let size = usize::try_from(file.attr().unwrap().size_bytes).unwrap();
    let mut bytes = vec![0xEE; size + 1];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), size);
    bytes.truncate(size);
    bytes
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Bytes of a file as a model has them.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn fill(&mut self, range: Range<u64>, byte: u8) {
        if self.0.len() < at(range.end) {
            self.0.resize(at(range.end), 0);
        }
        self.0[at(range.start)..at(range.end)].fill(byte);
    }

    /// Makes the part of a range that is in the file read as zeros.
    fn clear(&mut self, range: &Range<u64>) {
        let end = range.end.min(self.0.len() as u64);
        if range.start < end {
            self.fill(range.start..end, 0);
        }
    }
}

/// Makes a random change of a file and of its model.
fn change(file: &dyn Inode, model: &mut Model, random: &mut Random) {
    let (start, len) = (random.below(40_000), 1 + random.below(9_000));
    let (size, end) = (model.0.len() as u64, start + len);
    let whole = start - start % PAGE..start - start % PAGE + len.next_multiple_of(PAGE);
    match random.below(10) {
        0..4 => {
            let byte = 1 + u8::try_from(random.below(255)).unwrap();
            let bytes = vec![byte; at(len)];
            if random.below(3) == 0 {
                file.write_through(start, &bytes).unwrap();
            } else {
                file.write_at(start, &bytes).unwrap();
            }
            model.fill(start..end, byte);
        }
        4 => {
            resize(file, start);
            model.0.resize(at(start), 0);
        }
        5 => file.sync(true).unwrap(),
        6 => {
            file.fallocate(start..end, FallocateMode::PunchHole)
                .unwrap();
            model.clear(&(start..end));
        }
        7 => {
            let keep_size = random.below(2) == 0;
            let mode = if random.below(2) == 0 {
                model.clear(&(start..end));
                FallocateMode::ZeroRange { keep_size }
            } else {
                FallocateMode::Allocate { keep_size }
            };
            file.fallocate(start..end, mode).unwrap();
            if !keep_size && end > size {
                model.0.resize(at(end), 0);
            }
        }
        8 if whole.end < size => {
            file.fallocate(whole.clone(), FallocateMode::CollapseRange)
                .unwrap();
            model.0.drain(at(whole.start)..at(whole.end));
        }
        9 if whole.start < size && size < BYTES => {
            file.fallocate(whole.clone(), FallocateMode::InsertRange)
                .unwrap();
            let zeros = vec![0; at(whole.end - whole.start)];
            model.0.splice(at(whole.start)..at(whole.start), zeros);
        }
        _ => {}
    }
}

#[test]
fn random_changes_equal_those_of_a_byte_vector() {
    for seed in 0..12 {
        let fs = fs(300);
        let free = fs.stat_fs().unwrap().blocks_free;
        let held = file(&fs, "f");
        let (mut model, mut random) = (Model::default(), Random(seed));
        for _ in 0..80 {
            change(&*held, &mut model, &mut random);
            assert!(read(&*held) == model.0, "seed {seed}");
        }
        fs.sync().unwrap();
        drop(held);
        // Without a user, nothing of it is in memory.
        let again = PathWalk::new(&fs).resolve(b"f").unwrap();
        assert!(read(&*again) == model.0, "seed {seed}, without cache");
        resize(&*again, 0);
        assert_eq!(fs.stat_fs().unwrap().blocks_free, free, "seed {seed}");
    }
}

#[test]
fn dirty_files_stay_until_they_are_written_back() {
    let fs = fs(1 << 10);
    let id = file(&fs, "f").id();
    fs.inode(id).unwrap().write_at(0, b"contents").unwrap();
    assert_eq!(fs.shared.disk.page_count(), 0);
    assert_eq!(read(&*fs.inode(id).unwrap()), b"contents");
    fs.sync().unwrap();
    assert_eq!(fs.shared.disk.page_count(), 1);
    assert_eq!(read(&*fs.inode(id).unwrap()), b"contents");
}

#[test]
fn equal_pages_are_one_on_the_disk() {
    let fs = fs(1 << 10);
    // Some go to the disk together with others, some alone, some past the cache.
    for (name, pages) in [("a", 8), ("b", 30), ("c", 64)] {
        let held = file(&fs, name);
        let before = fs.shared.disk.page_count();
        let mut model = vec![7; pages * PAGE_BYTES];
        held.write_at(0, &model).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.shared.disk.page_count() - before, 1, "{name}");
        assert_eq!(held.attr().unwrap().sectors, pages as u64 * PAGE / 512);
        held.write_at(3 * PAGE + 5, b"others stay").unwrap();
        model[3 * PAGE_BYTES + 5..][..11].copy_from_slice(b"others stay");
        fs.sync().unwrap();
        assert_eq!(fs.shared.disk.page_count() - before, 2, "{name}");
        drop(held);
        let again = PathWalk::new(&fs).resolve(name.as_bytes()).unwrap();
        assert!(read(&*again) == model, "{name}");
    }
}

#[test]
fn fsync_writes_back_one_file() {
    let fs = fs(1 << 10);
    let (first, second) = (file(&fs, "a"), file(&fs, "b"));
    for file in [&first, &second] {
        file.write_at(0, &[1; PAGE_BYTES]).unwrap();
    }
    let delayed = |file: &dyn Inode| {
        let mut delayed = Vec::new();
        file.extents(0..u64::MAX, &mut |extent: Extent| {
            delayed.push(extent.delayed);
            ControlFlow::Continue(())
        })
        .unwrap();
        delayed
    };
    first.sync(false).unwrap();
    assert_eq!(
        (delayed(&*first), delayed(&*second)),
        (vec![false], vec![true])
    );
    assert_eq!(second.attr().unwrap().sectors, 8, "reserved space counts");
    fs.sync().unwrap();
    assert_eq!(delayed(&*second), [false]);
}

#[test]
fn accepted_writes_never_run_out_of_space() {
    let fs = fs(4);
    let (first, second) = (file(&fs, "a"), file(&fs, "b"));
    first.write_at(0, &[1; 3 * PAGE_BYTES]).unwrap();
    let refused = second.write_at(0, &[2; 2 * PAGE_BYTES]);
    assert!(matches!(refused, Err(Error::Condition(Condition::NoSpace))));
    second.write_at(0, &[2; PAGE_BYTES]).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.stat_fs().unwrap().blocks_free, 0);
    assert_eq!(read(&*first), [1; 3 * PAGE_BYTES]);
}

#[test]
fn unnamed_dirty_file_is_written_back_once_it_has_a_name() {
    let fs = fs(1 << 10);
    let root = fs.root().unwrap();
    let context = Context::root();
    let unnamed = root.create_unnamed(&context, 0o600).unwrap();
    unnamed.write_at(0, b"contents").unwrap();
    let name = Name::new(b"named").unwrap();
    root.link(&context, name, unnamed.id()).unwrap();
    drop(unnamed);
    assert_eq!(read(&*root.lookup(name).unwrap()), b"contents");
}

#[test]
fn dirty_file_outlives_the_filesystem_with_its_user() {
    let fs = fs(1 << 10);
    let (held, root) = (file(&fs, "f"), fs.root().unwrap());
    held.write_at(0, b"before").unwrap();
    let shared = Arc::downgrade(&fs.shared);
    drop(fs);
    held.write_at(0, b"after!").unwrap();
    drop(held);
    let name = Name::new(b"f").unwrap();
    assert_eq!(read(&*root.lookup(name).unwrap()), b"after!");
    drop(root);
    assert!(shared.upgrade().is_none(), "nothing keeps it in memory");
}

#[test]
fn end_of_a_truncated_file_reads_as_zeros_when_it_grows() {
    let fs = fs(1 << 10);
    let file = file(&fs, "f");
    file.write_at(0, &[7; 9_000]).unwrap();
    file.sync(false).unwrap();
    resize(&*file, 10);
    resize(&*file, 9_000);
    let expected = [&[7; 10][..], &[0; 8_990]].concat();
    assert_eq!(read(&*file), expected);
    assert_eq!(file.seek(0, SeekTarget::Hole).unwrap(), PAGE);
}

#[test]
fn unwritten_space_is_a_hole_to_seek_and_an_extent_to_map() {
    let fs = fs(1 << 10);
    let file = file(&fs, "f");
    file.write_at(0, b"x").unwrap();
    let mode = FallocateMode::Allocate { keep_size: false };
    file.fallocate(PAGE..3 * PAGE, mode).unwrap();
    file.sync(false).unwrap();
    assert_eq!(file.seek(0, SeekTarget::Hole).unwrap(), PAGE);
    assert!(file.seek(PAGE, SeekTarget::Data).is_err());
    let mut seen = Vec::new();
    file.extents(0..u64::MAX, &mut |extent| {
        seen.push((extent.file, extent.unwritten));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, [(0..PAGE, false), (PAGE..3 * PAGE, true)]);
}
