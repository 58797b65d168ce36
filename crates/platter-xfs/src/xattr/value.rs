//! Values in blocks of the attribute fork.

use platter_ondisk::Corrupt;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;

use super::Attributes;
use crate::mapping::Backing;
use crate::ondisk::attr::remote::{self, AttrRemoteRule};
use crate::ondisk::{FileBlock, FsBlock, Site};

/// The value of `len` bytes whose blocks begin with `block`.
pub(crate) fn remote(attributes: &Attributes<'_>, block: u32, len: u32) -> Result<Vec<u8>> {
    let geometry = attributes.context.geometry();
    let mut value = Vec::new();
    let mut at = FileBlock(block.into());
    let mut left = len;
    while left > 0 {
        let run = attributes.map.lookup(attributes.context, at)?;
        let Backing::Written(start) = run.backing else {
            return Err(Corrupt::new(attributes.locus(), AttrRemoteRule::Missing).into());
        };
        let wanted = u64::from(left.div_ceil(remote::capacity(geometry)));
        let count = run.count.min(wanted);
        let first = FsBlock(start);
        attributes
            .context
            .read_ahead(first, u32::try_from(count).unwrap_or(u32::MAX));
        for nth in 0..count {
            let block = FsBlock(start + nth);
            // Each block is validated here: what it is part of is not in the block's own bytes.
            let bytes = attributes.context.read_block(block, &Unverified)?;
            let owner = attributes.inode.number.get();
            let site = Site::new(geometry, geometry.basic_block(block), owner);
            let part = remote::decode(&bytes, len - left, left, &site)
                .map_err(|rule| Corrupt::new(site.locus().of_inode(owner), rule))?;
            value.extend_from_slice(part);
            left -= u32::try_from(part.len()).unwrap_or(left);
        }
        at = FileBlock(at.0 + count);
    }
    Ok(value)
}
