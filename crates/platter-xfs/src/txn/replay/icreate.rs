//! Inode create items: the inodes of a chunk, initialised. Spec: `xfs/journaling_log`, "Inode Creation
//! Log Item".

use platter_ondisk::Corrupt;
use platter_vfs::Result;

use super::rules::ReplayRule;
use super::second_pass::{Applied, SecondPass};
use super::transactions::Item;
use crate::ondisk::inode::free::initialise;
use crate::ondisk::log::InodeCreate;
use crate::ondisk::{AgBlock, AgInode};

/// Applies the item of a new inode chunk.
pub(super) fn apply(pass: &mut SecondPass<'_>, item: &Item) -> Result<Applied> {
    let create = InodeCreate::decode(item.first(), &pass.geometry, pass.locus)?;
    let geometry = pass.geometry.clone();
    let cluster = geometry.cluster_blocks().min(create.len);
    let starts = (0..create.len).step_by(cluster as usize);
    let places: Vec<_> = starts
        .map(|start| {
            let block = AgBlock(create.block.0 + start);
            let blocks = cluster.min(create.len - start);
            let place = geometry.basic_block(geometry.fs_block(create.ag, block));
            let sectors = u64::from(blocks) * u64::from(geometry.block_bytes() / 512);
            (block, place, sectors)
        })
        .collect();
    let is_cancelled = |(_, place, sectors): &_| pass.cancelled.contains(*place, *sectors);
    if places.iter().any(is_cancelled) {
        return Ok(Applied::Skipped);
    }
    for (block, place, sectors) in places {
        let first = u64::from(block.0) << geometry.inodes_per_block_bits();
        let bytes = pass.buffers.get(place, sectors)?.edit();
        let inodes = bytes.chunks_exact_mut(geometry.inode_bytes() as usize);
        for (number, inode) in (first..).zip(inodes) {
            let number = u32::try_from(number).ok().map(AgInode);
            let number = number.and_then(|number| geometry.inode_nr(create.ag, number));
            let Some(number) = number else {
                return Err(Corrupt::new(pass.locus, ReplayRule::ObjectPlace).into());
            };
            initialise(inode, &geometry, number, create.generation);
        }
    }
    Ok(Applied::Yes)
}
