//! Inode items. Spec: `xfs/journaling_log`, "Inode Updates".

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};
use zerocopy::FromBytes;

use super::fork;
use super::rules::ReplayRule;
use super::second_pass::{Applied, SecondPass};
use super::transactions::Item;
use crate::ondisk::inode::free::CRC_AT;
use crate::ondisk::inode::{DiskInode, ForkFormat};
use crate::ondisk::log::dinode::{
    CORE_V3_BYTES, FORKS_V2_AT, LogDinode, has_inode_magic, inode_flush_iteration, inode_lsn,
};
use crate::ondisk::log::{InodeFields, InodeFormat};
use crate::ondisk::{Lsn, checksum};

/// `DI_MAX_FLUSH`: counts of flushes wrap here.
const FLUSH_MAX: u16 = u16::MAX;

/// Applies the item of an inode.
pub(super) fn apply(pass: &mut SecondPass<'_>, item: &Item) -> Result<Applied> {
    let format = InodeFormat::decode(item.first(), pass.locus)?;
    if pass.cancelled.contains(format.block, format.len.into()) {
        return Ok(Applied::Skipped);
    }
    let locus = Locus::inode(format.inode.get());
    let (is_v3, inode_bytes) = (pass.geometry.features.is_v5(), pass.geometry.inode_bytes());
    let core = item.regions.get(1).map(Vec::as_slice).unwrap_or_default();
    let core = LogDinode::decode(core, is_v3, inode_bytes, locus)?;
    let lsn = pass.lsn;
    let meta_uuid_forks = ForkRegions::new(item, &format);
    let buffer = pass.buffers.get(format.block, format.len.into())?;
    let start = format.offset as usize;
    let end = start + inode_bytes as usize;
    let Some(current) = buffer.bytes.get(start..end) else {
        return Err(Corrupt::new(locus, ReplayRule::ObjectPlace).into());
    };
    if !has_inode_magic(current) {
        return Err(Corrupt::new(locus, ReplayRule::BufferInodeMagic).into());
    }
    if is_older(&core, current, is_v3, lsn) {
        if is_v3 && format.fields.intersects(InodeFields::OWNER) {
            let newer = current.to_vec();
            change_owner_of_newer(pass, &newer, &format)?;
        }
        return Ok(Applied::Skipped);
    }
    let Some(inode) = buffer.edit().get_mut(start..end) else {
        return Err(Corrupt::new(locus, ReplayRule::ObjectPlace).into());
    };
    core.store(inode, lsn);
    let forks_at = if is_v3 { CORE_V3_BYTES } else { FORKS_V2_AT };
    let fork_at = usize::from(core.disk.forkoff) * 8;
    let broken = || Corrupt::new(locus, ReplayRule::InodeFork);
    let forks = inode.get_mut(forks_at..).ok_or_else(broken)?;
    if fork_at > forks.len() {
        return Err(broken().into());
    }
    let (data, attr) = match fork_at {
        0 => (forks, Default::default()),
        at => forks.split_at_mut(at),
    };
    if format.fields.contains(InodeFields::DEVICE) {
        let device = format.device.to_be_bytes();
        data.get_mut(..4)
            .ok_or_else(broken)?
            .copy_from_slice(&device);
    }
    if let Some(region) = meta_uuid_forks.data {
        let has_root = format.fields.contains(InodeFields::DATA_ROOT);
        fork::store(data, region, has_root, is_v3).ok_or_else(broken)?;
    }
    if let Some(region) = meta_uuid_forks.attr {
        let has_root = format.fields.contains(InodeFields::ATTR_ROOT);
        fork::store(attr, region, has_root, is_v3).ok_or_else(broken)?;
    }
    let trees = [
        (InodeFields::DATA_OWNER, data.to_vec()),
        (InodeFields::ATTR_OWNER, attr.to_vec()),
    ];
    if is_v3 {
        checksum::seal(inode, CRC_AT);
    }
    for (field, root) in trees {
        if format.fields.contains(field) {
            fork::change_owner(pass, &root, format.inode)?;
        }
    }
    Ok(Applied::Yes)
}

/// Changes the owner of trees although their inode on the disk is newer than the log's: blocks of swapped forks
/// are in no transaction, and need not have been written when the inode was.
fn change_owner_of_newer(
    pass: &mut SecondPass<'_>,
    inode: &[u8],
    format: &InodeFormat,
) -> Result<()> {
    let Ok((disk, _)) = DiskInode::ref_from_prefix(inode) else {
        return Ok(());
    };
    let forks = inode.get(CORE_V3_BYTES..).unwrap_or_default();
    let fork_at = usize::from(disk.fork_offset) * 8;
    let (data, attr) = match fork_at {
        0 => (forks, &[][..]),
        at => forks.split_at_checked(at).unwrap_or_default(),
    };
    let trees = [
        (InodeFields::DATA_OWNER, disk.data_format, data),
        (InodeFields::ATTR_OWNER, disk.attr_format, attr),
    ];
    for (field, kind, root) in trees {
        let is_tree = disk.mode.get() != 0 && kind == ForkFormat::Btree as u8;
        if !is_tree || !format.fields.contains(field) {
            continue;
        }
        match fork::change_owner(pass, root, format.inode) {
            // Blocks that a later item of the log makes the newer tree's.
            Ok(()) | Err(Error::Corrupt(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The regions of the forks that are logged, in the order of the item.
struct ForkRegions<'i> {
    data: Option<&'i [u8]>,
    attr: Option<&'i [u8]>,
}

impl<'i> ForkRegions<'i> {
    fn new(item: &'i Item, format: &InodeFormat) -> Self {
        let mut regions = item.regions.iter().skip(2).map(Vec::as_slice);
        let mut take = |fields| format.fields.intersects(fields).then(|| regions.next());
        Self {
            data: take(InodeFields::DATA_FORK).flatten(),
            attr: take(InodeFields::ATTR_FORK).flatten(),
        }
    }
}

/// Whether a logged inode is older than the one on the device.
fn is_older(core: &LogDinode, current: &[u8], is_v3: bool, lsn: Lsn) -> bool {
    if is_v3 {
        let stored = inode_lsn(current).filter(|&stored| stored != Lsn::NULL);
        return stored.is_some_and(|stored| stored > lsn);
    }
    let (logged, stored) = (core.flush_iteration(), inode_flush_iteration(current));
    let wrapped = stored == FLUSH_MAX && logged < FLUSH_MAX / 2;
    logged < stored && !wrapped
}
