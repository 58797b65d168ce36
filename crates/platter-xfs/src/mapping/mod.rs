//! From blocks of a fork to blocks of a device.

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::OnceLock;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};
use zerocopy::FromBytes;

use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::btree::{BTREE_LEVELS_MAX, BtreeKind, DiskMapping, DiskRootHeader};
use crate::ondisk::extent::{ExtentDevice, Mapping, MappingRule};
use crate::ondisk::{FileBlock, Fork, ForkFormat, ForkKind, Inode, InodeNr};

/// What backs a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: the run reads as zeros.
    Hole,
    /// Blocks in a row from this one.
    Written(u64),
    /// Blocks in a row from this one, which read as zeros.
    Unwritten(u64),
}

/// Blocks of a fork in a row with one kind of backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub first: FileBlock,
    /// Number of blocks, at least 1.
    pub count: u64,
    /// What backs them.
    pub backing: Backing,
}

impl Run {
    /// The block after the last one.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0.saturating_add(self.count))
    }

    /// The run as a mapping; `None` of a hole.
    #[must_use]
    pub fn mapping(&self) -> Option<Mapping> {
        let (start, is_unwritten) = match self.backing {
            Backing::Hole => return None,
            Backing::Written(start) => (start, false),
            Backing::Unwritten(start) => (start, true),
        };
        Some(Mapping {
            offset: self.first,
            start,
            count: self.count,
            is_unwritten,
        })
    }

    /// A hole from `first` to `end`, or to the end of all forks.
    fn hole(first: FileBlock, end: Option<u64>) -> Self {
        let end = end.unwrap_or(FileBlock::MAX.0.saturating_add(1));
        Self {
            first,
            count: end.saturating_sub(first.0).max(1),
            backing: Backing::Hole,
        }
    }

    /// The part of a mapping from `first`, which lies in it, on.
    fn of_mapping(mapping: &Mapping, first: FileBlock) -> Self {
        let skipped = first.0.saturating_sub(mapping.offset.0);
        let start = mapping.start.saturating_add(skipped);
        Self {
            first,
            count: mapping.count.saturating_sub(skipped),
            backing: if mapping.is_unwritten {
                Backing::Unwritten(start)
            } else {
                Backing::Written(start)
            },
        }
    }
}

/// The mappings of a fork, or where they are.
#[derive(Debug, Clone)]
pub struct ForkMap {
    kind: ForkKind,
    device: ExtentDevice,
    owner: InodeNr,
    extents: u64,
    form: Form,
    /// The fork is of a directory: all of a small tree is kept in memory once it was read, as Linux keeps it of all
    /// forks (`xfs_iread_extents`).
    is_kept: bool,
}

/// The most mappings of a tree that are kept in memory.
const KEPT_MAX: u64 = 4096;

#[derive(Debug, Clone)]
enum Form {
    /// The fork holds its contents itself, or there is none.
    Unmapped,
    /// Mappings in the inode.
    Extents(Box<[Mapping]>),
    /// The root of a B-tree, and all its mappings where they are kept.
    Btree(Box<[u8]>, OnceLock<Box<[Mapping]>>),
}

/// Takes mappings until it breaks.
pub type MappingSink<'s> = dyn FnMut(Mapping) -> Result<ControlFlow<()>> + 's;

impl ForkMap {
    /// The mappings of the data fork.
    pub fn of_data(context: &FsContext, inode: &Inode) -> Result<Self> {
        let device = if inode.is_realtime() {
            ExtentDevice::Realtime
        } else {
            ExtentDevice::Data
        };
        let mut map = Self::decode(context, inode.number, Some(inode.data_fork()), device)?;
        map.is_kept = inode.kind == FileKind::Directory && map.extents <= KEPT_MAX;
        Ok(map)
    }

    /// The mappings of the attribute fork.
    pub fn of_attrs(context: &FsContext, inode: &Inode) -> Result<Self> {
        Self::decode(context, inode.number, inode.attr_fork(), ExtentDevice::Data)
    }

    fn decode(
        context: &FsContext,
        owner: InodeNr,
        fork: Option<Fork<'_>>,
        device: ExtentDevice,
    ) -> Result<Self> {
        let mut map = Self {
            kind: fork.map_or(ForkKind::Attr, |fork| fork.kind),
            device,
            owner,
            extents: fork.map_or(0, |fork| fork.extents),
            form: Form::Unmapped,
            is_kept: false,
        };
        let Some(fork) = fork else {
            return Ok(map);
        };
        match fork.format {
            ForkFormat::Extents => {
                let mut mappings = Vec::new();
                for disk in fork.mappings() {
                    let mapping = map.checked(context, disk)?;
                    let last: Option<&Mapping> = mappings.last();
                    if last.is_some_and(|last| last.end() > mapping.offset) {
                        return Err(map.corrupt(MappingRule::Order));
                    }
                    mappings.push(mapping);
                }
                map.form = Form::Extents(mappings.into());
            }
            ForkFormat::Btree => map.form = Form::Btree(fork.bytes.into(), OnceLock::new()),
            ForkFormat::Device | ForkFormat::Local | ForkFormat::MetaBtree => {}
        }
        Ok(map)
    }

    /// The first mapping that ends after a block; `None` if there is none.
    pub fn next(&self, context: &FsContext, block: FileBlock) -> Result<Option<Run>> {
        let run = self.lookup(context, block)?;
        if run.backing != Backing::Hole {
            return Ok(Some(run));
        }
        let after = self.lookup(context, run.end())?;
        Ok(Some(after).filter(|after| after.backing != Backing::Hole))
    }

    /// The device that the blocks are on.
    #[must_use]
    pub fn device(&self) -> ExtentDevice {
        self.device
    }

    /// The run that `block` lies in, from `block` on.
    pub fn lookup(&self, context: &FsContext, block: FileBlock) -> Result<Run> {
        if let Some(mappings) = self.known(context) {
            let after = mappings.partition_point(|mapping| mapping.offset <= block);
            let before = after.checked_sub(1).and_then(|at| mappings.get(at));
            return Ok(match before {
                Some(mapping) if mapping.end() > block => Run::of_mapping(mapping, block),
                Some(_) | None => {
                    let next = mappings.get(after).map(|mapping| mapping.offset.0);
                    Run::hole(block, next)
                }
            });
        }
        match &self.form {
            Form::Unmapped | Form::Extents(_) => Ok(Run::hole(block, None)),
            Form::Btree(root, _) => self.search(context, root, block),
        }
    }

    /// All mappings, where they are in the inode or kept in memory. A tree that cannot be read as a whole is not kept:
    /// what is sound of it is found by searches.
    fn known(&self, context: &FsContext) -> Option<&[Mapping]> {
        match &self.form {
            Form::Extents(mappings) => Some(mappings),
            Form::Btree(_, kept) if self.is_kept => {
                if let Some(kept) = kept.get() {
                    return Some(kept);
                }
                let mut all: Vec<Mapping> = Vec::new();
                let read = self.mappings(context, &mut |mapping| {
                    all.push(mapping);
                    Ok(ControlFlow::Continue(()))
                });
                let is_sound = all.is_sorted_by(|one, next| one.end() <= next.offset);
                (read.is_ok() && is_sound).then(|| &**kept.get_or_init(|| all.into()))
            }
            Form::Unmapped | Form::Btree(..) => None,
        }
    }

    /// The whole mapping that a block lies in, if it lies in one.
    pub fn mapping_of(&self, context: &FsContext, block: FileBlock) -> Result<Option<Mapping>> {
        let before = match &self.form {
            Form::Unmapped => None,
            Form::Extents(mappings) => {
                let after = mappings.partition_point(|mapping| mapping.offset <= block);
                let before = after.checked_sub(1).and_then(|at| mappings.get(at));
                before.copied()
            }
            Form::Btree(root, _) => {
                let tree = Tree::of_fork(context, BtreeKind::Bmap, self.owner, root);
                let Some(leaf) = tree.search(block.0)? else {
                    return Ok(None);
                };
                let view = tree.view_leaf(&leaf)?;
                let records = view.records::<DiskMapping>();
                let after = records.partition_point(|disk| Mapping::unpack(disk).offset <= block);
                let before = after.checked_sub(1).and_then(|at| records.get(at));
                before.map(|disk| self.checked(context, disk)).transpose()?
            }
        };
        Ok(before.filter(|before| before.end() > block))
    }

    fn search(&self, context: &FsContext, root: &[u8], block: FileBlock) -> Result<Run> {
        let tree = Tree::of_fork(context, BtreeKind::Bmap, self.owner, root);
        let Some(leaf) = tree.search(block.0)? else {
            return Ok(Run::hole(
                block,
                tree.first_key()?.filter(|&key| key > block.0),
            ));
        };
        let view = tree.view_leaf(&leaf)?;
        let records = view.records::<DiskMapping>();
        let after = records.partition_point(|disk| Mapping::unpack(disk).offset <= block);
        if let Some(disk) = after.checked_sub(1).and_then(|at| records.get(at)) {
            let mapping = self.checked(context, disk)?;
            if mapping.end() > block {
                return Ok(Run::of_mapping(&mapping, block));
            }
        }
        let next = records
            .get(after)
            .map(|disk| Mapping::unpack(disk).offset.0);
        let next = next.or(leaf.next_key).filter(|&next| next > block.0);
        Ok(Run::hole(block, next))
    }

    /// Passes all mappings in order to `sink` until it breaks; the inode has to count as many.
    pub fn mappings(&self, context: &FsContext, sink: &mut MappingSink<'_>) -> Result<()> {
        let mut seen = 0_u64;
        let mut is_whole = true;
        match &self.form {
            Form::Unmapped => return Ok(()),
            Form::Extents(mappings) => {
                for mapping in mappings {
                    if sink(*mapping)?.is_break() {
                        break;
                    }
                }
                return Ok(());
            }
            Form::Btree(root, _) => {
                let tree = Tree::of_fork(context, BtreeKind::Bmap, self.owner, root);
                tree.leaves(&mut |leaf| {
                    for disk in leaf.records::<DiskMapping>() {
                        seen = seen.saturating_add(1);
                        if sink(self.checked(context, disk)?)?.is_break() {
                            is_whole = false;
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                    Ok(ControlFlow::Continue(()))
                })?;
            }
        }
        if is_whole && seen != self.extents {
            return Err(self.corrupt(MappingRule::Count));
        }
        Ok(())
    }

    /// Levels of blocks that the B-tree has: none while there is none.
    #[must_use]
    pub fn levels(&self) -> u32 {
        let Form::Btree(root, _) = &self.form else {
            return 0;
        };
        let header = DiskRootHeader::ref_from_prefix(root);
        header.map_or(0, |(header, _)| {
            u32::from(header.level.get()).min(BTREE_LEVELS_MAX)
        })
    }

    /// The block after the last one that is mapped.
    pub fn end(&self, context: &FsContext) -> Result<FileBlock> {
        if let Some(mappings) = self.known(context) {
            return Ok(mappings.last().map_or(FileBlock(0), Mapping::end));
        }
        match &self.form {
            Form::Unmapped | Form::Extents(_) => Ok(FileBlock(0)),
            Form::Btree(root, _) => {
                let tree = Tree::of_fork(context, BtreeKind::Bmap, self.owner, root);
                let Some(leaf) = tree.search(u64::MAX)? else {
                    return Ok(FileBlock(0));
                };
                let view = tree.view_leaf(&leaf)?;
                let last = view.records::<DiskMapping>().last();
                Ok(last.map_or(FileBlock(0), |disk| Mapping::unpack(disk).end()))
            }
        }
    }

    fn checked(&self, context: &FsContext, disk: &DiskMapping) -> Result<Mapping> {
        let mapping = Mapping::unpack(disk);
        let checked = mapping.check(context.geometry(), self.device);
        checked.map_err(|rule| self.corrupt(rule))?;
        if mapping.is_unwritten && self.kind == ForkKind::Attr {
            return Err(self.corrupt(MappingRule::Unwritten));
        }
        Ok(mapping)
    }

    fn corrupt(&self, rule: MappingRule) -> platter_vfs::Error {
        Corrupt::new(Locus::inode(self.owner.get()), rule).into()
    }
}
