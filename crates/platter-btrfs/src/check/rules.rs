//! Rules that involve several structures. Their texts follow `btrfs check`.

use platter_ondisk::rules;

rules! {
    /// Rules of the superblocks of all devices.
    pub enum SuperblockUseRule of "superblock" {
        /// A copy is that of the same transaction as the first superblock.
        Copy => "copy of the superblock is invalid or stale",
        /// All devices have a superblock of the same transaction.
        Stale => "superblock generation is older than that of another device",
        /// `num_devices` counts the device items.
        DeviceCount => "super num devices mismatches the device items",
        /// `total_bytes` is the sum of the device items.
        TotalBytes => "super total bytes mismatches the total of the device items",
        /// `bytes_used` is the sum of all extents.
        BytesUsed => "super bytes used mismatches actual used",
        /// `sys_chunk_array` has the system chunks of the chunk tree.
        SysArray => "sys_chunk_array mismatches the chunk tree",
        /// The device item is that of the chunk tree.
        DevItem => "dev_item mismatches the chunk tree",
        /// No change of the whole filesystem is in progress, and there are no flags that are not known.
        Flags => "unrecognized or unsupported super flag",
        /// There is a log.
        Log => "log tree present: fsync of files is to be replayed",
    }
}

rules! {
    /// Rules of devices, chunks, device extents and block groups.
    pub enum DeviceUseRule of "device" {
        /// The device has an item in the chunk tree.
        NoItem => "device has no item in the chunk tree",
        /// The device is one that was given.
        Missing => "device is missing",
        /// The device is as large as its item says.
        Size => "device is smaller than its total_bytes",
        /// `bytes_used` is the sum of the device extents.
        BytesUsed => "dev extent's total-byte is not equal to byte-used",
    }
}

rules! {
    /// Rules of device extents beyond their items.
    pub enum DevExtentUseRule of "device extent" {
        /// A chunk has a stripe there.
        NoChunk => "device extent did not find the related chunk",
        /// The device has an item.
        NoDevice => "device extent did not find the related device",
        /// It is within the device.
        OutsideDevice => "device extent exceeds the device",
        /// No two overlap.
        Overlap => "device extents overlap",
    }
}

rules! {
    /// Rules of chunks beyond their items.
    pub enum ChunkUseRule of "chunk" {
        /// There is a block group of the same range and type.
        NoBlockGroup => "chunk did not find the related block group",
        /// Each stripe has a device extent.
        NoDevExtent => "chunk stripe did not find the related dev extent",
        /// The device of each stripe has an item with the same UUID.
        NoDevice => "chunk stripe is on a device that has no item",
        /// Length or type are those of the block group.
        Mismatch => "chunk mismatches its block group",
    }
}

rules! {
    /// Rules of block groups beyond their items.
    pub enum BlockGroupUseRule of "block group" {
        /// There is a chunk of the same range.
        NoChunk => "block group did not find the related chunk",
        /// `used` is the sum of the extents in it.
        Used => "block group used mismatches the extent items",
    }
}

rules! {
    /// Rules of copies of blocks.
    pub enum CopyRule of "tree block copy" {
        /// All copies are the same.
        Differs => "copies of the block differ",
        /// A copy that is reconstructed from parity is the block.
        Parity => "reconstruction from parity does not match",
    }
}

rules! {
    /// Rules of extents and their references.
    pub enum ExtentUseRule of "extent" {
        /// It overlaps no other extent.
        Overlap => "extent item overlaps another one",
        /// It is in one block group.
        OutsideGroup => "extent crosses the end of its block group or has none",
        /// Data and tree blocks are in block groups of their type.
        GroupType => "bad extent, type mismatch with chunk",
        /// The length of a tree block is the node size.
        Length => "metadata extent length is not the node size",
        /// The generation is not of the future.
        Generation => "invalid generation for extent",
        /// `refs` is the number of references stored.
        GlobalCount => "incorrect global backref count",
        /// A keyed reference has an extent item.
        NoItem => "backref without an extent item",
        /// A reference that is stored is found in a tree.
        NotFound => "backref was not found: ref mismatch on extent item",
        /// A reference that is found in a tree is stored.
        NotStored => "has no backref item in extent tree",
        /// A count that is stored is the one that is found.
        LocalCount => "incorrect local backref count",
        /// What a tree refers to has an extent item.
        Unallocated => "has no extent item",
        /// The extent is of the kind and length that the reference says.
        Kind => "backref bytes or level do not match the extent item",
        /// A block whose owner refers to it does not have the flag; others have.
        FullBackref => "bad full backref",
        /// The header of a block says that its references have the current form.
        Revision => "owner ref check failed: backref revision is not the current one",
        /// The tree that wrote a block refers to it.
        Owner => "owner ref check failed",
        /// References differ, though each is stored as often as it was found.
        Mismatch => "backpointer mismatch",
    }
}

rules! {
    /// Rules of the pointers to a tree block that is shared.
    pub enum SharedBlockRule of "tree block" {
        /// All pointers say the same of it.
        Pointer => "pointers to a shared block disagree",
    }
}

rules! {
    /// Rules of free space.
    pub enum FreeSpaceUseRule of "free space" {
        /// What is stored as free is no part of an extent.
        Allocated => "free space is in use by an extent",
        /// What no extent uses is stored as free.
        Missing => "no free space entry for unused range",
        /// Each block group has an item that says how its free space is stored.
        NoInfo => "block group has no free space info",
        /// An info item is of a block group.
        NoGroup => "free space info without a block group",
        /// Extents or bitmaps are there as the flags say.
        Form => "free space items do not have the form of the info flags",
        /// `extent_count`.
        Count => "free space info extent count is wrong",
        /// An item is within the block group of the info before it.
        Outside => "free space item is not in its block group",
        /// The free space tree is valid.
        Stale => "free space tree or cache is not valid and will be rebuilt",
        /// A cache can be read.
        Cache => "failed to load free space cache",
    }
}

rules! {
    /// Rules of checksums of data.
    pub enum CsumUseRule of "csum item" {
        /// No two items overlap.
        Overlap => "csum overlap with the previous item",
        /// A checksum is of an extent.
        NoExtent => "csum exists but there is no extent record",
    }
}

rules! {
    /// Rules of an inode and its items.
    pub enum InodeUseRule of "inode" {
        /// It has an inode item.
        NoItem => "no inode item",
        /// `nlink` is the number of references.
        Links => "link count wrong",
        /// An inode without a name is to be deleted.
        NoOrphan => "no orphan item",
        /// The inode of an orphan item.
        Orphan => "orphaned inode, to be deleted or truncated",
        /// `size` of a directory is twice the length of its names.
        DirectorySize => "dir isize wrong",
        /// `nbytes`.
        Bytes => "nbytes wrong",
        /// Only directories have entries.
        OddDirItem => "odd dir item",
        /// Only files and symbolic links have extents.
        OddExtent => "odd file extent",
        /// Extents of a file do not overlap.
        ExtentOverlap => "file extent overlap",
        /// Without `no_holes`, extents have no gaps up to the size.
        ExtentGap => "file extent discount: a hole without an item",
        /// Data with checksums has them.
        CsumMissing => "some csum missing",
        /// Data without checksums, or that is preallocated, has none.
        CsumOdd => "odd csum item",
        /// Generations are not of the future.
        Generation => "invalid inode generation or transid",
        /// A symbolic link does not have flags of files.
        LinkFlags => "odd inode flags",
        /// The root directory is a directory.
        RootDirectory => "root dir is missing or not a directory",
        /// Inode items of trees have offset 0.
        Key => "invalid inode item key",
        /// The hash of a keyed name is that of the key.
        NameHash => "inode extref hash mismatch with key",
    }
}

rules! {
    /// Rules of names: of entry, index and reference.
    pub enum NameRule of "inode ref" {
        /// An entry has a reference.
        NoInodeRef => "unresolved ref: no inode ref",
        /// A reference has an index entry.
        NoDirIndex => "unresolved ref: no dir index",
        /// A reference or index has a hashed entry.
        NoDirItem => "unresolved ref: no dir item",
        /// The inode of an entry is there.
        NoInodeItem => "unresolved ref: no inode item",
        /// The type in an entry is that of the inode.
        FileType => "filetype mismatch",
        /// Names have their counterparts; which does not was not searched.
        Mismatch => "dir items, dir indexes and inode refs do not match",
    }
}

rules! {
    /// Rules of root items and their names.
    pub enum RootUseRule of "root item" {
        /// A root's generation is not of the future.
        Generation => "root generation is newer than the superblock",
        /// A root's generation is not zero: that of its root block would not be compared.
        NoGeneration => "outdated root item: its generation is zero",
        /// A subvolume that is referred to is there.
        NotFound => "fs tree refs not found",
        /// A subvolume that is there is referred to.
        Unreferenced => "fs tree not referenced",
        /// A name is stored at the child.
        NoBackref => "unresolved ref: no root backref",
        /// A name is stored at the parent.
        NoRef => "unresolved ref: no root ref",
        /// The parent's directory has the entry.
        NoEntry => "unresolved ref: no dir item or dir index of the subvolume",
        /// A subvolume has one parent.
        SeveralRefs => "fs tree has more than one root ref",
        /// The root that is to be deleted.
        Orphan => "deleted subvolume, to be cleaned",
        /// Subvolumes are in the UUID tree.
        NotInUuidTree => "subvolume is not in the UUID tree",
        /// What the UUID tree names is a subvolume with that UUID.
        StrayUuid => "UUID tree entry without its subvolume",
        /// The item's type is known in this tree.
        UnknownItem => "unknown item type",
    }
}

rules! {
    /// Rules of quota groups.
    pub enum QgroupUseRule of "qgroup" {
        /// The counts are right.
        Counts => "counts for qgroup are different",
        /// Usage is said to be inconsistent.
        Inconsistent => "qgroup data inconsistent, rescan recommended",
        /// The state is of the last transaction.
        Generation => "qgroup generation mismatch, rescan recommended",
        /// The groups of a relation are there.
        Relation => "failed to add qgroup relation: no such qgroup",
        /// Each subvolume has a quota group.
        Missing => "qgroup info item of a subvolume is missing",
    }
}

rules! {
    /// Rules of data.
    pub enum DataRule of "data" {
        /// Each sector matches its checksum.
        Checksum => "csum failed",
        /// A sector that is reconstructed from parity matches its checksum.
        Parity => "csum failed of the reconstruction from parity",
    }
}
