//! System calls that have no safe wrapper: the only place in this crate with `unsafe`.
#![expect(
    unsafe_code,
    reason = "the ioctls of block devices have no safe wrapper in rustix"
)]

pub(crate) mod blkdev;
