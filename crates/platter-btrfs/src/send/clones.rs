//! Where a receiver has an extent already: other files that refer to it.

use std::collections::BTreeSet;

use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{FileKind, Result};

use super::side::Side;
use crate::context::FsContext;
use crate::file::Backing;
use crate::items::ItemCursor;
use crate::ondisk::extent_item::{ExtentItem, ExtentRef};
use crate::ondisk::file_extent::{ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeFlags;
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// References of an extent that are looked at: there may be any number.
const REFERENCES_MAX: usize = 64;

/// A file that may refer to an extent, and where the extent would begin in it.
type Candidate = (u64, u64);

/// The references of the extent that was looked up last.
#[derive(Debug, Default)]
pub(super) struct Clones {
    logical: Option<LogicalAddr>,
    candidates: Vec<Candidate>,
}

/// A part of an extent that a file is to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// The extent; its offset is where the part begins in it.
    pub(super) place: ExtentPlace,
    /// The file.
    pub(super) inode: u64,
    /// Where the part begins in the file.
    pub(super) at: u64,
    /// Where it ends.
    pub(super) end: u64,
    /// The size of the file.
    pub(super) size_bytes: u64,
    /// The flags of the file.
    pub(super) flags: InodeFlags,
}

/// A file that has a part of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Which subvolume: its index in the list that was searched.
    pub(super) side: usize,
    /// The file.
    pub(super) inode: u64,
    /// Where the part begins in it.
    pub(super) offset: u64,
    /// How much of the part it has.
    pub(super) len_bytes: u64,
}

impl Clones {
    /// The file with most of a part from its beginning on. `sides` are the subvolumes that the receiver has, and
    /// last the one that is sent, of which it has the files up to this one. Ends early where the stream is cancelled.
    pub(super) fn find(
        &mut self,
        sides: &[Side<'_>],
        wanted: &Wanted,
        options: &SendOptions,
    ) -> Result<Option<Found>> {
        let Some(sent) = sides.len().checked_sub(1) else {
            return Ok(None);
        };
        let context = sides[sent].context;
        if self.logical != Some(wanted.place.logical) {
            self.candidates = candidates(context, &wanted.place)?;
            self.logical = Some(wanted.place.logical);
        }
        let mut best: Option<Found> = None;
        for (index, side) in sides.iter().enumerate() {
            for &(inode, begins) in &self.candidates {
                let is_sent = index == sent;
                if is_sent && inode > wanted.inode {
                    continue;
                }
                options.refuse_if_cancelled()?;
                let offset = begins.wrapping_add(wanted.place.offset);
                let Some(len_bytes) = shared(side, (inode, offset), wanted, is_sent)? else {
                    continue;
                };
                if best.is_none_or(|best| best.len_bytes < len_bytes) {
                    best = Some(Found {
                        side: index,
                        inode,
                        offset,
                        len_bytes,
                    });
                }
            }
        }
        Ok(best)
    }
}

/// How much of a part a file has at an offset, as can be cloned.
fn shared(
    side: &Side<'_>,
    (inode, offset): (u64, u64),
    wanted: &Wanted,
    is_sent: bool,
) -> Result<Option<u64>> {
    let sector_bytes = u64::from(side.context.sector_bytes());
    if i64::try_from(offset).is_err() || !offset.is_multiple_of(sector_bytes) {
        return Ok(None);
    }
    let Some(item) = side.inode(inode)? else {
        return Ok(None);
    };
    let unsummed = |flags: InodeFlags| flags.contains(InodeFlags::NODATASUM);
    let is_file = item.kind == FileKind::Regular;
    if !is_file || unsummed(item.flags) != unsummed(wanted.flags) || offset >= item.size_bytes {
        return Ok(None);
    }
    let run = side.runs(inode).at(offset)?;
    let Backing::Data { place, .. } = run.backing else {
        return Ok(None);
    };
    let begins = place.offset.wrapping_add(offset - run.file.start);
    if place.logical != wanted.place.logical || begins != wanted.place.offset {
        return Ok(None);
    }
    let mut end = run.file.end.min(item.size_bytes);
    if is_sent && inode == wanted.inode {
        // Of the file itself, what is before the part.
        end = end.min(wanted.at);
    }
    let Some(has) = end.checked_sub(offset) else {
        return Ok(None);
    };
    let len_bytes = has.min(wanted.end - wanted.at);
    let to_both_ends =
        offset + len_bytes == item.size_bytes && wanted.at + len_bytes == wanted.size_bytes;
    let len_bytes = if to_both_ends {
        len_bytes
    } else {
        len_bytes - len_bytes % sector_bytes
    };
    Ok((len_bytes > 0).then_some(len_bytes))
}

/// The files that refer to an extent, by its references and by the leaves that those name; none if there is only
/// one reference.
fn candidates(context: &FsContext, place: &ExtentPlace) -> Result<Vec<Candidate>> {
    let tree = context.required_tree(TreeId::EXTENT)?;
    let mut cursor = context.cursor(tree);
    let mut refs = references(&mut cursor, place)?;
    let count: u64 = refs.iter().map(|it| it.count()).sum();
    if count < 2 {
        return Ok(Vec::new());
    }
    let leaves: BTreeSet<_> = refs.iter().filter_map(leaf).collect();
    if !leaves.is_empty() {
        // Commits wait for the cursor, which must not wait for the devices.
        drop(cursor);
        context.blocks.read_ahead(leaves);
        cursor = context.cursor(tree);
        refs = references(&mut cursor, place)?;
    }
    // While the extent tree says that a leaf refers to the extent, that is not freed.
    let mut found = BTreeSet::new();
    for reference in refs {
        if found.len() >= REFERENCES_MAX {
            break;
        }
        if let ExtentRef::Data { inode, offset, .. } = reference {
            found.insert((inode, offset));
        } else if let Some(leaf) = leaf(&reference) {
            of_leaf(context, leaf, place.logical, &mut found)?;
        }
    }
    drop(cursor);
    Ok(found.into_iter().collect())
}

/// The leaf that refers to an extent, where the reference says no more.
fn leaf(reference: &ExtentRef) -> Option<LogicalAddr> {
    match reference {
        ExtentRef::SharedData { parent, .. } => Some(*parent),
        ExtentRef::Data { .. }
        | ExtentRef::TreeBlock { .. }
        | ExtentRef::SharedBlock { .. }
        | ExtentRef::Owner { .. } => None,
    }
}

/// The first references of an extent, by a cursor in the extent tree.
fn references(cursor: &mut ItemCursor<'_>, place: &ExtentPlace) -> Result<Vec<ExtentRef>> {
    let tree = cursor.tree();
    let key = Key::new(place.logical.0, ItemKind::EXTENT_ITEM, place.disk_bytes);
    cursor.seek(key)?;
    let Some((_, data)) = cursor.item().filter(|(found, _)| *found == key) else {
        return Ok(Vec::new());
    };
    let mut refs = ExtentItem::decode(key, data, tree.locus(key))?.inline;
    refs.truncate(REFERENCES_MAX);
    while refs.len() < REFERENCES_MAX {
        cursor.step()?;
        let Some((found, data)) = cursor.item() else {
            break;
        };
        let is_reference = matches!(
            found.kind,
            ItemKind::EXTENT_DATA_REF | ItemKind::SHARED_DATA_REF
        );
        if found.object != key.object || !is_reference {
            break;
        }
        refs.push(ExtentRef::decode_keyed(found, data, tree.locus(found))?);
    }
    Ok(refs)
}

/// The files of a leaf that refer to an extent.
fn of_leaf(
    context: &FsContext,
    leaf: LogicalAddr,
    extent: LogicalAddr,
    found: &mut BTreeSet<Candidate>,
) -> Result<()> {
    let expected = Expected {
        level: Some(0),
        ..Expected::default()
    };
    let block = context.blocks.read(leaf, &expected)?;
    for (key, data) in block.leaf().iter() {
        if key.kind != ItemKind::EXTENT_DATA || found.len() >= REFERENCES_MAX {
            continue;
        }
        let locus = platter_ondisk::Locus::block(leaf.0);
        let sector_bytes = context.sector_bytes();
        let item = FileExtent::decode(data, key.offset, sector_bytes, locus)?;
        if let FileExtentKind::Regular(place) = item.kind
            && place.logical == extent
        {
            found.insert((key.object, key.offset.wrapping_sub(place.offset)));
        }
    }
    Ok(())
}
