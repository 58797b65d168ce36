//! What backs the ranges of a file, one after the other.

use std::ops::Range;

use platter_ondisk::{Corrupt, rules};
use platter_vfs::Result;

use crate::context::FsContext;
use crate::items::ItemCursor;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key};
use crate::tree::Tree;

rules! {
    /// The rules of a file's extents together.
    pub enum FileRunsRule of "file extents" {
        /// No two extents have a byte of the file in common.
        Overlap => "file extents overlap",
    }
}

/// What backs a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Nothing.
    Hole,
    /// Space that was not written.
    Prealloc(ExtentPlace),
    /// Data in the tree.
    Inline {
        /// As it is stored.
        data: Vec<u8>,
        /// Its length when decompressed. Zeros follow, to the end of the last sector.
        ram_bytes: u64,
        /// Its compression.
        compression: Compression,
    },
    /// An extent.
    Data {
        /// The extent, and where the run begins in it.
        place: ExtentPlace,
        /// Its length when decompressed.
        ram_bytes: u64,
        /// Its compression.
        compression: Compression,
    },
}

impl Backing {
    /// The extent on disk, if it is one.
    #[must_use]
    pub fn place(&self) -> Option<&ExtentPlace> {
        match self {
            Self::Prealloc(place) | Self::Data { place, .. } => Some(place),
            Self::Hole | Self::Inline { .. } => None,
        }
    }
}

/// A range of a file with one backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRun {
    /// The range.
    pub file: Range<u64>,
    /// What backs it.
    pub backing: Backing,
    /// The transaction that made the extent; 0 of a hole.
    pub generation: Generation,
}

impl FileRun {
    /// Whether it is backed by a compressed extent.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        matches!(self.backing, Backing::Data { compression, .. } if compression != Compression::None)
    }
}

/// The runs of a file.
#[derive(Debug)]
pub struct Runs<'c> {
    cursor: ItemCursor<'c>,
    tree: Tree,
    inode: u64,
    sector_bytes: u32,
}

impl<'c> Runs<'c> {
    /// The runs of an inode.
    #[must_use]
    pub fn new(context: &'c FsContext, tree: Tree, inode: u64) -> Self {
        Self {
            cursor: context.cursor(tree),
            tree,
            inode,
            sector_bytes: context.sector_bytes(),
        }
    }

    /// The runs of an inode in a tree that transactions leave as it is: no lock is held between two of them.
    #[must_use]
    pub fn of_unchanged(context: &'c FsContext, tree: Tree, inode: u64) -> Self {
        Self {
            cursor: context.cursor_of_unchanged(tree),
            tree,
            inode,
            sector_bytes: context.sector_bytes(),
        }
    }

    /// The run that byte `at` is in: of an extent all of it, of a hole what follows `at`.
    pub fn at(&mut self, at: u64) -> Result<FileRun> {
        let key = Key::new(self.inode, ItemKind::EXTENT_DATA, at);
        let found = self.cursor.seek_at_or_before(key)?;
        let before = if found { self.extent()? } else { None };
        if let Some(run) = before {
            self.cursor.step()?;
            let next = self.offset();
            if next.is_some_and(|next| next < run.file.end) {
                let locus = self.tree.locus(key);
                return Err(Corrupt::new(locus, FileRunsRule::Overlap).into());
            }
            if run.file.end > at {
                return Ok(run);
            }
        } else {
            self.cursor.seek(key)?;
        }
        let end = self.offset().unwrap_or(u64::MAX);
        Ok(FileRun {
            file: at..end,
            backing: Backing::Hole,
            generation: Generation(0),
        })
    }

    /// The offset of the extent at the cursor, if it is of this file.
    fn offset(&self) -> Option<u64> {
        let key = self.cursor.key()?;
        let is_own = key.object == self.inode && key.kind == ItemKind::EXTENT_DATA;
        is_own.then_some(key.offset)
    }

    fn extent(&self) -> Result<Option<FileRun>> {
        let (Some(offset), Some((key, data))) = (self.offset(), self.cursor.item()) else {
            return Ok(None);
        };
        let locus = self.tree.locus(key);
        let extent = FileExtent::decode(data, offset, self.sector_bytes, locus)?;
        let mut file_bytes = extent.file_bytes;
        let backing = match extent.kind {
            FileExtentKind::Hole => Backing::Hole,
            FileExtentKind::Prealloc(place) => Backing::Prealloc(place),
            FileExtentKind::Inline(data) => {
                file_bytes = file_bytes.next_multiple_of(u64::from(self.sector_bytes));
                Backing::Inline {
                    data: data.to_vec(),
                    ram_bytes: extent.ram_bytes,
                    compression: extent.compression,
                }
            }
            FileExtentKind::Regular(place) => Backing::Data {
                place,
                ram_bytes: extent.ram_bytes,
                compression: extent.compression,
            },
        };
        Ok(Some(FileRun {
            file: offset..offset.saturating_add(file_bytes),
            backing,
            generation: extent.generation,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::ops::ControlFlow;

    use platter_ondisk::Rule as _;
    use platter_vfs::{Extent, SeekTarget};

    use super::super::{Contents, with_contents};
    use super::*;
    use crate::context::tests::{rule, sample};
    use crate::ondisk::{LogicalAddr, TreeId};

    fn extent(file_bytes: u64) -> Vec<u8> {
        let place = ExtentPlace {
            logical: LogicalAddr(1 << 20),
            disk_bytes: file_bytes,
            offset: 0,
        };
        let extent = FileExtent {
            generation: Generation(1),
            ram_bytes: file_bytes,
            compression: Compression::None,
            file_bytes,
            kind: FileExtentKind::Regular(place),
        };
        extent.encode()
    }

    fn file(extents: &[(u64, u64)]) -> FsContext {
        let items: Vec<_> = extents
            .iter()
            .map(|&(offset, len)| {
                let key = Key::new(257, ItemKind::EXTENT_DATA, offset);
                (key, extent(len))
            })
            .collect();
        let items: Vec<_> = items.iter().map(|(key, data)| (*key, &data[..])).collect();
        sample(&items, &[])
    }

    #[test]
    fn runs_and_holes_alternate() {
        let context = file(&[(4096, 8192), (20480, 4096)]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        let mut runs = Runs::new(&context, tree, 257);
        let mut range = |at| runs.at(at).unwrap().file;
        assert_eq!(range(0), 0..4096);
        assert_eq!(range(5000), 4096..12288);
        assert_eq!(range(12288), 12288..20480);
        assert_eq!(range(20480), 20480..24576);
        assert_eq!(range(30000), 30000..u64::MAX);
    }

    #[test]
    fn inline_extent_fills_its_sector() {
        let inline = FileExtent {
            generation: Generation(1),
            ram_bytes: 419,
            compression: Compression::None,
            file_bytes: 419,
            kind: FileExtentKind::Inline(&[7; 419]),
        };
        let key = Key::new(257, ItemKind::EXTENT_DATA, 0);
        let context = sample(&[(key, &inline.encode())], &[]);
        with_contents(&context, (257, 6000), has_data_in_one_sector);
    }

    /// What `inline_extent_fills_its_sector` expects.
    fn has_data_in_one_sector(contents: &Contents<'_>) {
        let seek = |offset, target| contents.seek(offset, target).ok();
        assert_eq!(seek(419, SeekTarget::Data), Some(419));
        assert_eq!(seek(0, SeekTarget::Hole), Some(4096));
        assert_eq!(seek(4096, SeekTarget::Data), None);
        let mut extents = Vec::new();
        let mut sink = |extent: Extent| {
            extents.push((extent.file, extent.inline));
            ControlFlow::Continue(())
        };
        contents.written(0..u64::MAX, &mut sink).unwrap();
        assert_eq!(extents, [(0..4096, true)]);
        let mut bytes = [1; 600];
        contents
            .fill(0, &mut [IoSliceMut::new(&mut bytes)])
            .unwrap();
        assert_eq!(bytes[..419], [7; 419]);
        assert_eq!(bytes[419..], [0; 181]);
    }

    #[test]
    fn overlapping_extents_are_corrupt() {
        let context = file(&[(0, 8192), (4096, 4096)]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        let run = Runs::new(&context, tree, 257).at(0);
        assert_eq!(rule(run), FileRunsRule::Overlap.text());
    }
}
