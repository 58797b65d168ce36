//! Reading of tree blocks: the only module that does.

use std::fmt;
use std::io::IoSliceMut;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use platter_ondisk::Corruption;
use platter_vfs::{Error, Result};
use zerocopy::FromBytes;

use crate::chunk::ChunkStore;
use crate::ondisk::header::{DiskHeader, Header};
use crate::ondisk::leaf::Leaf;
use crate::ondisk::node::Node;
use crate::ondisk::tree_block::{Expected, TreeBlockFormat};
use crate::ondisk::{Generation, LogicalAddr};

/// A verified tree block.
#[derive(Clone)]
pub struct TreeBlock {
    bytes: Arc<[u8]>,
    logical: LogicalAddr,
    level: u8,
}

/// The tree blocks of a filesystem.
pub struct TreeBlocks {
    store: Arc<ChunkStore>,
    format: TreeBlockFormat,
    cached: Mutex<HashMap<LogicalAddr, TreeBlock>>,
}

impl TreeBlocks {
    /// The tree blocks in `store`.
    #[must_use]
    pub fn new(store: Arc<ChunkStore>, format: TreeBlockFormat) -> Self {
        Self {
            store,
            format,
            cached: Mutex::default(),
        }
    }

    /// The devices below.
    #[must_use]
    pub fn store(&self) -> &Arc<ChunkStore> {
        &self.store
    }

    /// What all tree blocks have in common.
    #[must_use]
    pub fn format(&self) -> &TreeBlockFormat {
        &self.format
    }

    /// The block at `logical`, which is what is `expected`. A copy that breaks a rule is passed over for
    /// the next.
    pub fn read(&self, logical: LogicalAddr, expected: &Expected) -> Result<TreeBlock> {
        let cached = self.cached.lock().get(&logical).cloned();
        if let Some(block) = cached
            && expected.check(&block.bytes).is_ok()
        {
            return Ok(block);
        }
        let copies = self.store.copies(logical, self.format.node_bytes.into());
        let mut failed = None;
        for copy in 0..copies {
            match self.read_copy(logical, copy, expected) {
                Ok(block) => {
                    let mut cached = self.cached.lock();
                    if cached.len() > 2000 {
                        cached.clear();
                    }
                    cached.insert(logical, block.clone());
                    return Ok(block);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| unreachable!("a block has a copy")))
    }

    fn read_copy(&self, logical: LogicalAddr, copy: u16, expected: &Expected) -> Result<TreeBlock> {
        let mut bytes = vec![0; self.format.node_bytes as usize];
        self.store
            .read(logical, copy, &mut [IoSliceMut::new(&mut bytes)])?;
        self.format.verify(logical, &bytes).map_err(Error::from)?;
        expected.check(&bytes).map_err(Corruption::from)?;
        Ok(TreeBlock::new(bytes.into(), logical))
    }
}

impl TreeBlock {
    fn new(bytes: Arc<[u8]>, logical: LogicalAddr) -> Self {
        let level = DiskHeader::ref_from_prefix(&bytes).map_or(0, |(header, _)| header.level);
        Self {
            bytes,
            logical,
            level,
        }
    }

    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its address.
    #[must_use]
    pub fn logical(&self) -> LogicalAddr {
        self.logical
    }

    /// Its level; 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> Option<Header> {
        let header = DiskHeader::ref_from_prefix(self.bytes()).ok();
        header.map(|(header, _)| Header::decode(header))
    }

    /// Its generation.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.header().map_or(Generation(0), |it| it.generation)
    }

    /// Its items, of a leaf.
    #[must_use]
    pub fn leaf(&self) -> Leaf<'_> {
        Leaf::new(self.bytes())
    }

    /// Its pointers, of a node.
    #[must_use]
    pub fn node(&self) -> Node<'_> {
        Node::new(self.bytes())
    }
}

impl fmt::Debug for TreeBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TreeBlock")
            .field("logical", &self.logical)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TreeBlocks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TreeBlocks")
            .field("store", &self.store)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}
