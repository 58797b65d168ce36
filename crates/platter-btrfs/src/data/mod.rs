//! Data extents: read from any copy, verified against their checksums, decompressed once.

mod checksums;
mod helpers;
mod read;
mod decompressed;
mod sharing;

pub use checksums::Checksums;
pub use decompressed::{CompressedExtent, DecompressedCache};
pub use helpers::Helpers;
pub use read::{DataReader, Reader};
pub use sharing::Sharing;
