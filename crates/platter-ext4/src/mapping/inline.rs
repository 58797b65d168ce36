//! Contents that lie in the inode: 60 bytes in `i_block`, the rest as the value of an attribute.
//! Spec: `ext4/inlinedata`.

use platter_ondisk::Locus;

use crate::ondisk::corrupt::{Corrupt, Rule};
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::xattr::{ValuePlace, XattrSpace};
use crate::ondisk::{Geometry, Inode};

/// The prefix number of `system.`.
const SYSTEM_NAME_INDEX: u8 = 7;

/// What an inode with inline contents must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InlineDataRule {
    /// The attribute `system.data` is there.
    Attribute,
    /// Its value lies in the inode.
    Place,
}

impl Rule for InlineDataRule {
    const STRUCTURE: &'static str = "inline data";

    fn text(self) -> &'static str {
        match self {
            Self::Attribute => "inode has no attribute system.data",
            Self::Place => "value of system.data does not lie in the inode",
        }
    }
}

/// The inline contents of an inode, in two parts.
#[derive(Debug, Clone, Copy)]
pub struct InlineData<'a> {
    /// The first bytes.
    pub first: &'a [u8; BLOCK_AREA_BYTES],
    /// What follows them.
    pub rest: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// Finds the contents of an inode that has the inline data flag.
    pub fn decode(inode: &'a Inode, geometry: &Geometry) -> Result<Self, platter_vfs::Error> {
        let locus = Locus::inode(u64::from(inode.number.get()));
        let has_ea_inode = geometry.features.incompat.contains(Incompat::EA_INODE);
        let missing = Corrupt::new(locus, InlineDataRule::Attribute);
        let space = XattrSpace::decode_inode(&inode.tail, has_ea_inode).ok_or(missing)?;
        let space = space.map_err(|(offset, rule)| {
            Corrupt::new(
                locus.at_offset(u64::try_from(offset).unwrap_or(u64::MAX)),
                rule,
            )
        })?;
        let entry = space.find(SYSTEM_NAME_INDEX, b"data").ok_or(missing)?;
        match entry.value {
            ValuePlace::Here(rest) => Ok(Self {
                first: &inode.block,
                rest,
            }),
            ValuePlace::Inode { .. } => Err(Corrupt::new(locus, InlineDataRule::Place).into()),
        }
    }

    /// Fills `buf` with the contents from byte `offset` on, zeros behind their end.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let parts = [
            self.first.get(offset..).unwrap_or_default(),
            self.rest
                .get(offset.saturating_sub(self.first.len())..)
                .unwrap_or_default(),
        ];
        let mut filled = 0;
        for part in parts {
            let free = &mut buf[filled..];
            let count = part.len().min(free.len());
            free[..count].copy_from_slice(&part[..count]);
            filled += count;
        }
        buf[filled..].fill(0);
    }
}
