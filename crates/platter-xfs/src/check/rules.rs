//! Rules that involve several structures. Their texts follow `xfs_repair`.

use platter_ondisk::rules;

rules! {
    /// Rules of the primary superblock that a mount does not check.
    pub enum SuperblockUseRule of "superblock" {
        /// `needsrepair` is set.
        NeedsRepair => "filesystem needs repair (needsrepair is set)",
        /// `sb_rbmino` and `sb_rsumino` follow `sb_rootino`.
        RealtimeInodes => "realtime bitmap or summary inode value inconsistent with calculated value",
        /// `sb_ifree` is at most `sb_icount`.
        InodeCounts => "more free inodes than inodes",
        /// `sb_fdblocks` is at most `sb_dblocks`.
        FreeBlocks => "more free blocks than blocks",
    }
}

rules! {
    /// Rules of the copies of the superblock.
    pub enum BackupRule of "superblock" {
        /// Copies have features that exist.
        Features => "unknown features enabled or corrupted feature masks",
        /// Copies have the features of the primary superblock.
        Masks => "feature mismatch with the primary superblock",
        /// Copies describe the same geometry as the primary superblock.
        Geometry => "conflicts with filesystem geometry",
        /// Copies have the UUID of the primary superblock.
        Uuid => "has another UUID than the primary superblock",
        /// The rest of the sector is zero.
        Garbage => "unused portion of superblock is not zero",
    }
}

rules! {
    /// Rules of the superblock's counters.
    pub enum TotalsRule of "superblock" {
        /// `sb_icount` is the sum of the groups.
        Inodes => "sb_icount does not match the count",
        /// `sb_ifree` is the sum of the groups.
        FreeInodes => "sb_ifree does not match the count",
        /// `sb_fdblocks` is the sum of the groups.
        FreeBlocks => "sb_fdblocks does not match the count",
        /// `sb_frextents` is the number of free realtime extents.
        FreeRtExtents => "sb_frextents does not match the count",
    }
}

rules! {
    /// Rules of an allocation group beyond its headers.
    pub enum GroupUseRule of "allocation group" {
        /// `agf_flcount` agrees with `agf_flfirst` and `agf_fllast`.
        FreeListCount => "freeblk count does not match flcount",
        /// The two B-trees of free extents hold the same extents.
        FreeTreesDiffer => "bno and cnt freespace B-trees differ",
        /// `agf_freeblks`.
        FreeBlocks => "agf_freeblks does not match the count",
        /// `agf_longest`.
        Longest => "agf_longest does not match the longest extent",
        /// `agf_btreeblks`.
        TreeBlocks => "agf_btreeblks does not match the count",
        /// `agf_rmap_blocks`.
        OwnerTreeBlocks => "bad rmapbt block count",
        /// `agf_refcount_blocks`.
        ReferenceTreeBlocks => "bad refcountbt block count",
        /// `agi_count`.
        Inodes => "agi_count does not match the count",
        /// `agi_freecount`.
        FreeInodes => "agi_freecount does not match the count",
        /// `agi_iblocks`.
        InodeTreeBlocks => "bad inobt block count",
        /// `agi_fblocks`.
        FreeInodeTreeBlocks => "bad finobt block count",
        /// The free inode B-tree holds the chunks with free inodes.
        InodeTreesDiffer => "inobt and finobt differ",
    }
}

rules! {
    /// Rules of B-trees across blocks.
    pub enum TreeUseRule of "B-tree block" {
        /// Only the root may be less than half full.
        TooFew => "bad btree nrecs: fewer than the minimum",
        /// A block has one parent.
        Multiple => "block is claimed by another tree or parent",
        /// Blocks of a level are linked in the order of their parents.
        Sibling => "bad sibling pointers",
        /// A parent has the first key of its child, and the last one in a reverse mapping B-tree.
        Key => "key does not match the block it points to",
    }
}

rules! {
    /// Rules of inode chunks.
    pub enum ChunkRule of "inode chunk" {
        /// Inodes lie within the group and begin with a block.
        Location => "bad starting inode number",
        /// `sb_inoalignmt`.
        Alignment => "badly aligned inode record",
        /// Counts and masks agree.
        Counts => "ir_freecount, ir_count or ir_free mismatch",
        /// A record of the free inode B-tree has free inodes.
        NoneFree => "finobt record with no free inodes",
        /// No two records overlap.
        Overlap => "inode chunk claims used block",
        /// An inode in use is not marked as free.
        UsedInodeFree => "imap claims in-use inode is free",
        /// An inode marked as in use is.
        FreeInodeUsed => "imap claims a free inode is in use",
    }
}

rules! {
    /// Rules of the blocks of a group, and of their owners.
    pub enum BlockUseRule of "block" {
        /// No two owners claim a block, unless it is data that may be shared.
        Multiple => "multiply-claimed block (duplicate extent)",
        /// A block in use is not free.
        UsedFree => "block in use but marked free",
        /// A block that is not in use is free.
        Lost => "block is neither free nor in use",
    }
}

rules! {
    /// Rules of reverse mappings.
    pub enum OwnerRule of "reverse mapping" {
        /// Every extent in use has one.
        Missing => "missing reverse-mapping record",
        /// Every one is of an extent in use.
        Extra => "unknown reverse-mapping record",
    }
}

rules! {
    /// Rules of reference counts.
    pub enum ReferenceRule of "reference count" {
        /// Shared blocks have the number of their owners.
        Missing => "missing or incorrect reference count record",
        /// Only shared blocks have one.
        Extra => "unnecessary reference count record",
        /// Files that share blocks have the reflink flag.
        Flag => "inode shares blocks without the reflink flag",
    }
}

rules! {
    /// Rules of forks beyond their extents.
    pub enum ForkUseRule of "fork" {
        /// A B-tree has more extents than fit the inode.
        TooFewExtents => "extent count too low for btree format",
    }
}

rules! {
    /// Rules of an inode beyond those needed to read it.
    pub enum InodeUseRule of "inode" {
        /// `di_nblocks`.
        Blocks => "bad nblocks",
        /// `di_nlink` has 31 bits.
        TooManyLinks => "too many links",
        /// `di_onlink` is of version 1.
        OldLinks => "obsolete nlink field is not zero",
        /// A metadata inode is a file or directory of a known type that root owns, without permissions.
        Metadata => "is incorrectly marked as metadata",
        /// `di_next_unlinked`.
        NextUnlinked => "bad next_unlinked",
        /// `di_flags`.
        Flags => "bad flags",
        /// `di_flags2`.
        Flags2 => "bad flags2",
        /// `di_extsize`.
        ExtentSize => "bad extent size",
        /// `di_cowextsize`.
        CowExtentSize => "bad CoW extent size",
        /// `di_pad2`.
        Padding => "padding is not zero",
        /// `di_nlink` is the number of links.
        Links => "nlinks does not match the links found",
        /// An inode in use has an entry that leads to it from the root.
        Disconnected => "disconnected inode",
        /// Lists of unlinked inodes are empty once the log was recovered.
        Unlinked => "unlinked inode, to be freed",
        /// Parent pointers are those of the entries.
        ParentPointers => "parent pointers do not match the directory entries",
        /// Inodes that the superblock names are files.
        Internal => "internal inode is not a regular file",
    }
}

rules! {
    /// Rules of lists of unlinked inodes.
    pub enum UnlinkedRule of "unlinked list" {
        /// Members are inodes that exist.
        Number => "bad inode number",
        /// An inode is in one list once.
        Loop => "inode is in a list twice",
        /// Members have no links, and their number is of the list.
        Member => "member is not an unlinked inode of this list",
    }
}

rules! {
    /// Rules of hash trees across blocks.
    pub enum HashTreeRule of "hash tree node" {
        /// Blocks of a level are linked in the order of their parents.
        Sibling => "bad sibling pointers",
        /// A node has the greatest hash of each child.
        Hash => "bad hash value of a child",
        /// Every block of the index is in the tree.
        Unreached => "index block is not in the tree",
    }
}

rules! {
    /// Rules of directories across blocks and inodes.
    pub enum DirectoryUseRule of "directory" {
        /// The root is a directory.
        Root => "root inode is not a directory",
        /// The first entry is `.`, the directory itself.
        Dot => "missing or bad '.' entry",
        /// The second entry is `..`.
        DotDot => "missing or bad '..' entry",
        /// `..` is the directory that has the entry.
        Parent => "bad '..' entry: is not the parent",
        /// `.` and `..` are the first two entries only.
        StrayDot => "extra '.' or '..' entry",
        /// A name occurs once.
        DuplicateName => "duplicate name",
        /// A directory has one entry.
        SecondName => "entry points to an already connected directory",
        /// An entry has the type of its inode.
        FileType => "ftype mismatch",
        /// `di_size` is the end of the last block of entries.
        Size => "size does not match the blocks of entries",
        /// Free regions are not neighbours.
        AdjacentFree => "adjacent free regions",
        /// The header names the longest free regions.
        BestFree => "bad bestfree table",
        /// Stale entries of the index are counted.
        Stale => "bad stale count",
        /// Hashes of the index ascend.
        Order => "hashes not ascending",
        /// The index has each entry once, with the hash of its name.
        Index => "bad hash table",
        /// The longest free regions are known outside of their blocks.
        Bests => "free index does not match the data blocks",
        /// `i8count` of an inode's entries.
        WideCount => "bad count of 64-bit inode numbers",
    }
}

rules! {
    /// Rules of attributes across entries and blocks.
    pub enum AttributeUseRule of "attributes" {
        /// The first block of the fork is mapped.
        Missing => "block 0 of the attribute fork is missing",
        /// An entry has the hash of its name.
        Hash => "bad hash value",
        /// Names and values do not overlap.
        Overlap => "name or value overlaps another one",
        /// `usedbytes` and `firstused`.
        Used => "bad usedbytes or firstused",
        /// No attribute is incomplete once the log was recovered.
        Incomplete => "attribute is INCOMPLETE",
        /// A name occurs once.
        DuplicateName => "duplicate name",
        /// Names have no zero bytes.
        Name => "bad name",
        /// A pointer to a parent needs its feature, and names a directory.
        Parent => "bad parent pointer",
    }
}

rules! {
    /// Rules of quota.
    pub enum QuotaUseRule of "quota file" {
        /// Recorded use is the actual one.
        Usage => "quota counts do not match the inodes",
        /// Every id in use has a record.
        Missing => "missing quota record of an id in use",
    }
}

rules! {
    /// Rules of the realtime section.
    pub enum RealtimeRule of "realtime section" {
        /// No two files claim an extent.
        Multiple => "multiply-claimed realtime extent",
        /// Bitmap and summary have no holes.
        Hole => "can't find block of realtime bitmap or summary inode",
        /// The bitmap marks what is not in use as free.
        Bitmap => "discrepancy in rt bitmap",
        /// The summary counts the free extents.
        Summary => "discrepancy in rt summary",
    }
}

rules! {
    /// Rules of the log.
    pub enum LogUseRule of "log" {
        /// It holds changes, which were replayed in memory.
        Replayed => "has metadata changes, which were replayed in memory for this check",
        /// No metadata was changed after the log's end.
        Ahead => "metadata LSN is ahead of log",
    }
}
