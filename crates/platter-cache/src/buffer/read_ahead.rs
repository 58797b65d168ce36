//! Readahead of metadata: runs of absent blocks read with one vectored request each.

use std::io::IoSliceMut;

use super::Core;
use super::key::Key;
use super::reading::Reading;
use super::table::Claim;

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

/// Reads the blocks of `keys` in, up to `bytes_max`.
pub(super) fn read_ahead(core: &Core, keys: impl Iterator<Item = Key>, bytes_max: u64) {
    let store_bytes = core.store.len_bytes();
    let mut bytes = 0;
    let mut run: Vec<Reading<'_>> = Vec::new();
    for key in keys {
        bytes += u64::from(key.len_bytes());
        if bytes > bytes_max || key.end() > store_bytes {
            break;
        }
        let is_next = run.last().is_none_or(|last| last.key.end() == key.at());
        if run.len() == RUN_BLOCKS_MAX || !is_next {
            read_run(core, std::mem::take(&mut run));
        }
        match core.table.find_or_claim(key) {
            Claim::Claimed(flight) => run.push(Reading::new(core, key, flight)),
            Claim::Cached(_) | Claim::Wait(_) | Claim::Edited => {
                read_run(core, std::mem::take(&mut run));
            }
        }
    }
    read_run(core, run);
}

/// Reads neighbouring claimed blocks, their first copies. A failure does not say which block it
/// was about, so the claims are abandoned and each block fails, or not, when it is read alone.
fn read_run(core: &Core, run: Vec<Reading<'_>>) {
    let Some(first) = run.first() else {
        return;
    };
    let at = first.key.at();
    let mut contents: Vec<_> = run.iter().map(|it| core.memory(it.key)).collect();
    let mut bufs: Vec<_> = contents.iter_mut().map(|b| IoSliceMut::new(b)).collect();
    if core.store.read(at, 0, &mut bufs).is_ok() {
        for (reading, bytes) in run.into_iter().zip(contents) {
            reading.complete(bytes);
        }
    }
}
