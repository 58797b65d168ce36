//! The ioctls of block devices. Spec: `linux/fs.h`.

use std::os::fd::BorrowedFd;

use rustix::io;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// The ioctl group of block devices.
const GROUP: u8 = 0x12;
const BLKROGET: Opcode = opcode::none(GROUP, 94);
const BLKGETSIZE64: Opcode = opcode::read::<usize>(GROUP, 114);
const BLKDISCARD: Opcode = opcode::none(GROUP, 119);

/// Returns the capacity of a block device in bytes.
pub(crate) fn capacity_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 writes one u64 through its argument, whatever the word size that is
    // encoded in its number.
    let request = unsafe { Getter::<BLKGETSIZE64, u64>::new() };
    // SAFETY: the request is a getter, made for its opcode above. On a descriptor that is not a
    // block device, the ioctl group is foreign and the kernel answers ENOTTY.
    unsafe { ioctl(fd, request) }
}

/// Whether the kernel refuses writes to a block device.
pub(crate) fn is_read_only(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: BLKROGET writes one int through its argument.
    let request = unsafe { Getter::<BLKROGET, i32>::new() };
    // SAFETY: the request is a getter, made for its opcode above; other descriptors answer ENOTTY.
    let read_only = unsafe { ioctl(fd, request) }?;
    Ok(read_only != 0)
}

/// Discards `length` bytes at `start`, both multiples of the logical block size.
pub(crate) fn discard(fd: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two u64, start and length, through its argument.
    let request = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new([start, length]) };
    // SAFETY: the request is a setter, made for its opcode above; the memory that the kernel
    // reads belongs to the request. Other descriptors answer ENOTTY.
    unsafe { ioctl(fd, request) }
}
