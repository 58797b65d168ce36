//! Calls of ioctls whose numbers say how long their arguments are.
#![expect(unsafe_code, reason = "an ioctl that no crate offers in a safe form")]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

use super::command::argument_bytes;

/// A call with an argument in a buffer.
struct Call<'a> {
    number: u32,
    argument: &'a mut [u8],
}

// SAFETY: the argument is as long as the number says, so the kernel reads and writes nothing else for a file of FUSE,
// the filesystem's ioctls being restricted to that; the numbers are those of ioctls without pointers in their arguments.
unsafe impl Ioctl for Call<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.number.into()
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<()> {
        Ok(())
    }
}

/// Calls an ioctl of a file; what it returns is in `argument` afterwards.
///
/// # Errors
/// `EINVAL` where the argument does not have the length that the number says.
pub(crate) fn call(file: impl AsFd, number: u32, argument: &mut [u8]) -> Result<()> {
    if argument.len() != argument_bytes(number) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the ioctl accesses no memory but its argument, as said of `Call`.
    unsafe { ioctl(file, Call { number, argument }) }
}
