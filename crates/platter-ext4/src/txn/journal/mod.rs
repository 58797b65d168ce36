//! An open journal: where its blocks lie, and what its superblock says.

mod map;
mod external;
mod slot;

pub use external::ExternalJournalRule;
pub use map::{JournalMap, JournalMapBuilder};
pub(crate) use slot::SuperblockSlot;

use platter_ondisk::{Corrupt, Locus, Uuid};
use platter_vfs::{Condition, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::ondisk::Features;
use crate::ondisk::features::Incompat;
use crate::ondisk::jbd2::superblock::{DiskJournalSuperblock, JOURNAL_SUPERBLOCK_LEN_BYTES};
use crate::ondisk::jbd2::{JournalSuperblock, LogBlock, Sequence};

/// A journal whose superblock was validated.
#[derive(Debug, Clone)]
pub struct Journal {
    map: JournalMap,
    /// Where its superblock lies: elsewhere than in block 0 only on a device of its own.
    place: LogBlock,
    superblock: JournalSuperblock,
    /// Where its next transaction goes on after the replayed ones; `None` for a log that is begun anew.
    head: Option<LogBlock>,
}

/// Summary of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalState {
    /// The device it lies on.
    pub device: String,
    /// Its length in bytes, the superblock included.
    pub len_bytes: u64,
    /// 1 or 2.
    pub version: u8,
    /// Its UUID; nil in version 1.
    pub uuid: Uuid,
    /// Its features, as e2fsprogs names them.
    pub features: Vec<&'static str>,
    /// Whether it holds transactions to replay.
    pub needs_recovery: bool,
    /// The first transaction expected in it.
    pub sequence: u32,
    /// Blocks of its fast commit area.
    pub fast_commit_blocks: u32,
    /// Why it was aborted, as a negative errno; zero if it was not.
    pub errno: i32,
}

impl Journal {
    /// Opens the journal inside a filesystem, given the map of its inode.
    pub fn open(map: JournalMap) -> Result<Self> {
        Self::open_at(map, LogBlock(0))
    }

    fn open_at(map: JournalMap, place: LogBlock) -> Result<Self> {
        let mut bytes = vec![0; map.block_bytes() as usize];
        map.read(place, &mut bytes)?;
        let disk = disk_superblock(&mut bytes);
        let decoded =
            JournalSuperblock::decode(disk, place, map.block_bytes(), map.capacity_blocks());
        let superblock = decoded.map_err(|corrupt| Corrupt {
            locus: map.locus(place),
            ..corrupt
        })?;
        Ok(Self {
            map,
            place,
            superblock,
            head: None,
        })
    }

    /// Whether there may be transactions to replay.
    ///
    /// That alone does not ask for a replay: the filesystem's `needs_recovery` feature does.
    #[must_use]
    pub fn needs_recovery(&self) -> bool {
        self.superblock.start.is_some()
    }

    /// Whether it lies inside the filesystem it serves.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.place == LogBlock(0)
    }

    /// Summary of the journal.
    #[must_use]
    pub fn state(&self) -> JournalState {
        let superblock = &self.superblock;
        JournalState {
            device: self.map.device().name().to_string(),
            len_bytes: u64::from(superblock.len_blocks) * u64::from(self.map.block_bytes()),
            version: superblock.version,
            uuid: superblock.uuid,
            features: superblock.feature_names(),
            needs_recovery: self.needs_recovery(),
            sequence: superblock.sequence.0,
            fast_commit_blocks: superblock.fast_commit.end - superblock.fast_commit.start,
            errno: superblock.errno,
        }
    }

    /// The validated superblock.
    #[must_use]
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Where the blocks lie.
    #[must_use]
    pub fn map(&self) -> &JournalMap {
        &self.map
    }

    /// Marks the log as holding nothing to replay, durably; the next transaction is `next`.
    ///
    /// What was replayed must be durable by then: nothing will replay it again.
    pub fn mark_empty(&mut self, next: Sequence) -> Result<()> {
        self.rewrite(|disk| disk.mark_empty(next))?;
        self.superblock.start = None;
        self.superblock.sequence = next;
        Ok(())
    }

    /// Lets the next transaction, `next`, go to `head`, where the replayed ones end, in memory. On the
    /// device they stay until it is written, which is when the superblock of the filesystem must
    /// have the journal's errno.
    ///
    /// What was replayed must be durable by then.
    pub fn set_head(&mut self, head: LogBlock, next: Sequence) {
        self.superblock.start = None;
        self.superblock.sequence = next;
        self.head = Some(head);
    }

    /// Durably has the log begin at `head`, where the replayed transactions end, with `next`: they are
    /// not replayed again.
    ///
    /// What was replayed must be durable by then.
    pub fn drop_replayed(&self, head: LogBlock, next: Sequence) -> Result<()> {
        self.rewrite(|disk| disk.set_tail(head, next))
    }

    /// Where the log goes on after the replayed transactions.
    pub(crate) fn head(&self) -> Option<LogBlock> {
        self.head
    }

    /// Erases the beginning of the fast commits, durably, once they are part of the filesystem or of the log.
    ///
    /// `e2fsck` up to 1.47.0 does not replay a log after which fast commits of an earlier transaction lie.
    pub fn erase_fast_commits(&self) -> Result<()> {
        let area = &self.superblock.fast_commit;
        if area.is_empty() {
            return Ok(());
        }
        let zeros = vec![0; self.map.block_bytes() as usize];
        self.map.write(LogBlock(area.start), &zeros)?;
        Ok(self.map.device().flush()?)
    }

    /// Forgets why it was aborted, durably. The superblock of the filesystem must say by then that
    /// there were errors, durably.
    pub fn clear_errno(&mut self) -> Result<()> {
        self.rewrite(|disk| disk.set_errno(0))?;
        self.superblock.errno = 0;
        Ok(())
    }

    fn rewrite(&self, change: impl FnOnce(&mut DiskJournalSuperblock)) -> Result<()> {
        let mut bytes = vec![0; self.map.block_bytes() as usize];
        self.map.read(self.place, &mut bytes)?;
        change(disk_superblock(&mut bytes));
        self.map.write(self.place, &bytes)?;
        Ok(self.map.device().flush()?)
    }

    /// Prepares to write transactions of a filesystem with these features: the superblock as it will
    /// be with the first of them, and its slot. Nothing is written yet.
    ///
    /// # Errors
    /// `Unsupported` for a feature that is not known. `Busy` while there are transactions to replay.
    pub(crate) fn into_writable(
        self,
        features: &Features,
    ) -> Result<(JournalSuperblock, SuperblockSlot)> {
        self.superblock.check_supported()?;
        if self.needs_recovery() {
            return Err(Condition::Busy.into());
        }
        let mut bytes = vec![0; self.map.block_bytes() as usize];
        self.map.read(self.place, &mut bytes)?;
        let disk = disk_superblock(&mut bytes);
        if self.superblock.version == 1 {
            disk.upgrade();
        }
        let wide = features.incompat.contains(Incompat::BIT64);
        disk.adapt(wide, features.has_metadata_csum());
        // The error of an earlier abort was copied to the filesystem's superblock by now.
        disk.set_errno(0);
        let (block_bytes, capacity) = (self.map.block_bytes(), self.map.capacity_blocks());
        let superblock = JournalSuperblock::decode(disk, self.place, block_bytes, capacity)?;
        Ok((superblock, SuperblockSlot::new(self.map, self.place, bytes)))
    }

    /// A place in the log, for reports.
    pub(crate) fn locus(&self, block: LogBlock) -> Locus {
        self.map.locus(block)
    }
}

/// The journal superblock at the start of a block, which is at least as long.
fn disk_superblock(block: &mut [u8]) -> &mut DiskJournalSuperblock {
    let (bytes, _) = block.split_at_mut(JOURNAL_SUPERBLOCK_LEN_BYTES);
    let Ok(disk) = DiskJournalSuperblock::mut_from_bytes(bytes) else {
        unreachable!("the superblock has the length it was cut to")
    };
    debug_assert_eq!(disk.as_bytes().len(), JOURNAL_SUPERBLOCK_LEN_BYTES);
    disk
}
