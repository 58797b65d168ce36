//! System calls that have no safe wrapper: the only place in this crate with `unsafe`.
#![expect(
    unsafe_code,
    reason = "rustix has no safe wrapper for the ioctls of block devices, range locks and leases"
)]

pub(crate) mod blkdev;
pub(crate) mod fcntl;
