//! Whole images, made by e2fsprogs and opened through the public interface.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot make its image has failed"
)]

mod image;
mod contents;
mod directories;
mod features;
mod journal;
mod quotas;
mod scale;
mod sharing;
mod space;
mod whole_file;
mod writing;
mod xattrs;
