//! Files whose parts can only be filled, or are best written, as a whole.

use super::*;

/// A file of compressed extents, and how often each was decompressed.
struct Packed {
    file: File,
    /// Where extents end, in pages.
    ends: Vec<u64>,
    decompressed: Mutex<Vec<u32>>,
}

impl Packed {
    /// Extents of these lengths in pages, one after the other.
    fn new(lens: impl IntoIterator<Item = u64>) -> Self {
        let lens = lens.into_iter();
        let ends: Vec<_> = lens
            .scan(0, |end, len| {
                *end += len;
                Some(*end)
            })
            .collect();
        Self {
            file: File::of_pages(*ends.last().unwrap()),
            decompressed: Mutex::new(vec![0; ends.len()]),
            ends,
        }
    }

    /// Extents of 128 KiB, now and then shorter ones.
    fn usual() -> Self {
        Self::new((0..40).map(|nth| [32, 32, 7, 32, 1, 32, 20][nth % 7]))
    }

    fn pages(&self) -> u64 {
        self.file.size_bytes() / PAGE
    }

    fn extent_of(&self, page: u64) -> usize {
        let found = self.ends.partition_point(|&end| end <= page);
        found.min(self.ends.len() - 1)
    }

    fn extents(&self, range: &Range<u64>) -> Range<usize> {
        let last = (range.end / PAGE).max(range.start / PAGE + 1) - 1;
        self.extent_of(range.start / PAGE)..self.extent_of(last) + 1
    }
}

impl AddressSpace for Packed {
    type Error = Bad;

    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Bad> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        for extent in self.extents(&(offset..offset + len as u64)) {
            self.decompressed.lock().unwrap()[extent] += 1;
        }
        self.file.read_folios(offset, bufs)
    }

    fn fill_range(&self, range: Range<u64>) -> Range<u64> {
        let extents = self.extents(&range);
        let start = extents.start.checked_sub(1).map_or(0, |it| self.ends[it]);
        let end = self.ends[extents.end - 1];
        range.start.min(start * PAGE)..range.end.max(end * PAGE)
    }
}

fn assert_each_once(packed: &Packed) {
    let counts = packed.decompressed.lock().unwrap();
    assert!(counts.iter().all(|&count| count == 1), "{counts:?}");
}

fn check(mapping: &Mapping<Bad>, packed: &Packed, offset: u64, len: usize) {
    let mut buf = vec![0; len];
    let count = mapping.read_at(packed, offset, &mut buf).unwrap();
    let right = |at: usize| ((offset + at as u64) / PAGE % 251).to_le_bytes()[0];
    assert!((0..count).all(|at| buf[at] == right(at)), "at {offset}");
}

#[test]
fn extents_are_filled_once_by_a_sequential_reader() {
    for len in [1000, 4096, 10_000, 65_536] {
        let packed = Packed::usual();
        let (mapping, _) = mapping(64 << 20);
        for offset in (0..packed.size_bytes()).step_by(len) {
            check(&mapping, &packed, offset, len);
        }
        assert_each_once(&packed);
        // Windows grow as they do for other files.
        let requests = packed.file.reads();
        assert!(requests.len() < 12, "{requests:?}");
    }
}

#[test]
fn extents_are_filled_once_by_a_random_reader() {
    let packed = Packed::usual();
    let (mapping, _) = mapping(64 << 20);
    let pages = packed.pages();
    for nth in 0..pages {
        check(&mapping, &packed, nth * 389 % pages * PAGE, PAGE_BYTES);
    }
    assert_each_once(&packed);
}

#[test]
fn extents_are_filled_once_by_long_reads() {
    for len in [128 << 10, 300_000, 1 << 20] {
        let packed = Packed::usual();
        let (mapping, _) = mapping(64 << 20);
        for offset in (0..packed.size_bytes()).step_by(len) {
            check(&mapping, &packed, offset, len);
        }
        assert_each_once(&packed);
    }
}

#[test]
fn extents_are_filled_once_by_readahead() {
    let packed = Packed::usual();
    let (mapping, _) = mapping(64 << 20);
    let end = packed.size_bytes();
    for start in [40 * PAGE, 0, 600 * PAGE, 900 * PAGE] {
        mapping.will_need(&packed, start..end.min(start + 35 * PAGE));
    }
    mapping.will_need(&packed, 0..end);
    assert_each_once(&packed);
    assert_eq!(mapping.page_count(), packed.pages());
}

#[test]
fn unit_without_space_is_filled_in_part() {
    let packed = Packed::usual();
    let (mapping, budget) = mapping(6 * PAGE);
    for page in (0..packed.pages()).step_by(11) {
        check(&mapping, &packed, page * PAGE, PAGE_BYTES);
        assert!(budget.used_bytes() <= 6 * PAGE + budget.stats().node_bytes);
    }
}

#[test]
fn range_is_widened_by_no_more_than_the_bound() {
    let packed = Packed::new([300, 300]);
    let (mapping, _) = mapping(64 << 20);
    check(&mapping, &packed, 100 * PAGE, PAGE_BYTES);
    assert_eq!(packed.file.reads(), one(68..133));
}

#[test]
fn part_of_a_block_is_written_back_with_the_block() {
    let file = File {
        block_pages: 4,
        ..File::of_pages(10)
    };
    let (mapping, _) = mapping_of_blocks(2, 1 << 20);
    mapping.write_at(&file, 5 * PAGE + 1, &[9]).unwrap();
    assert_eq!(file.reads(), one(4..8));
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(file.writes(), one(4..8));
    assert_eq!(read(&mapping, &file, 4 * PAGE, 1).unwrap(), [4]);
    // The last block extends past the end of the file, and the next begins after it.
    mapping.write_at(&file, 9 * PAGE, &[8]).unwrap();
    mapping.write_at(&file, 13 * PAGE, &[7]).unwrap();
    assert_eq!(file.reads(), one(8..12));
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(file.writes(), one(8..14));
    assert_eq!(read(&mapping, &file, 12 * PAGE, 1).unwrap(), [0]);
    assert_whole_blocks(&mapping, 2);
}

#[test]
fn truncation_inside_a_block_keeps_the_block() {
    let file = File {
        block_pages: 4,
        ..File::of_pages(64)
    };
    let (mapping, _) = mapping_of_blocks(2, 8 << 20);
    mapping.will_need(&file, 0..64 * PAGE);
    let size = 33 * PAGE + 5;
    file.size.store(size, Ordering::Relaxed);
    mapping.truncate(size);
    assert_eq!(mapping.page_count(), 36);
    assert_whole_blocks(&mapping, 2);
    file.size.store(64 * PAGE, Ordering::Relaxed);
    let tail = read(&mapping, &file, 33 * PAGE, 3 * PAGE_BYTES).unwrap();
    assert!(tail[..5] == [33; 5] && tail[5..].iter().all(|&byte| byte == 0));
    mapping.remove_range(5 * PAGE..18 * PAGE);
    assert_eq!(mapping.page_count(), 36 - 8);
    let bytes = [4, 5, 7, 16, 17, 18].map(|page| byte(&mapping, &file, page).unwrap());
    assert_eq!(bytes, [4, 0, 0, 0, 0, 18]);
    assert_whole_blocks(&mapping, 2);
}

/// A file that is written by units of 128 KiB.
struct Granular(File);

impl AddressSpace for Granular {
    type Error = Bad;

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Bad> {
        self.0.read_folios(offset, bufs)
    }
}

impl WritableSpace for Granular {
    fn extend(&self, end: u64) {
        self.0.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Bad> {
        self.0.write_folios(offset, bufs)
    }

    fn write_granule(&self) -> u64 {
        128 << 10
    }
}

#[test]
fn units_of_writeback_are_written_whole() {
    let file = Granular(File::default());
    let (mapping, _) = mapping(64 << 20);
    let pages = 1000;
    for page in 3..pages {
        mapping
            .write_at(&file, page * PAGE, &[9; PAGE_BYTES])
            .unwrap();
    }
    mapping.write_back(&file, 40 * PAGE..u64::MAX).unwrap();
    let writes = file.0.writes();
    assert!(writes.len() > 2, "{writes:?}");
    assert_eq!(writes.first().unwrap().start, 32);
    for write in &writes[..writes.len() - 1] {
        assert!(write.end.is_multiple_of(32), "{writes:?}");
    }
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(file.0.writes(), one(3..32));
    // A range within a unit is that of the unit.
    mapping
        .write_at(&file, 64 * PAGE, &vec![7; 32 * PAGE_BYTES])
        .unwrap();
    mapping.write_back(&file, 70 * PAGE..71 * PAGE).unwrap();
    assert_eq!(file.0.writes(), one(64..96));
}
