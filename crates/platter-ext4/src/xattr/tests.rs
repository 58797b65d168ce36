//! Attributes built in memory: EA inodes, corruption, and mutations.

use platter_ondisk::Rule;
use platter_vfs::Error;
use zerocopy::IntoBytes;

use super::*;
use crate::fs_context::tests::sample_fs;
use crate::ondisk::extent::tests::leaf;
use crate::ondisk::features::RoCompat;
use crate::ondisk::inode::DiskInode;
use crate::ondisk::inode::tests::sample;
use crate::ondisk::xattr::{DiskXattrEntry, DiskXattrHeader, XATTR_MAGIC, value_hash};
use crate::ondisk::{InodeFlags, InodeNr};

/// The inode with attributes, and its EA inode.
const OWNER: u32 = 12;
const EA_INODE: u32 = 13;
/// Physical blocks: group descriptors, inode table, attributes and value.
const DESCRIPTORS: u64 = 2;
const INODE_TABLE: u32 = 10;
const XATTR_BLOCK: u32 = 700;
const VALUE_BLOCK: u32 = 701;
const VALUE: &[u8] = b"a value of some length";

struct Sample {
    fs: FsContext,
    owner: Inode,
}

fn number(number: u32) -> InodeNr {
    InodeNr::new(number).unwrap()
}

fn entry(name: &[u8], inode: u32, size: usize, offset: u16, hash: u32) -> Vec<u8> {
    let disk = DiskXattrEntry {
        name_len: u8::try_from(name.len()).unwrap(),
        name_index: 1,
        value_offset: offset.into(),
        value_inode: inode.into(),
        value_size: u32::try_from(size).unwrap().into(),
        hash: hash.into(),
    };
    let mut bytes = [disk.as_bytes(), name].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn block_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let header = DiskXattrHeader {
        magic: XATTR_MAGIC.into(),
        references: 1.into(),
        blocks: 1.into(),
        hash: 0.into(),
        checksum: 0.into(),
        reserved: [0.into(); 3],
    };
    let mut block = [header.as_bytes(), &entries.concat()].concat();
    block.resize(1024, 0);
    block
}

fn hash_of(name: &[u8], words: &[u32]) -> u32 {
    let hash = name
        .iter()
        .fold(0u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte));
    words
        .iter()
        .fold(hash, |hash, word| hash.rotate_left(16) ^ word)
}

impl Sample {
    /// Builds an inode with this in-inode space and this attribute block; and the EA inode with
    /// [`VALUE`], modified by `change`.
    fn new(tail: &[u8], block: &[u8], change: impl FnOnce(&mut DiskInode)) -> Self {
        let mut descriptors = vec![0; 1024];
        for (at, to) in [(0, 3), (4, 4), (8, INODE_TABLE)] {
            descriptors[at..at + 4].copy_from_slice(&to.to_le_bytes());
        }
        let mut geometry = crate::ondisk::geometry::tests::sample_geometry();
        geometry.features.ro_compat -= RoCompat::METADATA_CSUM;
        geometry.features.incompat |= Incompat::EA_INODE;
        let hash = value_hash(geometry.checksum_seed, VALUE);
        let ea_inode = sample(&geometry, number(EA_INODE), |disk, _| {
            let flags = InodeFlags::EXTENTS | InodeFlags::EA_INODE;
            disk.flags.set(flags.bits());
            disk.size_lo.set(u32::try_from(VALUE.len()).unwrap());
            disk.accessed.set(hash);
            disk.generation.set(0);
            disk.block
                .copy_from_slice(&leaf(60, &[(0, 1, VALUE_BLOCK)]));
            change(disk);
        });
        let mut owner = sample(&geometry, number(OWNER), |disk, _| {
            disk.xattr_block_lo.set(XATTR_BLOCK);
        });
        let tail_at = owner.len() - tail.len();
        owner[tail_at..].copy_from_slice(tail);
        let mut table = vec![0; 3 * 1024];
        for (inode, bytes) in [(OWNER, &owner), (EA_INODE, &ea_inode)] {
            let at = (inode as usize - 1) * 256 - 2 * 1024;
            table[at..at + 256].copy_from_slice(bytes);
        }
        let mut fs = sample_fs(&[
            (DESCRIPTORS, &descriptors),
            (u64::from(INODE_TABLE) + 2, &table[..1024]),
            (u64::from(INODE_TABLE) + 3, &table[1024..2048]),
            (u64::from(XATTR_BLOCK), block),
            (u64::from(VALUE_BLOCK), VALUE),
        ]);
        fs.geometry = geometry;
        let owner = crate::inode::read(&fs, number(OWNER)).unwrap();
        Self { fs, owner }
    }

    /// Builds an inode with one attribute, whose value is in the EA inode.
    fn holding(change: impl FnOnce(&mut DiskInode)) -> Self {
        let geometry = crate::ondisk::geometry::tests::sample_geometry();
        let hash = hash_of(b"large", &[value_hash(geometry.checksum_seed, VALUE)]);
        let block = block_of(&[entry(b"large", EA_INODE, VALUE.len(), 0, hash)]);
        Self::new(&[], &block, change)
    }

    fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        get(&self.fs, &self.owner, name)
    }
}

/// Returns the text of the rule that an operation found broken.
fn rule_of<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(Error::Corrupt(corruption)) => corruption.rule.into_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn ea_inode_is_validated() {
    let rule = |change: fn(&mut DiskInode)| rule_of(Sample::holding(change).get(b"user.large"));
    assert_eq!(Sample::holding(|_| ()).get(b"user.large").unwrap(), VALUE);
    let unflagged = rule(|disk| disk.flags.set(InodeFlags::EXTENTS.bits()));
    assert_eq!(unflagged, EaInodeRule::Flag.text());
    let directory = rule(|disk| disk.mode.set(0o04_0755));
    assert_eq!(directory, EaInodeRule::Flag.text());
    let nested = rule(|disk| disk.xattr_block_lo.set(XATTR_BLOCK));
    assert_eq!(nested, EaInodeRule::Attributes.text());
    let short = rule(|disk| disk.size_lo.set(3));
    assert_eq!(short, EaInodeRule::Size.text());
    let other = rule(|disk| disk.accessed.set(1));
    assert_eq!(other, EaInodeRule::Hash.text());
}

#[test]
fn lustre_ea_inode_is_validated_by_its_owner() {
    let lustre = |disk: &mut DiskInode| {
        disk.accessed.set(1);
        disk.modified.set(OWNER);
    };
    let mut sample = Sample::holding(lustre);
    sample.owner.generation = 0;
    assert_eq!(sample.get(b"user.large").unwrap(), VALUE);
    sample.owner.generation = 1;
    let rule = rule_of(sample.get(b"user.large"));
    assert_eq!(rule, EaInodeRule::Hash.text());
}

#[test]
fn inode_as_its_own_ea_inode_is_corrupt() {
    let block = block_of(&[entry(b"self", OWNER, 5, 0, 0)]);
    let sample = Sample::new(&[], &block, |_| ());
    let rule = rule_of(sample.get(b"user.self"));
    assert_eq!(rule, EaInodeRule::Owner.text());
}

#[test]
fn value_above_the_maximum_is_too_big() {
    let block = block_of(&[entry(b"huge", EA_INODE, 65_537, 0, 0)]);
    let sample = Sample::new(&[], &block, |disk| disk.size_lo.set(65_537));
    let error = sample.get(b"user.huge").unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::TooBig)));
    assert_eq!(list(&sample.fs, &sample.owner).unwrap(), [b"user.huge"]);
}

/// Builds an in-inode space: one attribute without a hash, and the given ones.
fn tail_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut tail = [&XATTR_MAGIC.to_le_bytes()[..], &entries.concat()].concat();
    tail.resize(96, 0);
    tail[92..].copy_from_slice(b"here");
    tail
}

#[test]
fn hash_is_optional_only_in_the_inode() {
    let tail = tail_of(&[entry(b"in", 0, 4, 88, 0)]);
    let mut block = block_of(&[entry(b"out", 0, 4, 1020, 0)]);
    block[1020..].copy_from_slice(b"here");
    let sample = Sample::new(&tail, &block, |_| ());
    assert_eq!(sample.get(b"user.in").unwrap(), b"here");
    assert_eq!(rule_of(sample.get(b"user.out")), XattrRule::Hash.text());
    let names = list(&sample.fs, &sample.owner).unwrap();
    assert_eq!(names, [&b"user.in"[..], b"user.out"]);
}

#[test]
fn corrupt_inode_space_does_not_hide_the_block() {
    let word = u32::from_le_bytes(*b"here");
    let mut block = block_of(&[entry(b"out", 0, 4, 1020, hash_of(b"out", &[word]))]);
    block[1020..].copy_from_slice(b"here");
    let tail = tail_of(&[entry(b"in", 0, 4, 90, 0)]);
    let sample = Sample::new(&tail, &block, |_| ());
    assert_eq!(sample.get(b"user.out").unwrap(), b"here");
    let rule = rule_of(sample.get(b"user.in"));
    assert_eq!(rule, XattrRule::ValuePlace.text());
    let rule = rule_of(list(&sample.fs, &sample.owner));
    assert_eq!(rule, XattrRule::ValuePlace.text());
}

#[test]
fn mutated_attributes_never_panic() {
    let mut state = 3u64;
    let mut random = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    };
    let sound_tail = tail_of(&[
        entry(b"in", 0, 4, 88, 0),
        entry(b"large", EA_INODE, 22, 0, 0),
    ]);
    let sound_block = block_of(&[
        entry(b"one", 0, 9, 1012, 1),
        entry(b"two", 0, 100, 900, 2),
        entry(b"three", EA_INODE, 22, 0, 3),
    ]);
    for _ in 0..1000 {
        let (mut tail, mut block) = (sound_tail.clone(), sound_block.clone());
        for _ in 0..=random(5) {
            tail[random(48)] = u8::try_from(random(256)).unwrap();
            block[random(100)] = u8::try_from(random(256)).unwrap();
        }
        let sample = Sample::new(&tail, &block, |_| ());
        if let Ok(names) = list(&sample.fs, &sample.owner) {
            for name in names {
                let _ = sample.get(&name);
            }
        }
        let _ = sample.get(b"system.posix_acl_access");
    }
}
