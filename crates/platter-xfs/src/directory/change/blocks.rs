//! Blocks of a directory under change.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::place::{DirPlace, alloc_block};
use super::{DataFork, DirectoryChange, KNOWN_BLOCKS_MAX, KnownMappings, Located};
use crate::ag::{BlockRole, Groups};
use crate::change::{free_mapping, withhold_parts};
use crate::directory::{DirectoryRule, Form};
use crate::fork::ForkEdit;
use crate::ondisk::chunks::Chunks;
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::DataPointer;
use crate::ondisk::dir::build::HashEntry;
use crate::ondisk::dir::data::{DataKind, DirData, DirDataRule};
use crate::ondisk::extent::Mapping;
use crate::ondisk::{BlockKind, BlockVerifier, FileBlock, ForkKind, FsBlock, Site, dir};

impl<'f> DirectoryChange<'_, 'f> {
    fn fork_mut(&mut self) -> Result<(&mut ForkEdit, &mut Groups)> {
        if let DataFork::Unchanged(_) = self.fork {
            let inode = self.edit.inode();
            let fork = ForkEdit::open(&inode.data_fork(), inode.number, self.change.geometry())?;
            self.fork = DataFork::Open(fork);
        }
        match &mut self.fork {
            DataFork::Open(fork) => Ok((fork, &mut self.change.groups)),
            DataFork::Local | DataFork::Unchanged(_) => Err(Condition::InvalidArgument.into()),
        }
    }

    /// The fork, whose mappings change now.
    fn changing_fork(&mut self) -> Result<(&mut ForkEdit, &mut Groups)> {
        self.known = KnownMappings::default();
        self.fork_mut()
    }

    /// The block after the last one that is mapped.
    pub(super) fn end(&mut self) -> Result<u64> {
        if let Some(end) = self.known.end {
            return Ok(end);
        }
        let end = match self.fork {
            DataFork::Unchanged(map) => map.end(self.change.context())?.0,
            DataFork::Local | DataFork::Open(_) => self.end_before(u64::MAX)?,
        };
        self.known.end = Some(end);
        Ok(end)
    }

    /// The block after the last one that is mapped before `limit`.
    pub(super) fn end_before(&mut self, limit: u64) -> Result<u64> {
        let (fork, groups) = self.fork_mut()?;
        let last = fork.last_before(groups, FileBlock(limit))?;
        Ok(last.map_or(0, |last| last.end().0.min(limit)))
    }

    /// The first mapping that ends after a block.
    pub(super) fn mapping_from(&mut self, first: FileBlock) -> Result<Option<Mapping>> {
        if let DataFork::Unchanged(map) = self.fork {
            let run = map.next(self.change.context(), first)?;
            return Ok(run.and_then(|run| run.mapping()));
        }
        let (fork, groups) = self.fork_mut()?;
        fork.lookup(groups, first)
    }

    /// Where the directory block that begins with this block of the fork lies; `None` if it is not mapped.
    pub(super) fn locate(&mut self, first: FileBlock) -> Result<Option<DirPlace>> {
        let mut known = self.known.blocks.iter();
        if let Some((_, place)) = known.find(|(known, _)| *known == first) {
            return Ok(Some(place.clone()));
        }
        let count = self.geometry().dir_block_blocks();
        let found = self.mapping_from(first)?;
        let Some(found) = found.filter(|found| found.offset <= first) else {
            return Ok(None);
        };
        if found.is_unwritten {
            return Err(self.broken());
        }
        let skipped = first.0 - found.offset.0;
        let place = if found.count - skipped >= u64::from(count) {
            DirPlace::Whole(FsBlock(found.start + skipped))
        } else {
            DirPlace::Parts(self.parts(first, found)?.into())
        };
        let known = &mut self.known.blocks;
        if known.len() == KNOWN_BLOCKS_MAX {
            known.remove(0);
        }
        known.push((first, place.clone()));
        Ok(Some(place))
    }

    /// The blocks of a directory block that is in several extents, the first of which is `found`.
    fn parts(&mut self, first: FileBlock, mut found: Mapping) -> Result<Vec<FsBlock>> {
        let end = FileBlock(first.0 + u64::from(self.geometry().dir_block_blocks()));
        let mut parts = Vec::new();
        let mut at = first;
        loop {
            let until = found.end().min(end);
            let start = found.start + (at.0 - found.offset.0);
            parts.extend((start..start + (until.0 - at.0)).map(FsBlock));
            at = until;
            if at == end {
                return Ok(parts);
            }
            let next = self.mapping_from(at)?;
            let next = next.filter(|next| next.offset <= at && !next.is_unwritten);
            found = next.ok_or_else(|| self.broken())?;
        }
    }

    /// Calls `look` with a block of the directory, verified.
    pub(super) fn look_at<R>(
        &mut self,
        first: FileBlock,
        kind: BlockKind,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let place = self.locate(first)?.ok_or_else(|| self.broken())?;
        let geometry = self.geometry();
        let verifier = BlockVerifier::new(geometry, kind, self.owner().get());
        let bytes = place.read(self.change.groups.blocks(), geometry, &verifier)?;
        Ok(look(&bytes))
    }

    /// A block of the directory, verified, to be changed.
    pub(super) fn read(&mut self, first: FileBlock, kind: BlockKind) -> Result<Vec<u8>> {
        self.look_at(first, kind, <[u8]>::to_vec)
    }

    /// Has `change` change a block of the directory, verified, in place, and say what it changes.
    pub(super) fn edit_block<R>(
        &mut self,
        first: FileBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8], &mut Chunks) -> R,
    ) -> Result<R> {
        let place = self.locate(first)?.ok_or_else(|| self.broken())?;
        let (geometry, role) = (self.geometry(), self.role(kind));
        place.edit(self.change.groups.blocks_mut(), geometry, role, change)
    }

    /// Has `change` change a block of entries in place, and say what it changes.
    pub(super) fn edit_data<R>(
        &mut self,
        block: u32,
        kind: DataKind,
        change: impl FnOnce(&mut [u8], &mut Chunks) -> R,
    ) -> Result<R> {
        let first = dir::data_block(self.geometry(), block);
        self.edit_block(first, BlockKind::DirData(kind), change)
    }

    /// What a block of the hash tree is by its magic number; `None` if it is not mapped, or nothing such.
    pub(super) fn da_kind(&mut self, first: FileBlock) -> Result<Option<DaKind>> {
        let Some(place) = self.locate(first)? else {
            return Ok(None);
        };
        let blocks = self.change.groups.blocks();
        let bytes = place.read_start(blocks, self.change.geometry())?;
        Ok(DaKind::of(&bytes, true))
    }

    fn role(&self, kind: BlockKind) -> BlockRole {
        BlockRole {
            kind,
            owner: self.owner().get(),
        }
    }

    /// Stores a block that is mapped; its checksum is computed when it is written to its place.
    pub(super) fn write(
        &mut self,
        first: FileBlock,
        kind: BlockKind,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let place = self.locate(first)?.ok_or_else(|| self.broken())?;
        let (geometry, role) = (self.geometry(), self.role(kind));
        place.write(self.change.groups.blocks_mut(), geometry, role, bytes)
    }

    /// What a block that is mapped bears.
    pub(super) fn site(&mut self, first: FileBlock) -> Result<Site<'f>> {
        let place = self.locate(first)?.ok_or_else(|| self.broken())?;
        let geometry = self.geometry();
        Ok(Site::new(
            geometry,
            geometry.basic_block(place.first()),
            self.owner().get(),
        ))
    }

    /// Allocates and maps a block, which is still to be [written](Self::write).
    pub(super) fn add_block(&mut self, first: FileBlock) -> Result<()> {
        let (geometry, owner) = (self.geometry(), self.owner());
        if let Some(log) = self.change.context().log() {
            let (own_ag, _) = geometry.split_inode(owner);
            self.change.groups.finish_freed(own_ag, log)?;
        }
        let mappings = alloc_block(&mut self.change.groups, geometry, owner, first)?;
        let (fork, groups) = self.changing_fork()?;
        for mapping in mappings {
            fork.map(groups, mapping)?;
        }
        let place = self.locate(first)?.ok_or_else(|| self.broken())?;
        place.create(self.change.groups.blocks_mut(), geometry, owner);
        Ok(())
    }

    /// Frees a block.
    pub(super) fn drop_block(&mut self, first: FileBlock) -> Result<()> {
        let place = self.locate(first)?.ok_or_else(|| self.broken())?;
        let (geometry, owner) = (self.geometry(), self.owner());
        let (fork, groups) = self.changing_fork()?;
        let gone = fork.unmap(groups, first, geometry.dir_block_blocks().into())?;
        place.forget(groups.blocks_mut(), geometry);
        let is_split = matches!(place, DirPlace::Parts(_));
        for gone in gone {
            if is_split {
                withhold_parts(groups, FsBlock(gone.start), gone.count)?;
            }
            free_mapping(groups, &gone, owner, (ForkKind::Data, false))?;
        }
        Ok(())
    }

    /// What the blocks of entries are.
    pub(super) fn data_kind(&mut self) -> Result<DataKind> {
        Ok(if self.form()? == Form::Block {
            DataKind::Single
        } else {
            DataKind::Data
        })
    }

    pub(super) fn read_data(&mut self, block: u32, kind: DataKind) -> Result<Vec<u8>> {
        let first = dir::data_block(self.geometry(), block);
        self.read(first, BlockKind::DirData(kind))
    }

    pub(super) fn write_data(&mut self, block: u32, kind: DataKind, bytes: Vec<u8>) -> Result<()> {
        let first = dir::data_block(self.geometry(), block);
        self.write(first, BlockKind::DirData(kind), bytes)
    }

    /// A new block of entries that has none. The directory reaches to its end.
    pub(super) fn add_data(&mut self, block: u32, kind: DataKind) -> Result<Vec<u8>> {
        let geometry = self.geometry();
        let first = dir::data_block(geometry, block);
        self.add_block(first)?;
        let site = self.site(first)?;
        let bytes = dir::build::empty_data(kind, &site).ok_or_else(|| self.broken())?;
        let size = (u64::from(block) + 1) * u64::from(geometry.dir_block_bytes());
        if size > self.size_bytes()? {
            self.set_size(size)?;
        }
        Ok(bytes)
    }

    /// Frees a block of entries that has none. The directory ends with the last one that is left.
    pub(super) fn drop_data(&mut self, block: u32) -> Result<()> {
        let geometry = self.geometry();
        let first = dir::data_block(geometry, block);
        self.drop_block(first)?;
        let end = self.end_before(dir::leaf_start(geometry).0)?;
        self.set_size(end << geometry.block_bits)
    }

    fn size_bytes(&mut self) -> Result<u64> {
        let geometry = self.geometry();
        self.edit.refresh(geometry)?;
        Ok(self.edit.inode().size_bytes)
    }

    /// Whether the entry at a place of a block of several has this name.
    pub(super) fn has_name(&mut self, at: Located, name: &[u8]) -> Result<bool> {
        let (geometry, owner) = (self.geometry(), self.owner().get());
        let has_name = |bytes: &[u8]| {
            let site = Site::verified(geometry, owner);
            let data = DirData::decode(bytes, DataKind::Data, &site)?;
            Ok(data.entry_at(at.offset, geometry)?.name == name)
        };
        let first = dir::data_block(geometry, at.block);
        let has_name = self.look_at(first, BlockKind::DirData(DataKind::Data), has_name)?;
        let corrupt = |rule: DirDataRule| Corrupt::new(Locus::inode(owner), rule);
        Ok(has_name.map_err(corrupt)?)
    }

    /// The entry with this name among those of its hash.
    pub(super) fn find_among(
        &mut self,
        entries: &[HashEntry],
        hash: u32,
        name: &[u8],
    ) -> Result<Option<Located>> {
        let geometry = self.geometry();
        let kind = self.data_kind()?;
        let first = entries.partition_point(|entry| entry.0 < hash);
        let same = entries.get(first..).unwrap_or_default();
        for (_, address) in same.iter().take_while(|entry| entry.0 == hash) {
            let (block, offset) = DataPointer(*address).split(geometry);
            let owner = self.owner().get();
            let is_it = |bytes: &[u8]| {
                let site = Site::verified(geometry, owner);
                let data = DirData::decode(bytes, kind, &site)?;
                Ok(data.entry_at(offset, geometry)?.name == name)
            };
            let at = dir::data_block(geometry, block);
            let is_it = self.look_at(at, BlockKind::DirData(kind), is_it)?;
            if is_it.map_err(|rule: DirDataRule| Corrupt::new(Locus::inode(owner), rule))? {
                return Ok(Some(Located { block, offset }));
            }
        }
        Ok(None)
    }

    /// The leaf entry of an entry.
    pub(super) fn pointer(&self, at: Located) -> Result<u32> {
        let pointer = DataPointer::new(self.geometry(), at.block, at.offset);
        let locus = Locus::inode(self.owner().get());
        let rule = || Corrupt::new(locus, DirectoryRule::Size);
        Ok(pointer.ok_or_else(rule)?.0)
    }
}

/// Adds an entry after all others whose hash is not greater.
pub(super) fn insert_sorted(entries: &mut Vec<HashEntry>, entry: HashEntry) {
    let at = entries.partition_point(|other| other.0 <= entry.0);
    entries.insert(at, entry);
}
