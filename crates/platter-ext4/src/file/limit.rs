//! How large a file can become. Spec: `ext4/ifork`; the limit by `i_blocks` is in
//! `ext4/inodes`, "Inode Sizes".

use crate::ondisk::features::RoCompat;
use crate::ondisk::{Geometry, Inode, InodeFlags};

/// The most bytes that a file with this inode's kind of map can have.
///
/// In addition to what the map can name, the count of space in the inode is a limit: 32 bits of units of
/// 512 bytes, or with `huge_file` 48.
#[must_use]
pub fn size_bytes_max(geometry: &Geometry, inode: &Inode) -> u64 {
    let bits = geometry.block_bits;
    let has_huge_file = geometry.features.ro_compat.contains(RoCompat::HUGE_FILE);
    let sectors_max = if has_huge_file {
        (1 << 48) - 1
    } else {
        (1 << 32) - 1
    };
    let countable: u64 = sectors_max >> (bits - 9);
    let blocks = if inode.flags.contains(InodeFlags::EXTENTS)
        || inode.flags.contains(InodeFlags::INLINE_DATA)
    {
        let named = u64::from(u32::MAX);
        if has_huge_file {
            named
        } else {
            named.min(countable)
        }
    } else {
        indirect_blocks_max(u64::from(geometry.block_bytes / 4), countable)
    };
    (blocks << bits).min(i64::MAX.unsigned_abs())
}

/// The blocks that fit in an indirect map whose own blocks and those it names are at most
/// `countable`, with so many numbers in a block.
fn indirect_blocks_max(per_block: u64, countable: u64) -> u64 {
    let whole = 12 + per_block + per_block.pow(2) + per_block.pow(3);
    let own = 1 + (1 + per_block) + (1 + per_block + per_block.pow(2));
    if whole + own <= countable {
        return whole;
    }
    // As if each leaf below the trees that are full were needed.
    let double = 12 + per_block + per_block.pow(2);
    let rest = countable - 12 - per_block;
    let own = if rest < per_block.pow(2) {
        2 + rest.div_ceil(per_block)
    } else {
        let rest = countable - double;
        1 + (1 + per_block) + 1 + rest.div_ceil(per_block) + rest.div_ceil(per_block.pow(2))
    };
    countable - own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_limits_are_those_that_are_documented() {
        let huge = |bits: u32| ((1u64 << 48) - 1) >> (bits - 9);
        let small = |bits: u32| ((1u64 << 32) - 1) >> (bits - 9);
        // 16 GiB, 256 GiB, 2 TiB and 4 TiB, and a little.
        let bytes = |bits: u32, countable| indirect_blocks_max(1 << (bits - 2), countable) << bits;
        assert_eq!(bytes(10, small(10)), 17_247_252_480);
        assert_eq!(bytes(11, small(11)), 275_415_851_008);
        assert_eq!(bytes(12, small(12)), 2_196_873_666_560);
        assert_eq!(bytes(12, huge(12)), 4_402_345_721_856);
    }
}
