//! Finds every structure by following the tables and maps of a good image.
//! Spec: `ext4/inodes`, `ext4/ifork`, `ext4/directory`, `ext4/attributes`, `ext4/orphan`.

use std::ops::Range;

use platter_ondisk::checksum::crc32c;

use crate::contents::Contents;

use super::bytes::{byte, le16, le32};
use super::format::{Checksums, Format, SUPERBLOCK, SUPERBLOCK_LEN};
use super::journal;

pub(super) const FLAG_INDEX: u32 = 0x1000;
pub(super) const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_EA_INODE: u32 = 0x20_0000;
const FLAG_INLINE: u32 = 0x1000_0000;
const TYPE_DIRECTORY: u16 = 4;
const TYPE_REGULAR: u16 = 8;
const TYPE_SYMLINK: u16 = 10;
const EXTENT_MAGIC: u16 = 0xf30a;
/// `i_block` within the inode.
const BLOCK_AREA: usize = 0x28;
/// Blocks followed for one file.
const FILE_BLOCKS_MAX: usize = 4096;

/// What a part is, with what its checksum needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The superblock.
    Superblock,
    /// A group's descriptor.
    Group(u32),
    /// A group's block bitmap.
    BlockBitmap(u32),
    /// A group's inode bitmap.
    InodeBitmap(u32),
    /// An inode in use.
    Inode(u32),
    /// An extent node outside its inode; the seed of the inode's checksums.
    ExtentNode(u32),
    /// An indirect block.
    Indirect,
    /// A block of directory entries.
    Directory(u32),
    /// The root or an inner node of a directory's index; where its entries begin.
    Index(u32, usize),
    /// An attribute block; its number.
    Attributes(u32),
    /// A block of the orphan file; its number.
    Orphans(u32, u32),
    /// The journal's superblock.
    JournalSuperblock,
    /// A descriptor, revoke or commit block of the journal.
    JournalBlock {
        /// What checksums it has.
        sums: JournalSums,
        /// Where its checksum is.
        checksum: usize,
    },
    /// A logged block.
    Logged {
        /// What checksums it has, after its transaction's number.
        sums: JournalSums,
        /// Where the tag that describes it lies in the image.
        tag: usize,
    },
    /// Contents of a file.
    Data,
}

/// How a journal checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSums {
    /// What checksums start from.
    pub seed: u32,
    /// The journal's incompatible features.
    pub features: u32,
}

/// One structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// What it is.
    pub kind: Kind,
    /// Where it lies in the image.
    pub range: Range<usize>,
}

/// A file's blocks by their order in the file.
pub(super) type FileBlocks = Vec<(usize, u32)>;

struct Finder<'a> {
    image: &'a Contents,
    format: &'a Format,
    parts: Vec<Part>,
}

pub(super) fn find(image: &Contents, format: &Format) -> Vec<Part> {
    let mut finder = Finder {
        image,
        format,
        parts: Vec::new(),
    };
    finder.add(Kind::Superblock, SUPERBLOCK, SUPERBLOCK_LEN);
    let block = format.block_bytes;
    for (number, group) in (0..).zip(&format.groups) {
        finder.add(
            Kind::Group(number),
            group.descriptor,
            format.descriptor_bytes,
        );
        finder.add(Kind::BlockBitmap(number), group.block_bitmap, block);
        finder.add(Kind::InodeBitmap(number), group.inode_bitmap, block);
        finder.inodes_of_group(number);
    }
    finder.parts
}

impl Finder<'_> {
    fn add(&mut self, kind: Kind, start: usize, length: usize) {
        if start + length <= self.image.len() {
            let range = start..start + length;
            self.parts.push(Part { kind, range });
        }
    }

    fn add_block(&mut self, kind: Kind, block: u32) {
        let length = self.format.block_bytes;
        self.add(kind, block as usize * length, length);
    }

    fn inodes_of_group(&mut self, group: u32) {
        const INODE_UNINIT: u16 = 1;
        let place = self.format.groups[group as usize];
        if self.format.checksums != Checksums::None && place.flags & INODE_UNINIT != 0 {
            return;
        }
        for index in 0..self.format.inodes_per_group {
            let byte = byte(self.image, place.inode_bitmap + index as usize / 8);
            if byte >> (index % 8) & 1 == 0 {
                continue;
            }
            let number = group * self.format.inodes_per_group + index + 1;
            self.inode(number);
        }
    }

    fn inode(&mut self, number: u32) {
        let Some(at) = self.format.inode_offset(number) else {
            return;
        };
        let image = self.image;
        self.add(Kind::Inode(number), at, self.format.inode_bytes);
        let file_type = le16(image, at) >> 12;
        let flags = le32(image, at + 0x20);
        let seed = inode_seed(image, self.format, number);
        let attributes = le32(image, at + 0x68);
        if attributes != 0 {
            self.add_block(Kind::Attributes(attributes), attributes);
        }
        let is_fast_link = file_type == TYPE_SYMLINK && le32(image, at + 4) < 60;
        let has_map = [TYPE_DIRECTORY, TYPE_REGULAR, TYPE_SYMLINK].contains(&file_type);
        if flags & FLAG_INLINE != 0 || is_fast_link || !has_map {
            return;
        }
        let mut blocks = FileBlocks::new();
        if flags & FLAG_EXTENTS != 0 {
            self.extents(at + BLOCK_AREA, 60, seed, &mut blocks);
        } else {
            self.indirect(at + BLOCK_AREA, &mut blocks);
        }
        if number == self.format.journal_inode {
            let parts = journal::find(image, self.format.block_bytes, &blocks);
            self.parts.extend(parts);
        } else if number == self.format.orphan_inode {
            for (_, block) in blocks {
                self.add_block(Kind::Orphans(seed, block), block);
            }
        } else if file_type == TYPE_DIRECTORY {
            for (index, block) in blocks {
                let kind = self.directory_block(index, block, flags, seed);
                self.add_block(kind, block);
            }
        } else if flags & FLAG_EA_INODE == 0 {
            for (_, block) in blocks {
                self.add_block(Kind::Data, block);
            }
        }
    }

    fn directory_block(&self, index: usize, block: u32, flags: u32, seed: u32) -> Kind {
        let at = block as usize * self.format.block_bytes;
        if flags & FLAG_INDEX == 0 {
            return Kind::Directory(seed);
        }
        let is_node = le32(self.image, at) == 0
            && usize::from(le16(self.image, at + 4)) == self.format.block_bytes;
        match (index, is_node) {
            (0, _) => Kind::Index(seed, 0x20),
            (_, true) => Kind::Index(seed, 8),
            (_, false) => Kind::Directory(seed),
        }
    }

    fn extents(&mut self, at: usize, length: usize, seed: u32, blocks: &mut FileBlocks) {
        if le16(self.image, at) != EXTENT_MAGIC {
            return;
        }
        let entries = usize::from(le16(self.image, at + 2)).min(length / 12);
        let depth = le16(self.image, at + 6);
        for entry in (1..=entries).map(|index| at + index * 12) {
            if depth > 0 {
                let child = le32(self.image, entry + 4);
                self.add_block(Kind::ExtentNode(seed), child);
                let (start, length) = (
                    child as usize * self.format.block_bytes,
                    self.format.block_bytes,
                );
                self.extents(start, length, seed, blocks);
                continue;
            }
            let first = le32(self.image, entry) as usize;
            let count = usize::from(le16(self.image, entry + 4));
            let start = le32(self.image, entry + 8);
            for (index, block) in (first..first + count).zip(start..) {
                if blocks.len() < FILE_BLOCKS_MAX {
                    blocks.push((index, block));
                }
            }
        }
    }

    fn indirect(&mut self, at: usize, blocks: &mut FileBlocks) {
        let per_block = self.format.block_bytes / 4;
        for index in 0..12 {
            let block = le32(self.image, at + index * 4);
            if block != 0 {
                blocks.push((index, block));
            }
        }
        let mut first = 12;
        let mut span = 1;
        for level in 1..=3 {
            span *= per_block;
            let block = le32(self.image, at + (11 + level) * 4);
            self.indirect_block(block, level, first, blocks);
            first += span;
        }
    }

    fn indirect_block(&mut self, block: u32, level: usize, first: usize, blocks: &mut FileBlocks) {
        if block == 0 || blocks.len() >= FILE_BLOCKS_MAX {
            return;
        }
        if level == 0 {
            blocks.push((first, block));
            return;
        }
        self.add_block(Kind::Indirect, block);
        let per_block = self.format.block_bytes / 4;
        let span = per_block.pow(u32::try_from(level - 1).unwrap_or(0));
        let at = block as usize * self.format.block_bytes;
        for index in 0..per_block {
            let child = le32(self.image, at + index * 4);
            self.indirect_block(child, level - 1, first + index * span, blocks);
        }
    }
}

/// What the checksums of an inode's structures start from.
pub(super) fn inode_seed(image: &Contents, format: &Format, number: u32) -> u32 {
    let generation = format
        .inode_offset(number)
        .map_or(0, |at| le32(image, at + 0x64));
    let seed = crc32c(format.seed, &number.to_le_bytes());
    crc32c(seed, &generation.to_le_bytes())
}
