//! The blocks of directory blocks that lie in several extents, in an offline filesystem. Nothing in most of them shows what
//! they are.

use std::ops::ControlFlow;

use platter_vfs::writing::RangeSet;
use platter_vfs::{Error, FileKind, Result};

use crate::btree::Tree;
use crate::context::FsContext;
use crate::inode;
use crate::mapping::ForkMap;
use crate::ondisk::btree::{BtreeKind, DiskInodeChunk, InodeChunk};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::{AgInode, FileBlock, FsBlock, InodeNr};

/// Reads which blocks hold parts of directory blocks, counted from the start of the device. Those of directories that are
/// corrupt are left out.
pub(super) fn read(context: &FsContext) -> Result<RangeSet<u64>> {
    let geometry = context.geometry();
    let is_sparse = geometry.features.has_sparse_inodes();
    let mut split = RangeSet::default();
    for ag in geometry.groups() {
        let agi = context.agi(ag)?;
        Tree::of_group(context, BtreeKind::Inobt, ag, agi.inobt).leaves(&mut |leaf| {
            for disk in leaf.records::<DiskInodeChunk>() {
                let chunk = InodeChunk::decode(disk, is_sparse);
                let inodes = (0..CHUNK_INODES).filter(|index| chunk.is_allocated(*index));
                let inodes = inodes.filter_map(|index| chunk.start.0.checked_add(index));
                for number in inodes.filter_map(|inode| geometry.inode_nr(ag, AgInode(inode))) {
                    match add_directory(context, number, &mut split) {
                        Ok(()) | Err(Error::Corrupt(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(split)
}

/// Adds the blocks of an inode that hold parts of directory blocks.
fn add_directory(context: &FsContext, number: InodeNr, split: &mut RangeSet<u64>) -> Result<()> {
    let geometry = context.geometry();
    let inode = inode::find(context, number)?;
    let Some(inode) = inode.filter(|inode| inode.kind == FileKind::Directory) else {
        return Ok(());
    };
    let map = ForkMap::of_data(context, &inode)?;
    let unit = u64::from(geometry.dir_block_blocks());
    let mut at = FileBlock(0);
    while let Some(run) = map.next(context, at)? {
        at = run.end();
        let Some(mapping) = run.mapping() else {
            continue;
        };
        let (first, end) = (mapping.offset.0, mapping.end().0);
        // The directory blocks that lie in it as a whole are between both.
        let whole = first.next_multiple_of(unit).min(end);
        let rest = (end / unit * unit).max(whole);
        for part in [first..whole, rest..end] {
            let start = FsBlock(mapping.start + (part.start - first));
            let start = geometry.byte_offset(start) >> geometry.block_bits;
            if !part.is_empty() {
                split.insert(start..start + (part.end - part.start));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use platter_vfs::{Context, CreateKind, Filesystem};

    use super::super::reuse_tests::{blocks, fragment, plain};
    use super::super::tests::{create, device_of, mount, name};
    use super::*;
    use crate::ondisk::ForkKind;

    #[test]
    fn blocks_of_directory_blocks_in_several_extents_are_found() {
        let xfs = mount(&device_of(&plain(1024)));
        let root = xfs.root().unwrap();
        let [whole, split] = ["whole", "split"].map(|text| {
            let made = create(&*root, text, CreateKind::Directory);
            made.unwrap()
        });
        let file = create(&*root, "file", CreateKind::Regular).unwrap();
        let fill = |directory: &dyn platter_vfs::Inode, count: usize| {
            for index in 0..count {
                let text = format!("{index}-{}", "n".repeat(60));
                let linked = directory.link(&Context::root(), name(&text), file.id());
                linked.unwrap();
            }
        };
        fill(&*whole, 18);
        fragment(&xfs);
        fill(&*split, 80);
        xfs.context().log().unwrap().quiesce().unwrap();
        let found = read(xfs.context()).unwrap();
        let geometry = xfs.context().geometry();
        let index = |block: FsBlock| geometry.byte_offset(block) >> geometry.block_bits;
        let blocks_of = |directory: &dyn platter_vfs::Inode| {
            let blocks = blocks(&xfs, directory, ForkKind::Data);
            blocks.into_iter().map(index).collect::<Vec<_>>()
        };
        let parts = blocks_of(&*split);
        assert!(parts.len() > 8);
        assert!(parts.iter().all(|block| found.contains(*block)));
        assert!(
            !blocks_of(&*whole)
                .iter()
                .any(|block| found.contains(*block))
        );
        assert_eq!(found.count(), parts.len() as u64);
        drop((root, whole, split, file));
        xfs.unmount().unwrap();
    }
}
