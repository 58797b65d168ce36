//! Corruption reports: the form in which a broken rule leaves its driver.

use std::borrow::Cow;
use std::fmt;

/// A key of a btrfs tree: object id, item type, offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreeKey {
    /// The object id.
    pub object: u64,
    /// The item type.
    pub kind: u8,
    /// The offset; its meaning depends on the type.
    pub offset: u64,
}

impl fmt::Display for TreeKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({} {} {})", self.object, self.kind, self.offset)
    }
}

/// The known parts of a [`Locus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocusParts {
    /// Device of a filesystem on several devices, by the format's number for it.
    pub member: Option<u64>,
    /// Copy of a mirrored block, counted from zero.
    pub copy: Option<u16>,
    /// Object id of the btrfs tree.
    pub tree: Option<u64>,
    /// Key of the item in that tree.
    pub key: Option<TreeKey>,
    /// Block group or allocation group number.
    pub group: Option<u64>,
    /// Inode number.
    pub inode: Option<u64>,
    /// Block number: in filesystem blocks from the start of the filesystem (ext2/3/4, XFS), or the
    /// logical address in bytes (btrfs).
    pub block: Option<u64>,
    /// Byte offset inside the structure or block.
    pub offset: Option<u64>,
}

/// Location of a broken rule. Small, since verifiers return it by value; [`parts`](Self::parts)
/// lists what is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Locus {
    /// Which fields are known, one bit each; an unknown field is zero.
    known: u8,
    key_kind: u8,
    copy: u16,
    member: u64,
    tree: u64,
    key_object: u64,
    key_offset: u64,
    group: u64,
    inode: u64,
    block: u64,
    offset: u64,
}

impl Locus {
    const MEMBER: u8 = 1;
    const COPY: u8 = 2;
    const TREE: u8 = 4;
    const KEY: u8 = 8;
    const GROUP: u8 = 16;
    const INODE: u8 = 32;
    const BLOCK: u8 = 64;
    const OFFSET: u8 = 128;

    /// A location with no known part.
    pub const UNKNOWN: Self = Self {
        known: 0,
        key_kind: 0,
        copy: 0,
        member: 0,
        tree: 0,
        key_object: 0,
        key_offset: 0,
        group: 0,
        inode: 0,
        block: 0,
        offset: 0,
    };

    /// A location known by its block.
    #[must_use]
    pub const fn block(block: u64) -> Self {
        Self::UNKNOWN.at_block(block)
    }

    /// A location known by its inode.
    #[must_use]
    pub const fn inode(inode: u64) -> Self {
        Self::UNKNOWN.of_inode(inode)
    }

    /// A location known by its group.
    #[must_use]
    pub const fn group(group: u64) -> Self {
        Self::UNKNOWN.in_group(group)
    }

    /// A location known by its tree.
    #[must_use]
    pub const fn tree(tree: u64) -> Self {
        Self::UNKNOWN.in_tree(tree)
    }

    /// The same location, with the block added.
    #[must_use]
    pub const fn at_block(mut self, block: u64) -> Self {
        self.known |= Self::BLOCK;
        self.block = block;
        self
    }

    /// The same location, with the byte offset added.
    #[must_use]
    pub const fn at_offset(mut self, offset: u64) -> Self {
        self.known |= Self::OFFSET;
        self.offset = offset;
        self
    }

    /// The same location, with the inode added.
    #[must_use]
    pub const fn of_inode(mut self, inode: u64) -> Self {
        self.known |= Self::INODE;
        self.inode = inode;
        self
    }

    /// The same location, with the block group or allocation group added.
    #[must_use]
    pub const fn in_group(mut self, group: u64) -> Self {
        self.known |= Self::GROUP;
        self.group = group;
        self
    }

    /// The same location, with the tree added.
    #[must_use]
    pub const fn in_tree(mut self, tree: u64) -> Self {
        self.known |= Self::TREE;
        self.tree = tree;
        self
    }

    /// The same location, with the key of the item added.
    #[must_use]
    pub const fn at_key(mut self, key: TreeKey) -> Self {
        self.known |= Self::KEY;
        self.key_object = key.object;
        self.key_kind = key.kind;
        self.key_offset = key.offset;
        self
    }

    /// The same location, with the device added.
    #[must_use]
    pub const fn on_member(mut self, member: u64) -> Self {
        self.known |= Self::MEMBER;
        self.member = member;
        self
    }

    /// The same location, with the copy added.
    #[must_use]
    pub const fn of_copy(mut self, copy: u16) -> Self {
        self.known |= Self::COPY;
        self.copy = copy;
        self
    }

    /// The same location, with what is known of `around` added where it is unknown here. Keys and
    /// byte offsets are not taken over: they belong to one block.
    #[must_use]
    pub fn within(self, around: Self) -> Self {
        let added = around.known & !self.known & !(Self::KEY | Self::OFFSET);
        let part = |bit, ours, theirs| if added & bit == 0 { ours } else { theirs };
        Self {
            known: self.known | added,
            copy: if added & Self::COPY == 0 {
                self.copy
            } else {
                around.copy
            },
            member: part(Self::MEMBER, self.member, around.member),
            tree: part(Self::TREE, self.tree, around.tree),
            group: part(Self::GROUP, self.group, around.group),
            inode: part(Self::INODE, self.inode, around.inode),
            block: part(Self::BLOCK, self.block, around.block),
            ..self
        }
    }

    /// The parts that are known.
    #[must_use]
    pub fn parts(&self) -> LocusParts {
        let known = |bit| self.known & bit != 0;
        LocusParts {
            member: known(Self::MEMBER).then_some(self.member),
            copy: known(Self::COPY).then_some(self.copy),
            tree: known(Self::TREE).then_some(self.tree),
            key: known(Self::KEY).then_some(TreeKey {
                object: self.key_object,
                kind: self.key_kind,
                offset: self.key_offset,
            }),
            group: known(Self::GROUP).then_some(self.group),
            inode: known(Self::INODE).then_some(self.inode),
            block: known(Self::BLOCK).then_some(self.block),
            offset: known(Self::OFFSET).then_some(self.offset),
        }
    }
}

impl fmt::Debug for Locus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Locus({self})")
    }
}

impl fmt::Display for Locus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        let mut separator = "";
        let mut part = |name: &str, value: Option<&dyn fmt::Display>| {
            let Some(value) = value else { return Ok(()) };
            write!(out, "{separator}{name} {value}")?;
            separator = ", ";
            Ok(())
        };
        part("device", displayed(parts.member.as_ref()))?;
        part("copy", displayed(parts.copy.as_ref()))?;
        part("tree", displayed(parts.tree.as_ref()))?;
        part("key", displayed(parts.key.as_ref()))?;
        part("group", displayed(parts.group.as_ref()))?;
        part("inode", displayed(parts.inode.as_ref()))?;
        part("block", displayed(parts.block.as_ref()))?;
        part("byte", displayed(parts.offset.as_ref()))?;
        if separator.is_empty() {
            out.write_str("unknown location")?;
        }
        Ok(())
    }
}

fn displayed<T: fmt::Display>(value: Option<&T>) -> Option<&dyn fmt::Display> {
    value.map(|value| value as &dyn fmt::Display)
}

/// A structure on the device that breaks a rule of its format: which structure, where, which rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[error("{structure} at {locus}: {rule}")]
pub struct Corruption {
    /// The structure's name in its specification, such as `extent node`.
    pub structure: &'static str,
    /// Its location.
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

/// The rules of one structure: an enum next to its decoder, one variant per rule.
pub trait Rule: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// The structure's name, such as `extent node`.
    const STRUCTURE: &'static str;

    /// What was found, as a statement: `magic is not 0xf30a`.
    fn text(self) -> &'static str;
}

/// Declares the rules of one structure: an enum with the documentation of each rule, the structure's
/// name, and what was found where a rule does not hold.
///
/// ```
/// platter_ondisk::rules! {
///     /// The rules of an extent node.
///     pub enum ExtentRule of "extent node" {
///         /// `eh_magic` is 0xf30a.
///         Magic => "magic is not 0xf30a",
///     }
/// }
///
/// let corrupt = platter_ondisk::Corrupt::new(platter_ondisk::Locus::block(7), ExtentRule::Magic);
/// assert_eq!(corrupt.to_string(), "extent node at block 7: magic is not 0xf30a");
/// ```
#[macro_export]
macro_rules! rules {
    (
        $(#[$outer:meta])*
        $visibility:vis enum $name:ident of $structure:literal {
            $($(#[$inner:meta])* $variant:ident => $text:literal,)+
        }
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $($(#[$inner])* $variant,)+
        }

        impl $crate::Rule for $name {
            const STRUCTURE: &'static str = $structure;

            fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

/// A structure on the device that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt<R> {
    /// Location of the structure.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_structure_location_and_rule() {
        let report = Corruption::new(
            "extent node",
            Locus::inode(12).at_block(99),
            "magic is not 0xf30a",
        );
        assert_eq!(
            report.to_string(),
            "extent node at inode 12, block 99: magic is not 0xf30a"
        );
        assert_eq!(Locus::default().to_string(), "unknown location");
        let key = TreeKey {
            object: 257,
            kind: 1,
            offset: 0,
        };
        let locus = Locus::tree(5).at_key(key).on_member(2).of_copy(1);
        assert_eq!(locus.to_string(), "device 2, copy 1, tree 5, key (257 1 0)");
        assert_eq!((locus.parts().key, locus.parts().block), (Some(key), None));
    }

    crate::rules! {
        /// A sample.
        enum SampleRule of "sample" {
            /// The magic number.
            Magic => "magic is wrong",
        }
    }

    #[test]
    fn location_takes_unknown_parts_from_around() {
        let around = Locus::inode(12).in_group(3).at_block(99).at_offset(8);
        let locus = Locus::inode(13).within(around);
        assert_eq!(locus, Locus::inode(13).in_group(3).at_block(99));
        assert_eq!(locus.within(Locus::UNKNOWN), locus);
        let around = Locus::tree(5).on_member(2).of_copy(1);
        assert_eq!(Locus::UNKNOWN.within(around), around);
        let other = Locus::tree(6).on_member(3).of_copy(0);
        assert_eq!(other.at_block(1).within(around), other.at_block(1));
    }

    #[test]
    fn corrupt_names_structure_location_and_rule() {
        let corrupt = Corrupt::new(Locus::block(7), SampleRule::Magic);
        assert_eq!(corrupt.to_string(), "sample at block 7: magic is wrong");
    }
}
