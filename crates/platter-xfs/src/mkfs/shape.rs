//! The sizes of a new filesystem: those that were asked for, and for the rest those of mkfs.xfs.
//!
//! The rules are those that `mkfs.xfs -N` of xfsprogs 6.1 shows; the unit tests have figures of it.

use platter_block::Geometry as DeviceGeometry;
use platter_vfs::{Condition, Result};

use super::options::{MkfsOptions, refuse};
use crate::ondisk::features::{Features, Incompat, RoCompat, Version};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::superblock::QuotaFlags;
use crate::ondisk::{AgNr, Geometry, InodeNr, Lsn, Superblock};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// The shortest filesystem, in bytes.
pub const LEN_BYTES_MIN: u64 = 300 * MIB;
/// The shortest one that is unsupported: one group.
pub const UNSUPPORTED_LEN_BYTES_MIN: u64 = AG_BYTES_MIN;
/// The shortest group, and the shortest last one.
const AG_BYTES_MIN: u64 = 16 * MIB;
const AG_BYTES_MAX: u64 = TIB;
const LOG_BYTES_MIN: u64 = 64 * MIB;
const LOG_BYTES_MAX: u64 = 2 * GIB - 10 * MIB;
const LOG_BLOCKS_MAX: u64 = MIB;
/// The shortest log holds the largest transaction of blocks up to 16 KiB, and that of larger ones without
/// owners and stripes.
const SMALL_BLOCK_BITS: u8 = 14;
const LARGE_LOG_BYTES: u64 = 192 * MIB;
/// A block of the log for so many blocks of data.
const DATA_BLOCKS_PER_LOG_BLOCK: u64 = 2048;
/// The shortest logs that mkfs.xfs makes as unsupported ones, by reflink, rmapbt and finobt: they hold the largest
/// transaction, whose size depends on the trees. Blocks are of 4096 bytes, inodes of 512, without nrext64, parent
/// and exchange, and groups up to 128 MiB, or larger.
/// The oracle test `short_logs_are_as_short_as_those_of_mkfs_xfs` compares them.
const SHORT_LOGS: [((bool, bool, bool), u32, u32); 8] = [
    ((false, false, false), 857, 857),
    ((false, false, true), 857, 924),
    ((false, true, false), 857, 983),
    ((false, true, true), 878, 1137),
    ((true, false, false), 1368, 2580),
    ((true, false, true), 1368, 2580),
    ((true, true, false), 3075, 4287),
    ((true, true, true), 3075, 4287),
];
const SHORT_LOG_BLOCK_BITS: u8 = 12;
const SHORT_LOG_SECTOR_BITS: u8 = 9;
const SHORT_LOG_INODE_BITS: u8 = 9;
const SHORT_LOG_AG_BYTES_MAX: u64 = 128 * MIB;
const LOG_STRIPE_BYTES_MAX: u32 = 256 << 10;
const LOG_STRIPE_BYTES_DEFAULT: u32 = 32 << 10;
/// A cluster of inodes of 256 bytes.
const CLUSTER_BYTES: u32 = 8192;

/// A new filesystem: its superblock, and all that follows from it.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) log_stripe_blocks: u32,
    /// What the log has, it has for itself.
    pub(super) log_is_external: bool,
    /// The fewest blocks that the log may get where its group has no space for more; none where its size was asked
    /// for.
    pub(super) log_blocks_min: Option<u32>,
}

/// Sizes as powers of two.
#[derive(Debug, Clone, Copy)]
struct Bits {
    sector: u8,
    block: u8,
    inode: u8,
    dir_block: u8,
}

/// Allocation groups.
#[derive(Debug, Clone, Copy)]
struct Groups {
    blocks: u32,
    count: u32,
    data_blocks: u64,
}

impl Shape {
    /// Chooses the sizes for a device, with a log on another one if there is one. The log and the inodes are still to be
    /// [placed](Self::place).
    pub(super) fn choose(
        device: &DeviceGeometry,
        log: Option<&DeviceGeometry>,
        options: &MkfsOptions,
    ) -> Result<Self> {
        let log_bytes = log.map(|log| log.len_bytes);
        let log_sector = log.map(|log| log.logical_block_bytes);
        let bits = Bits::choose((device.logical_block_bytes, log_sector), options)?;
        let groups = Groups::choose(device.len_bytes >> bits.block, bits, options)?;
        let log_stripe = log_stripe_bytes(bits, options)?;
        let log_stripe_blocks = (log_stripe >> bits.block).max(1);
        let shortest = shortest_log_blocks(groups, bits, log_stripe, options)?;
        let sizes = (log_bytes, shortest);
        let log_blocks = log_blocks(groups, bits, log_stripe_blocks, (sizes, options))?;
        let features = features(bits, options);
        let superblock = superblock(bits, groups, &features, options)?;
        let mut shape = Self {
            geometry: Geometry::new(&superblock),
            superblock,
            log_stripe_blocks,
            log_is_external: log_bytes.is_some(),
            log_blocks_min: match options.log_bytes {
                None if log_bytes.is_none() => u32::try_from(shortest).ok(),
                _ => None,
            },
        };
        shape.superblock.log_blocks = log_blocks;
        shape.superblock.log_stripe_unit = log_stripe.max(1);
        Ok(shape)
    }

    /// That of a filesystem that is there, without its log.
    pub(super) fn of_existing(superblock: Superblock) -> Self {
        Self {
            geometry: Geometry::new(&superblock),
            superblock,
            log_stripe_blocks: 1,
            log_is_external: true,
            log_blocks_min: None,
        }
    }

    /// The group that holds the log, if one does.
    pub(super) fn log_group(&self) -> Option<AgNr> {
        (!self.log_is_external).then_some(AgNr(self.superblock.ag_count / 2))
    }
}

impl Bits {
    /// Chooses them for a device with sectors of so many bytes, and the device of the log if it is another one.
    fn choose(
        (data_sector, log_sector): (u32, Option<u32>),
        options: &MkfsOptions,
    ) -> Result<Self> {
        let block_bytes = options.block_bytes.unwrap_or(4096);
        let block = power(block_bytes, 1024..=65536).ok_or_else(|| {
            unfit(
                "blocks",
                block_bytes,
                "a power of two from 1024 to 65536 is",
            )
        })?;
        let (device_sector, shorter) = match log_sector {
            Some(log) if log > data_sector => (log, "the sector size of the log device or more is"),
            _ => (data_sector, "the sector size of the device or more is"),
        };
        let device_sector = device_sector.max(512);
        let sector_bytes = options.sector_bytes.unwrap_or(device_sector);
        if block_bytes < device_sector {
            return Err(unfit("blocks", block_bytes, shorter));
        }
        if sector_bytes < device_sector {
            return Err(unfit("sectors", sector_bytes, shorter));
        }
        let sector = power(sector_bytes, 512..=32768.min(block_bytes)).ok_or_else(|| {
            let reason = "a power of two from 512 to 32768 and the block size is";
            unfit("sectors", sector_bytes, reason)
        })?;
        let inode_bytes = options.inode_bytes.unwrap_or(512);
        let inode = power(inode_bytes, 512..=2048.min(block_bytes / 2)).ok_or_else(|| {
            let reason = "a power of two from 512 to 2048 and half a block is";
            unfit("inodes", inode_bytes, reason)
        })?;
        let dir_bytes = options.dir_block_bytes.unwrap_or(block_bytes.max(4096));
        let dir_block = power(dir_bytes, block_bytes..=65536).ok_or_else(|| {
            let reason = "a power of two from the block size to 65536 is";
            unfit("directory blocks", dir_bytes, reason)
        })?;
        Ok(Self {
            sector,
            block,
            inode,
            dir_block,
        })
    }

    fn block_bytes(self) -> u32 {
        1 << self.block
    }

    fn blocks(self, bytes: u64) -> u64 {
        bytes >> self.block
    }
}

impl Groups {
    fn choose(data_blocks: u64, bits: Bits, options: &MkfsOptions) -> Result<Self> {
        let block_bytes = u64::from(bits.block_bytes());
        let shortest = bits.blocks(AG_BYTES_MIN);
        let longest = bits.blocks(AG_BYTES_MAX) - 1;
        let (unit, width) = stripe(options)?;
        let len_bytes_min = if options.unsupported {
            UNSUPPORTED_LEN_BYTES_MIN
        } else {
            LEN_BYTES_MIN
        };
        if bits.blocks(len_bytes_min) > data_blocks {
            return Err(Condition::NoSpace.into());
        }
        let rounded = |blocks: u64| blocks.next_multiple_of(unit.max(1));
        let mut blocks = match (options.ag_bytes, options.ag_count) {
            (Some(bytes), _) if !bytes.is_multiple_of(block_bytes) => {
                let reason = "a multiple of the block size is";
                return Err(refuse(format!("groups of {bytes} bytes"), reason));
            }
            (Some(bytes), _) => rounded(bits.blocks(bytes)),
            (None, Some(count)) => rounded(data_blocks.div_ceil(u64::from(count.max(1)))),
            (None, None) => {
                let shift = default_shift(data_blocks * block_bytes, unit > 0);
                let blocks = shift.map_or(longest, |shift| data_blocks.div_ceil(1 << shift));
                let blocks = rounded(blocks.min(longest));
                // Groups that begin on different disks.
                let is_aligned = width > unit && blocks.is_multiple_of(width);
                if is_aligned { blocks - unit } else { blocks }
            }
        };
        if unit > 0 && blocks > longest {
            blocks = longest / unit * unit;
        }
        if blocks < shortest || blocks > longest || blocks > data_blocks {
            let reason = "16 MiB to 1 TiB are";
            let text = format!("groups of {} bytes", blocks.saturating_mul(block_bytes));
            return Err(refuse(text, reason));
        }
        let mut data_blocks = data_blocks;
        let last = data_blocks % blocks;
        if last < shortest {
            data_blocks -= last;
        }
        if bits.blocks(len_bytes_min) > data_blocks {
            return Err(Condition::NoSpace.into());
        }
        let count = data_blocks.div_ceil(blocks);
        if count < 2 && !options.unsupported {
            let reason = "at least two are, which hold copies of the superblock";
            return Err(refuse(format!("{count} allocation group"), reason));
        }
        Ok(Self {
            blocks: u32::try_from(blocks).map_err(|_| Condition::InvalidArgument)?,
            count: u32::try_from(count).map_err(|_| Condition::InvalidArgument)?,
            data_blocks,
        })
    }
}

/// How often the device is halved for a group; `None` for groups of the greatest length.
fn default_shift(bytes: u64, has_stripe: bool) -> Option<u32> {
    Some(match bytes {
        bytes if has_stripe && bytes > 512 * GIB => 5,
        bytes if has_stripe && bytes > 8 * GIB => 4,
        bytes if has_stripe && bytes >= 128 * MIB => 3,
        bytes if bytes >= 4 * TIB => return None,
        bytes if bytes >= 64 * MIB => 2,
        bytes if bytes >= 32 * MIB => 1,
        _ => 0,
    })
}

/// Stripe unit and width of data in blocks.
fn stripe(options: &MkfsOptions) -> Result<(u64, u64)> {
    let (unit, width) = options.stripe_blocks;
    let is_sound = (unit == 0) == (width == 0) && width.is_multiple_of(unit.max(1));
    if !is_sound {
        let reason = "a multiple of the stripe unit is";
        return Err(refuse(format!("a stripe width of {width} blocks"), reason));
    }
    Ok((unit.into(), width.into()))
}

/// The stripe unit of the log; zero for none.
fn log_stripe_bytes(bits: Bits, options: &MkfsOptions) -> Result<u32> {
    let block_bytes = bits.block_bytes();
    if let Some(bytes) = options.log_stripe_bytes {
        if bytes > LOG_STRIPE_BYTES_MAX || bytes == 0 || !bytes.is_multiple_of(block_bytes) {
            let reason = "a multiple of the block size up to 262144 is";
            return Err(unfit("log stripes", bytes, reason));
        }
        return Ok(bytes);
    }
    let data_stripe = options.stripe_blocks.0.checked_mul(block_bytes);
    Ok(match data_stripe {
        Some(0) if bits.sector > 9 => block_bytes,
        Some(0) => 0,
        Some(bytes) if bytes <= LOG_STRIPE_BYTES_MAX => bytes,
        _ => LOG_STRIPE_BYTES_DEFAULT.max(block_bytes),
    })
}

/// The fewest blocks that the log may have.
fn shortest_log_blocks(
    groups: Groups,
    bits: Bits,
    log_stripe: u32,
    options: &MkfsOptions,
) -> Result<u64> {
    let is_short = groups.data_blocks < bits.blocks(LEN_BYTES_MIN);
    let is_usual = bits.block == SHORT_LOG_BLOCK_BITS && bits.dir_block == bits.block;
    let is_usual = is_usual && bits.sector == SHORT_LOG_SECTOR_BITS && log_stripe == 0;
    let larger = Incompat::NREXT64 | Incompat::PARENT | Incompat::EXCHRANGE;
    let is_usual = is_usual
        && bits.inode == SHORT_LOG_INODE_BITS
        && !options.features.incompat.intersects(larger);
    if !options.unsupported || !(is_usual || is_short) {
        return Ok(bits.blocks(LOG_BYTES_MIN));
    }
    if !is_usual {
        let reason = "with blocks of 4096 bytes, sectors and inodes of 512, no stripes, and neither nrext64, parent nor \
                      exchange, that is";
        return Err(refuse("a filesystem below 300 MiB".to_owned(), reason));
    }
    let features = &options.features;
    let key = (
        features.has_reflink(),
        features.has_rmapbt(),
        features.has_finobt(),
    );
    let mut rows = SHORT_LOGS.iter();
    let found = rows.find(|(row, ..)| *row == key);
    let (_, short, long) = *found.expect("there is a row for each");
    let is_long = u64::from(groups.blocks) > bits.blocks(SHORT_LOG_AG_BYTES_MAX);
    Ok(u64::from(if is_long { long } else { short }))
}

fn log_blocks(
    groups: Groups,
    bits: Bits,
    unit: u32,
    ((device_bytes, shortest), options): ((Option<u64>, u64), &MkfsOptions),
) -> Result<u32> {
    let longest = bits.blocks(LOG_BYTES_MAX).min(LOG_BLOCKS_MAX);
    let on_device = device_bytes.map(|bytes| bits.blocks(bytes));
    let blocks = match (options.log_bytes, on_device) {
        (Some(bytes), _) => bits.blocks(bytes),
        (None, Some(blocks)) => blocks.min(longest),
        (None, None) if groups.data_blocks < bits.blocks(LEN_BYTES_MIN) => shortest,
        (None, None) => {
            let usual = groups.data_blocks / DATA_BLOCKS_PER_LOG_BLOCK;
            usual.clamp(bits.blocks(LOG_BYTES_MIN), longest)
        }
    };
    let rounded = blocks.next_multiple_of(unit.into());
    let longest = on_device.map_or(longest, |blocks| longest.min(blocks));
    let blocks = if rounded > longest { blocks } else { rounded };
    let blocks = if on_device.is_some() && options.log_bytes.is_none() {
        blocks / u64::from(unit) * u64::from(unit)
    } else {
        blocks
    };
    if blocks < shortest || blocks > longest {
        let bytes = blocks.saturating_mul(bits.block_bytes().into());
        let reason = if options.unsupported {
            "as much as the largest transaction takes is, to 2038 MiB, as far as its device goes"
        } else {
            "64 MiB to 2038 MiB are, as far as its device goes"
        };
        return Err(refuse(format!("a log of {bytes} bytes"), reason));
    }
    let needs_more = options.features.has_rmapbt() || options.log_stripe_bytes.is_some();
    let needs_more = needs_more || options.stripe_blocks.0 > 0 || options.log_bytes.is_some();
    if bits.block > SMALL_BLOCK_BITS && needs_more && blocks < bits.blocks(LARGE_LOG_BYTES) {
        let block_bytes = bits.block_bytes();
        let reason = "with rmapbt, a stripe or a size of the log, one of at least 192 MiB is";
        return Err(unfit("blocks", block_bytes, reason));
    }
    u32::try_from(blocks).map_err(|_| Condition::InvalidArgument.into())
}

fn features(bits: Bits, options: &MkfsOptions) -> Features {
    let mut features = options.features;
    features.version.set(Version::SECTOR, bits.sector > 9);
    features
        .version
        .set(Version::DALIGN, options.stripe_blocks.0 > 0);
    if !features.has_finobt() {
        features.ro_compat.remove(RoCompat::INOBTCNT);
    }
    features
}

fn superblock(
    bits: Bits,
    groups: Groups,
    features: &Features,
    options: &MkfsOptions,
) -> Result<Superblock> {
    let cluster = (CLUSTER_BYTES << (bits.inode - 8)) >> bits.block;
    let chunk = (CHUNK_INODES << bits.inode) >> bits.block;
    let is_sparse = features.has_sparse_inodes();
    let len_bytes = groups.data_blocks.saturating_mul(bits.block_bytes().into());
    let (stripe_unit, stripe_width) = options.stripe_blocks;
    let sector_bytes = 1 << bits.sector;
    Ok(Superblock {
        features: *features,
        uuid: options.uuid,
        meta_uuid: options.uuid,
        label: options.label.clone(),
        sector_bits: bits.sector,
        block_bits: bits.block,
        inode_bits: bits.inode,
        dir_block_bits: bits.dir_block,
        data_blocks: groups.data_blocks,
        ag_blocks: groups.blocks,
        ag_block_bits: u8::try_from(groups.blocks.next_power_of_two().trailing_zeros())
            .map_err(|_| Condition::InvalidArgument)?,
        ag_count: groups.count,
        log_start: None,
        log_blocks: 0,
        log_sector_bytes: sector_bytes,
        log_stripe_unit: 0,
        rt_blocks: 0,
        rt_extents: 0,
        rt_extent_blocks: (4096_u32 >> bits.block).max(1),
        rt_bitmap_blocks: 0,
        rt_group_count: 0,
        rt_group_extents: 0,
        rt_group_block_bits: 0,
        root_inode: InodeNr::new(1).ok_or(Condition::InvalidArgument)?,
        rt_bitmap_inode: None,
        rt_summary_inode: None,
        quota_inodes: [None; 3],
        metadir_inode: None,
        quota_flags: QuotaFlags::empty(),
        flags: 0,
        inode_alignment: if is_sparse { chunk } else { cluster },
        sparse_inode_alignment: if is_sparse { cluster } else { 0 },
        stripe_unit,
        stripe_width,
        inode_percent_max: match (options.inode_percent, len_bytes) {
            (0, bytes) if bytes < TIB => 25,
            (0, bytes) if bytes < 50 * TIB => 5,
            (0, _) => 1,
            (percent, _) if percent <= 100 => percent,
            (percent, _) => {
                let text = format!("{percent} percent of inodes");
                return Err(refuse(text, "0 to 100 are"));
            }
        },
        inode_count: 0,
        free_inodes: 0,
        free_data_blocks: 0,
        free_rt_extents: 0,
        lsn: Lsn(0),
    })
}

fn power(value: u32, range: std::ops::RangeInclusive<u32>) -> Option<u8> {
    let is_sound = value.is_power_of_two() && range.contains(&value);
    is_sound
        .then(|| u8::try_from(value.trailing_zeros()).ok())
        .flatten()
}

fn unfit(what: &str, bytes: u32, reason: &'static str) -> platter_vfs::Error {
    refuse(format!("{what} of {bytes} bytes"), reason)
}

#[cfg(test)]
pub(super) mod tests {
    use platter_ondisk::Uuid;

    use super::*;

    pub(in crate::mkfs) fn options() -> MkfsOptions {
        MkfsOptions::new(Uuid::from_bytes([0x5a; 16]))
    }

    pub(in crate::mkfs) fn shape(len_bytes: u64, options: &MkfsOptions) -> Result<Shape> {
        let device = DeviceGeometry {
            len_bytes,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            read_only: false,
        };
        Shape::choose(&device, None, options)
    }

    #[test]
    fn default_sizes_follow_the_length_of_the_device() {
        for (len, groups, ag_blocks, log_blocks, percent) in [
            (300 * MIB, 4, 19200, 16384, 25),
            (1_234_567 << 10, 4, 77161, 16384, 25),
            (200 * GIB, 4, 13_107_200, 25600, 25),
            (2 * TIB, 4, 134_217_728, 262_144, 5),
            (4 * TIB, 4, 268_435_455, 521_728, 5),
            (8 * TIB, 8, 268_435_455, 521_728, 5),
        ] {
            let made = shape(len, &options()).unwrap().superblock;
            let found = (made.ag_count, made.ag_blocks, made.log_blocks);
            assert_eq!(found, (groups, ag_blocks, log_blocks), "{len}");
            assert_eq!(made.inode_percent_max, percent, "{len}");
        }
    }

    #[test]
    fn stripes_shift_groups_to_different_disks() {
        let mut options = options();
        options.stripe_blocks = (16, 64);
        for (len, groups, ag_blocks, data_blocks) in [
            (600 * MIB, 8, 19184, 153_472),
            (3_333_333 << 10, 8, 104_176, 833_333),
            (8 * GIB, 8, 262_128, 2_097_024),
            (8193 * MIB, 16, 131_088, 2_097_408),
            (600 * GIB, 32, 4_915_184, 157_285_888),
        ] {
            let made = shape(len, &options).unwrap().superblock;
            let found = (made.ag_count, made.ag_blocks, made.data_blocks);
            assert_eq!(found, (groups, ag_blocks, data_blocks), "{len}");
            assert_eq!(made.log_stripe_unit, 65536);
        }
        options.stripe_blocks = (16, 40);
        assert!(shape(GIB, &options).is_err());
    }

    #[test]
    fn short_devices_have_no_space() {
        let error = shape(300 * MIB - 1, &options()).unwrap_err();
        let full = platter_vfs::Error::from(Condition::NoSpace);
        assert_eq!(error.errno(), full.errno());
    }

    #[test]
    fn short_filesystems_have_the_shortest_logs() {
        let mut options = MkfsOptions {
            unsupported: true,
            ..options()
        };
        for (len, groups, ag_blocks, log_blocks) in [
            (16 * MIB, 1, 4096, 1368),
            (32 * MIB, 2, 4096, 1368),
            (48_001 << 10, 2, 6000, 1368),
            (299 * MIB, 4, 19136, 1368),
            (300 * MIB, 4, 19200, 16384),
        ] {
            let made = shape(len, &options).unwrap().superblock;
            let found = (made.ag_count, made.ag_blocks, made.log_blocks);
            assert_eq!(found, (groups, ag_blocks, log_blocks), "{len}");
        }
        let short = shape(16 * MIB - 1, &options).unwrap_err();
        let full = platter_vfs::Error::from(Condition::NoSpace);
        assert_eq!(short.errno(), full.errno());
        options.dir_block_bytes = Some(8192);
        assert_eq!(
            shape(300 * MIB, &options).unwrap().superblock.log_blocks,
            16384
        );
        let error = shape(299 * MIB, &options).unwrap_err().to_string();
        assert!(error.contains("a filesystem below 300 MiB"), "{error}");
    }

    #[test]
    fn sizes_that_the_format_lacks_are_refused_by_name() {
        let refused = |change: fn(&mut MkfsOptions)| {
            let mut options = options();
            change(&mut options);
            shape(GIB, &options).unwrap_err().to_string()
        };
        for (error, expected) in [
            (
                refused(|it| it.block_bytes = Some(512)),
                "blocks of 512 bytes",
            ),
            (
                refused(|it| it.sector_bytes = Some(8192)),
                "sectors of 8192 bytes",
            ),
            (
                refused(|it| it.inode_bytes = Some(256)),
                "inodes of 256 bytes",
            ),
            (
                refused(|it| it.dir_block_bytes = Some(2048)),
                "directory blocks of 2048 bytes",
            ),
            (refused(|it| it.ag_count = Some(1)), "1 allocation group"),
            (
                refused(|it| it.ag_count = Some(99)),
                "groups of 10846208 bytes",
            ),
            (
                refused(|it| it.log_bytes = Some(32 << 20)),
                "a log of 33554432 bytes",
            ),
            (
                refused(|it| it.inode_percent = 101),
                "101 percent of inodes",
            ),
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sectors_below_those_of_the_log_device_are_refused() {
        let device = |logical_block_bytes| DeviceGeometry {
            len_bytes: GIB,
            logical_block_bytes,
            physical_block_bytes: 4096,
            read_only: false,
        };
        let mut options = options();
        options.sector_bytes = Some(512);
        for (data, log, expected) in [
            (512, 4096, "the sector size of the log device"),
            (4096, 4096, "the sector size of the device"),
            (4096, 512, "the sector size of the device"),
        ] {
            let shape = Shape::choose(&device(data), Some(&device(log)), &options);
            let error = shape.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sizes_below_the_sectors_of_the_device_are_refused() {
        let on = |logical_block_bytes: u32, change: fn(&mut MkfsOptions)| {
            let device = DeviceGeometry {
                len_bytes: GIB,
                logical_block_bytes,
                physical_block_bytes: 4096,
                read_only: false,
            };
            let mut options = options();
            change(&mut options);
            let shape = Shape::choose(&device, None, &options);
            shape.map(|shape| (shape.superblock.block_bits, shape.superblock.sector_bits))
        };
        assert_eq!(on(4096, |_| ()).unwrap(), (12, 12));
        assert_eq!(
            on(2048, |it| it.block_bytes = Some(2048)).unwrap(),
            (11, 11)
        );
        assert_eq!(
            on(512, |it| it.sector_bytes = Some(4096)).unwrap(),
            (12, 12)
        );
        for (error, expected) in [
            (
                on(4096, |it| it.sector_bytes = Some(512)),
                "sectors of 512 bytes",
            ),
            (
                on(4096, |it| it.block_bytes = Some(1024)),
                "blocks of 1024 bytes",
            ),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
