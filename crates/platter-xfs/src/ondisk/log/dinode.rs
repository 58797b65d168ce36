//! The core of a logged inode: that of an inode on disk, in the byte order of the machine that logged
//! it. Spec: `xfs/journaling_log`, "Inode Data Log Item"; `xfs/ondisk_inode`.

use platter_ondisk::endian::{Be16, Be64, Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogRule;
use crate::ondisk::geometry::Geometry;
use crate::ondisk::inode::INODE_MAGIC;
use crate::ondisk::inode::free::{CRC_AT, NEXT_UNLINKED_AT, next_unlinked};
use crate::ondisk::types::{AgInode, AgNr, Lsn};

/// Bytes of the core before version 3: up to `di_next_unlinked`.
pub const CORE_V2_BYTES: usize = 96;
/// Bytes of the core in version 3.
pub const CORE_V3_BYTES: usize = 176;
/// The first byte of the forks before version 3: after `di_next_unlinked`.
pub const FORKS_V2_AT: usize = 100;
/// `di_flags2`: times are counted in nanoseconds (`XFS_DIFLAG2_BIGTIME`).
const FLAG2_BIGTIME: u64 = 1 << 3;
/// `di_flags2`: 64-bit extent counts (`XFS_DIFLAG2_NREXT64`).
const FLAG2_NREXT64: u64 = 1 << 4;

/// The core as logged by a little-endian machine; versions 1 and 2 end before `next_unlinked`.
/// Spec: `xfs/ondisk_inode`, `struct xfs_dinode_core`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskLogDinode {
    /// `di_magic`.
    pub magic: Le16,
    /// `di_mode`.
    pub mode: Le16,
    /// `di_version`.
    pub version: u8,
    /// `di_format`.
    pub format: u8,
    /// `di_metatype`, once `di_onlink`.
    pub metatype: Le16,
    /// `di_uid`.
    pub uid: Le32,
    /// `di_gid`.
    pub gid: Le32,
    /// `di_nlink`.
    pub nlink: Le32,
    /// `di_projid_lo`.
    pub projid_lo: Le16,
    /// `di_projid_hi`.
    pub projid_hi: Le16,
    /// `di_big_nextents`; before version 3, padding and `di_flushiter` in its last two bytes.
    pub big_nextents: [u8; 8],
    /// `di_atime`.
    pub atime: [u8; 8],
    /// `di_mtime`.
    pub mtime: [u8; 8],
    /// `di_ctime`.
    pub ctime: [u8; 8],
    /// `di_size`.
    pub size: Le64,
    /// `di_nblocks`.
    pub nblocks: Le64,
    /// `di_extsize`.
    pub extsize: Le32,
    /// `di_nextents`, or `di_big_anextents`.
    pub nextents: Le32,
    /// `di_anextents`; padding with 64-bit extent counts.
    pub anextents: Le16,
    /// `di_forkoff`, in units of eight bytes.
    pub forkoff: u8,
    /// `di_aformat`.
    pub aformat: u8,
    /// `di_dmevmask`.
    pub dmevmask: Le32,
    /// `di_dmstate`.
    pub dmstate: Le16,
    /// `di_flags`.
    pub flags: Le16,
    /// `di_gen`.
    pub generation: Le32,
    /// `di_next_unlinked`; not meant for recovery.
    pub next_unlinked: Le32,
    /// `di_crc`; not meant for recovery.
    pub crc: Le32,
    /// `di_changecount`.
    pub changecount: Le64,
    /// `di_lsn`; not meant for recovery.
    pub lsn: Le64,
    /// `di_flags2`.
    pub flags2: Le64,
    /// `di_cowextsize`.
    pub cowextsize: Le32,
    /// `di_pad2`.
    pub pad2: [u8; 12],
    /// `di_crtime`.
    pub crtime: [u8; 8],
    /// `di_ino`.
    pub inode: Le64,
    /// `di_uuid`.
    pub uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskLogDinode>() == CORE_V3_BYTES);
const _: () = assert!(std::mem::offset_of!(DiskLogDinode, next_unlinked) == NEXT_UNLINKED_AT);
const _: () = assert!(std::mem::offset_of!(DiskLogDinode, crc) == CRC_AT);
const _: () = assert!(std::mem::offset_of!(DiskLogDinode, crtime) == 144);

/// `di_format` and `di_aformat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkFormat {
    /// A device number.
    Device,
    /// Contents in the inode.
    Local,
    /// Extents in the inode.
    Extents,
    /// The root of a tree of extents.
    Btree,
    /// A UUID; never used.
    Uuid,
    /// The root of a tree of records of a metadata inode.
    MetaBtree,
}

/// The core of a logged inode whose rules hold, with the bytes it was logged in.
#[derive(Debug, Clone)]
pub struct LogDinode {
    /// Fields in the order of the format.
    pub disk: DiskLogDinode,
    /// Format of the data fork.
    pub format: ForkFormat,
    /// Bytes that were logged: [`CORE_V2_BYTES`] or [`CORE_V3_BYTES`].
    pub len: usize,
}

impl LogDinode {
    /// Validates the second region of an inode item, for inodes of `inode_bytes`.
    pub fn decode(
        region: &[u8],
        is_v3: bool,
        inode_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<LogRule>> {
        let broken = |rule| Err(Corrupt::new(locus, rule));
        let len = if is_v3 { CORE_V3_BYTES } else { CORE_V2_BYTES };
        let Some(core) = region.get(..len) else {
            return broken(LogRule::ItemLength);
        };
        let mut bytes = [0; CORE_V3_BYTES];
        if let Some(start) = bytes.get_mut(..len) {
            start.copy_from_slice(core);
        }
        let disk: DiskLogDinode = zerocopy::transmute!(bytes);
        if disk.magic.get() != INODE_MAGIC || is_v3 != (disk.version == 3) {
            return broken(LogRule::InodeMagic);
        }
        let format = match disk.format {
            0 => ForkFormat::Device,
            1 => ForkFormat::Local,
            2 => ForkFormat::Extents,
            3 => ForkFormat::Btree,
            4 => ForkFormat::Uuid,
            5 => ForkFormat::MetaBtree,
            _ => return broken(LogRule::InodeFormat),
        };
        let dinode = Self { disk, format, len };
        let is_mapped = matches!(
            format,
            ForkFormat::Extents | ForkFormat::Btree | ForkFormat::MetaBtree
        );
        let allowed = match disk.mode.get() & 0xf000 {
            0x8000 => is_mapped,
            0x4000 => is_mapped || format == ForkFormat::Local,
            _ => true,
        };
        if !allowed {
            return broken(LogRule::InodeFormat);
        }
        let (data, attr) = dinode.extents();
        if data.saturating_add(attr) > disk.nblocks.get() {
            return broken(LogRule::InodeExtents);
        }
        if u32::from(disk.forkoff).saturating_mul(8) >= inode_bytes {
            return broken(LogRule::InodeForkOffset);
        }
        Ok(dinode)
    }

    /// `di_flushiter`, which inodes before version 3 count their flushes in.
    #[must_use]
    pub fn flush_iteration(&self) -> u16 {
        let [.., low, high] = self.disk.big_nextents;
        Le16::from_bytes([low, high]).get()
    }

    /// Numbers of extents of the data and the attribute fork.
    fn extents(&self) -> (u64, u64) {
        if self.has_big_counts() {
            let data = Le64::from_bytes(self.disk.big_nextents).get();
            return (data, self.disk.nextents.get().into());
        }
        let (data, attr) = (self.disk.nextents, self.disk.anextents);
        (data.get().into(), attr.get().into())
    }

    fn is_v3(&self) -> bool {
        self.len == CORE_V3_BYTES
    }

    fn has_big_counts(&self) -> bool {
        self.is_v3() && self.disk.flags2.get() & FLAG2_NREXT64 != 0
    }

    /// Stores the core in the inode on disk, which keeps its link of an unlinked list, and gets `lsn`.
    /// The checksum is left as it was.
    pub fn store(&self, inode: &mut [u8], lsn: Lsn) {
        let mut swapped = swap(self.disk.as_bytes(), self.layout());
        if self.is_v3() {
            let head = swapped.get_mut(..CORE_V3_BYTES);
            if let Some(head) = head
                && let Some(kept) = inode.get(NEXT_UNLINKED_AT..CRC_AT.saturating_add(4))
                && let Some(slot) = head.get_mut(NEXT_UNLINKED_AT..CRC_AT.saturating_add(4))
            {
                slot.copy_from_slice(kept);
                if let Some((slot, _)) = head
                    .get_mut(112..)
                    .and_then(|rest| Be64::mut_from_prefix(rest).ok())
                {
                    slot.set(lsn.0);
                }
            }
        } else {
            // The count of flushes starts anew.
            if let Some(flushes) = swapped.get_mut(30..32) {
                flushes.fill(0);
            }
        }
        swapped.truncate(self.len);
        for (slot, byte) in inode.iter_mut().zip(swapped) {
            *slot = byte;
        }
    }

    /// Length of what is [logged](Self::encode) of an inode on disk.
    #[must_use]
    pub fn encoded_bytes(inode: &[u8]) -> usize {
        let len = if inode.get(4) == Some(&3) {
            CORE_V3_BYTES
        } else {
            CORE_V2_BYTES
        };
        len.min(inode.len())
    }

    /// The core to log for an inode on disk.
    #[must_use]
    pub fn encode(inode: &[u8]) -> Vec<u8> {
        let is_v3 = inode.get(4) == Some(&3);
        let flags2 = inode
            .get(120..)
            .and_then(|rest| Be64::ref_from_prefix(rest).ok());
        let flags2 = flags2.map_or(0, |(flags2, _)| flags2.get());
        let layout = Layout {
            is_v3,
            big_times: is_v3 && flags2 & FLAG2_BIGTIME != 0,
            big_counts: is_v3 && flags2 & FLAG2_NREXT64 != 0,
        };
        let core = inode.get(..Self::encoded_bytes(inode)).unwrap_or_default();
        let mut core = swap(core, layout);
        // The link belongs to the buffer, and is logged as none.
        if let Some(link) = core.get_mut(NEXT_UNLINKED_AT..FORKS_V2_AT) {
            link.fill(0xff);
        }
        core
    }

    fn layout(&self) -> Layout {
        Layout {
            is_v3: self.is_v3(),
            big_times: self.is_v3() && self.disk.flags2.get() & FLAG2_BIGTIME != 0,
            big_counts: self.has_big_counts(),
        }
    }
}

/// What decides the widths of some fields.
#[derive(Debug, Clone, Copy)]
struct Layout {
    is_v3: bool,
    big_times: bool,
    big_counts: bool,
}

/// Where fields of two, four and eight bytes lie in all cores; some end before the later ones.
const FIELDS_2: [usize; 8] = [0, 2, 6, 20, 22, 80, 88, 90];
const FIELDS_4: [usize; 9] = [8, 12, 16, 72, 76, 84, 92, NEXT_UNLINKED_AT, 128];
const FIELDS_8: [usize; 6] = [56, 64, 104, 112, 120, 152];
/// Where the times lie.
const TIMES: [usize; 4] = [32, 40, 48, 144];
/// `di_big_nextents`.
const BIG_COUNT_AT: usize = 24;
/// `di_flushiter`.
const FLUSHES_AT: usize = 30;

/// Reverses the bytes of each field: from one byte order to the other and back. The checksum and
/// UUID stay.
fn swap(core: &[u8], layout: Layout) -> Vec<u8> {
    let mut core = core.to_vec();
    reverse::<2>(&mut core, &FIELDS_2);
    reverse::<4>(&mut core, &FIELDS_4);
    reverse::<8>(&mut core, &FIELDS_8);
    if layout.big_times {
        reverse::<8>(&mut core, &TIMES);
    } else {
        reverse::<4>(&mut core, &TIMES);
        reverse::<4>(&mut core, &TIMES.map(|at| at.saturating_add(4)));
    }
    match (layout.big_counts, layout.is_v3) {
        (true, _) => reverse::<8>(&mut core, &[BIG_COUNT_AT]),
        (false, true) => {}
        (false, false) => reverse::<2>(&mut core, &[FLUSHES_AT]),
    }
    core
}

/// Reverses the bytes of fields that begin at these places, as far as the core reaches.
fn reverse<const BYTES: usize>(core: &mut [u8], places: &[usize]) {
    for &at in places {
        let field = core
            .get_mut(at..)
            .and_then(<[u8]>::first_chunk_mut::<BYTES>);
        if let Some(field) = field {
            field.reverse();
        }
    }
}

/// Whether an inode on disk bears the magic number.
#[must_use]
pub fn has_inode_magic(inode: &[u8]) -> bool {
    Be16::ref_from_prefix(inode).is_ok_and(|(magic, _)| magic.get() == INODE_MAGIC)
}

/// `di_lsn` of an inode on disk of version 3.
#[must_use]
pub fn inode_lsn(inode: &[u8]) -> Option<Lsn> {
    if inode.get(4) != Some(&3) {
        return None;
    }
    let (lsn, _) = Be64::ref_from_prefix(inode.get(112..)?).ok()?;
    Some(Lsn(lsn.get()))
}

/// Whether an inode of version 3 lies in a place that log recovery writes the logged inodes of later records than
/// `head` to, in a cluster that kernels read: these look at the magic number, version, link and LSN alone.
#[must_use]
pub fn is_replaceable(inode: &[u8], geometry: &Geometry, ag: AgNr, head: Lsn) -> bool {
    let is_older = |lsn| lsn == Lsn::NULL || lsn <= head;
    let link = next_unlinked(inode).map(AgInode);
    let is_link = |link: AgInode| link == AgInode::NULL || geometry.is_ag_inode(ag, link);
    has_inode_magic(inode) && inode_lsn(inode).is_some_and(is_older) && link.is_some_and(is_link)
}

/// `di_flushiter` of an inode on disk before version 3.
#[must_use]
pub fn inode_flush_iteration(inode: &[u8]) -> u16 {
    let field = inode
        .get(30..)
        .and_then(|rest| Be16::ref_from_prefix(rest).ok());
    field.map_or(0, |(count, _)| count.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inode on disk: each field of its own bytes.
    fn inode_on_disk(version: u8, flags2: u64) -> Vec<u8> {
        let mut inode: Vec<u8> = (0..=255).collect();
        inode[..2].copy_from_slice(b"IN");
        inode[2..4].copy_from_slice(&[0x81, 0xa4]);
        (inode[4], inode[5]) = (version, 2);
        inode[24..32].fill(0);
        inode[64..72].fill(0x01);
        inode[76..82].fill(0);
        inode[82] = 0x0f;
        inode[120..128].copy_from_slice(&flags2.to_be_bytes());
        inode
    }

    #[test]
    fn logged_core_is_stored_as_it_was_encoded() {
        for flags2 in [
            0,
            FLAG2_BIGTIME,
            FLAG2_NREXT64,
            FLAG2_BIGTIME | FLAG2_NREXT64,
        ] {
            let inode = inode_on_disk(3, flags2);
            let logged = LogDinode::encode(&inode);
            let core = LogDinode::decode(&logged, true, 512, Locus::UNKNOWN).unwrap();
            assert_eq!(core.disk.mode.get(), 0x81a4);
            let mut stored = inode.clone();
            stored[..96].fill(0xee);
            core.store(&mut stored, Lsn(0x0708));
            assert_eq!(stored[..112], inode[..112], "{flags2}");
            assert_eq!(inode_lsn(&stored), Some(Lsn(0x0708)));
            assert_eq!(stored[120..], inode[120..]);
        }
    }

    #[test]
    fn core_of_version_2_ends_before_the_link() {
        let inode = inode_on_disk(2, 0);
        let logged = LogDinode::encode(&inode);
        assert_eq!(logged.len(), CORE_V2_BYTES);
        let core = LogDinode::decode(&logged, false, 256, Locus::UNKNOWN).unwrap();
        let mut stored = inode.clone();
        core.store(&mut stored, Lsn(1));
        assert_eq!(stored, inode);
        assert_eq!(inode_lsn(&stored), None);
    }

    #[test]
    fn times_swap_as_one_number_or_as_two() {
        let at = |flags2| LogDinode::encode(&inode_on_disk(3, flags2))[32..40].to_vec();
        assert_eq!(at(0), [35, 34, 33, 32, 39, 38, 37, 36]);
        assert_eq!(at(FLAG2_BIGTIME), [39, 38, 37, 36, 35, 34, 33, 32]);
    }

    #[test]
    fn cores_that_break_a_rule_are_refused() {
        let decode = |change: fn(&mut Vec<u8>)| {
            let mut core = LogDinode::encode(&inode_on_disk(3, 0));
            change(&mut core);
            let decoded = LogDinode::decode(&core, true, 512, Locus::UNKNOWN);
            decoded.map(|_| ()).map_err(|corrupt| corrupt.rule)
        };
        assert_eq!(decode(|_| ()), Ok(()));
        assert_eq!(decode(|c| c.truncate(175)), Err(LogRule::ItemLength));
        assert_eq!(decode(|c| c[0] = 0), Err(LogRule::InodeMagic));
        assert_eq!(decode(|c| c[4] = 2), Err(LogRule::InodeMagic));
        assert_eq!(decode(|c| c[5] = 6), Err(LogRule::InodeFormat));
        assert_eq!(decode(|c| c[5] = 1), Err(LogRule::InodeFormat));
        assert_eq!(decode(|c| c[64..72].fill(0)), Ok(()));
        assert_eq!(
            decode(|c| {
                c[64..72].fill(0);
                c[76] = 1;
            }),
            Err(LogRule::InodeExtents)
        );
        assert_eq!(decode(|c| c[82] = 64), Err(LogRule::InodeForkOffset));
    }
}
