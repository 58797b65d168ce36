//! Records applied once, again over what they made, and over what an interrupted replay left of that.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::{Rule, Uuid};
use platter_vfs::check::{CheckSink, Finding};
use platter_vfs::{DirCursor, Error, FileKind, FixedClock, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::directory::Directory;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::BlockMap;
use crate::mkfs::{Generation, MkfsOptions, mkfs};
use crate::mount::{Ext4, MountOptions};
use crate::ondisk::inode::{DiskInode, InodeRule};
use crate::ondisk::jbd2::LogBlock;
use crate::ondisk::jbd2::fast_commit::{AddRange, Entry, FastCommitRule, Record};
use crate::ondisk::jbd2::superblock::{DiskJournalSuperblock, JournalIncompat};
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};
use crate::orphan::{ORPHAN_CREDITS, OrphanRegister};
use crate::txn::JournalMapBuilder;

const BLOCK: usize = 1024;
const SUPERBLOCK: u64 = 1024;

/// A small filesystem without a journal.
struct Bench {
    device: Arc<MemoryDevice>,
}

/// Inode number, links and what fills the first block of a file, by name in the root directory.
type Files = BTreeMap<String, (u32, u32, u8)>;

struct Findings(Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

fn number(number: u32) -> InodeNr {
    InodeNr::new(number).unwrap()
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock::new(Timestamp::default(), 0))
}

fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(8 << 20))
}

/// A regular file of one block.
fn file(links: u16, generation: u32) -> DiskInode {
    let mut disk = DiskInode::new_zeroed();
    (disk.mode, disk.links) = (0o10_0644.into(), links.into());
    disk.generation = generation.into();
    disk.flags = InodeFlags::EXTENTS.bits().into();
    disk.size_lo = 1024.into();
    disk
}

fn directory(generation: u32) -> DiskInode {
    let mut disk = file(2, generation);
    (disk.mode, disk.size_lo) = (0o04_0755.into(), 0.into());
    disk
}

fn inode(inode: u32, disk: &DiskInode) -> Record<'_> {
    Record::Inode {
        inode: number(inode),
        raw: disk.as_bytes(),
    }
}

fn entry(inode: u32, name: &str) -> Entry<'_> {
    Entry {
        parent: InodeNr::ROOT,
        inode: number(inode),
        name: name.as_bytes(),
    }
}

fn create(inode: u32, name: &str) -> Record<'_> {
    Record::Create(entry(inode, name))
}

fn link(inode: u32, name: &str) -> Record<'_> {
    Record::Link(entry(inode, name))
}

fn unlink(inode: u32, name: &str) -> Record<'_> {
    Record::Unlink(entry(inode, name))
}

/// Maps the first block of a file.
fn range(inode: u32, start: u64) -> Record<'static> {
    Record::AddRange(AddRange {
        inode: number(inode),
        first: FileBlock(0),
        len: 1,
        start: BlockNr(start),
        unwritten: false,
    })
}

fn rule_of(result: Result<()>) -> String {
    match result {
        Err(Error::Corrupt(report)) => report.rule.into_owned(),
        other => panic!("expected corruption, got {other:?}"),
    }
}

impl Bench {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new("memory", vec![0; 4096 * BLOCK]));
        let below: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let mut options = MkfsOptions::new(Generation::Ext4);
        options.set_feature("has_journal", false).unwrap();
        options.block_bytes = Some(1024);
        mkfs(&below, &options, true, budget(), &*clock()).unwrap();
        // Where the records map contents.
        for block in 3000..3010u64 {
            device
                .write_at(block << 10, &[content(block); BLOCK])
                .unwrap();
        }
        Self { device }
    }

    /// A filesystem after the replay of records.
    fn with(records: &[Record<'_>]) -> Self {
        let bench = Self::new();
        bench.replay(records).unwrap();
        bench
    }

    fn on(bytes: Vec<u8>) -> Self {
        let device = Arc::new(MemoryDevice::new("memory", bytes));
        Self { device }
    }

    fn open(&self) -> FsContext {
        let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&self.device);
        let primary = Primary {
            device: &device,
            offset: SUPERBLOCK,
            budget: &budget(),
        };
        primary.open().unwrap()
    }

    fn replay(&self, records: &[Record<'_>]) -> Result<()> {
        let fs = self.open().writable(Log::without_journal);
        let mut regions = Vec::new();
        for record in records {
            if let Record::AddRange(range) = record {
                let end = range.start.0 + u64::from(range.len);
                regions.push(range.start.0..end);
            }
        }
        regions.sort_unstable_by_key(|region| region.start);
        regions.dedup();
        let space = Arc::new(Allocator::open_for_replay(&fs, regions)?);
        let client: Arc<dyn CommitClient> = Arc::<Allocator>::clone(&space);
        let log = fs.log().unwrap();
        log.attach(Arc::downgrade(&client));
        let clock = clock();
        let mut apply = Apply::begin(&fs, &space, None, &*clock, true)?;
        for record in records {
            records::replay(&mut apply, record)?;
        }
        recount::finish(&mut apply)?;
        drop(apply);
        log.commit_all()?;
        log.close()
    }

    fn files(&self) -> Files {
        let fs = self.open();
        let root = inode::read(&fs, InodeNr::ROOT).unwrap();
        let map = BlockMap::decode(&fs, &root).unwrap();
        let mut files = Files::new();
        let directory = Directory::open(&fs, &root, &map).unwrap();
        let read = directory.read(DirCursor::START, &mut |entry| {
            let name = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            if !matches!(&*name, "." | ".." | "lost+found") {
                let number = number(u32::try_from(entry.id.number).unwrap());
                let (links, content) = content_of(&fs, number);
                files.insert(name, (number.get(), links, content));
            }
            ControlFlow::Continue(())
        });
        read.unwrap();
        files
    }

    fn findings(&self) -> Vec<Finding> {
        let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&self.device);
        let options = MountOptions::default();
        let mounted = Ext4::mount(device, &options, budget(), clock()).unwrap();
        let mut findings = Findings(Vec::new());
        mounted.check(&mut findings);
        findings.0
    }

    #[track_caller]
    fn assert_clean(&self) {
        let findings = self.findings();
        assert!(findings.is_empty(), "{findings:?}");
    }

    /// Changes the slot of an inode, and leaves its checksum as it is.
    fn spoil(&self, inode: u32, change: impl FnOnce(&mut [u8])) {
        let fs = self.open();
        let slot = crate::groups::find_inode(&fs, number(inode))
            .unwrap()
            .unwrap();
        let at = (slot.block.0 << 10) + slot.offset as u64;
        let mut bytes = [0; 256];
        self.device.read_at(at, &mut bytes).unwrap();
        change(&mut bytes);
        self.device.write_at(at, &bytes).unwrap();
    }

    /// Makes a file without a name that maps its blocks without extents.
    fn make_unnamed(&self, inode: u32) {
        let fs = self.open().writable(Log::without_journal);
        let space = Arc::new(Allocator::open_for_replay(&fs, Vec::new()).unwrap());
        let client: Arc<dyn CommitClient> = Arc::<Allocator>::clone(&space);
        let log = fs.log().unwrap();
        log.attach(Arc::downgrade(&client));
        let mut handle = fs.begin(STORE_CREDITS + ORPHAN_CREDITS + 4).unwrap();
        space.mark_inode(&fs, &mut handle, number(inode)).unwrap();
        let unnamed = Inode::new(number(inode), FileKind::Regular, 1, 32, &fs.geometry);
        inode::initialize(&fs, &mut handle, &unnamed).unwrap();
        let register = OrphanRegister::open(&fs).unwrap();
        register.add(&fs, &mut handle, number(inode)).unwrap();
        drop(handle);
        log.commit_all().unwrap();
        log.close().unwrap();
    }
}

fn content_of(fs: &FsContext, number: InodeNr) -> (u32, u8) {
    let inode = inode::read(fs, number).unwrap();
    let mut content = vec![0; BLOCK];
    if inode.kind != FileKind::Regular {
        return (inode.links, 0);
    }
    let map = BlockMap::decode(fs, &inode).unwrap();
    if let Some(block) = map.block(fs, FileBlock(0)).unwrap() {
        fs.device().read_at(block.0 << 10, &mut content).unwrap();
    }
    assert!(content.iter().all(|&byte| byte == content[0]));
    (inode.links, content[0])
}

/// Replays records over `before`, again over what they made, and over that with any one block as it was
/// before, or with only that one: the files are the same. Returns them.
fn replayed_over(before: &Bench, records: &[Record<'_>]) -> Files {
    let old = before.device.snapshot();
    let bench = Bench::on(old.clone());
    bench.replay(records).unwrap();
    let (new, files) = (bench.device.snapshot(), bench.files());
    bench.assert_clean();
    bench.replay(records).unwrap();
    assert_eq!(bench.files(), files, "after a second replay");
    bench.assert_clean();
    let blocks = old.chunks(BLOCK).zip(new.chunks(BLOCK)).enumerate();
    let changed: Vec<usize> = blocks
        .filter(|(_, (old, new))| old != new)
        .map(|(block, _)| block * BLOCK)
        .collect();
    assert!(changed.len() > 1, "too few blocks to tear");
    for &at in &changed {
        for (most, one) in [(&new, &old), (&old, &new)] {
            let mut bytes = most.clone();
            bytes[at..at + BLOCK].copy_from_slice(&one[at..at + BLOCK]);
            let torn = Bench::on(bytes);
            torn.replay(records).unwrap();
            assert_eq!(torn.files(), files, "torn at {at}");
        }
    }
    files
}

/// What fills a block that records map.
fn content(block: u64) -> u8 {
    u8::try_from(block % 256).unwrap()
}

#[test]
fn renamed_file_survives_a_second_replay() {
    let (old, new) = (file(1, 1), file(1, 2));
    let before = Bench::with(&[inode(12, &old), range(12, 3000), create(12, "a")]);
    let records = [
        unlink(12, "a"),
        inode(13, &new),
        range(13, 3001),
        create(13, "new"),
        link(13, "a"),
        unlink(13, "new"),
        range(13, 3001),
        inode(13, &new),
    ];
    let files = replayed_over(&before, &records);
    assert_eq!(files, Files::from([("a".into(), (13, 1, content(3001)))]));
}

#[test]
fn file_whose_name_was_reused_keeps_its_other_name() {
    let (old, left, new) = (file(2, 1), file(1, 1), file(1, 2));
    let before = Bench::with(&[
        inode(12, &old),
        range(12, 3000),
        create(12, "a"),
        link(12, "b"),
        inode(12, &old),
        inode(13, &new),
        range(13, 3001),
        create(13, "new"),
    ]);
    let records = [
        unlink(12, "a"),
        link(13, "a"),
        unlink(13, "new"),
        inode(13, &new),
        inode(12, &left),
    ];
    let expected = [
        ("a".into(), (13, 1, content(3001))),
        ("b".into(), (12, 1, content(3000))),
    ];
    assert_eq!(replayed_over(&before, &records), Files::from(expected));
}

#[test]
fn removed_file_and_directory_stay_removed() {
    let (old, directory) = (file(1, 1), directory(2));
    let before = Bench::with(&[
        inode(12, &old),
        range(12, 3000),
        create(12, "a"),
        inode(13, &directory),
        create(13, "dir"),
    ]);
    let removed = [unlink(12, "a"), unlink(13, "dir")];
    assert_eq!(replayed_over(&before, &removed), Files::new());
    // Made and removed by the same fast commits, and the name is another file's at last.
    let new = file(1, 3);
    let records = [
        inode(14, &new),
        range(14, 3002),
        create(14, "b"),
        unlink(14, "b"),
        inode(15, &new),
        range(15, 3003),
        create(15, "b"),
    ];
    let files = replayed_over(&Bench::new(), &records);
    assert_eq!(files, Files::from([("b".into(), (15, 1, content(3003)))]));
}

#[test]
fn renamed_file_gets_the_name_that_is_missing() {
    let old = file(1, 1);
    let made = [inode(12, &old), range(12, 3000), create(12, "a")];
    // As an interrupted replay leaves it, in which the last name seemed to be gone.
    let before = Bench::with(&made);
    before.spoil(12, |slot| slot[0x1a] = 0);
    let records = [link(12, "b"), unlink(12, "a"), inode(12, &old)];
    before.replay(&records).unwrap();
    let expected = Files::from([("b".into(), (12, 1, content(3000)))]);
    assert_eq!(before.files(), expected);
    before.assert_clean();
}

#[test]
fn inode_without_its_checksum_keeps_its_blocks() {
    let old = file(1, 1);
    let bench = Bench::with(&[inode(12, &old), range(12, 3000), create(12, "a")]);
    bench.spoil(12, |slot| slot[0x10] ^= 1);
    let new = file(2, 1);
    let records = [link(12, "b"), inode(12, &new)];
    bench.replay(&records[..1]).unwrap();
    let files = bench.files();
    let expected = (12, 2, content(3000));
    assert_eq!(files["a"], expected);
    bench.assert_clean();
    bench.spoil(12, |slot| slot[0x10] ^= 1);
    bench.replay(&records).unwrap();
    assert_eq!(bench.files()["b"], expected);
    bench.assert_clean();
}

#[test]
fn corrupt_inode_in_use_is_refused() {
    let old = file(1, 1);
    let bench = Bench::with(&[inode(12, &old), range(12, 3000), create(12, "a")]);
    bench.spoil(12, |slot| slot[1] |= 0xf0);
    for record in [inode(12, &old), unlink(12, "a")] {
        let rule = rule_of(bench.replay(&[record]));
        assert_eq!(rule, InodeRule::Mode.text());
    }
}

#[test]
fn unnamed_file_without_extents_gets_no_name() {
    let bench = Bench::new();
    bench.make_unnamed(12);
    bench.replay(&[range(12, 3000)]).unwrap();
    assert_eq!(bench.files(), Files::new());
    let linked = [range(12, 3000), link(12, "a")];
    let rule = rule_of(bench.replay(&linked));
    assert_eq!(rule, FastCommitRule::NoExtents.text());
    // The number is another file's by then.
    let new = file(2, 7);
    let reused = [
        range(12, 3000),
        inode(12, &new),
        range(12, 3001),
        create(12, "a"),
        link(12, "b"),
        inode(12, &new),
    ];
    bench.replay(&reused).unwrap();
    assert_eq!(bench.files()["b"], (12, 2, content(3001)));
    bench.assert_clean();
}

/// Where the target of a fast symbolic link is in its inode.
const TARGET_OFFSET: usize = std::mem::offset_of!(DiskInode, block);

#[test]
fn number_of_a_removed_inode_without_extents_is_used_again() {
    let mut symlink = file(1, 1);
    (symlink.mode, symlink.flags) = (0o12_0777.into(), 0.into());
    symlink.size_lo = 1.into();
    symlink.as_mut_bytes()[TARGET_OFFSET] = b't';
    let mut fifo = file(1, 1);
    (fifo.mode, fifo.flags, fifo.size_lo) = (0o01_0644.into(), 0.into(), 0.into());
    let new = file(1, 7);
    for old in [symlink, fifo] {
        let bench = Bench::with(&[inode(12, &old), create(12, "s")]);
        bench
            .replay(&[
                unlink(12, "s"),
                link(12, "a"),
                range(12, 3001),
                inode(12, &new),
            ])
            .unwrap();
        assert_eq!(bench.files()["a"], (12, 1, content(3001)));
        assert!(!bench.files().contains_key("s"));
        bench.assert_clean();
    }
}

#[test]
fn corrupt_inode_that_no_record_names_does_not_matter() {
    let bench = Bench::with(&[inode(12, &file(1, 1)), create(12, "a")]);
    bench.spoil(12, |slot| slot[1] |= 0xf0);
    let made = directory(3);
    let records = [inode(13, &made), create(13, "d"), inode(13, &made)];
    bench.replay(&records).unwrap();
    let found = inode::read(&bench.open(), number(13)).unwrap();
    assert_eq!((found.kind, found.links), (FileKind::Directory, 2));
}

/// The bytes of a record: tag, length and value.
fn encoded(tag: u16, value: &[&[u8]]) -> Vec<u8> {
    let value = value.concat();
    let len = u16::try_from(value.len()).unwrap();
    [&tag.to_le_bytes()[..], &len.to_le_bytes(), &value].concat()
}

/// A journal whose fast commit area begins with these bytes.
fn journal_with(records: &[u8]) -> Journal {
    let device = Arc::new(MemoryDevice::new("journal", vec![0; 1024 * BLOCK]));
    let mut superblock = DiskJournalSuperblock::new(1024, 1024, &Uuid::default());
    superblock.feature_incompat = JournalIncompat::FAST_COMMIT.bits().into();
    superblock.fast_commit_blocks = 16.into();
    device.write_at(0, superblock.as_bytes()).unwrap();
    let below: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let mut map = JournalMapBuilder::new(below, 1024);
    map.push(LogBlock(0), BlockNr(0), 1024).unwrap();
    let journal = Journal::open(map.finish()).unwrap();
    let area = journal.superblock().fast_commit.start;
    device.write_at(u64::from(area) << 10, records).unwrap();
    journal
}

#[test]
fn refused_record_is_found_before_others_are_in_place() {
    let (bench, made) = (Bench::new(), file(1, 1));
    let (root, number) = (2u32.to_le_bytes(), 12u32.to_le_bytes());
    let records = [
        encoded(6, &[&number, made.as_bytes()]),
        encoded(3, &[&root, &number, b"a"]),
        encoded(4, &[&root, &number, b"b/c"]),
    ];
    let journal = journal_with(&records.concat());
    let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&bench.device);
    let primary = Primary {
        device: &device,
        offset: SUPERBLOCK,
        budget: &budget(),
    };
    let before = bench.device.snapshot();
    let valid = |records| Valid {
        report: FastCommitReport {
            fast_commits: 1,
            records,
        },
        regions: Vec::new(),
    };
    let rule = rule_of(rehearse(&journal, &valid(3), primary, &clock()));
    assert_eq!(rule, FastCommitRule::Name.text());
    rehearse(&journal, &valid(2), primary, &clock()).unwrap();
    assert!(bench.device.snapshot() == before);
    apply_in_place(&journal, &valid(2), primary, &clock()).unwrap();
    assert_eq!(bench.files()["a"], (12, 1, 0));
    assert!(!primary.set_errors(true).unwrap());
    assert!(bench.open().superblock.state.has_errors());
    assert!(primary.set_errors(false).unwrap());
    assert!(!bench.open().superblock.state.has_errors());
}

/// `O_TMPFILE`, `fsync`, `linkat` and `fsync`: there is no record that creates the file.
#[test]
fn file_made_without_a_name_has_its_first_one() {
    let (unnamed, named) = (file(0, 5), file(1, 5));
    let at_once = [link(12, "a"), range(12, 3000), inode(12, &named)];
    let synced_before = [
        range(12, 3000),
        inode(12, &unnamed),
        link(12, "a"),
        inode(12, &named),
    ];
    let renamed = [
        link(12, "b"),
        link(12, "a"),
        unlink(12, "b"),
        range(12, 3000),
        inode(12, &named),
    ];
    let expected = Files::from([("a".into(), (12, 1, content(3000)))]);
    for records in [&at_once[..], &synced_before, &renamed] {
        assert_eq!(replayed_over(&Bench::new(), records), expected);
    }
}

/// The number is that of a file that was removed before.
#[test]
fn file_made_without_a_name_is_no_earlier_one() {
    let (old, named) = (file(1, 1), file(1, 5));
    let before = Bench::with(&[inode(12, &old), range(12, 3001), create(12, "old")]);
    let records = [
        unlink(12, "old"),
        link(12, "a"),
        range(12, 3000),
        inode(12, &named),
    ];
    let expected = Files::from([("a".into(), (12, 1, content(3000)))]);
    assert_eq!(replayed_over(&before, &records), expected);
    // Neither are its blocks those of one that was never named.
    let unnamed = file(0, 4);
    let records = [
        range(12, 3001),
        inode(12, &unnamed),
        link(12, "a"),
        inode(12, &named),
    ];
    let expected = Files::from([("a".into(), (12, 1, 0))]);
    assert_eq!(replayed_over(&Bench::new(), &records), expected);
}

#[test]
fn root_directory_stays_what_it_is() {
    let bench = Bench::new();
    let root = inode::read(&bench.open(), InodeNr::ROOT).unwrap();
    let mut other = directory(root.generation + 1);
    for record in [
        create(2, "a"),
        link(2, "a"),
        unlink(2, "a"),
        inode(2, &other),
    ] {
        let rule = rule_of(bench.replay(&[record]));
        assert_eq!(rule, FastCommitRule::Root.text());
    }
    other = file(1, root.generation);
    let rule = rule_of(bench.replay(&[inode(2, &other)]));
    assert_eq!(rule, FastCommitRule::Root.text());
    bench.assert_clean();
}

#[test]
fn directory_has_one_name() {
    let (one, two) = (directory(1), directory(2));
    let made = [
        inode(12, &one),
        create(12, "one"),
        inode(13, &two),
        create(13, "two"),
    ];
    let bench = Bench::with(&made);
    bench.replay(&[link(12, "again")]).unwrap();
    assert!(!bench.files().contains_key("again"));
    bench.assert_clean();
    let inside = Record::Create(Entry {
        parent: number(13),
        inode: number(12),
        name: b"one",
    });
    let rule = rule_of(bench.replay(&[inside]));
    assert_eq!(rule, FastCommitRule::Parent.text());
    bench.assert_clean();
}

#[test]
fn blocks_of_an_inode_that_changes_its_form_are_freed() {
    let old = file(1, 1);
    let mut fifo = file(1, 1);
    (fifo.mode, fifo.flags, fifo.size_lo) = (0o01_0644.into(), 0.into(), 0.into());
    let bench = Bench::with(&[inode(12, &old), range(12, 3000), create(12, "a")]);
    bench.replay(&[inode(12, &fifo)]).unwrap();
    assert_eq!(bench.files()["a"], (12, 1, 0));
    let findings = bench.findings();
    let leaked = findings
        .iter()
        .find(|finding| format!("{finding:?}").contains("bitmap"));
    assert!(leaked.is_none(), "{leaked:?}");
}
