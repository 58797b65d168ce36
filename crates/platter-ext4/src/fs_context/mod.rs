//! What every algorithm shares: the validated geometry and superblock, and the metadata buffers.

mod inode_tables;
mod sharing;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::page::PAGE_BYTES;
use platter_cache::xarray::Order;
use platter_cache::{Buffer, BufferCache, MemoryBudget};
use platter_ondisk::{Corrupt, Locus, Verify, rules};
use platter_vfs::{Condition, FileKind, Result};

use crate::ondisk::{BlockNr, Geometry, Inode, InodeFlags, Superblock};
use crate::quota::QuotaTable;
use crate::txn::{Handle, Log};

pub use inode_tables::InodeTables;
pub use sharing::{LAYOUT as SHARING_LAYOUT, Sharing, SharingStatistics};

/// An opened filesystem below the level of inodes. Shared by reference; nothing in it changes
/// but the cache.
#[derive(Debug)]
pub struct FsContext {
    /// Sizes and counts.
    pub geometry: Geometry,
    /// The rest of the superblock.
    pub superblock: Superblock,
    buffers: Arc<BufferCache>,
    inode_tables: InodeTables,
    /// Absent where nothing may be changed.
    log: Option<Arc<Log>>,
    data_mode: DataMode,
    /// Absent where nothing is shared anew.
    sharing: Option<Sharing>,
    /// Absent where usage is not counted, or nothing may be changed.
    quotas: Option<Arc<QuotaTable>>,
}

platter_cache::layout!(
    /// Of the filesystem.
    pub LAYOUT: FsContext {
        ReadOnly: geometry, superblock, buffers, inode_tables, data_mode, log, quotas;
        Apart: sharing;
    }
);

/// How contents of files reach the device (`-o data=`). Where they go straight to it, they are there
/// before the transaction that names them, in either mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DataMode {
    /// Through the journal, with the metadata.
    Journal,
    /// Straight, in order.
    #[default]
    Ordered,
    /// Straight, in no guaranteed order.
    Writeback,
}

impl DataMode {
    /// What `s_default_mount_opts` asks for.
    #[must_use]
    pub fn of_superblock(superblock: &Superblock) -> Self {
        match superblock.default_mount_options & 0x60 {
            0x20 => Self::Journal,
            0x60 => Self::Writeback,
            _ => Self::Ordered,
        }
    }
}

rules! {
    /// What holds for every block that metadata points to.
    pub enum BlockPointerRule of "block pointer" {
        /// It lies within the filesystem.
        Outside => "points outside the filesystem",
    }
}

impl FsContext {
    /// Returns the context of a filesystem on `device`, whose superblock and geometry were validated.
    #[must_use]
    pub fn new(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        geometry: Geometry,
        budget: Arc<MemoryBudget>,
    ) -> Self {
        let buffers = Arc::new(BufferCache::new(device, geometry.block_bytes, budget));
        Self {
            inode_tables: InodeTables::new(geometry.groups_count),
            geometry,
            superblock,
            buffers,
            log: None,
            data_mode: DataMode::default(),
            sharing: None,
            quotas: None,
        }
    }

    /// The order of the smallest folios of contents, which hold whole blocks.
    #[must_use]
    pub fn folio_order(&self) -> Order {
        let pages = self.geometry.block_bytes as usize / PAGE_BYTES;
        let order = u8::try_from(pages.max(1).ilog2()).ok();
        order.and_then(Order::new).unwrap_or_default()
    }

    /// Where inode tables begin, as far as that was asked.
    #[must_use]
    pub fn inode_tables(&self) -> &InodeTables {
        &self.inode_tables
    }

    /// The same filesystem, where files get to share metadata of equal contents.
    #[must_use]
    pub fn with_sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = Some(sharing);
        self
    }

    /// What is known of metadata that can be shared, if that is wanted.
    #[must_use]
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// The same filesystem, with usage counted in `quotas`.
    #[must_use]
    pub fn with_quotas(mut self, quotas: QuotaTable) -> Self {
        self.quotas = Some(Arc::new(quotas));
        self
    }

    /// The usage of owners, where it is counted.
    #[must_use]
    pub fn quotas(&self) -> Option<&Arc<QuotaTable>> {
        self.quotas.as_ref()
    }

    /// The same filesystem, with the contents of files written in this way.
    #[must_use]
    pub fn with_data_mode(mut self, data_mode: DataMode) -> Self {
        self.data_mode = data_mode;
        self
    }

    /// Whether the contents of this inode go through the journal: all do, or it asks for it.
    #[must_use]
    pub fn journals_data(&self, inode: &Inode) -> bool {
        inode.kind == FileKind::Regular && self.journals_contents(inode.flags)
    }

    /// Whether contents of a regular file with these flags go through the journal.
    #[must_use]
    pub fn journals_contents(&self, flags: InodeFlags) -> bool {
        let asks = flags.contains(InodeFlags::JOURNAL_DATA);
        let has_journal = self.log.as_ref().is_some_and(|log| log.has_journal());
        has_journal && (asks || self.data_mode == DataMode::Journal)
    }

    /// The same filesystem, to be changed through transactions that `log` makes for its buffers.
    #[must_use]
    pub fn writable(mut self, log: impl FnOnce(Arc<BufferCache>) -> Log) -> Self {
        self.log = Some(Arc::new(log(Arc::clone(&self.buffers))));
        self
    }

    /// As [`writable`](Self::writable), with a log that may fail to be made.
    pub fn try_writable(
        mut self,
        log: impl FnOnce(Arc<BufferCache>) -> Result<Log>,
    ) -> Result<Self> {
        self.log = Some(Arc::new(log(Arc::clone(&self.buffers))?));
        Ok(self)
    }

    /// The transactions of a filesystem that may be changed.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        self.log.as_deref()
    }

    /// As [`log`](Self::log), to be kept.
    #[must_use]
    pub fn shared_log(&self) -> Option<Arc<Log>> {
        self.log.clone()
    }

    /// Takes part in the running transaction; see [`Log::begin`].
    ///
    /// # Errors
    /// `ReadOnly` where nothing may be changed.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        let log = self.log.as_ref().ok_or(Condition::ReadOnly)?;
        let of_quota = self.quotas.as_ref().map_or(0, |quotas| quotas.credits());
        log.begin(credits.saturating_add(of_quota))
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.buffers.device()
    }

    /// The metadata buffers.
    #[must_use]
    pub fn buffers(&self) -> &BufferCache {
        &self.buffers
    }

    /// Reads a metadata block, validated by `verifier`.
    pub fn read_block(&self, block: BlockNr, verifier: &dyn Verify) -> Result<Buffer> {
        if !self.geometry.contains(block, 1) {
            let locus = Locus::block(block.0);
            return Err(Corrupt::new(locus, BlockPointerRule::Outside).into());
        }
        Ok(self.buffers.read(block.0, verifier)?)
    }

    /// Brings `count` blocks from `first` in with `block`, which is one of them, unless `block` is
    /// cached already.
    pub fn read_ahead_of(&self, block: BlockNr, first: BlockNr, count: u32) {
        if !self.buffers.contains(block.0) {
            self.read_ahead(first, u64::from(count));
        }
    }

    /// Announces that `count` metadata blocks from `first` will be read. A hint.
    pub fn read_ahead(&self, first: BlockNr, count: u64) {
        if self.geometry.contains(first, count) {
            self.buffers
                .read_ahead(first.0..first.0.saturating_add(count));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use platter_block::MemoryDevice;
    use platter_ondisk::Rule as _;
    use platter_ondisk::verify::Unverified;
    use platter_vfs::Error;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::ondisk::GroupNr;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::group_desc::{self, DiskGroupDesc};
    use crate::ondisk::superblock::tests::sample;

    /// The sample geometry on a device that holds these blocks and zeros.
    pub(crate) fn sample_fs(blocks: &[(u64, &[u8])]) -> FsContext {
        let geometry = sample_geometry();
        let mut bytes = vec![0; usize::try_from(geometry.len_bytes()).unwrap()];
        for &(block, content) in blocks {
            let at = usize::try_from(block * u64::from(geometry.block_bytes)).unwrap();
            bytes[at..at + content.len()].copy_from_slice(content);
        }
        let device = Arc::new(MemoryDevice::new("memory", bytes));
        let superblock = Superblock::decode(&sample()).unwrap();
        let budget = Arc::new(MemoryBudget::new(1 << 20));
        FsContext::new(device, superblock, geometry, budget)
    }

    /// The sample geometry with its superblock and group descriptor, to be changed without a
    /// journal. The inode table begins at block 5.
    pub(crate) fn sample_writable() -> FsContext {
        let geometry = sample_geometry();
        let mut descriptor = vec![0; usize::from(geometry.descriptor_bytes)];
        let (low, _) = DiskGroupDesc::mut_from_prefix(&mut descriptor).unwrap();
        low.block_bitmap_lo.set(3);
        low.inode_bitmap_lo.set(4);
        low.inode_table_lo.set(5);
        group_desc::seal(&mut descriptor, GroupNr(0), &geometry);
        let fs = sample_fs(&[(1, sample().as_bytes()), (2, &descriptor)]);
        fs.writable(Log::without_journal)
    }

    #[test]
    fn block_outside_the_filesystem_is_corrupt() {
        let fs = sample_fs(&[]);
        assert!(fs.read_block(BlockNr(8191), &Unverified).is_ok());
        for block in [1, 8192, u64::MAX] {
            let error = fs.read_block(BlockNr(block), &Unverified).unwrap_err();
            let Error::Corrupt(corruption) = error else {
                panic!("block {block} was read");
            };
            assert_eq!(corruption.rule, BlockPointerRule::Outside.text());
        }
    }
}
