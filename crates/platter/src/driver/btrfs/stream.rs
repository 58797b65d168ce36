//! Send streams, for receivers that are no mount of this process.

pub use platter_btrfs::ondisk::Generation;
pub use platter_btrfs::ondisk::send_stream::{
    Command, EncodedData, Source, SourceRank, StreamReader, Times,
};

use platter_btrfs::ondisk::inode_item::InodeFlags;
use platter_btrfs::send::encoded;
use platter_vfs::Result;

/// What is written of encoded data.
///
/// # Errors
/// `Unsupported` for forms that are not known; `Corrupt` where the data is not of its form.
pub fn decode(encoded: &EncodedData<'_>) -> Result<Vec<u8>> {
    Ok(encoded::decode(encoded)?.1)
}

/// The flags of `FS_IOC_SETFLAGS` that a [command](Command::SetFlags) sets, but for that of fs-verity, which is not set
/// so.
#[must_use]
pub fn inode_flags(flags: u64) -> u32 {
    let flags = InodeFlags::from_bits_truncate(flags);
    platter_btrfs::inode::shown_flags(flags.difference(InodeFlags::VERITY))
}
