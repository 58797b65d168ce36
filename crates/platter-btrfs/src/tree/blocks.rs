//! Reading and writing of tree blocks: the only module that does.

use std::fmt;
use std::io::IoSliceMut;
use std::sync::Arc;

use platter_cache::buffer::{BadCopies, Edit, Edited};
use platter_cache::{Addressing, BlockSize, Buffer, BufferCache, BufferError, MemoryBudget};
use platter_ondisk::{Corruption, VerifierKey, Verify};
use platter_vfs::Result;
use zerocopy::FromBytes;

use super::Tree;
use crate::chunk::ChunkStore;
use crate::ondisk::header::{DiskHeader, Header, HeaderFlags};
use crate::ondisk::leaf::Leaf;
use crate::ondisk::node::Node;
use crate::ondisk::tree_block::{Expected, TreeBlockFormat};
use crate::ondisk::{Generation, LogicalAddr};

/// A verified tree block.
#[derive(Clone)]
pub struct TreeBlock {
    bytes: Buffer,
    logical: LogicalAddr,
    level: u8,
}

/// The tree blocks of a filesystem, in a cache.
pub struct TreeBlocks {
    cache: BufferCache<ChunkStore>,
    verifier: TreeBlockVerifier,
    /// A block of which no copy matches its checksum is taken if it keeps all other rules.
    ignores_checksums: bool,
}

/// The number of tree blocks among the structures with verifiers,
const STRUCTURE: u32 = 1;
/// and of those whose checksum is ignored.
const UNSUMMED_STRUCTURE: u32 = 2;

/// Leaves read at once for a reader that follows their order.
const READ_AHEAD_BYTES: u32 = 256 << 10;
/// Leaves read at once for any other, where they lie side by side.
const READ_NEAR_BYTES: u32 = 64 << 10;

/// Verifies tree blocks by the rules that their bytes alone decide.
#[derive(Debug, Clone, Copy)]
struct TreeBlockVerifier(TreeBlockFormat);

impl Verify for TreeBlockVerifier {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: STRUCTURE,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.0.verify(LogicalAddr(block), bytes).map(drop)
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        self.0.seal(bytes);
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}

/// Verifies tree blocks whose checksum is ignored.
#[derive(Debug, Clone, Copy)]
struct UnsummedVerifier(TreeBlockFormat);

impl Verify for UnsummedVerifier {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: UNSUMMED_STRUCTURE,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let verified = self.0.verify_unsummed(LogicalAddr(block), bytes);
        verified.map(drop)
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        self.0.seal(bytes);
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}

impl TreeBlocks {
    /// The tree blocks in `store`, cached within `budget`.
    ///
    /// # Panics
    /// If blocks of this format have a size that no cached block has; a superblock has none such.
    #[must_use]
    pub fn new(store: Arc<ChunkStore>, format: TreeBlockFormat, budget: Arc<MemoryBudget>) -> Self {
        let usual = BlockSize::new(format.node_bytes).expect("nodesize is from 4 to 64 KiB");
        store.set_format(format);
        let unit_bytes = 1;
        let addressing = Addressing { unit_bytes, usual };
        Self {
            cache: BufferCache::over(store, addressing, budget),
            verifier: TreeBlockVerifier(format),
            ignores_checksums: false,
        }
    }

    /// The same blocks, with or without regard to their checksums.
    #[must_use]
    pub fn ignoring_checksums(mut self, ignores_checksums: bool) -> Self {
        self.ignores_checksums = ignores_checksums;
        self
    }

    /// The devices below.
    #[must_use]
    pub fn store(&self) -> &Arc<ChunkStore> {
        self.cache.store()
    }

    /// What all tree blocks have in common.
    #[must_use]
    pub fn format(&self) -> &TreeBlockFormat {
        &self.verifier.0
    }

    /// The copies of blocks that were passed over for another one.
    #[must_use]
    pub fn bad_copies(&self) -> BadCopies {
        self.cache.bad_copies()
    }

    /// The root of a tree.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_root(&self, tree: Tree) -> Result<TreeBlock> {
        let expected = Expected {
            level: Some(tree.root.level),
            generation: Some(tree.root.generation),
            tree: Some(tree.id),
            ..Expected::default()
        };
        self.read(tree.root.logical, &expected)
    }

    /// The block at `logical`, which is what is `expected`. A copy that breaks a rule is passed over for
    /// the next.
    pub fn read(&self, logical: LogicalAddr, expected: &Expected) -> Result<TreeBlock> {
        let expect = |bytes: &[u8]| expected.check(bytes).map_err(Corruption::from);
        let mut read = self
            .cache
            .read_expecting(logical.0, &self.verifier, &expect);
        if self.ignores_checksums && matches!(read, Err(BufferError::Corrupt(_))) {
            let unsummed = UnsummedVerifier(self.verifier.0);
            read = self.cache.read_expecting(logical.0, &unsummed, &expect);
        }
        Ok(TreeBlock::new(read?.0, logical))
    }

    /// Makes `bytes` the block at `logical`, which was allocated. It is in memory until it is
    /// [written](Self::write) or [forgotten](Self::forget), and gets its checksum when it is
    /// [finished](Self::finish).
    pub fn create(&self, logical: LogicalAddr, bytes: Box<[u8]>) -> Result<()> {
        self.cache
            .publish_changed(logical.0, bytes, &self.verifier)?;
        Ok(())
    }

    /// Changes a block of the running transaction, of number `generation`, in place. Its checksum is computed
    /// when it is [finished](Self::finish). `change` reads no other block.
    pub fn edit<R>(
        &self,
        logical: LogicalAddr,
        generation: Generation,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let edited = self
            .cache
            .edit(logical.0, &self.verifier, generation.0, |bytes| {
                Ok::<_, platter_cache::BufferError>(Edit::Changed(change(bytes)))
            })?;
        match edited {
            Edited::Changed { result, .. } | Edited::Kept(result) => Ok(result),
        }
    }

    /// As [`edit`](Self::edit), unless `change` leaves the block as it is, and returns `None`.
    pub fn try_edit<R>(
        &self,
        logical: LogicalAddr,
        generation: Generation,
        change: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>> {
        let edited = self
            .cache
            .edit(logical.0, &self.verifier, generation.0, |bytes| {
                Ok::<_, platter_cache::BufferError>(match change(bytes) {
                    Some(result) => Edit::Changed(Some(result)),
                    None => Edit::Kept(None),
                })
            })?;
        match edited {
            Edited::Changed { result, .. } | Edited::Kept(result) => Ok(result),
        }
    }

    /// The version of a block that is to be written: it has its checksum, and does not change any more.
    /// `None` if the block is not in memory.
    pub fn finish(&self, logical: LogicalAddr) -> Result<Option<Buffer>> {
        Ok(self.cache.seal(logical.0)?)
    }

    /// Writes finished blocks, in order of address, to all of their copies. Returns the number of requests.
    pub fn write(&self, blocks: &[(LogicalAddr, Buffer)]) -> Result<usize> {
        let blocks: Vec<_> = blocks
            .iter()
            .map(|(logical, bytes)| (logical.0, bytes.clone()))
            .collect();
        Ok(self.cache.write(&blocks)?)
    }

    /// Forgets a block that was freed.
    pub fn forget(&self, logical: LogicalAddr) {
        self.cache.forget(logical.0);
    }

    /// How many copies the block at `logical` has.
    #[must_use]
    pub fn copies(&self, logical: LogicalAddr) -> u16 {
        self.store()
            .copies(logical, self.format().node_bytes.into())
    }

    /// Fills `bytes` with one copy of the block at `logical`, past the cache, and verifies it. For checks,
    /// which look at every copy.
    pub fn verify_copy(
        &self,
        logical: LogicalAddr,
        copy: u16,
        expected: &Expected,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        bytes.resize(self.format().node_bytes as usize, 0);
        let bufs = &mut [IoSliceMut::new(bytes)];
        self.store().read(logical, copy, bufs)?;
        self.format().verify(logical, bytes)?;
        Ok(expected.check(bytes)?)
    }

    /// Brings blocks in that will be read soon.
    pub fn read_ahead(&self, blocks: impl IntoIterator<Item = LogicalAddr>) {
        self.cache
            .read_ahead_each(blocks.into_iter().map(|block| block.0));
    }

    /// Brings the leaf that a pointer of `node` leads to in, unless it is cached, with leaves that follow
    /// it: many, if the leaf before it is cached, since then they are probably read in their order; else
    /// those that follow it on the device.
    pub(super) fn read_leaf_ahead(&self, node: &Node<'_>, index: usize) {
        let at = |index: usize| node.pointer(index).map(|pointer| pointer.logical);
        let is_cached = |logical: LogicalAddr| self.cache.contains(logical.0);
        let Some(wanted) = at(index).filter(|&wanted| !is_cached(wanted)) else {
            return;
        };
        let node_bytes = self.format().node_bytes;
        let before = index.checked_sub(1).and_then(at);
        let is_in_order = before.is_some_and(is_cached);
        let bytes = if is_in_order {
            READ_AHEAD_BYTES
        } else {
            READ_NEAR_BYTES
        };
        let count = (bytes / node_bytes).max(1) as usize;
        let leaves = (index..node.len()).take(count).filter_map(at);
        if is_in_order {
            let mut leaves: Vec<_> = leaves.collect();
            // Neighbours on the device are read at once.
            leaves.sort_unstable();
            self.read_ahead(leaves);
            return;
        }
        let distances = (0..).step_by(node_bytes as usize);
        let near = leaves.zip(distances);
        let near = near.take_while(|(leaf, distance)| leaf.0 == wanted.0.saturating_add(*distance));
        let near: Vec<_> = near.map(|(leaf, _)| leaf).collect();
        // One leaf alone is read by the caller.
        if near.len() > 1 {
            self.read_ahead(near);
        }
    }
}

impl TreeBlock {
    fn new(bytes: Buffer, logical: LogicalAddr) -> Self {
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

    /// Whether it is younger than its contents: it may be shared by snapshots that are older than itself.
    #[must_use]
    pub fn is_relocated(&self) -> bool {
        self.header()
            .is_some_and(|it| it.flags.contains(HeaderFlags::RELOC))
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
            .field("cache", &self.cache)
            .field("verifier", &self.verifier)
            .field("ignores_checksums", &self.ignores_checksums)
            .finish()
    }
}
