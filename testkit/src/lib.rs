//! Fixtures, oracles, and the walks that compare platter with Linux and its tools.
//!
//! Everything here may need root, a loop device or a program of e2fsprogs. What is missing is an
//! error that says so; it is never taken for a good answer.
#![forbid(unsafe_code)]

pub mod tool;
pub mod program;
pub mod fs_type;
pub mod loopdev;
pub mod oracle;
pub mod findings;
pub mod attributes;
pub mod parents;
pub mod prng;
pub mod fixtures;
pub mod compare;
pub mod volume;
pub mod served;
pub mod handle;
pub mod idmap;
pub mod ioctl;
pub mod workload;
pub mod edits;
pub mod subject;
pub mod crash;
pub mod suite;
pub mod kernel_recording;
