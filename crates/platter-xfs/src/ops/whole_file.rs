//! Regular files that are made with all that belongs to them, several of one directory in one transaction. Their contents
//! lie next to each other, and are written before anything names them.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::IoSlice;

use platter_vfs::file::ZEROS;
use platter_vfs::namei::{NamedInode, may_create};
use platter_vfs::{Condition, FileKind, Result, WholeFile};

use super::create::{self, INHERITED, INHERITED_BY_DIRECTORIES, TREE_BLOCKS};
use super::names::{NAME_COST, change_directory};
use super::state::{States, Times, touch};
use super::{Inode, SuperBlock, parents};
use crate::change::{self, Change, Cost, Goal, add_owner, unclaim};
use crate::directory::change::NewEntry;
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::extent::MAPPING_LEN_MAX;
use crate::ondisk::inode::edit::{self, FreshInode};
use crate::ondisk::inode::{InodeFlags, InodeFlags2};
use crate::ondisk::{AgBlock, FileBlock, ForkFormat, ForkKind, InodeNr, Mapping};
use crate::space::Claim;

/// Files of one transaction.
const FILES_MAX: usize = 32;

/// Blocks for contents: reserved, and claimed until they are mapped.
struct Reservation<'s> {
    superblock: &'s SuperBlock,
    claim: Option<Claim>,
    reserved: Cell<u64>,
}

/// Makes as many of the first files as there is no obstacle to. Returns how many.
pub(super) fn create_together(directory: &Inode, files: &[WholeFile<'_>]) -> usize {
    if NamedInode::space(directory).is_err() {
        return 0;
    }
    let _writer = directory.superblock.writers.enter();
    let _order = directory.order.write();
    if !takes_whole_files(directory) {
        return 0;
    }
    let Ok(mut files) = vacant(directory, files) else {
        return 0;
    };
    // Where there is no space for all, there may be for some.
    while !files.is_empty() {
        if let Ok(made) = make_all(directory, files) {
            return made;
        }
        files = &files[..files.len() / 2];
    }
    0
}

/// Whether new files need no more than an inode, a name, and blocks of their own.
fn takes_whole_files(directory: &Inode) -> bool {
    let state = directory.state.read();
    let inherited = INHERITED | INHERITED_BY_DIRECTORIES | InodeFlags::REALTIME;
    !state.inode.flags.intersects(inherited)
        && !state.inode.flags2.contains(InodeFlags2::COWEXTSIZE)
        && may_create(&state.link_state(directory.context())).is_ok()
        && matches!(
            create::default_acl(directory.context(), &state.inode),
            Ok(None)
        )
}

/// The first of the files, those whose names are not there.
fn vacant<'w, 'a>(directory: &Inode, files: &'w [WholeFile<'a>]) -> Result<&'w [WholeFile<'a>]> {
    let state = directory.state.read();
    let entries = state.directory(directory.context())?;
    let mut names: HashSet<&[u8]> = HashSet::new();
    let mut count = 0;
    for file in files.iter().take(FILES_MAX) {
        let (found, _) = entries.locate(file.name)?;
        if found.is_some() || !names.insert(&file.name) {
            break;
        }
        count += 1;
    }
    Ok(&files[..count])
}

impl<'s> Reservation<'s> {
    /// Blocks for the contents of the first files, and how many files those are.
    ///
    /// # Errors
    /// `NoSpace`.
    fn new(directory: &'s Inode, files: &[WholeFile<'_>]) -> Result<(Self, usize)> {
        let context = directory.context();
        let blocks = files.iter().map(|file| blocks_of(directory, file));
        let blocks = blocks.take_while(|&blocks| u64::from(blocks) <= MAPPING_LEN_MAX);
        let all = blocks.clone().fold(0, u32::saturating_add);
        let superblock = &directory.superblock;
        let mut reservation = Self {
            superblock,
            claim: None,
            reserved: Cell::new(0),
        };
        if all == 0 {
            return Ok((reservation, blocks.count()));
        }
        let floor = context.space().floor();
        if !context.mount().free_blocks().try_sub(all.into(), floor) {
            return Err(Condition::NoSpace.into());
        }
        reservation.reserved.set(all.into());
        let (group, _) = context.geometry().split_inode(directory.number);
        let claim = change::claim(context, all, &Goal { at: None, group })?;
        let (mut count, mut used) = (0, 0);
        for blocks in blocks {
            let end = blocks.saturating_add(used);
            if end > claim.count {
                break;
            }
            (count, used) = (count + 1, end);
        }
        reservation.claim = Some(claim);
        reservation.shorten(used);
        Ok((reservation, count))
    }

    /// Returns what is claimed and reserved beyond so many blocks.
    fn shorten(&mut self, count: u32) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        let context = &self.superblock.context;
        if count < claim.count {
            let rest = Claim {
                start: AgBlock(claim.start.0 + count),
                count: claim.count - count,
                ..claim
            };
            unclaim(context, rest);
        }
        self.return_reserved(self.reserved.get().saturating_sub(count.into()));
        self.claim = (count > 0).then_some(Claim { count, ..claim });
    }

    fn return_reserved(&self, count: u64) {
        if count == 0 {
            return;
        }
        self.reserved.set(self.reserved.get() - count);
        let context = &self.superblock.context;
        context.return_reserved(count);
        // Other writers may have failed for want of them.
        context.space().note_returned();
    }

    /// Writes contents, each followed by zeros up to the end of its last block.
    fn write(&self, files: &[WholeFile<'_>]) -> Result<()> {
        let Some(claim) = self.claim else {
            return Ok(());
        };
        let geometry = self.superblock.context.geometry();
        let block_bytes = geometry.block_bytes() as usize;
        let mut bufs = Vec::with_capacity(2 * files.len());
        for file in files {
            let len = file.contents.len();
            let zeros = ZEROS.get(..len.next_multiple_of(block_bytes) - len);
            for buf in [file.contents, zeros.ok_or(Condition::InvalidArgument)?] {
                if !buf.is_empty() {
                    bufs.push(IoSlice::new(buf));
                }
            }
        }
        let start = geometry.fs_block(claim.ag, claim.start);
        self.superblock
            .write_data(geometry.byte_offset(start), &bufs)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            unclaim(&self.superblock.context, claim);
        }
        self.return_reserved(self.reserved.get());
    }
}

fn blocks_of(directory: &Inode, file: &WholeFile<'_>) -> u32 {
    let block_bytes = directory.context().geometry().block_bytes() as usize;
    u32::try_from(file.contents.len().div_ceil(block_bytes)).unwrap_or(u32::MAX)
}

/// What it takes to make so many files with contents.
fn cost(directory: &Inode, files: u32) -> Cost {
    let geometry = directory.context().geometry();
    let chunks = files.div_ceil(geometry.chunk_inodes()) + 1;
    let of_files = Cost {
        extents: 6 + files / 8,
        forks: 1,
        directory_blocks: files / 8,
        inodes: files,
        bytes: 8192,
        blocks: chunks * geometry.chunk_blocks()
            + (1 + files / 8) * 2 * geometry.dir_block_blocks()
            + TREE_BLOCKS,
    };
    // Each long name takes a block of attributes.
    let leaves = if geometry.features.has_parent() {
        files
    } else {
        0
    };
    let pointers = Cost {
        blocks: leaves,
        ..parents::cost(directory.context(), files)
    };
    NAME_COST.and(of_files).and(pointers)
}

fn make_all(directory: &Inode, files: &[WholeFile<'_>]) -> Result<usize> {
    let superblock = &directory.superblock;
    let (mut reservation, count) = Reservation::new(directory, files)?;
    let files = &files[..count];
    if files.is_empty() {
        return Ok(0);
    }
    reservation.write(files)?;
    let cost = cost(directory, u32::try_from(count).unwrap_or(u32::MAX));
    let claim = reservation.claim;
    superblock.change_once(&cost, &[directory], |changing, states| {
        changing.keep_reserved(reservation.reserved.take());
        make_whole_files(directory, changing, states, (files, claim))
    })?;
    reservation.claim = None;
    Ok(count)
}

fn make_whole_files(
    directory: &Inode,
    changing: &mut Change<'_>,
    states: &States<'_>,
    (files, claim): (&[WholeFile<'_>], Option<Claim>),
) -> Result<()> {
    if let Some(claim) = claim {
        changing.groups.take_claim(claim)?;
    }
    let mut left = claim;
    let mut numbers = Vec::with_capacity(files.len());
    for file in files {
        let count = blocks_of(directory, file);
        let blocks = left.map(|left| Claim { count, ..left });
        numbers.push(make_whole(directory, changing, file, blocks)?);
        left = left.map(|left| Claim {
            start: AgBlock(left.start.0 + count),
            ..left
        });
    }
    change_directory(changing, (directory, states.map(directory)), |dir| {
        for (file, &inode) in files.iter().zip(&numbers) {
            dir.insert(&NewEntry {
                name: &file.name,
                inode,
                kind: FileKind::Regular,
            })?;
        }
        let now = directory.superblock.clock.now();
        touch(dir.inode_mut(), Times::of_contents(now))
    })?;
    for (file, &inode) in files.iter().zip(&numbers) {
        parents::add(changing, inode, (directory.number, &file.name))?;
    }
    Ok(())
}

/// Makes an inode with contents that are on the device.
fn make_whole(
    directory: &Inode,
    changing: &mut Change<'_>,
    file: &WholeFile<'_>,
    blocks: Option<Claim>,
) -> Result<InodeNr> {
    let kind = FileKind::Regular;
    let mode = kind.mode_bits() | (file.permissions & 0o7777);
    let fresh = FreshInode {
        mode: u16::try_from(mode).unwrap_or_default(),
        data_format: ForkFormat::Extents,
        uid: file.uid,
        gid: file.gid,
        project: 0,
        links: 1,
        now: directory.superblock.clock.now(),
        flags: InodeFlags::empty(),
        flags2: InodeFlags2::empty(),
        extent_size: 0,
        cow_extent_size: 0,
    };
    let parent = directory.number;
    let mut edit = create::allocate(&directory.superblock, changing, (parent, kind), &fresh)?;
    let number = edit.inode().number;
    if let Some(blocks) = blocks.filter(|blocks| blocks.count > 0) {
        map(changing, &mut edit, blocks)?;
        let size = file.contents.len() as u64;
        edit.change(|bytes| edit::set_size(bytes, size))?;
    }
    let time = Some(file.modified);
    edit.touch([time, time, None])?;
    changing.put(edit);
    Ok(number)
}

/// Maps blocks that were taken as the first of a file.
fn map(changing: &mut Change<'_>, edit: &mut InodeEdit, blocks: Claim) -> Result<()> {
    let number = edit.inode().number;
    let geometry = changing.geometry();
    let mapping = Mapping {
        offset: FileBlock(0),
        start: geometry.fs_block(blocks.ag, blocks.start).0,
        count: blocks.count.into(),
        is_unwritten: false,
    };
    let mut fork = ForkEdit::open(&edit.fork(ForkKind::Data)?, number, geometry)?;
    add_owner(changing, &mapping, number)?;
    fork.map(&mut changing.groups, mapping)?;
    fork.store(edit)?;
    edit.refresh(changing.geometry())
}
