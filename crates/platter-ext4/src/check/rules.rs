//! Rules that involve several structures. Their texts follow e2fsck.

use platter_ondisk::rules;

rules! {
    /// Rules of a block group beyond its descriptor.
    pub enum GroupUseRule of "block group" {
        /// No two fixed structures share a block.
        Overlap => "metadata of group conflicts with some other fs block",
        /// `bg_itable_unused` is at most the inodes of a group.
        UnusedInodes => "invalid unused inodes count",
        /// Only groups with checksums may have uninitialized parts.
        UninitFlag => "marked uninitialized without feature set",
        /// `bg_free_blocks_count`.
        FreeBlocks => "free blocks count wrong for group",
        /// `bg_free_inodes_count`.
        FreeInodes => "free inodes count wrong for group",
        /// `bg_used_dirs_count`.
        UsedDirs => "directories count wrong for group",
        /// A group with `BLOCK_UNINIT` has no blocks in use.
        BlocksUninit => "block(s) in use but group is marked BLOCK_UNINIT",
    }
}

rules! {
    /// Rules of the superblock that a mount does not check.
    pub enum SuperblockUseRule of "superblock" {
        /// `s_rev_level` is known.
        Revision => "filesystem revision too high",
        /// A journal needs the `has_journal` feature, and is either internal or external.
        Journal => "has_journal flag and journal inode or device disagree",
        /// Without `bigalloc`, the cluster size is the block size.
        ClusterSize => "cluster size is not the block size without bigalloc",
        /// Quota files have their reserved inodes, or ordinary ones.
        QuotaInode => "invalid quota inode",
        /// `s_min_extra_isize` and `s_want_extra_isize` fit the inode size.
        ExtraSize => "bad required or desired extra isize in superblock",
        /// `s_r_blocks_count` is at most half the blocks.
        ReservedBlocks => "corruption found in superblock (r_blocks_count)",
        /// The upper halves of block counts are zero without `64bit`.
        HighHalves => "high 32 bits of block counts set without 64bit",
        /// All features are known, including compatible ones.
        UnknownFeature => "unsupported feature(s)",
        /// `s_state` does not have the error flag.
        Errors => "contains a file system with errors",
        /// `s_state` has the clean flag.
        Unclean => "was not cleanly unmounted",
    }
}

rules! {
    /// Rules of backup superblocks and descriptors.
    pub enum BackupRule of "backup" {
        /// The backup superblock agrees with the primary one.
        Superblock => "backup superblock is corrupt or not of this filesystem",
        /// The backup descriptors agree with the primary ones.
        Descriptors => "backup group descriptors are corrupt or not of this filesystem",
    }
}

rules! {
    /// Rules of a journal beyond its superblock.
    pub enum JournalUseRule of "journal" {
        /// It has at least 1024 blocks.
        Length => "journal is too short: less than 1024 blocks",
        /// A journal with transactions to replay has the `needs_recovery` flag.
        NotMarked => "needs_recovery flag is clear, but journal has data",
        /// `s_errno`.
        Aborted => "journal was aborted (s_errno is set)",
    }
}

rules! {
    /// Rules of the orphan file beyond its blocks.
    pub enum OrphanFileRule of "orphan file" {
        /// The superblock has its inode number.
        Missing => "s_orphan_file_inum is not set",
        /// It is a regular file of whole blocks.
        Inode => "is not a regular file of 1 to 512 whole blocks",
        /// Every block of the file is mapped.
        Hole => "contains hole",
        /// A file with orphans has the `orphan_present` flag.
        Unmarked => "orphan file is not clean, but orphan_present is not set",
    }
}

rules! {
    /// Rules of quota files.
    pub enum QuotaUseRule of "quota file" {
        /// Recorded usage equals the actual one.
        Usage => "usage inconsistent for id",
        /// Every id in use has an entry.
        Missing => "missing quota entry",
    }
}

rules! {
    /// Rules of the superblock's totals.
    pub enum TotalsRule of "superblock totals" {
        /// `s_free_blocks_count` is the sum of the groups.
        FreeBlocks => "free blocks count wrong",
        /// `s_free_inodes_count` is the sum of the groups.
        FreeInodes => "free inodes count wrong",
    }
}

rules! {
    /// Rules of bitmaps.
    pub enum BitmapUseRule of "bitmap" {
        /// A block in use is marked.
        BlockMarkedFree => "block in use but marked free",
        /// A marked block is in use.
        BlockMarkedUsed => "block marked in use but not referenced",
        /// An inode in use is marked.
        InodeMarkedFree => "inode in use but marked free",
        /// A marked inode is in use.
        InodeMarkedUsed => "free inode marked in use",
        /// Bits after the end of the group are set.
        Padding => "padding at end of bitmap is not set",
    }
}

rules! {
    /// Rules of an inode beyond its own bytes.
    pub enum InodeUseRule of "inode" {
        /// A deleted inode has a deletion time.
        DeletedWithoutTime => "deleted inode has zero dtime",
        /// An inode in use has no deletion time.
        UsedWithTime => "is in use, but has dtime set",
        /// An inode on the orphan list.
        OrphanWaits => "orphaned inode, to be deleted or truncated",
        /// `i_blocks` counts the blocks.
        BlockCount => "i_blocks is wrong",
        /// Unused fields are zero.
        UnusedField => "unused field should be zero",
        /// The resize inode maps the reserved descriptor blocks and their copies.
        ResizeMap => "resize inode not valid: does not map the reserved GDT blocks",
        /// The resize inode is a regular file with one link, as mke2fs makes it.
        ResizeInode => "resize inode not valid: not a regular file with one link",
        /// The resize inode maps no other blocks.
        ResizeStray => "resize inode not valid: maps other blocks",
        /// `h_i_translator` is within the filesystem.
        Translator => "translator has an illegal block number",
        /// With bigalloc, the offset in the cluster is that of the logical block.
        ClusterAlign => "block violates cluster allocation rules",
        /// `i_size` of inline data is the length of the data.
        InlineSize => "i_size is wrong for inline data",
        /// No other owner claims a block.
        SharedBlock => "multiply-claimed block",
        /// `i_size` is within the range of the mapping.
        SizeTooLarge => "inode is too big",
        /// A reserved inode that is not in use is empty.
        ReservedContents => "reserved inode is not in use, but contains data",
        /// `i_size` covers the mapped blocks.
        SizeTooSmall => "i_size is too small",
        /// The size of a directory is that of its blocks.
        DirectorySize => "i_size of directory is wrong",
        /// Blocks of a directory are not unwritten.
        DirectoryUnwritten => "directory has an extent marked uninitialized",
        /// Extents of a file ascend.
        ExtentOrder => "out of order extents",
        /// A symbolic link has a target without NUL.
        LinkTarget => "symlink is invalid",
        /// A fast symbolic link does not have the extents flag.
        LinkExtents => "fast symlink has EXTENT_FL set",
        /// A FIFO, socket or device has size zero.
        SpecialSize => "special (device/socket/fifo) inode has non-zero size",
        /// A flag needs its feature.
        FlagWithoutFeature => "flag set without its filesystem feature",
        /// `i_links_count` is the number of directory entries.
        Links => "ref count is wrong",
        /// An inode in use has a directory entry.
        Unattached => "unattached inode",
        /// The stored reference count of an EA inode is the number of references.
        ValueReferences => "extended attribute inode ref count is wrong",
    }
}

rules! {
    /// Rules of extended attributes across entries and inodes.
    pub enum AttributeUseRule of "extended attributes" {
        /// Values do not overlap.
        Overlap => "corrupt (allocation collision)",
        /// `h_refcount` is the number of inodes that share the block.
        References => "reference count is wrong",
        /// An attribute block needs the `ext_attr` feature.
        Feature => "i_file_acl should be zero without the ext_attr feature",
        /// `e_name_index` is a known prefix.
        NoPrefix => "corrupt (invalid name)",
    }
}

rules! {
    /// Rules of directories beyond their blocks.
    pub enum DirectoryUseRule of "directory" {
        /// Every block of the directory is mapped.
        Hole => "unallocated block",
        /// The first entry is `.` with the directory's own inode.
        Dot => "first entry should be '.'",
        /// The second entry is `..`.
        DotDot => "second entry should be '..'",
        /// `..` refers to the parent.
        Parent => "'..' should be the parent directory",
        /// `.` and `..` occur only as the first two entries.
        StrayDot => "duplicate '.' or '..' entry",
        /// A name occurs once.
        DuplicateName => "duplicate entry found",
        /// An entry refers to an inode in use.
        UnusedInode => "entry has deleted/unused inode",
        /// An entry does not refer to a reserved inode.
        ReservedInode => "entry has invalid inode #: reserved",
        /// The entry's file type is the inode's.
        FileType => "entry has an incorrect filetype",
        /// A directory has only one entry besides `.` and `..`.
        SecondName => "entry is a link to a directory",
        /// A directory is connected to the root.
        Unreachable => "unconnected directory inode",
        /// The root is a directory.
        Root => "root inode is not a directory",
        /// The root has the entry `lost+found`.
        LostFound => "/lost+found not found",
        /// All directories together do not exceed the filesystem.
        TooLarge => "is too big",
        /// An encrypted name is at least one cipher block long.
        EncryptedName => "encrypted entry is too short",
        /// The inodes in an encrypted directory are encrypted.
        NotEncrypted => "encrypted directory contains unencrypted file",
        /// The index refers to each leaf once.
        IndexedTwice => "block referenced twice in the htree",
        /// The index refers to each leaf.
        NotIndexed => "block not referenced in the htree",
        /// A name is in the leaf of its hash.
        Placement => "bad min/max hash: name in the wrong block",
    }
}
