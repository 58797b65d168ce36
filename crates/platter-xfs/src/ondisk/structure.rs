//! Numbers of the structures that have a verifier of whole blocks.

/// A structure that has a verifier of whole blocks; the number goes into its
/// [`platter_ondisk::VerifierKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Structure {
    /// A superblock sector.
    Superblock = 1,
    /// The free space header of an allocation group.
    Agf,
    /// The inode header of an allocation group.
    Agi,
    /// The free list of an allocation group.
    Agfl,
    /// A block of a B-tree of an allocation group or inode.
    Btree,
    /// A cluster of inodes.
    InodeCluster,
    /// A block of directory entries.
    DirData,
    /// A directory leaf block.
    DirLeaf,
    /// A directory free index block.
    DirFree,
    /// An inner block of a hash tree of names.
    DaNode,
    /// An attribute leaf block.
    AttrLeaf,
    /// A block of a remote attribute value.
    AttrRemote,
    /// A block of a remote symbolic link target.
    Symlink,
    /// A block of quota records.
    Dquot,
    /// A block of the realtime bitmap.
    RtBitmap,
    /// A block of the realtime summary.
    RtSummary,
    /// A filesystem block of a directory block.
    DirPart,
}
