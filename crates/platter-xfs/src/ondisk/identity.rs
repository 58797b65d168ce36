//! What a metadata block of version 5 states about itself: checksum, UUID, position and owner.
//! Spec: `xfs/metadata_integrity`.

use platter_ondisk::{Locus, Rule};

use super::checksum;
use super::geometry::Geometry;
use super::types::BasicBlock;

/// Where a block was read from, and what it should belong to.
#[derive(Debug, Clone, Copy)]
pub struct Site<'g> {
    /// The filesystem.
    pub geometry: &'g Geometry,
    /// Where the block lies.
    pub at: BasicBlock,
    /// The inode, allocation group or realtime group that owns it.
    pub owner: u64,
    /// A verifier found it to be what it should be: that is not checked again.
    is_verified: bool,
    /// Its checksum was computed just now.
    is_sealed: bool,
}

impl<'g> Site<'g> {
    /// A block that was read from `at` and should belong to `owner`.
    #[must_use]
    pub fn new(geometry: &'g Geometry, at: BasicBlock, owner: u64) -> Self {
        Self {
            geometry,
            at,
            owner,
            is_verified: false,
            is_sealed: false,
        }
    }

    /// A block that passed the verifier of what it is decoded as.
    #[must_use]
    pub fn verified(geometry: &'g Geometry, owner: u64) -> Self {
        Self {
            geometry,
            at: BasicBlock(0),
            owner,
            is_verified: true,
            is_sealed: true,
        }
    }

    /// The same block, whose checksum was computed just now.
    pub(super) fn sealed(self) -> Self {
        Self {
            is_sealed: true,
            ..self
        }
    }

    /// Whether what a verifier checks holds already.
    pub(super) fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// The location for reports.
    #[must_use]
    pub fn locus(&self) -> Locus {
        self.geometry.locus(self.at)
    }
}

/// The rules that every structure with an identity has.
pub(super) trait IdentityRule: Rule {
    const CHECKSUM: Self;
    const UUID: Self;
    const BLOCK_NUMBER: Self;
    const OWNER: Self;
}

macro_rules! identity_rules {
    ($name:ident) => {
        impl crate::ondisk::identity::IdentityRule for $name {
            const CHECKSUM: Self = Self::Checksum;
            const UUID: Self = Self::Uuid;
            const BLOCK_NUMBER: Self = Self::BlockNumber;
            const OWNER: Self = Self::Owner;
        }
    };
}

/// What a block states.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    /// Where its checksum lies.
    pub(super) checksum_at: usize,
    pub(super) uuid: [u8; 16],
    pub(super) block: u64,
    pub(super) owner: u64,
}

impl Identity {
    /// Checks all of it against where the block `bytes` was found.
    pub(super) fn check<R: IdentityRule>(&self, bytes: &[u8], site: &Site<'_>) -> Result<(), R> {
        if site.is_verified {
            return Ok(());
        }
        if !site.is_sealed && !checksum::matches(bytes, self.checksum_at) {
            return Err(R::CHECKSUM);
        }
        if self.uuid != *site.geometry.meta_uuid.as_bytes() {
            return Err(R::UUID);
        }
        if self.block != site.at.0 {
            return Err(R::BLOCK_NUMBER);
        }
        if self.owner != site.owner {
            return Err(R::OWNER);
        }
        Ok(())
    }
}
