//! Caches below every driver: the page cache for file contents and the metadata buffer cache.
//!
//! Both take their memory from one [`MemoryBudget`], the ceiling for the whole process.

mod sync;
pub mod budget;
pub mod buffer;
pub mod xarray;
pub mod page;

pub use budget::MemoryBudget;
pub use buffer::{Buffer, BufferCache, BufferError};
pub use page::{AddressSpace, Mapping};
