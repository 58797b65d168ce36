//! Files with fs-verity: their contents are verified block by block against the Merkle tree that is stored with
//! them, and this against the hash in their descriptor. Whose file it is, which a signature would say, is not
//! looked at.

mod topology;

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use platter_block::lock::Mutex;
use platter_block::{IoError, Operation};
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use crate::context::FsContext;
use crate::file::Contents;
use crate::ondisk::key::ItemKind;
use crate::ondisk::verity::{DESCRIPTOR_BYTES_MAX, Digest, FsVerity, Hasher, VerityDescriptorItem};
use crate::ondisk::{Key, TreeId};
use crate::tree::Tree;
use topology::Topology;

/// Blocks of Merkle trees kept: 64 KiB each at most.
const BLOCKS_MAX: usize = 32;

/// The descriptor is in items from this offset on; at 0 is that which describes it.
const DESCRIPTOR_OFFSET: u64 = 1;

rules! {
    /// The rules of a file with fs-verity.
    pub enum VerityUseRule of "fs-verity" {
        /// It has a descriptor.
        NoDescriptor => "no verity descriptor",
        /// The descriptor is not longer than any.
        DescriptorSize => "descriptor is too large",
        /// The items of its descriptor and Merkle tree have all bytes of them.
        Incomplete => "descriptor or Merkle tree is incomplete",
        /// The descriptor has the size of the file.
        DataSize => "wrong data_size",
        /// The Merkle tree has no more levels than the kernel reads.
        Levels => "too many levels in Merkle tree",
        /// A block of the Merkle tree has the hash that the one above it says.
        Hash => "Merkle tree block hash mismatch",
    }
}

/// How the contents of a file are verified.
#[derive(Debug)]
pub struct Verity {
    descriptor: FsVerity,
    topology: Topology,
}

/// A block of a Merkle tree: of the inode, its level and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockName {
    tree: TreeId,
    inode: u64,
    level: usize,
    number: u64,
}

/// The blocks of Merkle trees that were verified last.
#[derive(Debug, Default)]
pub struct MerkleCache {
    /// The one used last is the last.
    blocks: Mutex<VecDeque<(BlockName, Arc<[u8]>)>>,
}

impl MerkleCache {
    fn find(&self, name: BlockName) -> Option<Arc<[u8]>> {
        let mut blocks = self.blocks.lock();
        let at = blocks.iter().position(|(known, _)| *known == name)?;
        let found = blocks.remove(at)?;
        let block = Arc::clone(&found.1);
        blocks.push_back(found);
        Some(block)
    }

    fn add(&self, name: BlockName, block: &Arc<[u8]>) {
        let mut blocks = self.blocks.lock();
        if blocks.len() >= BLOCKS_MAX {
            blocks.pop_front();
        }
        blocks.push_back((name, Arc::clone(block)));
    }
}

/// Where a Merkle tree is read from.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    context: &'a FsContext,
    tree: Tree,
    inode: u64,
    cache: &'a MerkleCache,
}

impl Source<'_> {
    fn broken(&self, rule: VerityUseRule) -> Corrupt<VerityUseRule> {
        Corrupt::new(Locus::tree(self.tree.id.0).of_inode(self.inode), rule)
    }

    /// So many bytes of what items of one kind hold one after the other, each at its offset.
    fn read(&self, kind: ItemKind, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut cursor = self.context.cursor(self.tree);
        let incomplete = || self.broken(VerityUseRule::Incomplete);
        let key = Key::new(self.inode, kind, offset);
        if !cursor.seek_at_or_before(key)? {
            return Err(incomplete().into());
        }
        while bytes.len() < len {
            let (key, data) = cursor.item().ok_or_else(incomplete)?;
            let at = offset.saturating_add(bytes.len() as u64);
            let inside = at.checked_sub(key.offset);
            let inside = inside.and_then(|inside| usize::try_from(inside).ok());
            let rest = inside.and_then(|inside| data.get(inside..));
            let rest = rest.filter(|it| !it.is_empty());
            let rest = rest.filter(|_| (key.object, key.kind) == (self.inode, kind));
            let rest = rest.ok_or_else(incomplete)?;
            bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
            cursor.step()?;
        }
        Ok(bytes)
    }
}

impl Verity {
    /// How the contents of an inode of `size_bytes` are verified.
    pub fn read(contents: &Contents<'_>) -> Result<Self> {
        let (tree, inode) = (contents.tree, contents.reader.inode);
        let source = Source {
            context: contents.context,
            tree,
            inode,
            cache: &MerkleCache::default(),
        };
        let key = Key::new(inode, ItemKind::VERITY_DESC, 0);
        let decode = |data: &[u8]| Ok(VerityDescriptorItem::decode(data, tree.locus(key))?);
        let item = source.context.find(tree, key, decode)?;
        let item = item.ok_or_else(|| source.broken(VerityUseRule::NoDescriptor))?;
        let len = usize::try_from(item.len_bytes.min(DESCRIPTOR_BYTES_MAX + 1));
        let len = len.unwrap_or(usize::MAX);
        if item.len_bytes > DESCRIPTOR_BYTES_MAX {
            return Err(source.broken(VerityUseRule::DescriptorSize).into());
        }
        let bytes = source.read(ItemKind::VERITY_DESC, DESCRIPTOR_OFFSET, len)?;
        let descriptor = FsVerity::decode(&bytes, tree.locus(key))?;
        if descriptor.data_bytes != contents.size_bytes {
            return Err(source.broken(VerityUseRule::DataSize).into());
        }
        let topology = Topology::of(&descriptor);
        let topology = topology.ok_or_else(|| source.broken(VerityUseRule::Levels))?;
        Ok(Self {
            descriptor,
            topology,
        })
    }

    /// Verifies what was read of a file into `bufs` from `offset` on. Blocks of which it is a part are read again
    /// as a whole.
    ///
    /// # Errors
    /// What keeps the Merkle tree from being read; an I/O error where a block has another hash. Then nothing of
    /// `bufs` is left.
    pub fn verify(
        &self,
        contents: &Contents<'_>,
        cache: &MerkleCache,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        let verified = self.verify_blocks(contents, cache, offset, bufs);
        if verified.is_err() {
            for buf in bufs {
                buf.fill(0);
            }
        }
        verified
    }

    fn verify_blocks(
        &self,
        contents: &Contents<'_>,
        cache: &MerkleCache,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        let source = Source {
            context: contents.context,
            tree: contents.tree,
            inode: contents.reader.inode,
            cache,
        };
        let size = contents.size_bytes;
        let block_bytes = u64::from(self.descriptor.block_bytes);
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = offset.saturating_add(len).min(size);
        let mut start = offset - offset % block_bytes;
        while start < end {
            let stop = start.saturating_add(block_bytes).min(size);
            let digest = if start >= offset && stop <= end {
                let mut hasher = self.descriptor.hasher();
                let range = start - offset..stop - offset;
                each_part(bufs, range, |part| hasher.update(part));
                self.finish(hasher, stop - start)
            } else {
                let len = usize::try_from(stop - start).unwrap_or_default();
                let mut bytes = vec![0; len];
                contents.fill(start, &mut [IoSliceMut::new(&mut bytes)])?;
                let mut hasher = self.descriptor.hasher();
                hasher.update(&bytes);
                put(bufs, offset, start, &bytes);
                self.finish(hasher, stop - start)
            };
            self.verify_hash(&source, start / block_bytes, &digest)?;
            start = stop;
        }
        Ok(())
    }

    fn finish(&self, mut hasher: Hasher, len_bytes: u64) -> Digest {
        let padding = u64::from(self.descriptor.block_bytes).saturating_sub(len_bytes);
        hasher.update_zeros(usize::try_from(padding).unwrap_or_default());
        hasher.finish()
    }

    /// Compares the hash of a block of data with that in the Merkle tree.
    fn verify_hash(&self, source: &Source<'_>, number: u64, digest: &Digest) -> Result<()> {
        if self.expected(source, 0, number)? == *digest {
            return Ok(());
        }
        let block_bytes = u64::from(self.descriptor.block_bytes);
        let (tree, inode) = (source.tree.id, source.inode);
        let text = format!("fs-verity: data block hash mismatch, root {tree} ino {inode}");
        let error = io::Error::new(io::ErrorKind::InvalidData, text);
        let at = number.saturating_mul(block_bytes);
        let name = source.context.blocks.store().name();
        Err(IoError::new(name, Operation::Read, at, block_bytes, error).into())
    }

    /// The hash that a block is to have: of data where `level` is 0, else of the tree's level below it.
    fn expected(&self, source: &Source<'_>, level: usize, number: u64) -> Result<Digest> {
        if level == self.topology.levels() {
            return Ok(self.descriptor.root_hash);
        }
        let digest_bytes = self.descriptor.algorithm.digest_bytes();
        let per_block = u64::from(self.descriptor.block_bytes) / digest_bytes as u64;
        let block = self.block(source, level, number / per_block)?;
        let at = usize::try_from(number % per_block).unwrap_or_default() * digest_bytes;
        let stored = block.get(at..at + digest_bytes).unwrap_or_default();
        let mut digest = [0; 64];
        digest[..stored.len()].copy_from_slice(stored);
        Ok(digest)
    }

    /// A block of the Merkle tree, verified. There are few levels.
    fn block(&self, source: &Source<'_>, level: usize, number: u64) -> Result<Arc<[u8]>> {
        let name = BlockName {
            tree: source.tree.id,
            inode: source.inode,
            level,
            number,
        };
        if let Some(block) = source.cache.find(name) {
            return Ok(block);
        }
        let at = self.topology.offset(level, number);
        let len = self.descriptor.block_bytes as usize;
        let block = source.read(ItemKind::VERITY_MERKLE, at, len)?;
        let mut hasher = self.descriptor.hasher();
        hasher.update(&block);
        if self.expected(source, level + 1, number)? != hasher.finish() {
            return Err(source.broken(VerityUseRule::Hash).into());
        }
        let block: Arc<[u8]> = block.into();
        source.cache.add(name, &block);
        Ok(block)
    }
}

/// Passes a range of what `bufs` hold to `sink`.
fn each_part(bufs: &[IoSliceMut<'_>], range: std::ops::Range<u64>, mut sink: impl FnMut(&[u8])) {
    let mut at = 0;
    for buf in bufs {
        let end = at + buf.len() as u64;
        let (from, to) = (range.start.max(at), range.end.min(end));
        if from < to {
            let inside = |place: u64| usize::try_from(place - at).unwrap_or_default();
            sink(&buf[inside(from)..inside(to)]);
        }
        at = end;
    }
}

/// Copies bytes of a file, from `start` on, into what `bufs` hold of it, from `offset` on.
fn put(bufs: &mut [IoSliceMut<'_>], offset: u64, start: u64, bytes: &[u8]) {
    let mut at = offset;
    let stop = start + bytes.len() as u64;
    for buf in bufs {
        let end = at + buf.len() as u64;
        let (from, to) = (start.max(at), stop.min(end));
        if from < to {
            let inside = |place: u64, base: u64| usize::try_from(place - base).unwrap_or_default();
            let source = &bytes[inside(from, start)..inside(to, start)];
            buf[inside(from, at)..inside(to, at)].copy_from_slice(source);
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule as _;
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::context::tests::{rule, sample};
    use crate::file::with_contents;
    use crate::ondisk::verity::{DiskFsVerity, DiskVerityDescriptor};

    #[test]
    fn parts_of_buffers_are_found_and_replaced() {
        let (mut first, mut second) = (*b"0123", *b"456789");
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let mut seen = Vec::new();
        each_part(&bufs, 2..7, |part| seen.extend_from_slice(part));
        assert_eq!(seen, b"23456");
        put(&mut bufs, 100, 98, b"xxab");
        put(&mut bufs, 100, 103, b"cde");
        put(&mut bufs, 100, 109, b"fgh");
        assert_eq!((&first, &second), (b"ab2c", b"de678f"));
    }

    #[test]
    fn blocks_in_memory_are_bounded() {
        let cache = MerkleCache::default();
        let name = |number| BlockName {
            tree: TreeId::FS,
            inode: 257,
            level: 0,
            number,
        };
        for number in 0..100 {
            cache.add(name(number), &Arc::from(&[1][..]));
            assert!(cache.find(name(number)).is_some());
            // The one used last stays.
            assert_eq!(cache.find(name(0)).is_some(), number < 100);
        }
        assert!(cache.find(name(1)).is_none());
        assert_eq!(cache.blocks.lock().len(), BLOCKS_MAX);
    }

    /// What is found of a file of `size_bytes` with these items.
    fn found(about: Option<u64>, others: &[(Key, &[u8])], size_bytes: u64) -> String {
        let mut disk = DiskVerityDescriptor::new_zeroed();
        disk.len_bytes.set(about.unwrap_or_default());
        let first = Key::new(INODE, ItemKind::VERITY_DESC, 0);
        let mut items = vec![(Key::new(256, ItemKind::ORPHAN_ITEM, 0), &b""[..])];
        items.extend(about.map(|_| (first, disk.as_bytes())));
        items.extend_from_slice(others);
        let context = sample(&items, &[]);
        rule(with_contents(&context, (INODE, size_bytes), |contents| {
            let mut bytes = [0; 2048];
            let bufs = &mut [IoSliceMut::new(&mut bytes)];
            Verity::read(contents)?.verify(contents, &MerkleCache::default(), 0, bufs)
        }))
    }

    const INODE: u64 = 257;

    #[test]
    fn rules_of_files_are_checked() {
        let mut disk = DiskFsVerity::new_zeroed();
        (disk.version, disk.algorithm, disk.block_log2) = (1, 2, 10);
        disk.data_bytes.set(1 << 60);
        let huge = disk;
        disk.data_bytes.set(2000);
        let key = |kind| Key::new(INODE, kind, u64::from(kind == ItemKind::VERITY_DESC));
        let descriptor = (key(ItemKind::VERITY_DESC), disk.as_bytes());
        let tree = (key(ItemKind::VERITY_MERKLE), &[0; 1024][..]);
        let is = |rule: VerityUseRule| rule.text().to_owned();
        assert_eq!(found(None, &[], 0), is(VerityUseRule::NoDescriptor));
        let large = DESCRIPTOR_BYTES_MAX + 1;
        assert_eq!(
            found(Some(large), &[], 0),
            is(VerityUseRule::DescriptorSize)
        );
        assert_eq!(found(Some(256), &[], 0), is(VerityUseRule::Incomplete));
        let of = |others: &[(Key, &[u8])], size| found(Some(256), others, size);
        assert_eq!(of(&[descriptor], 2001), is(VerityUseRule::DataSize));
        assert_eq!(of(&[descriptor], 2000), is(VerityUseRule::Incomplete));
        assert_eq!(of(&[descriptor, tree], 2000), is(VerityUseRule::Hash));
        let huge = (descriptor.0, huge.as_bytes());
        assert_eq!(of(&[huge], 1 << 60), is(VerityUseRule::Levels));
    }
}
