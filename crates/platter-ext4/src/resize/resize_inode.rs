//! The resize inode. Its doubly indirect block lists the reserved descriptor blocks, and each of
//! them lists its copies in the groups with a backup. Spec: `ext4/special_inodes`.

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;
use zerocopy::{FromBytes, IntoBytes};

use super::plan::Plan;
use super::unsupported;
use crate::FsContext;
use crate::groups::backups::backup_groups;
use crate::groups::find_inode;
use crate::inode;
use crate::ondisk::features::Compat;
use crate::ondisk::{BlockNr, InodeNr};
use crate::txn::Handle;

/// Index of the doubly indirect block in `i_block`.
const DOUBLY_INDIRECT: usize = 13;

/// Updates the inode to the reserved blocks after growing. Without any, it is cleared, and its
/// doubly indirect block is to be freed.
pub(super) fn change(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    plan: &Plan,
) -> Result<Option<BlockNr>> {
    let (before, after) = (&plan.before, &plan.after);
    if !before.features.compat.contains(Compat::RESIZE_INODE) {
        return Ok(None);
    }
    let mut inode = inode::read(fs, InodeNr::RESIZE)?;
    let numbers = <[Le32]>::ref_from_bytes(&inode.block).unwrap_or_default();
    let root = numbers.get(DOUBLY_INDIRECT).map_or(0, |root| root.get());
    let root = Some(BlockNr(root.into())).filter(|&root| before.contains(root, 1));
    if !plan.has_resize_inode() {
        clear(fs, handle)?;
        return Ok(root);
    }
    let Some(root) = root else {
        return Ok(None);
    };
    let backups = backup_groups(after);
    let was_held = held(before.reserved_gdt_blocks, backup_groups(before).len());
    let is_held = held(after.reserved_gdt_blocks, backups.len());
    if is_held == was_held {
        return Ok(None);
    }
    let per_block = after.block_bytes as usize / size_of::<Le32>();
    if backups.len() > per_block {
        let reason = "there are too many backups of the descriptors";
        return Err(unsupported("so large a size", Some(reason)));
    }
    let first = u64::from(after.descriptor_blocks());
    let kept = first..first + u64::from(after.reserved_gdt_blocks);
    let taken = u64::from(before.descriptor_blocks())..first;
    handle.edit(root, &Unverified, |bytes| {
        let numbers = <[Le32]>::mut_from_bytes(bytes).unwrap_or_default();
        for index in taken {
            let slot = usize::try_from(index).unwrap_or(0) % per_block;
            if let Some(number) = numbers.get_mut(slot) {
                number.set(0);
            }
        }
        Ok(())
    })?;
    let place = |index: u64| after.superblock_block.0 + 1 + index;
    // Without new backups, their lists are unchanged.
    let kept = kept.filter(|_| backups.len() > backup_groups(before).len());
    for index in kept {
        let mut copies = vec![Le32::default(); per_block];
        for (copy, group) in copies.iter_mut().zip(&backups) {
            let apart = u64::from(group.0) * u64::from(after.blocks_per_group);
            copy.set(u32::try_from(place(index) + apart).unwrap_or(0));
        }
        handle.replace(BlockNr(place(index)), &Unverified, copies.as_bytes())?;
    }
    // With larger clusters, tools count differently.
    let each = inode.sectors / was_held.max(1);
    inode.sectors = each * is_held;
    inode::store(fs, handle, &inode)?;
    Ok(None)
}

/// Returns the number of the inode's blocks: the doubly indirect one, and each reserved one with
/// its copies.
fn held(kept: u16, backups: usize) -> u64 {
    1 + u64::from(kept) * (1 + backups as u64)
}

fn clear(fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
    let len = usize::from(fs.geometry.inode_bytes);
    let Some(slot) = find_inode(fs, InodeNr::RESIZE)? else {
        return Ok(());
    };
    handle.edit(slot.block, &Unverified, |bytes| {
        let bytes = bytes.get_mut(slot.offset..).unwrap_or_default();
        let len = len.min(bytes.len());
        bytes.get_mut(..len).unwrap_or_default().fill(0);
        Ok(())
    })
}
