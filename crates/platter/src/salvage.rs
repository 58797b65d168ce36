//! Reading as much of corrupt contents as can be read.

use platter_ondisk::{Corruption, Locus};
use platter_vfs::{Inode, Result};

/// Contents that cannot be read at once are read in units of this many bytes.
const UNIT_BYTES: u64 = 4096;

/// So many units in a row that cannot be read end the attempt.
const FAILURES_MAX: usize = 16;

/// What is missing of the bytes that were asked for.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) bytes: u64,
    /// The first reason.
    pub(crate) error: platter_vfs::Error,
}

/// Fills `buf` from `offset`, where the file must have as many bytes, with zeros where they cannot
/// be read. The caller reads all of the file, once.
pub(crate) fn read(inode: &dyn Inode, offset: u64, buf: &mut [u8]) -> Option<Missing> {
    if inode
        .read_once(offset, buf)
        .is_ok_and(|filled| filled == buf.len())
    {
        return None;
    }
    let mut missing: Option<Missing> = None;
    let mut failures = 0;
    let mut at = offset;
    let mut rest = buf;
    while !rest.is_empty() {
        let unit_bytes = (UNIT_BYTES - at % UNIT_BYTES).min(rest.len() as u64);
        let (unit, tail) = rest.split_at_mut(usize::try_from(unit_bytes).unwrap_or(rest.len()));
        match read_exact(inode, at, unit) {
            Ok(()) => failures = 0,
            Err(error) => {
                unit.fill(0);
                failures += 1;
                missing.get_or_insert(Missing { bytes: 0, error }).bytes += unit_bytes;
            }
        }
        at += unit_bytes;
        rest = tail;
        if failures == FAILURES_MAX {
            rest.fill(0);
            if let Some(missing) = &mut missing {
                missing.bytes += rest.len() as u64;
            }
            break;
        }
    }
    missing
}

fn read_exact(inode: &dyn Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
    let filled = inode.read_at(offset, buf)?;
    if filled < buf.len() {
        let locus = Locus::inode(inode.id().number);
        return Err(Corruption::new("inode", locus, "contents end before the size").into());
    }
    Ok(())
}
