//! How a directory compares and hashes names.

use platter_ondisk::checksum::crc32c;
use platter_vfs::{Condition, Name, Result};

use super::casefold;
use super::hash::{HashAlgorithm, HashSeed, HashVersion, NameHash};

/// The name to look up.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    name: Name<'a>,
    /// The casefolded name, in a casefolded directory; `None` if it cannot be folded.
    folded: Option<Vec<u8>>,
}

/// The hash function of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashing {
    /// The algorithm.
    pub(super) version: HashVersion,
    /// The filesystem's seed.
    pub(super) seed: HashSeed,
    /// Names are casefolded first.
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

    /// Returns a predicate for stored names that equal the name. Names that are not UTF-8 are
    /// compared bytewise.
    pub(super) fn test(&self) -> impl Fn(&[u8]) -> bool {
        let name = self.name.as_bytes();
        let (end, is_folded) = (name.last_chunk::<4>(), self.is_folded());
        move |stored| {
            // Names of one directory often differ only at the end.
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

    /// Returns the length of the name as stored.
    pub(super) fn stored_len(&self) -> usize {
        self.name.as_bytes().len()
    }

    pub(super) fn hash(&self, hashing: &Hashing) -> NameHash {
        let name = self.folded.as_deref().unwrap_or(self.name.as_bytes());
        hashing.version.hash(hashing.seed, name)
    }
}

impl Hashing {
    /// Returns the hash that orders a stored name. If the algorithm has no minor hash, another hash
    /// of the name replaces it.
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
