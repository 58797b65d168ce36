//! Reading a file's contents, and describing them as data and holes.

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};

use platter_vfs::{Condition, Extent, ExtentSink, Place, Result, SeekTarget};

use super::runs::{Backing, FileRun, Runs};
use crate::context::FsContext;
use crate::data::{CompressedExtent, DataReader, DecompressedCache, Reader, Sharing};
use crate::ondisk::file_extent::{Compression, ExtentPlace};
use crate::ondisk::{Generation, LogicalAddr};
use crate::tree::Tree;

/// From so many bytes of compressed extents on, several threads decompress.
const SHARED_BYTES_MIN: u64 = 256 << 10;

/// Extents that are listed with the trees kept as they are.
const LISTED_MAX: usize = 64;

/// A part of a read that one run backs.
struct Piece<'b> {
    run: FileRun,
    /// Where it begins in the run.
    inside: u64,
    target: Vec<&'b mut [u8]>,
}

/// One file's contents.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// The filesystem.
    pub context: &'a FsContext,
    /// How data is read.
    pub data: &'a DataReader,
    /// The extents that were decompressed last.
    pub decompressed: &'a DecompressedCache,
    /// The file's tree.
    pub tree: Tree,
    /// The file, as errors name it.
    pub reader: Reader,
    /// The file's size.
    pub size_bytes: u64,
}

impl Contents<'_> {
    fn runs(&self) -> Runs<'_> {
        Runs::new(self.context, self.tree, self.reader.inode)
    }

    /// Fills `bufs` with the file's bytes from `offset` on, and zeros after its end.
    pub fn fill(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let mut left: Vec<&mut [u8]> = bufs.iter_mut().map(|buf| &mut **buf).collect();
        let _read = self.context.reads.begin();
        let mut runs = self.runs();
        let mut pieces = Vec::new();
        let mut at = offset;
        while !left.is_empty() {
            let wanted: u64 = left.iter().map(|buf| buf.len() as u64).sum();
            if at >= self.size_bytes {
                zero(&mut left);
                break;
            }
            let run = runs.at(at)?;
            let count = run.file.end.saturating_sub(at).min(wanted);
            let (target, rest) = split(left, count);
            let inside = at - run.file.start;
            pieces.push(Piece {
                run,
                inside,
                target,
            });
            left = rest;
            at = at.saturating_add(count);
        }
        // Data is read with no tree kept as it is.
        drop(runs);
        self.fill_pieces(pieces)?;
        self.zero_end(offset, bufs);
        Ok(())
    }

    /// Fills the pieces of a read, several at the same time if more than one is to be decompressed.
    fn fill_pieces(&self, pieces: Vec<Piece<'_>>) -> Result<()> {
        let fill =
            |mut piece: Piece<'_>| self.fill_run(&piece.run, piece.inside, &mut piece.target);
        let compressed = pieces.iter().filter(|piece| piece.run.is_compressed());
        let bytes: u64 = compressed
            .map(|piece| piece.run.file.end - piece.run.file.start)
            .sum();
        if bytes < SHARED_BYTES_MIN {
            return pieces.into_iter().try_for_each(fill);
        }
        self.data.helpers().each(pieces, fill)
    }

    /// The range widened to whole compressed extents.
    #[must_use]
    pub fn whole_units(&self, range: Range<u64>) -> Range<u64> {
        let size = self.size_bytes;
        let is_whole = range.start == 0 && range.end >= size;
        let Some(last) = range.end.min(size).checked_sub(1).filter(|_| !is_whole) else {
            return range;
        };
        let mut runs = self.runs();
        // What fails here fails when it is read.
        let mut unit = |at| runs.at(at).ok().filter(FileRun::is_compressed);
        let start = unit(range.start).map_or(range.start, |run| run.file.start);
        let end = unit(last).map_or(range.end, |run| run.file.end.max(range.end));
        start..end
    }

    /// What follows the end of the file in its last sector is not shown.
    fn zero_end(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) {
        let mut skip = self.size_bytes.saturating_sub(offset);
        for buf in bufs {
            let kept = usize::try_from(skip).unwrap_or(usize::MAX).min(buf.len());
            buf[kept..].fill(0);
            skip -= kept as u64;
        }
    }

    /// Fills `bufs` with a run's bytes from `inside` on.
    fn fill_run(&self, run: &FileRun, inside: u64, bufs: &mut [&mut [u8]]) -> Result<()> {
        match &run.backing {
            Backing::Hole | Backing::Prealloc(_) => {
                zero(bufs);
                Ok(())
            }
            Backing::Inline {
                data,
                ram_bytes,
                compression,
            } => {
                let bytes = self.inline(data, *ram_bytes, *compression)?;
                copy(&bytes, inside, bufs);
                Ok(())
            }
            Backing::Data {
                place,
                compression: Compression::None,
                ..
            } => self.fill_from_disk(place, inside, bufs),
            Backing::Data {
                place,
                ram_bytes,
                compression,
            } => {
                let extent = CompressedExtent {
                    logical: place.logical,
                    generation: run.generation,
                    disk_bytes: place.disk_bytes,
                    ram_bytes: *ram_bytes,
                    compression: *compression,
                };
                let bytes =
                    self.decompressed
                        .read(self.context, self.data, self.reader, &extent)?;
                copy(&bytes, place.offset.saturating_add(inside), bufs);
                Ok(())
            }
        }
    }

    fn inline(&self, data: &[u8], ram_bytes: u64, compression: Compression) -> Result<Vec<u8>> {
        if compression == Compression::None {
            return Ok(data.to_vec());
        }
        let extent = CompressedExtent {
            logical: LogicalAddr(0),
            generation: Generation(0),
            disk_bytes: data.len() as u64,
            ram_bytes,
            compression,
        };
        let bytes = self
            .decompressed
            .decompress(self.context, self.reader, &extent, data)?;
        Ok(bytes.to_vec())
    }

    fn fill_from_disk(
        &self,
        place: &ExtentPlace,
        inside: u64,
        bufs: &mut [&mut [u8]],
    ) -> Result<()> {
        let sector = u64::from(self.context.sector_bytes());
        let at = place.logical.0.saturating_add(place.offset);
        let at = at.saturating_add(inside);
        let is_whole = |len: usize| (len as u64).is_multiple_of(sector);
        if at.is_multiple_of(sector) && bufs.iter().all(|buf| is_whole(buf.len())) {
            let mut bufs: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
            return self
                .data
                .read(self.context, self.reader, LogicalAddr(at), &mut bufs);
        }
        // Sectors are verified whole.
        let start = at - at % sector;
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = at.saturating_add(len).next_multiple_of(sector);
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
        let whole = &mut [IoSliceMut::new(&mut bytes)];
        self.data
            .read(self.context, self.reader, LogicalAddr(start), whole)?;
        copy(&bytes, at - start, bufs);
        Ok(())
    }

    /// The first byte of data, or of a hole, at or after `offset`. The end of the file counts as a hole.
    ///
    /// # Errors
    /// `NoSuchAddress` at or beyond the end of the file, or where no data follows.
    pub fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        let nothing = || Err(Condition::NoSuchAddress.into());
        if offset >= self.size_bytes {
            return nothing();
        }
        let mut runs = self.runs();
        let mut at = offset;
        while at < self.size_bytes {
            let run = runs.at(at)?;
            let is_data = match run.backing {
                Backing::Hole | Backing::Prealloc(_) => false,
                Backing::Inline { .. } | Backing::Data { .. } => true,
            };
            if is_data == (target == SeekTarget::Data) {
                return Ok(at);
            }
            at = run.file.end;
        }
        match target {
            SeekTarget::Data => nothing(),
            SeekTarget::Hole => Ok(self.size_bytes),
        }
    }

    /// Passes what backs `range` to `sink`; holes are left out. Meanwhile no tree is kept as it is.
    pub fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        let mut start = range.start;
        loop {
            let found = self.first_extents(start..range.end)?;
            let Some(last) = found.last() else {
                return Ok(());
            };
            start = last.file.end;
            for extent in found {
                if sink(extent).is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// The first extents of a range; none if there are no more.
    fn first_extents(&self, range: Range<u64>) -> Result<Vec<Extent>> {
        let mut found = Vec::new();
        let mut sharing = Sharing::new(self.context, self.tree, self.reader)?;
        self.each_run(range, |run, mut extent| {
            if let (Some(place), Some(sharing)) = (run.backing.place(), &mut sharing) {
                let (at, bytes) = (place.logical, place.disk_bytes);
                extent.shared = sharing.is_shared(at, bytes, run.file.start)?;
            }
            found.push(extent);
            if found.len() == LISTED_MAX {
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Passes the written extents of `range` to `sink`, without finding out which are shared.
    pub fn written(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.each_run(range, |_, extent| {
            if extent.unwritten {
                return Ok(ControlFlow::Continue(()));
            }
            Ok(sink(extent))
        })
    }

    fn each_run(
        &self,
        range: Range<u64>,
        mut sink: impl FnMut(&FileRun, Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut runs = self.runs();
        let mut at = range.start;
        while at < range.end {
            let run = runs.at(at)?;
            let file = run.file.start.max(at)..run.file.end.min(range.end);
            at = run.file.end;
            let inside = file.start - run.file.start;
            let mut extent = Extent::of(file);
            match &run.backing {
                Backing::Hole => continue,
                Backing::Inline { compression, .. } => {
                    extent.inline = true;
                    extent.encoded = *compression != Compression::None;
                }
                Backing::Prealloc(place) => {
                    extent.unwritten = true;
                    (extent.physical, extent.place) = self.place(place, inside);
                }
                Backing::Data {
                    place, compression, ..
                } => {
                    extent.encoded = *compression != Compression::None;
                    (extent.physical, extent.place) = if extent.encoded {
                        let whole = ExtentPlace {
                            offset: 0,
                            ..*place
                        };
                        self.place(&whole, 0)
                    } else {
                        self.place(place, inside)
                    };
                }
            }
            if sink(&run, extent)? == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    /// The logical address of a byte of an extent, and where it lies.
    fn place(&self, place: &ExtentPlace, inside: u64) -> (Option<Place>, Option<Place>) {
        let at = place.logical.0.checked_add(place.offset);
        let at = at.and_then(|at| at.checked_add(inside));
        let found = at.and_then(|at| self.context.blocks.store().location(LogicalAddr(at), 0));
        let place = found.map(|(member, offset)| Place {
            member: member.index,
            offset: offset.0,
        });
        let physical = at.map(|offset| Place { member: 0, offset });
        (physical, place)
    }
}

/// Splits a list of buffers after its first `count` bytes.
fn split(bufs: Vec<&mut [u8]>, count: u64) -> (Vec<&mut [u8]>, Vec<&mut [u8]>) {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for buf in bufs {
        let (head, tail) = buf.split_at_mut(left.min(buf.len()));
        left -= head.len();
        if !head.is_empty() {
            before.push(head);
        }
        if !tail.is_empty() {
            after.push(tail);
        }
    }
    (before, after)
}

fn zero(bufs: &mut [&mut [u8]]) {
    for buf in bufs {
        buf.fill(0);
    }
}

/// Copies `bytes` from `offset` on into buffers, and zeros after them.
fn copy(bytes: &[u8], offset: u64, bufs: &mut [&mut [u8]]) {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let mut bytes = bytes.get(offset..).unwrap_or_default();
    for buf in bufs {
        let (now, later) = bytes.split_at(bytes.len().min(buf.len()));
        buf[..now.len()].copy_from_slice(now);
        buf[now.len()..].fill(0);
        bytes = later;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ondisk::TreeId;

    /// Calls `work` with the contents of a file of the top-level subvolume.
    pub(crate) fn with_contents<T>(
        context: &FsContext,
        (inode, size_bytes): (u64, u64),
        work: impl FnOnce(&Contents<'_>) -> T,
    ) -> T {
        let (data, decompressed) = (DataReader::default(), DecompressedCache::default());
        work(&Contents {
            context,
            data: &data,
            decompressed: &decompressed,
            tree: context.required_tree(TreeId::FS).unwrap(),
            reader: Reader {
                tree: TreeId::FS,
                inode,
                is_summed: true,
            },
            size_bytes,
        })
    }
}
