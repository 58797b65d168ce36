//! Attributes in leaves and values elsewhere.

use platter_ondisk::Rule;
use platter_vfs::Error;
use zerocopy::FromBytes;

use super::*;
use crate::context::tests::{broken_rule, sample_context};
use crate::ondisk::attr::leaf::{DiskAttrLeafCounts, DiskAttrLeafEntry};
use crate::ondisk::attr::remote::AttrRemoteRule;
use crate::ondisk::da::{DaNodeRule, DiskDaHeaderV5};
use crate::ondisk::inode::tests::{inode_with, put_mappings};
use crate::ondisk::{FileBlock, Mapping, checksum};

/// A file whose attribute fork is block 90.
fn file() -> Inode {
    inode_with(|disk, literal| {
        disk.core.fork_offset = 10;
        disk.core.attr_extents.set(1);
        let mapping = Mapping {
            offset: FileBlock(0),
            start: 90,
            count: 1,
            is_unwritten: false,
        };
        put_mappings(&mut literal[80..], &[mapping]);
    })
}

/// Block 90 as a leaf with the attributes `user.a` and `user.b`, the latter elsewhere.
fn leaf(change: impl FnOnce(&mut DiskDaHeaderV5)) -> Vec<u8> {
    let mut block = vec![0; 4096];
    let (header, rest) = DiskDaHeaderV5::mut_from_prefix(&mut block).unwrap();
    header.common.magic.set(0x3bee);
    header.block.set(90 * 8);
    header.uuid = [0x5a; 16];
    header.owner.set(131);
    change(header);
    let (counts, rest) = DiskAttrLeafCounts::mut_from_prefix(rest).unwrap();
    counts.count.set(2);
    counts.first_used.set(4000);
    let (entries, _) =
        <[DiskAttrLeafEntry]>::mut_from_prefix_with_elems(&mut rest[4..], 2).unwrap();
    for (entry, (hash, offset, flags)) in entries
        .iter_mut()
        .zip([(u32::from(b'a'), 4000, 1), (u32::from(b'b'), 4008, 0)])
    {
        entry.hash.set(hash);
        entry.offset.set(offset);
        entry.flags = flags;
    }
    block[4000..4006].copy_from_slice(b"\x00\x02\x01axy");
    block[4008..4018].copy_from_slice(b"\0\0\0\x01\0\0\0\x09\x01b");
    checksum::seal(&mut block, DiskDaHeaderV5::CHECKSUM_OFFSET);
    block
}

fn names(block: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (context, inode) = (sample_context(&[(90, block)]), file());
    Attributes::open(&context, &inode)?.names()
}

#[test]
fn attributes_of_a_leaf_are_found_by_name() {
    let block = leaf(|_| ());
    let (context, inode) = (sample_context(&[(90, &block)]), file());
    let attributes = Attributes::open(&context, &inode).unwrap();
    assert_eq!(attributes.names().unwrap(), [b"user.a", b"user.b"]);
    assert_eq!(attributes.get(b"user.a").unwrap(), b"xy");
    let missing = attributes.get(b"user.c").unwrap_err();
    assert!(matches!(missing, Error::Condition(Condition::NoAttribute)));
    let rule = broken_rule(attributes.get(b"user.b"));
    assert_eq!(rule, AttrRemoteRule::Missing.text());
}

#[test]
fn fork_without_blocks_has_no_attributes() {
    let context = sample_context(&[]);
    let inode = inode_with(|disk, _| disk.core.fork_offset = 10);
    let attributes = Attributes::open(&context, &inode).unwrap();
    assert!(attributes.names().unwrap().is_empty());
}

#[test]
fn leaves_that_lead_nowhere_or_in_a_circle_are_corrupt() {
    let rule = broken_rule(names(&leaf(|header| header.common.next.set(7))));
    assert_eq!(rule, DaNodeRule::Missing.text());
    let rule = broken_rule(names(&[0; 4096]));
    assert_eq!(rule, DaNodeRule::Kind.text());
    let (context, inode) = (sample_context(&[]), file());
    let attributes = Attributes::open(&context, &inode).unwrap();
    let mut seen = std::collections::HashSet::new();
    attributes.check_new(&mut seen, 3).unwrap();
    let rule = broken_rule(attributes.check_new(&mut seen, 3));
    assert_eq!(rule, DaNodeRule::Cycle.text());
}
