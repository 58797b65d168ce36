//! Verification of one metadata block when it is read from the device or written to it.

use crate::Corruption;

/// Identifies the rules and parameters of a verifier, so that a block validated as one structure is
/// not used as another.
///
/// Two verifiers with equal keys check the same rules with the same parameters: a hostile image
/// that uses one block both as a directory block and as an extent node has it verified once as
/// each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VerifierKey {
    /// A number of the structure, unique within its driver.
    pub structure: u32,
    /// Checksum seed besides the filesystem's, such as an inode number.
    pub seed: u64,
}

impl VerifierKey {
    /// The key of [`Unverified`], whose rules any bytes hold to.
    pub const ANY: Self = Self {
        structure: 0,
        seed: 0,
    };
}

/// The rules of one metadata block, checked without state and without I/O.
///
/// The same rules hold after every read and before every write. `block` is the address of the block in
/// the unit of its cache, which some formats store in the block or include in its checksum: the number of
/// the filesystem block, the sector, or the byte.
pub trait Verify: Send + Sync {
    /// Returns the identity of the rules that this verifier checks.
    fn key(&self) -> VerifierKey;

    /// Checks every rule that can be decided from these bytes alone, including the checksum.
    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption>;

    /// Checks what [`verify`](Self::verify) checks of a block that was [sealed](Self::seal) just now: without the
    /// checksum, where that is cheaper.
    fn verify_sealed(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.verify(block, bytes)
    }

    /// Stores the checksum in the block before a write. The default is for structures without one.
    fn seal(&self, block: u64, bytes: &mut [u8]) {
        let _ = (block, bytes);
    }

    /// Returns the verifier for blocks whose verification is deferred to the write, so that a block
    /// that is modified many times gets its checksum and is verified once. `None`, the default, is
    /// for structures that are cheaper to verify after each change.
    fn kept(&self) -> Option<Box<dyn Verify>> {
        None
    }
}

/// Accepts any bytes: for blocks without rules, such as bitmaps without checksums.
#[derive(Debug, Clone, Copy)]
pub struct Unverified;

impl Verify for Unverified {
    fn key(&self) -> VerifierKey {
        VerifierKey::ANY
    }

    fn verify(&self, _block: u64, _bytes: &[u8]) -> Result<(), Corruption> {
        Ok(())
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}
