//! The copies of the superblock in other groups, found without the first one: where filesystems of
//! the usual sizes of groups have them.

use platter_block::BlockDevice;

use super::{MountOptions, Opened, read_superblock};
use crate::ondisk::GroupNr;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_OFFSET_BYTES};

/// Binary logarithms of the sizes of blocks.
const BLOCK_BITS: std::ops::RangeInclusive<u32> = 10..=16;
/// Groups that have a copy with `sparse_super`; the others have some of these, too.
const GROUPS: [u32; 10] = [1, 3, 5, 7, 9, 25, 27, 49, 81, 125];
/// Blocks of a cluster, by default with `bigalloc`.
const CLUSTER_BLOCKS: u64 = 16;

/// The first valid copy of the superblock of a filesystem on `device`, in units of 1 KiB.
#[must_use]
pub fn find_superblock_copy(device: &dyn BlockDevice) -> Option<u64> {
    let stored = read_superblock(device, SUPERBLOCK_OFFSET_BYTES).ok();
    let of_stored = stored.as_ref().and_then(group_size);
    let usual = BLOCK_BITS.flat_map(|bits| {
        let blocks = 8 << bits;
        [(bits, blocks), (bits, blocks * CLUSTER_BLOCKS)]
    });
    let mut sizes = of_stored.into_iter().chain(usual);
    let is_copy = |at: u64, group: u32| {
        let options = MountOptions::default();
        let opened = Opened::try_read(device, at, &options);
        opened.is_ok_and(|opened| {
            let geometry = &opened.geometry;
            let first = geometry.group_first_block(GroupNr(group));
            geometry.offset_bytes(first) == at && geometry.has_superblock(GroupNr(group))
        })
    };
    sizes.find_map(|(bits, blocks)| {
        // Blocks of 1 KiB are counted from the second one on, but for clusters.
        let firsts = 0..=u64::from(bits == 10);
        let mut places = GROUPS.into_iter().flat_map(|group| {
            let firsts = firsts.clone().rev();
            firsts.map(move |first| (group, (first + u64::from(group) * blocks) << bits))
        });
        let found = places.find(|&(group, at)| is_copy(at, group));
        found.map(|(_, at)| at >> 10)
    })
}

/// Size of blocks and of groups by a superblock that may be corrupt.
fn group_size(disk: &DiskSuperblock) -> Option<(u32, u64)> {
    let bits = disk.log_block_size.get().checked_add(10)?;
    let blocks = disk.blocks_per_group.get();
    (BLOCK_BITS.contains(&bits) && blocks > 0).then_some((bits, blocks.into()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use platter_block::MemoryDevice;

    use super::*;

    fn made(options: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let made = Command::new("mke2fs")
            .args(["-q", "-F"])
            .args(options)
            .arg(&path)
            .status();
        assert!(made.unwrap().success());
        std::fs::read(&path).unwrap()
    }

    #[test]
    fn copies_are_found_where_groups_begin() {
        for (options, kib) in [
            (&["-b", "1024"][..], 8193),
            (&["-b", "2048"], 16384 * 2),
            (&["-b", "1024", "-O", "^sparse_super,^resize_inode"], 8193),
            (&["-b", "1024", "-O", "sparse_super2,^resize_inode"], 8193),
            (
                &["-b", "1024", "-t", "ext4", "-O", "bigalloc", "-C", "2048"],
                16384,
            ),
        ] {
            let mut bytes = made(options);
            assert_eq!(find(&bytes), Some(kib), "{options:?}");
            bytes[..2048].fill(0);
            let found = find(&bytes);
            let is_usual = !options.contains(&"bigalloc");
            assert_eq!(found, is_usual.then_some(kib), "{options:?}");
        }
    }

    #[test]
    fn a_corrupt_copy_is_passed_over() {
        let mut bytes = made(&["-b", "1024", "-t", "ext4"]);
        let first = 8193 * 1024;
        bytes[first + 0x28] ^= 1;
        assert_eq!(find(&bytes), Some(3 * 8192 + 1));
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&vec![0xff; 64 << 20]), None);
        assert_eq!(find(&made(&["-b", "4096"])), None);
    }

    fn find(bytes: &[u8]) -> Option<u64> {
        find_superblock_copy(&MemoryDevice::new("memory", bytes.to_vec()))
    }
}
