//! Serves a filesystem through FUSE.
#![forbid(unsafe_code)]
