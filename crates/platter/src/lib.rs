//! Linux filesystems in user space.
#![forbid(unsafe_code)]

pub mod escape;
pub mod spec;
pub mod signature;

pub use escape::Escaped;
pub use signature::{Format, FormatClass};
pub use spec::{ImageSpec, PartitionSelector};
