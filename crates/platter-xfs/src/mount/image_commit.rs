//! Image commit: takes an offline filesystem from one state to another in one checkpoint of its own log, for
//! changes that were made in a layer above the device.
//!
//! What was free before is written first, as nothing refers to it. All other blocks are metadata, since contents
//! in use are never overwritten there, and form one transaction. So at every flush the device holds the old state
//! or the new one; while blocks are brought to their places, a replay yields the new one.
//!
//! Records of the log bear the UUID of the filesystem, so that none can change it: a new one is in the sector of the primary
//! superblock, which is written while the log is clean and its last record bears none.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_cache::buffer::BlockSize;
use platter_ondisk::Uuid;
use platter_ondisk::verify::Unverified;
use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Error, Result, Unsupported};
use zerocopy::FromBytes;

use super::MountOptions;
use super::split_blocks;
use super::unused::Unused;
use super::writing::has_unlinked;
use crate::context::FsContext;
use crate::ondisk::chunks::CHUNK_BYTES;
use crate::ondisk::inode::{DiskInodeV3, INODE_MAGIC, SYMLINK_BYTES_MAX};
use crate::ondisk::log::BufferType;
use crate::ondisk::{
    AgBlock, AgInode, AgNr, Agi, BasicBlock, BlockKind, Geometry, InodeNr, symlink,
};
use crate::recovery::recover_in_place;
use crate::superblock;
use crate::txn::{self, BlockType, LogDevice, LogPosition, LogState, Transaction};

/// Bytes compared at once.
const COMPARED_BYTES: u64 = 1 << 20;
/// Headers of a group, each in a sector.
const HEADER_SECTORS: u64 = 4;
/// The inode header.
const AGI_SECTOR: u64 = 2;
/// What a part of a block takes in the log in addition to its bytes, and what a block does.
const PART_OVERHEAD: u64 = 12;
const BLOCK_OVERHEAD: u64 = 256;

/// Commit of changes of an offline filesystem to its device.
#[derive(Debug)]
pub struct ImageCommit {
    /// The device with the filesystem as it is.
    pub device: Arc<dyn BlockDevice>,
    /// The same device, for writes to free blocks, which need not be atomic.
    pub unseen: Arc<dyn BlockDevice>,
    /// The filesystem in its new state, offline, in a layer above the device.
    pub new: Arc<dyn BlockDevice>,
    /// What was written there, in ascending order.
    pub written: Vec<Range<u64>>,
    /// As it was mounted above the device, with [`Logging::Scratch`](super::Logging).
    pub options: MountOptions,
    /// For the caches.
    pub budget: Arc<MemoryBudget>,
}

/// What changes.
#[derive(Debug, Default)]
struct Changes {
    /// Ranges of bytes that nothing used.
    unseen: Vec<Range<u64>>,
    /// Blocks in use, by their first byte, with their length and type.
    seen: BTreeMap<u64, (u32, BlockType)>,
    /// The most bytes that they take in the log.
    log_bytes: u64,
}

/// The states before and after.
struct States<'s> {
    /// As it is afterwards.
    after: &'s FsContext,
    geometry: &'s Geometry,
    /// The blocks of directory blocks in several extents afterwards, read when they are asked for.
    split: OnceCell<RangeSet<u64>>,
    /// How far the filesystem reached.
    old_blocks: u64,
    old: Unused,
    new: Unused,
    log: LogDevice,
}

impl ImageCommit {
    /// Makes the device hold what `new` does, durably.
    ///
    /// # Errors
    /// `Unsupported` for changes of more metadata than the log holds, and for a new UUID with changes of other metadata than
    /// superblocks, and the image is as it was; the device's. Before the checkpoint is durable nothing has changed then, and
    /// with it there is something to replay.
    pub fn run(&self) -> Result<()> {
        let external = self.options.log.as_ref();
        let report = recover_in_place(&self.device, external)?;
        let primary = superblock::read(&*self.device)?;
        let log = LogDevice::open(&primary, &self.device, external)?;
        let position = txn::find_position(&log, true)?.after_recovery(&report.position);
        let context = FsContext::new(
            Arc::clone(&self.device),
            None,
            primary,
            Arc::clone(&self.budget),
        );
        let after = self.context_after()?;
        let states = States {
            old_blocks: context.geometry().data_blocks(),
            after: &after,
            geometry: after.geometry(),
            split: OnceCell::new(),
            old: Unused::read(&context)?,
            new: Unused::read(&after)?.with_free_lists(&after)?,
            log,
        };
        let changes = self.compare(&states)?;
        if changes.seen.is_empty() {
            return Ok(());
        }
        let has_unlinked = has_unlinked(&after)?;
        let uuid = after.superblock.uuid;
        if uuid == context.superblock.uuid {
            return self.log(&context, &states, &position, &changes, has_unlinked);
        }
        let (superblocks, counts) = changes.split();
        if has_unlinked {
            return Err(with_unlinked());
        }
        if !self.are_counts_only(states.geometry, &counts)? {
            return Err(with_other_changes());
        }
        if !counts.seen.is_empty() {
            // Nothing looks at them before the superblock says that they are counted.
            self.log(&context, &states, &position, &counts, false)?;
        }
        self.write_superblocks(&states, &superblocks, uuid)
    }

    /// Makes all changes in one checkpoint of the log.
    fn log(
        &self,
        context: &FsContext,
        states: &States<'_>,
        position: &LogPosition,
        changes: &Changes,
        has_unlinked: bool,
    ) -> Result<()> {
        let log = context.open_log(states.log.clone(), position)?;
        // What is logged is verified by its length afterwards.
        log.grow(states.geometry.growth.size());
        let begun = Transaction::begin(context.mount(), log, changes.log_bytes, 1);
        let mut transaction = begun.map_err(too_large)?;
        for (at, (len, what)) in &changes.seen {
            self.add(&mut transaction, *at, *len, what)?;
        }
        for range in &changes.unseen {
            let mut bytes = vec![0; len_of(range)];
            self.new.read_at(range.start, &mut bytes)?;
            self.unseen.write_at(range.start, &bytes)?;
        }
        self.unseen.flush()?;
        let sequence = transaction.commit()?;
        log.force(sequence)?;
        if has_unlinked {
            log.quiesce()?;
            log.shut_down();
            return Ok(());
        }
        log.unmount()
    }

    /// Whether no more changes than the blocks that group headers count of their B-trees.
    fn are_counts_only(&self, geometry: &Geometry, changes: &Changes) -> Result<bool> {
        let sector = u64::from(geometry.sector_bytes());
        for ag in geometry.groups() {
            let at = geometry.ag_offset(ag) + AGI_SECTOR * sector;
            if !changes.seen.contains_key(&at) {
                continue;
            }
            let mut before = vec![0; geometry.sector_bytes() as usize];
            self.device.read_at(at, &mut before)?;
            let after = self.bytes_after(at, geometry.sector_bytes())?;
            let decode = |sector: &[u8]| Agi::decode(sector, geometry, ag).ok();
            let is_recount = |(before, after): (Agi, Agi)| after.is_recount_of(&before);
            if !decode(&before).zip(decode(&after)).is_some_and(is_recount) {
                return Ok(false);
            }
        }
        let is_agi = |what: &BlockType| what.kind == BufferType::Agi;
        Ok(changes.unseen.is_empty() && changes.seen.values().all(|(_, what)| is_agi(what)))
    }

    /// Writes superblocks with another UUID than the log has, durably, the copies as mounts renew them. The log is clean.
    ///
    /// # Errors
    /// Those of the devices. The primary superblock is the one of before or the new one then, and either can be mounted.
    fn write_superblocks(
        &self,
        states: &States<'_>,
        superblocks: &Changes,
        uuid: Uuid,
    ) -> Result<()> {
        let (geometry, log) = (states.geometry, &states.log);
        let position = txn::find_position(log, true)?;
        if position.state == LogState::Dirty {
            return Err(with_other_changes());
        }
        txn::set_last_uuid(log, &position, Uuid::nil())?;
        let sector = self.bytes_after(0, geometry.sector_bytes())?;
        self.device.write_at(0, &sector)?;
        self.device.flush()?;
        // After a crash, a mount of Linux gives the last record its UUID and renews no copies: then the first one shows that they
        // are stale.
        superblock::write_copies(&*self.device, geometry, &sector, |ag| {
            let at = geometry.ag_offset(ag);
            superblocks.seen.contains_key(&at)
        })?;
        txn::set_last_uuid(log, &position, uuid)
    }

    /// The filesystem as it is afterwards.
    fn context_after(&self) -> Result<FsContext> {
        let device = Arc::clone(&self.new);
        let primary = superblock::read(&*device)?;
        Ok(FsContext::new(
            device,
            None,
            primary,
            Arc::clone(&self.budget),
        ))
    }

    /// Adds a block to the transaction: what differs, or all of it where what was there does not verify as what it is now.
    fn add(
        &self,
        transaction: &mut Transaction<'_>,
        at: u64,
        len: u32,
        what: &BlockType,
    ) -> Result<()> {
        let bytes = self.bytes_after(at, len)?;
        let (place, size) = (BasicBlock::of_byte(at), BlockSize::new(len));
        let size = size.ok_or(Condition::InvalidArgument)?;
        let edited = transaction.edit(place, size, what, |old| {
            old.copy_from_slice(&bytes);
            Ok(())
        });
        if edited.is_err() {
            transaction.create(place, size, what, bytes);
        }
        Ok(())
    }

    fn bytes_after(&self, at: u64, len: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.new.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    fn compare(&self, states: &States<'_>) -> Result<Changes> {
        let mut changes = Changes::default();
        let block_bytes = u64::from(states.geometry.block_bytes());
        let mut next = 0;
        for written in &self.written {
            // Places in one block may come as several ranges.
            let start = (written.start / block_bytes * block_bytes).max(next);
            let end = written.end.next_multiple_of(block_bytes);
            let end = end.min(states.geometry.len_bytes()).max(start);
            next = end;
            let mut at = start;
            while at < end {
                let chunk = at..end.min(at.saturating_add(COMPARED_BYTES));
                at = chunk.end;
                self.compare_chunk(states, &chunk, &mut changes)?;
            }
        }
        Ok(changes)
    }

    fn compare_chunk(
        &self,
        states: &States<'_>,
        chunk: &Range<u64>,
        changes: &mut Changes,
    ) -> Result<()> {
        let block_bytes = u64::from(states.geometry.block_bytes());
        let (mut old, mut new) = (vec![0; len_of(chunk)], vec![0; len_of(chunk)]);
        self.device.read_at(chunk.start, &mut old)?;
        self.new.read_at(chunk.start, &mut new)?;
        let size = usize::try_from(block_bytes).unwrap_or(usize::MAX);
        let starts = (chunk.start..).step_by(size);
        for ((before, after), at) in old.chunks(size).zip(new.chunks(size)).zip(starts) {
            let block = at / block_bytes;
            let is_log = states.log.overlaps_data(at, block_bytes);
            if before == after || is_log {
                continue;
            }
            if block >= states.old_blocks || states.old.has(block) {
                match changes.unseen.last_mut() {
                    Some(last) if last.end == at && last.start >= chunk.start => {
                        last.end += block_bytes;
                    }
                    _ => changes.unseen.push(at..at + block_bytes),
                }
            } else if !states.new.has(block) {
                self.add_seen(states, at, (before, after), changes)?;
            }
        }
        Ok(())
    }

    /// Adds what changes of a block that is in use before and after.
    fn add_seen(
        &self,
        states: &States<'_>,
        at: u64,
        (before, after): (&[u8], &[u8]),
        changes: &mut Changes,
    ) -> Result<()> {
        let geometry = states.geometry;
        let sector = u64::from(geometry.sector_bytes());
        let ag_bytes = u64::from(geometry.ag_blocks) << geometry.block_bits;
        let within = at.checked_rem(ag_bytes).unwrap_or_default();
        if within < HEADER_SECTORS * sector {
            let size = usize::try_from(sector).unwrap_or(usize::MAX);
            let sectors = before.chunks(size).zip(after.chunks(size));
            for ((before, after), at) in sectors.zip((at..).step_by(size)) {
                let is_header = at % ag_bytes < HEADER_SECTORS * sector;
                if before == after || !is_header {
                    continue;
                }
                let what = BlockType::of_header(geometry, BasicBlock::of_byte(at), after);
                let what = what.ok_or_else(unknown)?;
                changes.add(geometry, at, (before, after), what);
            }
            return Ok(());
        }
        if is_in_list(&changes.seen, at) {
            return Ok(());
        }
        if is_inodes(geometry, at, after) {
            let what = BlockType::with_verifier(BufferType::Inodes, Arc::new(Unverified));
            changes.add(geometry, at, (before, after), what);
            return Ok(());
        }
        let (start, len, what) = match self.find_block(geometry, at)? {
            Some(found) => found,
            // Nothing in a part of a directory block in several extents shows what it is.
            None if states.is_split(at)? => {
                let what = BlockType::new(BlockKind::DirPart, 0);
                (at, geometry.block_bytes(), what)
            }
            None => return Err(unknown()),
        };
        let mut before = vec![0; len as usize];
        self.device.read_at(start, &mut before)?;
        let after = self.bytes_after(start, len)?;
        changes.add(geometry, start, (&before, &after), what);
        Ok(())
    }

    /// The block of metadata that lies at a byte: its start, its length and its type; `None` if no block there bears one.
    /// Those of directories may be several blocks of the filesystem, and so may be targets of links.
    fn find_block(&self, geometry: &Geometry, at: u64) -> Result<Option<(u64, u32, BlockType)>> {
        let (block, dir_block) = (geometry.block_bytes(), geometry.dir_block_bytes());
        let matches = |start: u64, len: u32| -> Result<Option<BlockType>> {
            let bytes = self.bytes_after(start, len)?;
            let place = BasicBlock::of_byte(start);
            let what = BlockType::of_block(geometry, place, &bytes);
            let is_sound = |what: &BlockType| {
                what.verifier(geometry, |verifier| {
                    verifier.verify(place.0, &bytes).is_ok()
                })
            };
            Ok(what.filter(is_sound))
        };
        let target = u32::try_from(SYMLINK_BYTES_MAX).unwrap_or(u32::MAX);
        let target = block.saturating_mul(symlink::blocks(target, geometry));
        for len in BTreeSet::from([block, target, dir_block]) {
            for back in (0..len).step_by(block as usize) {
                let start = at.checked_sub(back.into());
                let start = start.filter(|start| start + u64::from(len) <= geometry.len_bytes());
                let Some(start) = start else {
                    continue;
                };
                if let Some(what) = matches(start, len)? {
                    return Ok(Some((start, len, what)));
                }
            }
        }
        Ok(None)
    }
}

impl States<'_> {
    /// Whether a block is of a directory block that lies in several extents.
    fn is_split(&self, at: u64) -> Result<bool> {
        if self.geometry.dir_block_blocks() == 1 {
            return Ok(false);
        }
        let block = at >> self.geometry.block_bits;
        if let Some(split) = self.split.get() {
            return Ok(split.contains(block));
        }
        let split = split_blocks::read(self.after)?;
        Ok(self.split.get_or_init(|| split).contains(block))
    }
}

impl Changes {
    /// The superblocks, and everything else.
    fn split(self) -> (Self, Self) {
        let is_superblock = |what: &BlockType| what.kind == BufferType::Superblock;
        let seen = self.seen.into_iter();
        let (superblocks, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            seen.partition(|(_, (_, what))| is_superblock(what));
        let superblocks = Self {
            seen: superblocks,
            ..Self::default()
        };
        let others = Self {
            seen: others,
            unseen: self.unseen,
            log_bytes: self.log_bytes,
        };
        (superblocks, others)
    }

    fn add(
        &mut self,
        geometry: &Geometry,
        at: u64,
        (before, after): (&[u8], &[u8]),
        what: BlockType,
    ) {
        let parts = before.chunks(CHUNK_BYTES).zip(after.chunks(CHUNK_BYTES));
        let changed = parts.filter(|(before, after)| before != after).count() as u64;
        // What was of another type or owner, or of a group of another length, is logged whole.
        let place = BasicBlock::of_byte(at).0;
        let is_edited = what.verifier(geometry, |verifier| verifier.verify(place, before).is_ok());
        let len = after.len() as u64;
        self.log_bytes += BLOCK_OVERHEAD
            + if is_edited {
                (changed + 1) * (CHUNK_BYTES as u64 + PART_OVERHEAD)
            } else {
                len + PART_OVERHEAD
            };
        let len = u32::try_from(after.len()).unwrap_or(u32::MAX);
        self.seen.insert(at, (len, what));
    }
}

/// Whether a block that begins before a byte reaches beyond it.
fn is_in_list(seen: &BTreeMap<u64, (u32, BlockType)>, at: u64) -> bool {
    let before = seen.range(..=at).next_back();
    before.is_some_and(|(start, (len, _))| start + u64::from(*len) > at)
}

/// Whether a block holds inodes. Names in a later block of a directory block may look like their magic numbers, but not like the
/// number and the UUID of one.
fn is_inodes(geometry: &Geometry, at: u64, block: &[u8]) -> bool {
    let magic = INODE_MAGIC.to_be_bytes();
    let inodes = block.chunks(geometry.inode_bytes() as usize);
    if !inodes.clone().all(|inode| inode.starts_with(&magic)) {
        return false;
    }
    let (block, ag_blocks) = (at >> geometry.block_bits, geometry.ag_blocks.max(1));
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let ag = AgNr(narrow(block / u64::from(ag_blocks)));
    let first = geometry.first_ag_inode(AgBlock(narrow(block % u64::from(ag_blocks))));
    inodes.zip(0..).any(|(inode, index)| {
        let number = first.0.checked_add(index);
        let number = number.and_then(|number| geometry.inode_nr(ag, AgInode(number)));
        let disk = DiskInodeV3::ref_from_prefix(inode);
        disk.is_ok_and(|(disk, _)| {
            Some(disk.number.get()) == number.map(InodeNr::get)
                && disk.uuid == *geometry.meta_uuid.as_bytes()
        })
    })
}

fn len_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or_default()
}

fn too_large(error: Error) -> Error {
    if !matches!(error, Error::Unsupported(_)) {
        return error;
    }
    Unsupported {
        filesystem: "xfs",
        feature: "an edit that changes more metadata than the log holds".to_owned(),
        reason: Some("make it in several steps, or in a mount"),
    }
    .into()
}

fn with_other_changes() -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: "a new UUID together with other changes".to_owned(),
        reason: Some("change the UUID by a command of its own"),
    }
    .into()
}

fn with_unlinked() -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: "a new UUID while unlinked inodes are left to be freed".to_owned(),
        reason: Some("mount the filesystem for writing once first"),
    }
    .into()
}

fn unknown() -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: "an edit that overwrites what is no metadata".to_owned(),
        reason: Some("make it in a mount"),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use platter_block::{OverlayDevice, OverlayOptions};
    use platter_ondisk::Uuid;
    use platter_vfs::{CreateKind, Filesystem};

    use super::super::tests::{budget, create, device_of, mount};
    use super::*;
    use crate::inode;
    use crate::mapping::ForkMap;
    use crate::mkfs::MkfsOptions;
    use crate::ondisk::inode::free::initialise;
    use crate::ondisk::{FileBlock, FsBlock};

    #[test]
    fn target_of_a_link_is_found_by_each_of_its_blocks() {
        let device = device_of(&MkfsOptions {
            block_bytes: Some(1024),
            ..MkfsOptions::new(Uuid::from_bytes([7; 16]))
        });
        let xfs = mount(&device);
        let kind = CreateKind::Symlink(vec![b't'; 1023]);
        let link = create(&*xfs.root().unwrap(), "link", kind).unwrap();
        let number = InodeNr::new(link.id().number).unwrap();
        let context = xfs.context();
        let geometry = context.geometry().clone();
        let map = ForkMap::of_data(context, &inode::read(context, number).unwrap()).unwrap();
        let mapping = map
            .lookup(context, FileBlock(0))
            .unwrap()
            .mapping()
            .unwrap();
        assert_eq!(mapping.count, 2);
        drop(link);
        xfs.unmount().unwrap();
        let commit = ImageCommit {
            device: Arc::clone(&device),
            unseen: Arc::clone(&device),
            new: device,
            written: Vec::new(),
            options: MountOptions::default(),
            budget: budget(),
        };
        let start = geometry.byte_offset(FsBlock(mapping.start));
        for at in [start, start + 1024] {
            let (found, len, what) = commit.find_block(&geometry, at).unwrap().unwrap();
            assert_eq!((found, len, what.kind), (start, 2048, BufferType::Symlink));
        }
    }

    #[test]
    fn overwritten_contents_are_refused_with_split_blocks() {
        let device = device_of(&MkfsOptions {
            block_bytes: Some(1024),
            ..MkfsOptions::new(Uuid::from_bytes([7; 16]))
        });
        let xfs = mount(&device);
        let file = create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
        file.write_at(0, &[1; 1024]).unwrap();
        file.sync(false).unwrap();
        let number = InodeNr::new(file.id().number).unwrap();
        let context = xfs.context();
        let map = ForkMap::of_data(context, &inode::read(context, number).unwrap()).unwrap();
        let run = map.lookup(context, FileBlock(0)).unwrap();
        let start = FsBlock(run.mapping().unwrap().start);
        let at = context.geometry().byte_offset(start);
        drop(file);
        xfs.unmount().unwrap();
        let new = Arc::new(OverlayDevice::new(
            Arc::clone(&device),
            OverlayOptions::default(),
        ));
        new.write_at(at, &[2; 1024]).unwrap();
        let commit = ImageCommit {
            device: Arc::clone(&device),
            unseen: Arc::clone(&device),
            new,
            written: std::iter::once(at..at + 1024).collect(),
            options: MountOptions::default(),
            budget: budget(),
        };
        assert!(matches!(commit.run(), Err(Error::Unsupported(_))));
        let mut contents = [0; 1024];
        device.read_at(at, &mut contents).unwrap();
        assert_eq!(contents, [1; 1024]);
    }

    #[test]
    fn names_that_look_like_inodes_are_none() {
        let geometry = crate::ondisk::geometry::tests::sample_geometry();
        let at = geometry.ag_offset(AgNr(1)) + 3000 * 4096;
        let mut block = vec![0; 4096];
        for (image, index) in block.chunks_mut(512).zip(0..) {
            let number = geometry.inode_nr(AgNr(1), AgInode(24000 + index));
            initialise(image, &geometry, number.unwrap(), 1);
        }
        assert!(is_inodes(&geometry, at, &block));
        // A block with one corrupt inode holds inodes.
        block[152] ^= 1;
        assert!(is_inodes(&geometry, at, &block));
        assert!(!is_inodes(&geometry, at + 4096, &block));
        for name in block.chunks_mut(512) {
            name[2..].fill(b'n');
        }
        assert!(!is_inodes(&geometry, at, &block));
    }
}
