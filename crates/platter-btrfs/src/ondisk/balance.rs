//! A balance that was interrupted. Spec: `btrfs/balance`.

use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Filters and target of one kind of chunks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskBalanceArgs {
    /// `profiles`.
    pub profiles: Le64,
    /// `usage`, or `usage_min` and `usage_max`.
    pub usage: Le64,
    /// `devid`.
    pub device: Le64,
    /// `pstart`, `pend`.
    pub device_range: [Le64; 2],
    /// `vstart`, `vend`.
    pub logical_range: [Le64; 2],
    /// `target`.
    pub target: Le64,
    /// `flags`.
    pub flags: Le64,
    /// `limit`, or `limit_min` and `limit_max`.
    pub limit: Le64,
    /// `stripes_min`, `stripes_max`.
    pub stripes: [Le32; 2],
    /// `unused`.
    pub unused: [Le64; 6],
}

/// The item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskBalance {
    /// `flags`.
    pub flags: Le64,
    /// `data`.
    pub data: DiskBalanceArgs,
    /// `meta`.
    pub metadata: DiskBalanceArgs,
    /// `sys`.
    pub system: DiskBalanceArgs,
    /// `unused`.
    pub unused: [Le64; 4],
}

const _: () = assert!(size_of::<DiskBalanceArgs>() == 136);
const _: () = assert!(size_of::<DiskBalance>() == 448);

rules! {
    /// The rules of a balance item.
    pub enum BalanceRule of "balance item" {
        /// It has the size of the structure.
        Size => "invalid item size",
    }
}

/// A balance that was interrupted: its arguments as they are stored, for the one that resumes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance(DiskBalance);

impl Balance {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<BalanceRule>> {
        let disk = DiskBalance::read_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, BalanceRule::Size))?;
        Ok(Self(disk))
    }

    /// The bytes of the item.
    #[must_use]
    pub fn encode(&self) -> DiskBalance {
        self.0
    }

    /// Which kinds of chunks are balanced, and whether by force.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.0.flags.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_survives_encoding() {
        let mut bytes = [7; 448];
        bytes[1..8].fill(0);
        let balance = Balance::decode(&bytes, Locus::UNKNOWN).unwrap();
        assert_eq!(balance.flags(), 7);
        assert_eq!(balance.encode().as_bytes(), bytes);
        let corrupt = Balance::decode(&bytes[1..], Locus::UNKNOWN).unwrap_err();
        assert_eq!(corrupt.rule, BalanceRule::Size);
    }
}
