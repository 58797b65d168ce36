//! Extents that are written, preallocated, punched out and split at random, compared with a model of the
//! contents: `btrfs check` finds references, checksums and counts right, and the kernel reads the same.

use std::fmt::Write as _;
use std::io::IoSlice;
use std::ops::Range;

use platter_vfs::{Condition, Error, FileKind};
use sha2::Digest as _;

use super::ExtentChange;
use crate::inode::change::update;
use crate::ondisk::TreeId;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::txn::tests::Random;
use crate::txn::tests::files::create;
use crate::txn::tests::image::Pool;
use crate::txn::{Handle, WriteContext, WriteOptions, data_extents};

const SECTOR: u64 = 4096;
const SECTORS: u64 = 64;
const FILE: u64 = FIRST_FREE_OBJECT + 1;

/// What a sector of the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sector {
    Hole,
    Unwritten,
    Data(u8),
}

struct Model<'f> {
    fs: &'f WriteContext,
    sectors: Vec<Sector>,
}

fn bytes(range: &Range<u64>) -> Range<u64> {
    range.start * SECTOR..range.end * SECTOR
}

impl Model<'_> {
    fn change<'h, 'f>(handle: &'h Handle<'f>) -> ExtentChange<'h, 'f> {
        ExtentChange {
            handle,
            tree: TreeId::FS,
            inode: FILE,
        }
    }

    fn count(handle: &Handle<'_>, added: u64, dropped: u64) {
        let counted = handle.edit(TreeId::FS, |tree| {
            update(tree, FILE, |item| {
                item.size_bytes = SECTORS * SECTOR;
                item.allocated_bytes = item.allocated_bytes + added - dropped;
            })
        });
        counted.unwrap();
    }

    fn set(&mut self, range: &Range<u64>, to: Sector) {
        for at in range.clone() {
            self.sectors[usize::try_from(at).unwrap()] = to;
        }
    }

    fn punch(&mut self, range: &Range<u64>) {
        let mut at = bytes(range);
        loop {
            let handle = self.fs.begin_freeing(256).unwrap();
            let dropped = Self::change(&handle).drop_range(at.clone(), 3).unwrap();
            Self::count(&handle, 0, dropped.bytes);
            match dropped.next {
                Some(next) => at.start = next,
                None => break,
            }
        }
        self.set(range, Sector::Hole);
    }

    fn fill(&mut self, range: &Range<u64>, data: Option<u8>) {
        self.punch(range);
        let handle = self.fs.begin(256).unwrap();
        let len_bytes = (range.end - range.start) * SECTOR;
        let logical = data_extents::allocate(&handle, len_bytes).unwrap();
        let place = ExtentPlace {
            logical,
            disk_bytes: len_bytes,
            offset: 0,
        };
        let kind = match data {
            Some(byte) => {
                Self::write(&handle, place, range, byte);
                FileExtentKind::Regular(place)
            }
            None => FileExtentKind::Prealloc(place),
        };
        let extent = FileExtent {
            generation: handle.generation(),
            ram_bytes: len_bytes,
            compression: Compression::None,
            file_bytes: len_bytes,
            kind,
        };
        let change = Self::change(&handle);
        change.insert(range.start * SECTOR, &extent, true).unwrap();
        Self::count(&handle, len_bytes, 0);
        self.set(range, data.map_or(Sector::Unwritten, Sector::Data));
    }

    fn write(handle: &Handle<'_>, place: ExtentPlace, range: &Range<u64>, byte: u8) {
        let len = usize::try_from((range.end - range.start) * SECTOR).unwrap();
        let contents = vec![byte; len];
        data_extents::write(handle.fs(), place.logical, &[IoSlice::new(&contents)]).unwrap();
        data_extents::add_checksums(handle, place.logical, &contents).unwrap();
    }

    /// The contents.
    fn digest(&self) -> String {
        let mut contents = Vec::new();
        for sector in &self.sectors {
            let byte = match sector {
                Sector::Hole | Sector::Unwritten => 0,
                Sector::Data(byte) => *byte,
            };
            contents.resize(contents.len() + 4096, byte);
        }
        let sum = sha2::Sha256::digest(&contents);
        sum.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }
}

const SUM: &str = "
mount -t btrfs -o ro,$options $device $root
sha256sum < $root/file
umount $root
";

fn examine(mkfs: &[&str]) {
    let pool = Pool::make(1, 200, mkfs);
    let fs = pool.open(WriteOptions::default());
    create(&fs, TreeId::FS, "file", &[], 4096);
    let mut random = Random(3);
    let count = usize::try_from(SECTORS).unwrap();
    let mut model = Model {
        fs: &fs,
        sectors: vec![Sector::Hole; count],
    };
    for step in 0..240u32 {
        let start = random.below(SECTORS);
        let len = 1 + random.below((SECTORS - start).min(20));
        let range = start..start + len;
        match random.below(5) {
            0 | 1 => model.fill(&range, Some(u8::try_from(step % 250 + 1).unwrap())),
            2 | 3 => model.punch(&range),
            _ => model.fill(&range, None),
        }
        if step % 60 == 0 {
            fs.sync().unwrap();
            pool.assert_clean();
        }
    }
    fs.sync().unwrap();
    assert_eq!(fs.delayed_refs().checksum_deletions(), 0);
    let digest = model.digest();
    drop(fs);
    pool.assert_clean();
    let found = pool.run(SUM);
    assert_eq!(found.split_whitespace().next(), Some(&*digest));
}

#[test]
fn extents_are_those_of_the_model() {
    examine(&[]);
}

#[test]
fn extents_without_free_space_tree_are_those_of_the_model() {
    examine(&["-R", "^free-space-tree", "-n", "4096", "--csum", "sha256"]);
}

#[test]
fn preallocated_extents_are_marked_as_written() {
    let pool = Pool::make(1, 200, &[]);
    let fs = pool.open(WriteOptions::default());
    create(&fs, TreeId::FS, "file", &[], 4096);
    let mut model = Model {
        fs: &fs,
        sectors: vec![Sector::Hole; usize::try_from(SECTORS).unwrap()],
    };
    model.fill(&(0..16), None);
    model.fill(&(16..40), None);
    let handle = fs.begin(256).unwrap();
    // What is written lies where the extents were allocated.
    let places: Vec<ExtentPlace> = handle
        .edit(TreeId::FS, |tree| {
            let mut places = Vec::new();
            for offset in [0, 16 * SECTOR] {
                let kind = crate::ondisk::key::ItemKind::EXTENT_DATA;
                let key = crate::ondisk::Key::new(FILE, kind, offset);
                let data = tree.get(key)?.unwrap();
                let extent = FileExtent::decode(&data, offset, 4096, tree.tree().locus(key))?;
                if let FileExtentKind::Prealloc(place) = extent.kind {
                    places.push(place);
                }
            }
            Ok(places)
        })
        .unwrap();
    let at = |place: ExtentPlace, sectors: u64| ExtentPlace {
        logical: crate::ondisk::LogicalAddr(place.logical.0 + sectors * SECTOR),
        ..place
    };
    // In the middle of the first, and over the end of the first into the second.
    for (range, byte) in [(4..6, 7), (12..16, 8), (16..20, 8), (30..40, 9)] {
        let first = range.start < 16;
        let (place, from) = if first {
            (places[0], 0)
        } else {
            (places[1], 16)
        };
        Model::write(&handle, at(place, range.start - from), &range, byte);
        model.set(&range, Sector::Data(byte));
    }
    for range in [4..6, 12..20, 30..40, 50..60] {
        Model::change(&handle).mark_written(bytes(&range)).unwrap();
    }
    drop(handle);
    fs.sync().unwrap();
    pool.assert_clean();
    model.punch(&(5..14));
    fs.sync().unwrap();
    let digest = model.digest();
    drop(fs);
    pool.assert_clean();
    let found = pool.run(SUM);
    assert_eq!(found.split_whitespace().next(), Some(&*digest));
}

#[test]
fn part_of_an_inline_extent_is_not_dropped() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    create(&fs, TreeId::FS, "file", &[7; 1000], 4096);
    let handle = fs.begin(256).unwrap();
    let change = Model::change(&handle);
    let refused = change.drop_range(0..1, 10);
    let is_refused = matches!(refused, Err(Error::Condition(Condition::NotSupported)));
    assert!(is_refused && fs.failure().is_none());
    let dropped = change.drop_range(0..SECTOR, 10).unwrap();
    assert_eq!((dropped.bytes, dropped.next), (1000, None));
    let counted = handle.edit(TreeId::FS, |tree| {
        update(tree, FILE, |item| {
            assert_eq!(item.kind, FileKind::Regular);
            item.allocated_bytes -= dropped.bytes;
        })
    });
    counted.unwrap();
    drop(handle);
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}
