//! Contents of files in a stream: what differs from the file that the receiver has.

use std::io::IoSliceMut;

use platter_vfs::Result;

use super::Sender;
use super::clones::Wanted;
use super::side::join;
use crate::data::Reader;
use crate::file::{Backing, FileRun, Runs};
use crate::ondisk::file_extent::{Compression, ExtentPlace};
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::send_stream::{Command, EncodedData, EncodedForm};

/// Data in one command of version 1, whose attributes have lengths of 16 bits.
const WRITE_BYTES: u64 = 48 << 10;
/// Data in one command of version 2.
const WRITE_BYTES_V2: u64 = 128 << 10;
/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 1;
/// `FALLOC_FL_PUNCH_HOLE`, which needs the other one.
const PUNCH_HOLE: u32 = 2 | KEEP_SIZE;

/// A file whose contents are sent.
pub(super) struct File<'f> {
    pub(super) number: u64,
    pub(super) path: &'f [u8],
    pub(super) item: &'f InodeItem,
    /// The file that the receiver has.
    pub(super) old: Option<&'f InodeItem>,
}

/// What a run is to the receiver.
enum Step {
    /// It has it.
    Same,
    /// It reads as zeros, and did not.
    Zeros,
    /// Data.
    Data,
}

fn is_zero(backing: &Backing) -> bool {
    matches!(backing, Backing::Hole | Backing::Prealloc(_))
}

/// Whether two runs have the same bytes of the same extent at an offset.
fn is_same_data(old: &FileRun, new: &FileRun, at: u64) -> bool {
    let part = |run: &FileRun| match &run.backing {
        Backing::Data {
            place, compression, ..
        } => {
            let offset = place.offset.saturating_add(at - run.file.start);
            Some((place.logical, offset, *compression))
        }
        Backing::Hole | Backing::Prealloc(_) | Backing::Inline { .. } => None,
    };
    match (&old.backing, &new.backing) {
        (Backing::Inline { .. }, Backing::Inline { .. }) => old.backing == new.backing,
        _ => part(new).is_some_and(|new| part(old) == Some(new)),
    }
}

/// Sends the contents of a file. Returns whether there was anything to send.
pub(super) fn send(sender: &mut Sender<'_, '_>, file: &File<'_>) -> Result<bool> {
    let before = sender.commands;
    let size_bytes = file.item.size_bytes;
    let old_bytes = file.old.map_or(0, |old| old.size_bytes);
    let mut reached = old_bytes.min(size_bytes);
    if old_bytes > size_bytes {
        truncate(sender, file, size_bytes)?;
    }
    let mut new_runs = sender.new.runs(file.number);
    let old_side = sender.old.filter(|_| file.old.is_some());
    let mut old_runs = old_side.map(|old| old.runs(file.number));
    let sector_bytes = u64::from(sender.new.context.sector_bytes());
    let old_end = old_bytes.checked_next_multiple_of(sector_bytes);
    let old_end = old_end.unwrap_or(u64::MAX);
    let mut at = 0;
    while at < size_bytes {
        sender.options.refuse_if_cancelled()?;
        let run = new_runs.at(at)?;
        let mut end = run.file.end.min(size_bytes);
        let old_run = match &mut old_runs {
            Some(runs) if at < old_end => old_run(runs, at, old_end)?,
            Some(_) | None => hole(at),
        };
        end = end.min(old_run.file.end);
        let step = if is_same_data(&old_run, &run, at) {
            Step::Same
        } else if !is_zero(&run.backing) {
            Step::Data
        } else if is_zero(&old_run.backing) {
            Step::Same
        } else {
            Step::Zeros
        };
        match step {
            Step::Same => {}
            Step::Zeros => send_zeros(sender, file, at, end)?,
            Step::Data => {
                send_data(sender, file, &run, at, end)?;
                reached = reached.max(end);
            }
        }
        if let Backing::Prealloc(place) = &run.backing
            && old_run.backing.place() != Some(place)
        {
            allocate(sender, file, at, end)?;
        }
        at = end;
    }
    if reached < size_bytes {
        truncate(sender, file, size_bytes)?;
    }
    Ok(sender.commands != before)
}

fn truncate(sender: &mut Sender<'_, '_>, file: &File<'_>, size_bytes: u64) -> Result<()> {
    let path = file.path;
    sender.put(&Command::Truncate { path, size_bytes })
}

/// Sends that a range is preallocated, which version 1 cannot say.
fn allocate(sender: &mut Sender<'_, '_>, file: &File<'_>, at: u64, end: u64) -> Result<()> {
    if sender.out.version() < 2 || sender.options.no_data {
        return Ok(());
    }
    sender.put(&Command::Fallocate {
        path: file.path,
        mode: KEEP_SIZE,
        offset: at,
        len_bytes: end - at,
    })
}

/// Sends that data in a range gave way to zeros.
fn send_zeros(sender: &mut Sender<'_, '_>, file: &File<'_>, at: u64, end: u64) -> Result<()> {
    let path = file.path;
    if sender.options.no_data {
        return sender.put(&Command::UpdateExtent {
            path,
            offset: at,
            len_bytes: end - at,
        });
    }
    if sender.out.version() >= 2 {
        return sender.put(&Command::Fallocate {
            path,
            mode: PUNCH_HOLE,
            offset: at,
            len_bytes: end - at,
        });
    }
    let zeros = vec![0; usize::try_from(WRITE_BYTES.min(end - at)).unwrap_or_default()];
    let mut offset = at;
    while offset < end {
        let count = WRITE_BYTES.min(end - offset);
        let data = &zeros[..usize::try_from(count).unwrap_or_default()];
        sender.put(&Command::Write { path, offset, data })?;
        offset += count;
    }
    Ok(())
}

/// Sends a part of a run, from `at` to `end`.
fn send_data(
    sender: &mut Sender<'_, '_>,
    file: &File<'_>,
    run: &FileRun,
    at: u64,
    end: u64,
) -> Result<()> {
    if sender.options.no_data {
        return sender.put(&Command::UpdateExtent {
            path: file.path,
            offset: at,
            len_bytes: end - at,
        });
    }
    let Backing::Data {
        place,
        ram_bytes,
        compression,
    } = &run.backing
    else {
        return write(sender, file, at, end);
    };
    let mut at = at;
    while at < end {
        let part = ExtentPlace {
            offset: place.offset.saturating_add(at - run.file.start),
            ..*place
        };
        let cloned = clone_part(sender, file, part, at, end)?;
        if cloned > 0 {
            at += cloned;
            continue;
        }
        if *compression != Compression::None && sender.options.compressed {
            return write_encoded(sender, file, &part, (*ram_bytes, *compression), at..end);
        }
        return write(sender, file, at, end);
    }
    Ok(())
}

/// Makes the receiver clone the beginning of a part. Returns how much of it.
fn clone_part(
    sender: &mut Sender<'_, '_>,
    file: &File<'_>,
    place: ExtentPlace,
    at: u64,
    end: u64,
) -> Result<u64> {
    let wanted = Wanted {
        place,
        inode: file.number,
        at,
        end,
        size_bytes: file.item.size_bytes,
        flags: file.item.flags,
    };
    let Some(found) = sender.clones.find(&sender.sides, &wanted, sender.options)? else {
        return Ok(0);
    };
    let side = sender.sides[found.side];
    let (parent, name) = side.link(found.inode)?;
    let dir = side.dir_path(parent, &sender.nothing_moved)?;
    let source_path = join(&dir, &name);
    sender.put(&Command::Clone {
        path: file.path,
        offset: at,
        len_bytes: found.len_bytes,
        source: side.source(),
        source_path: &source_path,
        source_offset: found.offset,
    })?;
    Ok(found.len_bytes)
}

fn write(sender: &mut Sender<'_, '_>, file: &File<'_>, at: u64, end: u64) -> Result<()> {
    let count_max = if sender.out.version() < 2 {
        WRITE_BYTES
    } else {
        WRITE_BYTES_V2
    };
    let contents = sender.new.contents(file.number, file.item);
    let mut buffer = std::mem::take(&mut sender.buffer);
    let mut offset = at;
    while offset < end {
        let count = count_max.min(end - offset);
        buffer.resize(usize::try_from(count).unwrap_or_default(), 0);
        contents.fill(offset, &mut [IoSliceMut::new(&mut buffer)])?;
        sender.put(&Command::Write {
            path: file.path,
            offset,
            data: &buffer,
        })?;
        offset += count;
    }
    sender.buffer = buffer;
    Ok(())
}

/// Sends a part of a compressed extent as it is on the devices.
fn write_encoded(
    sender: &mut Sender<'_, '_>,
    file: &File<'_>,
    place: &ExtentPlace,
    (ram_bytes, compression): (u64, Compression),
    range: std::ops::Range<u64>,
) -> Result<()> {
    let context = sender.new.context;
    let mut buffer = std::mem::take(&mut sender.buffer);
    buffer.resize(usize::try_from(place.disk_bytes).unwrap_or_default(), 0);
    let reader = Reader {
        tree: sender.new.subvolume.id,
        inode: file.number,
        is_summed: !file.item.flags.contains(InodeFlags::NODATASUM),
    };
    let bufs = &mut [IoSliceMut::new(&mut buffer)];
    let data = sender.new.data.reader;
    data.read(context, reader, place.logical, bufs)?;
    let form = EncodedForm {
        compression,
        sector_bytes: context.sector_bytes(),
    };
    let encoded = EncodedData {
        file_bytes: range.end - range.start,
        ram_bytes,
        offset: place.offset,
        compression: form.number(),
        encryption: 0,
        data: &buffer,
    };
    sender.put(&Command::EncodedWrite {
        path: file.path,
        offset: range.start,
        encoded,
    })?;
    sender.buffer = buffer;
    Ok(())
}

fn hole(at: u64) -> FileRun {
    FileRun {
        file: at..u64::MAX,
        backing: Backing::Hole,
        generation: crate::ondisk::Generation(0),
    }
}

/// The run of the older file, within its size.
fn old_run(runs: &mut Runs<'_>, at: u64, old_end: u64) -> Result<FileRun> {
    let mut run = runs.at(at)?;
    run.file.end = run.file.end.min(old_end);
    Ok(run)
}
