//! Cloned FUSE device descriptors, so that serving threads do not contend for one queue in the
//! kernel.
#![expect(unsafe_code, reason = "an ioctl that no crate offers in a safe form")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Returns a further descriptor for the connection of `device`, with its own queue of requests in
/// progress.
pub(super) fn clone(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fresh = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd().cast_unsigned();
    // SAFETY: the kernel reads one `u32`, which is what the opcode was made for, and keeps nothing.
    let request = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the opcode belongs to the device that the descriptor was opened for.
    unsafe { ioctl(&fresh, request) }?;
    Ok(fresh.into())
}
