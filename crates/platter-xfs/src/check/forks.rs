//! Forks of inodes: their extents, the blocks of their B-trees, and the claims on those. Spec:
//! `xfs/data_extents`.

use platter_ondisk::Locus;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::trees::TreeWalk;
use super::{Checker, Flow, ForkUseRule, locus_of, realtime, trees};
use crate::ondisk::btree::{BtreeBlock, BtreeKind, DiskMapping, Owner, RmapOwner};
use crate::ondisk::extent::{ExtentDevice, Mapping, MappingRule};
use crate::ondisk::inode::{InodeRule, MetafileKind};
use crate::ondisk::{
    AgBlock, FileBlock, Fork, ForkFormat, ForkKind, FsBlock, Inode, InodeFlags2, RtBlock,
};

/// What was found in a fork.
#[derive(Debug, Default)]
pub(super) struct ForkExtents {
    /// Extents.
    pub(super) extents: u64,
    /// Blocks of the data device: of extents, and of the fork's B-tree.
    pub(super) blocks: u64,
    /// Blocks of the realtime device.
    pub(super) rt_blocks: u64,
    /// The block after the last one.
    pub(super) end: u64,
    /// The first block that is mapped.
    pub(super) first: Option<u64>,
    /// All of it could be read.
    pub(super) is_whole: bool,
}

/// Reads a fork and claims its blocks.
pub(super) fn check(
    checker: &mut Checker<'_>,
    inode: &Inode,
    fork: &Fork<'_>,
) -> Flow<ForkExtents> {
    let mut found = ForkExtents {
        is_whole: true,
        ..ForkExtents::default()
    };
    match fork.format {
        ForkFormat::Device | ForkFormat::Local => {}
        ForkFormat::Extents => {
            for disk in fork.mappings() {
                take_mapping(checker, inode, fork.kind, disk, &mut found)?;
            }
        }
        ForkFormat::Btree => check_tree(checker, inode, fork, &mut found)?,
        ForkFormat::MetaBtree => check_metadata_tree(checker, inode, fork, &mut found)?,
    }
    if found.is_whole && found.extents != fork.extents {
        checker.found(locus_of(inode.number), MappingRule::Count)?;
    }
    checker.is_blind |= !found.is_whole;
    Ok(found)
}

fn check_tree(
    checker: &mut Checker<'_>,
    inode: &Inode,
    fork: &Fork<'_>,
    found: &mut ForkExtents,
) -> Flow {
    let locus = locus_of(inode.number);
    let root = match BtreeBlock::decode_root(fork.bytes, BtreeKind::Bmap) {
        Ok(root) => root,
        Err(rule) => {
            found.is_whole = false;
            return checker.found(locus, rule);
        }
    };
    // Extents that fit the inode have no B-tree.
    let most = (fork.bytes.len() / size_of::<DiskMapping>()) as u64;
    if fork.extents <= most {
        checker.found(locus, ForkUseRule::TooFewExtents)?;
    }
    let kind = fork.kind;
    let mut walk = fork_walk(inode, BtreeKind::Bmap, kind);
    let extents = &mut *found;
    trees::walk_below(checker, &mut walk, &root, &mut |checker, leaf| {
        for disk in leaf.records::<DiskMapping>() {
            take_mapping(checker, inode, kind, disk, extents)?;
        }
        Ok(())
    })?;
    found.is_whole &= walk.is_whole;
    found.blocks = found.blocks.saturating_add(walk.blocks);
    Ok(())
}

/// Claims the blocks of a B-tree of a realtime group.
fn check_metadata_tree(
    checker: &mut Checker<'_>,
    inode: &Inode,
    fork: &Fork<'_>,
    found: &mut ForkExtents,
) -> Flow {
    let locus = locus_of(inode.number);
    let kind = match MetafileKind::of(inode.metadata_kind) {
        Some(MetafileKind::RtRmap) => BtreeKind::RtRmap,
        Some(MetafileKind::RtRefcount) => BtreeKind::RtRefcount,
        Some(_) | None => {
            found.is_whole = false;
            return checker.found(locus, InodeRule::DataFormat);
        }
    };
    let root = match BtreeBlock::decode_root(fork.bytes, kind) {
        Ok(root) => root,
        Err(rule) => {
            found.is_whole = false;
            return checker.found(locus, rule);
        }
    };
    let mut walk = fork_walk(inode, kind, fork.kind);
    trees::walk_below(checker, &mut walk, &root, &mut |_, _| Ok(()))?;
    found.is_whole &= walk.is_whole;
    found.blocks = found.blocks.saturating_add(walk.blocks);
    Ok(())
}

/// Checks an extent and claims its blocks.
fn take_mapping(
    checker: &mut Checker<'_>,
    inode: &Inode,
    kind: ForkKind,
    disk: &DiskMapping,
    found: &mut ForkExtents,
) -> Flow {
    let locus = locus_of(inode.number);
    let geometry = checker.context.geometry();
    let mapping = Mapping::unpack(disk);
    found.extents += 1;
    let device = if kind == ForkKind::Data && inode.is_realtime() {
        ExtentDevice::Realtime
    } else {
        ExtentDevice::Data
    };
    if let Err(rule) = mapping.check(geometry, device) {
        found.is_whole = false;
        return checker.found(locus, rule);
    }
    if mapping.offset.0 < found.end {
        checker.found(locus, MappingRule::Order)?;
    }
    found.end = found.end.max(mapping.end().0);
    let is_file = inode.kind == FileKind::Regular && kind == ForkKind::Data;
    if mapping.is_unwritten && !is_file {
        checker.found(locus, MappingRule::Unwritten)?;
    }
    if mapping.end() > FileBlock::MAX {
        checker.found(locus, MappingRule::Length)?;
    }
    found.first.get_or_insert(mapping.offset.0);
    if device == ExtentDevice::Realtime {
        found.rt_blocks = found.rt_blocks.saturating_add(mapping.count);
        realtime::claim(checker, inode, RtBlock(mapping.start), mapping.count);
        return Ok(());
    }
    found.blocks = found.blocks.saturating_add(mapping.count);
    let (ag, start) = geometry.split(FsBlock(mapping.start));
    let owner = Owner {
        start,
        count: u32::try_from(mapping.count).unwrap_or(u32::MAX),
        owner: RmapOwner(inode.number.get()),
        offset: mapping.offset.0,
        is_attr_fork: kind == ForkKind::Attr,
        is_btree: false,
        is_unwritten: mapping.is_unwritten,
    };
    let is_metadata = inode.flags2.contains(InodeFlags2::METADATA);
    checker.claims.add(ag, &owner, is_file && !is_metadata);
    Ok(())
}

fn fork_walk(inode: &Inode, kind: BtreeKind, fork: ForkKind) -> TreeWalk {
    let claim = Owner {
        start: AgBlock(0),
        count: 0,
        owner: RmapOwner(inode.number.get()),
        offset: 0,
        is_attr_fork: fork == ForkKind::Attr,
        is_btree: true,
        is_unwritten: false,
    };
    let number = inode.number.get();
    TreeWalk::new(kind, number, Locus::inode(number), claim)
}
