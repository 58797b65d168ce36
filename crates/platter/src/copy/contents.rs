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
        let mut damage: Option<Missing> = None;
        let map = match map {
            Some(map) if is_regular => map,
            _ if is_regular => {
                let (sound, error) = DataMap::read_sound(&**source.inode(), size_bytes);
                let stat = source.volume().stat_fs();
                let device_bytes = stat.map_or(0, |stat| {
                    stat.blocks.saturating_mul(u64::from(stat.block_bytes))
                });
                match error {
                    None => sound,
                    // Reading returns the error again, and finds what is still readable.
                    Some(_) if size_bytes <= device_bytes => DataMap::dense(size_bytes),
                    // A size that no filesystem like this could fill may be damage, too.
                    Some(error) => {
                        let bytes = size_bytes - sound.data_bytes();
                        damage = Some(Missing { bytes, error });
                        sound
                    }
                }
            }
            _ => DataMap::dense(size_bytes),
        };
        let data_end = map.data().last().map_or(0, |last| last.end);
        if is_regular && data_end < size_bytes {
            target.set_len(size_bytes).map_err(host)?;
        }
        let mut buf = Vec::new();
        for chunk in map.data().iter().flat_map(chunks) {
            self.check_progress(source)?;
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
            self.progress.add_bytes(length as u64);
            self.summary.bytes += length as u64;
            observer(CopyEvent::Progress(self.summary));
        }
        if let Some(Missing { bytes, error }) = damage {
            self.report_damage(observer, source.error(error), Effect::ZeroFilled { bytes });
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
