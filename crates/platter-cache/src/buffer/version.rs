//! One version of one block's bytes, and what it was validated as. It changes only while the thread
//! that changes it has the only reference.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use platter_ondisk::{Corruption, VerifierKey, Verify};

use super::edited::Edit;
use crate::budget::Charge;
use crate::sync::Mutex;

/// Proofs remembered in addition to the first. A sound image needs one; a hostile one that asks for more
/// has its block verified again.
const MORE_PROOFS_MAX: usize = 4;

/// The bytes of a block as they were read, published or changed.
///
/// # Invariants
/// - Bytes that were changed, and not sealed since, are validated as what they were changed as, and as nothing else.
/// - Bytes that were published without their seal count as sealed, and as validated as what their owner says. No
///   cache writes them.
pub(super) struct Version {
    bytes: Box<[u8]>,
    /// The copy that they were read from; the first for those that were not read.
    copy: u16,
    /// What sealed bytes were validated as when the version was made.
    made_as: Option<VerifierKey>,
    /// What sealed bytes were validated as first after that.
    proof: OnceLock<VerifierKey>,
    /// Further verifiers that accepted the block.
    more_proofs: Mutex<Vec<VerifierKey>>,
    /// The rules of bytes that were changed, and not sealed since.
    unsealed: Option<Box<dyn Verify>>,
    /// The owner of the block seals and writes a copy of the bytes.
    is_sealed_by_owner: bool,
    /// Absent when the budget had no space: then no cache holds the version.
    charge: Option<Charge>,
}

impl Version {
    pub(super) fn new(bytes: Box<[u8]>, charge: Option<Charge>) -> Self {
        Self {
            bytes,
            copy: 0,
            made_as: None,
            proof: OnceLock::new(),
            more_proofs: Mutex::default(),
            unsealed: None,
            is_sealed_by_owner: false,
            charge,
        }
    }

    /// The same bytes, which their owner says to be valid as this, and seals when it writes them.
    pub(super) fn sealed_by_owner(mut self, key: VerifierKey) -> Self {
        self.is_sealed_by_owner = true;
        self.made_as = Some(key);
        self
    }

    /// The same bytes, read from a copy that may be another one than the first.
    pub(super) fn of_copy(mut self, copy: u16) -> Self {
        self.copy = copy;
        self
    }

    pub(super) fn copy(&self) -> u16 {
        self.copy
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_charged(&self) -> bool {
        self.charge.is_some()
    }

    pub(super) fn charge_with(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.unsealed.is_none()
    }

    pub(super) fn is_sealed_by_owner(&self) -> bool {
        self.is_sealed_by_owner
    }

    pub(super) fn is_validated(&self) -> bool {
        self.unsealed.is_some() || self.made_as.is_some() || self.proof.get().is_some()
    }

    /// Whether the bytes were validated under exactly this key. Sealed ones pass where there are no rules.
    pub(super) fn is_validated_by(&self, key: VerifierKey) -> bool {
        if let Some(rules) = &self.unsealed {
            return rules.key() == key;
        }
        if key == VerifierKey::ANY {
            return true;
        }
        if self.made_as == Some(key) {
            return true;
        }
        match self.proof.get() {
            None => false,
            Some(&first) => first == key || self.more_proofs.lock().contains(&key),
        }
    }

    pub(super) fn add_proof(&self, key: VerifierKey) {
        if self.made_as == Some(key) {
            return;
        }
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

    /// Has `change` change the bytes, which then hold to the rules that they were changed under before,
    /// or to those that the caller [names](Self::changed_as).
    pub(super) fn change<R, E>(
        &mut self,
        change: impl FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
    ) -> Result<Edit<R>, E> {
        #[cfg(debug_assertions)]
        let before = self.bytes.clone();
        let result = change(&mut self.bytes);
        #[cfg(debug_assertions)]
        assert!(
            matches!(result, Ok(Edit::Changed(_))) || self.bytes == before,
            "a change that fails leaves the block as it was"
        );
        result
    }

    /// Says that the bytes were changed, and hold to these rules but for the seal.
    pub(super) fn changed_as(&mut self, rules: Box<dyn Verify>) {
        self.made_as = None;
        self.proof.take();
        self.more_proofs = Mutex::default();
        self.is_sealed_by_owner = false;
        self.unsealed = Some(rules);
    }

    /// Puts the seal in place, and validates the bytes.
    pub(super) fn seal(&mut self, address: u64) -> Result<(), Corruption> {
        if let Some(rules) = &self.unsealed {
            rules.seal(address, &mut self.bytes);
            rules.verify(address, &self.bytes)?;
            self.proof = OnceLock::from(rules.key());
        }
        self.unsealed = None;
        Ok(())
    }

    /// Returns a copy of the bytes, validated and sealed as these.
    pub(super) fn duplicate(&self, charge: Charge) -> Self {
        let bytes = charge.budget().copy_block(&self.bytes);
        let mut duplicate = Self::new(bytes, Some(charge));
        duplicate.is_sealed_by_owner = self.is_sealed_by_owner;
        if let Some(rules) = self.unsealed.as_ref().and_then(|rules| rules.kept()) {
            duplicate.changed_as(rules);
        }
        duplicate
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        if let Some(charge) = &self.charge {
            charge.budget().keep_block(std::mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Version")
            .field("len", &self.bytes.len())
            .field("proof", &self.made_as.as_ref().or(self.proof.get()))
            .field("is_sealed", &self.is_sealed())
            .field("is_sealed_by_owner", &self.is_sealed_by_owner)
            .finish_non_exhaustive()
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

    /// The copy of the block that the bytes were read from, counted from zero.
    #[must_use]
    pub fn copy(&self) -> u16 {
        self.version.copy()
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
        self.version.fmt(out)
    }
}
