//! Data and holes of files.

use platter_ondisk::Rule;
use platter_vfs::SeekTarget;

use super::*;
use crate::context::tests::{broken_rule, sample_context};
use crate::ondisk::inode::tests::{inode_with, put_mappings};

fn sample_file(blocks: u64) -> Inode {
    inode_with(|disk, literal| {
        disk.core.size.set(10 * 4096 + 1);
        disk.core.blocks.set(blocks);
        disk.core.data_extents.set(2);
        let written = Mapping {
            offset: FileBlock(2),
            start: 100,
            count: 3,
            is_unwritten: false,
        };
        let unwritten = Mapping {
            offset: FileBlock(5),
            start: 103,
            is_unwritten: true,
            ..written
        };
        put_mappings(literal, &[written, unwritten]);
    })
}

#[test]
fn data_and_holes_are_distinguished() {
    let (context, inode) = (sample_context(&[]), sample_file(6));
    let map = ForkMap::of_data(&context, &inode).unwrap();
    let contents = Contents {
        context: &context,
        inode: &inode,
        map: &map,
        dirty: None,
    };
    let seek = |offset, target| file::seek(&contents, offset, target, inode.size_bytes).ok();
    assert_eq!(seek(0, SeekTarget::Data), Some(2 * 4096));
    assert_eq!(seek(2 * 4096 + 5, SeekTarget::Data), Some(2 * 4096 + 5));
    assert_eq!(seek(2 * 4096, SeekTarget::Hole), Some(5 * 4096));
    assert_eq!(seek(5 * 4096, SeekTarget::Data), None);
    assert_eq!(seek(10 * 4096 + 1, SeekTarget::Hole), None);
    let mut found = Vec::new();
    let listed = contents.extents(0..u64::MAX, &mut |extent| {
        found.push((extent.file.start / 4096, extent.unwritten));
        ControlFlow::Continue(())
    });
    listed.unwrap();
    assert_eq!(found, [(2, false), (5, true)]);
}

#[test]
fn fork_maps_no_more_blocks_than_the_inode_counts() {
    let (context, inode) = (sample_context(&[]), sample_file(5));
    let map = ForkMap::of_data(&context, &inode).unwrap();
    let contents = Contents {
        context: &context,
        inode: &inode,
        map: &map,
        dirty: None,
    };
    let listed = contents.extents(0..u64::MAX, &mut |_| ControlFlow::Continue(()));
    assert_eq!(broken_rule(listed), ForkRule::TooManyBlocks.text());
}
