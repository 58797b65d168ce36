//! The initial files: the root directory, `lost+found`, the journal, and the resize inode.

use std::ops::Range;
use std::sync::{Arc, Weak};

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_vfs::clock::FixedClock;
use platter_vfs::{Clock, FileKind, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::shape::{JOURNAL_BACKUP, Shape};
use super::skeleton::zero;
use crate::alloc::{self, Allocator, RECORD_CREDITS, Reserve};
use crate::groups::backups::backup_groups;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, BlockMap, MapChange, Run};
use crate::ondisk::dir_entry::{DirBlockVerifier, EntryFormat, split_new_tail};
use crate::ondisk::features::{Compat, Incompat, RoCompat};
use crate::ondisk::inode::InodeFlags;
use crate::ondisk::jbd2::superblock::DiskJournalSuperblock;
use crate::ondisk::quota::QuotaKind;
use crate::ondisk::{BlockNr, FileBlock, Geometry, Inode, InodeNr};
use crate::quota::Charge;
use crate::quota_file::{QuotaFile, QuotaFiles};
use crate::txn::{CommitClient, Handle};
use crate::{FsContext, groups, superblock};

/// Length of `lost+found` in bytes: repairs must not need to allocate blocks for it.
const LOST_FOUND_BYTES: u32 = 16 << 10;
/// Maximum length of a directory that needs no indirect block.
const DIRECT_BLOCKS: u32 = 12;
/// Length of the inode fields after the first 128 bytes.
const EXTRA_INODE_BYTES: u16 = 32;
/// Index of the doubly indirect block in `i_block`.
const DOUBLY_INDIRECT: usize = 13;
/// Credits of every handle; there is only one at a time.
const CREDITS: u32 = 64;

/// Returns the inode of `lost+found`: the first that is not reserved.
pub(super) fn lost_found(geometry: &Geometry) -> Option<InodeNr> {
    InodeNr::new(geometry.first_inode)
}

/// Creates the files.
pub(super) struct OwnFiles<'a> {
    fs: &'a FsContext,
    space: Arc<Allocator>,
    clock: &'a dyn Clock,
    is_zero: bool,
}

impl<'a> OwnFiles<'a> {
    pub(super) fn new(fs: &'a FsContext, clock: &'a dyn Clock, is_zero: bool) -> Result<Self> {
        let space = Arc::new(Allocator::open(fs)?);
        if let Some(log) = fs.log() {
            let client: Weak<Allocator> = Arc::downgrade(&space);
            log.attach(client as Weak<dyn CommitClient>);
        }
        Ok(Self {
            fs,
            space,
            clock,
            is_zero,
        })
    }

    /// Makes all files and the counts durable.
    pub(super) fn make(&self, shape: &Shape, owner: (u32, u32)) -> Result<()> {
        self.make_directories(owner)?;
        if self
            .fs
            .geometry
            .features
            .compat
            .contains(Compat::RESIZE_INODE)
        {
            self.make_resize_inode()?;
        }
        if let Some(blocks) = shape.journal_blocks {
            self.make_journal(blocks)?;
        }
        self.make_quota_files()?;
        let overhead = groups::metadata_clusters(self.fs)?
            + shape
                .journal_blocks
                .map_or(0, u64::from)
                .div_ceil(u64::from(self.fs.geometry.cluster_blocks));
        let mut handle = self.fs.begin(CREDITS)?;
        superblock::edit(self.fs, &mut handle, |disk| {
            disk.overhead_clusters
                .set(u32::try_from(overhead).unwrap_or(0));
        })?;
        drop(handle);
        match self.fs.log() {
            Some(log) => log.close(),
            None => Ok(()),
        }
    }

    fn make_directories(&self, (uid, gid): (u32, u32)) -> Result<()> {
        let geometry = &self.fs.geometry;
        let Some(lost_found) = lost_found(geometry) else {
            return Ok(());
        };
        let block_bytes = geometry.block_bytes;
        let blocks = LOST_FOUND_BYTES
            .div_ceil(block_bytes)
            .clamp(1, DIRECT_BLOCKS);
        let mut root = self.new_inode(InodeNr::ROOT, FileKind::Directory, 0o755);
        (root.links, root.uid, root.gid) = (3, uid, gid);
        self.make_directory(root, InodeNr::ROOT, 1, Some(lost_found))?;
        let mut orphanage = self.new_inode(lost_found, FileKind::Directory, 0o700);
        orphanage.links = 2;
        self.make_directory(orphanage, InodeNr::ROOT, blocks, None)
    }

    fn make_directory(
        &self,
        mut inode: Inode,
        parent: InodeNr,
        blocks: u32,
        child: Option<InodeNr>,
    ) -> Result<()> {
        let geometry = &self.fs.geometry;
        let format = EntryFormat::new(geometry, false);
        let mut handle = self.fs.begin(CREDITS)?;
        let mut map = BlockMap::begin(self.fs, &mut inode);
        for run in self.map(&mut handle, &mut inode, &mut map, blocks)? {
            for (number, place) in (run.first.0..).zip(run.places()) {
                let mut bytes = vec![0; geometry.block_bytes as usize];
                let content = if geometry.features.has_metadata_csum() {
                    split_new_tail(&mut bytes)
                } else {
                    &mut bytes
                };
                if number == 0 {
                    format.begin(content, inode.number, parent);
                } else {
                    format.clear(content);
                }
                if let Some(child) = child {
                    format.insert(content, b"lost+found", child, FileKind::Directory);
                }
                let verifier = DirBlockVerifier {
                    inode: inode.number,
                    checksum_seed: geometry
                        .features
                        .has_metadata_csum()
                        .then_some(inode.checksum_seed),
                    is_indexed: false,
                    is_first: number == 0,
                };
                handle.create(place, &verifier, bytes)?;
            }
        }
        inode.size_bytes = u64::from(blocks) * u64::from(geometry.block_bytes);
        inode::initialize(self.fs, &mut handle, &inode)
    }

    /// Makes the quota files, with the usage of the two directories.
    fn make_quota_files(&self) -> Result<()> {
        let fs = self.fs;
        if !fs.geometry.features.ro_compat.contains(RoCompat::QUOTA) {
            return Ok(());
        }
        for (kind, number) in QuotaKind::ALL.into_iter().zip(fs.superblock.quota_inodes) {
            let Some(number) = number else { continue };
            let mut inode = self.new_inode(number, FileKind::Regular, 0o600);
            inode.links = 1;
            inode.flags |= InodeFlags::IMMUTABLE;
            let mut handle = fs.begin(CREDITS)?;
            QuotaFile::begin(fs, &self.space, &mut handle, kind, inode)?;
        }
        let clock = Arc::new(FixedClock::new(self.clock.now(), 0));
        let files = QuotaFiles::open(fs, &self.space, [false; 3], clock)?;
        let Some((files, table)) = files else {
            return Ok(());
        };
        let directories = [Some(InodeNr::ROOT), lost_found(&fs.geometry)];
        for number in directories.into_iter().flatten() {
            let charge = Charge::of(&inode::read(fs, number)?, 0);
            files.add_missing(fs, &self.space, &table, &charge.owners)?;
            let mut handle = fs.begin(CREDITS)?;
            table.change(&mut handle, &charge.nothing(), &charge, 0)?;
        }
        Ok(())
    }

    fn make_journal(&self, blocks: u32) -> Result<()> {
        let geometry = &self.fs.geometry;
        let mut inode = self.new_inode(InodeNr::JOURNAL, FileKind::Regular, 0o600);
        inode.links = 1;
        let mut map = BlockMap::begin(self.fs, &mut inode);
        let mut handle = self.fs.begin(CREDITS)?;
        let runs = self.map(&mut handle, &mut inode, &mut map, blocks)?;
        inode.size_bytes = u64::from(blocks) * u64::from(geometry.block_bytes);
        inode::initialize(self.fs, &mut handle, &inode)?;
        superblock::edit(self.fs, &mut handle, |disk| {
            disk.journal_inode.set(InodeNr::JOURNAL.get());
            disk.journal_backup_type = JOURNAL_BACKUP;
            let numbers = <[Le32]>::ref_from_bytes(&inode.block).unwrap_or_default();
            for (to, from) in disk.journal_blocks.iter_mut().zip(numbers) {
                *to = *from;
            }
            let size = inode.size_bytes;
            let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
            let [.., high, rest] = &mut disk.journal_blocks;
            (*high, *rest) = (low(size >> 32).into(), low(size).into());
        })?;
        drop(handle);
        let device = self.fs.device();
        let block_bytes = u64::from(geometry.block_bytes);
        for run in &runs {
            for place in run.places().filter(|_| !self.is_zero) {
                zero(&**device, geometry.offset_bytes(place), block_bytes)?;
            }
        }
        let first = runs.first().and_then(|run| run.places().next());
        if let Some(first) = first {
            let disk = DiskJournalSuperblock::new(geometry.block_bytes, blocks, &geometry.uuid);
            device.write_at(geometry.offset_bytes(first), disk.as_bytes())?;
        }
        Ok(())
    }

    /// Creates the resize inode, which owns the reserved descriptor blocks.
    fn make_resize_inode(&self) -> Result<()> {
        let geometry = &self.fs.geometry;
        let mut inode = self.new_inode(InodeNr::RESIZE, FileKind::Regular, 0o600);
        inode.flags -= InodeFlags::EXTENTS;
        inode.links = 1;
        let mut handle = self.fs.begin(CREDITS)?;
        let per_block = geometry.block_bytes as usize / size_of::<Le32>();
        let mut root = vec![Le32::default(); per_block];
        let backups = backup_groups(geometry);
        let table = u64::from(geometry.descriptor_blocks());
        for index in 0..u64::from(geometry.reserved_gdt_blocks) {
            let skipped = 1 + table + index;
            let block = geometry.superblock_block.0 + skipped;
            let slot = usize::try_from(table + index).unwrap_or(0) % per_block;
            set(&mut root, slot, block);
            let mut copies = vec![Le32::default(); per_block];
            for (slot, &group) in backups.iter().enumerate() {
                set(
                    &mut copies,
                    slot,
                    geometry.group_first_block(group).0 + skipped,
                );
            }
            // There may be more than a transaction holds, and they are not read meanwhile.
            let device = self.fs.device();
            device.write_at(geometry.offset_bytes(BlockNr(block)), copies.as_bytes())?;
        }
        let blocks = self.alloc(&mut handle, 1)?;
        handle.create(blocks.start, &Unverified, root.as_bytes())?;
        if let Ok(numbers) = <[Le32]>::mut_from_bytes(&mut inode.block) {
            set(numbers, DOUBLY_INDIRECT, blocks.start.0);
        }
        // The limit of a mapping with singly and doubly indirect blocks.
        let per_block = per_block as u64;
        let blocks = per_block * per_block + per_block + u64::from(DIRECT_BLOCKS);
        inode.size_bytes = blocks * u64::from(geometry.block_bytes);
        let held = 1 + u64::from(geometry.reserved_gdt_blocks) * (1 + backups.len() as u64);
        // With larger clusters, each block counts as one.
        inode.sectors = held * cluster_sectors(geometry);
        inode::initialize(self.fs, &mut handle, &inode)
    }

    fn new_inode(&self, number: InodeNr, kind: FileKind, permissions: u32) -> Inode {
        let geometry = &self.fs.geometry;
        let mut inode = Inode::new(number, kind, 0, EXTRA_INODE_BYTES, geometry);
        let now = self.clock.now();
        inode.permissions = permissions;
        (inode.accessed, inode.modified, inode.changed) = (now, now, now);
        inode.created = (inode.extra_bytes > 0).then_some(now);
        if geometry.features.incompat.contains(Incompat::EXTENTS) {
            inode.flags |= InodeFlags::EXTENTS;
        }
        inode
    }

    /// Allocates and maps the first `count` blocks of an inode.
    fn map(
        &self,
        handle: &mut Handle<'_>,
        inode: &mut Inode,
        map: &mut BlockMap,
        count: u32,
    ) -> Result<Vec<Run>> {
        let geometry = &self.fs.geometry;
        let mut runs = Vec::new();
        let mut at = 0;
        while at < count {
            handle.extend(RECORD_CREDITS + STORE_CREDITS + map.step_credits());
            let blocks = self.alloc(handle, count - at)?;
            let mut run = Run {
                first: FileBlock(at),
                count: u32::try_from(blocks.end.0 - blocks.start.0).unwrap_or(u32::MAX),
                backing: Backing::Written(blocks.start),
            };
            let clusters = run.count.div_ceil(geometry.cluster_blocks);
            inode.sectors += u64::from(clusters) * cluster_sectors(geometry);
            at += run.count;
            runs.push(run);
            while run.count > 0 {
                let mut change = MapChange {
                    fs: self.fs,
                    space: &*self.space,
                    handle,
                    inode,
                };
                let done = map.insert(&mut change, run)?;
                run = run.starting_at(FileBlock(run.first.0 + done));
                handle.extend(map.step_credits());
            }
        }
        Ok(runs)
    }

    fn alloc(&self, handle: &mut Handle<'_>, want: u32) -> Result<Range<BlockNr>> {
        let (fs, goal) = (self.fs, self.fs.geometry.first_data_block);
        alloc::alloc_blocks(&self.space, fs, handle, goal, want, Reserve::Split)
    }
}

/// Returns the size of a cluster in units of 512 bytes.
fn cluster_sectors(geometry: &Geometry) -> u64 {
    u64::from(geometry.block_bytes >> 9) * u64::from(geometry.cluster_blocks)
}

fn set(numbers: &mut [Le32], slot: usize, block: u64) {
    if let Some(number) = numbers.get_mut(slot) {
        number.set(u32::try_from(block).unwrap_or(0));
    }
}
