//! How a directory compares and hashes names.

use platter_ondisk::checksum::crc32c;
use platter_vfs::{Condition, Name, Result};

use super::casefold;
use super::hash::{HashAlgorithm, HashSeed, HashVersion, NameHash};

/// The name a lookup is for.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    name: Name<'a>,
    /// The name folded, in a casefolded directory; `None` if it has no folding.
    folded: Option<Vec<u8>>,
}

/// How names of a directory are hashed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashing {
    /// The function.
    pub(super) version: HashVersion,
    /// The filesystem's seed.
    pub(super) seed: HashSeed,
    /// Names are folded first.
    pub(super) casefold: bool,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(name: Name<'a>, casefold: bool, strict: bool) -> Result<Self> {
        let folded = if casefold {
            casefold::fold(name.as_bytes()).ok()
        } else {
            None
        };
        if casefold && strict && folded.is_none() {
            return Err(Condition::InvalidArgument.into());
        }
        Ok(Self { name, folded })
    }

    /// Tells whether a stored name is the wanted one. Names that are no UTF-8 are compared by their
    /// bytes.
    pub(super) fn test(&self) -> impl Fn(&[u8]) -> bool {
        let name = self.name.as_bytes();
        let (end, is_folded) = (name.last_chunk::<4>(), self.is_folded());
        move |stored| {
            // Names of one directory often differ at the end only.
            let is_same = stored.len() == name.len() && stored.last_chunk() == end;
            is_same && stored == name || is_folded && self.matches_folded(stored)
        }
    }

    fn is_folded(&self) -> bool {
        self.folded.is_some()
    }

    #[inline(never)]
    fn matches_folded(&self, stored: &[u8]) -> bool {
        let folded = self.folded.as_deref();
        casefold::fold(stored).is_ok_and(|stored| Some(&*stored) == folded)
    }

    /// Bytes of the name as it would be stored.
    pub(super) fn stored_len(&self) -> usize {
        self.name.as_bytes().len()
    }

    pub(super) fn hash(&self, hashing: &Hashing) -> NameHash {
        let name = self.folded.as_deref().unwrap_or(self.name.as_bytes());
        hashing.version.hash(hashing.seed, name)
    }
}

impl Hashing {
    /// The hash by which a stored name is put in order. Where the function has no minor hash,
    /// another hash of the name stands for it.
    pub(super) fn order(&self, name: &[u8]) -> NameHash {
        let folded = if self.casefold {
            casefold::fold(name).ok()
        } else {
            None
        };
        let hash = self
            .version
            .hash(self.seed, folded.as_deref().unwrap_or(name));
        match self.version.algorithm {
            HashAlgorithm::Legacy => NameHash {
                minor: crc32c(!0, name),
                ..hash
            },
            HashAlgorithm::HalfMd4 | HashAlgorithm::Tea => hash,
        }
    }
}
