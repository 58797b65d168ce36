//! Directories built in memory, mostly corrupt or large ones.

use std::ops::ControlFlow;

use platter_ondisk::Rule;
use zerocopy::IntoBytes;

use super::*;
use crate::fs_context::tests::sample_fs;
use crate::ondisk::dir_entry::{DirBlockVerifier, DiskDirEntry};
use crate::ondisk::extent::tests::leaf;
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::inode::tests::sample;

const BLOCK: usize = 1024;
/// The first block of a directory on the device.
const DEVICE: u32 = 100;
/// The inode number of the directory, and of its entries.
const NUMBER: u32 = 12;
const TARGET: u32 = 13;
/// The legacy hash, which needs no seed.
const LEGACY: u8 = 0;
/// No rule is broken.
const NONE: &str = "";

struct Sample {
    fs: FsContext,
    inode: Inode,
    map: BlockMap,
}

impl Sample {
    /// Builds a directory of these blocks, without checksums.
    fn new(flags: InodeFlags, blocks: &[Vec<u8>]) -> Self {
        let number = InodeNr::new(NUMBER).unwrap();
        let on_device: Vec<_> = (u64::from(DEVICE)..)
            .zip(blocks.iter().map(Vec::as_slice))
            .collect();
        let mut fs = sample_fs(&on_device);
        fs.geometry.features.compat |= Compat::DIR_INDEX;
        fs.geometry.features.incompat |= Incompat::INLINE_DATA | Incompat::LARGE_DIR;
        fs.geometry.features.ro_compat -= RoCompat::METADATA_CSUM;
        fs.superblock.default_hash_version = LEGACY;
        let count = u16::try_from(blocks.len()).unwrap();
        let bytes = sample(&fs.geometry, number, |disk, _| {
            disk.mode.set(0o04_0755);
            disk.flags.set((InodeFlags::EXTENTS | flags).bits());
            disk.size_lo.set(u32::from(count) * 1024);
            disk.block.copy_from_slice(&leaf(60, &[(0, count, DEVICE)]));
        });
        let inode = Inode::decode(&bytes, number, &fs.geometry).unwrap();
        let map = BlockMap::decode(&fs, &inode).unwrap();
        Self { fs, inode, map }
    }

    fn directory(&self) -> Directory<'_> {
        Directory::open(&self.fs, &self.inode, &self.map).unwrap()
    }

    fn lookup(&self, name: &[u8]) -> Result<u32> {
        let found = self.directory().lookup(Name::new(name)?)?;
        Ok(found.inode.get())
    }

    /// Lists names from the start, resuming after every `step`, and returns the final result.
    fn list(&self, step: usize) -> (Vec<Vec<u8>>, Result<()>) {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut cursor = DirCursor::START;
        loop {
            let before = names.len();
            let result = self.directory().read(cursor, &mut |entry| {
                names.push(entry.name.as_bytes().to_vec());
                assert!(entry.next > cursor);
                cursor = entry.next;
                if names.len() - before == step {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            if names.len() - before < step {
                return (names, result);
            }
        }
    }

    /// Returns all names, checked to be independent of the step.
    fn names(&self) -> (Vec<Vec<u8>>, Result<()>) {
        let (names, result) = self.list(usize::MAX);
        for step in [1, 3, 50] {
            let (in_steps, ending) = self.list(step);
            assert_eq!(in_steps, names);
            assert_eq!(rule_of(ending), rule_of(result.clone()));
        }
        (names, result)
    }
}

/// Returns the text of the rule that an operation found broken.
fn rule_of<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => NONE.to_owned(),
        Err(Error::Corrupt(corruption)) => corruption.rule.into_owned(),
        Err(error) => error.to_string(),
    }
}

fn entry(inode: u32, name: &[u8], rec_len: usize) -> Vec<u8> {
    let head = DiskDirEntry {
        inode: inode.into(),
        rec_len: u16::try_from(rec_len).unwrap().into(),
        name_len: u8::try_from(name.len()).unwrap(),
        file_type: 1,
    };
    let mut bytes = [head.as_bytes(), name].concat();
    bytes.resize(rec_len, 0);
    bytes
}

/// Builds a block of these names, the last entry extending to the end.
fn block_of<N: AsRef<[u8]>>(names: &[N]) -> Vec<u8> {
    let mut block = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let name = name.as_ref();
        let inode = match name {
            b"." => NUMBER,
            b".." => 2,
            _ => TARGET,
        };
        let rec_len = if index + 1 == names.len() {
            BLOCK - block.len()
        } else {
            (8 + name.len()).next_multiple_of(4)
        };
        block.extend(entry(inode, name, rec_len));
    }
    if names.is_empty() {
        block.extend(entry(0, b"", BLOCK));
    }
    block
}

fn index_entries(block: &mut [u8], at: usize, entries: &[(u32, u32)]) {
    for (index, (hash, child)) in entries.iter().enumerate() {
        let to = &mut block[at + index * 8..][..8];
        to[..4].copy_from_slice(&hash.to_le_bytes());
        to[4..].copy_from_slice(&child.to_le_bytes());
    }
    let limit = u16::try_from((BLOCK - at) / 8).unwrap();
    let count = u16::try_from(entries.len()).unwrap();
    block[at..at + 2].copy_from_slice(&limit.to_le_bytes());
    block[at + 2..at + 4].copy_from_slice(&count.to_le_bytes());
}

/// Builds the root of an index with the legacy hash.
fn root(levels: u8, entries: &[(u32, u32)]) -> Vec<u8> {
    let mut block = [entry(NUMBER, b".", 12), entry(2, b"..", BLOCK - 12)].concat();
    block[28] = LEGACY;
    block[29] = 8;
    block[30] = levels;
    index_entries(&mut block, 32, entries);
    block
}

fn node(entries: &[(u32, u32)]) -> Vec<u8> {
    let mut block = block_of::<&[u8]>(&[]);
    index_entries(&mut block, 8, entries);
    block
}

fn major(name: &[u8]) -> u32 {
    let legacy = HashVersion::of_directory(LEGACY, false).unwrap();
    legacy.hash(hash::HashSeed::default(), name).major
}

fn numbered(count: usize) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = (0..count)
        .map(|n| format!("name-{n}").into_bytes())
        .collect();
    names.sort_by_key(|name| major(name));
    names
}

/// Builds an indexed directory of four leaves with ten names each, below two interior nodes.
fn indexed() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let names = numbered(40);
    let leaves: Vec<_> = names.chunks(10).collect();
    let least = |leaf: usize| major(&leaves[leaf][0]);
    let mut blocks = vec![
        root(1, &[(0, 1), (least(2), 2)]),
        node(&[(0, 3), (least(1), 4)]),
        node(&[(0, 5), (least(3), 6)]),
    ];
    blocks.extend(leaves.iter().map(|leaf| block_of(leaf)));
    (blocks, names)
}

fn with_dots(names: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let dots = [b".".to_vec(), b"..".to_vec()];
    dots.into_iter().chain(names.iter().cloned()).collect()
}

#[test]
fn valid_index_is_listed_and_searched() {
    let (blocks, names) = indexed();
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (found, result) = sample.names();
    assert_eq!(rule_of(result), NONE);
    assert_eq!(found, with_dots(&names));
    for name in &names {
        assert_eq!(sample.lookup(name).unwrap(), TARGET);
    }
    assert_eq!(sample.lookup(b"..").unwrap(), 2);
    assert!(matches!(
        sample.lookup(b"name-40"),
        Err(Error::Condition(Condition::NotFound))
    ));
}

/// Corrupts one block of the sample. All names except `lost` must be listed in order and found, and
/// the listing must end with `rule`.
fn assert_names_survive(
    corrupt: impl FnOnce(&mut Vec<Vec<u8>>, &[Vec<u8>]),
    lost: impl Fn(usize) -> bool,
    rule: &str,
) {
    let (mut blocks, names) = indexed();
    corrupt(&mut blocks, &names);
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (mut found, result) = sample.names();
    assert_eq!(rule_of(result), rule);
    let kept = (0..names.len()).filter(|&index| !lost(index));
    let mut expected = with_dots(&kept.map(|index| names[index].clone()).collect::<Vec<_>>());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for (index, name) in names.iter().enumerate() {
        assert_eq!(sample.lookup(name).is_ok(), !lost(index), "name {index}");
    }
}

#[test]
fn corrupt_index_hides_no_name() {
    let none = |_| false;
    assert_names_survive(|blocks, _| blocks[2][8] ^= 1, none, HtreeRule::Limit.text());
    assert_names_survive(
        |blocks, _| blocks[0][32] ^= 1,
        none,
        HtreeRule::Limit.text(),
    );
    assert_names_survive(
        |blocks, _| blocks[2][20..24].copy_from_slice(&99u32.to_le_bytes()),
        none,
        HtreeRule::Block.text(),
    );
    assert_names_survive(
        |blocks, _| blocks[1][16..20].copy_from_slice(&u32::MAX.to_le_bytes()),
        none,
        HtreeRule::Order.text(),
    );
}

#[test]
fn corrupt_entry_hides_only_the_rest_of_its_block() {
    let lost = |index| (10..20).contains(&index);
    let corrupt = |blocks: &mut Vec<Vec<u8>>, _: &[Vec<u8>]| blocks[4][4] = 9;
    assert_names_survive(corrupt, lost, DirEntryRule::LengthMin.text());
}

#[test]
fn name_in_the_wrong_block_is_reported() {
    let (mut blocks, _) = indexed();
    blocks.swap(3, 4);
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (found, result) = sample.names();
    assert_eq!(rule_of(result), HtreeRule::Placement.text());
    assert_eq!(found.len(), 42);
}

#[test]
fn unknown_hash_makes_a_directory_linear() {
    let (mut blocks, names) = indexed();
    blocks[0][28] = 6;
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (found, result) = sample.names();
    assert_eq!(rule_of(result), NONE);
    assert_eq!(found, with_dots(&names));
    assert_eq!(sample.lookup(&names[33]).unwrap(), TARGET);
}

#[test]
fn cyclic_index_terminates() {
    let (mut blocks, names) = indexed();
    // Both interior nodes have the first one as a child, which would be an endless descent.
    blocks[0][30] = 2;
    index_entries(&mut blocks[1], 8, &[(0, 1), (0, 1), (0, 1)]);
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (found, result) = sample.names();
    assert!(result.is_err());
    assert!(found.len() <= names.len() + 2);
}

#[test]
fn names_of_one_hash_are_listed_once_and_found() {
    // Equal names represent names of equal hashes, more than fit a block.
    let twins = vec![b"twin".to_vec(); 60];
    let hash = major(b"twin");
    let mut blocks = vec![root(
        0,
        &[
            (0, 1),
            (hash | 1, 2),
            (hash | 1, 3),
            (hash | 1, 4),
            (hash + 2, 5),
        ],
    )];
    blocks.extend((0..4).map(|_| block_of(&twins)));
    blocks.push(block_of::<&[u8]>(&[]));
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (found, result) = sample.names();
    assert_eq!(rule_of(result), NONE);
    assert_eq!(found.len(), 2 + 4 * 60);

    let (one, other) = colliding();
    let hash = major(&one);
    let blocks = [
        root(0, &[(0, 1), (hash | 1, 2)]),
        block_of(&[&one]),
        block_of(&[&other]),
    ];
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    assert_eq!(sample.lookup(&one).unwrap(), TARGET);
    assert_eq!(sample.lookup(&other).unwrap(), TARGET);
    assert_eq!(sample.names().0.len(), 4);
}

/// Returns two names with the same major hash.
fn colliding() -> (Vec<u8>, Vec<u8>) {
    let mut seen = std::collections::HashMap::new();
    for number in 0..1_000_000 {
        let name = format!("{number:x}").into_bytes();
        if let Some(other) = seen.insert(major(&name), name.clone()) {
            return (other, name);
        }
    }
    panic!("a million names without a collision");
}

#[test]
fn too_many_names_of_one_hash_are_reported() {
    let twins = vec![b"twin".to_vec(); 60];
    let hash = major(b"twin");
    let leaves: Vec<_> = (1..=20).map(|leaf| (hash | 1, leaf)).collect();
    let mut entries = vec![(0, 1)];
    entries.extend(&leaves[1..]);
    let mut blocks = vec![root(0, &entries)];
    blocks.extend((0..20).map(|_| block_of(&twins)));
    let sample = Sample::new(InodeFlags::INDEX, &blocks);
    let (found, result) = sample.list(usize::MAX);
    assert_eq!(rule_of(result), HtreeRule::Collisions.text());
    assert_eq!(found.len(), 2 + Position::ORDINALS);
    let (in_steps, _) = sample.list(7);
    assert_eq!(in_steps, found);
}

#[test]
fn linear_listing_continues_after_corruption() {
    let dots = [&b"."[..], b"..", b"first"];
    let mut blocks = vec![
        block_of(&dots),
        block_of(&[&b"second"[..], b"lost"]),
        block_of(&[&b"bad/name"[..], b"third"]),
    ];
    blocks[1][16 + 4] = 3;
    let sample = Sample::new(InodeFlags::empty(), &blocks);
    let (found, result) = sample.names();
    assert_eq!(rule_of(result), DirEntryRule::LengthAlign.text());
    assert_eq!(found, [&b"."[..], b"..", b"first", b"second", b"third"]);
    assert_eq!(sample.lookup(b"third").unwrap(), TARGET);
    let lost = sample.lookup(b"lost");
    assert_eq!(rule_of(lost), DirEntryRule::LengthAlign.text());
    blocks[1] = block_of::<&[u8]>(&[]);
    let sample = Sample::new(InodeFlags::empty(), &blocks);
    assert_eq!(rule_of(sample.names().1), DirEntryRule::NameBytes.text());
}

#[test]
fn only_small_linear_directories_are_listed_by_hash() {
    let names = numbered(20);
    let mut shuffled = with_dots(&names);
    shuffled[2..].reverse();
    let sample = Sample::new(InodeFlags::empty(), &[block_of(&shuffled)]);
    let (found, _) = sample.names();
    assert!(found.is_sorted_by_key(|name| major(name)));
    assert_eq!(found.len(), 22);
    let blocks = [block_of(&shuffled), block_of(&[b"more"])];
    let (found, _) = Sample::new(InodeFlags::empty(), &blocks).names();
    assert_eq!(found[..22], shuffled);
}

#[test]
fn directory_without_dots_or_too_big_is_corrupt() {
    let sample = Sample::new(InodeFlags::empty(), &[block_of(&[b"a"])]);
    assert_eq!(rule_of(sample.lookup(b"..")), DirEntryRule::Dots.text());
    assert_eq!(sample.lookup(b"a").unwrap(), TARGET);
    let mut sample = sample;
    sample.inode.size_bytes = 8193 << 10;
    let opened = Directory::open(&sample.fs, &sample.inode, &sample.map);
    assert_eq!(rule_of(opened), DirectoryRule::Size.text());
    sample.inode.kind = FileKind::Regular;
    assert!(Directory::open(&sample.fs, &sample.inode, &sample.map).is_err());
}

#[test]
fn inline_directory_without_a_parent_is_corrupt() {
    let mut sample = Sample::new(InodeFlags::empty(), &[vec![0; BLOCK]]);
    sample.inode.flags = InodeFlags::INLINE_DATA;
    // An attribute space with an empty `system.data`.
    let mut tail = 0xea02_0000u32.to_le_bytes().to_vec();
    tail.extend([4, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    tail.extend(b"data\0\0\0\0");
    sample.inode.tail = tail.into();
    sample.inode.block = [0; 60];
    let opened = Directory::open(&sample.fs, &sample.inode, &sample.map);
    assert_eq!(rule_of(opened), DirectoryRule::InlineParent.text());
    sample.inode.block[..4].copy_from_slice(&7u32.to_le_bytes());
    sample.inode.block[4..].copy_from_slice(&entry(TARGET, b"name", 56));
    let (found, result) = sample.names();
    assert_eq!(rule_of(result), NONE);
    assert_eq!(found.len(), 3);
    assert_eq!(sample.lookup(b"..").unwrap(), 7);
    assert_eq!(sample.lookup(b"name").unwrap(), TARGET);
}

#[test]
fn holes_are_skipped() {
    let mut sample = Sample::new(
        InodeFlags::empty(),
        &[block_of(&[&b"."[..], b".."]), block_of(&[b"a"])],
    );
    sample.inode.size_bytes += 5 * 1024;
    assert_eq!(rule_of(sample.names().1), NONE);
    assert_eq!(sample.lookup(b"a").unwrap(), TARGET);
}

#[test]
fn checksums_are_verified_by_every_reader() {
    let (blocks, names) = indexed();
    let mut sample = Sample::new(InodeFlags::INDEX, &blocks);
    sample.fs.geometry.features.ro_compat |= RoCompat::METADATA_CSUM;
    assert!(sample.lookup(&names[0]).is_err());
    let (found, result) = sample.names();
    assert!(found.is_empty() && result.is_err());
    let verifier = DirBlockVerifier {
        inode: sample.inode.number,
        checksum_seed: Some(1),
        is_indexed: true,
        is_first: true,
    };
    let verdict = platter_ondisk::Verify::verify(&verifier, 1, &blocks[0]);
    assert_eq!(verdict.unwrap_err().rule, HtreeRule::Limit.text());
}

#[test]
fn mutated_directories_never_panic_or_loop() {
    let mut state = 7u64;
    let mut random = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    };
    let (sound, names) = indexed();
    for round in 0..1500 {
        let mut blocks = sound.clone();
        for _ in 0..=random(6) {
            let block = random(blocks.len());
            // Entry headers and index entries are mutated most.
            let at = if random(2) == 0 {
                random(48)
            } else {
                random(BLOCK)
            };
            blocks[block][at] = u8::try_from(random(256)).unwrap();
        }
        let flags = match round % 3 {
            0 => InodeFlags::empty(),
            _ => InodeFlags::INDEX,
        };
        let sample = Sample::new(flags, &blocks);
        let (found, _) = sample.list(usize::MAX);
        let (in_steps, _) = sample.list(5);
        assert_eq!(in_steps.len(), found.len(), "round {round}");
        let _ = sample.lookup(&names[round % names.len()]);
    }
}
