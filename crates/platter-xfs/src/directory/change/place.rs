//! Where a directory block lies on the device: in one extent, or in several. Of the latter each filesystem block is
//! read, logged and written by itself, as it is: only the whole has a checksum, which every change computes.

use std::sync::Arc;

use platter_ondisk::Verify;
use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Result};

use crate::ag::{BlockRole, Blocks, Groups, Verified, alloc, rmap};
use crate::fork::alloc_by;
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::data::DataKind;
use crate::ondisk::extent::Mapping;
use crate::ondisk::{AgNr, BlockKind, BlockVerifier, FileBlock, FsBlock, Geometry, InodeNr};

/// Where a directory block lies.
#[derive(Debug, Clone)]
pub(super) enum DirPlace {
    /// In one extent, from this block on.
    Whole(FsBlock),
    /// In several: all its blocks.
    Parts(Arc<[FsBlock]>),
}

impl DirPlace {
    /// The first of its blocks, which it bears the number of.
    pub(super) fn first(&self) -> FsBlock {
        match self {
            Self::Whole(first) => *first,
            Self::Parts(parts) => parts.first().copied().unwrap_or(FsBlock(0)),
        }
    }

    /// The bytes of the directory block, verified.
    pub(super) fn read<'b>(
        &self,
        blocks: &'b Blocks,
        geometry: &Geometry,
        verifier: &dyn Verify,
    ) -> Result<Verified<'b>> {
        let parts = match self {
            Self::Whole(at) => {
                let at = geometry.byte_offset(*at);
                return blocks.verified(at, geometry.dir_block_bytes(), verifier);
            }
            Self::Parts(parts) => parts,
        };
        let mut bytes = Vec::with_capacity(geometry.dir_block_bytes() as usize);
        for part in parts.iter() {
            let at = geometry.byte_offset(*part);
            bytes.extend_from_slice(&blocks.verified(at, geometry.block_bytes(), &Unverified)?);
        }
        verifier.verify(geometry.basic_block(self.first()).0, &bytes)?;
        Ok(Verified::Read(bytes))
    }

    /// The first bytes of the directory block, those of one block at least; not verified.
    pub(super) fn read_start<'b>(
        &self,
        blocks: &'b Blocks,
        geometry: &Geometry,
    ) -> Result<Verified<'b>> {
        let len = match self {
            Self::Whole(_) => geometry.dir_block_bytes(),
            Self::Parts(_) => geometry.block_bytes(),
        };
        blocks.verified(geometry.byte_offset(self.first()), len, &Unverified)
    }

    /// Has `change` change the directory block, verified, in place, and say what it changes.
    pub(super) fn edit<R>(
        &self,
        blocks: &mut Blocks,
        geometry: &Geometry,
        role: BlockRole,
        change: impl FnOnce(&mut [u8], &mut Chunks) -> R,
    ) -> Result<R> {
        if let Self::Whole(at) = self {
            let (at, len) = (geometry.byte_offset(*at), geometry.dir_block_bytes());
            return blocks.edit_verified(at, len, role, geometry, change);
        }
        let verifier = BlockVerifier::new(geometry, role.kind, role.owner);
        let mut bytes = match self.read(blocks, geometry, &verifier)? {
            Verified::Read(bytes) => bytes,
            found @ (Verified::Changed(_) | Verified::Committed(_)) => found.to_vec(),
        };
        let changed = change(&mut bytes, &mut Chunks::default());
        self.write(blocks, geometry, role, bytes)?;
        Ok(changed)
    }

    /// Stores the directory block.
    pub(super) fn write(
        &self,
        blocks: &mut Blocks,
        geometry: &Geometry,
        role: BlockRole,
        mut bytes: Vec<u8>,
    ) -> Result<()> {
        let parts = match self {
            Self::Whole(at) => {
                let at = geometry.byte_offset(*at);
                let old = blocks.verified(at, geometry.dir_block_bytes(), &Unverified)?;
                let is_same_kind = has_same_magic(&old, &bytes);
                drop(old);
                if is_same_kind {
                    return blocks.write_as(at, role, bytes);
                }
                // As what it was it cannot be compared.
                blocks.create_as(at, role, bytes);
                return Ok(());
            }
            Self::Parts(parts) => parts,
        };
        let verifier = BlockVerifier::new(geometry, role.kind, role.owner);
        verifier.seal(geometry.basic_block(self.first()).0, &mut bytes);
        let role = BlockRole {
            kind: BlockKind::DirPart,
            ..role
        };
        for (part, new) in parts
            .iter()
            .zip(bytes.chunks(geometry.block_bytes() as usize))
        {
            let at = geometry.byte_offset(*part);
            let old = blocks.verified(at, geometry.block_bytes(), &Unverified)?;
            let is_changed = *old != *new;
            drop(old);
            if is_changed {
                blocks.write_as(at, role, new.to_vec())?;
            }
        }
        Ok(())
    }

    /// Makes the directory block a new one of zeros, whatever was there; it is still to be [written](Self::write).
    pub(super) fn create(&self, blocks: &mut Blocks, geometry: &Geometry, owner: InodeNr) {
        match self {
            Self::Whole(at) => {
                let zeros = vec![0; geometry.dir_block_bytes() as usize];
                blocks.create(geometry.byte_offset(*at), zeros);
            }
            Self::Parts(parts) => {
                let role = BlockRole {
                    kind: BlockKind::DirPart,
                    owner: owner.get(),
                };
                for part in parts.iter() {
                    // Those that stay zeros are logged, too.
                    let zeros = vec![0; geometry.block_bytes() as usize];
                    blocks.create_as(geometry.byte_offset(*part), role, zeros);
                }
            }
        }
    }

    /// Forgets the directory block, which was freed.
    pub(super) fn forget(&self, blocks: &mut Blocks, geometry: &Geometry) {
        match self {
            Self::Whole(at) => blocks.forget(geometry.byte_offset(*at), geometry.dir_block_bytes()),
            Self::Parts(parts) => {
                for part in parts.iter() {
                    blocks.forget(geometry.byte_offset(*part), geometry.block_bytes());
                }
            }
        }
    }
}

/// Whether blocks are of one type: by the magic number of blocks of entries, or that of the hash tree.
fn has_same_magic(one: &[u8], other: &[u8]) -> bool {
    let is_v5 = true;
    let of_entries = |bytes| DataKind::of(bytes, is_v5);
    DaKind::of(one, is_v5) == DaKind::of(other, is_v5) && of_entries(one) == of_entries(other)
}

/// Allocates the blocks of a directory block that begins with `first`: in one extent, or in several where there is none
/// of that length, nor will be once what was freed is durable, withheld blocks apart. Returns their mappings, in order.
///
/// # Errors
/// `NoSpace`, also where the change is to wait for what was freed first.
pub(super) fn alloc_block(
    groups: &mut Groups,
    geometry: &Geometry,
    inode: InodeNr,
    first: FileBlock,
) -> Result<Vec<Mapping>> {
    let (own_ag, _) = geometry.split_inode(inode);
    let (count, ag_count) = (geometry.dir_block_blocks(), geometry.ag_count());
    let ags = (0..ag_count).map(|step| AgNr(own_ag.0.wrapping_add(step) % ag_count));
    let has_waited = groups.has_waited();
    let mut is_busy = false;
    for ag in ags {
        let mut group = groups.get(ag)?;
        if alloc::available(&group) < count {
            continue;
        }
        if let Some(start) = alloc::aligned(&mut group, count, 1, &(0..u32::MAX))? {
            let owner = Owner {
                offset: first.0,
                ..Owner::special(start, count, RmapOwner(inode.get()))
            };
            rmap::add(&mut group, &owner)?;
            return Ok(vec![mapping(geometry, ag, &owner)]);
        }
        is_busy |= !has_waited && alloc::has_busy_run(&group, count)?;
    }
    // One block is one extent.
    if is_busy || count == 1 {
        groups.note_full();
        return Err(Condition::NoSpace.into());
    }
    let mut mappings = Vec::new();
    let mut at = first.0;
    let end = first.0.saturating_add(count.into());
    while at < end {
        let left = u32::try_from(end - at).unwrap_or(u32::MAX);
        let (ag, start, len) = alloc_by(groups, inode, left, alloc::without_lsn)?;
        let owner = Owner {
            offset: at,
            ..Owner::special(start, len, RmapOwner(inode.get()))
        };
        rmap::add(&mut groups.get(ag)?, &owner)?;
        mappings.push(mapping(geometry, ag, &owner));
        at += u64::from(len);
    }
    Ok(mappings)
}

/// The mapping of blocks of a group.
fn mapping(geometry: &Geometry, ag: AgNr, owner: &Owner) -> Mapping {
    Mapping {
        offset: FileBlock(owner.offset),
        start: geometry.fs_block(ag, owner.start).0,
        count: owner.count.into(),
        is_unwritten: false,
    }
}
