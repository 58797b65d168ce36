//! The blocks of an attribute fork: where they lie, and values that fill some of their own.

use platter_ondisk::Rule;
use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Error, Result};

use super::super::ForkEdit;
use super::super::tree::alloc_by;
use super::{Stored, StoredValue, broken};
use crate::ag::{BlockRole, Group, Groups, alloc, rmap, space};
use crate::ondisk::attr::build;
use crate::ondisk::attr::remote::{self, AttrRemoteRule};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::da::{DaKind, DaNodeRule};
use crate::ondisk::extent::Mapping;
use crate::ondisk::{
    AgBlock, BlockKind, BlockVerifier, FileBlock, FsBlock, Geometry, InodeNr, Site,
};

/// Mappings that are looked at for a hole before blocks go to the end.
const HOLE_SEARCH_MAPPINGS: u32 = 64;

/// The blocks of a fork.
pub(super) struct Blocks<'g> {
    groups: &'g mut Groups,
    fork: &'g mut ForkEdit,
    owner: InodeNr,
    geometry: Geometry,
}

impl<'g> Blocks<'g> {
    pub(super) fn new(groups: &'g mut Groups, fork: &'g mut ForkEdit, owner: InodeNr) -> Self {
        Self {
            geometry: groups.geometry().clone(),
            groups,
            fork,
            owner,
        }
    }

    pub(super) fn broken<R: Rule>(&self, rule: R) -> Error {
        broken(self.owner, rule)
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What blocks that are decoded after their verifier bear.
    pub(super) fn verified(&self) -> Site<'_> {
        Site::verified(&self.geometry, self.owner.get())
    }

    /// Where a block lies.
    pub(super) fn locate(&mut self, block: u32) -> Result<FsBlock> {
        let at = FileBlock(block.into());
        let found = self.fork.lookup(self.groups, at)?;
        let found = found.filter(|found| found.offset <= at && !found.is_unwritten);
        let found = found.ok_or_else(|| self.broken(DaNodeRule::Missing))?;
        Ok(FsBlock(found.start + (at.0 - found.offset.0)))
    }

    /// The kind of a block of the tree.
    pub(super) fn kind(&mut self, block: u32) -> Result<DaKind> {
        let at = self.locate(block)?;
        let offset = self.geometry.byte_offset(at);
        let blocks = self.groups.blocks();
        let bytes = blocks.verified(offset, self.geometry.block_bytes(), &Unverified)?;
        let kind = DaKind::of(&bytes, true);
        kind.ok_or_else(|| self.broken(DaNodeRule::Kind))
    }

    /// A block that its verifier accepts.
    pub(super) fn read(&mut self, block: u32, kind: BlockKind) -> Result<Vec<u8>> {
        let at = self.locate(block)?;
        let offset = self.geometry.byte_offset(at);
        let verifier = BlockVerifier::new(&self.geometry, kind, self.owner.get());
        let blocks = self.groups.blocks();
        let bytes = blocks.verified(offset, self.geometry.block_bytes(), &verifier)?;
        Ok(bytes.to_vec())
    }

    /// Stores a block of the tree that is mapped.
    pub(super) fn write(
        &mut self,
        block: u32,
        built: impl FnOnce(&Site<'_>) -> Option<Vec<u8>>,
    ) -> Result<()> {
        let at = self.locate(block)?;
        let site = Site::new(
            &self.geometry,
            self.geometry.basic_block(at),
            self.owner.get(),
        );
        let bytes = built(&site).ok_or_else(|| self.broken(DaNodeRule::Count))?;
        let kind = DaKind::of(&bytes, true);
        let role = self.role(if kind == Some(DaKind::Node) {
            BlockKind::DaNode
        } else {
            BlockKind::AttrLeaf
        });
        let offset = self.geometry.byte_offset(at);
        let blocks = self.groups.blocks_mut();
        let old = blocks.verified(offset, self.geometry.block_bytes(), &Unverified)?;
        let is_same_kind = DaKind::of(&old, true) == kind;
        drop(old);
        if is_same_kind {
            return blocks.write_as(offset, role, bytes);
        }
        // As what it was it cannot be compared.
        blocks.create_as(offset, role, bytes);
        Ok(())
    }

    fn role(&self, kind: BlockKind) -> BlockRole {
        BlockRole {
            kind,
            owner: self.owner.get(),
        }
    }

    /// Allocates and maps a block for the tree.
    pub(super) fn add_block(&mut self) -> Result<u32> {
        let block = self.unused(1)?;
        self.map(block, 1, space::alloc_extent)?;
        Ok(block)
    }

    /// Unmaps and frees blocks.
    pub(super) fn drop_blocks(&mut self, first: u32, count: u32) -> Result<()> {
        let first = FileBlock(first.into());
        for gone in self.fork.unmap(self.groups, first, count.into())? {
            for step in 0..gone.count {
                let at = FsBlock(gone.start.saturating_add(step));
                let at = self.geometry.byte_offset(at);
                let len = self.geometry.block_bytes();
                self.groups.blocks_mut().forget(at, len);
            }
            let (ag, start) = self.geometry.split(FsBlock(gone.start));
            let count = u32::try_from(gone.count).unwrap_or(u32::MAX);
            let mut group = self.groups.get(ag)?;
            space::fill_free_list(&mut group)?;
            rmap::remove(
                &mut group,
                &Owner {
                    offset: gone.offset.0,
                    is_attr_fork: true,
                    ..Owner::special(start, count, RmapOwner(self.owner.get()))
                },
            )?;
            space::free_extent(&mut group, start, count)?;
        }
        Ok(())
    }

    /// The first of so many blocks in a row that are not mapped.
    fn unused(&mut self, count: u32) -> Result<u32> {
        let end = self.fork.last_before(self.groups, FileBlock::MAX)?;
        let end = end.map_or(0, |last| last.end().0);
        let fits = |at: u64| u32::try_from(at.saturating_add(count.into())).is_ok();
        let mut most = HOLE_SEARCH_MAPPINGS;
        if !fits(end) {
            most = u32::MAX;
        }
        let mut at = 0;
        for _ in 0..most {
            match self.fork.lookup(self.groups, FileBlock(at))? {
                Some(found) if found.offset.0.saturating_sub(at) < count.into() => {
                    at = found.end().0;
                }
                _ => break,
            }
        }
        let is_hole = match self.fork.lookup(self.groups, FileBlock(at))? {
            Some(found) => found.offset.0.saturating_sub(at) >= count.into(),
            None => true,
        };
        let at = if is_hole { at } else { end };
        let at = u32::try_from(at).ok().filter(|_| fits(at));
        at.ok_or_else(|| Condition::NoSpace.into())
    }

    fn map(
        &mut self,
        first: u32,
        count: u32,
        take: impl Fn(&mut Group<'_>, u32) -> Result<Option<(AgBlock, u32)>>,
    ) -> Result<()> {
        let mut done = 0;
        while done < count {
            let (ag, start, found) = alloc_by(self.groups, self.owner, count - done, &take)?;
            let offset = u64::from(first) + u64::from(done);
            rmap::add(
                &mut self.groups.get(ag)?,
                &Owner {
                    offset,
                    is_attr_fork: true,
                    ..Owner::special(start, found, RmapOwner(self.owner.get()))
                },
            )?;
            let at = self.geometry.fs_block(ag, start);
            let mapping = Mapping {
                offset: FileBlock(offset),
                start: at.0,
                count: found.into(),
                is_unwritten: false,
            };
            self.fork.map(self.groups, mapping)?;
            for step in 0..u64::from(found) {
                let at = self.geometry.byte_offset(FsBlock(at.0 + step));
                let zeros = vec![0; self.geometry.block_bytes() as usize];
                self.groups.blocks_mut().create(at, zeros);
            }
            done += found;
        }
        Ok(())
    }

    /// Stores a value that does not go to a leaf in blocks of its own.
    pub(super) fn place_value(&mut self, attr: &mut Stored) -> Result<()> {
        let StoredValue::Local(value) = &mut attr.value else {
            return Ok(());
        };
        if build::is_local(&attr.name, value, &self.geometry) {
            return Ok(());
        }
        let value = std::mem::take(value);
        let capacity = remote::capacity(&self.geometry).max(1);
        let len = u32::try_from(value.len()).map_err(|_| Condition::TooBig)?;
        let first = self.unused(len.div_ceil(capacity))?;
        self.map(first, len.div_ceil(capacity), alloc::without_lsn)?;
        let parts = value.chunks(usize::try_from(capacity).unwrap_or(usize::MAX));
        for (part, step) in parts.zip(0_u32..) {
            let at = self.locate(first + step)?;
            let site = Site::new(
                &self.geometry,
                self.geometry.basic_block(at),
                self.owner.get(),
            );
            let bytes = build::remote(part, step.saturating_mul(capacity), &site);
            let bytes = bytes.ok_or_else(|| self.broken(AttrRemoteRule::Length))?;
            let offset = self.geometry.byte_offset(at);
            let role = self.role(BlockKind::AttrRemote);
            self.groups.blocks_mut().create_as(offset, role, bytes);
        }
        attr.value = StoredValue::Remote { block: first, len };
        Ok(())
    }

    pub(super) fn read_value(&mut self, first: u32, len: u32) -> Result<Vec<u8>> {
        let capacity = remote::capacity(&self.geometry).max(1);
        let mut value = Vec::new();
        for step in 0..len.div_ceil(capacity) {
            let at = self.locate(first.saturating_add(step))?;
            let offset = self.geometry.byte_offset(at);
            let blocks = self.groups.blocks();
            let bytes = blocks.read(offset, self.geometry.block_bytes())?;
            let site = Site::new(
                &self.geometry,
                self.geometry.basic_block(at),
                self.owner.get(),
            );
            let before = step.saturating_mul(capacity);
            let part = remote::decode(&bytes, before, len.saturating_sub(before), &site);
            value.extend_from_slice(part.map_err(|rule| self.broken(rule))?);
        }
        Ok(value)
    }

    /// Whether the first block is the only one that is mapped.
    pub(super) fn has_only_root(&mut self) -> Result<bool> {
        Ok(self.fork.lookup(self.groups, FileBlock(1))?.is_none())
    }

    pub(super) fn drop_value(&mut self, first: u32, len: u32) -> Result<()> {
        let capacity = remote::capacity(&self.geometry).max(1);
        self.drop_blocks(first, len.div_ceil(capacity))
    }
}
