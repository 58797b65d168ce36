//! Where the structures of an intact image lie, and how their checksums are put right after
//! a change: a second, trusting reading of each format that shares no code with its driver.

mod bytes;
mod checksum;
pub mod ext4;
pub mod btrfs;
pub mod xfs;

use std::mem::Discriminant;
use std::ops::Range;

use anyhow::Result;
use testkit::fs_type::FsType;

use crate::contents::Contents;

/// What a part is, by the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A structure of ext2, ext3 or ext4.
    Ext4(ext4::Kind),
    /// A structure of btrfs.
    Btrfs(btrfs::Kind),
    /// A structure of XFS.
    Xfs(xfs::Kind),
}

/// The parts that are mutated equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Those of ext2, ext3 and ext4.
    Ext4(Discriminant<ext4::Kind>),
    /// Those of btrfs: items of each type are a class.
    Btrfs(btrfs::Kind),
    /// Those of XFS: each magic number is a class.
    Xfs(xfs::Kind),
}

impl Kind {
    /// The class it belongs to; `None` for file contents.
    #[must_use]
    pub fn class(self) -> Option<Class> {
        match self {
            Self::Ext4(ext4::Kind::Data) | Self::Btrfs(btrfs::Kind::Data) => None,
            Self::Ext4(kind) => Some(Class::Ext4(std::mem::discriminant(&kind))),
            Self::Btrfs(kind) => Some(Class::Btrfs(kind)),
            Self::Xfs(kind) => Some(Class::Xfs(kind)),
        }
    }

    /// Whether its fields are big-endian.
    #[must_use]
    pub fn is_big_endian(self) -> bool {
        match self {
            Self::Ext4(kind) => matches!(
                kind,
                ext4::Kind::JournalSuperblock | ext4::Kind::JournalBlock { .. }
            ),
            // The log is in the byte order of the machine that wrote it.
            Self::Btrfs(_) | Self::Xfs(xfs::Kind::LogRegion(_)) => false,
            Self::Xfs(_) => true,
        }
    }
}

/// One structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: Kind,
    /// Where it lies in the image.
    pub range: Range<usize>,
    /// The number by which other structures point to it.
    pub address: u64,
}

/// The numbers of an image, for values that are near them.
#[derive(Debug, Clone, Copy)]
pub struct Units {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// The first address after the filesystem.
    pub addresses: u64,
    /// The first inode number that is not used.
    pub inodes: u64,
}

#[derive(Debug, Clone)]
enum Format {
    Ext4(ext4::Format),
    Btrfs(btrfs::Format),
    Xfs(xfs::Format),
}

/// The parts of one image.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Its numbers.
    pub units: Units,
    /// Every structure, in the order of the image.
    pub parts: Vec<Part>,
    /// The parts by class, as indices.
    pub classes: Vec<Vec<usize>>,
    format: Format,
}

impl Layout {
    /// Reads an image that is known to be good, with its devices one after the other.
    pub fn read(fs_type: FsType, image: &Contents, devices: &[Range<usize>]) -> Result<Self> {
        let (format, units, mut parts) = match fs_type {
            FsType::Ext4 => {
                let (format, parts) = ext4::read(image)?;
                let units = format.units();
                (Format::Ext4(format), units, parts)
            }
            FsType::Btrfs => {
                let (format, parts) = btrfs::read(image, devices)?;
                let units = format.units();
                (Format::Btrfs(format), units, parts)
            }
            FsType::Xfs => {
                let (format, parts) = xfs::read(image)?;
                let units = format.units();
                (Format::Xfs(format), units, parts)
            }
        };
        parts.sort_by_key(|part| part.range.start);
        let mut classes: Vec<(Class, Vec<usize>)> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let Some(class) = part.kind.class() else {
                continue;
            };
            match classes.iter_mut().find(|(known, _)| *known == class) {
                Some((_, members)) => members.push(index),
                None => classes.push((class, vec![index])),
            }
        }
        Ok(Self {
            units,
            parts,
            classes: classes.into_iter().map(|(_, members)| members).collect(),
            format,
        })
    }

    /// The parts that overlap bytes from `start` to `end`.
    pub fn touched(&self, start: usize, end: usize) -> impl Iterator<Item = &Part> {
        let overlaps = move |part: &&Part| part.range.start < end && start < part.range.end;
        self.parts.iter().filter(overlaps)
    }

    /// Puts the checksums of `parts`, and of what covers those checksums, right again.
    pub fn seal(&self, image: &mut Contents, parts: &[Part]) {
        match &self.format {
            Format::Ext4(format) => ext4::seal(image, format, &self.parts, parts),
            Format::Btrfs(format) => btrfs::seal(image, format, parts),
            Format::Xfs(format) => xfs::seal(image, format, parts),
        }
    }

    /// Sets all times of an ext2, ext3 or ext4 to one moment and puts every checksum right: what a tool
    /// left of the time it ran at goes. Images of other formats stay as they were made.
    pub fn make_still(&self, image: &mut Contents) {
        if matches!(self.format, Format::Ext4(_)) {
            ext4::set_times(image, &self.parts);
            self.seal(image, &self.parts);
        }
    }
}

#[cfg(test)]
mod tests;
