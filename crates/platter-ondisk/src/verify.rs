//! Verification of one metadata block at the border between memory and disk.

use crate::Corruption;

/// Names what a verifier proves, so that a block proven as one thing is not taken for another.
///
/// Two verifiers with equal keys prove the same rules with the same parameters: a hostile image
/// that uses one block both as a directory and as an extent node is verified once as each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VerifierKey {
    /// A number of the structure, unique within its driver.
    pub structure: u32,
    /// What the checksum is seeded with beside the filesystem, such as an inode number.
    pub seed: u64,
}

/// The rules of one metadata block, stateless and without I/O.
///
/// The same rules hold after every read and before every write. `block` is the filesystem block
/// number, which some formats store in the block or mix into its checksum.
pub trait Verify: Send + Sync {
    /// What this verifier proves.
    fn key(&self) -> VerifierKey;

    /// Checks every rule that can be decided from these bytes alone, the checksum included.
    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption>;

    /// Puts the checksum in place before a write. The default is for structures without one.
    fn seal(&self, block: u64, bytes: &mut [u8]) {
        let _ = (block, bytes);
    }

    /// The same rules, for whoever keeps them: so a block that changes again and again is sealed and
    /// verified once, when it is written. The default is for rules that are cheaper applied at once.
    fn kept(&self) -> Option<Box<dyn Verify>> {
        None
    }
}

/// Accepts any bytes: for blocks whose content has no rules, such as bitmaps without checksums.
#[derive(Debug, Clone, Copy)]
pub struct Unverified;

impl Verify for Unverified {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: 0,
            seed: 0,
        }
    }

    fn verify(&self, _block: u64, _bytes: &[u8]) -> Result<(), Corruption> {
        Ok(())
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}
