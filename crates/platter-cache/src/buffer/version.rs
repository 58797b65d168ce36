//! One immutable version of one block's bytes, and what it was proven to be.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use platter_ondisk::VerifierKey;

use crate::budget::Charge;
use crate::sync::Mutex;

/// Proofs remembered beside the first. A sound image needs one; a hostile one that asks for more
/// has its block verified again.
const MORE_PROOFS_MAX: usize = 4;

/// The bytes of a block as they were read or published.
#[derive(Debug)]
pub(super) struct Version {
    bytes: Box<[u8]>,
    proof: OnceLock<VerifierKey>,
    more_proofs: Mutex<Vec<VerifierKey>>,
    /// Absent when the budget had no room: then no cache holds the version.
    charge: Option<Charge>,
}

impl Version {
    pub(super) fn new(bytes: Box<[u8]>, charge: Option<Charge>) -> Self {
        Self {
            bytes,
            proof: OnceLock::new(),
            more_proofs: Mutex::default(),
            charge,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_charged(&self) -> bool {
        self.charge.is_some()
    }

    pub(super) fn is_proven(&self) -> bool {
        self.proof.get().is_some()
    }

    /// Whether the bytes were proven under exactly this key.
    pub(super) fn is_proven_by(&self, key: VerifierKey) -> bool {
        match self.proof.get() {
            None => false,
            Some(&first) => first == key || self.more_proofs.lock().contains(&key),
        }
    }

    pub(super) fn add_proof(&self, key: VerifierKey) {
        let Err(key) = self.proof.set(key) else {
            return;
        };
        let mut more = self.more_proofs.lock();
        if self.proof.get() == Some(&key) || more.contains(&key) {
            return;
        }
        if more.len() == MORE_PROOFS_MAX {
            more.remove(0);
        }
        more.push(key);
    }
}

/// One version of one verified block. A clone is a reference to the same version.
#[derive(Clone)]
pub struct Buffer {
    pub(super) version: Arc<Version>,
}

impl Buffer {
    /// Whether both are the same version of the same block, not merely equal bytes.
    #[must_use]
    pub fn is_same_version(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.version, &other.version)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.version.bytes()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Buffer")
            .field("len", &self.len())
            .field("proof", &self.version.proof.get())
            .finish_non_exhaustive()
    }
}
