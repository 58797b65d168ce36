//! Blocks under change, over a device that sees none of it until all of it is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::Result;

/// Changed blocks by their first byte. A range of bytes is always read and written as one block.
#[derive(Debug)]
pub struct Blocks {
    device: Arc<dyn BlockDevice>,
    changed: BTreeMap<u64, Vec<u8>>,
}

impl Blocks {
    /// Nothing changed yet.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self {
            device,
            changed: BTreeMap::new(),
        }
    }

    /// The block of `len` bytes at a place.
    pub fn read(&self, at: u64, len: u32) -> Result<Vec<u8>> {
        if let Some(changed) = self.changed.get(&at) {
            return Ok(changed.clone());
        }
        let mut bytes = vec![0; len as usize];
        self.device.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Changes the block at a place.
    pub fn write(&mut self, at: u64, bytes: Vec<u8>) {
        self.changed.insert(at, bytes);
    }

    /// Forgets changes of a block that was freed.
    pub fn forget(&mut self, at: u64) {
        self.changed.remove(&at);
    }

    /// Number of changed blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changed.len()
    }

    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Writes all changed blocks.
    pub fn write_all(&mut self) -> Result<()> {
        for (at, bytes) in std::mem::take(&mut self.changed) {
            self.device.write_at(at, &bytes)?;
        }
        Ok(())
    }
}
