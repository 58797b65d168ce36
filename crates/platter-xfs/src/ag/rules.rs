//! What an allocation group must hold to when it changes.

use platter_ondisk::rules;

rules! {
    /// What an allocation group must hold to when it changes.
    pub enum GroupRule of "allocation group" {
        /// Blocks that are freed are in use, and within the group.
        DoubleFree => "freed blocks are free or outside the allocation group",
        /// Free blocks are within the group.
        FreeExtent => "free extent is empty or outside the allocation group",
        /// Blocks that are allocated are free.
        NotFree => "allocated blocks are in use",
        /// An inode that is allocated is free.
        NotFreeInode => "allocated inode is in use or in no chunk",
        /// The free list has blocks for the trees.
        FreeList => "free list is empty",
        /// Blocks that are freed have the owner that frees them.
        Owner => "freed blocks have another owner",
        /// Blocks that are freed are referenced.
        Refcount => "bad reference count of freed blocks",
        /// A freed inode is in use.
        Inode => "freed inode is free or in no chunk",
        /// A list of unlinked inodes ends.
        UnlinkedList => "bad inode in an unlinked list",
    }
}
