//! A file as platter shows it, and the guarantees of its directory listing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::{Result, bail};
use platter_vfs::{DirCursor, Inode};

use super::host::Listing;

/// How many entries are taken between two restarts of a listing.
const ENTRIES_PER_CALL: usize = 7;
/// Larger directories are listed whole, since restarting them so often takes long.
const RESTARTED_ENTRIES_MAX: usize = 2000;

/// All names but `.` and `..`, which must be there too.
pub(super) fn listing(dir: &dyn Inode) -> Result<Listing> {
    let mut names = Vec::new();
    let mut dots = 0;
    dir.read_dir(DirCursor::START, &mut |entry| {
        if entry.name.is_dot_or_dotdot() {
            dots += 1;
        } else {
            names.push((entry.name.to_vec(), entry.kind, entry.id));
        }
        ControlFlow::Continue(())
    })?;
    if dots != 2 {
        bail!("{dots} entries are . or ..");
    }
    if names.len() <= RESTARTED_ENTRIES_MAX {
        let restarted = restarted_names(dir)?;
        let whole: Vec<_> = names.iter().map(|(name, ..)| name.clone()).collect();
        if restarted != whole {
            bail!("a listing in pieces differs from a whole one");
        }
    }
    let count = names.len();
    let mut listing = BTreeMap::new();
    for (name, kind, _) in names {
        listing.insert(name, kind);
    }
    if listing.len() != count {
        bail!("a name is listed twice");
    }
    Ok(listing)
}

/// The names, by calls that break off after a few entries and go on from their cursor.
fn restarted_names(dir: &dyn Inode) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut from = DirCursor::START;
    loop {
        let mut taken = 0;
        dir.read_dir(from, &mut |entry| {
            taken += 1;
            from = entry.next;
            if !entry.name.is_dot_or_dotdot() {
                names.push(entry.name.to_vec());
            }
            if taken == ENTRIES_PER_CALL {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if taken < ENTRIES_PER_CALL {
            return Ok(names);
        }
    }
}

/// All attributes with their values.
pub(super) fn xattrs(inode: &dyn Inode) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut values = BTreeMap::new();
    for name in inode.list_xattrs()? {
        let value = inode.get_xattr(&name)?;
        values.insert(name, value);
    }
    Ok(values)
}
