//! What every algorithm shares: geometry, superblock, devices and the metadata buffers.
//!
//! All metadata is read here.

mod block;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::{Arc, OnceLock};

use platter_block::BlockDevice;
use platter_cache::buffer::{Addressing, BlockSize, DeviceStore};
use platter_cache::{Buffer, BufferCache, MemoryBudget};
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus, Verify, rules};
use platter_vfs::{Condition, Result, Unsupported};

use crate::ondisk::extent::ExtentDevice;
use crate::ondisk::{AgNr, Agf, Agi, BasicBlock, FsBlock, Geometry, Superblock};
use crate::space::Space;
use crate::txn::{Header, HeaderVerifier, Log, LogDevice, LogPosition};
use crate::xfs_mount::Mount;

pub use block::Block;

/// Bytes of the unit that buffers are addressed in.
const ADDRESS_UNIT: u32 = 512;
/// Sectors of an allocation group's headers.
const AGF_SECTOR: u32 = 1;
const AGI_SECTOR: u32 = 2;
const AGFL_SECTOR: u32 = 3;

rules! {
    /// What holds for every block that metadata points to.
    pub enum BlockPointerRule of "block pointer" {
        /// It lies within an allocation group.
        Outside => "points outside the filesystem",
    }
}

/// An opened filesystem below the level of inodes. Shared by reference; only the cache changes.
#[derive(Debug)]
pub struct FsContext {
    mount: Box<Mount>,
    /// The superblock.
    pub superblock: Superblock,
    buffers: Arc<BufferCache>,
    data: Arc<dyn BlockDevice>,
    /// The log, once the filesystem is written.
    log: OnceLock<Log>,
    space: Arc<Space>,
    /// The realtime device, if it was named.
    realtime: Option<RealtimeDevice>,
}

/// A realtime device.
#[derive(Debug, Clone)]
pub struct RealtimeDevice {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its number among the devices of the filesystem; the data device is 0.
    pub member: u16,
}

impl FsContext {
    /// The filesystem on `data`, whose superblock was validated.
    #[must_use]
    pub fn new(
        data: Arc<dyn BlockDevice>,
        realtime: Option<RealtimeDevice>,
        superblock: Superblock,
        budget: Arc<MemoryBudget>,
    ) -> Self {
        let mount = Box::new(Mount::new(&superblock));
        let addressing = Addressing {
            unit_bytes: ADDRESS_UNIT,
            usual: block_size(mount.geometry().block_bytes()),
        };
        let store = Arc::new(DeviceStore::new(Arc::clone(&data)));
        Self {
            mount,
            superblock,
            buffers: Arc::new(BufferCache::over(store, addressing, budget)),
            data,
            log: OnceLock::new(),
            space: Arc::default(),
            realtime,
        }
    }

    /// Opens the log, so that transactions can begin. It is clean, and ends at `position`.
    ///
    /// # Errors
    /// As of [`Log::open`]; `Busy` if it is open already.
    pub fn open_log(&self, device: LogDevice, position: &LogPosition) -> Result<&Log> {
        let (data, buffers) = (Arc::clone(&self.data), Arc::clone(&self.buffers));
        let log = Log::open(device, data, buffers, self.geometry(), position)?;
        match self.log.set(log) {
            Ok(()) => self.log.get().ok_or_else(|| Condition::Busy.into()),
            Err(_) => Err(Condition::Busy.into()),
        }
    }

    /// The log, if it is open.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        self.log.get()
    }

    /// The groups, each in use by one thread at a time that changes it.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The metadata buffers, to be kept.
    #[must_use]
    pub fn shared_buffers(&self) -> Arc<BufferCache> {
        Arc::clone(&self.buffers)
    }

    /// The most inodes that the part of the space allowed for them holds, in whole chunks.
    #[must_use]
    pub fn inodes_max(&self) -> Option<u64> {
        let (geometry, superblock) = (self.geometry(), &self.superblock);
        let percent = Some(superblock.inode_percent_max).filter(|&percent| percent > 0)?;
        let blocks = u128::from(geometry.data_blocks()) * u128::from(percent) / 100;
        let chunk = u128::from(geometry.chunk_blocks());
        let blocks = blocks / chunk * chunk;
        u64::try_from(blocks * u128::from(geometry.inodes_per_block())).ok()
    }

    /// The mount object.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Sizes and counts, as the mount object has them.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.mount.geometry()
    }

    /// The data device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.data
    }

    /// The device that extents are on.
    ///
    /// # Errors
    /// `Unsupported` for a realtime device that was not named.
    pub fn device_of(&self, device: ExtentDevice) -> Result<&Arc<dyn BlockDevice>> {
        match (device, &self.realtime) {
            (ExtentDevice::Data, _) => Ok(&self.data),
            (ExtentDevice::Realtime, Some(realtime)) => Ok(&realtime.device),
            (ExtentDevice::Realtime, None) => Err(Unsupported {
                filesystem: "xfs",
                feature: "reading a realtime file".to_owned(),
                reason: Some("the realtime device was not named"),
            }
            .into()),
        }
    }

    /// The number of the device that extents are on.
    #[must_use]
    pub fn member_of(&self, device: ExtentDevice) -> u16 {
        match (device, &self.realtime) {
            (ExtentDevice::Realtime, Some(realtime)) => realtime.member,
            (ExtentDevice::Data | ExtentDevice::Realtime, _) => 0,
        }
    }

    /// The metadata buffers, named by their position in units of 512 bytes.
    #[must_use]
    pub fn buffers(&self) -> &BufferCache {
        &self.buffers
    }

    /// `len` bytes of metadata at `at`, validated by `verifier`.
    pub fn read(&self, at: BasicBlock, len: u32, verifier: &dyn Verify) -> Result<Buffer> {
        let end = at.byte_offset().checked_add(len.into());
        if end.is_none_or(|end| end > self.geometry().len_bytes()) {
            let locus = self.geometry().locus(at);
            return Err(Corrupt::new(locus, BlockPointerRule::Outside).into());
        }
        Ok(self.buffers.read((at.0, block_size(len)), verifier)?)
    }

    /// A metadata block, validated by `verifier`.
    pub fn read_block(&self, block: FsBlock, verifier: &dyn Verify) -> Result<Buffer> {
        self.read_blocks(block, 1, verifier)
    }

    /// `count` neighbouring blocks that are one piece of metadata, validated by `verifier`.
    pub fn read_blocks(&self, block: FsBlock, count: u32, verifier: &dyn Verify) -> Result<Buffer> {
        if !self.geometry().contains(block, count.into()) {
            let locus = Locus::block(block.0);
            return Err(Corrupt::new(locus, BlockPointerRule::Outside).into());
        }
        let len = self.geometry().block_bytes().saturating_mul(count);
        self.read(self.geometry().basic_block(block), len, verifier)
    }

    /// Announces that `count` metadata blocks of the usual size will be read. A hint.
    pub fn read_ahead(&self, block: FsBlock, count: u32) {
        if self.geometry().contains(block, count.into()) {
            let at = self.geometry().basic_block(block).0;
            let units = u64::from(self.geometry().block_bytes() / ADDRESS_UNIT);
            let end = at.saturating_add(units.saturating_mul(count.into()));
            self.buffers.read_ahead(at..end);
        }
    }

    /// A sector of an allocation group's headers.
    fn read_sector(&self, ag: AgNr, sector: u32, verifier: &dyn Verify) -> Result<Buffer> {
        let len = self.geometry().sector_bytes();
        let within = u64::from(len).saturating_mul(sector.into());
        let offset = self.geometry().ag_offset(ag).saturating_add(within);
        self.read(BasicBlock::of_byte(offset), len, verifier)
    }

    /// A header, verified. One that was changed gets its checksum when it is written to its place.
    fn read_header(&self, ag: AgNr, sector: u32, header: Header) -> Result<Buffer> {
        let verifier = HeaderVerifier::new(self.geometry(), header, ag);
        self.read_sector(ag, sector, &verifier)
    }

    /// The sector with the superblock of an allocation group.
    pub fn read_superblock(&self, ag: AgNr) -> Result<Buffer> {
        self.read_sector(ag, 0, &Unverified)
    }

    /// The free space header of an allocation group.
    pub fn agf(&self, ag: AgNr) -> Result<Agf> {
        let sector = self.read_header(ag, AGF_SECTOR, Header::Agf)?;
        let corrupt = |rule| Corrupt::new(Locus::group(ag.0.into()), rule);
        Ok(Agf::decode_unsealed(&sector, self.geometry(), ag).map_err(corrupt)?)
    }

    /// The inode header of an allocation group.
    pub fn agi(&self, ag: AgNr) -> Result<Agi> {
        let sector = self.read_header(ag, AGI_SECTOR, Header::Agi)?;
        let corrupt = |rule| Corrupt::new(Locus::group(ag.0.into()), rule);
        Ok(Agi::decode_unsealed(&sector, self.geometry(), ag).map_err(corrupt)?)
    }

    /// The sector with the free list of an allocation group, whose header was validated.
    pub fn read_agfl(&self, ag: AgNr) -> Result<Buffer> {
        self.read_header(ag, AGFL_SECTOR, Header::Agfl)
    }
}

/// The size of a block of `len` bytes.
fn block_size(len: u32) -> BlockSize {
    BlockSize::new(len).expect("a validated superblock has sizes that are powers of two")
}
