//! The files that data is of, by the references to its extent.

use std::ops::Range;

use platter_ondisk::Locus;
use platter_vfs::Result;

use crate::context::FsContext;
use crate::ondisk::extent_item::{ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// References to an extent that are looked at to name a file.
const REFERENCES_MAX: usize = 256;
/// File extents that are looked at to name the files of an extent.
const FILE_EXTENTS_MAX: usize = 1 << 16;
/// Uses of an extent that are kept.
const USES_MAX: usize = 4096;
/// The longest compressed extent when it is decompressed.
const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// A file that a sector of data is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) tree: TreeId,
    pub(super) key: Key,
}

/// A data extent, and the files that use parts of it.
#[derive(Debug)]
struct Owned {
    extent: Range<u64>,
    /// The logical range of each use.
    uses: Vec<(Range<u64>, Owner)>,
    /// File extents that may still be looked at.
    left: usize,
}

impl Owned {
    /// The first file that uses a sector; of one that none uses, the first that refers to its extent.
    fn owner_of(&self, at: u64) -> Option<Owner> {
        let user = self.uses.iter().find(|(used, _)| used.contains(&at));
        user.or(self.uses.first()).map(|(_, owner)| *owner)
    }

    /// Records a file extent if it uses the extent. Returns `false` if no more are to be looked at.
    fn look_at(&mut self, file_extent: &FileExtent<'_>, owner: Owner) -> bool {
        if let Some(used) = used_range(file_extent, self.extent.start) {
            self.uses.push((used, owner));
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0 && self.uses.len() < USES_MAX
    }
}

/// Looks for the files that sectors are of.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The extent of the last sector.
    known: Option<Owned>,
}

impl Owners {
    /// The first file that uses a sector; of an extent whose other parts alone are used, the first that
    /// refers to it. The uses of an extent are kept for its other sectors.
    pub(super) fn owner_of(
        &mut self,
        context: &FsContext,
        at: LogicalAddr,
    ) -> Result<Option<Owner>> {
        let known = self.known.take();
        let known = known.filter(|owned| owned.extent.contains(&at.0));
        let owned = match known {
            Some(owned) => Some(owned),
            None => uses_of(context, at)?,
        };
        let owner = owned.as_ref().and_then(|owned| owned.owner_of(at.0));
        self.known = owned;
        Ok(owner)
    }
}

/// The extent that an address is in, and its uses.
fn uses_of(context: &FsContext, at: LogicalAddr) -> Result<Option<Owned>> {
    let Some((extent, references)) = references_to(context, at)? else {
        return Ok(None);
    };
    let mut owned = Owned {
        extent,
        uses: Vec::new(),
        left: FILE_EXTENTS_MAX,
    };
    for reference in references {
        // What cannot be read is what a check is for; others may name the file.
        let _ = match reference {
            ExtentRef::Data {
                tree,
                inode,
                offset,
                count: _,
            } => uses_in_file(context, tree, inode, offset, &mut owned),
            ExtentRef::SharedData { parent, count: _ } => uses_in_leaf(context, parent, &mut owned),
            ExtentRef::TreeBlock { .. }
            | ExtentRef::SharedBlock { .. }
            | ExtentRef::Owner { .. } => Ok(()),
        };
        if owned.left == 0 || owned.uses.len() >= USES_MAX {
            break;
        }
    }
    Ok(Some(owned))
}

/// The data extent that an address is in, and its references.
fn references_to(
    context: &FsContext,
    at: LogicalAddr,
) -> Result<Option<(Range<u64>, Vec<ExtentRef>)>> {
    let tree = context.required_tree(TreeId::EXTENT)?;
    let mut cursor = context.cursor(tree);
    let last = Key::new(at.0, ItemKind::EXTENT_ITEM, u64::MAX);
    if !cursor.seek_at_or_before(last)? {
        return Ok(None);
    }
    // Keyed references and block groups may be in between.
    let start = cursor.key().map_or(0, |key| key.object);
    cursor.seek(Key::new(start, ItemKind::EXTENT_ITEM, 0))?;
    let mut references = Vec::new();
    let mut extent = start..start;
    while let Some((key, data)) = cursor.item().filter(|(key, _)| key.object == start) {
        let locus = tree.locus(key);
        match key.kind {
            ItemKind::EXTENT_ITEM => {
                let item = ExtentItem::decode(key, data, locus)?;
                let holds = at.0 - start < key.offset;
                if item.kind != ExtentKind::Data || !holds {
                    return Ok(None);
                }
                extent.end = start.saturating_add(key.offset);
                references.extend(item.inline);
            }
            ItemKind::EXTENT_DATA_REF | ItemKind::SHARED_DATA_REF => {
                references.push(ExtentRef::decode_keyed(key, data, locus)?);
            }
            ItemKind(_) => {}
        }
        if references.len() >= REFERENCES_MAX {
            break;
        }
        cursor.step()?;
    }
    Ok((!extent.is_empty()).then_some((extent, references)))
}

/// Looks among the extents of a file that may refer to an extent, so that its beginning is at `offset`.
fn uses_in_file(
    context: &FsContext,
    id: TreeId,
    inode: u64,
    offset: u64,
    owned: &mut Owned,
) -> Result<()> {
    let Some(tree) = context.tree(id)? else {
        return Ok(());
    };
    let len_bytes = owned.extent.end - owned.extent.start;
    let end = offset.wrapping_add(len_bytes.max(COMPRESSED_BYTES_MAX));
    // The offset wraps where an extent's beginning is not used by a file's.
    let from = if offset < end { offset } else { 0 };
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::new(inode, ItemKind::EXTENT_DATA, from))?;
    while let Some((key, data)) = cursor.item() {
        let is_near = key.object == inode && key.offset < end;
        if !is_near || key.kind != ItemKind::EXTENT_DATA {
            break;
        }
        let sector = context.superblock.sector_bytes;
        let extent = FileExtent::decode(data, key.offset, sector, tree.locus(key))?;
        if !owned.look_at(&extent, Owner { tree: id, key }) {
            break;
        }
        cursor.step()?;
    }
    Ok(())
}

/// Looks among the extents in a leaf.
fn uses_in_leaf(context: &FsContext, leaf: LogicalAddr, owned: &mut Owned) -> Result<()> {
    let block = context.blocks.read(leaf, &Expected::default())?;
    let Some(header) = block.header().filter(|header| header.level == 0) else {
        return Ok(());
    };
    let tree = header.owner;
    for (key, data) in block.leaf().iter() {
        if key.kind != ItemKind::EXTENT_DATA {
            continue;
        }
        let locus = Locus::tree(tree.0).at_key(key.into());
        let extent = FileExtent::decode(data, key.offset, context.superblock.sector_bytes, locus)?;
        if !owned.look_at(&extent, Owner { tree, key }) {
            break;
        }
    }
    Ok(())
}

/// The logical range of the extent at `start` that a file extent uses; `None` if it is of another one.
fn used_range(extent: &FileExtent<'_>, start: u64) -> Option<Range<u64>> {
    let place = match extent.kind {
        FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) => place,
        FileExtentKind::Inline(_) | FileExtentKind::Hole => return None,
    };
    if place.logical.0 != start {
        return None;
    }
    if extent.compression != Compression::None {
        return Some(start..start.saturating_add(place.disk_bytes));
    }
    let from = start.saturating_add(place.offset);
    Some(from..from.saturating_add(extent.file_bytes))
}
