//! Encoding an inode into its slot of the inode table. Fields unknown to this driver are preserved.

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Timestamp};
use zerocopy::FromBytes;

use super::disk::{BLOCK_AREA_BYTES, DiskInode, DiskInodeExtra, InodeFlags};
use super::{Extra, Inode, InodeRule, checksum_seed, time};
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::{Creator, Geometry, InodeNr};

const CHANGED_EXTRA: usize = offset_of!(DiskInodeExtra, changed_extra);
const MODIFIED_EXTRA: usize = offset_of!(DiskInodeExtra, modified_extra);
const ACCESSED_EXTRA: usize = offset_of!(DiskInodeExtra, accessed_extra);

impl Inode {
    /// Creates an inode without contents, links or times; `extra_bytes` is the length of its fields
    /// after the first 128 bytes, limited by the inode size.
    #[must_use]
    pub fn new(
        number: InodeNr,
        kind: FileKind,
        generation: u32,
        extra_bytes: u16,
        geometry: &Geometry,
    ) -> Self {
        let space = usize::from(geometry.inode_bytes).saturating_sub(size_of::<DiskInode>());
        let in_use = usize::from(extra_bytes).min(space);
        Self {
            number,
            kind,
            permissions: 0,
            uid: 0,
            gid: 0,
            project: 0,
            links: 0,
            size_bytes: 0,
            sectors: 0,
            flags: InodeFlags::empty(),
            generation,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            created: None,
            deleted: 0,
            xattr_block: None,
            block: [0; BLOCK_AREA_BYTES],
            version: 0,
            extra_bytes: u16::try_from(in_use).unwrap_or_default(),
            tail: vec![0; space.saturating_sub(in_use)].into(),
            checksum_seed: checksum_seed(number, generation.into(), geometry),
        }
    }

    /// Encodes the inode into `slot`, its bytes in the inode table, with its checksum: all but
    /// [`deleted`](Self::deleted), which links the orphan list and is set by [`put_deleted`].
    ///
    /// # Errors
    /// [`InodeRule::Truncated`] and [`InodeRule::ExtraSize`] if the inode does not fit the slot;
    /// [`InodeRule::Sectors`] if `i_blocks` cannot represent its space. The slot is unchanged then.
    pub fn encode(&self, slot: &mut [u8], geometry: &Geometry) -> Result<(), Corrupt<InodeRule>> {
        let slot = self.fill(slot, geometry)?;
        seal(slot, self.number, geometry);
        Ok(())
    }

    /// Like [`encode`](Self::encode), for an inode that is deleted at `time`, in seconds.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_deletion(
        &self,
        slot: &mut [u8],
        time: u32,
        geometry: &Geometry,
    ) -> Result<(), Corrupt<InodeRule>> {
        let slot = self.fill(slot, geometry)?;
        disk_mut(slot, self.number)?.deleted = time.into();
        seal(slot, self.number, geometry);
        Ok(())
    }

    /// Encodes all but the checksum.
    fn fill<'s>(
        &self,
        slot: &'s mut [u8],
        geometry: &Geometry,
    ) -> Result<&'s mut [u8], Corrupt<InodeRule>> {
        let broken = |rule| Corrupt::new(Locus::inode(u64::from(self.number.get())), rule);
        let slot = slot
            .get_mut(..usize::from(geometry.inode_bytes))
            .ok_or(broken(InodeRule::Truncated))?;
        let (disk, rest) =
            DiskInode::mut_from_prefix(slot).map_err(|_| broken(InodeRule::Truncated))?;
        let sectors = self.encode_sectors(geometry).map_err(broken)?;
        self.put_extra(rest, geometry).map_err(broken)?;
        self.put(disk, sectors, geometry);
        Ok(slot)
    }

    fn put(&self, disk: &mut DiskInode, sectors: Sectors, geometry: &Geometry) {
        let features = geometry.features;
        let mode = self.kind.mode_bits() | self.permissions;
        disk.mode = Le16::new(u16::try_from(mode & 0xffff).unwrap_or_default());
        (disk.uid_lo, disk.uid_hi) = halves(self.uid);
        (disk.gid_lo, disk.gid_hi) = halves(self.gid);
        disk.links = Le16::new(u16::try_from(self.links).unwrap_or(u16::MAX));
        let (size_lo, size_hi) = words(self.size_bytes);
        disk.size_lo = size_lo;
        if self.kind == FileKind::Regular || features.incompat.contains(Incompat::LARGE_DIR) {
            disk.size_hi = size_hi;
        }
        disk.accessed = self.words_of(self.accessed, ACCESSED_EXTRA).0;
        disk.changed = self.words_of(self.changed, CHANGED_EXTRA).0;
        disk.modified = self.words_of(self.modified, MODIFIED_EXTRA).0;
        disk.blocks_lo = sectors.low;
        if let Some(high) = sectors.high {
            disk.blocks_hi = high;
        }
        disk.flags = sectors.flags.bits().into();
        if geometry.creator != Creator::Hurd {
            disk.version_lo = words(self.version).0;
        }
        disk.block = self.block;
        disk.generation = self.generation.into();
        let (xattr_lo, xattr_hi) = words(self.xattr_block.map_or(0, |block| block.0));
        disk.xattr_block_lo = xattr_lo;
        if features.incompat.contains(Incompat::BIT64) {
            disk.xattr_block_hi = halves(xattr_hi.get()).0;
        }
    }

    /// Returns `i_blocks` and the flags, one of which selects its unit.
    fn encode_sectors(&self, geometry: &Geometry) -> Result<Sectors, InodeRule> {
        let has_huge = geometry.features.ro_compat.contains(RoCompat::HUGE_FILE);
        if !has_huge {
            let count = u32::try_from(self.sectors).map_err(|_| InodeRule::Sectors)?;
            return Ok(Sectors {
                low: count.into(),
                high: None,
                flags: self.flags,
            });
        }
        let in_sectors = self.sectors >> 48 == 0;
        let sectors_per_block = u64::from(geometry.block_bytes >> 9).max(1);
        let count = if in_sectors {
            self.sectors
        } else {
            self.sectors.div_euclid(sectors_per_block)
        };
        if count >> 48 != 0 {
            return Err(InodeRule::Sectors);
        }
        let (low, high) = words(count);
        let mut flags = self.flags;
        flags.set(InodeFlags::HUGE_FILE, !in_sectors);
        Ok(Sectors {
            low,
            high: Some(halves(high.get()).0),
            flags,
        })
    }

    fn put_extra(&self, rest: &mut [u8], geometry: &Geometry) -> Result<(), InodeRule> {
        let rest_len = rest.len();
        if rest_len == 0 {
            return Ok(());
        }
        let in_use = usize::from(self.extra_bytes);
        if in_use.checked_add(self.tail.len()) != Some(rest_len) {
            return Err(InodeRule::ExtraSize);
        }
        let (extra, _) = DiskInodeExtra::mut_from_prefix(rest).map_err(|_| InodeRule::ExtraSize)?;
        extra.extra_size = self.extra_bytes.into();
        if self.holds(CHANGED_EXTRA) {
            extra.changed_extra = self.words_of(self.changed, CHANGED_EXTRA).1;
        }
        if self.holds(MODIFIED_EXTRA) {
            extra.modified_extra = self.words_of(self.modified, MODIFIED_EXTRA).1;
        }
        if self.holds(ACCESSED_EXTRA) {
            extra.accessed_extra = self.words_of(self.accessed, ACCESSED_EXTRA).1;
        }
        let created_extra = offset_of!(DiskInodeExtra, created_extra);
        if let Some(created) = self.created {
            let (seconds, more) = self.words_of(created, created_extra);
            if self.holds(offset_of!(DiskInodeExtra, created)) {
                extra.created = seconds;
            }
            if self.holds(created_extra) {
                extra.created_extra = more;
            }
        }
        let has_version = geometry.creator != Creator::Hurd;
        if has_version && self.holds(offset_of!(DiskInodeExtra, version_hi)) {
            extra.version_hi = words(self.version).1;
        }
        let has_project = geometry.features.ro_compat.contains(RoCompat::PROJECT);
        if has_project && self.holds(offset_of!(DiskInodeExtra, project)) {
            extra.project = self.project.into();
        }
        if let Some(tail) = rest.get_mut(in_use..) {
            tail.copy_from_slice(&self.tail);
        }
        Ok(())
    }

    /// Returns the nearest time that this inode can store, for access, modification and change.
    #[must_use]
    pub fn storable(&self, time: Timestamp) -> Timestamp {
        time::storable(time, self.holds(ACCESSED_EXTRA))
    }

    /// Returns the creation time as the inode can store it; `None` if it has no field for that.
    #[must_use]
    pub fn storable_creation(&self, time: Timestamp) -> Option<Timestamp> {
        let has_place = self.holds(offset_of!(DiskInodeExtra, created));
        let is_long = self.holds(offset_of!(DiskInodeExtra, created_extra));
        has_place.then(|| time::storable(time, is_long))
    }

    /// Whether the inode has a field for the project ID.
    #[must_use]
    pub fn holds_project(&self) -> bool {
        self.holds(offset_of!(DiskInodeExtra, project))
    }

    /// Whether the 32-bit field at `offset` after the first 128 bytes is in use.
    fn holds(&self, offset: usize) -> bool {
        offset.saturating_add(size_of::<Le32>()) <= usize::from(self.extra_bytes)
    }

    /// Returns the two words of a time, the second one at `extra_offset`.
    fn words_of(&self, time: Timestamp, extra_offset: usize) -> (Le32, Le32) {
        let (seconds, extra) = time::encode(time, self.holds(extra_offset));
        (seconds.into(), extra.into())
    }
}

/// The encoded space of an inode.
#[derive(Clone, Copy)]
struct Sectors {
    low: Le32,
    /// With the `huge_file` feature.
    high: Option<Le16>,
    flags: InodeFlags,
}

fn halves(value: u32) -> (Le16, Le16) {
    let [b0, b1, b2, b3] = value.to_le_bytes();
    (Le16::from_bytes([b0, b1]), Le16::from_bytes([b2, b3]))
}

fn words(value: u64) -> (Le32, Le32) {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = value.to_le_bytes();
    (
        Le32::from_bytes([b0, b1, b2, b3]),
        Le32::from_bytes([b4, b5, b6, b7]),
    )
}

/// Stores `i_dtime`, the time of deletion or the next inode of the orphan list, in the bytes of an
/// inode, and updates its checksum.
pub fn put_deleted(
    slot: &mut [u8],
    number: InodeNr,
    deleted: u32,
    geometry: &Geometry,
) -> Result<(), Corrupt<InodeRule>> {
    let slot = slot.get_mut(..usize::from(geometry.inode_bytes));
    let slot = slot.unwrap_or_default();
    disk_mut(slot, number)?.deleted = deleted.into();
    seal(slot, number, geometry);
    Ok(())
}

fn disk_mut(slot: &mut [u8], number: InodeNr) -> Result<&mut DiskInode, Corrupt<InodeRule>> {
    let (disk, _) = DiskInode::mut_from_prefix(slot).map_err(|_| {
        let locus = Locus::inode(u64::from(number.get()));
        Corrupt::new(locus, InodeRule::Truncated)
    })?;
    Ok(disk)
}

/// Stores the checksum in the bytes of an inode, one slot of the inode table.
pub fn seal(bytes: &mut [u8], number: InodeNr, geometry: &Geometry) {
    if !geometry.features.has_metadata_csum() {
        return;
    }
    let Ok((disk, rest)) = DiskInode::mut_from_prefix(bytes) else {
        return;
    };
    let has_high = Extra::decode(rest).is_some_and(|extra| extra.has_checksum());
    let seed = checksum_seed(number, disk.generation, geometry);
    // With zeros in the checksum fields, one pass covers all bytes.
    put_checksum(disk, rest, 0, has_high);
    let sum = crc32c(seed, bytes);
    if let Ok((disk, rest)) = DiskInode::mut_from_prefix(bytes) {
        put_checksum(disk, rest, sum, has_high);
    }
}

fn put_checksum(disk: &mut DiskInode, rest: &mut [u8], sum: u32, has_high: bool) {
    let [b0, b1, b2, b3] = sum.to_le_bytes();
    disk.checksum_lo = Le16::from_bytes([b0, b1]);
    if let Ok((extra, _)) = DiskInodeExtra::mut_from_prefix(rest)
        && has_high
    {
        extra.checksum_hi = Le16::from_bytes([b2, b3]);
    }
}
