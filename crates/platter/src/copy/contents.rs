//! The contents of a regular file.

use std::fs::File as HostFile;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use platter_vfs::Attr;

use super::{Copier, CopyEvent, CopyObserver};
use crate::data_map::DataMap;
use crate::problem::Effect;
use crate::salvage::{self, Missing};
use crate::{Cause, Error, File, Result};

/// How much is read and written at once.
const CHUNK_BYTES: u64 = 1 << 20;

impl Copier {
    /// Fills `target`, which is empty, with the contents of `source`. Holes stay holes where the
    /// target can have them; `map` says where they are, if that is known already.
    pub(super) fn fill(
        &mut self,
        source: &File,
        attr: &Attr,
        map: Option<DataMap>,
        (target, path): (&HostFile, &Path),
        observer: &mut CopyObserver<'_>,
    ) -> Result<()> {
        let host = |error| {
            Error::at_path(
                &"".into(),
                path.as_os_str().as_encoded_bytes(),
                Cause::from(error),
            )
        };
        let size_bytes = attr.size_bytes;
        let is_regular = target.metadata().map_err(host)?.is_file();
        let map = if is_regular {
            let inode = &**source.inode();
            let read = || DataMap::read(inode, size_bytes, 0, &mut |_| {});
            // Where the map is damaged, reading tells so again.
            map.or_else(|| read().ok())
                .unwrap_or(DataMap::dense(size_bytes))
        } else {
            DataMap::dense(size_bytes)
        };
        let data_end = map.data().last().map_or(0, |last| last.end);
        if is_regular && data_end < size_bytes {
            target.set_len(size_bytes).map_err(host)?;
        }
        let mut damage: Option<Missing> = None;
        let mut buf = Vec::new();
        for chunk in map.data().iter().flat_map(chunks) {
            let length = usize::try_from(chunk.end - chunk.start).unwrap_or_default();
            buf.resize(length, 0);
            source
                .inode()
                .will_need(chunk.end..chunk.end.saturating_add(CHUNK_BYTES));
            let missing = salvage::read(&**source.inode(), chunk.start, &mut buf);
            if let Some(missing) = missing {
                let total = damage.get_or_insert(Missing {
                    bytes: 0,
                    ..missing
                });
                total.bytes += missing.bytes;
            }
            write(target, is_regular, chunk.start, &buf).map_err(host)?;
            self.summary.bytes += length as u64;
            observer(CopyEvent::Progress(self.summary));
        }
        if let Some(Missing { bytes, error }) = damage {
            self.tell_damage(observer, source.error(error), Effect::ZeroFilled { bytes });
        }
        Ok(())
    }
}

fn write(mut target: &HostFile, is_regular: bool, offset: u64, bytes: &[u8]) -> io::Result<()> {
    if is_regular {
        return target.write_all_at(bytes, offset);
    }
    target.write_all(bytes)
}

/// A range in pieces of at most [`CHUNK_BYTES`].
fn chunks(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let start = at;
        at = end.min(start.saturating_add(CHUNK_BYTES));
        (start < end).then_some(start..at)
    })
}
