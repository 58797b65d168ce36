//! Writing what is in the log to its place, in the order of the log, so that the tail moves on.

use std::collections::BTreeMap;

use platter_cache::Buffer;
use platter_cache::buffer::BlockSize;
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corruption, Locus};
use platter_vfs::Result;

use super::Log;
use super::headers::BlockType;
use super::item::{Content, InodePlace, ItemKey};
use super::lists::Batch;
use crate::ondisk::inode::DiskInodeV3;
use crate::ondisk::{BasicBlock, Lsn};

/// Items that are written before the lists are looked at again.
const BATCH_ITEMS: usize = 512;

/// An inode of a cluster, the checkpoint that holds it, and its bytes.
type Logged<'b> = (&'b InodePlace, Lsn, &'b [u8]);

/// Writes what was logged at `last` or before to its place. Returns how many items that were. Durable
/// after a flush of the data device, which comes before the next record.
pub(super) fn run(log: &Log, last: Lsn) -> Result<usize> {
    let _turn = log.writing_back.lock();
    let written = write_batches(log, last);
    log.force.lock().written_back_after = None;
    written
}

fn write_batches(log: &Log, last: Lsn) -> Result<usize> {
    let mut count = 0;
    loop {
        log.check()?;
        {
            let mut force = log.force.lock();
            force.written_back_after = Some(force.durable);
        }
        let batch = log.lists.lock().to_write(last, BATCH_ITEMS);
        if batch.is_empty() {
            return Ok(count);
        }
        let written = write_places(log, &batch);
        written.map_err(|error| log.fail(error))?;
        let clean = {
            let mut lists = log.lists.lock();
            let clean = lists.written(&batch);
            log.grants.lock().set_tail(lists.tail());
            clean
        };
        for (key, _, content) in &batch {
            match (key, content) {
                (ItemKey::Block(at, _), Content::Block { version, .. }) if clean.contains(key) => {
                    log.buffers.written(block(*at, version), version);
                }
                (_, Content::Chunk { clusters, .. }) => {
                    for (at, version) in &**clusters {
                        log.buffers.written(block(*at, version), version);
                    }
                }
                _ => {}
            }
        }
        log.space.notify_all();
        count += batch.len();
    }
}

fn write_places(log: &Log, batch: &Batch) -> Result<()> {
    let mut blocks = BTreeMap::new();
    let mut clusters: BTreeMap<BasicBlock, Vec<Logged<'_>>> = BTreeMap::new();
    for (key, lsn, content) in batch {
        match (key, content) {
            (ItemKey::Block(at, _), Content::Block { what, version }) => {
                let bytes = stamped(*at, what, version, log.device.stamp(*lsn))?;
                blocks.insert(*at, bytes);
            }
            (_, Content::Chunk { clusters, .. }) => {
                // Clusters that inodes were written to since are newer than that.
                for (at, version) in &**clusters {
                    blocks.insert(*at, version.to_vec());
                }
            }
            (_, Content::Inode { place, version }) => {
                let cluster = clusters.entry(place.cluster).or_default();
                cluster.push((place, *lsn, &version.image));
            }
            _ => {}
        }
    }
    for (at, bytes) in blocks {
        log.data.write_at(at.byte_offset(), &bytes)?;
    }
    for (at, inodes) in clusters {
        write_cluster(log, at, &inodes)?;
    }
    Ok(())
}

/// Writes inodes of a cluster. The others stay as they are on the disk: what the log holds of them may not
/// be durable.
fn write_cluster(log: &Log, at: BasicBlock, inodes: &[Logged<'_>]) -> Result<()> {
    let len = inodes.first().map_or(0, |(place, ..)| place.cluster_bytes);
    let mut bytes = vec![0; len as usize];
    log.data.read_at(at.byte_offset(), &mut bytes)?;
    for (place, lsn, image) in inodes {
        let start = place.offset as usize;
        if let Some(slot) = bytes.get_mut(start..start + image.len()) {
            slot.copy_from_slice(image);
            DiskInodeV3::stamp(slot, log.device.stamp(*lsn));
        }
    }
    log.data.write_at(at.byte_offset(), &bytes)?;
    if let Some(size) = BlockSize::new(len) {
        let cluster = (at.0, size);
        let version = log.buffers.publish(cluster, bytes, &Unverified)?;
        log.buffers.written(cluster, &version);
    }
    Ok(())
}

/// Forgets blocks that were freed: they never reach their places.
pub(super) fn forget(log: &Log, freed: &[(ItemKey, Option<Content>)]) {
    for (key, content) in freed {
        if let (ItemKey::Block(at, _), Some(Content::Block { version, .. })) = (key, content) {
            log.buffers.abandon(block(*at, version), version);
        }
    }
}

/// The name of a version's block in the cache.
fn block(at: BasicBlock, version: &Buffer) -> (u64, BlockSize) {
    let len = u32::try_from(version.len()).ok();
    let size = len.and_then(BlockSize::new);
    (at.0, size.expect("a version has the length of a block"))
}

/// A block with the LSN of the checkpoint that recovery would take it from.
///
/// # Errors
/// `Corrupt` for a block without the magic number of its type, whose checksum would be missing.
fn stamped(at: BasicBlock, what: &BlockType, version: &[u8], lsn: Lsn) -> Result<Vec<u8>> {
    let mut bytes = version.to_vec();
    match what.stamp(&bytes) {
        Some(stamp) => stamp.seal(&mut bytes, lsn),
        None if what.is_sealed_in_place() => {
            let rule = "has not the magic number of its type";
            return Err(Corruption::new("block", Locus::block(at.0), rule).into());
        }
        None => {}
    }
    Ok(bytes)
}
