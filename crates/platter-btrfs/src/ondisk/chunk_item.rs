//! A chunk item: a range of logical addresses and the stripes that hold it. Spec: `btrfs/chunk`.

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::types::{DeviceAddr, DeviceId, LogicalAddr};

/// A chunk item, without its stripes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskChunk {
    /// `length`.
    pub len_bytes: Le64,
    /// `owner`.
    pub owner: Le64,
    /// `stripe_len`.
    pub stripe_len: Le64,
    /// `type`.
    pub flags: Le64,
    /// `io_align`.
    pub io_align: Le32,
    /// `io_width`.
    pub io_width: Le32,
    /// `sector_size`.
    pub sector_bytes: Le32,
    /// `num_stripes`.
    pub stripe_count: Le16,
    /// `sub_stripes`.
    pub sub_stripes: Le16,
}

/// One stripe of a chunk.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskStripe {
    /// `devid`.
    pub device: Le64,
    /// `offset`.
    pub offset: Le64,
    /// `dev_uuid`.
    pub device_uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskChunk>() == 48);
const _: () = assert!(size_of::<DiskStripe>() == 32);

bitflags! {
    /// `type` of a chunk and `flags` of a block group: what it holds, and its profile.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct BlockGroupFlags: u64 {
        /// Data.
        const DATA = 1 << 0;
        /// The chunk tree.
        const SYSTEM = 1 << 1;
        /// Metadata.
        const METADATA = 1 << 2;
        /// Striped over devices.
        const RAID0 = 1 << 3;
        /// Two copies on two devices.
        const RAID1 = 1 << 4;
        /// Two copies on one device.
        const DUP = 1 << 5;
        /// Two copies, striped.
        const RAID10 = 1 << 6;
        /// One parity stripe.
        const RAID5 = 1 << 7;
        /// Two parity stripes.
        const RAID6 = 1 << 8;
        /// Three copies on three devices.
        const RAID1C3 = 1 << 9;
        /// Four copies on four devices.
        const RAID1C4 = 1 << 10;
        /// The bits that say what is held.
        const TYPES = Self::DATA.bits() | Self::SYSTEM.bits() | Self::METADATA.bits();
        /// The bits of profiles.
        const PROFILES = Self::RAID0.bits() | Self::RAID1.bits() | Self::DUP.bits()
            | Self::RAID10.bits() | Self::RAID5.bits() | Self::RAID6.bits()
            | Self::RAID1C3.bits() | Self::RAID1C4.bits();
    }
}

/// How a chunk's bytes are spread over its stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Profile {
    /// One copy on one device.
    Single,
    /// Two copies on one device.
    Dup,
    /// Striped over all devices.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1C3,
    /// Four copies on four devices.
    Raid1C4,
    /// Pairs of copies, striped over the pairs.
    Raid10,
    /// Striped, with one parity stripe in each row.
    Raid5,
    /// Striped, with two parity stripes in each row.
    Raid6,
}

/// Profiles with their flag and name, but for the one without a flag.
const PROFILES: [(Profile, BlockGroupFlags, &str); 8] = [
    (Profile::Dup, BlockGroupFlags::DUP, "DUP"),
    (Profile::Raid0, BlockGroupFlags::RAID0, "RAID0"),
    (Profile::Raid1, BlockGroupFlags::RAID1, "RAID1"),
    (Profile::Raid1C3, BlockGroupFlags::RAID1C3, "RAID1C3"),
    (Profile::Raid1C4, BlockGroupFlags::RAID1C4, "RAID1C4"),
    (Profile::Raid10, BlockGroupFlags::RAID10, "RAID10"),
    (Profile::Raid5, BlockGroupFlags::RAID5, "RAID5"),
    (Profile::Raid6, BlockGroupFlags::RAID6, "RAID6"),
];

impl Profile {
    /// The profile that the flags name; `None` if they name several.
    #[must_use]
    pub fn of(flags: BlockGroupFlags) -> Option<Self> {
        let named = flags.intersection(BlockGroupFlags::PROFILES);
        if named.is_empty() {
            return Some(Self::Single);
        }
        let found = PROFILES.iter().find(|(_, flag, _)| *flag == named);
        found.map(|(profile, _, _)| *profile)
    }

    /// Its flag.
    #[must_use]
    pub fn flags(self) -> BlockGroupFlags {
        let found = PROFILES.iter().find(|(profile, _, _)| *profile == self);
        found.map_or(BlockGroupFlags::empty(), |(_, flag, _)| *flag)
    }

    /// Its name in btrfs-progs.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = PROFILES.iter().find(|(profile, _, _)| *profile == self);
        found.map_or("single", |(_, _, name)| name)
    }

    /// How many whole copies there are; 1 where parity replaces copies.
    #[must_use]
    pub fn copies(self) -> u16 {
        match self {
            Self::Single | Self::Raid0 | Self::Raid5 | Self::Raid6 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1C3 => 3,
            Self::Raid1C4 => 4,
        }
    }

    /// How many stripes of each row are parity.
    #[must_use]
    pub fn parity(self) -> u16 {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            Self::Single
            | Self::Dup
            | Self::Raid0
            | Self::Raid1
            | Self::Raid1C3
            | Self::Raid1C4
            | Self::Raid10 => 0,
        }
    }

    /// How many devices may be missing without loss.
    #[must_use]
    pub fn tolerated_failures(self) -> u16 {
        match self {
            Self::Single | Self::Dup | Self::Raid0 => 0,
            Self::Raid1 | Self::Raid10 | Self::Raid5 => 1,
            Self::Raid1C3 | Self::Raid6 => 2,
            Self::Raid1C4 => 3,
        }
    }

    fn allows(self, stripes: u16, sub_stripes: u16) -> bool {
        match self {
            Self::Single => stripes == 1,
            Self::Dup | Self::Raid1 => stripes == 2,
            Self::Raid1C3 => stripes == 3,
            Self::Raid1C4 => stripes == 4,
            Self::Raid0 => stripes >= 1,
            Self::Raid10 => stripes >= 2 && sub_stripes == 2 && stripes.is_multiple_of(2),
            Self::Raid5 => stripes >= 2,
            Self::Raid6 => stripes >= 3,
        }
    }
}

/// The only stripe length there is.
pub const STRIPE_BYTES: u64 = 64 << 10;

rules! {
    /// The rules of a chunk item.
    pub enum ChunkRule of "chunk item" {
        /// It has the size that its number of stripes asks for.
        Size => "invalid item size",
        /// There is a stripe.
        NoStripes => "num_stripes is zero",
        /// `num_stripes` and `sub_stripes` fit the profile.
        StripeCount => "num_stripes or sub_stripes does not fit the profile",
        /// The logical address is a multiple of the sector size.
        Alignment => "logical address is not aligned to the sector size",
        /// The length is a multiple of the sector size, not zero, and within the address space.
        Length => "invalid length",
        /// `sector_size` is that of the filesystem.
        SectorSize => "sector_size is not that of the superblock",
        /// `stripe_len` is 64 KiB.
        StripeLength => "stripe_len is not 65536",
        /// There is one profile, and no unknown flag.
        Profile => "more than one profile, or unknown type bits",
        /// It holds data, metadata or the chunk tree; data and the chunk tree never together.
        Kind => "invalid block group type",
        /// Each stripe ends within the address space of a device.
        StripeOffset => "stripe ends beyond the largest device offset",
    }
}

/// A stripe: where one device holds its part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// The device.
    pub device: DeviceId,
    /// Where the part begins.
    pub offset: DeviceAddr,
    /// The device's UUID.
    pub device_uuid: Uuid,
}

/// A validated chunk item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkItem {
    /// The first logical address, from the key.
    pub start: LogicalAddr,
    /// The length of the logical range.
    pub len_bytes: u64,
    /// `owner`.
    pub owner: u64,
    /// What it holds, and how.
    pub flags: BlockGroupFlags,
    /// The profile that the flags name.
    pub profile: Profile,
    /// `io_align` and `io_width`.
    pub io: (u32, u32),
    /// `sector_size`.
    pub sector_bytes: u32,
    /// `sub_stripes`.
    pub sub_stripes: u16,
    /// Its stripes: at least one, and as many as the profile allows.
    pub stripes: Vec<Stripe>,
}

impl ChunkItem {
    /// Decodes the chunk at `start`. `bytes` is the whole item.
    pub fn decode(
        bytes: &[u8],
        start: LogicalAddr,
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<ChunkRule>> {
        match Self::decode_prefix(bytes, start, sector_bytes, locus)? {
            (chunk, []) => Ok(chunk),
            (_, _) => Err(Corrupt::new(locus, ChunkRule::Size)),
        }
    }

    /// Decodes the chunk that `bytes` begin with. Returns what follows it.
    pub fn decode_prefix(
        bytes: &[u8],
        start: LogicalAddr,
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<(Self, &[u8]), Corrupt<ChunkRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let (disk, rest) =
            DiskChunk::ref_from_prefix(bytes).map_err(|_| broken(ChunkRule::Size))?;
        let count = usize::from(disk.stripe_count.get());
        let (stripes, rest) = <[DiskStripe]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| broken(ChunkRule::Size))?;
        let flags = BlockGroupFlags::from_bits_retain(disk.flags.get());
        let profile = Profile::of(flags).filter(|_| BlockGroupFlags::all().contains(flags));
        let chunk = Self {
            start,
            len_bytes: disk.len_bytes.get(),
            owner: disk.owner.get(),
            flags,
            profile: profile.ok_or(broken(ChunkRule::Profile))?,
            io: (disk.io_align.get(), disk.io_width.get()),
            sector_bytes: disk.sector_bytes.get(),
            sub_stripes: disk.sub_stripes.get(),
            stripes: stripes.iter().map(Stripe::decode).collect(),
        };
        if disk.stripe_len.get() != STRIPE_BYTES {
            return Err(broken(ChunkRule::StripeLength));
        }
        chunk.validate(sector_bytes).map_err(broken)?;
        Ok((chunk, rest))
    }

    fn validate(&self, sector_bytes: u32) -> Result<(), ChunkRule> {
        let stripe_count = u16::try_from(self.stripes.len()).unwrap_or(u16::MAX);
        if stripe_count == 0 {
            return Err(ChunkRule::NoStripes);
        }
        if !self.profile.allows(stripe_count, self.sub_stripes) {
            return Err(ChunkRule::StripeCount);
        }
        let is_aligned = |number: u64| number.is_multiple_of(u64::from(sector_bytes));
        if !is_aligned(self.start.0) {
            return Err(ChunkRule::Alignment);
        }
        let end = self.start.checked_add(self.len_bytes);
        if self.len_bytes == 0 || !is_aligned(self.len_bytes) || end.is_none() {
            return Err(ChunkRule::Length);
        }
        if self.sector_bytes != sector_bytes {
            return Err(ChunkRule::SectorSize);
        }
        let kinds = self.flags.intersection(BlockGroupFlags::TYPES);
        let is_system = kinds.contains(BlockGroupFlags::SYSTEM);
        if kinds.is_empty() || (is_system && kinds != BlockGroupFlags::SYSTEM) {
            return Err(ChunkRule::Kind);
        }
        let len_bytes = self.stripe_len_bytes();
        let ends = |stripe: &Stripe| stripe.offset.0.checked_add(len_bytes).is_some();
        if !self.stripes.iter().all(ends) {
            return Err(ChunkRule::StripeOffset);
        }
        Ok(())
    }

    /// How many bytes each stripe has on its device.
    #[must_use]
    pub fn stripe_len_bytes(&self) -> u64 {
        let stripes = u16::try_from(self.stripes.len()).unwrap_or(u16::MAX);
        let data = match self.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1C3
            | Profile::Raid1C4 => 1,
            Profile::Raid0 => stripes,
            Profile::Raid10 => stripes / 2,
            Profile::Raid5 | Profile::Raid6 => stripes.saturating_sub(self.profile.parity()),
        };
        self.len_bytes.div_ceil(u64::from(data.max(1)))
    }

    /// Encodes the item, its stripes included.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (io_align, io_width) = self.io;
        let disk = DiskChunk {
            len_bytes: self.len_bytes.into(),
            owner: self.owner.into(),
            stripe_len: STRIPE_BYTES.into(),
            flags: self.flags.bits().into(),
            io_align: io_align.into(),
            io_width: io_width.into(),
            sector_bytes: self.sector_bytes.into(),
            stripe_count: u16::try_from(self.stripes.len()).unwrap_or(u16::MAX).into(),
            sub_stripes: self.sub_stripes.into(),
        };
        let mut bytes = disk.as_bytes().to_vec();
        for stripe in &self.stripes {
            bytes.extend_from_slice(stripe.encode().as_bytes());
        }
        bytes
    }
}

impl Stripe {
    fn decode(disk: &DiskStripe) -> Self {
        Self {
            device: DeviceId(disk.device.get()),
            offset: DeviceAddr(disk.offset.get()),
            device_uuid: Uuid::from_bytes(disk.device_uuid),
        }
    }

    fn encode(&self) -> DiskStripe {
        DiskStripe {
            device: self.device.0.into(),
            offset: self.offset.0.into(),
            device_uuid: self.device_uuid.into_bytes(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A chunk of 1 MiB for each stripe of data, on devices 1, 2, ...
    pub(crate) fn sample(start: u64, profile: Profile, stripes: u16) -> ChunkItem {
        let found = PROFILES.iter().find(|(known, _, _)| *known == profile);
        let flags = found.map_or(BlockGroupFlags::empty(), |(_, flag, _)| *flag);
        let device = |index| u64::from(if profile == Profile::Dup { 0 } else { index }) + 1;
        let stripe = |index: u16| Stripe {
            device: DeviceId(device(index)),
            offset: DeviceAddr((1 << 20) * (1 + u64::from(index))),
            device_uuid: Uuid::from_u128(device(index).into()),
        };
        let data = match profile {
            Profile::Raid0 => stripes,
            Profile::Raid10 => stripes / 2,
            Profile::Raid5 => stripes - 1,
            Profile::Raid6 => stripes - 2,
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1C3
            | Profile::Raid1C4 => 1,
        };
        ChunkItem {
            start: LogicalAddr(start),
            len_bytes: u64::from(data) << 20,
            owner: 2,
            flags: flags | BlockGroupFlags::DATA,
            profile,
            io: (65536, 65536),
            sector_bytes: 4096,
            sub_stripes: if profile == Profile::Raid10 { 2 } else { 1 },
            stripes: (0..stripes).map(stripe).collect(),
        }
    }

    fn decode(bytes: &[u8], start: u64) -> Result<ChunkItem, ChunkRule> {
        let result = ChunkItem::decode(bytes, LogicalAddr(start), 4096, Locus::UNKNOWN);
        result.map_err(|corrupt| corrupt.rule)
    }

    #[test]
    fn chunks_of_all_profiles_survive_encoding() {
        for (profile, stripes) in [
            (Profile::Single, 1),
            (Profile::Dup, 2),
            (Profile::Raid0, 3),
            (Profile::Raid1, 2),
            (Profile::Raid1C3, 3),
            (Profile::Raid1C4, 4),
            (Profile::Raid10, 4),
            (Profile::Raid5, 3),
            (Profile::Raid6, 5),
        ] {
            let chunk = sample(1 << 30, profile, stripes);
            assert_eq!(decode(&chunk.encode(), 1 << 30), Ok(chunk.clone()));
            assert_eq!(chunk.stripe_len_bytes(), 1 << 20);
            assert_eq!(Profile::of(chunk.flags), Some(profile));
        }
    }

    #[test]
    fn broken_chunks_are_refused() {
        let change = |change: &dyn Fn(&mut ChunkItem)| {
            let mut chunk = sample(1 << 30, Profile::Raid1, 2);
            change(&mut chunk);
            decode(&chunk.encode(), chunk.start.0).unwrap_err()
        };
        assert_eq!(change(&|chunk| chunk.stripes.clear()), ChunkRule::NoStripes);
        let rule = change(&|chunk| chunk.stripes.truncate(1));
        assert_eq!(rule, ChunkRule::StripeCount);
        assert_eq!(change(&|chunk| chunk.start.0 += 1), ChunkRule::Alignment);
        assert_eq!(change(&|chunk| chunk.len_bytes = 0), ChunkRule::Length);
        assert_eq!(change(&|chunk| chunk.len_bytes += 1), ChunkRule::Length);
        let rule = change(&|chunk| chunk.len_bytes = !4095);
        assert_eq!(rule, ChunkRule::Length);
        let rule = change(&|chunk| chunk.sector_bytes = 512);
        assert_eq!(rule, ChunkRule::SectorSize);
        let rule = change(&|chunk| chunk.flags |= BlockGroupFlags::DUP);
        assert_eq!(rule, ChunkRule::Profile);
        let rule = change(&|chunk| chunk.flags = BlockGroupFlags::RAID1);
        assert_eq!(rule, ChunkRule::Kind);
        let rule = change(&|chunk| chunk.flags |= BlockGroupFlags::SYSTEM);
        assert_eq!(rule, ChunkRule::Kind);
        let rule = change(&|chunk| chunk.stripes[1].offset.0 = u64::MAX - 4095);
        assert_eq!(rule, ChunkRule::StripeOffset);
        let bytes = sample(0, Profile::Single, 1).encode();
        assert_eq!(decode(&bytes[1..], 0), Err(ChunkRule::Size));
        assert_eq!(
            decode(&[&bytes[..], &[0]].concat(), 0),
            Err(ChunkRule::Size)
        );
        let mut disk = DiskChunk::read_from_prefix(&bytes).unwrap().0;
        disk.stripe_len.set(4096);
        let bytes = [disk.as_bytes(), &bytes[48..]].concat();
        assert_eq!(decode(&bytes, 0), Err(ChunkRule::StripeLength));
    }
}
