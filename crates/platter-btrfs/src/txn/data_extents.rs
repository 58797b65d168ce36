//! Data: space for it, its bytes on all copies, its checksums, and references to it.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, Error, Result};

use super::{Handle, WriteContext, checksums, chunks, refs, trees};
use crate::block_group::BlockGroup;
use crate::chunk::RowVerifier;
use crate::delayed_refs::{Action, Change, ExtentKind, RefKey};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::features::Incompat;
use crate::ondisk::file_extent::{Compression, ExtentPlace};
use crate::ondisk::item::ItemFormat;
use crate::ondisk::{Generation, LogicalAddr, TreeId};

rules! {
    /// The rules of data that is written.
    pub(super) enum DataRule of "data extent" {
        /// What is moved has a copy that is right.
        NoCopy => "no copy has the right checksum",
        /// Only what nothing durable refers to is written.
        NotAllocated => "write outside of allocated extents",
    }
}

/// A file extent item: the subvolume, the inode, and where in the file it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub inode: u64,
    /// The key's offset.
    pub offset: u64,
}

/// Verifies sectors of data that have checksums.
#[derive(Debug)]
struct SectorVerifier {
    format: ItemFormat,
    stored: BTreeMap<u64, Vec<u8>>,
}

impl RowVerifier for SectorVerifier {
    fn unit_bytes(&self) -> u64 {
        self.format.sector_bytes.into()
    }

    fn verify(&self, logical: LogicalAddr, bytes: &[u8]) -> Option<bool> {
        let stored = self.stored.get(&logical.0)?;
        Some(self.format.checksum_kind.matches(bytes, stored))
    }
}

/// Frees data that was allocated, and nothing refers to. It may have been written, and can be allocated again at
/// once: the last commit does not refer to it, either, and reservations count on it.
pub(crate) fn release(fs: &WriteContext, address: LogicalAddr, len_bytes: u64) -> Result<()> {
    let range = address.0..address.0 + len_bytes;
    fs.new_data.lock().exclude(&range);
    fs.groups.release(address, len_bytes)
}

/// Reserves the space of an extent that a log has, and the extent tree has not. Returns whether it was free.
pub(crate) fn reserve_logged(
    fs: &WriteContext,
    address: LogicalAddr,
    len_bytes: u64,
) -> Result<bool> {
    let end = address.checked_add(len_bytes);
    let end = end.ok_or_else(|| Corrupt::new(Locus::block(address.0), DataRule::NotAllocated))?;
    let read = |group: &BlockGroup| trees::read_free_space(fs, group);
    fs.groups.allocate_at(&(address.0..end.0), &read)
}

/// Lets a block of a log tree be as it is until the next commit is durable.
pub(crate) fn keep_log_block(fs: &WriteContext, address: LogicalAddr) -> Result<()> {
    let len_bytes = fs.node_bytes();
    if reserve_logged(fs, address, len_bytes)? {
        fs.groups.pin_allocation(address, len_bytes)?;
        fs.pinned.lock().add(address.0..address.0 + len_bytes);
    }
    Ok(())
}

/// Writes allocated data to all copies, whole sectors. It is durable when a transaction is that commits
/// later.
///
/// # Errors
/// `Corrupt` for a range that was not allocated since it last had an item in the extent tree.
pub(crate) fn write(fs: &WriteContext, address: LogicalAddr, bufs: &[IoSlice<'_>]) -> Result<()> {
    let len_bytes: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
    let end = address.checked_add(len_bytes);
    if !end.is_some_and(|end| may_write(fs, &(address.0..end.0))) {
        return Err(Corrupt::new(Locus::block(address.0), DataRule::NotAllocated).into());
    }
    let store = fs.blocks().store();
    Ok(store.write_with(address, bufs, &|row| verifier_of(fs, row))?)
}

/// What verifies the data of a range that shares rows with what is written: the checksums that it has now. Where these
/// cannot be read, it is not verified.
fn verifier_of(fs: &WriteContext, range: &Range<u64>) -> Box<dyn RowVerifier> {
    verifier_by(fs, stored_checksums(fs, range).unwrap_or_default())
}

/// Verifies data by these checksums, of sectors by their addresses.
pub(super) fn verifier_by(
    fs: &WriteContext,
    stored: BTreeMap<u64, Vec<u8>>,
) -> Box<dyn RowVerifier> {
    let format = fs.item_format();
    Box::new(SectorVerifier { format, stored })
}

pub(super) fn stored_checksums(
    fs: &WriteContext,
    range: &Range<u64>,
) -> Result<BTreeMap<u64, Vec<u8>>> {
    let open = fs.tree(TreeId::CSUM)?;
    let versions = open.view();
    checksums::stored(fs.blocks(), versions.now.tree, range, fs.item_format())
}

/// Whether each sector of a range was allocated since it last had an item, or is written in place.
fn may_write(fs: &WriteContext, range: &Range<u64>) -> bool {
    if fs.new_data.lock().contains(range) {
        return true;
    }
    let step = fs.context.superblock.sector_bytes;
    let mut sectors = range.clone().step_by(step as usize);
    sectors.all(|at| {
        let sector = at..at + u64::from(step);
        fs.in_place.covers(&sector) || fs.new_data.lock().contains(&sector)
    })
}

/// Says that data is compressed in this form.
pub(crate) fn use_compression(fs: &WriteContext, compression: Compression) {
    let feature = match compression {
        Compression::Lzo => Incompat::COMPRESS_LZO,
        Compression::Zstd => Incompat::COMPRESS_ZSTD,
        Compression::Zlib | Compression::None => return,
    };
    fs.features.lock().incompat |= feature;
}

/// The checksums of data of whole sectors.
#[must_use]
pub(crate) fn checksums_of(fs: &WriteContext, bytes: &[u8]) -> Vec<u8> {
    checksums::of(bytes, fs.item_format())
}

/// Allocates space for data, a multiple of the sector size. It is
/// [referred to](add) or [released](release), in this transaction or a later one.
///
/// # Errors
/// `ENOSPC` if there is no such space in one piece.
pub(crate) fn allocate(handle: &Handle<'_>, len_bytes: u64) -> Result<LogicalAddr> {
    let fs = handle.fs;
    let sector_bytes = fs.context.superblock.sector_bytes.into();
    let kind = BlockGroupFlags::DATA;
    let address = chunks::allocate_space(fs, kind, len_bytes, sector_bytes)?;
    note_allocated(fs, address, len_bytes);
    Ok(address)
}

/// Allocates space for data, or for as much of it as there is in one piece: for all that was reserved, in
/// several calls. Returns how long it is.
///
/// # Errors
/// `ENOSPC` if nothing is free.
pub(crate) fn allocate_part(handle: &Handle<'_>, len_bytes: u64) -> Result<(LogicalAddr, u64)> {
    let sector_bytes = u64::from(handle.fs.context.superblock.sector_bytes);
    let mut len_bytes = len_bytes;
    loop {
        match allocate(handle, len_bytes) {
            Err(Error::Condition(Condition::NoSpace)) if len_bytes > sector_bytes => {
                len_bytes = (len_bytes / 2).next_multiple_of(sector_bytes);
            }
            allocated => return Ok((allocated?, len_bytes)),
        }
    }
}

/// Says that data was allocated.
pub(super) fn note_allocated(fs: &WriteContext, address: LogicalAddr, len_bytes: u64) {
    fs.new_data.lock().add(address.0..address.0 + len_bytes);
}

/// Adds checksums in the running transaction. The caller has no tree locked.
pub(super) fn insert_checksums_in(
    fs: &WriteContext,
    generation: Generation,
    address: LogicalAddr,
    checksums: Vec<u8>,
) -> Result<()> {
    let format = fs.item_format();
    fs.edit(generation, TreeId::CSUM, |editor| {
        checksums::insert(editor, address, checksums, format)
    })
}

/// Adds checksums that were computed [before](checksums_of).
pub(crate) fn insert_checksums(
    handle: &Handle<'_>,
    address: LogicalAddr,
    checksums: Vec<u8>,
) -> Result<()> {
    let format = handle.fs.item_format();
    handle.edit(TreeId::CSUM, |editor| {
        checksums::insert(editor, address, checksums, format)
    })
}

/// Adds the reference of the first file extent to data that was allocated.
pub(crate) fn add(handle: &Handle<'_>, range: FileRange, place: &ExtentPlace) -> Result<()> {
    queue(handle, range, place, Action::Add, true)
}

/// Adds or drops the reference of a file extent to data. Its item is in a leaf of this transaction.
pub(crate) fn change(
    handle: &Handle<'_>,
    range: FileRange,
    place: &ExtentPlace,
    action: Action,
) -> Result<()> {
    queue(handle, range, place, action, false)
}

fn queue(
    handle: &Handle<'_>,
    range: FileRange,
    place: &ExtentPlace,
    action: Action,
    allocates: bool,
) -> Result<()> {
    let change = Change {
        address: place.logical,
        len_bytes: place.disk_bytes,
        kind: ExtentKind::Data,
        reference: RefKey::Data {
            tree: range.tree,
            inode: range.inode,
            offset: range.offset.wrapping_sub(place.offset),
        },
        count: 1,
        action,
        allocates,
        op: None,
    };
    handle.has_changed.store(true, Ordering::Relaxed);
    let queued = refs::queue(handle.fs, &change);
    // Items that refer to it may have been changed.
    queued.inspect_err(|error| handle.fs.abort(error))
}

/// Adds the checksums of data of whole sectors.
#[cfg(test)]
pub(crate) fn add_checksums(handle: &Handle<'_>, address: LogicalAddr, bytes: &[u8]) -> Result<()> {
    insert_checksums(handle, address, checksums_of(handle.fs, bytes))
}
