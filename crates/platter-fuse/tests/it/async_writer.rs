//! Asynchronous writes through `io_uring(7)`, as databases and virtual machines make them.
#![expect(unsafe_code, reason = "requests of a ring name memory")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

/// Writes `data` to each of `offsets`, all at once, and returns when all writes have completed.
pub(crate) fn write_all_at_once(file: &File, data: &[u8], offsets: &[u64]) -> io::Result<()> {
    let mut ring = IoUring::new(u32::try_from(offsets.len()).unwrap())?;
    let len = u32::try_from(data.len()).unwrap();
    for &offset in offsets {
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), data.as_ptr(), len);
        let write = write.offset(offset).build();
        // SAFETY: `data` and `file` outlive the request: all have completed before this returns,
        // and where waiting fails, the process does not go on.
        unsafe { ring.submission().push(&write) }.map_err(io::Error::other)?;
    }
    if let Err(error) = ring.submit_and_wait(offsets.len()) {
        eprintln!("cannot wait for writes: {error}");
        std::process::abort();
    }
    let mut completed = 0;
    for done in ring.completion() {
        completed += 1;
        match done.result() {
            written if written == len.cast_signed() => {}
            failed if failed < 0 => return Err(io::Error::from_raw_os_error(-failed)),
            _ => return Err(io::ErrorKind::WriteZero.into()),
        }
    }
    assert_eq!(completed, offsets.len());
    Ok(())
}
