//! Every inode of every inode table: whether it is in use, and its blocks and attributes.

use platter_ondisk::Locus;
use platter_ondisk::endian::join_u32;
use platter_ondisk::verify::Unverified;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;
use zerocopy::FromBytes;

use super::inode_states::Use;
use super::{Checker, Flow, InodeUseRule, attributes, contents, locus_of};
use crate::inode::is_reserved;
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::inode::{DiskInode, InodeRule};
use crate::ondisk::{BlockNr, Creator, GroupDesc, Inode, InodeFlags, InodeNr};

/// Number of inode table blocks that are read ahead together.
const TABLE_READ_AHEAD_BLOCKS: u32 = 64;

/// Checks every inode of every inode table.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let total = u64::from(checker.fs.geometry.groups_count);
    for group in 0..checker.fs.geometry.groups_count {
        checker.report.progress("inodes", u64::from(group), total)?;
        if let Some(desc) = checker.groups[group as usize] {
            check_table(checker, group, &desc)?;
        }
    }
    let used = checker.inodes.used().count() as u64;
    checker.report.count("inodes", used);
    Ok(())
}

fn check_table(checker: &mut Checker<'_>, group: u32, desc: &GroupDesc) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    if desc.flags.contains(GroupFlags::INODE_UNINIT) {
        return Ok(());
    }
    let unused = if geometry.features.has_group_csum() {
        desc.unused_inodes
    } else {
        0
    };
    let used = geometry.inodes_per_group.saturating_sub(unused);
    let first_number = group * geometry.inodes_per_group + 1;
    for table_block in 0..used.div_ceil(geometry.inodes_per_block) {
        let block = BlockNr(desc.inode_table.0 + u64::from(table_block));
        if table_block.is_multiple_of(TABLE_READ_AHEAD_BLOCKS) {
            let rest = used.div_ceil(geometry.inodes_per_block) - table_block;
            fs.read_ahead(block, u64::from(rest.min(TABLE_READ_AHEAD_BLOCKS)));
        }
        let locus = Locus::group(u64::from(group)).at_block(block.0);
        let read = fs.read_block(block, &Unverified);
        let Some(buffer) = checker.tolerate("inode table", locus, read)? else {
            continue;
        };
        let skipped = table_block * geometry.inodes_per_block;
        let slots = buffer.chunks_exact(usize::from(geometry.inode_bytes));
        for (index, bytes) in (skipped..used).zip(slots) {
            if let Some(number) = InodeNr::new(first_number + index) {
                check_slot(checker, number, bytes)?;
            }
        }
    }
    Ok(())
}

fn check_slot(checker: &mut Checker<'_>, number: InodeNr, bytes: &[u8]) -> Flow {
    let Ok((disk, _)) = DiskInode::ref_from_prefix(bytes) else {
        return Ok(());
    };
    let is_own = is_reserved(checker.fs, number);
    let has_mode = disk.mode.get() != 0;
    let is_orphan = checker.orphans.contains(&number);
    if is_own {
        checker.inodes.get_mut(number).used_as = Use::Reserved;
        if number == InodeNr::BAD_BLOCKS || (!has_mode && disk.links.get() == 0) {
            return check_idle(checker, number, bytes, disk);
        }
    } else if disk.links.get() == 0 && !is_orphan {
        if has_mode && disk.deleted.get() == 0 {
            checker.found(locus_of(number), InodeUseRule::DeletedWithoutTime)?;
        }
        let verified = Inode::verify_checksum(bytes, number, &checker.fs.geometry);
        checker.tolerate("inode", locus_of(number), verified.map_err(Into::into))?;
        return Ok(());
    } else {
        let state = checker.inodes.get_mut(number);
        state.used_as = Use::Named;
        state.links = disk.links.get();
    }
    let geometry = &checker.fs.geometry;
    // A mount ignores these checksums if the creator is not Linux; e2fsck verifies them.
    let verified = Inode::verify_checksum(bytes, number, geometry);
    let decoded = Inode::decode_unsummed(bytes, number, geometry);
    if decoded.is_ok() && verified.is_err() {
        checker.found(locus_of(number), InodeRule::Checksum)?;
    }
    let decoded = decoded.map_err(Into::into);
    let Some(inode) = checker.tolerate("inode", locus_of(number), decoded)? else {
        // The blocks of a corrupt inode are unknown.
        checker.is_blind = true;
        return Ok(());
    };
    if inode.flags.contains(InodeFlags::EA_INODE) {
        // The upper half of the reference count is stored in `i_ctime`, the lower in
        // `i_version`.
        let count = join_u32(disk.changed.get(), disk.version_lo.get());
        checker.attributes.note_stored(number, count);
    }
    check_high_halves(checker, &inode, disk)?;
    check_inode(checker, &inode, is_own, is_orphan)
}

/// Checks that fields of missing features are zero.
fn check_high_halves(checker: &mut Checker<'_>, inode: &Inode, disk: &DiskInode) -> Flow {
    let features = checker.fs.geometry.features;
    let is_large_dir =
        inode.kind == FileKind::Directory && features.incompat.contains(Incompat::LARGE_DIR);
    let has_high_size = inode.kind == FileKind::Regular || is_large_dir;
    let wide = features.incompat.contains(Incompat::BIT64);
    let is_hurd = checker.fs.geometry.creator == Creator::Hurd;
    let huge = features.ro_compat.contains(RoCompat::HUGE_FILE);
    let is_unused = disk.fragment.get() == 0
        && (has_high_size || disk.size_hi.get() == 0)
        && (wide || is_hurd || disk.xattr_block_hi.get() == 0)
        && (huge || disk.blocks_hi.get() == 0);
    if !is_unused {
        checker.found(locus_of(inode.number), InodeUseRule::UnusedField)?;
    }
    Ok(())
}

/// Checks a reserved inode that is not in use.
fn check_idle(checker: &mut Checker<'_>, number: InodeNr, bytes: &[u8], disk: &DiskInode) -> Flow {
    let verified = Inode::verify_checksum(bytes, number, &checker.fs.geometry);
    let verified = verified.map_err(Into::into);
    checker.tolerate("inode", locus_of(number), verified)?;
    if number == InodeNr::BAD_BLOCKS {
        return contents::check_bad_blocks(checker, &disk.block);
    }
    if disk.blocks_lo.get() != 0 {
        checker.found(locus_of(number), InodeUseRule::ReservedContents)?;
    }
    Ok(())
}

fn check_inode(checker: &mut Checker<'_>, inode: &Inode, is_own: bool, is_orphan: bool) -> Flow {
    let locus = locus_of(inode.number);
    let holds_value =
        inode.flags.contains(InodeFlags::EA_INODE) && attributes::has_ea_inode(checker);
    let state = checker.inodes.get_mut(inode.number);
    state.kind = Some(inode.kind);
    state.is_encrypted = inode.is_encrypted();
    if is_orphan && !is_own {
        if inode.links == 0 {
            state.used_as = Use::Orphan;
        }
        checker.noticed(locus, InodeUseRule::OrphanWaits)?;
    } else if holds_value {
        state.used_as = Use::AttributeValue;
    }
    if inode.deleted != 0 && !is_orphan {
        checker.found(locus, InodeUseRule::UsedWithTime)?;
    }
    if has_flag_without_feature(checker, inode) {
        checker.found(locus, InodeUseRule::FlagWithoutFeature)?;
    }
    // A directory that was removed while it was open is not part of the tree any more.
    let is_removed = is_orphan && inode.links == 0;
    if inode.kind == FileKind::Directory && !is_own && !is_removed {
        checker.directories.push(inode.number);
    }
    let values = attributes::check(checker, inode)?;
    contents::check(checker, inode, values)
}

fn has_flag_without_feature(checker: &Checker<'_>, inode: &Inode) -> bool {
    let features = checker.fs.geometry.features;
    let incompat = [
        (InodeFlags::EXTENTS, Incompat::EXTENTS),
        (InodeFlags::INLINE_DATA, Incompat::INLINE_DATA),
        (InodeFlags::ENCRYPT, Incompat::ENCRYPT),
        (InodeFlags::CASEFOLD, Incompat::CASEFOLD),
    ];
    let is_missing =
        |&(flag, feature)| inode.flags.contains(flag) && !features.incompat.contains(feature);
    let verity = inode.flags.contains(InodeFlags::VERITY);
    incompat.iter().any(is_missing) || (verity && !features.ro_compat.contains(RoCompat::VERITY))
}

/// Compares the directory entries that were found with the link counts.
pub(super) fn check_links(checker: &mut Checker<'_>) -> Flow {
    let used: Vec<_> = checker.inodes.used().collect();
    for (number, state) in used {
        if state.used_as != Use::Named {
            continue;
        }
        let uncounted = state.kind == Some(FileKind::Directory) && state.links == 1;
        if state.names == 0 {
            checker.found(locus_of(number), InodeUseRule::Unattached)?;
        } else if state.names != state.links && !(uncounted && has_dir_nlink(checker)) {
            checker.found(locus_of(number), InodeUseRule::Links)?;
        }
    }
    Ok(())
}

fn has_dir_nlink(checker: &Checker<'_>) -> bool {
    let features = checker.fs.geometry.features;
    features.ro_compat.contains(RoCompat::DIR_NLINK)
}
