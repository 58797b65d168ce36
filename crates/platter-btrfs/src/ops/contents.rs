//! Contents: pages, and what backs them.

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};

use platter_cache::AddressSpace;
use platter_vfs::{Error, FileKind, Result};

use super::BtrfsInode;
use crate::file::Contents;
use crate::ondisk::inode_item::InodeFlags;
use crate::verity::Verity;

/// How many extents of a range are announced to the devices.
const ANNOUNCED_EXTENTS_MAX: usize = 64;

/// Verifies what was read of a file with fs-verity.
fn verify(
    inode: &BtrfsInode,
    contents: &Contents<'_>,
    offset: u64,
    bufs: &mut [IoSliceMut<'_>],
) -> Result<()> {
    if !inode.item().flags.contains(InodeFlags::VERITY) {
        return Ok(());
    }
    let verity = if let Some(verity) = inode.verity.get() {
        verity
    } else {
        let read = Box::new(Verity::read(contents)?);
        inode.verity.get_or_init(|| read)
    };
    verity.verify(contents, &inode.fs.merkle, offset, bufs)
}

/// Announces to the devices what of them will be read. A hint: what fails here fails when it is read.
pub(super) fn announce(inode: &BtrfsInode, range: Range<u64>) {
    if inode.kind != FileKind::Regular {
        return;
    }
    let range = range.start..range.end.min(inode.data.size_bytes());
    let members = inode.context().blocks.store().members();
    let mut places = Vec::new();
    let _ = inode.contents().written(range, &mut |extent| {
        let member = extent.place.and_then(|place| {
            let member = members.iter().find(|member| member.index == place.member);
            Some((place, member?.device.as_ref()?))
        });
        if let Some((place, device)) = member {
            let len_bytes = extent.file.end - extent.file.start;
            places.push((device, place.offset..place.offset.saturating_add(len_bytes)));
        }
        if places.len() == ANNOUNCED_EXTENTS_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    // With no tree kept as it is.
    for (device, range) in places {
        device.will_need(range);
    }
}

/// What the page cache fills a file's pages from.
impl AddressSpace for BtrfsInode {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.data.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let _stay = self.data.mapping.read();
        let contents = self.contents();
        contents.fill(offset, bufs)?;
        verify(self, &contents, offset, bufs)
    }

    fn fill_range(&self, range: Range<u64>) -> Range<u64> {
        self.contents().whole_units(range)
    }

    fn will_need(&self, range: Range<u64>) {
        announce(self, range);
    }
}
