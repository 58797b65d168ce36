//! A transaction: what an operation changes, private to it until it commits as a whole.
//!
//! A transaction works on copies of blocks and inodes. A commit verifies them, makes them the versions that others
//! read, and adds them to the running checkpoint. Blocks that are changed in place are verified by the checkpoint,
//! once for all transactions that changed them. A transaction that is dropped has changed nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use platter_cache::Buffer;
use platter_cache::buffer::BlockSize;
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify};
use platter_vfs::Result;

use super::log::{BlockType, Change, Content, Dirty, ItemKey, Ticket};
use super::log::{InodePlace, InodeVersion, Log};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::inode::InodeRule;
use crate::ondisk::inode::edit::is_in_use;
use crate::ondisk::inode::free::{initialise, next_unlinked};
use crate::ondisk::log::dinode::is_replaceable;
use crate::ondisk::log::{InodeCreate, Intent};
use crate::ondisk::{BasicBlock, Inode, InodeNr};
use crate::xfs_mount::{Mount, Running};

/// More than an item takes in the log in addition to the bytes of its block, and a sixteenth of those for the
/// headers of their parts.
const ITEM_BYTES: u64 = 512;

/// A transaction that runs.
#[derive(Debug)]
pub struct Transaction<'m> {
    log: &'m Log,
    ticket: Ticket,
    blocks: BTreeMap<BasicBlock, Block>,
    /// Blocks that were changed outside, which nothing looks at here any more.
    replaced: Vec<(BasicBlock, Block)>,
    inodes: BTreeMap<u64, LoggedInode>,
    /// Inodes that were changed outside, which nothing looks at here any more.
    replaced_inodes: Vec<LoggedInode>,
    chunks: Vec<NewChunk>,
    /// Items of inodes that are gone with their chunks.
    gone: Vec<ItemKey>,
    intents: Vec<(ItemKey, Arc<[Vec<u8>]>)>,
    done: Vec<(ItemKey, Arc<[Vec<u8>]>)>,
    /// Blocks that were freed, with their lengths.
    cancelled: BTreeSet<(BasicBlock, u32)>,
    /// Inodes that were committed, and what they say.
    committed: Vec<(InodeNr, Option<Arc<Inode>>)>,
    /// Last: the transaction has given its space back when a freeze goes on.
    _running: Option<Running<'m>>,
}

/// A block under change.
#[derive(Debug)]
struct Block {
    what: BlockType,
    size: BlockSize,
    /// The version before; `None` for a block that is new.
    before: Option<Buffer>,
    bytes: Vec<u8>,
    /// Where it was changed; anywhere, if that is not known.
    within: Chunks,
    /// It is logged even if nothing changes.
    is_touched: bool,
}

/// The new bytes of a block that was changed outside of a transaction.
#[derive(Debug)]
pub struct NewBytes {
    /// All bytes.
    pub bytes: Vec<u8>,
    /// The version that they were made from; the current one where it is not known.
    pub before: Option<Buffer>,
    /// Where they were changed; anywhere, if that is not known.
    pub within: Chunks,
}

/// An inode under change.
#[derive(Debug)]
struct LoggedInode {
    place: InodePlace,
    before: Before,
    image: Vec<u8>,
    /// What the image says, where that was validated.
    decoded: Option<Arc<Inode>>,
}

/// An inode before a transaction.
#[derive(Debug, Clone)]
enum Before {
    /// As the log has it, or as it was found before: validated, or free whatever its image is.
    Known(InodeVersion),
    /// As it lies in its cluster, where nothing has looked at it.
    InCluster(Arc<[u8]>),
}

impl Before {
    /// A free inode, whatever its image says.
    fn free(image: Arc<[u8]>) -> Self {
        Self::Known(InodeVersion { image, inode: None })
    }

    fn image(&self) -> &Arc<[u8]> {
        match self {
            Self::Known(version) => &version.image,
            Self::InCluster(image) => image,
        }
    }
}

/// An inode as a transaction found it. A clone is the same version.
#[derive(Debug, Clone)]
pub struct FoundInode {
    place: InodePlace,
    before: Before,
}

impl FoundInode {
    /// Where it lies.
    #[must_use]
    pub fn place(&self) -> InodePlace {
        self.place
    }

    /// The inode as it is to lie on the disk.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        self.before.image()
    }

    /// What it says, if it is in use and was validated.
    #[must_use]
    pub fn inode(&self) -> Option<&Arc<Inode>> {
        match &self.before {
            Before::Known(version) => version.inode.as_ref(),
            Before::InCluster(_) => None,
        }
    }
}

/// The new image of an inode that was changed outside of a transaction.
#[derive(Debug)]
pub struct NewImage {
    /// The image.
    pub image: Vec<u8>,
    /// What it says, where that was validated.
    pub decoded: Option<Arc<Inode>>,
    /// What it was made from; what there is now where it is not known.
    pub before: Option<FoundInode>,
}

/// Inodes that are new.
#[derive(Debug)]
struct NewChunk {
    region: Vec<u8>,
    /// The inodes, all free, by clusters.
    clusters: Vec<(BasicBlock, Vec<u8>)>,
}

/// Stands for a verifier that has run already.
struct Verified(VerifierKey);

impl Verify for Verified {
    fn key(&self) -> VerifierKey {
        self.0
    }

    fn verify(&self, _: u64, _: &[u8]) -> std::result::Result<(), Corruption> {
        Ok(())
    }
}

impl<'m> Transaction<'m> {
    /// Begins a transaction whose items take up to `bytes` in the log, and which rolls up to `count` times before
    /// it has to wait for space. Waits for a thaw and for space: the caller holds no lock.
    pub fn begin(mount: &'m Mount, log: &'m Log, bytes: u64, count: u32) -> Result<Self> {
        let running = mount.begin();
        Self::begin_in(Some(running), log, bytes, count)
    }

    /// As [`begin`](Self::begin), but waits for no thaw (`XFS_TRANS_NO_WRITECOUNT`): for the thread that freezes the
    /// filesystem, or ends the mount.
    pub fn begin_frozen(log: &'m Log, bytes: u64, count: u32) -> Result<Self> {
        Self::begin_in(None, log, bytes, count)
    }

    fn begin_in(
        running: Option<Running<'m>>,
        log: &'m Log,
        bytes: u64,
        count: u32,
    ) -> Result<Self> {
        Ok(Self {
            log,
            ticket: log.reserve(bytes, count)?,
            blocks: BTreeMap::new(),
            replaced: Vec::new(),
            inodes: BTreeMap::new(),
            replaced_inodes: Vec::new(),
            chunks: Vec::new(),
            gone: Vec::new(),
            intents: Vec::new(),
            done: Vec::new(),
            cancelled: BTreeSet::new(),
            committed: Vec::new(),
            _running: running,
        })
    }

    /// The log that it is committed to.
    #[must_use]
    pub fn log(&self) -> &'m Log {
        self.log
    }

    /// The bytes of a block as this transaction sees it.
    pub fn read(&self, at: BasicBlock, size: BlockSize, verifier: &dyn Verify) -> Result<Vec<u8>> {
        if let Some(block) = self.blocks.get(&at) {
            return Ok(block.bytes.clone());
        }
        Ok(self.log.buffers().read((at.0, size), verifier)?.to_vec())
    }

    /// Changes a block. Where `change` fails the transaction is of no use any more.
    pub fn edit<R>(
        &mut self,
        at: BasicBlock,
        size: BlockSize,
        what: &BlockType,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let block = match self.blocks.entry(at) {
            Entry::Occupied(block) => block.into_mut(),
            Entry::Vacant(free) => {
                let before = read_block(self.log, at, size, what)?;
                free.insert(Block {
                    what: what.clone(),
                    size,
                    bytes: before.to_vec(),
                    before: Some(before),
                    within: Chunks::ALL,
                    is_touched: false,
                })
            }
        };
        block.within = Chunks::ALL;
        change(&mut block.bytes)
    }

    /// Reserves memory for so many blocks and inodes to be [replaced](Self::replace).
    pub fn expect_replaced(&mut self, blocks: usize, inodes: usize) {
        self.replaced.reserve_exact(blocks);
        self.replaced_inodes.reserve_exact(inodes);
    }

    /// Makes these the bytes of a block, once. It is not to be looked at before the transaction commits.
    pub fn replace(
        &mut self,
        at: BasicBlock,
        size: BlockSize,
        what: &BlockType,
        new: NewBytes,
    ) -> Result<()> {
        if let Some(block) = self.blocks.get_mut(&at) {
            block.bytes = new.bytes;
            block.within = Chunks::ALL;
            return Ok(());
        }
        let before = match new.before {
            Some(before) => before,
            None => read_block(self.log, at, size, what)?,
        };
        if before.len() != new.bytes.len() {
            let locus = Locus::block(at.0);
            return Err(Corruption::new("block", locus, "is of another length").into());
        }
        let block = Block {
            what: what.clone(),
            size,
            before: Some(before),
            bytes: new.bytes,
            within: new.within,
            is_touched: false,
        };
        self.replaced.push((at, block));
        Ok(())
    }

    /// The bytes to reserve for what was changed, if that may be more than is reserved and there is no space for
    /// it now; it is not to be committed then.
    pub fn missing_bytes(&mut self) -> Option<u64> {
        let inode = u64::from(self.log.geometry().inode_bytes());
        let replaced = self.replaced.iter().map(|(_, block)| block);
        let blocks = self.blocks.values().chain(replaced);
        let blocks = blocks.map(|block| block.bytes.len() as u64);
        let chunks = self.chunks.iter().map(|chunk| chunk.region.len() as u64);
        let intents = self.intents.iter().chain(&self.done);
        let intents = intents.flat_map(|(_, regions)| regions.iter());
        let intents = intents.map(|region| region.len() as u64);
        let bytes = blocks
            .chain(chunks)
            .chain(intents)
            .map(|len| len + len / 16 + ITEM_BYTES);
        let bytes = bytes.sum::<u64>()
            + self.cancelled.len() as u64 * ITEM_BYTES
            + (self.inodes.len() + self.replaced_inodes.len()) as u64
                * (2 * inode + 2 * ITEM_BYTES);
        let extended = self.log.extend(&mut self.ticket, bytes);
        (!extended).then_some(bytes)
    }

    /// Logs a block even if it does not change.
    pub fn touch(&mut self, at: BasicBlock, size: BlockSize, what: &BlockType) -> Result<()> {
        self.edit(at, size, what, |_| Ok(()))?;
        if let Some(block) = self.blocks.get_mut(&at) {
            block.is_touched = true;
        }
        Ok(())
    }

    /// Makes a new block of these bytes, whatever it held before.
    pub fn create(&mut self, at: BasicBlock, size: BlockSize, what: &BlockType, bytes: Vec<u8>) {
        self.cancelled.remove(&(at, size.bytes()));
        let block = Block {
            what: what.clone(),
            size,
            before: None,
            bytes,
            within: Chunks::ALL,
            is_touched: true,
        };
        self.blocks.insert(at, block);
    }

    /// Frees a block: what was logged of it must not be replayed.
    pub fn cancel(&mut self, at: BasicBlock, size: BlockSize) {
        self.blocks.remove(&at);
        self.cancelled.insert((at, size.bytes()));
    }

    /// Initialises inodes, all of them free, in clusters of these bytes.
    pub fn create_inodes(&mut self, create: &InodeCreate, clusters: Vec<(BasicBlock, Vec<u8>)>) {
        let region = create.encode(self.log.geometry().inode_bytes());
        self.chunks.push(NewChunk { region, clusters });
    }

    /// Frees inodes with their clusters, of so many bytes: what was logged of them must not be replayed, nor
    /// reach its place.
    pub fn free_inodes(
        &mut self,
        clusters: Vec<(BasicBlock, u32)>,
        inodes: Vec<InodeNr>,
    ) -> Result<()> {
        for (at, len) in clusters {
            let locus = Locus::block(at.0);
            let broken = || Corruption::new("cluster", locus, "has no length of a block");
            self.cancel(at, BlockSize::new(len).ok_or_else(broken)?);
            self.gone.push(ItemKey::Chunk(at));
        }
        for number in inodes {
            self.inodes.remove(&number.get());
            self.gone.push(ItemKey::Inode(number));
        }
        Ok(())
    }

    /// An inode that this transaction has not changed, as others committed it.
    pub fn find_inode(&self, place: &InodePlace) -> Result<FoundInode> {
        Ok(FoundInode {
            place: *place,
            before: self.before(place)?,
        })
    }

    /// The image of an inode that is to be allocated, which the inode B-trees have as free, and how it was found where
    /// the transaction has not changed it. What is left in its place need not hold to the rules of an inode: where
    /// recovery would write over it, a free inode of this generation takes its place, as kernels make one without
    /// reading what was there.
    pub fn unused_inode(
        &self,
        place: &InodePlace,
        generation: u32,
    ) -> Result<(Vec<u8>, Option<FoundInode>)> {
        if let Some(inode) = self.inodes.get(&place.number.get()) {
            return Ok((inode.image.clone(), None));
        }
        let place = *place;
        let before = self.before(&place)?;
        let mut image = before.image().to_vec();
        let Before::InCluster(in_cluster) = before else {
            return Ok((image, Some(FoundInode { place, before })));
        };
        let (geometry, number) = (self.log.geometry(), place.number);
        let (ag, _) = geometry.split_inode(number);
        let before = match Inode::decode(&in_cluster, number, geometry) {
            Err(InodeRule::Unused) => Before::free(in_cluster),
            Err(_)
                if !is_in_use(&in_cluster)
                    && is_replaceable(&in_cluster, geometry, ag, self.log.head()) =>
            {
                initialise(&mut image, geometry, number, generation);
                Before::free(in_cluster)
            }
            // That it is in use, or corrupt, is found by what is done with it.
            Ok(_) | Err(_) => Before::InCluster(in_cluster),
        };
        Ok((image, Some(FoundInode { place, before })))
    }

    /// Changes an inode as it lies on the disk; its checksum is computed when it is written there.
    pub fn edit_inode<R>(
        &mut self,
        place: &InodePlace,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        if !self.inodes.contains_key(&place.number.get()) {
            let before = self.before(place)?;
            let inode = LoggedInode {
                place: *place,
                image: before.image().to_vec(),
                before,
                decoded: None,
            };
            self.inodes.insert(place.number.get(), inode);
        }
        match self.inodes.get_mut(&place.number.get()) {
            Some(inode) => {
                inode.decoded = None;
                change(&mut inode.image)
            }
            None => unreachable!("an inode that was inserted is there"),
        }
    }

    /// Makes this the image of an inode, once. It is not to be looked at before the transaction commits.
    ///
    /// # Errors
    /// `Corrupt` if it is of another length.
    pub fn replace_inode(&mut self, place: &InodePlace, new: NewImage) -> Result<()> {
        let number = place.number.get();
        let before = match (self.inodes.remove(&number), new.before) {
            (Some(changed), _) => changed.before,
            (None, Some(found)) => found.before,
            (None, None) => self.before(place)?,
        };
        if before.image().len() != new.image.len() {
            let locus = Locus::inode(number);
            return Err(Corruption::new("inode", locus, "is of another length").into());
        }
        let inode = LoggedInode {
            place: *place,
            before,
            image: new.image,
            decoded: new.decoded,
        };
        self.replaced_inodes.push(inode);
        Ok(())
    }

    /// The inodes that were changed by what was committed, and what they say; `None` of one that is free.
    pub fn take_committed(&mut self) -> Vec<(InodeNr, Option<Arc<Inode>>)> {
        std::mem::take(&mut self.committed)
    }

    fn before(&self, place: &InodePlace) -> Result<Before> {
        let start = place.offset as usize;
        let end = start + self.log.geometry().inode_bytes() as usize;
        let mut created = self.chunks.iter().flat_map(|chunk| &chunk.clusters);
        if let Some((_, bytes)) = created.find(|(at, _)| *at == place.cluster)
            && let Some(image) = bytes.get(start..end)
        {
            return Ok(Before::InCluster(image.into()));
        }
        if let Some(version) = self.log.inode(place.number) {
            return Ok(Before::Known(version));
        }
        let locus = Locus::inode(place.number.get());
        let broken = || Corruption::new("inode", locus, "lies outside its cluster");
        let size = BlockSize::new(place.cluster_bytes).ok_or_else(broken)?;
        let cluster = (place.cluster.0, size);
        let cluster = self.log.buffers().read(cluster, &Unverified)?;
        // One that was logged and written meanwhile is in the cluster that was read after.
        if let Some(version) = self.log.inode(place.number) {
            return Ok(Before::Known(version));
        }
        let image = cluster.get(start..end).ok_or_else(broken)?;
        Ok(Before::InCluster(image.into()))
    }

    /// Logs an intent: should it be the last that the log holds, recovery finishes it.
    pub fn log_intent(&mut self, intent: &Intent, regions: Vec<Vec<u8>>) {
        let key = ItemKey::Intent(intent.kind(), intent.id());
        self.intents.push((key, regions.into()));
    }

    /// Logs that an intent is done.
    pub fn log_done(&mut self, intent: &Intent, regions: Vec<Vec<u8>>) {
        let key = ItemKey::Intent(intent.kind(), intent.id());
        self.done.push((key, regions.into()));
    }

    /// Commits the transaction. Returns the number of its checkpoint, to be [forced](Log::force).
    pub fn commit(mut self) -> Result<u64> {
        self.apply()
    }

    /// [Commits](Self::commit) what was changed; nothing is to be changed after that.
    pub fn end(&mut self) -> Result<u64> {
        self.apply()
    }

    /// Commits what was changed, and goes on with the same locks and the next part of the reservation.
    pub fn roll(&mut self) -> Result<u64> {
        let sequence = self.apply()?;
        self.log.regrant(&mut self.ticket)?;
        Ok(sequence)
    }

    fn apply(&mut self) -> Result<u64> {
        self.committed.clear();
        self.verify_blocks()?;
        let inodes = self.changed_inodes()?;
        let blocks = self.cancelled.len() + self.blocks.len() + self.replaced.len();
        let others = self.gone.len() + self.chunks.len() + self.intents.len();
        let mut changes = Vec::with_capacity(blocks + others + inodes.len());
        // From here on nothing fails but the log.
        // What was freed first: what is new may be of another length at the same place.
        for (at, len_bytes) in std::mem::take(&mut self.cancelled) {
            // What the log holds of it keeps versions of its own.
            if let Some(size) = BlockSize::new(len_bytes) {
                let buffers = self.log.buffers();
                if let Some(version) = buffers.current((at.0, size)) {
                    buffers.abandon((at.0, size), &version);
                }
            }
            let content = Content::Cancelled { len_bytes };
            let key = ItemKey::Block(at, len_bytes);
            changes.push(Change::new(key, content, Dirty::default()));
        }
        for (at, block) in std::mem::take(&mut self.blocks) {
            self.publish_block(at, block, &mut changes)?;
        }
        for (at, block) in std::mem::take(&mut self.replaced) {
            self.publish_block(at, block, &mut changes)?;
        }
        for key in std::mem::take(&mut self.gone) {
            if self.log.has_item(key) {
                changes.push(Change::new(key, Content::Gone, Dirty::default()));
            }
        }
        for chunk in std::mem::take(&mut self.chunks) {
            changes.extend(self.publish_chunk(chunk)?);
        }
        changes.extend(inodes);
        for (key, regions) in self.intents.drain(..) {
            changes.push(Change::new(key, Content::Intent(regions), Dirty::default()));
        }
        let done = std::mem::take(&mut self.done);
        self.log.commit(&mut self.ticket, changes, done)
    }

    /// Makes a block that was changed the version that others read, and adds its log item.
    fn publish_block(&self, at: BasicBlock, block: Block, changes: &mut Vec<Change>) -> Result<()> {
        let before = block.before.as_deref();
        let mut chunks = Chunks::logged(before, &block.bytes, block.within);
        if block.is_touched {
            chunks.add_bytes(0..1);
        }
        if chunks.is_empty() {
            return Ok(());
        }
        let Block {
            what, size, bytes, ..
        } = block;
        let (buffers, geometry) = (self.log.buffers(), self.log.geometry());
        let key = what.verifier(geometry, |verifier| verifier.key());
        let place = (at.0, size);
        let version = if what.is_sealed_in_place() {
            buffers.publish_unsealed(place, bytes, key)
        } else {
            buffers.publish(place, bytes, &Verified(key))
        };
        // Others may read what was published before this block.
        let version = version.map_err(|error| self.log.fail(error.into()))?;
        let key = ItemKey::Block(at, size.bytes());
        let content = Content::Block { what, version };
        changes.push(Change::new(key, content, Dirty::of_chunks(chunks)));
        Ok(())
    }

    fn publish_chunk(&self, chunk: NewChunk) -> Result<Option<Change>> {
        let mut clusters = Vec::with_capacity(chunk.clusters.len());
        for (at, bytes) in chunk.clusters {
            let len = u32::try_from(bytes.len()).ok().and_then(BlockSize::new);
            let size = len.expect("a cluster has the length of a block");
            let published = self.log.buffers().publish((at.0, size), bytes, &Unverified);
            clusters.push((at, published.map_err(|error| self.log.fail(error.into()))?));
        }
        let first = clusters.first().map(|(at, _)| *at);
        Ok(first.map(|first| {
            let content = Content::Chunk {
                regions: vec![chunk.region].into(),
                clusters: clusters.into(),
            };
            Change::new(ItemKey::Chunk(first), content, Dirty::default())
        }))
    }

    /// Verifies blocks that were built, and seals those whose checksums are not left to the write to their place. What
    /// was changed in place was checked where it was, and is verified with the checkpoint.
    fn verify_blocks(&mut self) -> Result<()> {
        let geometry = self.log.geometry();
        let replaced = self.replaced.iter_mut().map(|(at, block)| (&*at, block));
        for (at, block) in self.blocks.iter_mut().chain(replaced) {
            if let Some(before) = &block.before {
                // What was read was verified then.
                if block.what.is_changed_in_place() || before[..] == block.bytes[..] {
                    continue;
                }
            }
            let is_sealed_here = !block.what.is_sealed_in_place();
            let bytes = &mut block.bytes;
            block.what.verifier(geometry, |verifier| {
                if is_sealed_here {
                    verifier.seal(at.0, bytes);
                }
                verifier.verify_sealed(at.0, bytes)
            })?;
        }
        Ok(())
    }

    fn changed_inodes(&mut self) -> Result<Vec<Change>> {
        let geometry = self.log.geometry();
        let count = self.inodes.len() + self.replaced_inodes.len();
        let mut changes = Vec::with_capacity(count);
        self.committed.reserve_exact(count);
        let inodes = std::mem::take(&mut self.inodes).into_values();
        for logged in inodes.chain(std::mem::take(&mut self.replaced_inodes)) {
            let before_image = logged.before.image();
            if **before_image == logged.image[..] {
                continue;
            }
            let number = logged.place.number;
            let corrupt = |rule| Corrupt::new(Locus::inode(number.get()), rule);
            let used = |decoded| match decoded {
                Err(InodeRule::Unused) => Ok(None),
                decoded => decoded.map(|inode| Some(Arc::new(inode))).map_err(corrupt),
            };
            let before = match &logged.before {
                Before::Known(version) => version.inode.clone(),
                // What lay in the cluster is verified here: others may have changed its link only.
                Before::InCluster(image) => used(Inode::decode(image, number, geometry))?,
            };
            let decode = || Inode::decode_unsealed(&logged.image, number, geometry);
            let inode = match logged.decoded {
                Some(decoded) => {
                    debug_assert_eq!(decode().ok().as_ref(), Some(&*decoded));
                    Some(decoded)
                }
                None => used(decode())?,
            };
            self.committed.push((number, inode.clone()));
            let mut dirty = Dirty::between(before.as_deref(), inode.as_deref());
            dirty.link = next_unlinked(before_image) != next_unlinked(&logged.image);
            let content = Content::Inode {
                place: logged.place,
                version: InodeVersion {
                    image: logged.image.into(),
                    inode,
                },
            };
            changes.push(Change::new(ItemKey::Inode(number), content, dirty));
        }
        Ok(changes)
    }
}

fn read_block(log: &Log, at: BasicBlock, size: BlockSize, what: &BlockType) -> Result<Buffer> {
    let read = |verifier: &dyn Verify| log.buffers().read((at.0, size), verifier);
    Ok(what.verifier(log.geometry(), read)?)
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.log.release(&self.ticket);
    }
}
