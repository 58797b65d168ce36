//! Inodes without a name: those that were open, or not yet freed, when the machine stopped.
//! Spec: `xfs/allocation_groups`, "Unlinked Inode List"; `xfs/ondisk_inode`.

use std::collections::HashSet;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Result, Unsupported};

use super::fork::ForkBlocks;
use crate::ag::{Blocks, Group, GroupRule};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::inode::{Fork, ForkKind, Inode, InodeFlags2, mark_free};
use crate::ondisk::{AgBlock, AgInode, AgNr, FsBlock, Geometry, InodeNr};

/// Frees the inodes in the unlinked lists of all groups, with their blocks. Returns their number.
pub(super) fn process(device: &Arc<dyn BlockDevice>, geometry: &Geometry) -> Result<u64> {
    let mut freed = 0;
    for ag in geometry.groups() {
        for inode in collect(device, geometry, ag)? {
            free(device, geometry, ag, inode)?;
            freed += 1;
        }
        let mut blocks = Blocks::new(Arc::clone(device));
        let mut group = Group::open(geometry, ag, &mut blocks)?;
        if group.agi().unlinked.iter().any(Option::is_some) {
            group.clear_unlinked();
            group.close()?;
            blocks.write_all()?;
        }
    }
    Ok(freed)
}

/// Frees what copy on write left staged in all groups.
pub(super) fn free_staged(device: &Arc<dyn BlockDevice>, geometry: &Geometry) -> Result<()> {
    if !geometry.features.has_reflink() {
        return Ok(());
    }
    for ag in geometry.groups() {
        let mut blocks = Blocks::new(Arc::clone(device));
        let mut group = Group::open(geometry, ag, &mut blocks)?;
        group.free_staged()?;
        group.close()?;
        blocks.write_all()?;
    }
    Ok(())
}

/// The inodes in the lists of a group.
fn collect(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    ag: AgNr,
) -> Result<Vec<(InodeNr, Inode)>> {
    let mut blocks = Blocks::new(Arc::clone(device));
    let heads = Group::open(geometry, ag, &mut blocks)?.agi().unlinked;
    let broken = || Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList);
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for head in heads {
        let mut next: Option<AgInode> = head;
        while let Some(inode) = next {
            let number = geometry.inode_nr(ag, inode).ok_or_else(broken)?;
            let bytes = read_inode(&**device, geometry, number)?;
            let decoded = Inode::decode(&bytes, number, geometry)
                .map_err(|rule| Corrupt::new(Locus::inode(number.get()), rule))?;
            if decoded.links != 0 || !seen.insert(number) {
                return Err(broken().into());
            }
            next = decoded.next_unlinked;
            found.push((number, decoded));
        }
    }
    Ok(found)
}

fn place(geometry: &Geometry, number: InodeNr) -> Result<u64> {
    let location = geometry
        .locate_inode(number)
        .ok_or_else(|| Corrupt::new(Locus::inode(number.get()), GroupRule::UnlinkedList))?;
    let block = geometry.fs_block(location.ag, location.block);
    Ok(geometry.byte_offset(block) + location.offset as u64)
}

fn read_inode(device: &dyn BlockDevice, geometry: &Geometry, number: InodeNr) -> Result<Vec<u8>> {
    let mut bytes = vec![0; geometry.inode_bytes() as usize];
    device.read_at(place(geometry, number)?, &mut bytes)?;
    Ok(bytes)
}

/// Frees one inode and its blocks.
fn free(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    ag: AgNr,
    (number, inode): (InodeNr, Inode),
) -> Result<()> {
    if inode.is_realtime() || inode.flags2.contains(InodeFlags2::METADATA) {
        return Err(Unsupported {
            filesystem: "xfs",
            feature: "an unlinked realtime or metadata inode".to_owned(),
            reason: Some("mount read-only with norecovery"),
        }
        .into());
    }
    let shares = inode.flags2.contains(InodeFlags2::REFLINK);
    free_fork(device, geometry, number, &inode.data_fork(), shares)?;
    if let Some(fork) = inode.attr_fork() {
        free_fork(device, geometry, number, &fork, false)?;
    }
    let at = place(geometry, number)?;
    let mut bytes = read_inode(&**device, geometry, number)?;
    mark_free(&mut bytes);
    device.write_at(at, &bytes)?;
    let mut blocks = Blocks::new(Arc::clone(device));
    let mut group = Group::open(geometry, ag, &mut blocks)?;
    group.free_inode(geometry.split_inode(number).1)?;
    group.close()?;
    blocks.write_all()
}

fn free_fork(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    number: InodeNr,
    fork: &Fork<'_>,
    shares: bool,
) -> Result<()> {
    let found = ForkBlocks::read(fork, number, geometry, &**device)?;
    let owner = |start, count, offset, is_btree, is_unwritten| Owner {
        start,
        count,
        owner: RmapOwner(number.get()),
        offset,
        is_attr_fork: fork.kind == ForkKind::Attr,
        is_btree,
        is_unwritten,
    };
    let mappings = found.mappings.iter().map(|mapping| {
        let (ag, start) = geometry.split(FsBlock(mapping.start));
        let count = u32::try_from(mapping.count).unwrap_or(u32::MAX);
        let offset = mapping.offset.0;
        (ag, owner(start, count, offset, false, mapping.is_unwritten))
    });
    let tree = found.tree.iter().map(|block| {
        let (ag, start) = geometry.split(*block);
        (ag, owner(start, 1, 0, true, false))
    });
    for (ag, owner) in mappings.chain(tree) {
        let mut blocks = Blocks::new(Arc::clone(device));
        let mut group = Group::open(geometry, ag, &mut blocks)?;
        group.fill_free_list()?;
        group.remove_owner(&owner)?;
        let unreferenced: Vec<(AgBlock, u32)> = if shares && !owner.is_btree {
            group.drop_references(owner.start, owner.count)?
        } else {
            vec![(owner.start, owner.count)]
        };
        for (start, count) in unreferenced {
            group.free_extent(start, count)?;
        }
        group.close()?;
        blocks.write_all()?;
    }
    Ok(())
}
