//! A broken rule of the format. Each structure's file has its own rules; the edge sees a report.

use std::fmt;

use platter_ondisk::{Corruption, Locus};

/// The rules of one structure: an enum beside its decoder, one variant per rule.
pub trait Rule: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// The structure's name, such as `extent node`.
    const STRUCTURE: &'static str;

    /// What was found, as a statement: `magic is not 0xf30a`.
    fn text(self) -> &'static str;
}

/// A structure on the medium that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt<R> {
    /// Where the structure lies.
    pub locus: Locus,
    /// Which rule it breaks.
    pub rule: R,
}

impl<R: Rule> Corrupt<R> {
    /// A structure at `locus` that breaks `rule`.
    #[must_use]
    pub fn new(locus: Locus, rule: R) -> Self {
        Self { locus, rule }
    }
}

impl<R: Rule> fmt::Display for Corrupt<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Corruption::from(*self).fmt(out)
    }
}

impl<R: Rule> std::error::Error for Corrupt<R> {}

impl<R: Rule> From<Corrupt<R>> for Corruption {
    fn from(corrupt: Corrupt<R>) -> Self {
        Self::new(R::STRUCTURE, corrupt.locus, corrupt.rule.text())
    }
}

impl<R: Rule> From<Corrupt<R>> for platter_vfs::Error {
    fn from(corrupt: Corrupt<R>) -> Self {
        Corruption::from(corrupt).into()
    }
}

/// The structures that have a verifier of whole blocks, as they are told apart in the buffer
/// cache ([`platter_ondisk::VerifierKey`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Structure {
    /// An extent tree node outside the inode.
    ExtentNode = 1,
    /// A block or inode bitmap.
    Bitmap,
    /// A directory block of entries.
    DirBlock,
    /// The root block of a hashed directory.
    HtreeRoot,
    /// An inner block of a hashed directory.
    HtreeNode,
    /// An attribute block.
    XattrBlock,
    /// A block of the orphan file.
    OrphanBlock,
    /// The multiple mount protection block.
    Mmp,
    /// The block that the superblock in use lies in.
    Superblock,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum SampleRule {
        Magic,
    }

    impl Rule for SampleRule {
        const STRUCTURE: &'static str = "sample";

        fn text(self) -> &'static str {
            "magic is wrong"
        }
    }

    #[test]
    fn report_carries_structure_place_and_rule() {
        let corrupt = Corrupt::new(Locus::block(7), SampleRule::Magic);
        assert_eq!(corrupt.to_string(), "sample at block 7: magic is wrong");
    }
}
