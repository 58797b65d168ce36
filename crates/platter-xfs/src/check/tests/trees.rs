//! Rules of B-trees across blocks: the tree of free extents of a group, with a level more.

use zerocopy::FromBytes;

use super::{broken, free_root, said};
use crate::check::TreeUseRule;
use crate::ondisk::agf::DiskAgf;
use crate::ondisk::btree::{BtreeKind, DiskShortHeaderV5, checksum_offset};

/// Puts a node above the only leaf, with `pointers` to it and this difference in its keys.
fn node(pointers: u16, wrong_key: u32, left: Option<u32>) -> Vec<String> {
    broken(|image| {
        let leaf = free_root(image, BtreeKind::Bno);
        // A block at the end of the group, which is free.
        let above = image.geometry.ag_blocks - 7;
        let leaf_block = image.block(1, leaf);
        let node_block = image.block(1, above);
        let sum = checksum_offset(BtreeKind::Bno);
        let at = usize::try_from(image.geometry.byte_offset(leaf_block)).unwrap();
        let bytes = image.bytes[at..at + 4096].to_vec();
        if let Some(left) = left {
            image.change_block(leaf_block, sum, |bytes| {
                let (header, _) = DiskShortHeaderV5::mut_from_prefix(bytes).unwrap();
                header.common.left.set(left);
            });
        }
        let basic = image.geometry.basic_block(node_block).0;
        image.change_block(node_block, sum, |node| {
            node.copy_from_slice(&bytes);
            let (header, body) = DiskShortHeaderV5::mut_from_prefix(node).unwrap();
            header.block.set(basic);
            header.common.level.set(1);
            header.common.records.set(pointers);
            let key: [u8; 8] = body[..8].try_into().unwrap();
            let pointers_at = 4040 / 12 * 8;
            for nth in 0..usize::from(pointers) {
                body[nth * 8..nth * 8 + 8].copy_from_slice(&key);
                body[nth * 8 + 3] ^= u8::try_from(wrong_key).unwrap();
                let pointer = pointers_at + nth * 4;
                body[pointer..pointer + 4].copy_from_slice(&leaf.to_be_bytes());
            }
        });
        image.change_header(1, 1, DiskAgf::CHECKSUM_OFFSET, |disk: &mut DiskAgf| {
            disk.bno_root.set(above);
            disk.bno_level.set(2);
        });
    })
}

#[test]
fn blocks_of_trees_are_compared_with_their_parents() {
    let rules = node(1, 0, None);
    assert!(rules.contains(&said(TreeUseRule::TooFew)), "{rules:?}");
    for other in [
        TreeUseRule::Key,
        TreeUseRule::Sibling,
        TreeUseRule::Multiple,
    ] {
        assert!(!rules.contains(&said(other)), "{rules:?}");
    }
    assert!(node(1, 1, None).contains(&said(TreeUseRule::Key)));
    assert!(node(2, 0, None).contains(&said(TreeUseRule::Multiple)));
    assert!(node(1, 0, Some(9)).contains(&said(TreeUseRule::Sibling)));
}
