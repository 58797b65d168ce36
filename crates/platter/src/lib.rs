//! Linux filesystems in user space.
#![forbid(unsafe_code)]
