//! Complete transfers from system calls that may be interrupted or return early.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::io::{Errno, pread, preadv, pwrite, pwritev};

/// Maximum number of buffers in one call (`IOV_MAX`).
const BUFFERS_MAX: usize = 1024;

/// Fills `buf` from `offset`.
pub(super) fn read(file: impl AsFd, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match pread(&file, &mut *buf, offset) {
            Ok(0) => return Err(shrunk()),
            Ok(count) => {
                buf = &mut buf[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills `bufs` one after the other from `offset`.
pub(super) fn read_vectored(
    file: impl AsFd,
    mut offset: u64,
    bufs: &mut [IoSliceMut<'_>],
) -> io::Result<()> {
    for bufs in bufs.chunks_mut(BUFFERS_MAX) {
        let mut done = match preadv(&file, bufs, offset) {
            Err(Errno::INTR) => 0,
            done => done?,
        };
        for buf in bufs {
            let filled = done.min(buf.len());
            done -= filled;
            read(&file, offset + filled as u64, &mut buf[filled..])?;
            offset += buf.len() as u64;
        }
    }
    Ok(())
}

/// Writes all of `buf` at `offset`.
pub(super) fn write(file: impl AsFd, mut offset: u64, mut buf: &[u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match pwrite(&file, buf, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                buf = &buf[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes `bufs` one after the other at `offset`.
pub(super) fn write_vectored(
    file: impl AsFd,
    mut offset: u64,
    bufs: &[IoSlice<'_>],
) -> io::Result<()> {
    for bufs in bufs.chunks(BUFFERS_MAX) {
        let mut done = match pwritev(&file, bufs, offset) {
            Err(Errno::INTR) => 0,
            done => done?,
        };
        for buf in bufs {
            let written = done.min(buf.len());
            done -= written;
            write(&file, offset + written as u64, &buf[written..])?;
            offset += buf.len() as u64;
        }
    }
    Ok(())
}

/// Makes completed writes durable, with the metadata needed to read them (`fdatasync`).
pub(super) fn sync_data(file: impl AsFd) -> io::Result<()> {
    loop {
        match rustix::fs::fdatasync(&file) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// The error for a file that ends before the capacity it was opened with.
pub(super) fn shrunk() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the file has become shorter since it was opened",
    )
}
