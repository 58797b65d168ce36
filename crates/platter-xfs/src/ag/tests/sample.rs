//! One allocation group in memory, all of it in use but for what a test frees.

use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::buffer::{Addressing, BlockSize, DeviceStore};
use platter_cache::{BufferCache, MemoryBudget};
use zerocopy::{FromZeros, IntoBytes};

use crate::ag::{Group, Groups};
use crate::ondisk::agf::{AGF_MAGIC, Agf, DiskAgf, TreeRoot};
use crate::ondisk::agfl::{AGFL_MAGIC, DiskAgflHeader, encode};
use crate::ondisk::agi::{AGI_MAGIC, Agi, DiskAgi};
use crate::ondisk::btree::{
    BtreeKind, BuiltBlock, DiskInodeChunk, DiskOwner, DiskRefcount, InodeChunk, Owner, RmapOwner,
};
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::geometry::tests::sample_geometry;
use crate::ondisk::{AgBlock, AgInode, AgNr, Geometry, Lsn, checksum};
use crate::tree::TreeRecord;

pub(crate) const AG: AgNr = AgNr(1);
/// The first block after the roots and the free list.
pub(crate) const FIRST: u32 = 16;

pub(crate) struct Sample {
    pub(crate) geometry: Geometry,
    pub(crate) device: Arc<dyn BlockDevice>,
}

pub(crate) fn owner(start: u32, count: u32, owner: RmapOwner, offset: u64) -> Owner {
    Owner {
        start: AgBlock(start),
        count,
        owner,
        offset,
        is_attr_fork: false,
        is_btree: false,
        is_unwritten: false,
    }
}

impl Sample {
    /// A group with one inode chunk at block 3000.
    pub(crate) fn new() -> Self {
        let mut geometry = sample_geometry();
        let features = &mut geometry.features;
        features.ro_compat |= RoCompat::FINOBT | RoCompat::RMAPBT | RoCompat::REFLINK;
        features.incompat |= Incompat::SPINODES;
        let len = usize::try_from(geometry.len_bytes()).unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("disk", vec![0; len]));
        let groups = geometry.groups();
        let sample = Self { geometry, device };
        for ag in groups {
            sample.make_group(ag);
        }
        sample
    }

    fn make_group(&self, ag: AgNr) {
        let root = |block| TreeRoot {
            block: AgBlock(block),
            levels: 1,
        };
        let agf = Agf {
            ag,
            length: 4096,
            bno: root(4),
            cnt: root(5),
            rmap: Some(root(6)),
            refcount: Some(root(7)),
            free_list_first: 0,
            free_list_last: 5,
            free_list_count: 6,
            free_blocks: 0,
            longest: 0,
            btree_blocks: 0,
            rmap_blocks: 1,
            refcount_blocks: 1,
            lsn: Lsn(0),
        };
        let agi = Agi {
            ag,
            length: 4096,
            count: 64,
            free_count: 0,
            newest: None,
            inobt: root(8),
            finobt: Some(root(9)),
            unlinked: [None; 64],
            inode_btree_blocks: 1,
            free_btree_blocks: 1,
            lsn: Lsn(0),
        };
        let mut disk = DiskAgf::new_zeroed();
        disk.magic.set(AGF_MAGIC);
        disk.version.set(1);
        disk.sequence.set(ag.0);
        disk.uuid = *self.geometry.meta_uuid.as_bytes();
        agf.store(&mut disk);
        self.header(ag, 1, disk.as_bytes(), DiskAgf::CHECKSUM_OFFSET);
        let mut disk = DiskAgi::new_zeroed();
        disk.magic.set(AGI_MAGIC);
        disk.version.set(1);
        disk.sequence.set(ag.0);
        disk.uuid = *self.geometry.meta_uuid.as_bytes();
        agi.store(&mut disk);
        self.header(ag, 2, disk.as_bytes(), DiskAgi::CHECKSUM_OFFSET);
        let mut disk = DiskAgflHeader::new_zeroed();
        disk.magic.set(AGFL_MAGIC);
        disk.sequence.set(ag.0);
        disk.uuid = *self.geometry.meta_uuid.as_bytes();
        let mut sector = disk.as_bytes().to_vec();
        sector.resize(512, 0);
        let list: Vec<AgBlock> = (10..16).map(AgBlock).collect();
        let encoded = encode(&sector, &self.geometry, &list);
        self.header(ag, 3, &encoded.sector, DiskAgflHeader::CHECKSUM_OFFSET);
        let chunk = InodeChunk {
            start: AgInode(3000 * 8),
            holes: 0,
            count: 64,
            free_count: 0,
            free: 0,
        };
        let fixed = [
            owner(0, 4, RmapOwner::FS, 0),
            owner(4, 3, RmapOwner::AG, 0),
            owner(7, 1, RmapOwner::REFCOUNT, 0),
            owner(8, 2, RmapOwner::INOBT, 0),
            owner(10, 6, RmapOwner::AG, 0),
        ];
        let fixed: Vec<DiskOwner> = fixed.iter().map(Owner::encode).collect();
        self.root(ag, BtreeKind::Bno, 4, &[], 0);
        self.root(ag, BtreeKind::Cnt, 5, &[], 0);
        self.root(ag, BtreeKind::Rmap, 6, fixed.as_bytes(), 5);
        self.root(ag, BtreeKind::Refcount, 7, &[], 0);
        let chunk: [DiskInodeChunk; 1] = [chunk.encode(true)];
        self.root(ag, BtreeKind::Inobt, 8, chunk.as_bytes(), 1);
        self.root(ag, BtreeKind::Finobt, 9, &[], 0);
    }

    fn header(&self, ag: AgNr, sector: u64, bytes: &[u8], checksum_at: usize) {
        let mut bytes = bytes.to_vec();
        bytes.resize(512, 0);
        checksum::seal(&mut bytes, checksum_at);
        let at = self.geometry.ag_offset(ag) + sector * 512;
        self.device.write_at(at, &bytes).unwrap();
    }

    fn root(&self, ag: AgNr, kind: BtreeKind, at: u32, entries: &[u8], count: usize) {
        let block = BuiltBlock {
            kind,
            owner: ag.0.into(),
            level: 0,
            left: None,
            right: None,
            entries,
            count,
            pointers: &[],
        };
        let mut bytes = vec![0; 4096];
        let place = self.geometry.fs_block(ag, AgBlock(at));
        block.encode(place, &self.geometry, &mut bytes).unwrap();
        let offset = self.geometry.ag_offset(ag) + u64::from(at) * 4096;
        self.device.write_at(offset, &bytes).unwrap();
    }

    /// Changes the group, and writes what was changed.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Group<'_>) -> T) -> T {
        let mut groups = self.groups();
        let done = change(&mut groups.get(AG).unwrap());
        groups.write_all().unwrap();
        done
    }

    pub(crate) fn groups(&self) -> Groups {
        Groups::new(Arc::clone(&self.device), &self.geometry)
    }

    /// The groups as a mount has them, whose changes are left to a transaction.
    pub(crate) fn mounted(&self) -> Groups {
        let addressing = Addressing {
            unit_bytes: 512,
            usual: BlockSize::new(4096).unwrap(),
        };
        let store = Arc::new(DeviceStore::new(Arc::clone(&self.device)));
        let budget = Arc::new(MemoryBudget::new(1 << 20));
        let buffers = Arc::new(BufferCache::over(store, addressing, budget));
        Groups::of_mount(buffers, &self.geometry, &Arc::default())
    }

    /// All records of a tree.
    pub(crate) fn records<R: TreeRecord>(&self, kind: BtreeKind) -> Vec<R> {
        self.change(|group| {
            let mut records: Vec<R> = Vec::new();
            let mut next: Option<R> = group.lookup_ge(kind, (0, 0, 0)).unwrap();
            while let Some(record) = next {
                let (a, b, c) = record.order(kind);
                records.push(record);
                next = group.lookup_ge(kind, (a, b, c + 1)).unwrap();
            }
            records
        })
    }

    pub(crate) fn refcounts(&self) -> Vec<DiskRefcount> {
        self.records(BtreeKind::Refcount)
    }
}
