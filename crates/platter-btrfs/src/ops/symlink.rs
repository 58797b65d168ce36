//! Targets of symbolic links.

use std::io::IoSliceMut;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, FileKind, Result};

use super::BtrfsInode;

/// The longest target, as in the kernel: a page less its end.
const TARGET_BYTES_MAX: u64 = 4095;

rules! {
    /// The rules of a symbolic link.
    pub enum LinkRule of "symbolic link" {
        /// The target has 1 to 4095 bytes.
        Length => "invalid length of the target",
    }
}

/// See [`platter_vfs::Inode::read_link`].
pub(super) fn target(inode: &BtrfsInode) -> Result<Vec<u8>> {
    if inode.kind != FileKind::Symlink {
        return Err(Condition::InvalidArgument.into());
    }
    let locus = Locus::tree(inode.id.tree).of_inode(inode.id.number);
    let len = target_len(inode.item().size_bytes).map_err(|rule| Corrupt::new(locus, rule))?;
    let mut target = vec![0; len];
    inode
        .contents()
        .fill(0, &mut [IoSliceMut::new(&mut target)])?;
    Ok(target)
}

/// The length of a target, of a link of this size.
fn target_len(size_bytes: u64) -> Result<usize, LinkRule> {
    let len = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    if size_bytes == 0 || size_bytes > TARGET_BYTES_MAX {
        return Err(LinkRule::Length);
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_shorter_than_a_page() {
        assert_eq!(target_len(4095), Ok(4095));
        for size_bytes in [0, 4096, u64::MAX] {
            assert_eq!(target_len(size_bytes), Err(LinkRule::Length));
        }
    }
}
