//! Where dirty contents go at writeback: over what the file has there alone, into its item, compressed, or as they
//! are.

use std::ops::Range;

use platter_vfs::file::{Allocation, Backing, FileBlocks, FileRun, Request};
use platter_vfs::{Condition, FileKind, Result};

use super::file_extents::EXTENT_SECTORS_MAX;
use super::state::{Purpose, SECTOR_BITS, SECTOR_BYTES};
use super::{BtrfsInode, file_extents, ordered_data, properties};
use crate::compress::{Method, looks_compressible};
use crate::file::{self, Runs};
use crate::ondisk::file_extent::{
    COMPRESSED_BYTES_MAX, Compression, ExtentPlace, FileExtent, FileExtentKind,
};
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::{LogicalAddr, leaf_edit};
use crate::txn::{FileRange, Handle, InPlaceTurn, data_extents, exclusive};

/// The most bytes of contents in an item (`max_inline`).
const INLINE_BYTES_MAX: u64 = 2048;

/// How contents are stored.
#[derive(Debug)]
pub(super) enum Stored {
    /// In a new extent.
    Plain {
        /// They were found not to compress.
        resists: bool,
    },
    /// In a new extent, compressed.
    Compressed(Compression, Vec<u8>),
    /// In the item: all of the file, as many bytes as are given first.
    Inline(u64, Compression, Vec<u8>),
    /// In the extent that the file has there.
    InPlace {
        /// It reads as zeros until it is mapped.
        was_prealloc: bool,
        /// Nothing makes it shared meanwhile.
        _turn: InPlaceTurn,
    },
}

/// Space that was allocated and has no file extent yet.
#[derive(Debug)]
pub struct Allocated {
    pub(super) run: FileRun,
    pub(super) address: LogicalAddr,
    pub(super) is_mapped: bool,
    pub(super) stored: Stored,
}

impl Allocated {
    /// Whether its space was allocated for this.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.stored, Stored::Plain { .. } | Stored::Compressed(..))
    }

    /// The bytes of the file.
    pub(super) fn len_bytes(&self) -> u64 {
        self.run.count << SECTOR_BITS
    }

    /// The bytes of the extent.
    pub(super) fn disk_bytes(&self) -> u64 {
        match &self.stored {
            Stored::Compressed(_, bytes) => bytes.len() as u64,
            Stored::Inline(..) => 0,
            Stored::Plain { .. } | Stored::InPlace { .. } => self.len_bytes(),
        }
    }
}

impl Allocation for Allocated {
    fn run(&self) -> FileRun {
        self.run
    }

    fn encoded(&self) -> Option<&[u8]> {
        match &self.stored {
            Stored::Compressed(_, bytes) => Some(bytes),
            Stored::Plain { .. } | Stored::Inline(..) | Stored::InPlace { .. } => None,
        }
    }
}

/// Chunks of a request that were compressed together.
#[derive(Debug, Default)]
pub struct Ahead(Vec<Chunk>);

/// A chunk of a request; without bytes if it does not compress.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) blocks: Range<u64>,
    pub(super) bytes: Option<Vec<u8>>,
    resists: bool,
}

/// Finds a place for the first of a range of dirty blocks.
pub(super) fn allocate(
    inode: &BtrfsInode,
    mut blocks: Range<u64>,
    data: &Request<'_>,
    ahead: &mut Ahead,
) -> Result<Allocated> {
    if blocks.start == data.offset >> SECTOR_BITS {
        // Of a request that failed.
        ahead.0.clear();
    }
    let item = inode.item();
    let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
    if item.flags.intersects(in_place)
        && let Some(found) = find_in_place(inode, &mut blocks, &item)?
    {
        return Ok(found);
    }
    if let Some(found) = allocate_inline(inode, &blocks, data, &item)? {
        return Ok(found);
    }
    let Some((method, is_forced)) = properties::compression(inode, &item)? else {
        return allocate_new(inode, blocks, Stored::Plain { resists: false });
    };
    if blocks.end - blocks.start < 2 {
        return allocate_new(inode, blocks, Stored::Plain { resists: false });
    }
    let chunk = compress_chunk(inode, &blocks, data, (method, is_forced), ahead);
    let Some(bytes) = chunk.bytes else {
        let resists = chunk.resists && !is_forced;
        return allocate_new(inode, chunk.blocks, Stored::Plain { resists });
    };
    allocate_new(
        inode,
        chunk.blocks,
        Stored::Compressed(method.compression, bytes),
    )
}

/// Allocates an extent, or as much of it as there is in one piece.
fn allocate_new(inode: &BtrfsInode, blocks: Range<u64>, stored: Stored) -> Result<Allocated> {
    let resists = matches!(stored, Stored::Plain { resists: true });
    if let Stored::Compressed(compression, bytes) = stored {
        match allocate_compressed(inode, &blocks, compression, bytes) {
            // In several pieces it is written as it is.
            Err(platter_vfs::Error::Condition(Condition::NoSpace)) => {}
            placed => return placed,
        }
    }
    let count = (blocks.end - blocks.start).min(EXTENT_SECTORS_MAX);
    let handle = inode.fs.begin(0, Purpose::Free)?;
    let (address, len_bytes) = data_extents::allocate_part(&handle, count << SECTOR_BITS)?;
    let count = len_bytes >> SECTOR_BITS;
    Ok(allocated(
        &blocks,
        count,
        address,
        Stored::Plain { resists },
    ))
}

/// Allocates an extent for compressed bytes, which are whole sectors.
///
/// # Errors
/// `ENOSPC` if they have no space in one piece.
pub(super) fn allocate_compressed(
    inode: &BtrfsInode,
    blocks: &Range<u64>,
    compression: Compression,
    bytes: Vec<u8>,
) -> Result<Allocated> {
    data_extents::use_compression(inode.fs.transactions()?, compression);
    let handle = inode.fs.begin(0, Purpose::Free)?;
    let address = data_extents::allocate(&handle, bytes.len() as u64)?;
    let stored = Stored::Compressed(compression, bytes);
    let count = blocks.end - blocks.start;
    Ok(allocated(blocks, count, address, stored))
}

/// Has `map` make the file refer to what was written, once readers of what that replaces have ended. If it was not
/// written, or `map` fails, its space is given back.
pub(super) fn map_or_give_back(
    inode: &BtrfsInode,
    new: Allocated,
    written: Result<()>,
    map: impl FnOnce(&Allocated) -> Result<()>,
) -> Result<()> {
    let mapped = written.and_then(|()| {
        let _alone = inode.data.mapping.write();
        map(&new)
    });
    if mapped.is_err() {
        inode.give_back(new)?;
    }
    mapped
}

/// The extent that the file has there, if it may be written. Else the range is cut where another begins.
fn find_in_place(
    inode: &BtrfsInode,
    blocks: &mut Range<u64>,
    item: &InodeItem,
) -> Result<Option<Allocated>> {
    let gate = inode.fs.transactions()?.in_place();
    loop {
        let turn = gate.enter();
        let at = blocks.start << SECTOR_BITS;
        let run = Runs::new(inode.context(), inode.tree(), inode.id.number).at(at)?;
        let end = blocks.end.min(run.file.end.div_ceil(SECTOR_BYTES));
        blocks.end = end;
        let keeps_data = inode.fs.transactions()?.is_one_transaction();
        let Some((place, generation, was_prealloc)) = over(&run, item.flags, keeps_data) else {
            return Ok(None);
        };
        let address = place.logical.0 + place.offset + (at - run.file.start);
        let count = end - blocks.start;
        let range = address..address + (count << SECTOR_BITS);
        let Some(turn) = turn.covering(range.clone()) else {
            // A copy elsewhere would take space that was not reserved.
            gate.wait_for(&range);
            continue;
        };
        if !is_exclusive(inode, &run, place, generation)? {
            return Ok(None);
        }
        let stored = Stored::InPlace {
            was_prealloc,
            _turn: turn,
        };
        return Ok(Some(allocated(blocks, count, LogicalAddr(address), stored)));
    }
}

fn is_exclusive(
    inode: &BtrfsInode,
    run: &file::FileRun,
    place: &ExtentPlace,
    generation: crate::ondisk::Generation,
) -> Result<bool> {
    let range = FileRange {
        tree: inode.tree_id(),
        inode: inode.id.number,
        offset: run.file.start,
    };
    let writing = inode.fs.transactions()?;
    exclusive::is_exclusive(writing, range, place, generation)
}

/// Whether all of a range can be written where it is.
pub(super) fn is_written_over(inode: &BtrfsInode, blocks: &Range<u64>) -> Result<bool> {
    let flags = inode.item().flags;
    if !flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC) {
        return Ok(false);
    }
    let keeps_data = inode.fs.transactions()?.is_one_transaction();
    let mut at = blocks.start << SECTOR_BITS;
    while at < blocks.end << SECTOR_BITS {
        let run = Runs::new(inode.context(), inode.tree(), inode.id.number).at(at)?;
        let Some((place, generation, _)) = over(&run, flags, keeps_data) else {
            return Ok(false);
        };
        if !is_exclusive(inode, &run, place, generation)? {
            return Ok(false);
        }
        at = run.file.end;
    }
    Ok(true)
}

/// Whether a file that ends here may be in its item.
pub(super) fn may_be_inline(inode: &BtrfsInode, end: u64) -> Result<bool> {
    let item = inode.item();
    let no = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
    if inode.kind != FileKind::Regular || item.flags.intersects(no) {
        return Ok(false);
    }
    let is_compressed = properties::compression(inode, &item)?.is_some();
    let most = if is_compressed {
        SECTOR_BYTES
    } else {
        INLINE_BYTES_MAX
    };
    Ok(end <= most)
}

fn allocate_inline(
    inode: &BtrfsInode,
    blocks: &Range<u64>,
    data: &Request<'_>,
    item: &InodeItem,
) -> Result<Option<Allocated>> {
    let size = inode.data.size_bytes();
    let is_whole = data.offset == 0 && data.end == size && blocks.start == 0;
    if !is_whole || inode.inline.goes_long() || !may_be_inline(inode, size)? {
        return Ok(None);
    }
    let bytes = gather(data, 0..size);
    let method = properties::compression(inode, item)?;
    let Some((compression, bytes)) = inline_form(inode, &bytes, method) else {
        return Ok(None);
    };
    if compression != Compression::None {
        data_extents::use_compression(inode.fs.transactions()?, compression);
    }
    Ok(Some(Allocated {
        run: FileRun {
            first: 0,
            count: 1,
            backing: Backing::Hole,
        },
        address: LogicalAddr(0),
        is_mapped: false,
        stored: Stored::Inline(size, compression, bytes),
    }))
}

/// All contents of a file as they are stored in its item, if they go there.
pub(super) fn inline_form(
    inode: &BtrfsInode,
    contents: &[u8],
    method: Option<(Method, bool)>,
) -> Option<(Compression, Vec<u8>)> {
    let sector = inode.context().sector_bytes() as usize;
    let node_bytes = inode.context().superblock.node_bytes;
    let capacity = leaf_edit::capacity(node_bytes) / 2;
    let most = usize::try_from(INLINE_BYTES_MAX).unwrap_or(0).min(capacity);
    if let Some((method, is_forced)) = method
        && contents.len() <= sector
        && (is_forced || looks_compressible(contents))
    {
        let less = contents.len().saturating_sub(1).min(most);
        let compressor = &inode.fs.compressor;
        if let Some(output) = compressor.compress(method, contents, less, sector) {
            return Some((method.compression, output));
        }
    }
    (contents.len() <= most).then(|| (Compression::None, contents.to_vec()))
}

/// The next chunk of a request. Several are compressed at the same time where threads are free.
pub(super) fn compress_chunk(
    inode: &BtrfsInode,
    blocks: &Range<u64>,
    data: &Request<'_>,
    (method, is_forced): (Method, bool),
    ahead: &mut Ahead,
) -> Chunk {
    let known = ahead
        .0
        .iter()
        .position(|chunk| chunk.blocks.start == blocks.start && chunk.blocks.end <= blocks.end);
    if let Some(known) = known {
        return ahead.0.swap_remove(known);
    }
    ahead.0.clear();
    let helpers = inode.fs.data.helpers();
    let step = COMPRESSED_BYTES_MAX >> SECTOR_BITS;
    let starts = (blocks.start..blocks.end).step_by(usize::try_from(step).unwrap_or(1));
    let mut chunks: Vec<_> = starts
        .take(helpers.count() + 1)
        .map(|start| Chunk {
            blocks: start..(start + step).min(blocks.end),
            bytes: None,
            resists: false,
        })
        .collect();
    let sector = inode.context().sector_bytes() as usize;
    let work = |chunk: &mut Chunk| {
        let bytes = chunk.blocks.start << SECTOR_BITS..chunk.blocks.end << SECTOR_BITS;
        let most = usize::try_from(bytes.end - bytes.start).unwrap_or(0) - sector;
        let mut input = gather(data, bytes);
        input.resize(most + sector, 0);
        if !is_forced && !looks_compressible(&input) {
            return Ok::<_, std::convert::Infallible>(());
        }
        let output = inode.fs.compressor.compress(method, &input, most, sector);
        chunk.resists = output.is_none();
        chunk.bytes = output.map(|mut output| {
            output.resize(output.len().next_multiple_of(sector), 0);
            output
        });
        Ok(())
    };
    let Ok(()) = helpers.each(chunks.iter_mut().collect(), work);
    let first = chunks.swap_remove(0);
    ahead.0 = chunks;
    first
}

/// Makes the file, which ends at `end` at least, refer to what was written, in a handle with so many credits.
pub(super) fn map_stored(
    inode: &BtrfsInode,
    new: &Allocated,
    end: u64,
    (credits, purpose): (u32, Purpose),
) -> Result<()> {
    let (address, disk_bytes) = (new.address, new.disk_bytes());
    let mut checksums = ordered_data::take_checksums(&inode.fs, address, disk_bytes);
    let start = new.run.first << SECTOR_BITS;
    let range = start..start + new.len_bytes();
    if let Stored::InPlace { was_prealloc, .. } = new.stored
        && !was_prealloc
    {
        // No transaction knows of it. The size is set when all is written.
        inode.data.sync.writes.record();
        inode.fs.overwrites.record();
        return Ok(());
    }
    inode.change(credits, purpose, |handle, item| {
        if item.flags.contains(InodeFlags::NODATASUM) {
            checksums.clear();
        }
        let extent = |compression| FileExtent {
            generation: handle.generation(),
            ram_bytes: new.len_bytes(),
            compression,
            file_bytes: new.len_bytes(),
            kind: FileExtentKind::Regular(ExtentPlace {
                logical: address,
                disk_bytes,
                offset: 0,
            }),
        };
        match &new.stored {
            Stored::InPlace { .. } => {
                if !checksums.is_empty() {
                    data_extents::insert_checksums(handle, address, checksums)?;
                }
                inode.extents_in(handle).mark_written(range)?;
            }
            Stored::Inline(size, compression, bytes) => {
                map_inline(inode, handle, item, *size, (*compression, bytes))?;
            }
            Stored::Plain { resists } => {
                if *resists {
                    item.flags.insert(InodeFlags::NOCOMPRESS);
                }
                file_extents::replace(
                    inode,
                    handle,
                    item,
                    start,
                    &extent(Compression::None),
                    checksums,
                )?;
            }
            Stored::Compressed(compression, _) => {
                file_extents::replace(
                    inode,
                    handle,
                    item,
                    start,
                    &extent(*compression),
                    checksums,
                )?;
            }
        }
        item.size_bytes = item.size_bytes.max(end);
        Ok(())
    })
}

/// Puts all contents into the item.
fn map_inline(
    inode: &BtrfsInode,
    handle: &Handle<'_>,
    item: &mut InodeItem,
    size: u64,
    (compression, bytes): (Compression, &[u8]),
) -> Result<()> {
    let extents = inode.extents_in(handle);
    let extent = FileExtent {
        generation: handle.generation(),
        ram_bytes: size,
        compression,
        file_bytes: size,
        kind: FileExtentKind::Inline(bytes),
    };
    let dropped = extents.drop_range(0..SECTOR_BYTES, usize::MAX)?;
    extents.insert(0, &extent, true)?;
    let kept = item.allocated_bytes.saturating_sub(dropped.bytes);
    item.allocated_bytes = kept.saturating_add(size);
    Ok(())
}

pub(super) fn allocated(
    blocks: &Range<u64>,
    count: u64,
    address: LogicalAddr,
    stored: Stored,
) -> Allocated {
    Allocated {
        run: FileRun {
            first: blocks.start,
            count,
            backing: Backing::Written(address.0),
        },
        address,
        is_mapped: false,
        stored,
    }
}

/// The extent of a run that may be written if nothing else refers to it, and whether it is preallocated. One that
/// `keeps_data` has to be preallocated: it reads as zeros until the commit.
fn over(
    run: &file::FileRun,
    flags: InodeFlags,
    keeps_data: bool,
) -> Option<(&ExtentPlace, crate::ondisk::Generation, bool)> {
    let unsummed = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    match &run.backing {
        file::Backing::Prealloc(place) => Some((place, run.generation, true)),
        file::Backing::Data {
            place, compression, ..
        } if *compression == Compression::None && flags.contains(unsummed) && !keeps_data => {
            Some((place, run.generation, false))
        }
        file::Backing::Data { .. } | file::Backing::Hole | file::Backing::Inline { .. } => None,
    }
}

/// A range of what is to be written.
fn gather(data: &Request<'_>, range: Range<u64>) -> Vec<u8> {
    let bufs = data.bytes(range);
    bufs.iter().flat_map(|buf| buf.iter().copied()).collect()
}
