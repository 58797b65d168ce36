//! What the superblock and the group descriptors say of an image that is known to be good.
//! Spec: `ext4/super`, `ext4/group_descr`.

use anyhow::{Result, ensure};
use platter_ondisk::checksum::crc32c;

use crate::contents::Contents;

use super::bytes::{le16, le32, slice};

pub(super) const SUPERBLOCK: usize = 1024;
pub(super) const SUPERBLOCK_LEN: usize = 1024;

const HAS_JOURNAL: u32 = 0x4;
const META_BG: u32 = 0x10;
const BIT64: u32 = 0x80;
const CSUM_SEED: u32 = 0x2000;
const SPARSE_SUPER: u32 = 0x1;
const GDT_CSUM: u32 = 0x10;
const METADATA_CSUM: u32 = 0x400;

/// Which checksums an image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// None.
    None,
    /// CRC-16 over group descriptors.
    Groups,
    /// CRC-32C over all metadata.
    Metadata,
}

/// The shape of an image.
#[derive(Debug, Clone)]
pub struct Format {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks of the filesystem.
    pub blocks: u64,
    /// Inodes of the filesystem.
    pub inodes: u32,
    /// Which checksums there are.
    pub checksums: Checksums,
    /// Where each group's descriptor lies.
    pub groups: Vec<Group>,
    pub(super) inode_bytes: usize,
    pub(super) inodes_per_group: u32,
    pub(super) clusters_per_group: u32,
    pub(super) descriptor_bytes: usize,
    pub(super) seed: u32,
    pub(super) uuid: [u8; 16],
    pub(super) journal_inode: u32,
    pub(super) orphan_inode: u32,
}

/// One block group.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Offset of its descriptor in the image.
    pub descriptor: usize,
    pub(super) block_bitmap: usize,
    pub(super) inode_bitmap: usize,
    pub(super) inode_table: usize,
    pub(super) flags: u16,
}

impl Format {
    pub(super) fn read(image: &Contents) -> Result<Self> {
        let field = |at| le32(image, SUPERBLOCK + at);
        ensure!(le16(image, SUPERBLOCK + 0x38) == 0xef53, "no superblock");
        let block_bytes = 1024_usize << field(0x18);
        let blocks = u64::from(field(0x4));
        let (incompat, ro_compat) = (field(0x60), field(0x64));
        let uuid: [u8; 16] = slice(image, SUPERBLOCK + 0x68, 16).as_ref().try_into()?;
        let wide = incompat & BIT64 != 0;
        let mut format = Self {
            block_bytes,
            blocks,
            inodes: field(0),
            checksums: match ro_compat {
                bits if bits & METADATA_CSUM != 0 => Checksums::Metadata,
                bits if bits & GDT_CSUM != 0 => Checksums::Groups,
                _ => Checksums::None,
            },
            groups: Vec::new(),
            inode_bytes: match field(0x4c) {
                0 => 128,
                _ => usize::from(le16(image, SUPERBLOCK + 0x58)),
            },
            inodes_per_group: field(0x28),
            clusters_per_group: field(0x24),
            descriptor_bytes: if wide {
                usize::from(le16(image, SUPERBLOCK + 0xfe))
            } else {
                32
            },
            seed: if incompat & CSUM_SEED != 0 {
                field(0x270)
            } else {
                crc32c(!0, &uuid)
            },
            uuid,
            journal_inode: if field(0x5c) & HAS_JOURNAL != 0 {
                field(0xe0)
            } else {
                0
            },
            orphan_inode: field(0x280),
        };
        let first_block = field(0x14);
        let per_group = field(0x20);
        let count = (u32::try_from(blocks)? - first_block).div_ceil(per_group);
        let per_block = block_bytes / format.descriptor_bytes;
        for group in 0..count {
            let index = usize::try_from(group)? / per_block;
            let spread = incompat & META_BG != 0 && index >= usize::try_from(field(0x104))?;
            let block = if spread {
                let first = u32::try_from(index * per_block)?;
                let has_backup = ro_compat & SPARSE_SUPER == 0 || has_superblock(first);
                first_block + first * per_group + u32::from(has_backup)
            } else {
                u32::try_from(SUPERBLOCK / block_bytes + 1 + index)?
            };
            let within = usize::try_from(group)? % per_block * format.descriptor_bytes;
            let descriptor = usize::try_from(block)? * block_bytes + within;
            format.groups.push(format.group(image, descriptor)?);
        }
        Ok(format)
    }

    fn group(&self, image: &Contents, descriptor: usize) -> Result<Group> {
        let block = |at| -> Result<usize> {
            Ok(usize::try_from(le32(image, descriptor + at))? * self.block_bytes)
        };
        Ok(Group {
            descriptor,
            block_bitmap: block(0)?,
            inode_bitmap: block(4)?,
            inode_table: block(8)?,
            flags: le16(image, descriptor + 0x12),
        })
    }

    /// Where inode `number` lies.
    pub(super) fn inode_offset(&self, number: u32) -> Option<usize> {
        let index = number.checked_sub(1)?;
        let group = usize::try_from(index / self.inodes_per_group).ok()?;
        let within = usize::try_from(index % self.inodes_per_group).ok()?;
        Some(self.groups.get(group)?.inode_table + within * self.inode_bytes)
    }
}

/// With `sparse_super`, whether a group keeps a backup: 0, 1 and powers of 3, 5 and 7.
fn has_superblock(group: u32) -> bool {
    let is_power = |base: u32| (0..12).any(|power| base.checked_pow(power) == Some(group));
    group <= 1 || [3, 5, 7].into_iter().any(is_power)
}
