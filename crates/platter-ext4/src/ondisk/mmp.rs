//! The multiple mount protection block, which records the host that has the filesystem mounted for
//! writing. Spec: `ext4/mmp`.

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify, rules};
use platter_vfs::Timestamp;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::structure::Structure;

/// `mmp_magic`.
const MMP_MAGIC: u32 = 0x004d_4d50;
/// `mmp_seq` of an unmounted filesystem.
const SEQUENCE_CLEAN: u32 = 0xff4d_4d50;
/// `mmp_seq` while a check runs.
const SEQUENCE_CHECKING: u32 = 0xe24d_4d50;
/// The largest `mmp_seq` of a mounted filesystem.
const SEQUENCE_MOUNTED_MAX: u32 = 0xe24d_4d4f;

/// The block as stored. Spec: `struct mmp_struct`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskMmp {
    /// `mmp_magic`.
    pub magic: Le32,
    /// `mmp_seq`.
    pub sequence: Le32,
    /// `mmp_time`: last update.
    pub time: Le64,
    /// `mmp_nodename`: the host that updated it last.
    pub node_name: [u8; 64],
    /// `mmp_bdevname`: the device name on that host.
    pub device_name: [u8; 32],
    /// `mmp_check_interval`: seconds.
    pub check_interval: Le16,
    /// `mmp_pad1`.
    pub padding: Le16,
    /// `mmp_pad2`.
    pub reserved: [Le32; 226],
    /// `mmp_checksum`.
    pub checksum: Le32,
}

const _: () = assert!(size_of::<DiskMmp>() == 1024);
const _: () = assert!(offset_of!(DiskMmp, check_interval) == 0x70);
const _: () = assert!(offset_of!(DiskMmp, checksum) == 0x3fc);

rules! {
    /// The rules of the block.
    pub enum MmpRule of "multiple mount protection block" {
        /// `mmp_magic`.
        Magic => "invalid MMP magic",
        /// `mmp_checksum`.
        Checksum => "checksum does not match",
        /// `s_mmp_block` is within the filesystem.
        Place => "invalid MMP block",
    }
}

/// The use of the filesystem that the block records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MmpUse {
    /// Not in use.
    Clean,
    /// Being checked.
    Checking,
    /// Mounted, or mounted when its host crashed.
    Mounted,
}

/// Returns the use that a verified block records.
#[must_use]
pub fn decode(bytes: &[u8]) -> MmpUse {
    let sequence = DiskMmp::ref_from_prefix(bytes).map_or(0, |(disk, _)| disk.sequence.get());
    match sequence {
        SEQUENCE_CLEAN => MmpUse::Clean,
        SEQUENCE_CHECKING => MmpUse::Checking,
        _ => MmpUse::Mounted,
    }
}

impl DiskMmp {
    /// Marks the filesystem as mounted, with a sequence number derived from `random`.
    pub fn mark_mounted(&mut self, random: u64) {
        let number = random.checked_rem(u64::from(SEQUENCE_MOUNTED_MAX));
        let number = u32::try_from(number.unwrap_or(0)).unwrap_or(0);
        self.sequence = number.saturating_add(1).into();
    }

    /// Increments the sequence number of a mounted filesystem.
    pub fn mark_again(&mut self) {
        let next = self.sequence.get().saturating_add(1);
        self.sequence = if next > SEQUENCE_MOUNTED_MAX {
            1.into()
        } else {
            next.into()
        };
    }

    /// Marks the filesystem as unmounted.
    pub fn mark_clean(&mut self) {
        self.sequence = SEQUENCE_CLEAN.into();
    }

    /// Stores host, device and time of the update.
    pub fn sign(&mut self, node_name: &[u8], device_name: &[u8], now: Timestamp) {
        self.time = u64::try_from(now.seconds).unwrap_or(0).into();
        fill(&mut self.node_name, node_name);
        fill(&mut self.device_name, device_name);
    }
}

/// Copies a name into its field, truncated or padded with zeros.
fn fill(field: &mut [u8], name: &[u8]) {
    field.fill(0);
    for (to, &from) in field.iter_mut().zip(name) {
        *to = from;
    }
}

/// The verifier of the block.
#[derive(Debug, Clone, Copy)]
pub struct MmpRules {
    /// Seed of metadata checksums; `None` without `metadata_csum`.
    pub checksum_seed: Option<u32>,
}

impl MmpRules {
    fn check(self, bytes: &[u8]) -> Result<(), MmpRule> {
        let (disk, _) = DiskMmp::ref_from_prefix(bytes).map_err(|_| MmpRule::Magic)?;
        if disk.magic.get() != MMP_MAGIC {
            return Err(MmpRule::Magic);
        }
        match self.checksum_seed {
            Some(seed) if disk.checksum.get() != disk.expected_checksum(seed) => {
                Err(MmpRule::Checksum)
            }
            _ => Ok(()),
        }
    }
}

impl DiskMmp {
    fn expected_checksum(&self, seed: u32) -> u32 {
        let bytes = self.as_bytes();
        let covered = bytes.get(..offset_of!(Self, checksum)).unwrap_or(bytes);
        crc32c(seed, covered)
    }
}

impl Verify for MmpRules {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: Structure::Mmp as u32,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let corrupt = |rule| Corrupt::new(Locus::block(block), rule).into();
        self.check(bytes).map_err(corrupt)
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        if let (Some(seed), Ok((disk, _))) = (self.checksum_seed, DiskMmp::mut_from_prefix(bytes)) {
            disk.checksum.set(disk.expected_checksum(seed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEALED: MmpRules = MmpRules {
        checksum_seed: Some(5),
    };

    fn block(sequence: u32) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let (disk, _) = DiskMmp::mut_from_prefix(&mut bytes).unwrap();
        disk.magic.set(MMP_MAGIC);
        disk.sequence.set(sequence);
        SEALED.seal(9, &mut bytes);
        bytes
    }

    #[test]
    fn mount_sequence_differs_from_clean_and_checking() {
        let mut bytes = block(1);
        for random in [0, u64::from(SEQUENCE_MOUNTED_MAX) - 1, u64::MAX] {
            let (disk, _) = DiskMmp::mut_from_prefix(&mut bytes).unwrap();
            disk.mark_mounted(random);
            disk.mark_again();
            assert!((1..=SEQUENCE_MOUNTED_MAX).contains(&disk.sequence.get()));
            disk.sign(&[b'n'; 70], b"disk", Timestamp::default());
            assert_eq!(disk.node_name[63], b'n');
            assert_eq!(&disk.device_name[..5], b"disk\0");
            assert_eq!(decode(&bytes), MmpUse::Mounted);
        }
        DiskMmp::mut_from_prefix(&mut bytes).unwrap().0.mark_clean();
        assert_eq!(decode(&bytes), MmpUse::Clean);
    }

    #[test]
    fn sequence_determines_the_use() {
        SEALED.verify(9, &block(1)).unwrap();
        assert_eq!(decode(&block(SEQUENCE_CLEAN)), MmpUse::Clean);
        assert_eq!(decode(&block(SEQUENCE_CHECKING)), MmpUse::Checking);
        assert_eq!(decode(&block(1)), MmpUse::Mounted);
    }

    #[test]
    fn invalid_mmp_block_is_corrupt() {
        let mut bytes = block(1);
        bytes[4] ^= 1;
        assert_eq!(SEALED.check(&bytes), Err(MmpRule::Checksum));
        bytes[0] ^= 1;
        assert_eq!(SEALED.check(&bytes), Err(MmpRule::Magic));
        assert_eq!(SEALED.check(&[0; 8]), Err(MmpRule::Magic));
    }
}
