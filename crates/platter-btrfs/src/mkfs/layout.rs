//! Where the first chunks lie: on which devices, and how large they are.

use platter_ondisk::Uuid;
use platter_vfs::{Condition, Result};

use super::options::{Choice, SECTOR_BYTES, refuse};
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile, STRIPE_BYTES, Stripe};
use crate::ondisk::superblock::fit_sys_chunk_array;
use crate::ondisk::{DeviceAddr, DeviceId, LogicalAddr, TreeId};
use crate::txn::ChunkShape;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What the beginning of each device is left free for.
const RESERVED_BYTES: u64 = MIB;
/// The first chunks of system, metadata and data of one copy.
const FIRST_BYTES: [u64; 3] = [4 * MIB, 8 * MIB, 8 * MIB];
/// A stripe of a system chunk.
const SYSTEM_BYTES: u64 = 8 * MIB;
/// From this size of all devices on, chunks of metadata are larger.
const LARGE_BYTES: u64 = 50 * GIB;
/// The shortest stripes of metadata and of data.
const METADATA_BYTES_MIN: u64 = 32 * MIB;
const DATA_BYTES_MIN: u64 = 64 * MIB;
/// Tree blocks of the shortest stripes on devices that are too small for those above.
const SMALL_SYSTEM_BLOCKS: u64 = 64;
const SMALL_METADATA_BLOCKS: u64 = 512;
const SMALL_SYSTEM_BYTES: u64 = MIB;
const SMALL_METADATA_BYTES: u64 = 8 * MIB;
/// A stripe of data there.
const SMALL_DATA_BYTES: u64 = 2 * MIB;

/// A device that is made part of the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewDevice {
    pub(super) id: DeviceId,
    pub(super) uuid: Uuid,
    pub(super) total_bytes: u64,
    /// Bytes of chunks.
    pub(super) used_bytes: u64,
    /// Where the next chunk goes.
    next: u64,
}

/// The first chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) devices: Vec<NewDevice>,
    pub(super) chunks: Vec<ChunkItem>,
    /// Where the next chunk begins.
    end: u64,
    /// The devices are too small for chunks of the usual sizes.
    is_small: bool,
}

impl Layout {
    /// Chunks as mkfs.btrfs makes them, on devices with these lengths and UUIDs; smaller ones where those do not fit.
    ///
    /// # Errors
    /// `NoSpace` where no chunks fit; `Unsupported` for a profile that wants more devices.
    pub(super) fn choose(devices: &[(u64, Uuid)], choice: &Choice) -> Result<Self> {
        for flags in [Some(choice.metadata), choice.data].into_iter().flatten() {
            let profile = Profile::of(flags).unwrap_or(Profile::Single);
            let least = ChunkShape::of(profile).devices_min;
            if devices.len() < least {
                let feature = format!("profile {} on {} devices", profile.name(), devices.len());
                return Err(refuse(feature, "it takes more devices"));
            }
        }
        let usual = (!choice.is_small)
            .then(|| Self::new(devices, false))
            .and_then(|layout| layout.filled(choice));
        usual
            .or_else(|| Self::new(devices, true).filled(choice))
            .ok_or(Condition::NoSpace.into())
    }

    fn new(devices: &[(u64, Uuid)], is_small: bool) -> Self {
        let device = |(number, &(len_bytes, uuid)): (u64, &(u64, Uuid))| NewDevice {
            id: DeviceId(number),
            uuid,
            total_bytes: len_bytes - len_bytes % u64::from(SECTOR_BYTES),
            used_bytes: 0,
            next: RESERVED_BYTES,
        };
        Self {
            devices: (1..).zip(devices).map(device).collect(),
            chunks: Vec::new(),
            end: RESERVED_BYTES,
            is_small,
        }
    }

    /// Adds all chunks, in the places that they have after mkfs.btrfs. `None` where they do not fit.
    fn filled(mut self, choice: &Choice) -> Option<Self> {
        let mut wanted = vec![choice.system, choice.metadata];
        wanted.extend(choice.data);
        if !self.is_small {
            // Chunks of one copy come first; all others after their places, which then stay free.
            let mut at = RESERVED_BYTES;
            let mut others = Vec::new();
            for (flags, len_bytes) in wanted.into_iter().zip(FIRST_BYTES) {
                if Profile::of(flags) == Some(Profile::Single) {
                    self.add_first(flags, at, len_bytes)?;
                } else {
                    others.push(flags);
                }
                at += len_bytes;
            }
            self.devices.first_mut()?.next = at;
            self.end = at;
            wanted = others;
        }
        for flags in wanted {
            self.add(flags, choice.node_bytes)?;
        }
        let fits = |device: &NewDevice| device.next <= device.total_bytes;
        let fits = self.devices.iter().all(fits) && fit_sys_chunk_array(&self.system());
        fits.then_some(self)
    }

    /// The chunks that the superblock lists.
    pub(super) fn system(&self) -> Vec<ChunkItem> {
        let chunks = self.chunks.iter();
        let system = chunks.filter(|chunk| chunk.flags.contains(BlockGroupFlags::SYSTEM));
        system.cloned().collect()
    }

    /// Adds a chunk of one copy to the first device, at the same address there.
    fn add_first(&mut self, flags: BlockGroupFlags, start: u64, len_bytes: u64) -> Option<()> {
        let device = self.devices.first_mut()?;
        device.used_bytes += len_bytes;
        let stripe = Stripe {
            device: device.id,
            offset: DeviceAddr(start),
            device_uuid: device.uuid,
        };
        let mut chunk = chunk(flags, start, len_bytes, vec![stripe])?;
        if flags.contains(BlockGroupFlags::SYSTEM) {
            // As mkfs.btrfs has it in the very first chunk. Nothing reads these fields of a chunk of one copy.
            chunk.io = (SECTOR_BYTES, SECTOR_BYTES);
            chunk.sub_stripes = 0;
        }
        self.chunks.push(chunk);
        Some(())
    }

    /// Adds a chunk after all others.
    fn add(&mut self, flags: BlockGroupFlags, node_bytes: u32) -> Option<()> {
        let profile = Profile::of(flags)?;
        let shape = ChunkShape::of(profile);
        let free = |device: &NewDevice| device.total_bytes.saturating_sub(device.next);
        let devices_max = shape.devices_max_of(flags, node_bytes);
        let count = self.devices.len().min(devices_max);
        let count = count - count % shape.step;
        let stripe_count = count * shape.on_device;
        let data = data_stripes(profile, stripe_count);
        let wanted = self.stripe_bytes(flags, stripe_count as u64, data, node_bytes);
        // As mkfs.btrfs: the last devices that have enough; where those are too few, the ones with the most.
        let enough = wanted.saturating_mul(shape.on_device as u64);
        let mut order: Vec<_> = (0..self.devices.len()).rev().collect();
        order.sort_by_key(|&index| {
            let free = self.devices.get(index).map_or(0, free);
            std::cmp::Reverse(free.min(enough))
        });
        order.truncate(count);
        order.sort_unstable();
        let on_device = shape.on_device as u64;
        let available = order.iter().filter_map(|&index| self.devices.get(index));
        let available = available.map(free).min()? / on_device;
        let stripe_bytes = wanted.min(available - available % STRIPE_BYTES);
        if stripe_bytes < self.stripe_bytes_min(flags, node_bytes) {
            return None;
        }
        let mut stripes = Vec::with_capacity(stripe_count);
        for index in order {
            let device = self.devices.get_mut(index)?;
            for _ in 0..on_device {
                stripes.push(Stripe {
                    device: device.id,
                    offset: DeviceAddr(device.next),
                    device_uuid: device.uuid,
                });
                device.next += stripe_bytes;
                device.used_bytes += stripe_bytes;
            }
        }
        let len_bytes = stripe_bytes * data;
        self.chunks
            .push(chunk(flags, self.end, len_bytes, stripes)?);
        self.end += len_bytes;
        Some(())
    }

    /// The length that a stripe is to have, if there is space.
    fn stripe_bytes(
        &self,
        flags: BlockGroupFlags,
        stripes: u64,
        data: u64,
        node_bytes: u32,
    ) -> u64 {
        let least = self.stripe_bytes_min(flags, node_bytes);
        let total = self.devices.iter().map(|device| device.total_bytes);
        let total = total.fold(0, u64::saturating_add);
        let (stripe_max, chunk_max) = if flags.contains(BlockGroupFlags::SYSTEM) {
            (least, u64::MAX)
        } else if flags.contains(BlockGroupFlags::METADATA) && total > LARGE_BYTES {
            (GIB, GIB)
        } else if flags.contains(BlockGroupFlags::METADATA) {
            (256 * MIB, 256 * MIB)
        } else {
            (GIB, 10 * GIB)
        };
        let chunk_max = chunk_max.min(total / 10);
        let mut stripe_bytes = stripe_max;
        if stripe_bytes.saturating_mul(data) > chunk_max {
            stripe_bytes = chunk_max / stripes;
            stripe_bytes -= stripe_bytes % STRIPE_BYTES;
        }
        stripe_bytes.max(least)
    }

    /// The shortest stripe that is made.
    fn stripe_bytes_min(&self, flags: BlockGroupFlags, node_bytes: u32) -> u64 {
        let blocks = |count: u64| count * u64::from(node_bytes);
        match (
            flags.contains(BlockGroupFlags::SYSTEM),
            flags.contains(BlockGroupFlags::DATA),
            self.is_small,
        ) {
            (true, _, false) => SYSTEM_BYTES,
            (true, _, true) => SMALL_SYSTEM_BYTES.max(blocks(SMALL_SYSTEM_BLOCKS)),
            (false, true, false) => DATA_BYTES_MIN,
            (false, false, false) => METADATA_BYTES_MIN,
            (false, _, true) if flags.contains(BlockGroupFlags::METADATA) => {
                SMALL_METADATA_BYTES.max(blocks(SMALL_METADATA_BLOCKS))
            }
            (false, _, true) => SMALL_DATA_BYTES,
        }
    }
}

/// How many stripes of a chunk hold data that is not in another one.
fn data_stripes(profile: Profile, stripes: usize) -> u64 {
    let parity = usize::from(profile.parity());
    let data = stripes.saturating_sub(parity) / usize::from(profile.copies());
    data.max(1) as u64
}

fn chunk(
    flags: BlockGroupFlags,
    start: u64,
    len_bytes: u64,
    stripes: Vec<Stripe>,
) -> Option<ChunkItem> {
    let profile = Profile::of(flags)?;
    let io_bytes = u32::try_from(STRIPE_BYTES).ok()?;
    Some(ChunkItem {
        start: LogicalAddr(start),
        len_bytes,
        owner: TreeId::EXTENT.0,
        flags,
        profile,
        io: (io_bytes, io_bytes),
        sector_bytes: SECTOR_BYTES,
        sub_stripes: if profile == Profile::Raid10 { 2 } else { 1 },
        stripes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::MkfsOptions;

    fn layout(sizes_mib: &[u64], data: Option<Profile>, metadata: Option<Profile>) -> Layout {
        let devices: Vec<_> = sizes_mib
            .iter()
            .map(|size| (size * MIB, Uuid::from_u128(7)))
            .collect();
        let options = MkfsOptions {
            data,
            metadata,
            ..MkfsOptions::new(Uuid::from_u128(1))
        };
        let choice = options.choose(devices.len()).unwrap();
        Layout::choose(&devices, &choice).unwrap()
    }

    fn spans(layout: &Layout) -> Vec<(u64, u64)> {
        let chunks = layout.chunks.iter();
        chunks
            .map(|chunk| (chunk.start.0, chunk.len_bytes))
            .collect()
    }

    #[test]
    fn chunks_of_one_device_lie_where_mkfs_btrfs_has_them() {
        let made = layout(&[1024], None, None);
        let expected = [
            (13_631_488, 8_388_608),
            (22_020_096, 8_388_608),
            (30_408_704, 53_673_984),
        ];
        assert_eq!(spans(&made), expected);
        assert_eq!(made.devices[0].used_bytes, 132_513_792);
        let single = layout(&[1024], None, Some(Profile::Single));
        let expected = [
            (1_048_576, 4_194_304),
            (5_242_880, 8_388_608),
            (13_631_488, 8_388_608),
        ];
        assert_eq!(spans(&single), expected);
    }

    #[test]
    fn striped_metadata_takes_a_tenth_over_all_devices() {
        let made = layout(&[1024; 4], Some(Profile::Raid1), Some(Profile::Raid10));
        let expected = [
            (22_020_096, 16_777_216),
            (38_797_312, 134_217_728),
            (173_015_040, 214_695_936),
        ];
        assert_eq!(spans(&made), expected);
    }

    #[test]
    fn striped_system_chunk_fits_into_the_superblock() {
        for profile in [
            Profile::Raid0,
            Profile::Raid10,
            Profile::Raid5,
            Profile::Raid6,
        ] {
            let made = layout(&[1024; 70], Some(profile), Some(profile));
            let counts: Vec<_> = made.chunks.iter().map(|it| it.stripes.len()).collect();
            assert_eq!(counts, [58, 70, 70]);
        }
    }

    #[test]
    fn small_devices_get_small_chunks() {
        let made = layout(&[24], None, None);
        let ends = made.devices.iter().map(|device| device.next);
        assert!(ends.max().unwrap() <= 24 * MIB);
        assert_eq!(made.chunks.len(), 3);
        let devices = [(8 * MIB, Uuid::from_u128(7))];
        let choice = MkfsOptions::new(Uuid::from_u128(1)).choose(1).unwrap();
        Layout::choose(&devices, &choice).unwrap_err();
    }

    #[test]
    fn profiles_for_more_devices_are_refused() {
        let devices = [(1 << 30, Uuid::from_u128(7))];
        let options = MkfsOptions {
            data: Some(Profile::Raid1C3),
            ..MkfsOptions::new(Uuid::from_u128(1))
        };
        let choice = options.choose(1).unwrap();
        let error = Layout::choose(&devices, &choice).unwrap_err();
        assert!(
            error.to_string().contains("RAID1C3 on 1 devices"),
            "{error}"
        );
    }
}
