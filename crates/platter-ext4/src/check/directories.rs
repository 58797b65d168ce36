//! Directories: their blocks, their entries, and the inodes that these refer to.

use std::collections::HashSet;

use platter_cache::Buffer;
use platter_ondisk::Locus;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::index::Index;
use super::inode_states::Use;
use super::{Checker, DirectoryUseRule, Flow, index, locus_of};
use crate::directory::casefold;
use crate::mapping::{Backing, BlockMap, InlineData};
use crate::ondisk::dir_entry::{DirBlockVerifier, DirEntryRule, Entry, EntryFormat};
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};

/// Minimum length of an encrypted name in bytes.
const ENCRYPTED_NAME_BYTES_MIN: usize = 16;

/// The state of a directory scan.
struct Scan<'a> {
    inode: &'a Inode,
    index: Option<Index>,
    /// Hashes of the names so far, which need less memory than the names.
    names: HashSet<u64>,
    hasher: std::hash::RandomState,
}

/// Checks the entries of all directories, and counts the links that they hold.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let directories = std::mem::take(&mut checker.directories);
    let total = directories.len() as u64;
    for (done, &number) in (0u64..).zip(&directories) {
        if done.is_multiple_of(64) {
            checker.report.progress("directories", done, total)?;
        }
        if let Some(inode) = checker.inode(number) {
            check_directory(checker, &inode)?;
        }
    }
    checker.report.count("directories", total);
    checker.directories = directories;
    Ok(())
}

fn check_directory(checker: &mut Checker<'_>, inode: &Inode) -> Flow {
    let fs = checker.fs;
    let mut scan = Scan {
        inode,
        index: None,
        names: HashSet::new(),
        hasher: std::hash::RandomState::new(),
    };
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return check_inline(checker, &mut scan);
    }
    let Ok(map) = BlockMap::decode(fs, inode) else {
        return Ok(()); // Reported with the inode.
    };
    if inode.flags.contains(InodeFlags::INDEX) {
        scan.index = index::check(checker, inode, &map)?;
    }
    let block_bytes = u64::from(fs.geometry.block_bytes);
    let end = u32::try_from(inode.size_bytes / block_bytes).unwrap_or(u32::MAX);
    let mut block = FileBlock(0);
    while block.0 < end {
        let Ok(run) = map.lookup(fs, block) else {
            return Ok(()); // Reported with the inode.
        };
        let run_end = FileBlock(run.end().0.min(end));
        match run.backing {
            Backing::Hole => {
                let at = locus_of(inode.number).at_offset(u64::from(block.0) * block_bytes);
                checker.found(at, DirectoryUseRule::Hole)?;
            }
            // An unwritten run was reported with the inode.
            Backing::Unwritten(_) => {}
            Backing::Written(start) => {
                let count = u64::from(run_end.0 - block.0);
                if checker.dir_blocks_left < count {
                    let locus = locus_of(inode.number);
                    return checker.found(locus, DirectoryUseRule::TooLarge);
                }
                checker.dir_blocks_left -= count;
                fs.read_ahead(start, count);
                for block in (block.0..run_end.0).map(FileBlock) {
                    check_dir_block(checker, &mut scan, &map, block)?;
                }
            }
        }
        block = run_end;
    }
    Ok(())
}

/// Reads a directory block and validates its checksum.
pub(super) fn read_dir_block(
    checker: &mut Checker<'_>,
    inode: &Inode,
    map: &BlockMap,
    block: FileBlock,
) -> Flow<Option<Buffer>> {
    let fs = checker.fs;
    let locus = locus_of(inode.number);
    let found = map.block(fs, block);
    let Some(Some(place)) = checker.tolerate("directory", locus, found)? else {
        return Ok(None);
    };
    let has_checksum = fs.geometry.features.has_metadata_csum();
    let verifier = DirBlockVerifier {
        inode: inode.number,
        checksum_seed: has_checksum.then_some(inode.checksum_seed),
        is_indexed: inode.flags.contains(InodeFlags::INDEX),
        is_first: block == FileBlock(0),
    };
    let read = fs.read_block(place, &verifier);
    checker.tolerate("directory block", locus.at_block(place.0), read)
}

fn check_dir_block(
    checker: &mut Checker<'_>,
    scan: &mut Scan<'_>,
    map: &BlockMap,
    block: FileBlock,
) -> Flow {
    let is_node = scan
        .index
        .as_ref()
        .is_some_and(|index| index.is_node(block));
    if is_node && block != FileBlock(0) {
        return Ok(());
    }
    let Some(buffer) = read_dir_block(checker, scan.inode, map, block)? else {
        return Ok(());
    };
    let locus = locus_of(scan.inode.number);
    let offset = u64::from(block.0) * u64::from(checker.fs.geometry.block_bytes);
    if !is_node
        && scan
            .index
            .as_ref()
            .is_some_and(|index| !index.contains(block))
    {
        checker.found(locus.at_offset(offset), DirectoryUseRule::NotIndexed)?;
    }
    let is_first = block == FileBlock(0);
    check_entries(
        checker,
        scan,
        &buffer,
        offset,
        Some(block).filter(|_| !is_node),
        is_first,
    )
}

fn check_inline(checker: &mut Checker<'_>, scan: &mut Scan<'_>) -> Flow {
    let fs = checker.fs;
    let locus = locus_of(scan.inode.number);
    let decoded = InlineData::decode(scan.inode, &fs.geometry);
    let Some(data) = checker.tolerate("inline data", locus, decoded)? else {
        return Ok(());
    };
    // The first four bytes are the parent; there are no entries `.` and `..`.
    let (parent, first) = data.first.split_at(4);
    let parent = InodeNr::new(parent.try_into().map_or(0, u32::from_le_bytes));
    checker.inodes.get_mut(scan.inode.number).add_name();
    match parent {
        Some(parent) => {
            checker.dotdots.insert(scan.inode.number, parent);
            if is_in_use(checker, parent) {
                checker.inodes.get_mut(parent).add_name();
            }
        }
        None => checker.found(locus, DirectoryUseRule::DotDot)?,
    }
    check_entries(checker, scan, first, 4, None, false)?;
    check_entries(
        checker,
        scan,
        data.rest,
        data.first.len() as u64,
        None,
        false,
    )
}

fn check_entries(
    checker: &mut Checker<'_>,
    scan: &mut Scan<'_>,
    bytes: &[u8],
    offset: u64,
    leaf: Option<FileBlock>,
    is_first: bool,
) -> Flow {
    let locus = locus_of(scan.inode.number);
    let has_hash = scan.inode.is_encrypted() && scan.inode.flags.contains(InodeFlags::CASEFOLD);
    let format = EntryFormat::new(&checker.fs.geometry, has_hash);
    for (position, entry) in format.entries(bytes).enumerate() {
        let entry = match entry {
            Ok(entry) => entry,
            Err((at, rule)) => {
                return checker.found(locus.at_offset(offset + at as u64), rule);
            }
        };
        let at = locus.at_offset(offset + entry.offset as u64);
        match position {
            0 if is_first => check_dot(checker, scan.inode.number, &entry, at)?,
            1 if is_first => check_dotdot(checker, scan.inode.number, &entry, at)?,
            _ => check_entry(checker, scan, &entry, at, leaf)?,
        }
    }
    Ok(())
}

fn check_dot(checker: &mut Checker<'_>, directory: InodeNr, entry: &Entry<'_>, at: Locus) -> Flow {
    if entry.name != b"." || entry.inode != Some(directory) {
        return checker.found(at, DirectoryUseRule::Dot);
    }
    checker.inodes.get_mut(directory).add_name();
    check_kind(checker, directory, entry, at)
}

fn check_dotdot(
    checker: &mut Checker<'_>,
    directory: InodeNr,
    entry: &Entry<'_>,
    at: Locus,
) -> Flow {
    let Some(parent) = entry.inode.filter(|_| entry.name == b"..") else {
        return checker.found(at, DirectoryUseRule::DotDot);
    };
    checker.dotdots.insert(directory, parent);
    if is_in_use(checker, parent) {
        checker.inodes.get_mut(parent).add_name();
        check_kind(checker, parent, entry, at)?;
    }
    Ok(())
}

fn is_in_use(checker: &Checker<'_>, inode: InodeNr) -> bool {
    checker.inodes.get(inode).used_as != Use::Unused
}

fn check_entry(
    checker: &mut Checker<'_>,
    scan: &mut Scan<'_>,
    entry: &Entry<'_>,
    at: Locus,
    leaf: Option<FileBlock>,
) -> Flow {
    let Some(target) = entry.inode else {
        return Ok(());
    };
    check_name(checker, scan, entry, at, leaf)?;
    if checker.is_lost(target) {
        return Ok(());
    }
    match checker.inodes.get(target).used_as {
        Use::Unused | Use::Orphan | Use::AttributeValue => {
            return checker.found(at, DirectoryUseRule::UnusedInode);
        }
        Use::Reserved => return checker.found(at, DirectoryUseRule::ReservedInode),
        Use::Named => {}
    }
    check_kind(checker, target, entry, at)?;
    let directory = scan.inode.number;
    let state = checker.inodes.get_mut(target);
    state.add_name();
    let has_name = state.parent.is_some() || target == InodeNr::ROOT;
    state.parent.get_or_insert(directory);
    let state = *state;
    if state.kind == Some(FileKind::Directory) && has_name {
        checker.found(at, DirectoryUseRule::SecondName)?;
    }
    let can_be_encrypted = matches!(
        state.kind,
        Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)
    );
    if scan.inode.is_encrypted() && can_be_encrypted && !state.is_encrypted {
        checker.found(at, DirectoryUseRule::NotEncrypted)?;
    }
    Ok(())
}

fn check_name(
    checker: &mut Checker<'_>,
    scan: &mut Scan<'_>,
    entry: &Entry<'_>,
    at: Locus,
    leaf: Option<FileBlock>,
) -> Flow {
    let is_encrypted = scan.inode.is_encrypted();
    if matches!(entry.name, b"." | b"..") {
        checker.found(at, DirectoryUseRule::StrayDot)?;
    } else if is_encrypted {
        if entry.name.len() < ENCRYPTED_NAME_BYTES_MIN {
            checker.found(at, DirectoryUseRule::EncryptedName)?;
        }
    } else if entry.name.iter().any(|&byte| byte == b'/' || byte == 0) {
        checker.found(at, DirEntryRule::NameBytes)?;
    }
    let is_folded = scan.inode.flags.contains(InodeFlags::CASEFOLD) && !is_encrypted;
    let folded = is_folded.then(|| casefold::fold(entry.name).ok()).flatten();
    let compared = folded.as_deref().unwrap_or(entry.name);
    let fingerprint = std::hash::BuildHasher::hash_one(&scan.hasher, compared);
    if !scan.names.insert(fingerprint) {
        checker.found(at, DirectoryUseRule::DuplicateName)?;
    }
    let placed = leaf.zip(scan.index.as_ref());
    if placed.is_some_and(|(leaf, index)| !index.allows(leaf, entry.name)) {
        checker.found(at, DirectoryUseRule::Placement)?;
    }
    Ok(())
}

fn check_kind(checker: &mut Checker<'_>, target: InodeNr, entry: &Entry<'_>, at: Locus) -> Flow {
    let features = checker.fs.geometry.features;
    let has_kind = features
        .incompat
        .contains(crate::ondisk::features::Incompat::FILETYPE);
    let kind = checker.inodes.get(target).kind;
    if has_kind && kind.is_some() && entry.kind != kind {
        checker.found(at, DirectoryUseRule::FileType)?;
    }
    Ok(())
}
