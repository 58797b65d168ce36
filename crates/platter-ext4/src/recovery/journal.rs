//! Opening the journal of a filesystem: in an inode, or on an external device.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{FileKind, Result, Unsupported};

use crate::FsContext;
use crate::file::BlockMapRule;
use crate::inode;
use crate::mapping::{Backing, BlockMap, Piece, Run};
use crate::ondisk::jbd2::LogBlock;
use crate::ondisk::{BlockNr, FileBlock, Inode};
use crate::txn::{Journal, JournalMap, JournalMapBuilder};

rules! {
    /// The rules of the journal inode.
    pub enum JournalInodeRule of "journal inode" {
        /// It is a regular file that was not deleted.
        Kind => "is deleted or not a regular file",
        /// Its blocks are all written.
        Unwritten => "has an unwritten block",
    }
}

/// Opens the journal of a filesystem that has one. `external` is the device of an external one.
pub fn open_journal(fs: &FsContext, external: Option<&Arc<dyn BlockDevice>>) -> Result<Journal> {
    match (fs.superblock.journal_inode, external) {
        (Some(number), _) => open_internal_journal(fs, &inode::read(fs, number)?),
        (None, Some(device)) => {
            let device = Arc::clone(device);
            Journal::open_external(device, &fs.superblock, &fs.geometry)
        }
        (None, None) => {
            let unsupported = Unsupported {
                filesystem: "ext4",
                feature: "external journal".into(),
                reason: Some("the external journal device was not given"),
            };
            Err(unsupported.into())
        }
    }
}

/// Opens the journal in an inode.
pub fn open_internal_journal(fs: &FsContext, inode: &Inode) -> Result<Journal> {
    let locus = Locus::inode(u64::from(inode.number.get()));
    check_kind(inode).map_err(|rule| Corrupt::new(locus, rule))?;
    Journal::open(map_of(fs, inode)?)
}

/// Returns the physical blocks of a journal, from the block mapping of its inode.
fn map_of(fs: &FsContext, inode: &Inode) -> Result<JournalMap> {
    let locus = Locus::inode(u64::from(inode.number.get()));
    let geometry = &fs.geometry;
    let len_blocks = u32::try_from(inode.size_bytes >> geometry.block_bits).unwrap_or(u32::MAX);
    let mut map = JournalMapBuilder::new(Arc::clone(fs.device()), geometry.block_bytes);
    let mut pushed = Ok(());
    // A valid mapping has no more parts than the filesystem has blocks.
    let mut pieces_left = geometry.blocks_count;
    BlockMap::decode(fs, inode)?.visit(fs, &mut |piece| {
        let Some(left) = pieces_left.checked_sub(1) else {
            pushed = Err(Corrupt::new(locus, BlockMapRule::TooManyBlocks).into());
            return ControlFlow::Break(());
        };
        pieces_left = left;
        let Piece::Run(run) = piece else {
            return ControlFlow::Continue(());
        };
        let Some(run) = within(run, FileBlock(len_blocks)) else {
            return ControlFlow::Break(());
        };
        pushed = match place(&run) {
            Ok(start) => map.push(LogBlock(run.first.0), start, run.count),
            Err(rule) => Err(Corrupt::new(locus, rule).into()),
        };
        match pushed {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    pushed?;
    Ok(map.finish())
}

/// Returns the part of a run before `end`.
fn within(run: Run, end: FileBlock) -> Option<Run> {
    let space = end.checked_since(run.first).filter(|&space| space > 0)?;
    Some(run.truncated(space))
}

fn check_kind(inode: &Inode) -> Result<(), JournalInodeRule> {
    if inode.kind == FileKind::Regular && inode.links > 0 {
        Ok(())
    } else {
        Err(JournalInodeRule::Kind)
    }
}

fn place(run: &Run) -> Result<BlockNr, JournalInodeRule> {
    match run.backing {
        Backing::Written(start) => Ok(start),
        Backing::Unwritten(_) | Backing::Hole => Err(JournalInodeRule::Unwritten),
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule as _;
    use platter_vfs::Error;

    use super::*;
    use crate::fs_context::tests::sample_fs;
    use crate::ondisk::InodeNr;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::inode::tests::sample;

    fn inode(mode: u16, links: u16) -> Inode {
        let geometry = sample_geometry();
        let bytes = sample(&geometry, InodeNr::JOURNAL, |disk, _| {
            disk.mode = mode.into();
            disk.links = links.into();
        });
        Inode::decode(&bytes, InodeNr::JOURNAL, &geometry).unwrap()
    }

    #[test]
    fn journal_in_a_directory_or_a_deleted_file_is_refused() {
        assert_eq!(check_kind(&inode(0o10_0600, 1)), Ok(()));
        for (mode, links) in [(0o4_0755, 2), (0o10_0600, 0)] {
            assert_eq!(check_kind(&inode(mode, links)), Err(JournalInodeRule::Kind));
        }
    }

    #[test]
    fn journal_with_unwritten_blocks_is_refused() {
        let run = Run {
            first: FileBlock(0),
            count: 1,
            backing: Backing::Unwritten(BlockNr(5)),
        };
        assert_eq!(place(&run), Err(JournalInodeRule::Unwritten));
    }

    #[test]
    fn journal_with_cyclic_mapping_is_refused() {
        let indirect_block = |number: u32| number.to_le_bytes().repeat(256);
        let fs = sample_fs(&[(110, &indirect_block(111)), (111, &indirect_block(112))]);
        let bytes = sample(&fs.geometry, InodeNr::JOURNAL, |disk, _| {
            disk.size_hi = 4.into();
            disk.block[56..].copy_from_slice(&110u32.to_le_bytes());
        });
        let inode = Inode::decode(&bytes, InodeNr::JOURNAL, &fs.geometry).unwrap();
        let Err(Error::Corrupt(report)) = map_of(&fs, &inode) else {
            panic!("accepted as a journal");
        };
        assert_eq!(report.rule, BlockMapRule::TooManyBlocks.text());
    }

    #[test]
    fn journal_is_limited_by_its_inode() {
        let run = Run {
            first: FileBlock(8),
            count: 4,
            backing: Backing::Written(BlockNr(5)),
        };
        let count = |end| within(run, FileBlock(end)).map(|run| run.count);
        assert_eq!(
            [7, 8, 9, 12, 13].map(count),
            [None, None, Some(1), Some(4), Some(4)]
        );
    }
}
