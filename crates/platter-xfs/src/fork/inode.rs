//! An inode under change.

use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result, Timestamp};

use crate::ag::{GroupRule, Groups};
use crate::ondisk::inode::edit::{self, StoredFork};
use crate::ondisk::inode::{Fork, ForkKind, Inode, InodeFlags2, InodeRule, time};
use crate::ondisk::{Geometry, InodeNr};
use crate::txn::{FoundInode, NewImage};

/// An inode under change.
#[derive(Debug, Clone)]
pub struct InodeEdit {
    inode: Arc<Inode>,
    /// The bytes say something else by now.
    is_stale: bool,
    bytes: Vec<u8>,
    /// What a transaction found, from which the bytes were made.
    found: Option<FoundInode>,
    /// Mappings of its data fork were changed.
    is_remapped: bool,
}

impl InodeEdit {
    /// Reads an inode that is in use.
    pub fn read(groups: &Groups, number: InodeNr) -> Result<Self> {
        let geometry = groups.geometry();
        let at = place(geometry, number)?;
        let bytes = groups.blocks().read(at, geometry.inode_bytes())?;
        let inode = Inode::decode(&bytes, number, geometry)
            .map_err(|rule| Corrupt::new(Locus::inode(number.get()), rule))?;
        Ok(Self::of_version(bytes, Arc::new(inode)))
    }

    /// An inode that is in use, which fills `bytes`.
    pub fn of_image(bytes: Vec<u8>, number: InodeNr, geometry: &Geometry) -> Result<Self> {
        let inode = Inode::decode_unsealed(&bytes, number, geometry)
            .map_err(|rule| Corrupt::new(Locus::inode(number.get()), rule))?;
        Ok(Self::of_version(bytes, Arc::new(inode)))
    }

    /// An inode that is about to be allocated, which fills `bytes`, in the place of one that a transaction found to be
    /// free.
    pub fn of_new(
        bytes: Vec<u8>,
        found: Option<FoundInode>,
        number: InodeNr,
        geometry: &Geometry,
    ) -> Result<Self> {
        let mut edit = Self::of_image(bytes, number, geometry)?;
        edit.found = found;
        Ok(edit)
    }

    /// An inode that is in use, which fills `bytes`; `inode` is what these say.
    #[must_use]
    pub fn of_version(bytes: Vec<u8>, inode: Arc<Inode>) -> Self {
        Self {
            inode,
            is_stale: false,
            bytes,
            found: None,
            is_remapped: false,
        }
    }

    /// An inode that is in use, as a transaction found it.
    pub fn of_found(found: FoundInode, number: InodeNr, geometry: &Geometry) -> Result<Self> {
        let bytes = found.image().to_vec();
        let mut edit = match found.inode() {
            Some(inode) => Self::of_version(bytes, Arc::clone(inode)),
            None => Self::of_image(bytes, number, geometry)?,
        };
        edit.found = Some(found);
        Ok(edit)
    }

    /// Records that mappings of the data fork were changed.
    pub(super) fn note_remapped(&mut self) {
        self.is_remapped = true;
    }

    /// Whether mappings of the data fork were changed.
    #[must_use]
    pub fn is_remapped(&self) -> bool {
        self.is_remapped
    }

    /// The inode with all changes, without its checksum.
    #[must_use]
    pub fn into_image(self) -> NewImage {
        NewImage {
            image: self.bytes,
            decoded: (!self.is_stale).then_some(self.inode),
            before: self.found,
        }
    }

    /// Reads the inode as it is after all changes.
    pub fn refresh(&mut self, geometry: &Geometry) -> Result<()> {
        if self.is_stale {
            let number = self.inode.number;
            let inode = Inode::decode_unsealed(&self.bytes, number, geometry);
            let inode = inode.map_err(|rule| Corrupt::new(Locus::inode(number.get()), rule))?;
            self.inode = Arc::new(inode);
            self.is_stale = false;
        }
        Ok(())
    }

    /// The inode as it was read or [refreshed](Self::refresh).
    #[must_use]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// A fork as it was read, which must exist.
    pub fn fork(&self, kind: ForkKind) -> Result<Fork<'_>> {
        let fork = match kind {
            ForkKind::Data => Some(self.inode.data_fork()),
            ForkKind::Attr => self.inode.attr_fork(),
        };
        fork.ok_or_else(|| self.broken(InodeRule::ForkOffset))
    }

    fn broken(&self, rule: InodeRule) -> platter_vfs::Error {
        Corrupt::new(Locus::inode(self.inode.number.get()), rule).into()
    }

    /// Stores a fork, for which blocks were added or removed.
    ///
    /// # Errors
    /// `FileTooLarge` if the inode does not count so many mappings.
    pub fn set_fork(&mut self, fork: &StoredFork<'_>, blocks: i64) -> Result<()> {
        if fork.extents > edit::extents_max(&self.bytes, fork.kind) {
            return Err(Condition::FileTooLarge.into());
        }
        self.is_stale = true;
        let stored = edit::set_fork(&mut self.bytes, fork);
        stored.ok_or_else(|| self.broken(InodeRule::Extents))?;
        let counted = edit::add_blocks(&mut self.bytes, blocks);
        counted.ok_or_else(|| self.broken(InodeRule::Blocks))
    }

    /// Makes changes of the core.
    pub fn change(&mut self, change: impl FnOnce(&mut [u8]) -> Option<()>) -> Result<()> {
        self.is_stale = true;
        change(&mut self.bytes).ok_or_else(|| self.broken(InodeRule::Version))
    }

    /// Sets those of the times of access, modification and change that are named, and counts the change.
    pub fn touch(&mut self, times: [Option<Timestamp>; 3]) -> Result<()> {
        const SECOND: u32 = 1_000_000_000;
        let is_large = self.inode.flags2.contains(InodeFlags2::BIGTIME);
        let was_stale = self.is_stale;
        self.change(|bytes| {
            let disk = edit::core_mut(bytes)?;
            let count = disk.change_count.get().wrapping_add(1);
            disk.change_count.set(count);
            let core = &mut disk.core;
            let stored = [&mut core.accessed, &mut core.modified, &mut core.changed];
            for (stored, time) in stored.into_iter().zip(times) {
                if let Some(time) = time {
                    *stored = time::encode(time, is_large);
                }
            }
            Some(())
        })?;
        let is_valid = |time: Timestamp| time.nanoseconds < SECOND;
        if was_stale || !times.into_iter().flatten().all(is_valid) {
            return Ok(());
        }
        // Nothing else changed, and nothing is to be validated: the inode is not decoded again.
        if let Some(disk) = edit::core_mut(&mut self.bytes) {
            let inode = Arc::make_mut(&mut self.inode);
            inode.change_count = disk.change_count.get();
            inode.accessed = time::decode(disk.core.accessed, is_large);
            inode.modified = time::decode(disk.core.modified, is_large);
            inode.changed = time::decode(disk.core.changed, is_large);
            self.is_stale = false;
        }
        Ok(())
    }

    /// Stores the inode.
    pub fn store(mut self, groups: &mut Groups) -> Result<()> {
        let at = place(groups.geometry(), self.inode.number)?;
        edit::seal(&mut self.bytes);
        groups.blocks_mut().write(at, self.bytes);
        Ok(())
    }
}

/// The first byte of an inode on the device.
fn place(geometry: &Geometry, number: InodeNr) -> Result<u64> {
    let location = geometry
        .locate_inode(number)
        .ok_or_else(|| Corrupt::new(Locus::inode(number.get()), GroupRule::Inode))?;
    let block = geometry.fs_block(location.ag, location.block);
    Ok(geometry.byte_offset(block) + location.offset as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::inode::tests::{NUMBER, sample};

    #[test]
    fn touched_inode_is_what_its_bytes_say() {
        let geometry = sample_geometry();
        let number = InodeNr::new(NUMBER).unwrap();
        let at = |nanoseconds| Timestamp {
            seconds: 7,
            nanoseconds,
        };
        for is_stale in [false, true] {
            let mut edit = InodeEdit::of_image(sample(), number, &geometry).unwrap();
            if is_stale {
                edit.change(|bytes| edit::set_size(bytes, 9)).unwrap();
            }
            edit.touch([None, Some(at(5)), Some(at(6))]).unwrap();
            let new = edit.into_image();
            let inode = Inode::decode_unsealed(&new.image, number, &geometry).unwrap();
            assert_eq!((inode.modified, inode.changed), (at(5), at(6)));
            assert_eq!(inode.change_count, 1);
            assert_eq!(new.decoded.as_deref(), Some(&inode).filter(|_| !is_stale));
        }
        let mut edit = InodeEdit::of_image(sample(), number, &geometry).unwrap();
        edit.touch([Some(at(1_000_000_000)), None, None]).unwrap();
        assert!(edit.refresh(&geometry).is_err());
    }
}
