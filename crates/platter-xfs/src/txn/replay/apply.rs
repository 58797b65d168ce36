//! The second pass: applies the items of each transaction.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::second_pass::{Applied, SecondPass};
use super::transactions::{Item, Transaction};
use super::{buffer, dquot, icreate, inode};
use crate::ondisk::log::{BufferFlags, BufferFormat, ItemKind};

/// Applies the items of a transaction.
pub(super) fn transaction(pass: &mut SecondPass<'_>, transaction: Transaction) -> Result<()> {
    pass.lsn = transaction.lsn;
    pass.locus = pass.log.locus(transaction.lsn.block());
    pass.buffers.begin(transaction.lsn)?;
    let mut items = Vec::with_capacity(transaction.items.len());
    for item in transaction.items {
        items.push((rank(&item, pass.locus)?, item));
    }
    items.sort_by_key(|(rank, _)| *rank);
    for (_, item) in &items {
        match apply(pass, item)? {
            Applied::Yes => pass.report.items_replayed += 1,
            Applied::Skipped => pass.report.items_skipped += 1,
        }
    }
    pass.report.transactions += 1;
    Ok(())
}

/// Applies one item.
fn apply(pass: &mut SecondPass<'_>, item: &Item) -> Result<Applied> {
    if item.kind == ItemKind::Buffer {
        buffer::apply(pass, item)
    } else if item.kind == ItemKind::Inode {
        inode::apply(pass, item)
    } else if item.kind == ItemKind::Dquot {
        dquot::apply(pass, item)
    } else if item.kind == ItemKind::InodeCreate {
        icreate::apply(pass, item)
    } else {
        // Intents were collected in the first pass.
        Ok(Applied::Yes)
    }
}

/// The order in which items of a transaction are applied: blocks and new inodes before the inodes and
/// quota records in them, then links of unlinked lists, then what is cancelled.
fn rank(item: &Item, locus: Locus) -> Result<u8> {
    if item.kind == ItemKind::InodeCreate {
        return Ok(0);
    }
    if item.kind != ItemKind::Buffer {
        return Ok(1);
    }
    let flags = BufferFormat::decode(item.first(), locus)?.flags;
    Ok(if flags.contains(BufferFlags::CANCEL) {
        3
    } else if flags.contains(BufferFlags::INODES) {
        2
    } else {
        0
    })
}
