//! The extents of a file that are logged.

use platter_vfs::{FileKind, Result};

use super::plan::{Plan, is_new_extent};
use super::view::View;
use crate::ondisk::Key;
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::tree::Cursor;

/// Plans the extents of a file: those of the running transaction, and what lies beyond the end, which a replay
/// drops. With `all`, every extent and every hole, because extents of the last commit are gone.
pub(super) fn plan_extents(
    view: &View<'_>,
    plan: &mut Plan,
    (number, item): (u64, &InodeItem),
    all: bool,
) -> Result<()> {
    let key = |offset: u64| Key::new(number, ItemKind::EXTENT_DATA, offset);
    let end = item
        .size_bytes
        .checked_next_multiple_of(view.sector_bytes.into())
        .unwrap_or(u64::MAX);
    if all {
        return plan_all(view, plan, number, end);
    }
    view.changed(key(0), key(u64::MAX), &mut |key, data| {
        if !plan.needs_commit() && is_new_extent(view, key, data)? {
            plan.want(key, data.to_vec());
        }
        Ok(())
    })?;
    if item.kind != FileKind::Regular {
        return Ok(());
    }
    let mut cursor = Cursor::new(view.blocks, view.now);
    // The last one may cross the end.
    if !cursor.seek_at_or_before(key(end))? {
        cursor.seek(key(end))?;
    }
    while let Some((key, data)) = cursor.item()
        && (key.object, key.kind) <= (number, ItemKind::EXTENT_DATA)
        && !plan.needs_commit()
    {
        if (key.object, key.kind) == (number, ItemKind::EXTENT_DATA) {
            let locus = view.now.locus(key);
            let extent = FileExtent::decode(data, key.offset, view.sector_bytes, locus)?;
            let is_inline = matches!(extent.kind, FileExtentKind::Inline(_));
            if !is_inline && key.offset.saturating_add(extent.file_bytes) > end {
                plan.want(key, data.to_vec());
            }
        }
        cursor.step()?;
    }
    Ok(())
}

fn plan_all(view: &View<'_>, plan: &mut Plan, number: u64, end: u64) -> Result<()> {
    let hole = |start: u64, end: u64| {
        let extent = FileExtent {
            generation: view.generation,
            ram_bytes: end - start,
            compression: Compression::None,
            file_bytes: end - start,
            kind: FileExtentKind::Hole,
        };
        extent.encode()
    };
    let mut at = 0u64;
    let mut cursor = Cursor::new(view.blocks, view.now);
    cursor.seek(Key::new(number, ItemKind::EXTENT_DATA, 0))?;
    while let Some((key, data)) = cursor.item()
        && (key.object, key.kind) == (number, ItemKind::EXTENT_DATA)
        && !plan.needs_commit()
    {
        if at < key.offset && at < end && view.leaves_holes {
            let next = key.offset.min(end);
            plan.want(Key::new(number, key.kind, at), hole(at, next));
        }
        let locus = view.now.locus(key);
        let extent = FileExtent::decode(data, key.offset, view.sector_bytes, locus)?;
        let next = key.offset.saturating_add(extent.file_bytes);
        let next = next.checked_next_multiple_of(view.sector_bytes.into());
        at = next.unwrap_or(u64::MAX);
        plan.want(key, data.to_vec());
        cursor.step()?;
    }
    if at < end && view.leaves_holes {
        plan.want(Key::new(number, ItemKind::EXTENT_DATA, at), hole(at, end));
    }
    Ok(())
}
