//! Error counts of a device, in the device tree. Spec: `btrfs/dev_stats`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Error counts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDevStats {
    /// `values`, in the order of [`DevStats`].
    pub values: [Le64; 5],
}

const _: () = assert!(size_of::<DiskDevStats>() == 40);

rules! {
    /// The rules of a device's error counts.
    pub enum DevStatsRule of "device stats item" {
        /// It has at least the size of the structure, which may grow.
        Size => "invalid item size",
    }
}

/// Error counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DevStats {
    /// Failed writes.
    pub write_errors: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed flushes.
    pub flush_errors: u64,
    /// Checksums that did not match.
    pub corruption_errors: u64,
    /// Blocks of a wrong generation.
    pub generation_errors: u64,
}

impl DevStats {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<DevStatsRule>> {
        let disk = DiskDevStats::ref_from_prefix(bytes);
        let (disk, _) = disk.map_err(|_| Corrupt::new(locus, DevStatsRule::Size))?;
        let [write, read, flush, corruption, generation] = disk.values.map(Le64::get);
        Ok(Self {
            write_errors: write,
            read_errors: read,
            flush_errors: flush,
            corruption_errors: corruption,
            generation_errors: generation,
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskDevStats {
        let values = [
            self.write_errors,
            self.read_errors,
            self.flush_errors,
            self.corruption_errors,
            self.generation_errors,
        ];
        DiskDevStats {
            values: values.map(Le64::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_survives_encoding() {
        let stats = DevStats {
            write_errors: 1,
            generation_errors: 5,
            ..DevStats::default()
        };
        let disk = stats.encode();
        assert_eq!(DevStats::decode(disk.as_bytes(), Locus::UNKNOWN), Ok(stats));
        let corrupt = DevStats::decode(&[0; 39], Locus::UNKNOWN).unwrap_err();
        assert_eq!(corrupt.rule, DevStatsRule::Size);
    }
}
