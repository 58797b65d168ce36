//! fs-verity: the item that describes a file's descriptor, and the descriptor. Spec: `btrfs/verity`,
//! `linux/fsverity`.

use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use sha2::{Digest as _, Sha256, Sha512};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest descriptor, with its signature.
pub const DESCRIPTOR_BYTES_MAX: u64 = 16 << 10;

/// The item at offset 0; the descriptor itself is in items from offset 1 on, the Merkle tree in items
/// of another type.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskVerityDescriptor {
    /// `size`.
    pub len_bytes: Le64,
    /// `reserved`.
    pub reserved: [Le64; 2],
    /// `encryption`.
    pub encryption: u8,
}

const _: () = assert!(size_of::<DiskVerityDescriptor>() == 25);

rules! {
    /// The rules of the item.
    pub enum VerityRule of "verity descriptor item" {
        /// It has the size of the structure.
        Size => "invalid item size",
        /// The Merkle tree is not encrypted.
        Encryption => "invalid encryption",
    }
}

/// The item at offset 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerityDescriptorItem {
    /// The length of the descriptor.
    pub len_bytes: u64,
}

impl VerityDescriptorItem {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<VerityRule>> {
        let disk = DiskVerityDescriptor::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, VerityRule::Size))?;
        if disk.encryption != 0 {
            return Err(Corrupt::new(locus, VerityRule::Encryption));
        }
        Ok(Self {
            len_bytes: disk.len_bytes.get(),
        })
    }
}

/// `fsverity_descriptor`; a signature of the digest may follow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskFsVerity {
    /// `version`.
    pub version: u8,
    /// `hash_algorithm`.
    pub algorithm: u8,
    /// `log_blocksize`.
    pub block_log2: u8,
    /// `salt_size`.
    pub salt_bytes: u8,
    /// `sig_size`.
    pub signature_bytes: Le32,
    /// `data_size`.
    pub data_bytes: Le64,
    /// `root_hash`.
    pub root_hash: [u8; 64],
    /// `salt`.
    pub salt: [u8; 32],
    /// `__reserved`.
    pub reserved: [u8; 144],
}

const _: () = assert!(size_of::<DiskFsVerity>() == 256);

rules! {
    /// The rules of a descriptor.
    pub enum FsVerityRule of "fs-verity descriptor" {
        /// It has the size of the structure and the signature.
        Size => "invalid descriptor size",
        /// `version` is 1.
        Version => "unrecognized descriptor version",
        /// `hash_algorithm` is known.
        Algorithm => "unknown hash algorithm",
        /// Blocks have 1 to 64 KiB.
        BlockSize => "unsupported log_blocksize",
        /// The salt is not longer than its place.
        Salt => "invalid salt_size",
        /// Reserved bytes are zero.
        Reserved => "reserved bits set in descriptor",
    }
}

/// The hash of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// 1.
    Sha256,
    /// 2.
    Sha512,
}

/// A hash; of the shorter kind, zeros follow.
pub type Digest = [u8; 64];

/// A hash in the making.
#[derive(Debug, Clone)]
pub enum Hasher {
    /// SHA-256.
    Sha256(Sha256),
    /// SHA-512.
    Sha512(Sha512),
}

/// What the hashes of a file are computed with, and what they come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsVerity {
    /// The hash.
    pub algorithm: HashAlgorithm,
    /// The size of blocks, of the file and of its Merkle tree.
    pub block_bytes: u32,
    /// What is put before each block, without padding.
    pub salt: Vec<u8>,
    /// The size of the file.
    pub data_bytes: u64,
    /// The hash of the root of the Merkle tree.
    pub root_hash: Digest,
}

impl FsVerity {
    /// Decodes a descriptor.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<FsVerityRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let parts = DiskFsVerity::ref_from_prefix(bytes);
        let (disk, signature) = parts.map_err(|_| broken(FsVerityRule::Size))?;
        if signature.len() as u64 != u64::from(disk.signature_bytes.get()) {
            return Err(broken(FsVerityRule::Size));
        }
        if disk.version != 1 {
            return Err(broken(FsVerityRule::Version));
        }
        if disk.reserved != [0; 144] {
            return Err(broken(FsVerityRule::Reserved));
        }
        let algorithm = match disk.algorithm {
            1 => HashAlgorithm::Sha256,
            2 => HashAlgorithm::Sha512,
            _ => return Err(broken(FsVerityRule::Algorithm)),
        };
        if !(10..=16).contains(&disk.block_log2) {
            return Err(broken(FsVerityRule::BlockSize));
        }
        let salt = disk.salt.get(..usize::from(disk.salt_bytes));
        Ok(Self {
            algorithm,
            block_bytes: 1 << disk.block_log2,
            salt: salt.ok_or_else(|| broken(FsVerityRule::Salt))?.to_vec(),
            data_bytes: disk.data_bytes.get(),
            root_hash: disk.root_hash,
        })
    }

    /// A hash of a block: all of its bytes are to follow.
    #[must_use]
    pub fn hasher(&self) -> Hasher {
        let mut hasher = match self.algorithm {
            HashAlgorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            HashAlgorithm::Sha512 => Hasher::Sha512(Sha512::new()),
        };
        // The salt fills whole blocks of the hash.
        let mut salt = self.salt.clone();
        salt.resize(salt.len().next_multiple_of(self.algorithm.unit_bytes()), 0);
        hasher.update(&salt);
        hasher
    }
}

impl HashAlgorithm {
    /// How long its hashes are.
    #[must_use]
    pub const fn digest_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    const fn unit_bytes(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Adds so many zeros.
    pub fn update_zeros(&mut self, count: usize) {
        self.update(&vec![0; count]);
    }

    /// The hash of all that was added.
    #[must_use]
    pub fn finish(self) -> Digest {
        let mut digest = [0; 64];
        let put = |digest: &mut Digest, hash: &[u8]| {
            for (to, from) in digest.iter_mut().zip(hash) {
                *to = *from;
            }
        };
        match self {
            Self::Sha256(hasher) => put(&mut digest, &hasher.finalize()),
            Self::Sha512(hasher) => put(&mut digest, &hasher.finalize()),
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn item_is_decoded() {
        let mut bytes = [0; 25];
        bytes[1] = 1;
        let decode = |bytes: &[u8]| VerityDescriptorItem::decode(bytes, Locus::UNKNOWN);
        assert_eq!(decode(&bytes).unwrap().len_bytes, 256);
        assert_eq!(decode(&bytes[1..]).unwrap_err().rule, VerityRule::Size);
        bytes[24] = 1;
        assert_eq!(decode(&bytes).unwrap_err().rule, VerityRule::Encryption);
    }

    fn descriptor() -> DiskFsVerity {
        let mut disk = DiskFsVerity::new_zeroed();
        (disk.version, disk.algorithm, disk.block_log2) = (1, 1, 12);
        disk.salt_bytes = 3;
        disk.salt[..3].copy_from_slice(b"abc");
        disk.data_bytes.set(5000);
        disk
    }

    #[test]
    fn descriptor_is_decoded() {
        let verity = FsVerity::decode(descriptor().as_bytes(), Locus::UNKNOWN).unwrap();
        assert_eq!(verity.algorithm, HashAlgorithm::Sha256);
        assert_eq!((verity.block_bytes, verity.data_bytes), (4096, 5000));
        assert_eq!(verity.salt, b"abc");
        let signed = [descriptor().as_bytes(), b"signature"].concat();
        assert!(FsVerity::decode(&signed, Locus::UNKNOWN).is_err());
        let mut disk = descriptor();
        disk.signature_bytes.set(9);
        let signed = [disk.as_bytes(), b"signature"].concat();
        assert!(FsVerity::decode(&signed, Locus::UNKNOWN).is_ok());
    }

    #[test]
    fn rules_of_descriptors_are_checked() {
        let broken = |change: &dyn Fn(&mut DiskFsVerity)| {
            let mut disk = descriptor();
            change(&mut disk);
            let decoded = FsVerity::decode(disk.as_bytes(), Locus::UNKNOWN);
            decoded.unwrap_err().rule
        };
        assert_eq!(broken(&|it| it.version = 2), FsVerityRule::Version);
        assert_eq!(broken(&|it| it.algorithm = 3), FsVerityRule::Algorithm);
        assert_eq!(broken(&|it| it.block_log2 = 9), FsVerityRule::BlockSize);
        assert_eq!(broken(&|it| it.block_log2 = 17), FsVerityRule::BlockSize);
        assert_eq!(broken(&|it| it.salt_bytes = 33), FsVerityRule::Salt);
        assert_eq!(broken(&|it| it.reserved[9] = 1), FsVerityRule::Reserved);
        let short = FsVerity::decode(&descriptor().as_bytes()[1..], Locus::UNKNOWN);
        assert_eq!(short.unwrap_err().rule, FsVerityRule::Size);
    }

    #[test]
    fn hashes_have_the_salt_in_front() {
        let verity = FsVerity::decode(descriptor().as_bytes(), Locus::UNKNOWN).unwrap();
        let mut hasher = verity.hasher();
        hasher.update(b"data");
        hasher.update_zeros(300);
        let mut bytes = b"abc".to_vec();
        bytes.resize(64, 0);
        bytes.extend(b"data");
        bytes.resize(64 + 304, 0);
        assert_eq!(hasher.finish()[..32], Sha256::digest(&bytes)[..]);
    }
}
