//! Directories that grow and shrink, compared with an ordered map.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_vfs::DirCursor;

use super::*;
use crate::ondisk::InodeFlags;
use crate::ondisk::Superblock;
use crate::ondisk::features::{Compat, Incompat, RoCompat};
use crate::ondisk::geometry::tests::sample_geometry;
use crate::ondisk::htree::HtreeRoot;
use crate::ondisk::inode::tests::sample;
use crate::ondisk::superblock::tests::sample as sample_superblock;
use crate::txn::Log;

const NUMBER: u32 = 12;
/// The first block of the directory.
const DEVICE: u64 = 128;
const BLOCKS: u64 = 30_000;

/// A directory and its filesystem.
struct Bench {
    fs: FsContext,
    inode: Inode,
    map: BlockMap,
    /// Blocks that can still be allocated.
    space: TestAllocator,
    names: BTreeMap<Vec<u8>, u32>,
    random: u64,
}

/// Allocates clusters in ascending order, and counts those that are freed.
#[derive(Debug)]
struct TestAllocator {
    next: AtomicU64,
    spare: AtomicU64,
    ratio: u64,
}

impl BlockSource for TestAllocator {
    fn alloc(&self, _: &FsContext, _: &mut Handle<'_>, _: BlockNr) -> Result<BlockNr> {
        let spare = self.spare.load(Ordering::Relaxed);
        let left = spare.checked_sub(1).ok_or(Condition::NoSpace)?;
        self.spare.store(left, Ordering::Relaxed);
        Ok(BlockNr(self.next.fetch_add(self.ratio, Ordering::Relaxed)))
    }

    fn check_freeable(&self, _: &FsContext, _: &Range<BlockNr>) -> Result<()> {
        Ok(())
    }

    fn free(&self, _: &FsContext, _: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        assert_eq!(blocks.end.0 - blocks.start.0, self.ratio);
        self.spare.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[expect(clippy::struct_excessive_bools, reason = "features are on or off")]
#[derive(Debug, Clone, Copy)]
struct Kind {
    has_checksums: bool,
    has_index: bool,
    has_large: bool,
    has_inline: bool,
    hash_version: u8,
    cluster_blocks: u32,
    flags: InodeFlags,
}

const PLAIN: Kind = Kind {
    has_checksums: false,
    has_index: true,
    has_large: false,
    has_inline: false,
    hash_version: 1,
    cluster_blocks: 1,
    flags: InodeFlags::EXTENTS,
};

fn number(number: u32) -> InodeNr {
    InodeNr::new(number).unwrap()
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let mut geometry = sample_geometry();
        geometry.blocks_count = 1 << 15;
        geometry.cluster_blocks = kind.cluster_blocks;
        geometry.inodes_count = 1 << 20;
        let features = &mut geometry.features;
        features.compat.set(Compat::DIR_INDEX, kind.has_index);
        features.incompat.set(Incompat::LARGE_DIR, kind.has_large);
        features
            .incompat
            .set(Incompat::INLINE_DATA, kind.has_inline);
        let sealed = kind.has_checksums;
        features.ro_compat.set(RoCompat::METADATA_CSUM, sealed);
        let mut superblock = Superblock::decode(&sample_superblock()).unwrap();
        superblock.default_hash_version = kind.hash_version;
        superblock.hash_seed = [1, 2, 3, 4];
        let device = MemoryDevice::new("memory", vec![0; 32 << 20]);
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let bytes = sample(&geometry, number(NUMBER), |disk, _| {
            disk.mode.set(0o04_0755);
            disk.flags.set(kind.flags.bits());
        });
        let mut inode = Inode::decode(&bytes, number(NUMBER), &geometry).unwrap();
        let fs = FsContext::new(Arc::new(device), superblock, geometry, budget);
        let fs = fs.writable(Log::without_journal);
        (inode.size_bytes, inode.sectors) = (0, 0);
        let map = BlockMap::begin(&fs, &mut inode);
        let ratio = u64::from(kind.cluster_blocks);
        let mut bench = Self {
            fs,
            inode,
            map,
            space: TestAllocator {
                next: AtomicU64::new(DEVICE),
                spare: AtomicU64::new(BLOCKS / ratio),
                ratio,
            },
            names: BTreeMap::new(),
            random: 88_172_645_463_325_252,
        };
        bench.change(|dir| dir.begin(InodeNr::ROOT)).unwrap();
        bench
    }

    fn change<R>(
        &mut self,
        change: impl FnOnce(&mut DirectoryMut<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let mut handle = self.fs.begin(insert_credits(&self.map))?;
        let (inode, map) = (&mut self.inode, &mut self.map);
        let dir = DirectoryMut::open(&self.fs, &self.space, &mut handle, inode, map);
        change(&mut dir?)
    }

    fn set_parent(&mut self, parent: InodeNr) {
        let slot = self.directory().locate_parent().unwrap();
        self.change(|dir| dir.set_parent(&slot, parent)).unwrap();
    }

    fn directory(&self) -> Directory<'_> {
        Directory::open(&self.fs, &self.inode, &self.map).unwrap()
    }

    fn insert(&mut self, name: &[u8], inode: u32) -> Result<()> {
        let key = Name::new(name).unwrap();
        self.change(|dir| dir.insert(key, number(inode), FileKind::Regular))?;
        self.names.insert(name.to_vec(), inode);
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) {
        let key = Name::new(name).unwrap();
        let found = self.change(|dir| dir.remove(key)).unwrap();
        assert_eq!(Some(found.inode.get()), self.names.remove(name));
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn random_name(&mut self, len_max: u64) -> Vec<u8> {
        let number = self.next();
        let mut name = format!("{number:016x}").into_bytes();
        let len = 1 + self.next() % len_max;
        name.resize(usize::try_from(len).unwrap(), b'n');
        name
    }

    fn levels(&self) -> u8 {
        let root = self.fs.read_block(
            BlockNr(DEVICE),
            &verifier(&self.fs, &self.inode, FileBlock(0)),
        );
        let root = root.unwrap();
        HtreeRoot::decode(&root, &self.fs.geometry).unwrap().levels
    }

    /// Checks that every name is listed once and found, and that an index is valid.
    fn assert_valid(&self) {
        let directory = self.directory();
        let mut listed = BTreeMap::new();
        directory
            .read(DirCursor::START, &mut |entry| {
                let name = entry.name.as_bytes().to_vec();
                let inode = u32::try_from(entry.id.number).unwrap();
                assert_eq!(listed.insert(name, inode), None, "a name is listed twice");
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(listed.remove(&b"."[..]), Some(NUMBER));
        assert_eq!(listed.remove(&b".."[..]), Some(2));
        assert!(
            listed == self.names,
            "{} of {}",
            listed.len(),
            self.names.len()
        );
        for (name, &inode) in &self.names {
            let found = directory.lookup(Name::new(name).unwrap()).unwrap();
            assert_eq!(found.inode.get(), inode);
        }
        assert_eq!(directory.is_empty().unwrap(), self.names.is_empty());
    }

    /// Performs `steps` changes, after which the directory has about `count` names.
    fn churn(&mut self, steps: u32, count: usize, len_max: u64) {
        for step in 0..steps {
            let pick = self.next();
            let is_full = self.names.len() >= count;
            if is_full || pick.is_multiple_of(8) && !self.names.is_empty() {
                let start = self.random_name(16);
                let after = self.names.range(start..).next();
                let name = after.or(self.names.first_key_value()).unwrap().0.clone();
                if pick.is_multiple_of(16) {
                    let key = Name::new(&name).unwrap();
                    let inode = 1 + step;
                    self.change(|dir| dir.replace(key, number(inode), FileKind::Fifo))
                        .unwrap();
                    self.names.insert(name.clone(), inode);
                    let again = self.insert(&name, 1).unwrap_err();
                    assert!(matches!(again, Error::Condition(Condition::Exists)));
                } else {
                    self.remove(&name);
                }
                continue;
            }
            let name = self.random_name(len_max);
            let is_new = !self.names.contains_key(&name);
            assert_eq!(self.insert(&name, 1 + step).is_ok(), is_new);
        }
    }
}

#[test]
fn every_kind_of_directory_behaves_like_a_map() {
    for has_checksums in [false, true] {
        for hash_version in 0..6 {
            let mut bench = Bench::new(Kind {
                has_checksums,
                hash_version,
                ..PLAIN
            });
            bench.churn(3000, 1500, 60);
            assert!(bench.inode.flags.contains(InodeFlags::INDEX));
            bench.assert_valid();
        }
        let mut bench = Bench::new(Kind {
            has_checksums,
            has_index: false,
            ..PLAIN
        });
        bench.churn(1500, 400, 255);
        assert!(!bench.inode.flags.contains(InodeFlags::INDEX));
        bench.assert_valid();
    }
}

#[test]
fn emptied_directory_is_empty_and_reused() {
    for has_checksums in [false, true] {
        let mut bench = Bench::new(Kind {
            has_checksums,
            ..PLAIN
        });
        bench.churn(400, 400, 100);
        for name in bench.names.keys().cloned().collect::<Vec<_>>() {
            bench.remove(&name);
        }
        bench.assert_valid();
        let size_bytes = bench.inode.size_bytes;
        bench.churn(100, 100, 20);
        bench.assert_valid();
        assert_eq!(bench.inode.size_bytes, size_bytes);
    }
}

#[test]
fn index_grows_by_levels_until_it_is_full() {
    let mut bench = Bench::new(Kind {
        has_checksums: true,
        ..PLAIN
    });
    let mut count = 0;
    let error = loop {
        let name = bench.random_name(1);
        let mut name = [&name[..], &count.to_string().into_bytes()].concat();
        name.resize(255, b'-');
        match bench.insert(&name, 13) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Condition(Condition::NoSpace)));
    assert_eq!(bench.levels(), 1);
    // A root of 123 interior nodes of 126 entries, each at least half full: two or three names of
    // 255 bytes fit a leaf.
    assert!(count > 123 * 63 * 2, "{count} names");
    bench.assert_valid();
    let size_bytes = bench.inode.size_bytes;
    bench.fs.geometry.features.incompat |= Incompat::LARGE_DIR;
    for number in 0..500 {
        let mut name = format!("more-{number}").into_bytes();
        name.resize(255, b'-');
        bench.insert(&name, 14).unwrap();
    }
    assert_eq!(bench.levels(), 2);
    assert!(bench.inode.size_bytes > size_bytes);
    bench.assert_valid();
}

#[test]
fn no_space_changes_nothing() {
    for kind in [
        PLAIN,
        Kind {
            has_index: false,
            ..PLAIN
        },
    ] {
        for spare in 0..3 {
            let mut bench = Bench::new(kind);
            bench.space.spare = spare.into();
            let error = loop {
                let name = bench.random_name(60);
                let inode = bench.inode.clone();
                let left = bench.space.spare.load(Ordering::Relaxed);
                if let Err(error) = bench.insert(&name, 13) {
                    assert_eq!(format!("{inode:?}"), format!("{:?}", bench.inode));
                    assert_eq!(bench.space.spare.load(Ordering::Relaxed), left);
                    break error;
                }
            };
            assert!(matches!(error, Error::Condition(Condition::NoSpace)));
            bench.assert_valid();
            assert!(bench.fs.log().unwrap().failure().is_none());
        }
    }
}

/// Returns names of 255 bytes with the same legacy hash, more than fit a leaf of 1 KiB.
fn colliding() -> Vec<Vec<u8>> {
    const TAIL: usize = 4;
    /// Number of leading zeros of the hash that the search accepts.
    const ZEROS: u32 = 12;
    let step = |(last, before): (u32, u32), byte: u8| {
        let byte = i32::from(byte.cast_signed()).cast_unsigned();
        let sum = before.wrapping_add(last ^ byte.wrapping_mul(0x006d_22f5));
        let sum = if sum >> 31 == 1 {
            sum.wrapping_sub(0x7fff_ffff)
        } else {
            sum
        };
        (sum, last)
    };
    let alphabet = || (b'0'..=b'z').filter(|&byte| byte != b'/');
    let prefix = vec![b'x'; 255 - TAIL];
    let start = prefix
        .iter()
        .fold((0x12a3_fe2d, 0x37ab_e8f9), |state, &byte| step(state, byte));
    let mut by_hash: BTreeMap<u32, Vec<[u8; TAIL]>> = BTreeMap::new();
    for salt in (1..=255u8).filter(|&byte| byte != b'/') {
        let salted = step(start, salt);
        for a in alphabet() {
            let state = step(salted, a);
            for b in alphabet() {
                let state = step(state, b);
                for c in alphabet() {
                    let hash = step(state, c).0;
                    if (hash << 1).leading_zeros() >= ZEROS {
                        by_hash.entry(hash).or_default().push([salt, a, b, c]);
                    }
                }
            }
        }
    }
    let most = by_hash.into_values().max_by_key(Vec::len).unwrap();
    most.iter()
        .map(|tail| [&prefix[..], tail].concat())
        .collect()
}

#[test]
fn names_of_one_hash_continue_in_the_next_leaf() {
    let names = colliding();
    assert!(names.len() > 3, "{} names of one hash", names.len());
    for has_checksums in [false, true] {
        let mut bench = Bench::new(Kind {
            has_checksums,
            hash_version: 0,
            ..PLAIN
        });
        bench.churn(300, 300, 255);
        for name in &names {
            bench.insert(name, 77).unwrap();
        }
        for name in &names {
            assert!(bench.insert(name, 78).is_err());
        }
        bench.assert_valid();
        bench.churn(300, 300, 255);
        for name in &names {
            bench.remove(name);
        }
        bench.assert_valid();
    }
}

#[test]
fn casefolded_directory_ignores_case() {
    let mut bench = Bench::new(Kind {
        has_checksums: true,
        flags: InodeFlags::EXTENTS.union(InodeFlags::CASEFOLD),
        ..PLAIN
    });
    for number in 0..400 {
        bench
            .insert(format!("Straße-{number}").as_bytes(), 13)
            .unwrap();
    }
    let other = Name::new("STRASSE-77".as_bytes()).unwrap();
    let error = bench.insert(other.as_bytes(), 14).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::Exists)));
    bench.assert_valid();
    bench
        .change(|dir| dir.replace(other, number(15), FileKind::Regular))
        .unwrap();
    bench.names.insert("Straße-77".into(), 15);
    bench.assert_valid();
    bench.change(|dir| dir.remove(other)).unwrap();
    bench.names.remove("Straße-77".as_bytes());
    bench.assert_valid();
}

#[test]
fn parent_is_changed_with_and_without_an_index() {
    for count in [3, 300] {
        let mut bench = Bench::new(Kind {
            has_checksums: true,
            ..PLAIN
        });
        bench.churn(count, 300, 30);
        bench.set_parent(number(99));
        let dotdot = Name::new(b"..").unwrap();
        assert_eq!(bench.directory().lookup(dotdot).unwrap().inode.get(), 99);
        bench.set_parent(InodeNr::ROOT);
        bench.assert_valid();
    }
}

#[test]
fn corrupt_index_is_refused_only_with_checksums() {
    let mut sealed = Bench::new(Kind {
        has_checksums: true,
        ..PLAIN
    });
    let mut plain = Bench::new(PLAIN);
    for bench in [&mut sealed, &mut plain] {
        bench.churn(300, 300, 30);
        assert!(bench.inode.flags.contains(InodeFlags::INDEX));
        bench
            .change(|dir| {
                dir.edit_block(FileBlock(0), |bytes| {
                    bytes[30] = 9;
                    Ok(())
                })
            })
            .unwrap();
    }
    let error = sealed.insert(b"new", 13).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)));
    for number in 0..300 {
        let name = format!("new-{number}").into_bytes();
        plain.insert(&name, 13).unwrap();
    }
    assert!(!plain.inode.flags.contains(InodeFlags::INDEX));
    plain.assert_valid();
    let known = sealed.names.keys().next().unwrap().clone();
    sealed.remove(&known);
    let key = Name::new(&known).unwrap();
    assert!(sealed.directory().lookup(key).is_err());
}

#[test]
fn listing_continues_while_names_change() {
    for has_index in [true, false] {
        let mut bench = Bench::new(Kind { has_index, ..PLAIN });
        for number in 0..20 {
            bench
                .insert(format!("stays-{number}").as_bytes(), 13)
                .unwrap();
        }
        let (mut cursor, mut seen) = (DirCursor::START, BTreeMap::new());
        for round in 0.. {
            let mut step = 0;
            let before = cursor;
            bench
                .directory()
                .read(cursor, &mut |entry| {
                    *seen.entry(entry.name.as_bytes().to_vec()).or_insert(0) += 1;
                    cursor = entry.next;
                    step += 1;
                    if step == 3 {
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
            if cursor == before {
                break;
            }
            if round < 200 {
                bench
                    .insert(format!("comes-{round}").as_bytes(), 13)
                    .unwrap();
            }
            if round % 2 == 1 && round < 200 {
                bench.remove(format!("comes-{}", round - 1).as_bytes());
            }
        }
        for number in 0..20 {
            assert_eq!(seen.get(format!("stays-{number}").as_bytes()), Some(&1));
        }
        assert!(seen.values().all(|&count| count == 1));
        bench.assert_valid();
    }
}

#[test]
fn hole_is_filled_when_all_blocks_are_full() {
    let mut bench = Bench::new(Kind {
        has_index: false,
        has_checksums: true,
        ..PLAIN
    });
    let name = |number: u32| {
        let mut name = format!("name-{number}").into_bytes();
        name.resize(255, b'-');
        name
    };
    for number in 0..6 {
        bench.insert(&name(number), 13).unwrap();
    }
    assert_eq!(bench.inode.size_bytes, 2048);
    bench.inode.size_bytes = 3072;
    bench.insert(&name(6), 13).unwrap();
    assert_eq!(bench.inode.size_bytes, 3072);
    bench.assert_valid();
    bench
        .change(|dir| grow::empty(dir, FileBlock(0)..FileBlock(1)))
        .unwrap();
    let key = name(7);
    let error = bench.insert(&key, 13).unwrap_err();
    assert!(
        matches!(error, Error::Corrupt(_)),
        "no block is known to begin with dots"
    );
}

#[test]
fn inline_directory_is_converted_to_a_block() {
    let flags = [InodeFlags::EXTENTS, InodeFlags::empty()];
    for (has_checksums, flags) in [(false, flags[0]), (true, flags[0]), (true, flags[1])] {
        let mut bench = Bench::new(Kind {
            has_inline: true,
            has_checksums,
            flags,
            ..PLAIN
        });
        assert!(bench.inode.flags.contains(InodeFlags::INLINE_DATA));
        assert_eq!(bench.inode.size_bytes, 60);
        bench.assert_valid();
        // 56 bytes hold three names of this length, and 68 after the inode four more.
        for number in 0..7 {
            assert_eq!(bench.inode.size_bytes, if number < 4 { 60 } else { 128 });
            bench
                .insert(format!("name-{number}").as_bytes(), 13)
                .unwrap();
            assert!(
                bench
                    .insert(format!("name-{number}").as_bytes(), 13)
                    .is_err()
            );
            bench.assert_valid();
        }
        bench.remove(b"name-2");
        bench.remove(b"name-5");
        bench.set_parent(number(99));
        let dotdot = Name::new(b"..").unwrap();
        assert_eq!(bench.directory().lookup(dotdot).unwrap().inode.get(), 99);
        bench.set_parent(InodeNr::ROOT);
        bench.insert(b"other-5", 14).unwrap();
        bench.insert(b"other-2", 14).unwrap();
        assert!(bench.inode.flags.contains(InodeFlags::INLINE_DATA));
        bench.assert_valid();
        bench.insert(b"more", 14).unwrap();
        assert!(!bench.inode.flags.contains(InodeFlags::INLINE_DATA));
        assert_eq!((bench.inode.size_bytes, bench.inode.sectors), (1024, 2));
        bench.assert_valid();
        bench.churn(500, 300, 40);
        bench.assert_valid();
    }
}

#[test]
fn inline_directory_stays_inline_on_enospc() {
    let mut bench = Bench::new(Kind {
        has_inline: true,
        ..PLAIN
    });
    bench.space.spare = 0.into();
    let mut count = 0;
    while bench.insert(format!("name-{count}").as_bytes(), 13).is_ok() {
        count += 1;
    }
    assert_eq!(count, 7);
    assert!(bench.inode.flags.contains(InodeFlags::INLINE_DATA));
    bench.assert_valid();
}

#[test]
fn directory_uses_a_whole_cluster_first() {
    for flags in [InodeFlags::EXTENTS, InodeFlags::empty()] {
        let mut bench = Bench::new(Kind {
            has_checksums: true,
            cluster_blocks: 16,
            flags,
            ..PLAIN
        });
        bench.churn(3000, 2500, 60);
        bench.assert_valid();
        let blocks = bench.inode.size_bytes / 1024;
        let nodes = u64::from(!flags.contains(InodeFlags::EXTENTS));
        assert_eq!(bench.inode.sectors, (blocks.div_ceil(16) + nodes) * 32);
    }
}
