//! Caches below every driver: the page cache for file contents, the metadata buffer cache, and the
//! cache of metadata blocks that can be shared.
//!
//! The first two take their memory from one [`MemoryBudget`], the ceiling for the whole process.

mod sync;
mod hash;
pub mod layout;
mod block_size;
mod frame;
pub mod commit;
pub mod xarray;
pub mod budget;
pub mod buffer;
pub mod mbcache;
pub mod page;

pub use budget::MemoryBudget;
pub use buffer::{
    Addressing, BlockAt, BlockSize, Buffer, BufferCache, BufferError, DeviceStore, Edit, Edited,
    MetadataStore,
};
pub use mbcache::MbCache;
pub use page::{AddressSpace, Mapping};

/// Where the fields of what all threads share lie.
pub const LAYOUTS: [layout::Layout; 4] = [
    budget::LAYOUT,
    buffer::LAYOUT,
    buffer::TABLE_LAYOUT,
    mbcache::LAYOUT,
];
