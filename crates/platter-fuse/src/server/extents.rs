//! Extents of files as they are, which `FIEMAP` does not ask a filesystem in user space for.

use platter_vfs::Inode;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Answer, Server};
use crate::ioctl::{FileExtents, argument};

/// Where the last block ends of the largest file, which is a byte shorter.
const BLOCKS_END: u64 = 1 << 63;

/// Lists extents of a file, from a byte on.
pub(super) fn list(server: &Server, file: &dyn Inode, input: &[u8]) -> Answer<Vec<u8>> {
    let asked: FileExtents = argument(input)?;
    server.must_not_be_shut_down()?;
    if asked.start > BLOCKS_END {
        return Err(Errno::FBIG);
    }
    let kind = server.check(file.attr())?.kind;
    server.check(kind.refuse_without_contents())?;
    let mut found = FileExtents::request(asked.start);
    let listed = file.extents(asked.start..u64::MAX, &mut |extent| found.push(&extent));
    server.check(listed)?;
    Ok(found.as_bytes().to_vec())
}
