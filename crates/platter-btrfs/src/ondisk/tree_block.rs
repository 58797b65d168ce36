//! The rules that a tree block is read and written by: those of the block itself, and those of the
//! pointer that led to it. Spec: `btrfs/header`.

use platter_ondisk::{Corrupt, Corruption, Locus, Uuid, rules};
use zerocopy::FromBytes;

use super::checksum::{CHECKSUM_BYTES_MAX, ChecksumKind};
use super::header::{DiskHeader, Header, LEVEL_MAX};
use super::key::Key;
use super::leaf::Leaf;
use super::node::Node;
use super::superblock::Superblock;
use super::types::{Generation, LogicalAddr, TreeId};

rules! {
    /// The rules of a tree block.
    pub enum TreeBlockRule of "tree block" {
        /// The block is as long as blocks are.
        Size => "is truncated",
        /// `csum`.
        Checksum => "checksum verify failed",
        /// `bytenr` is where the block was read.
        Address => "bad tree block start",
        /// `fsid` is that of the filesystem.
        Fsid => "bad fsid",
        /// The level is below the largest depth.
        LevelRange => "bad level",
        /// The level is that which the pointer asks for.
        Level => "level is not that of the pointer",
        /// The generation is that of the pointer.
        Generation => "parent transid verify failed",
        /// The block belongs to the tree.
        Owner => "invalid owner",
        /// The first key is that of the pointer.
        FirstKey => "first key is not that of the pointer",
        /// The keys are before that of the next pointer.
        EndKey => "keys reach beyond the next pointer",
        /// Only the root of a tree may be an empty leaf.
        Empty => "leaf that is not a root has no items",
    }
}

/// The most seed filesystems, one grown out of the other, whose blocks a filesystem may have.
pub const SEEDS_MAX: usize = 8;

/// What is the same for all tree blocks of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeBlockFormat {
    /// `nodesize`.
    pub node_bytes: u32,
    /// `sectorsize`.
    pub sector_bytes: u32,
    /// The checksum algorithm.
    pub checksum_kind: ChecksumKind,
    /// The filesystem's metadata UUID.
    pub fsid: Uuid,
    /// The metadata UUIDs of the seeds that the filesystem grew out of, whose blocks are its own too; the
    /// nil UUID where there are fewer.
    pub seeds: [Uuid; SEEDS_MAX],
}

/// What the pointer to a tree block says of it; what is `None` is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// Its level.
    pub level: Option<u8>,
    /// Its generation; zero is not known either, as for the kernel.
    pub generation: Option<Generation>,
    /// The tree that is being read.
    pub tree: Option<TreeId>,
    /// Its first key.
    pub first_key: Option<Key>,
    /// The key of the next pointer, which all of its keys are before.
    pub end_key: Option<Key>,
}

impl TreeBlockFormat {
    /// The format of a filesystem's tree blocks.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Self {
        Self {
            node_bytes: superblock.node_bytes,
            sector_bytes: superblock.sector_bytes,
            checksum_kind: superblock.checksum_kind,
            fsid: superblock.metadata_uuid,
            seeds: [Uuid::nil(); SEEDS_MAX],
        }
    }

    /// The same format with the blocks of these seeds; `None` if there are too many.
    #[must_use]
    pub fn with_seeds(mut self, seeds: &[Uuid]) -> Option<Self> {
        self.seeds = [Uuid::nil(); SEEDS_MAX];
        self.seeds.get_mut(..seeds.len())?.copy_from_slice(seeds);
        Some(self)
    }

    /// Whether blocks with this UUID belong to the filesystem.
    fn accepts(&self, fsid: Uuid) -> bool {
        fsid == self.fsid || (fsid != Uuid::nil() && self.seeds.contains(&fsid))
    }

    /// Checks the rules of the block at `logical` that its bytes alone decide: checksum, address,
    /// filesystem, and those of a leaf or node.
    pub fn verify(&self, logical: LogicalAddr, bytes: &[u8]) -> Result<Header, Corruption> {
        let header = self.header(logical, bytes)?;
        let summed = bytes.get(CHECKSUM_BYTES_MAX..).unwrap_or_default();
        let checksum = header.checksum;
        if !self.checksum_kind.matches(summed, &checksum) {
            return Err(Corrupt::new(Locus::block(logical.0), TreeBlockRule::Checksum).into());
        }
        self.verify_unsummed(logical, bytes)
    }

    fn header<'b>(
        &self,
        logical: LogicalAddr,
        bytes: &'b [u8],
    ) -> Result<&'b DiskHeader, Corrupt<TreeBlockRule>> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = DiskHeader::ref_from_prefix(bytes).ok();
        let header = header.filter(|_| len == self.node_bytes);
        let broken = || Corrupt::new(Locus::block(logical.0), TreeBlockRule::Size);
        Ok(header.ok_or_else(broken)?.0)
    }

    /// As [`verify`](Self::verify), whatever the checksum is.
    pub fn verify_unsummed(
        &self,
        logical: LogicalAddr,
        bytes: &[u8],
    ) -> Result<Header, Corruption> {
        let locus = Locus::block(logical.0);
        let broken = |rule| Corruption::from(Corrupt::new(locus, rule));
        let header = Header::decode(self.header(logical, bytes)?);
        if header.logical != logical {
            return Err(broken(TreeBlockRule::Address));
        }
        if !self.accepts(header.fsid) {
            return Err(broken(TreeBlockRule::Fsid));
        }
        let locus = locus.in_tree(header.owner.0);
        if header.level >= LEVEL_MAX {
            return Err(Corrupt::new(locus, TreeBlockRule::LevelRange).into());
        }
        if header.level == 0 {
            Leaf::verify(bytes, locus)?;
        } else {
            Node::verify(bytes, self.sector_bytes, locus)?;
        }
        Ok(header)
    }

    /// Puts the checksum into a block that is to be written.
    pub fn seal(&self, bytes: &mut [u8]) {
        let checksum = self
            .checksum_kind
            .of(bytes.get(CHECKSUM_BYTES_MAX..).unwrap_or_default());
        if let Some(place) = bytes.get_mut(..CHECKSUM_BYTES_MAX) {
            place.copy_from_slice(&checksum);
        }
    }
}

impl Expected {
    /// Checks a block against what its pointer says. `bytes` were verified.
    pub fn check(&self, bytes: &[u8]) -> Result<(), Corrupt<TreeBlockRule>> {
        let Ok((header, _)) = DiskHeader::ref_from_prefix(bytes) else {
            return Err(Corrupt::new(Locus::UNKNOWN, TreeBlockRule::Size));
        };
        let header = Header::decode(header);
        let tree = self.tree.unwrap_or(header.owner);
        let locus = Locus::block(header.logical.0).in_tree(tree.0);
        let broken = |rule| Err(Corrupt::new(locus, rule));
        let generation = self.generation.filter(|it| *it != Generation(0));
        if generation.is_some_and(|it| it != header.generation) {
            return broken(TreeBlockRule::Generation);
        }
        if self.level.is_some_and(|level| level != header.level) {
            return broken(TreeBlockRule::Level);
        }
        if !may_own(header.owner, tree) {
            return broken(TreeBlockRule::Owner);
        }
        if self.first_key.is_none() && self.end_key.is_none() {
            return Ok(());
        }
        let (first, last) = if header.level == 0 {
            let leaf = Leaf::new(bytes);
            (leaf.key(0), leaf.key(leaf.len().saturating_sub(1)))
        } else {
            let node = Node::new(bytes);
            let key = |index| node.pointer(index).map(|pointer| pointer.key);
            (key(0), key(node.len().saturating_sub(1)))
        };
        if let (Some(end), Some(last)) = (self.end_key, last)
            && last >= end
        {
            return broken(TreeBlockRule::EndKey);
        }
        match (self.first_key, first) {
            (Some(_), None) => broken(TreeBlockRule::Empty),
            (Some(expected), Some(first)) if expected != first => broken(TreeBlockRule::FirstKey),
            _ => Ok(()),
        }
    }
}

/// Whether a block that `owner` wrote may be of `tree`. Subvolumes share blocks.
fn may_own(owner: TreeId, tree: TreeId) -> bool {
    if tree.is_subvolume() {
        return owner.is_subvolume() || owner == TreeId::TREE_RELOC;
    }
    owner == tree || tree == TreeId::TREE_RELOC
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ondisk::header::tests::sample as header;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::{leaf, node};

    pub(crate) const FORMAT: TreeBlockFormat = TreeBlockFormat {
        node_bytes: 4096,
        sector_bytes: 4096,
        checksum_kind: ChecksumKind::Crc32c,
        fsid: Uuid::from_u128(77),
        seeds: [Uuid::nil(); SEEDS_MAX],
    };

    const KEY: Key = Key::new(256, ItemKind::INODE_ITEM, 0);
    const AT: LogicalAddr = LogicalAddr(1 << 20);

    fn sealed(change: impl FnOnce(&mut DiskHeader)) -> Vec<u8> {
        let mut block = vec![0; 4096];
        assert!(leaf::encode(
            &mut block,
            &header(AT.0, 0),
            [(KEY, &b"x"[..])]
        ));
        let (header, _) = DiskHeader::mut_from_prefix(&mut block[..]).unwrap();
        change(header);
        FORMAT.seal(&mut block);
        block
    }

    fn text(rule: TreeBlockRule) -> &'static str {
        platter_ondisk::Rule::text(rule)
    }

    #[test]
    fn sealed_block_is_accepted() {
        let block = sealed(|_| {});
        let header = FORMAT.verify(AT, &block).unwrap();
        let expected = Expected {
            level: Some(0),
            generation: Some(header.generation),
            tree: Some(TreeId(256)),
            first_key: Some(KEY),
            end_key: KEY.successor(),
        };
        expected.check(&block).unwrap();
    }

    #[test]
    fn blocks_of_seeds_are_accepted() {
        let block = sealed(|header| header.fsid = Uuid::from_u128(78).into_bytes());
        let seeds = [79, 78].map(Uuid::from_u128);
        let format = FORMAT.with_seeds(&seeds).unwrap();
        assert!(format.verify(AT, &block).is_ok());
        let others = FORMAT.with_seeds(&seeds[..1]).unwrap();
        assert!(others.verify(AT, &block).is_err());
        let nil = sealed(|header| header.fsid = [0; 16]);
        assert!(others.verify(AT, &nil).is_err());
        assert_eq!(FORMAT.with_seeds(&[seeds[0]; SEEDS_MAX + 1]), None);
    }

    #[test]
    fn broken_blocks_are_refused() {
        let rule = |block: &[u8]| FORMAT.verify(AT, block).unwrap_err().rule;
        let good = sealed(|_| {});
        assert_eq!(rule(&good[1..]), text(TreeBlockRule::Size));
        let mut flipped = good.clone();
        flipped[4095] ^= 1;
        assert_eq!(rule(&flipped), text(TreeBlockRule::Checksum));
        let moved = sealed(|header| header.logical.set(0));
        assert_eq!(rule(&moved), text(TreeBlockRule::Address));
        let foreign = sealed(|header| header.fsid[0] ^= 1);
        assert_eq!(rule(&foreign), text(TreeBlockRule::Fsid));
        let deep = sealed(|header| header.level = 8);
        assert_eq!(rule(&deep), text(TreeBlockRule::LevelRange));
        let node = sealed(|header| {
            header.level = 1;
            header.item_count.set(0);
        });
        assert_eq!(rule(&node), "invalid nritems");
    }

    #[test]
    fn block_that_its_pointer_does_not_mean_is_refused() {
        let block = sealed(|_| {});
        let rule = |expected: Expected| expected.check(&block).unwrap_err().rule;
        let none = Expected::default();
        let level = Some(1);
        assert_eq!(rule(Expected { level, ..none }), TreeBlockRule::Level);
        let generation = Some(Generation(1));
        assert_eq!(
            rule(Expected { generation, ..none }),
            TreeBlockRule::Generation
        );
        let generation = Some(Generation(0));
        Expected { generation, ..none }.check(&block).unwrap();
        let tree = Some(TreeId::ROOT);
        assert_eq!(rule(Expected { tree, ..none }), TreeBlockRule::Owner);
        let end_key = Some(KEY);
        assert_eq!(rule(Expected { end_key, ..none }), TreeBlockRule::EndKey);
        let first_key = Some(Key::MIN);
        let expected = Expected { first_key, ..none };
        assert_eq!(rule(expected), TreeBlockRule::FirstKey);
        let empty = sealed(|header| header.item_count.set(0));
        let corrupt = expected.check(&empty).unwrap_err();
        assert_eq!(corrupt.rule, TreeBlockRule::Empty);
        let short = expected.check(&block[..50]).unwrap_err();
        assert_eq!(short.rule, TreeBlockRule::Size);
    }

    #[test]
    fn node_is_checked_by_its_first_pointer() {
        let pointer = node::KeyPointer {
            key: KEY,
            logical: LogicalAddr(4096),
            generation: Generation(1),
        };
        let mut block = vec![0; 4096];
        assert!(node::encode(&mut block, &header(AT.0, 1), &[pointer]));
        FORMAT.seal(&mut block);
        assert_eq!(FORMAT.verify(AT, &block).unwrap().level, 1);
        let expected = Expected {
            first_key: Some(KEY),
            ..Expected::default()
        };
        expected.check(&block).unwrap();
    }
}
