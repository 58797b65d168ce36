//! All inodes: those in use and those that are free, with their forks. Spec: `xfs/ondisk_inode`.

use platter_ondisk::verify::Unverified;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::forks::ForkExtents;
use super::{Checker, ChunkRule, Flow, InodeUseRule, attributes, forks, locus_of, quota, symlinks};
use crate::ondisk::btree::InodeChunk;
use crate::ondisk::inode::{DiskInode, DiskInodeV3, InodeRule, MetafileKind};
use crate::ondisk::{AgInode, AgNr, ForkFormat, Inode, InodeFlags, InodeFlags2, InodeNr};
use zerocopy::FromBytes;

/// More links than an inode can have.
const LINKS_MAX: u32 = i32::MAX as u32;

/// Reads the inodes of all chunks.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let count = u64::from(checker.context.geometry().ag_count());
    for ag in checker.context.geometry().groups() {
        checker.report.progress("inodes", ag.0.into(), count)?;
        let state = checker.groups.get_mut(&ag.0);
        let chunks = state.map(|state| std::mem::take(&mut state.chunks));
        for (nth, chunk) in (0_u32..).zip(chunks.iter().flatten()) {
            if nth % 256 == 255 {
                checker.report.progress("inodes", ag.0.into(), count)?;
            }
            check_chunk_inodes(checker, ag, chunk)?;
        }
    }
    Ok(())
}

/// Reads the inodes of a chunk, cluster by cluster.
fn check_chunk_inodes(checker: &mut Checker<'_>, ag: AgNr, chunk: &InodeChunk) -> Flow {
    let geometry = checker.context.geometry();
    let existing = chunk.existing();
    let (first, offset) = geometry.locate_ag_inode(chunk.start);
    let per_block = geometry.inodes_per_block();
    let cluster = geometry.cluster_blocks();
    let per_cluster = cluster.saturating_mul(per_block).min(64);
    let size = geometry.inode_bytes() as usize;
    for start in (0..64).step_by(per_cluster as usize) {
        let indexes = start..start + per_cluster;
        if indexes.clone().all(|index| existing >> index & 1 == 0) {
            continue;
        }
        let block = first.0.saturating_add(start / per_block.min(64));
        let fs_block = geometry.fs_block(ag, crate::ondisk::AgBlock(block));
        let locus = checker.locus_in(ag, block);
        let read = checker.context.read_blocks(fs_block, cluster, &Unverified);
        let Some(buffer) = checker.tolerate("inode", locus, read)? else {
            checker.is_blind = true;
            checker.misses_entries = true;
            lose_inodes(checker, ag, chunk, indexes);
            continue;
        };
        for index in indexes {
            let inode = AgInode(chunk.start.0.saturating_add(index));
            let Some(number) = geometry.inode_nr(ag, inode) else {
                continue;
            };
            if existing >> index & 1 == 0 {
                continue;
            }
            let at = (index - start) as usize * size + offset;
            let bytes = buffer.get(at..at + size).unwrap_or_default();
            check_inode(checker, bytes, number, chunk.is_allocated(index))?;
        }
    }
    checker.report.count(
        "inodes",
        u64::from(chunk.count - chunk.free_count.min(chunk.count)),
    );
    Ok(())
}

fn lose_inodes(
    checker: &mut Checker<'_>,
    ag: AgNr,
    chunk: &InodeChunk,
    indexes: std::ops::Range<u32>,
) {
    for index in indexes.filter(|&index| chunk.is_allocated(index)) {
        let inode = AgInode(chunk.start.0.saturating_add(index));
        let number = checker.context.geometry().inode_nr(ag, inode);
        if let Some(state) = number.and_then(|number| checker.inodes.get_mut(number)) {
            state.is_corrupt = true;
        }
    }
}

fn check_inode(
    checker: &mut Checker<'_>,
    bytes: &[u8],
    number: InodeNr,
    is_allocated: bool,
) -> Flow {
    let locus = locus_of(number);
    let geometry = checker.context.geometry();
    let decoded = Inode::decode(bytes, number, geometry);
    if let Ok((disk, _)) = DiskInode::ref_from_prefix(bytes) {
        let next = AgInode(disk.next_unlinked.get()).non_null();
        let (ag, _) = geometry.split_inode(number);
        let is_sound = next.is_none_or(|next| geometry.is_ag_inode(ag, next));
        if !is_sound && decoded != Err(InodeRule::Magic) {
            checker.found(locus, InodeUseRule::NextUnlinked)?;
        }
    }
    let inode = match decoded {
        Ok(inode) => inode,
        Err(InodeRule::Unused) => {
            if is_allocated {
                return checker.found(locus, ChunkRule::FreeInodeUsed);
            }
            return check_free_inode(checker, bytes, number);
        }
        Err(rule) => {
            if is_allocated {
                checker.is_blind = true;
                // A directory might have had entries.
                checker.misses_entries = true;
                if let Some(state) = checker.inodes.get_mut(number) {
                    state.is_corrupt = true;
                }
            }
            return checker.found(locus, rule);
        }
    };
    if !is_allocated {
        checker.found(locus, ChunkRule::UsedInodeFree)?;
    }
    if let Some(state) = checker.inodes.get_mut(number) {
        state.kind = Some(inode.kind);
        state.links = inode.links;
        state.generation = inode.generation;
        state.is_metadata = inode.flags2.contains(InodeFlags2::METADATA);
    }
    if inode.kind == FileKind::Directory {
        checker.directories.push(number);
    }
    if inode.flags2.contains(InodeFlags2::REFLINK) {
        checker.sharing.insert(number);
    }
    check_core(checker, bytes, &inode)?;
    let data = forks::check(checker, &inode, &inode.data_fork())?;
    let attrs = match inode.attr_fork() {
        Some(fork) => forks::check(checker, &inode, &fork)?,
        None => ForkExtents {
            is_whole: true,
            ..ForkExtents::default()
        },
    };
    let blocks = data
        .blocks
        .saturating_add(data.rt_blocks)
        .saturating_add(attrs.blocks);
    let is_whole = data.is_whole && attrs.is_whole;
    if is_whole && blocks != inode.blocks {
        checker.found(locus, InodeUseRule::Blocks)?;
    }
    quota::count(
        checker,
        &inode,
        data.blocks.saturating_add(attrs.blocks),
        data.rt_blocks,
    );
    if is_whole {
        attributes::check(checker, &inode, &attrs)?;
        check_contents(checker, &inode, &data)?;
    }
    Ok(())
}

/// Checks the second flags of a free inode, which are those of its last use.
fn check_free_inode(checker: &mut Checker<'_>, bytes: &[u8], number: InodeNr) -> Flow {
    let features = checker.context.geometry().features;
    let Ok((disk, _)) = DiskInodeV3::ref_from_prefix(bytes) else {
        return Ok(());
    };
    if !features.is_v5() {
        return Ok(());
    }
    let flags = InodeFlags2::from_bits_retain(disk.flags2.get());
    let has = |flag| flags.contains(flag);
    if flags.bits() & !InodeFlags2::all().bits() != 0
        || has(InodeFlags2::NREXT64) && !features.has_nrext64()
        || has(InodeFlags2::BIGTIME) && !features.has_bigtime()
        || has(InodeFlags2::REFLINK)
    {
        checker.found(locus_of(number), InodeUseRule::Flags2)?;
    }
    Ok(())
}

/// Checks the fields of an inode that reading it does not depend on.
fn check_core(checker: &mut Checker<'_>, bytes: &[u8], inode: &Inode) -> Flow {
    let locus = locus_of(inode.number);
    let features = checker.context.geometry().features;
    if inode.links > LINKS_MAX {
        checker.found(locus, InodeUseRule::TooManyLinks)?;
    }
    let is_directory = inode.kind == FileKind::Directory;
    let is_file = inode.kind == FileKind::Regular;
    let has = |flags: InodeFlags| inode.flags.intersects(flags);
    let of_directories = InodeFlags::RTINHERIT
        | InodeFlags::EXTSZINHERIT
        | InodeFlags::PROJINHERIT
        | InodeFlags::NOSYMLINKS;
    let of_files = InodeFlags::REALTIME | InodeFlags::EXTSIZE;
    let has_realtime = checker.context.geometry().rt_blocks > 0;
    let is_bitmap = checker.context.superblock.rt_bitmap_inode == Some(inode.number)
        || inode.flags2.contains(InodeFlags2::METADATA);
    if inode.flags.bits() & !InodeFlags::all().bits() != 0
        || !is_directory && has(of_directories)
        || !is_file && has(of_files)
        || !is_bitmap && has(InodeFlags::NEWRTBM)
        || !has_realtime && has(InodeFlags::REALTIME | InodeFlags::RTINHERIT)
    {
        checker.found(locus, InodeUseRule::Flags)?;
    }
    let has2 = |flags: InodeFlags2| inode.flags2.intersects(flags);
    let hints = has2(InodeFlags2::COWEXTSIZE);
    if inode.flags2.bits() & !InodeFlags2::all().bits() != 0
        || hints && !(features.has_reflink() && (is_file || is_directory))
        || hints && inode.is_realtime() && !features.has_rtgroups()
        || has2(InodeFlags2::REFLINK) && inode.is_realtime() && !features.has_rtgroups()
    {
        checker.found(locus, InodeUseRule::Flags2)?;
    }
    let is_metadata = inode.flags2.contains(InodeFlags2::METADATA);
    if inode.version > 1 && inode.metadata_kind != 0 && !is_metadata {
        checker.found(locus, InodeUseRule::OldLinks)?;
    }
    if is_metadata && !is_metafile(inode) {
        checker.found(locus, InodeUseRule::Metadata)?;
    }
    check_hints(checker, inode)?;
    check_sizes(checker, inode)?;
    if inode.attr_format.is_none()
        && let Ok((disk, _)) = DiskInode::ref_from_prefix(bytes)
    {
        let is_wide = inode.flags2.contains(InodeFlags2::NREXT64);
        let extents = if is_wide {
            disk.data_extents.get()
        } else {
            disk.attr_extents.get().into()
        };
        if disk.attr_format != ForkFormat::Extents as u8 || extents != 0 {
            checker.found(locus, InodeRule::AttrFormat)?;
        }
    }
    if let Ok((disk, _)) = DiskInodeV3::ref_from_prefix(bytes)
        && inode.version == 3
    {
        // The places of the counters that this inode does not have.
        let is_unused = if inode.flags2.contains(InodeFlags2::NREXT64) {
            disk.core.attr_extents.get() == 0
        } else {
            disk.core.big_data_extents.get() == 0
        };
        if !is_unused || disk.padding != [0; 12] {
            checker.found(locus, InodeUseRule::Padding)?;
        }
    }
    Ok(())
}

/// Extent size hints, as the kernel validates them.
fn check_hints(checker: &mut Checker<'_>, inode: &Inode) -> Flow {
    const EXTENT_MAX: u32 = (1 << 21) - 1;
    let geometry = checker.context.geometry();
    let locus = locus_of(inode.number);
    let is_realtime = inode.is_realtime()
        || inode.kind == FileKind::Directory && inode.flags.contains(InodeFlags::RTINHERIT);
    let unit = if is_realtime {
        geometry.rt_extent_blocks.max(1)
    } else {
        1
    };
    let is_possible = |hint: u32, is_realtime: bool| {
        hint <= EXTENT_MAX
            && hint.is_multiple_of(unit)
            && (is_realtime || hint <= geometry.ag_blocks / 2)
    };
    let flags = InodeFlags::EXTSIZE | InodeFlags::EXTSZINHERIT;
    let has_hint = inode.flags.intersects(flags);
    let size = inode.extent_size;
    if has_hint && (size == 0 || !is_possible(size, is_realtime)) || !has_hint && size != 0 {
        checker.found(locus, InodeUseRule::ExtentSize)?;
    }
    let has_hint = inode.flags2.contains(InodeFlags2::COWEXTSIZE);
    let size = inode.cow_extent_size;
    if has_hint && (size == 0 || !is_possible(size, false)) || !has_hint && size != 0 {
        checker.found(locus, InodeUseRule::CowExtentSize)?;
    }
    Ok(())
}

fn check_sizes(checker: &mut Checker<'_>, inode: &Inode) -> Flow {
    let locus = locus_of(inode.number);
    let geometry = checker.context.geometry();
    let superblock = &checker.context.superblock;
    let size = inode.size_bytes;
    let is_bad = match inode.kind {
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            size != 0
        }
        FileKind::Symlink => size == 0,
        FileKind::Directory => match inode.data_format {
            ForkFormat::Local => size < 6,
            ForkFormat::Device
            | ForkFormat::Extents
            | ForkFormat::Btree
            | ForkFormat::MetaBtree => {
                size == 0 || !size.is_multiple_of(geometry.dir_block_bytes().into())
            }
        },
        FileKind::Regular => {
            let bitmap = u64::from(superblock.rt_bitmap_blocks) << geometry.block_bits;
            if superblock.rt_bitmap_inode == Some(inode.number) {
                size != bitmap
            } else if superblock.rt_summary_inode == Some(inode.number) {
                size != crate::realtime::summary_bytes(superblock)
            } else {
                // Quota files are read by their mappings alone.
                superblock.quota_inodes.contains(&Some(inode.number)) && size != 0
            }
        }
    };
    if is_bad {
        checker.found(locus, InodeRule::Size)?;
    }
    Ok(())
}

/// Checks what the data fork of a directory or link holds besides entries.
fn check_contents(checker: &mut Checker<'_>, inode: &Inode, data: &ForkExtents) -> Flow {
    match inode.kind {
        FileKind::Symlink => symlinks::check(checker, inode, data),
        FileKind::Directory
        | FileKind::Regular
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => Ok(()),
    }
}

/// Whether a metadata inode is what one has to be.
fn is_metafile(inode: &Inode) -> bool {
    let is_directory = inode.kind == FileKind::Directory;
    let is_kind = match MetafileKind::of(inode.metadata_kind) {
        Some(MetafileKind::Directory) => is_directory,
        Some(_) => inode.kind == FileKind::Regular,
        None => false,
    };
    is_kind && inode.permissions == 0 && inode.uid == 0 && inode.gid == 0
}
