//! The lease of an image: a process that opens it waits until the owner releases the lease.

use std::io;
use std::os::fd::AsFd;

use super::FileDevice;
use crate::sys::fcntl::set_lease;

impl FileDevice {
    /// Makes other processes that open the file wait for `/proc/sys/fs/lease-break-time` at most,
    /// until the lease is released or this device is closed; non-blocking opens get `EAGAIN`. When
    /// another process waits, this process gets `SIGIO`, for which it must have installed a
    /// handler.
    ///
    /// # Errors
    /// `WouldBlock` while another process has the file open. Other errors mean that the lease is
    /// not available: for a caller that neither owns the file nor is the superuser, for a block
    /// device, and on filesystems without leases.
    pub fn take_lease(&self) -> io::Result<()> {
        set_lease(self.file.as_fd(), true)
    }

    /// Releases the lease, which wakes waiting opens.
    pub fn release_lease(&self) -> io::Result<()> {
        set_lease(self.file.as_fd(), false)
    }
}
