//! The headers and the roots of a new group.

use platter_block::BlockDevice;
use platter_vfs::{Condition, Result};
use zerocopy::IntoBytes;

use super::layout::GroupLayout;
use super::shape::Shape;
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::agfl;
use crate::ondisk::agi::UNLINKED_BUCKETS;
use crate::ondisk::btree::{BtreeKind, BuiltBlock, DiskFreeExtent, InodeChunk, Owner, RmapOwner};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::{AgBlock, AgInode, AgNr, Agf, Agi, Lsn};

/// Inodes that are in use in a new filesystem.
const USED_INODES: u32 = 3;

/// Counts what is free.
pub(super) fn count(shape: &mut Shape) -> Result<()> {
    let mut free = 0;
    for ag in shape.geometry.groups() {
        let layout = GroupLayout::place(shape, ag)?;
        let extents = layout
            .free
            .iter()
            .map(|free| u64::from(free.end - free.start));
        free += extents.sum::<u64>() + u64::from(layout.free_list_len);
    }
    shape.superblock.free_data_blocks = free;
    let inodes = first_inodes(shape);
    shape.superblock.inode_count = inodes.into();
    shape.superblock.free_inodes = (inodes - USED_INODES).into();
    Ok(())
}

/// Writes the headers and the roots, with a copy of the superblock. The primary one is left to be written.
pub(super) fn write(device: &dyn BlockDevice, shape: &Shape, ag: AgNr, copy: &[u8]) -> Result<()> {
    let layout = &GroupLayout::place(shape, ag)?;
    let geometry = &shape.geometry;
    let sector_bytes = geometry.sector_bytes() as usize;
    let block_bytes = geometry.block_bytes() as usize;
    let listed: Vec<_> = layout.free_list.iter().copied().map(AgBlock).collect();
    let list = agfl::encode_new(geometry, ag, &listed);
    let agf = agf(layout, ag, list.range);
    let agi = agi(shape, layout, ag);
    let superblock = match ag {
        AgNr(0) => vec![0; sector_bytes],
        _ => copy.to_vec(),
    };
    let headers = [
        superblock,
        agf.encode(geometry),
        agi.encode(geometry),
        list.sector,
    ];
    let mut bytes = vec![0; layout.roots_end() as usize * block_bytes];
    for (slot, header) in bytes.chunks_mut(sector_bytes).zip(&headers) {
        slot.copy_from_slice(header);
    }
    for &(kind, at) in &layout.roots {
        let (entries, count) = records(shape, layout, kind);
        let root = BuiltBlock {
            kind,
            owner: ag.0.into(),
            level: 0,
            left: None,
            right: None,
            entries: &entries,
            count,
            pointers: &[],
        };
        let place = geometry.fs_block(ag, AgBlock(at));
        let block = bytes.chunks_mut(block_bytes).nth(at as usize);
        let block = block.ok_or(Condition::NoSpace)?;
        root.encode(place, geometry, block)
            .ok_or(Condition::NoSpace)?;
    }
    device.write_at(geometry.ag_offset(ag), &bytes)?;
    Ok(())
}

fn root(layout: &GroupLayout, kind: BtreeKind) -> Option<TreeRoot> {
    let found = layout.roots.iter().find(|(other, _)| *other == kind)?;
    Some(TreeRoot {
        block: AgBlock(found.1),
        levels: 1,
    })
}

fn required_root(layout: &GroupLayout, kind: BtreeKind) -> TreeRoot {
    root(layout, kind).expect("a group has its first trees")
}

fn agf(layout: &GroupLayout, ag: AgNr, range: (u32, u32)) -> Agf {
    let lengths = layout.free.iter().map(|free| free.end - free.start);
    let count = |kind| u32::from(root(layout, kind).is_some());
    Agf {
        ag,
        length: layout.len,
        bno: required_root(layout, BtreeKind::Bno),
        cnt: required_root(layout, BtreeKind::Cnt),
        rmap: root(layout, BtreeKind::Rmap),
        refcount: root(layout, BtreeKind::Refcount),
        free_list_first: range.0,
        free_list_last: range.1,
        free_list_count: layout.free_list_len,
        free_blocks: lengths.clone().sum(),
        longest: lengths.max().unwrap_or_default(),
        btree_blocks: 0,
        rmap_blocks: count(BtreeKind::Rmap),
        refcount_blocks: count(BtreeKind::Refcount),
        lsn: Lsn(0),
    }
}

fn agi(shape: &Shape, layout: &GroupLayout, ag: AgNr) -> Agi {
    let features = &shape.geometry.features;
    let chunks = chunks(shape, layout);
    let finobt = root(layout, BtreeKind::Finobt);
    let counts = |is_there: bool| u32::from(is_there && features.has_inobtcount());
    Agi {
        ag,
        length: layout.len,
        count: chunks.iter().map(|chunk| chunk.count).sum(),
        free_count: chunks.iter().map(|chunk| chunk.free_count).sum(),
        newest: chunks.first().map(|chunk| chunk.start),
        inobt: required_root(layout, BtreeKind::Inobt),
        finobt,
        unlinked: [None; UNLINKED_BUCKETS],
        inode_btree_blocks: counts(true),
        free_btree_blocks: counts(finobt.is_some()),
        lsn: Lsn(0),
    }
}

/// Inodes that a filesystem begins with: a chunk, or as many as fill a block.
pub(super) fn first_inodes(shape: &Shape) -> u32 {
    shape.geometry.chunk_inodes()
}

/// The chunks of a group.
fn chunks(shape: &Shape, layout: &GroupLayout) -> Vec<InodeChunk> {
    let Some(blocks) = &layout.chunk else {
        return Vec::new();
    };
    let first = shape.geometry.first_ag_inode(AgBlock(blocks.start)).0;
    let starts = (0..first_inodes(shape)).step_by(CHUNK_INODES as usize);
    let chunk = |start| {
        let used = if start == 0 { USED_INODES } else { 0 };
        InodeChunk {
            start: AgInode(first + start),
            holes: 0,
            count: CHUNK_INODES,
            free_count: CHUNK_INODES - used,
            free: u64::MAX << used,
        }
    };
    starts.map(chunk).collect()
}

/// The records of a root, and their number.
fn records(shape: &Shape, layout: &GroupLayout, kind: BtreeKind) -> (Vec<u8>, usize) {
    match kind {
        BtreeKind::Bno => free_records(layout.free.clone()),
        BtreeKind::Cnt => {
            let mut free = layout.free.clone();
            free.sort_by_key(|free| (free.end - free.start, free.start));
            free_records(free)
        }
        BtreeKind::Inobt | BtreeKind::Finobt => {
            let is_sparse = shape.geometry.features.has_sparse_inodes();
            let chunks = chunks(shape, layout);
            let records: Vec<_> = chunks.iter().map(|it| it.encode(is_sparse)).collect();
            (records.as_bytes().to_vec(), records.len())
        }
        BtreeKind::Rmap => {
            let owners = layout.owners();
            let record = |run: &(std::ops::Range<u32>, RmapOwner)| {
                let (run, owner) = (&run.0, run.1);
                Owner::special(AgBlock(run.start), run.end - run.start, owner).encode()
            };
            let records: Vec<_> = owners.iter().map(record).collect();
            (records.as_bytes().to_vec(), records.len())
        }
        BtreeKind::Refcount | BtreeKind::Bmap | BtreeKind::RtRmap | BtreeKind::RtRefcount => {
            (Vec::new(), 0)
        }
    }
}

fn free_records(free: Vec<std::ops::Range<u32>>) -> (Vec<u8>, usize) {
    let record = |free: std::ops::Range<u32>| DiskFreeExtent {
        start: free.start.into(),
        count: (free.end - free.start).into(),
    };
    let records: Vec<_> = free.into_iter().map(record).collect();
    (records.as_bytes().to_vec(), records.len())
}
