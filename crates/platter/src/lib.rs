//! Linux filesystems in user space.
#![forbid(unsafe_code)]

pub mod escape;
pub mod spec;

pub use escape::Escaped;
pub use spec::{ImageSpec, PartitionSelector};
