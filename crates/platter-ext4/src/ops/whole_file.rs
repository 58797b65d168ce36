//! Regular files that are made with all that belongs to them. Their contents come to lie side by side,
//! and are written before anything names them.

use std::io::IoSlice;

use platter_vfs::file::ZEROS;
use platter_vfs::namei::may_create;
use platter_vfs::{CreateKind, FileKind, Result, WholeFile};

use super::inode_quota::cluster_sectors;
use super::new_inode::{self, Blueprint, inherited_flags};
use super::{Ext4Inode, InodeState, create};
use crate::alloc::{self, ALLOC_INODE_CREDITS, Allocator, Portion, RECORD_CREDITS, Taken};
use crate::directory::insert_credits;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, BlockMap, MapChange, Run};
use crate::ondisk::extent::Extent;
use crate::ondisk::features::Incompat;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags};
use crate::txn::Handle;

/// Blocks that a map of block numbers names without further blocks.
const DIRECT_BLOCKS: u32 = 12;
/// Blocks that a file without attributes, whose contents are one run, changes at most in addition to
/// those of its directory; what its map asks for in case it had to grow is among them.
const WHOLE_CREDITS: u32 = ALLOC_INODE_CREDITS + STORE_CREDITS + RECORD_CREDITS + 16;

/// Where the contents of a file lie, until they are recorded; an empty file has none.
type Place = Option<Taken>;

/// Makes as many of the first files as there is no obstacle to. Returns how many.
pub(super) fn create_together(node: &Ext4Inode, files: &[WholeFile<'_>]) -> usize {
    let Ok(space) = node.sb.space() else {
        return 0;
    };
    let _writer = node.sb.writers.enter();
    let _order = node.order.write();
    if !takes_whole_files(node) {
        return 0;
    }
    let mut places = place_contents(node, space, files);
    let written = write_contents(node, files, &places);
    let made = written.map_or(0, |()| name_all(node, space, files, &mut places));
    for taken in places.into_iter().flatten() {
        alloc::give_back(space, taken);
    }
    made
}

/// Whether new files need no more than an inode, a name, and blocks of their own.
fn takes_whole_files(node: &Ext4Inode) -> bool {
    let fs = node.fs();
    let state = node.state.read();
    let flags = inherited_flags(state.inode.flags, FileKind::Regular);
    let has_inline = fs
        .geometry
        .features
        .incompat
        .contains(Incompat::INLINE_DATA);
    flags.is_empty()
        && !state.inode.flags.contains(InodeFlags::DIR_SYNC)
        && fs.quotas().is_none()
        && !has_inline
        && !fs.journals_contents(flags)
        && !state.inode.has_attributes()
        && may_create(&state.link_state()).is_ok()
}

/// Takes a run of blocks for the first files, as many as find space in it.
fn place_contents(node: &Ext4Inode, space: &Allocator, files: &[WholeFile<'_>]) -> Vec<Place> {
    let fs = node.fs();
    let geometry = &fs.geometry;
    let ratio = geometry.cluster_blocks;
    let has_extents = geometry.features.incompat.contains(Incompat::EXTENTS);
    let blocks_max = if has_extents {
        Extent::count_max(false)
    } else {
        DIRECT_BLOCKS
    };
    let blocks_of = |file: &WholeFile<'_>| {
        let blocks = file.contents.len().div_ceil(geometry.block_bytes as usize);
        u32::try_from(blocks).unwrap_or(u32::MAX)
    };
    let counts: Vec<u32> = files
        .iter()
        .map(blocks_of)
        .take_while(|&blocks| blocks <= blocks_max)
        .collect();
    let all = counts.iter().map(|blocks| blocks.next_multiple_of(ratio));
    let all = all.fold(0u32, u32::saturating_add);
    let goal = space.first_goal(node.number, FileKind::Regular);
    let mut taken = match all {
        0 => None,
        _ => alloc::take(space, fs, goal, all, space.contents_from()).ok(),
    };
    let mut places = Vec::with_capacity(counts.len());
    for blocks in counts {
        let place = taken
            .as_mut()
            .and_then(|run| run.split_first(blocks, ratio));
        if blocks > 0 && place.is_none() {
            break;
        }
        places.push(place);
    }
    if let Some(rest) = taken {
        alloc::give_back(space, rest);
    }
    places
}

/// Writes contents to their places: those that lie side by side by one request.
fn write_contents(node: &Ext4Inode, files: &[WholeFile<'_>], places: &[Place]) -> Result<()> {
    let fs = node.fs();
    let geometry = &fs.geometry;
    let placed: Vec<_> = files
        .iter()
        .zip(places)
        .filter_map(|(file, place)| Some((place.as_ref()?.blocks(), file.contents)))
        .collect();
    for run in placed.chunk_by(|(left, _), (right, _)| left.end == right.start) {
        let mut bufs = Vec::with_capacity(2 * run.len());
        for (blocks, contents) in run {
            let len = geometry.offset_bytes(blocks.end) - geometry.offset_bytes(blocks.start);
            let missing = usize::try_from(len).map_or(0, |len| len - contents.len());
            bufs.push(IoSlice::new(contents));
            let zeros = ZEROS.get(..missing).filter(|zeros| !zeros.is_empty());
            bufs.extend(zeros.map(IoSlice::new));
        }
        let start = run.first().map_or(BlockNr(0), |(blocks, _)| blocks.start);
        let offset = geometry.offset_bytes(start);
        node.sb.write_data(offset, &bufs)?;
    }
    Ok(())
}

/// Makes the files that have a place. Returns how many could be made.
fn name_all(
    node: &Ext4Inode,
    space: &Allocator,
    files: &[WholeFile<'_>],
    places: &mut [Place],
) -> usize {
    let mut made = 0;
    while made < places.len() {
        let some = name_some(node, space, &files[made..], &mut places[made..]);
        if some == 0 {
            break;
        }
        made += some;
    }
    made
}

/// Makes the first files, as many as the transaction has space for.
fn name_some(
    node: &Ext4Inode,
    space: &Allocator,
    files: &[WholeFile<'_>],
    places: &mut [Place],
) -> usize {
    let fs = node.fs();
    if inode::read_slot(fs, node.number).is_err() {
        return 0;
    }
    let needed = |state: &InodeState| STORE_CREDITS + insert_credits(&state.map) + WHOLE_CREDITS;
    let credits = needed(&node.state.read());
    let Ok(mut handle) = fs.begin(credits) else {
        return 0;
    };
    let mut state = node.state.write();
    let mut made = 0;
    for (file, place) in files.iter().zip(places) {
        let missing = needed(&state).saturating_sub(handle.credits());
        if missing > 0 && !handle.extend(missing) {
            break;
        }
        if name_one(node, space, &mut handle, &mut state, file, place).is_err() {
            break;
        }
        made += 1;
    }
    if made == 0 {
        return 0;
    }
    state.touch_names(node.sb.clock.now());
    // An error ends all writing, which the next change reports.
    let stored = state.store_data(fs, &mut handle);
    stored.map_or(0, |()| made)
}

/// # Errors
/// With one, nothing was changed, or the transaction was aborted.
fn name_one(
    node: &Ext4Inode,
    space: &Allocator,
    handle: &mut Handle<'_>,
    state: &mut InodeState,
    file: &WholeFile<'_>,
    place: &mut Place,
) -> Result<()> {
    let fs = node.fs();
    let vacancy = state.directory(fs)?.vacancy(file.name)?;
    let context = file.context();
    let space = space.portion(node.reserve_of(&context));
    let blueprint = Blueprint {
        context: &context,
        kind: &CreateKind::Regular,
        permissions: file.permissions,
        default_acl: None,
        target_block: None,
    };
    let (mut inode, mut map) = create::take_inode(node, space, handle, state, blueprint)?;
    let (number, kind) = (inode.number, inode.kind);
    let named = state
        .directory_mut(fs, &space, handle)
        .and_then(|mut directory| directory.insert_at(vacancy, file.name, number, kind));
    if let Err(error) = named {
        new_inode::undo(node, space, handle, (&mut inode, &mut map))?;
        return Err(error);
    }
    inode.links = 1;
    (inode.uid, inode.gid) = (file.uid, file.gid);
    inode.permissions = file.permissions & 0o7777;
    let time = inode.storable(file.modified);
    (inode.accessed, inode.modified) = (time, time);
    let filled = fill_whole(node, space, handle, (&mut inode, &mut map), (file, place))
        .and_then(|()| inode::initialize(fs, handle, &inode));
    filled.map_err(|error| handle.abort(error))
}

/// Has a new file name its contents.
fn fill_whole(
    node: &Ext4Inode,
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    (inode, map): (&mut Inode, &mut BlockMap),
    (file, place): (&WholeFile<'_>, &mut Place),
) -> Result<()> {
    let fs = node.fs();
    inode.size_bytes = file.contents.len() as u64;
    let Some(taken) = place.take() else {
        return Ok(());
    };
    let geometry = &fs.geometry;
    let clusters = u64::from(taken.count().div_ceil(geometry.cluster_blocks));
    inode.sectors = clusters.saturating_mul(cluster_sectors(geometry));
    let run = Run {
        first: FileBlock(0),
        count: taken.count(),
        backing: Backing::Written(taken.start()),
    };
    let mut change = MapChange {
        fs,
        space: &space,
        handle,
        inode,
    };
    let mapped = map.insert(&mut change, run)?;
    debug_assert_eq!(mapped, run.count, "one run goes into an empty map");
    alloc::record(space.space, fs, handle, taken)
}
