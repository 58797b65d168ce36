//! Taking and freeing inodes: the inode bitmap, and what counts it. Spec: `ext4/bitmaps`.

use platter_ondisk::Locus;
use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Error, FileKind, Result};

use super::{Space, SpaceRule};
use crate::Volume;
use crate::groups::{self, layout};
use crate::ondisk::bitmap::{self, BitmapVerifier};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{BlockNr, Corrupt, GroupDesc, GroupNr, Inode, InodeNr};
use crate::txn::Handle;

impl Space {
    /// Takes an inode for a new file of directory `parent`, near it; a directory may go far from
    /// one that begins trees of their own, where `random` tells. What the inode's slot holds is
    /// undefined. Changes [`ALLOC_INODE_CREDITS`](super::ALLOC_INODE_CREDITS) blocks.
    ///
    /// # Errors
    /// `NoSpace` when no inode is free. `Corrupt` or `Io` if there is one only in groups that cannot
    /// be used. Nothing is changed.
    pub fn alloc_inode(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        parent: &Inode,
        kind: FileKind,
        random: u64,
    ) -> Result<InodeNr> {
        let first = self.inode_group(parent, kind, random).0;
        let mut failure = None;
        for group in (first..self.geometry.groups_count).chain(0..first) {
            match self.alloc_inode_in(volume, handle, GroupNr(group), kind) {
                Ok(Some(number)) => {
                    self.pass_by(failure);
                    return Ok(number);
                }
                Ok(None) => {}
                Err(error @ Error::Corrupt(_)) => {
                    self.slot(GroupNr(group)).lose_inodes();
                    failure.get_or_insert(error);
                }
                Err(error @ Error::Io(_)) => {
                    failure.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or(Condition::NoSpace.into()))
    }

    pub(super) fn alloc_inode_in(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        group: GroupNr,
        kind: FileKind,
    ) -> Result<Option<InodeNr>> {
        let slot = self.slot(group);
        if !slot.has_inodes() {
            return Ok(None);
        }
        let geometry = &self.geometry;
        let _turn = slot.inodes.lock();
        let mut bits = InodeBitmap::read(volume, group)?;
        if bits.desc.free_inodes == 0 {
            return Ok(None);
        }
        let Some(index) = bits.first_free(self.first_index(group)) else {
            return Err(bits.corrupt(SpaceRule::FreeInodes));
        };
        let number = u64::from(group.0) * u64::from(geometry.inodes_per_group);
        let number = number + u64::from(index) + 1;
        let number = u32::try_from(number).ok().and_then(InodeNr::new);
        let number = number.ok_or(bits.corrupt(SpaceRule::FreeInodes))?;
        let untouched = bits.untouched(volume, index)?;
        if bits.desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            // A group in use has both bitmaps.
            self.initialize_bitmap(volume, handle, group)?;
        }
        let is_directory = kind == FileKind::Directory;
        bits.mark(index, true);
        self.write_inode_bitmap(volume, handle, bits, |desc| {
            desc.free_inodes = desc.free_inodes.saturating_sub(1);
            desc.used_dirs = desc.used_dirs.saturating_add(u32::from(is_directory));
            desc.flags.remove(GroupFlags::INODE_UNINIT);
            if geometry.features.has_group_csum() {
                let behind = geometry.inodes_per_group - index - 1;
                desc.unused_inodes = desc.unused_inodes.min(behind);
            }
        })?;
        if let Some(block) = untouched {
            let zeros = vec![0; geometry.block_bytes as usize];
            if let Err(error) = handle.create(block, &Unverified, zeros) {
                return Err(handle.abort(error));
            }
        }
        self.counters.free_inodes.sub(1);
        self.counters.directories.add(u64::from(is_directory));
        Ok(Some(number))
    }

    /// Frees an inode, `was_dir` telling whether it is a directory. It may be taken again at once.
    /// Changes [`FREE_INODE_CREDITS`](super::FREE_INODE_CREDITS) blocks.
    ///
    /// # Errors
    /// `Corrupt` if it is free already or cannot be freed: nothing is changed.
    pub fn free_inode(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        number: InodeNr,
        was_dir: bool,
    ) -> Result<()> {
        let place = self.geometry.group_of_inode(number);
        let place = place.filter(|_| number.get() >= self.geometry.first_inode);
        let Some((group, index)) = place else {
            let locus = Locus::inode(u64::from(number.get()));
            return Err(Corrupt::new(locus, SpaceRule::FreedReserved).into());
        };
        let _turn = self.slot(group).inodes.lock();
        let mut bits = InodeBitmap::read(volume, group)?;
        if !bits.mark(index, false) {
            let locus = Locus::inode(u64::from(number.get()));
            return Err(Corrupt::new(locus, SpaceRule::InodeFreedTwice).into());
        }
        let (directories, inodes) = (bits.desc.used_dirs, bits.desc.free_inodes);
        if was_dir && directories == 0 {
            return Err(bits.corrupt(SpaceRule::UsedDirs));
        }
        if inodes >= self.geometry.inodes_per_group {
            return Err(bits.corrupt(SpaceRule::FreeInodes));
        }
        self.write_inode_bitmap(volume, handle, bits, |desc| {
            desc.free_inodes += 1;
            desc.used_dirs -= u32::from(was_dir);
        })?;
        self.counters.free_inodes.add(1);
        self.counters.directories.sub(u64::from(was_dir));
        Ok(())
    }

    /// The first inode of a group that may be taken.
    fn first_index(&self, group: GroupNr) -> u32 {
        let before = u64::from(group.0) * u64::from(self.geometry.inodes_per_group);
        let reserved = u64::from(self.geometry.first_inode.saturating_sub(1));
        u32::try_from(reserved.saturating_sub(before)).unwrap_or(u32::MAX)
    }

    /// Writes a changed bitmap and its descriptor, which `change` brings in line.
    fn write_inode_bitmap(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        bits: InodeBitmap,
        change: impl FnOnce(&mut GroupDesc),
    ) -> Result<()> {
        let geometry = &volume.geometry;
        let group = bits.group;
        let sum = bitmap::expected_checksum(&bits.bytes, geometry.inodes_per_group, geometry);
        let desc = groups::edit_descriptor(handle, geometry, group, |desc| {
            change(desc);
            desc.inode_bitmap_checksum = sum.unwrap_or(desc.inode_bitmap_checksum);
            Ok(*desc)
        })?;
        let verifier = BitmapVerifier::of_inodes(group, &desc, geometry);
        let published = if bits.desc.flags.contains(GroupFlags::INODE_UNINIT) {
            handle.create(desc.inode_bitmap, &verifier, bits.bytes)
        } else {
            handle.replace(desc.inode_bitmap, &verifier, bits.bytes)
        };
        published.map_err(|error| handle.abort(error))?;
        self.slot(group).note_inodes(&desc);
        Ok(())
    }
}

/// The inode bitmap of a group, to be changed by who has the group's turn.
struct InodeBitmap {
    group: GroupNr,
    desc: GroupDesc,
    bytes: Vec<u8>,
    inodes: u32,
}

impl InodeBitmap {
    /// Brings in the bitmap, or computes that of a group without one.
    fn read(volume: &Volume, group: GroupNr) -> Result<Self> {
        let geometry = &volume.geometry;
        let desc = groups::read_descriptor(volume, group)?;
        let mut bytes = if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            vec![0; geometry.block_bytes as usize]
        } else {
            let verifier = BitmapVerifier::of_inodes(group, &desc, geometry);
            volume.read_block(desc.inode_bitmap, &verifier)?.to_vec()
        };
        let inodes = geometry.inodes_per_group;
        layout::pad(&mut bytes, inodes);
        Ok(Self {
            group,
            desc,
            bytes,
            inodes,
        })
    }

    fn first_free(&self, from: u32) -> Option<u32> {
        bitmap::first_clear(&self.bytes, from..self.inodes)
    }

    fn mark(&mut self, index: u32, taken: bool) -> bool {
        bitmap::assign(&mut self.bytes, index, taken)
    }

    /// The block of the inode table that the inode lies in, if no inode of it was ever used: it may
    /// hold anything.
    fn untouched(&self, volume: &Volume, index: u32) -> Result<Option<BlockNr>> {
        let geometry = &volume.geometry;
        if !geometry.features.has_group_csum() {
            return Ok(None);
        }
        let ever_used = if self.desc.flags.contains(GroupFlags::INODE_UNINIT) {
            0
        } else {
            self.inodes.saturating_sub(self.desc.unused_inodes)
        };
        if index > ever_used {
            return Err(self.corrupt(SpaceRule::NeverUsed));
        }
        let block = index / geometry.inodes_per_block;
        let is_first = block * geometry.inodes_per_block >= ever_used;
        Ok(is_first.then(|| BlockNr(self.desc.inode_table.0 + u64::from(block))))
    }

    fn corrupt(&self, rule: SpaceRule) -> Error {
        let locus = Locus::group(u64::from(self.group.0)).at_block(self.desc.inode_bitmap.0);
        Corrupt::new(locus, rule).into()
    }
}
