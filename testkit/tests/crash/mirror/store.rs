//! The mirror: superblocks, nodes and commits.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use platter_block::{BlockDevice, IoError, Operation};
use platter_cache::buffer::BadCopies;
use platter_cache::{Addressing, BlockSize, BufferCache, BufferError, MemoryBudget, MetadataStore};
use platter_ondisk::checksum::crc32c;
use platter_ondisk::{Corruption, Locus, VerifierKey, Verify};
use testkit::subject::Devices;

/// A superblock: magic number, generation, address of the root node, checksum.
const SUPERBLOCK_BYTES: usize = 512;
const MAGIC: u64 = 0x6d69_7272_6f72_6673;
/// The places of nodes, which are used in turn: a node is never overwritten by the next commit.
const PLACES: u64 = 8;

/// In which order a commit brings its superblocks out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Nodes on both devices, a flush of each, the superblocks, a flush of each.
    FlushAllFirst,
    /// The superblock of the second device goes out before the first device is flushed.
    SecondSuperblockFirst,
}

/// Two devices with equal addresses: copy `n` of a block lies on device `n`.
#[derive(Debug)]
struct Mirror {
    name: Arc<str>,
    devices: Devices,
}

impl Mirror {
    fn device(&self, at: u64, copy: u16) -> Result<&Arc<dyn BlockDevice>, BufferError> {
        self.devices.get(usize::from(copy)).ok_or_else(|| {
            let source = io::Error::other("no such copy");
            IoError::new(&self.name, Operation::Read, at, 0, source).into()
        })
    }
}

impl MetadataStore for Mirror {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn len_bytes(&self) -> u64 {
        let lengths = self
            .devices
            .iter()
            .map(|device| device.geometry().len_bytes);
        lengths.min().unwrap_or(0)
    }

    fn copies(&self, _at: u64, _len_bytes: u32) -> u16 {
        2
    }

    fn read(&self, at: u64, copy: u16, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BufferError> {
        Ok(self.device(at, copy)?.read_vectored_at(at, bufs)?)
    }

    fn write(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        for device in &self.devices {
            device.write_vectored_at(at, bufs)?;
        }
        Ok(())
    }

    fn repair(&self, at: u64, copy: u16, bytes: &[u8]) -> Result<(), BufferError> {
        Ok(self.device(at, copy)?.write_at(at, bytes)?)
    }
}

/// The rules of a node: checksum, then its own address, then its generation and value.
struct NodeRules;

impl Verify for NodeRules {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: 1,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let broken = |rule| Err(Corruption::new("node", Locus::block(block), rule));
        if word(bytes, 0) != u64::from(crc32c(!0, &bytes[8..])) {
            return broken("checksum does not match");
        }
        if word(bytes, 1) != block {
            return broken("address is another");
        }
        Ok(())
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        let sum = u64::from(crc32c(!0, &bytes[8..]));
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
    }
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let word = bytes.get(index * 8..index * 8 + 8);
    word.and_then(|word| word.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

fn bytes_of(words: &[u64], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(len, 0);
    bytes
}

/// One mounted mirror: a value, and the generation it was committed by.
#[derive(Debug)]
pub(super) struct MirrorFs {
    cache: BufferCache<Mirror>,
    generation: u64,
    root: u64,
    value: u64,
}

impl MirrorFs {
    pub(super) const NODE_BYTES: usize = 4096;

    /// Makes a filesystem whose value is 0.
    pub(super) fn make(devices: &Devices) -> Result<(), BufferError> {
        let mut fs = Self {
            cache: cache_of(devices),
            generation: 0,
            root: 0,
            value: 0,
        };
        fs.commit(0, Order::FlushAllFirst)
    }

    /// Mounts the newest generation that either device has a superblock of, and repairs bad copies of
    /// its node.
    pub(super) fn mount(devices: &Devices) -> Result<Self, BufferError> {
        let mut newest = None;
        for device in devices {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            device.read_at(0, &mut bytes)?;
            let is_good =
                word(&bytes, 0) == MAGIC && word(&bytes, 3) == u64::from(crc32c(!0, &bytes[..24]));
            newest = newest.max(is_good.then(|| (word(&bytes, 1), word(&bytes, 2))));
        }
        let Some((generation, root)) = newest else {
            let locus = Locus::block(0);
            return Err(Corruption::new("superblock", locus, "no device has a good one").into());
        };
        let cache = cache_of(devices);
        cache.set_repair(true);
        let is_of_generation = |bytes: &[u8]| {
            if word(bytes, 2) == generation {
                return Ok(());
            }
            let locus = Locus::block(root);
            Err(Corruption::new(
                "node",
                locus,
                "parent transid does not match",
            ))
        };
        let (node, _) = cache.read_expecting(root, &NodeRules, &is_of_generation)?;
        let value = word(&node, 3);
        Ok(Self {
            cache,
            generation,
            root,
            value,
        })
    }

    pub(super) fn value(&self) -> u64 {
        self.value
    }

    /// The address of the node.
    pub(super) fn root(&self) -> u64 {
        self.root
    }

    pub(super) fn bad_copies(&self) -> BadCopies {
        self.cache.bad_copies()
    }

    /// Returns when the value is durable on both devices.
    pub(super) fn commit(&mut self, value: u64, order: Order) -> Result<(), BufferError> {
        let generation = self.generation + 1;
        let root = (1 + generation % PLACES) * Self::NODE_BYTES as u64;
        let node = bytes_of(&[0, root, generation, value], Self::NODE_BYTES);
        self.cache.publish(root, node, &NodeRules)?;
        self.cache.write_dirty(0..u64::MAX)?;
        let devices = &self.cache.store().devices;
        let mut superblock = bytes_of(&[MAGIC, generation, root], SUPERBLOCK_BYTES);
        let sum = u64::from(crc32c(!0, &superblock[..24]));
        superblock[24..32].copy_from_slice(&sum.to_le_bytes());
        let flush_all = || devices.iter().try_for_each(|device| device.flush());
        match order {
            Order::FlushAllFirst => {
                flush_all()?;
                for device in devices {
                    device.write_at(0, &superblock)?;
                }
            }
            Order::SecondSuperblockFirst => {
                devices[1].write_at(0, &superblock)?;
                flush_all()?;
                devices[0].write_at(0, &superblock)?;
            }
        }
        flush_all()?;
        (self.generation, self.root, self.value) = (generation, root, value);
        Ok(())
    }
}

fn cache_of(devices: &Devices) -> BufferCache<Mirror> {
    let store = Arc::new(Mirror {
        name: Arc::from("mirror"),
        devices: devices.clone(),
    });
    let usual = BlockSize::new(4096).unwrap();
    let addressing = Addressing {
        unit_bytes: 1,
        usual,
    };
    BufferCache::over(store, addressing, Arc::new(MemoryBudget::new(1 << 20)))
}
