//! Data: space for it, its bytes on all copies, its checksums, and references to it.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, Error, Result};

use super::{Handle, WriteContext, checksums};
use crate::block_group::BlockGroup;
use crate::chunk::RowVerifier;
use crate::delayed_refs::{Action, Change, ExtentKind, RefKey};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::features::Incompat;
use crate::ondisk::file_extent::{Compression, ExtentPlace};
use crate::ondisk::item::ItemFormat;
use crate::ondisk::{LogicalAddr, TreeId};

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

impl WriteContext {
    /// Frees data that was allocated, and nothing refers to. It may have been written, and can be allocated again at
    /// once: the last commit does not refer to it, either, and reservations count on it.
    pub fn release_data(&self, address: LogicalAddr, len_bytes: u64) -> Result<()> {
        let range = address.0..address.0 + len_bytes;
        self.new_data.lock().exclude(&range);
        self.groups.release(address, len_bytes)
    }

    /// Reserves the space of an extent that a log has, and the extent tree has not. Returns whether it was free.
    pub fn reserve_logged(&self, address: LogicalAddr, len_bytes: u64) -> Result<bool> {
        let end = address.checked_add(len_bytes);
        let end =
            end.ok_or_else(|| Corrupt::new(Locus::block(address.0), DataRule::NotAllocated))?;
        let read = |group: &BlockGroup| self.read_free_space(group);
        self.groups.allocate_at(&(address.0..end.0), &read)
    }

    /// Lets a block of a log tree be as it is until the next commit is durable, which is due with it.
    pub fn keep_log_block(&self, address: LogicalAddr) -> Result<()> {
        let len_bytes = self.node_bytes();
        if self.reserve_logged(address, len_bytes)? {
            self.groups.pin_allocation(address, len_bytes)?;
            self.pinned.lock().add(address.0..address.0 + len_bytes);
        }
        self.transactions.change(0, |running| running.blocks += 1);
        Ok(())
    }

    /// Writes allocated data to all copies, whole sectors. It is durable when a transaction is that commits
    /// later.
    ///
    /// # Errors
    /// `Corrupt` for a range that was not allocated since it last had an item in the extent tree.
    pub fn write_data(&self, address: LogicalAddr, bufs: &[IoSlice<'_>]) -> Result<()> {
        let len_bytes: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = address.checked_add(len_bytes);
        if !end.is_some_and(|end| self.may_write(&(address.0..end.0))) {
            return Err(Corrupt::new(Locus::block(address.0), DataRule::NotAllocated).into());
        }
        let store = self.blocks().store();
        Ok(store.write_with(address, bufs, &|row| self.verifier_of(row))?)
    }

    /// What verifies the data of a range: the checksums that it has now. What cannot be read is not verified.
    fn verifier_of(&self, range: &Range<u64>) -> Box<dyn RowVerifier> {
        let format = self.item_format();
        let stored = self.stored_checksums(range).unwrap_or_default();
        Box::new(SectorVerifier { format, stored })
    }

    pub(super) fn stored_checksums(&self, range: &Range<u64>) -> Result<BTreeMap<u64, Vec<u8>>> {
        let open = self.tree(TreeId::CSUM)?;
        let versions = open.view();
        checksums::stored(self.blocks(), versions.now.tree, range, self.item_format())
    }

    /// Whether each sector of a range was allocated since it last had an item, or is written in place.
    fn may_write(&self, range: &Range<u64>) -> bool {
        if self.new_data.lock().contains(range) {
            return true;
        }
        let step = self.context.superblock.sector_bytes;
        let mut sectors = range.clone().step_by(step as usize);
        sectors.all(|at| {
            let sector = at..at + u64::from(step);
            self.in_place.covers(&sector) || self.new_data.lock().contains(&sector)
        })
    }

    /// Says that data is compressed in this form.
    pub fn use_compression(&self, compression: Compression) {
        let feature = match compression {
            Compression::Lzo => Incompat::COMPRESS_LZO,
            Compression::Zstd => Incompat::COMPRESS_ZSTD,
            Compression::Zlib | Compression::None => return,
        };
        self.features.lock().incompat |= feature;
    }

    /// The checksums of data of whole sectors.
    #[must_use]
    pub fn checksums_of(&self, bytes: &[u8]) -> Vec<u8> {
        checksums::of(bytes, self.item_format())
    }
}

impl Handle<'_> {
    /// Allocates space for data, a multiple of the sector size. It is
    /// [referred to](Self::add_data) or [released](Self::release_data), in this transaction or a later one.
    ///
    /// # Errors
    /// `ENOSPC` if there is no such space in one piece.
    pub fn allocate_data(&self, len_bytes: u64) -> Result<LogicalAddr> {
        let fs = self.fs;
        let sector_bytes = fs.context.superblock.sector_bytes.into();
        let kind = BlockGroupFlags::DATA;
        let address = fs.allocate_space(kind, len_bytes, sector_bytes)?;
        fs.new_data.lock().add(address.0..address.0 + len_bytes);
        Ok(address)
    }

    /// Allocates space for data, or for as much of it as there is in one piece: for all that was reserved, in
    /// several calls. Returns how long it is.
    ///
    /// # Errors
    /// `ENOSPC` if nothing is free.
    pub fn allocate_data_part(&self, len_bytes: u64) -> Result<(LogicalAddr, u64)> {
        let sector_bytes = u64::from(self.fs.context.superblock.sector_bytes);
        let mut len_bytes = len_bytes;
        loop {
            match self.allocate_data(len_bytes) {
                Err(Error::Condition(Condition::NoSpace)) if len_bytes > sector_bytes => {
                    len_bytes = (len_bytes / 2).next_multiple_of(sector_bytes);
                }
                allocated => return Ok((allocated?, len_bytes)),
            }
        }
    }

    /// Frees data that was allocated, and nothing refers to. It may have been written.
    pub fn release_data(&self, address: LogicalAddr, len_bytes: u64) -> Result<()> {
        self.fs.release_data(address, len_bytes)
    }

    /// Writes allocated data to all copies, whole sectors. It is durable when the transaction is.
    ///
    /// # Errors
    /// `Corrupt` for a range that was not allocated since it last had an item in the extent tree.
    pub fn write_data(&self, address: LogicalAddr, bytes: &[u8]) -> Result<()> {
        self.fs.write_data(address, &[IoSlice::new(bytes)])
    }

    /// Adds the checksums of data of whole sectors.
    pub fn add_checksums(&self, address: LogicalAddr, bytes: &[u8]) -> Result<()> {
        self.insert_checksums(address, self.fs.checksums_of(bytes))
    }

    /// Adds checksums that were computed [before](WriteContext::checksums_of).
    pub fn insert_checksums(&self, address: LogicalAddr, checksums: Vec<u8>) -> Result<()> {
        let format = self.fs.item_format();
        self.edit(TreeId::CSUM, |editor| {
            checksums::insert(editor, address, checksums, format)
        })
    }

    /// Adds the reference of the first file extent to data that was allocated.
    pub fn add_data(&self, range: FileRange, place: &ExtentPlace) -> Result<()> {
        self.queue_data(range, place, Action::Add, true)
    }

    /// Adds or drops the reference of a file extent to data. Its item is in a leaf of this transaction.
    pub fn change_data(&self, range: FileRange, place: &ExtentPlace, action: Action) -> Result<()> {
        self.queue_data(range, place, action, false)
    }

    fn queue_data(
        &self,
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
        self.has_changed.store(true, Ordering::Relaxed);
        let queued = self.fs.queue(&change);
        // Items that refer to it may have been changed.
        queued.inspect_err(|error| self.fs.abort(error))
    }
}
