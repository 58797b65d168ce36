//! Directories: their blocks, their entries, and the inodes that these refer to.

use std::collections::HashSet;

use platter_cache::Buffer;
use platter_ondisk::Locus;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::index::Index;
use super::inode_states::Use;
use super::{Checker, DirectoryUseRule, Flow, locus_of};
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

impl Checker<'_> {
    pub(super) fn check_directories(&mut self) -> Flow {
        let directories = std::mem::take(&mut self.directories);
        let total = directories.len() as u64;
        for (done, &number) in (0u64..).zip(&directories) {
            if done.is_multiple_of(64) {
                self.report.progress("directories", done, total)?;
            }
            if let Some(inode) = self.inode(number) {
                self.check_directory(&inode)?;
            }
        }
        self.report.count("directories", total);
        self.directories = directories;
        Ok(())
    }

    fn check_directory(&mut self, inode: &Inode) -> Flow {
        let fs = self.fs;
        let mut scan = Scan {
            inode,
            index: None,
            names: HashSet::new(),
            hasher: std::hash::RandomState::new(),
        };
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            return self.check_inline(&mut scan);
        }
        let Ok(map) = BlockMap::decode(fs, inode) else {
            return Ok(()); // Reported with the inode.
        };
        if inode.flags.contains(InodeFlags::INDEX) {
            scan.index = self.check_index(inode, &map)?;
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
                    self.found(at, DirectoryUseRule::Hole)?;
                }
                // An unwritten run was reported with the inode.
                Backing::Unwritten(_) => {}
                Backing::Written(start) => {
                    let count = u64::from(run_end.0 - block.0);
                    if self.dir_blocks_left < count {
                        let locus = locus_of(inode.number);
                        return self.found(locus, DirectoryUseRule::TooLarge);
                    }
                    self.dir_blocks_left -= count;
                    fs.read_ahead(start, count);
                    for block in (block.0..run_end.0).map(FileBlock) {
                        self.check_dir_block(&mut scan, &map, block)?;
                    }
                }
            }
            block = run_end;
        }
        Ok(())
    }

    /// Reads a directory block and validates its checksum.
    pub(super) fn read_dir_block(
        &mut self,
        inode: &Inode,
        map: &BlockMap,
        block: FileBlock,
    ) -> Flow<Option<Buffer>> {
        let fs = self.fs;
        let locus = locus_of(inode.number);
        let found = map.block(fs, block);
        let Some(Some(place)) = self.tolerate("directory", locus, found)? else {
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
        self.tolerate("directory block", locus.at_block(place.0), read)
    }

    fn check_dir_block(&mut self, scan: &mut Scan<'_>, map: &BlockMap, block: FileBlock) -> Flow {
        let is_node = scan
            .index
            .as_ref()
            .is_some_and(|index| index.is_node(block));
        if is_node && block != FileBlock(0) {
            return Ok(());
        }
        let Some(buffer) = self.read_dir_block(scan.inode, map, block)? else {
            return Ok(());
        };
        let locus = locus_of(scan.inode.number);
        let offset = u64::from(block.0) * u64::from(self.fs.geometry.block_bytes);
        if !is_node
            && scan
                .index
                .as_ref()
                .is_some_and(|index| !index.contains(block))
        {
            self.found(locus.at_offset(offset), DirectoryUseRule::NotIndexed)?;
        }
        let is_first = block == FileBlock(0);
        self.check_entries_of(
            scan,
            &buffer,
            offset,
            Some(block).filter(|_| !is_node),
            is_first,
        )
    }

    fn check_inline(&mut self, scan: &mut Scan<'_>) -> Flow {
        let fs = self.fs;
        let locus = locus_of(scan.inode.number);
        let decoded = InlineData::decode(scan.inode, &fs.geometry);
        let Some(data) = self.tolerate("inline data", locus, decoded)? else {
            return Ok(());
        };
        // The first four bytes are the parent; there are no entries `.` and `..`.
        let (parent, first) = data.first.split_at(4);
        let parent = InodeNr::new(parent.try_into().map_or(0, u32::from_le_bytes));
        self.inodes.get_mut(scan.inode.number).add_name();
        match parent {
            Some(parent) => {
                self.dotdots.insert(scan.inode.number, parent);
                if self.is_in_use(parent) {
                    self.inodes.get_mut(parent).add_name();
                }
            }
            None => self.found(locus, DirectoryUseRule::DotDot)?,
        }
        self.check_entries_of(scan, first, 4, None, false)?;
        self.check_entries_of(scan, data.rest, data.first.len() as u64, None, false)
    }

    fn check_entries_of(
        &mut self,
        scan: &mut Scan<'_>,
        bytes: &[u8],
        offset: u64,
        leaf: Option<FileBlock>,
        is_first: bool,
    ) -> Flow {
        let locus = locus_of(scan.inode.number);
        let has_hash = scan.inode.is_encrypted() && scan.inode.flags.contains(InodeFlags::CASEFOLD);
        let format = EntryFormat::new(&self.fs.geometry, has_hash);
        for (position, entry) in format.entries(bytes).enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err((at, rule)) => {
                    return self.found(locus.at_offset(offset + at as u64), rule);
                }
            };
            let at = locus.at_offset(offset + entry.offset as u64);
            match position {
                0 if is_first => self.check_dot(scan.inode.number, &entry, at)?,
                1 if is_first => self.check_dotdot(scan.inode.number, &entry, at)?,
                _ => self.check_entry(scan, &entry, at, leaf)?,
            }
        }
        Ok(())
    }

    fn check_dot(&mut self, directory: InodeNr, entry: &Entry<'_>, at: Locus) -> Flow {
        if entry.name != b"." || entry.inode != Some(directory) {
            return self.found(at, DirectoryUseRule::Dot);
        }
        self.inodes.get_mut(directory).add_name();
        self.check_kind(directory, entry, at)
    }

    fn check_dotdot(&mut self, directory: InodeNr, entry: &Entry<'_>, at: Locus) -> Flow {
        let Some(parent) = entry.inode.filter(|_| entry.name == b"..") else {
            return self.found(at, DirectoryUseRule::DotDot);
        };
        self.dotdots.insert(directory, parent);
        if self.is_in_use(parent) {
            self.inodes.get_mut(parent).add_name();
            self.check_kind(parent, entry, at)?;
        }
        Ok(())
    }

    fn is_in_use(&self, inode: InodeNr) -> bool {
        self.inodes.get(inode).used_as != Use::Unused
    }

    fn check_entry(
        &mut self,
        scan: &mut Scan<'_>,
        entry: &Entry<'_>,
        at: Locus,
        leaf: Option<FileBlock>,
    ) -> Flow {
        let Some(target) = entry.inode else {
            return Ok(());
        };
        self.check_name(scan, entry, at, leaf)?;
        if self.is_lost(target) {
            return Ok(());
        }
        match self.inodes.get(target).used_as {
            Use::Unused | Use::Orphan | Use::AttributeValue => {
                return self.found(at, DirectoryUseRule::UnusedInode);
            }
            Use::Reserved => return self.found(at, DirectoryUseRule::ReservedInode),
            Use::Named => {}
        }
        self.check_kind(target, entry, at)?;
        let directory = scan.inode.number;
        let state = self.inodes.get_mut(target);
        state.add_name();
        let has_name = state.parent.is_some() || target == InodeNr::ROOT;
        state.parent.get_or_insert(directory);
        let state = *state;
        if state.kind == Some(FileKind::Directory) && has_name {
            self.found(at, DirectoryUseRule::SecondName)?;
        }
        let can_be_encrypted = matches!(
            state.kind,
            Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)
        );
        if scan.inode.is_encrypted() && can_be_encrypted && !state.is_encrypted {
            self.found(at, DirectoryUseRule::NotEncrypted)?;
        }
        Ok(())
    }

    fn check_name(
        &mut self,
        scan: &mut Scan<'_>,
        entry: &Entry<'_>,
        at: Locus,
        leaf: Option<FileBlock>,
    ) -> Flow {
        let is_encrypted = scan.inode.is_encrypted();
        if matches!(entry.name, b"." | b"..") {
            self.found(at, DirectoryUseRule::StrayDot)?;
        } else if is_encrypted {
            if entry.name.len() < ENCRYPTED_NAME_BYTES_MIN {
                self.found(at, DirectoryUseRule::EncryptedName)?;
            }
        } else if entry.name.iter().any(|&byte| byte == b'/' || byte == 0) {
            self.found(at, DirEntryRule::NameBytes)?;
        }
        let is_folded = scan.inode.flags.contains(InodeFlags::CASEFOLD) && !is_encrypted;
        let folded = is_folded.then(|| casefold::fold(entry.name).ok()).flatten();
        let compared = folded.as_deref().unwrap_or(entry.name);
        let fingerprint = std::hash::BuildHasher::hash_one(&scan.hasher, compared);
        if !scan.names.insert(fingerprint) {
            self.found(at, DirectoryUseRule::DuplicateName)?;
        }
        let placed = leaf.zip(scan.index.as_ref());
        if placed.is_some_and(|(leaf, index)| !index.allows(leaf, entry.name)) {
            self.found(at, DirectoryUseRule::Placement)?;
        }
        Ok(())
    }

    fn check_kind(&mut self, target: InodeNr, entry: &Entry<'_>, at: Locus) -> Flow {
        let features = self.fs.geometry.features;
        let has_kind = features
            .incompat
            .contains(crate::ondisk::features::Incompat::FILETYPE);
        let kind = self.inodes.get(target).kind;
        if has_kind && kind.is_some() && entry.kind != kind {
            self.found(at, DirectoryUseRule::FileType)?;
        }
        Ok(())
    }
}
