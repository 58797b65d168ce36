//! The rules that hold across structures.

use platter_ondisk::Rule;

macro_rules! rules {
    ($(#[$doc:meta])* $name:ident of $structure:literal { $($(#[$rule_doc:meta])* $rule:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$rule_doc])* $rule,)+
        }

        impl Rule for $name {
            const STRUCTURE: &'static str = $structure;

            fn text(self) -> &'static str {
                match self {
                    $(Self::$rule => $text,)+
                }
            }
        }
    };
}

rules! {
    /// What groups must hold to beside each other.
    GroupUseRule of "block group" {
        /// No two fixed structures share a block.
        Overlap => "metadata of the group overlaps other metadata",
        /// `bg_itable_unused` is at most the inodes of a group.
        UnusedInodes => "more unused inodes than inodes",
        /// Only groups with checksums may have parts that are not initialized.
        UninitFlag => "is not wholly initialized, without checksums of groups",
        /// `bg_free_blocks_count`.
        FreeBlocks => "free cluster count is wrong",
        /// `bg_free_inodes_count`.
        FreeInodes => "free inode count is wrong",
        /// `bg_used_dirs_count`.
        UsedDirs => "directory count is wrong",
        /// A group without an initialized block bitmap has no blocks in use.
        BlocksUninit => "blocks are in use, but the block bitmap is not initialized",
    }
}

rules! {
    /// What the superblock must hold to beside what a mount needs.
    SuperblockUseRule of "superblock" {
        /// `s_rev_level` is one that exists.
        Revision => "revision is not 0 or 1",
        /// A journal is named only with the feature, and only in one place.
        Journal => "names a journal it does not have, or two",
        /// Cluster sizes are block sizes without `bigalloc`.
        ClusterSize => "cluster size is not the block size, without bigalloc",
        /// Quota files have the inodes that are kept for them, or ordinary ones.
        QuotaInode => "names a quota inode that cannot be one",
        /// `s_min_extra_isize` and `s_want_extra_isize`.
        ExtraSize => "asks for more or less of an inode's tail than there can be",
        /// `s_r_blocks_count` is at most half the blocks.
        ReservedBlocks => "more than half of the blocks are reserved",
        /// Upper halves of block counts are zero without `64bit`.
        HighHalves => "counts have upper halves, without 64bit",
        /// All features are known, also those that may be ignored.
        UnknownFeature => "has a feature that this check does not know",
        /// `s_state` tells of no errors.
        Errors => "is marked as having errors",
        /// `s_state` tells of an unmount.
        Unclean => "was not unmounted",
    }
}

rules! {
    /// What the copies in other groups must hold to.
    BackupRule of "backup" {
        /// The copy of the superblock agrees with the first.
        Superblock => "copy of the superblock is damaged or not of this filesystem",
        /// The copy of the descriptors agrees with the first.
        Descriptors => "copy of the group descriptors is damaged or not of this filesystem",
    }
}

rules! {
    /// What a journal must hold to beside its superblock.
    JournalUseRule of "journal" {
        /// It has at least 1024 blocks.
        Length => "is shorter than 1024 blocks",
        /// What waits for replay is marked in the superblock.
        NotMarked => "holds transactions, but the superblock does not say so",
        /// `s_errno`.
        Aborted => "was aborted after an error",
    }
}

rules! {
    /// What the orphan file must hold to beside its blocks.
    OrphanFileRule of "orphan file" {
        /// The superblock names it.
        Missing => "is not named by the superblock",
        /// It is a regular file of whole blocks.
        Inode => "is no regular file of 1 to 512 whole blocks",
        /// There is a block for each part of the size.
        Hole => "has a hole",
        /// Orphans are marked in the superblock.
        Unmarked => "holds orphans, but the superblock does not say so",
    }
}

rules! {
    /// What quota files must hold to.
    QuotaUseRule of "quota file" {
        /// Usage is what the inodes take.
        Usage => "tells another usage than the inodes",
        /// Every id in use has an entry.
        Missing => "has no entry of an id in use",
    }
}

rules! {
    /// What the superblock's counts must hold to.
    TotalsRule of "superblock totals" {
        /// `s_free_blocks_count` is what the groups say.
        FreeBlocks => "free block count is not the sum of the groups'",
        /// `s_free_inodes_count` is what the groups say.
        FreeInodes => "free inode count is not the sum of the groups'",
    }
}

rules! {
    /// What bitmaps must hold to.
    BitmapUseRule of "bitmap" {
        /// What is in use is marked.
        BlockMarkedFree => "block in use is marked free",
        /// What is marked is in use.
        BlockMarkedUsed => "block marked in use is nobody's",
        /// What is in use is marked.
        InodeMarkedFree => "inode in use is marked free",
        /// What is marked is in use.
        InodeMarkedUsed => "inode marked in use is free",
        /// Bits behind the end of the filesystem are set.
        Padding => "bits behind the end of the filesystem are not set",
    }
}

rules! {
    /// What an inode must hold to beside its own bytes.
    InodeUseRule of "inode" {
        /// A deleted inode has a time of deletion.
        DeletedWithoutTime => "has no names and no time of deletion",
        /// An inode in use has no time of deletion.
        UsedWithTime => "is in use and has a time of deletion",
        /// An orphan is on the list for a reason.
        OrphanWaits => "is an orphan that waits to be deleted or truncated",
        /// `i_blocks` counts the blocks.
        BlockCount => "block count is not the number of its blocks",
        /// Fields that mean nothing are zero.
        UnusedField => "field without a meaning is not zero",
        /// The resize inode maps the blocks kept for descriptors, and their copies.
        ResizeMap => "map of the resize inode is not that of the reserved descriptor blocks",
        /// The resize inode is a regular file with a link, as mke2fs makes it.
        ResizeInode => "resize inode is no regular file with a name",
        /// The resize inode maps nothing else.
        ResizeStray => "resize inode maps blocks that are not reserved for descriptors",
        /// `h_i_translator` lies within the filesystem.
        Translator => "block of the translator lies outside the filesystem",
        /// With clusters, blocks lie in their clusters as in the file.
        ClusterAlign => "blocks lie in clusters otherwise than in the file",
        /// Contents in the inode are as long as the size says.
        InlineSize => "size is not that of the contents in the inode",
        /// No block is anyone else's.
        SharedBlock => "block has another owner, too",
        /// `i_size` is within what the map can reach.
        SizeTooLarge => "size is beyond what its map can reach",
        /// A reserved inode that is not in use is empty.
        ReservedContents => "reserved inode is not in use, but has contents",
        /// `i_size` covers the blocks.
        SizeTooSmall => "size does not cover its blocks",
        /// A directory's size is the number of its blocks.
        DirectorySize => "size of a directory is not that of its blocks",
        /// Blocks of a directory are initialized.
        DirectoryUnwritten => "block of a directory is unwritten",
        /// Extents of a file ascend.
        ExtentOrder => "extents of different nodes overlap or do not ascend",
        /// A symbolic link has a target and no NUL in it.
        LinkTarget => "target of the symbolic link is empty, too long, or has a NUL in it",
        /// A target in the inode leaves no space for an extent tree.
        LinkExtents => "symbolic link in the inode has the extents flag",
        /// A FIFO, socket or device has no size.
        SpecialSize => "special file has a size",
        /// A flag has its feature.
        FlagWithoutFeature => "flag of a feature that the filesystem does not have",
        /// `i_links_count` is the number of names.
        Links => "link count is not the number of its names",
        /// An inode in use has a name.
        Unattached => "is in use and has no name",
        /// An attribute value has as many references as it says.
        ValueReferences => "reference count of the attribute value is wrong",
    }
}

rules! {
    /// What attributes must hold to beside each other.
    AttributeUseRule of "extended attributes" {
        /// Values do not overlap.
        Overlap => "values overlap",
        /// `h_refcount`.
        References => "reference count is not the number of inodes that share the block",
        /// A block of attributes takes the `ext_attr` feature.
        Feature => "are in a block, without the ext_attr feature",
        /// `e_name_index` tells a prefix.
        NoPrefix => "name has no prefix",
    }
}

rules! {
    /// What directories must hold to beside their blocks.
    DirectoryUseRule of "directory" {
        /// There is a block for each part of the size.
        Hole => "has a hole",
        /// The first entry is `.` and names the directory.
        Dot => "first entry is not . naming the directory",
        /// The second entry is `..`.
        DotDot => "second entry is not ..",
        /// `..` names the parent.
        Parent => ".. does not name the parent",
        /// `.` and `..` stand at the beginning only.
        StrayDot => "has a further entry . or ..",
        /// A name occurs once.
        DuplicateName => "has the same name twice",
        /// A name names an inode in use.
        UnusedInode => "entry names an inode that is not in use",
        /// A name does not name the filesystem's own inodes.
        ReservedInode => "entry names a reserved inode",
        /// The entry's file type is the inode's.
        FileType => "entry tells another file type than the inode",
        /// A directory has one name.
        SecondName => "entry gives a directory a second name",
        /// A directory is reached from the root.
        Unreachable => "is not reached from the root",
        /// The root is a directory.
        Root => "root is not a directory",
        /// The root holds `lost+found`.
        LostFound => "has no entry lost+found",
        /// All directories together are no larger than the filesystem.
        TooLarge => "is larger than what the filesystem can hold",
        /// Encrypted names have at least one block of the cipher.
        EncryptedName => "encrypted name is shorter than 16 bytes",
        /// What an encrypted directory holds is encrypted.
        NotEncrypted => "entry of an encrypted directory names an inode that is not encrypted",
        /// The index names each block of entries once.
        IndexedTwice => "index names a block twice",
        /// The index names each block of entries.
        NotIndexed => "block is not in the index",
        /// A name lies where its hash says.
        Placement => "name lies in a block of other hashes",
    }
}
