//! Data that comes compressed, and is stored so.

use std::io::IoSlice;
use std::ops::Range;

use platter_vfs::Result;
use platter_vfs::file::{self, Allocation, FileBlocks};

use super::file_extents::EXTENT_CREDITS;
use super::state::{Purpose, SECTOR_BITS, SECTOR_BYTES, touch_contents};
use super::{BtrfsInode, delalloc, file_extents, ordered_data};
use crate::ondisk::LogicalAddr;
use crate::ondisk::file_extent::{
    COMPRESSED_BYTES_MAX, Compression, ExtentPlace, FileExtent, FileExtentKind,
};
use crate::ondisk::inode_item::InodeFlags;
use crate::ondisk::send_stream::EncodedData;
use crate::txn::space;

/// Writes a part of compressed data at an offset, as one extent. Returns whether that is possible; else nothing is
/// changed. The data was found to be that of its form.
pub(super) fn write(
    inode: &BtrfsInode,
    offset: u64,
    encoded: &EncodedData<'_>,
    compression: Compression,
) -> Result<bool> {
    let disk_bytes = (encoded.data.len() as u64).next_multiple_of(SECTOR_BYTES);
    let is_whole = |bytes: u64| bytes.is_multiple_of(SECTOR_BYTES);
    let fits = disk_bytes > 0
        && disk_bytes < encoded.ram_bytes
        && encoded.ram_bytes <= COMPRESSED_BYTES_MAX
        && encoded.file_bytes > 0
        && [offset, encoded.ram_bytes, encoded.offset]
            .into_iter()
            .all(is_whole);
    let flags = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    if !fits || inode.item().flags.intersects(flags) {
        return Ok(false);
    }
    inode.check_write()?;
    let _order = inode.order.write();
    let end = offset.saturating_add(encoded.file_bytes);
    // Only the end of the file is within a sector.
    if (!is_whole(end) && end < inode.data.size_bytes()) || end > inode.size_bytes_max() {
        return Ok(false);
    }
    inode.leave_inline()?;
    if end > inode.data.size_bytes() {
        file::finish_truncation(inode)?;
    }
    if offset > inode.data.size_bytes() {
        file::resize(inode, offset)?;
    }
    file::write_back(inode)?;
    store(inode, offset..end, encoded, (compression, disk_bytes))?;
    Ok(true)
}

fn store(
    inode: &BtrfsInode,
    range: Range<u64>,
    encoded: &EncodedData<'_>,
    (compression, disk_bytes): (Compression, u64),
) -> Result<()> {
    let writing = inode.fs.transactions()?;
    let blocks = range.start >> SECTOR_BITS..range.end.div_ceil(SECTOR_BYTES);
    let sectors = blocks.start << SECTOR_BITS..blocks.end << SECTOR_BITS;
    let mut bytes = encoded.data.to_vec();
    bytes.resize(usize::try_from(disk_bytes).unwrap_or_default(), 0);
    space::reserve_data(writing, inode.tree_id(), disk_bytes)?;
    let stored =
        delalloc::allocate_compressed(inode, &blocks, compression, bytes).and_then(|new| {
            let bytes = new.encoded().unwrap_or_default();
            let written = ordered_data::write(&inode.fs, new.address, &[IoSlice::new(bytes)]);
            delalloc::map_or_give_back(inode, new, written, |new| {
                map(
                    inode,
                    new.address,
                    &range,
                    encoded,
                    (compression, disk_bytes),
                )
            })
        });
    space::release_reserved_data(writing, inode.tree_id(), disk_bytes);
    stored?;
    inode.pages.remove_range(sectors);
    Ok(())
}

fn map(
    inode: &BtrfsInode,
    address: LogicalAddr,
    range: &Range<u64>,
    encoded: &EncodedData<'_>,
    (compression, disk_bytes): (Compression, u64),
) -> Result<()> {
    let checksums = ordered_data::take_checksums(&inode.fs, address, disk_bytes);
    let start = range.start;
    inode.change(EXTENT_CREDITS, Purpose::Update, |handle, item| {
        let extent = FileExtent {
            generation: handle.generation(),
            ram_bytes: encoded.ram_bytes,
            compression,
            file_bytes: range.end.next_multiple_of(SECTOR_BYTES) - start,
            kind: FileExtentKind::Regular(ExtentPlace {
                logical: address,
                disk_bytes,
                offset: encoded.offset,
            }),
        };
        file_extents::replace(inode, handle, item, start, &extent, checksums)?;
        item.size_bytes = item.size_bytes.max(range.end);
        touch_contents(item, inode.fs.clock.now());
        inode.data.extend(range.end);
        Ok(())
    })
}
