//! Transactions without a journal: a commit writes the blocks to their places.
//!
//! A power cut leaves any part of the transaction in progress, which e2fsck mends. What nothing
//! durable refers to yet, such as a new extent node or directory block, is durable before the blocks
//! that come to refer to it: so a cut never leads into bytes of another time.

use platter_cache::Buffer;
use platter_vfs::Result;

use super::fs_device::FsDevice;
use super::transaction::Closed;

/// Makes a closed transaction durable.
pub(super) fn commit(fs_device: &FsDevice, transaction: &Closed) -> Result<()> {
    let is_created = |block: &u64| transaction.created.contains(block);
    let blocks = transaction.blocks.iter();
    let blocks = blocks.map(|(&block, buffer)| (block, buffer.clone()));
    let (created, changed): (Vec<(u64, Buffer)>, Vec<_>) =
        blocks.partition(|(block, _)| is_created(block));
    fs_device.write(&created)?;
    // Data that the blocks refer to thus reaches the disk before them.
    fs_device.flush()?;
    fs_device.write(&changed)?;
    fs_device.flush()
}
