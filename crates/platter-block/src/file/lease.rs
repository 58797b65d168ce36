//! The lease of an image: a process that opens it waits until the owner gives the lease up.

use std::io;
use std::os::fd::AsFd;

use super::FileDevice;
use crate::sys::fcntl::set_lease;

impl FileDevice {
    /// Has others wait who open the file, for `/proc/sys/fs/lease-break-time` at most, until the lease
    /// is given up or this is closed; who does not want to wait gets `EAGAIN`. When one waits, the
    /// process gets `SIGIO`, for which it needs a handler before.
    ///
    /// # Errors
    /// `WouldBlock` while another process has it open. Others mean that there is no lease to be had:
    /// for who neither owns the file nor is the superuser, for a block device, and on filesystems
    /// that have none.
    pub fn take_lease(&self) -> io::Result<()> {
        set_lease(self.file.as_fd(), true)
    }

    /// Gives up the lease: who waits goes on.
    pub fn release_lease(&self) -> io::Result<()> {
        set_lease(self.file.as_fd(), false)
    }
}
