//! The checksums of btrfs and XFS, as they are stored.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use twox_hash::XxHash64;

/// CRC-32C with its usual final inversion.
pub(super) fn crc32c(pieces: &[&[u8]]) -> u32 {
    let add = |sum, piece: &&[u8]| platter_ondisk::checksum::crc32c(sum, piece);
    !pieces.iter().fold(!0, add)
}

/// A checksum of btrfs by its type; `None` for an unknown one.
pub(super) fn of_btrfs(kind: u16, bytes: &[u8]) -> Option<Vec<u8>> {
    Some(match kind {
        0 => crc32c(&[bytes]).to_le_bytes().to_vec(),
        1 => {
            let mut hasher = XxHash64::with_seed(0);
            hasher.write(bytes);
            hasher.finish().to_le_bytes().to_vec()
        }
        2 => Sha256::digest(bytes).to_vec(),
        3 => {
            let mut params = blake2b_simd::Params::new();
            params.hash_length(32).hash(bytes).as_bytes().to_vec()
        }
        _ => return None,
    })
}
