//! Mounts of the memory filesystem, used through the kernel as any program would.
//!
//! They need the FUSE device, the superuser, and `fusermount3` (package fuse3).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::print_stderr,
    reason = "a mount that is forcibly detached is worth a line"
)]

mod mounted;
mod reports;
mod requests;
mod rings;
mod names;
mod contents;
mod copies;
mod notices;
mod ioctls;
mod async_writer;
mod direct;
mod attributes;
mod overlaps;
mod permissions;
mod faults;
mod against_linux;
mod lifecycle;
mod ordinary_user;
