//! The report that a broken rule becomes once it leaves its driver.

use std::borrow::Cow;
use std::fmt;

/// Where on the medium a rule was broken. Only what is known is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Locus {
    /// Filesystem block number, in filesystem blocks from the start of the filesystem.
    pub block: Option<u64>,
    /// Byte offset inside the structure or block.
    pub offset: Option<u64>,
    /// Inode number.
    pub inode: Option<u64>,
    /// Block group or allocation group number.
    pub group: Option<u64>,
}

impl Locus {
    /// A place known by its filesystem block.
    #[must_use]
    pub fn block(block: u64) -> Self {
        Self {
            block: Some(block),
            ..Self::default()
        }
    }

    /// A place known by its inode.
    #[must_use]
    pub fn inode(inode: u64) -> Self {
        Self {
            inode: Some(inode),
            ..Self::default()
        }
    }

    /// A place known by its group.
    #[must_use]
    pub fn group(group: u64) -> Self {
        Self {
            group: Some(group),
            ..Self::default()
        }
    }

    /// The same place, with the filesystem block added.
    #[must_use]
    pub fn at_block(mut self, block: u64) -> Self {
        self.block = Some(block);
        self
    }

    /// The same place, with the byte offset added.
    #[must_use]
    pub fn at_offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// The same place, with the inode added.
    #[must_use]
    pub fn of_inode(mut self, inode: u64) -> Self {
        self.inode = Some(inode);
        self
    }
}

impl fmt::Display for Locus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("group", self.group),
            ("inode", self.inode),
            ("block", self.block),
            ("byte", self.offset),
        ];
        let mut known = parts
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let Some((name, value)) = known.next() else {
            return write!(out, "unknown place");
        };
        write!(out, "{name} {value}")?;
        known.try_for_each(|(name, value)| write!(out, ", {name} {value}"))
    }
}

/// Bytes on the medium that break a rule of their format: which structure, where, which rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[error("{structure} at {locus}: {rule}")]
pub struct Corruption {
    /// The structure's name in its specification, such as `extent node`.
    pub structure: &'static str,
    /// Where it lies.
    pub locus: Locus,
    /// The rule that does not hold, as a statement about what was found.
    pub rule: Cow<'static, str>,
}

impl Corruption {
    /// A report of `rule` broken by `structure` at `locus`.
    pub fn new(structure: &'static str, locus: Locus, rule: impl Into<Cow<'static, str>>) -> Self {
        Self {
            structure,
            locus,
            rule: rule.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_structure_place_and_rule() {
        let report = Corruption::new(
            "extent node",
            Locus::inode(12).at_block(99),
            "magic is not 0xf30a",
        );
        assert_eq!(
            report.to_string(),
            "extent node at inode 12, block 99: magic is not 0xf30a"
        );
        assert_eq!(Locus::default().to_string(), "unknown place");
    }
}
