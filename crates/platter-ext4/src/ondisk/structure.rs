//! Numbers of the structures with a verifier of whole blocks.

/// A structure with a verifier of whole blocks; its number is part of the
/// [`platter_ondisk::VerifierKey`].
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
    /// The block that contains the superblock in use.
    Superblock,
}
