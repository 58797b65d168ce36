//! Checksums of data: insertion for what was written, deletion for what was freed.

use std::collections::BTreeMap;
use std::ops::Range;

use platter_vfs::Result;

use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::item::ItemFormat;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, LogicalAddr};
use crate::tree::edit::{CopyOnWrite, TreeEditor};
use crate::tree::{Cursor, Tree, TreeBlocks};

/// The most bytes of checksums in one item.
const ITEM_BYTES_MAX: usize = 4096;

/// The checksums of the sectors of `bytes`.
pub(super) fn of(bytes: &[u8], format: ItemFormat) -> Vec<u8> {
    let kind = format.checksum_kind;
    let sectors = bytes.chunks(format.sector_bytes as usize);
    let checksums = sectors.flat_map(|bytes| kind.of(bytes).into_iter().take(kind.len_bytes()));
    checksums.collect()
}

/// Inserts checksums of the sectors from `address` on. They go on with the item before as long as that is not too
/// long.
pub(super) fn insert<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    address: LogicalAddr,
    checksums: Vec<u8>,
    format: ItemFormat,
) -> Result<()> {
    let kind = format.checksum_kind;
    let sector = format.sector_bytes as usize;
    // Leaves of 4 KiB hold less.
    let most = ITEM_BYTES_MAX.min(editor.item_bytes_max() / 2);
    let most = most - most % kind.len_bytes();
    let mut at = address.0;
    let mut checksums = checksums;
    if let Some((key, data)) = editor.at_or_before(at_key(at))?
        && key.kind == ItemKind::EXTENT_CSUM
        && data.len() < most
    {
        let locus = editor.tree().locus(key);
        let item = CsumItem::decode(key, &data, kind, format.sector_bytes, locus)?;
        if item.end == address {
            let count = (most - data.len()).min(checksums.len());
            let rest = checksums.split_off(count);
            editor.set(key, &[data, checksums].concat())?;
            at += (count / kind.len_bytes() * sector) as u64;
            checksums = rest;
        }
    }
    for piece in checksums.chunks(most) {
        editor.insert(at_key(at), piece)?;
        at += (piece.len() / kind.len_bytes() * sector) as u64;
    }
    Ok(())
}

/// The checksums that are stored of the sectors of a range, by address.
pub(super) fn stored(
    blocks: &TreeBlocks,
    tree: Tree,
    range: &Range<u64>,
    format: ItemFormat,
) -> Result<BTreeMap<u64, Vec<u8>>> {
    let mut stored = BTreeMap::new();
    let mut cursor = Cursor::new(blocks, tree);
    if !cursor.seek_at_or_before(at_key(range.start))? {
        cursor.seek(at_key(range.start))?;
    }
    while let Some((key, data)) = cursor.item()
        && (key.object, key.kind) <= (EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM)
        && (key.kind != ItemKind::EXTENT_CSUM || key.offset < range.end)
    {
        if key.kind == ItemKind::EXTENT_CSUM {
            let kind = format.checksum_kind;
            let locus = tree.locus(key);
            let item = CsumItem::decode(key, data, kind, format.sector_bytes, locus)?;
            let first = item.start.0.max(range.start);
            let sectors = (first..item.end.0.min(range.end)).step_by(format.sector_bytes as usize);
            stored.extend(
                sectors.filter_map(|at| Some((at, item.checksum(LogicalAddr(at))?.to_vec()))),
            );
        }
        cursor.step()?;
    }
    Ok(stored)
}

fn at_key(at: u64) -> Key {
    Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, at)
}

/// Deletes the checksums of a range of logical addresses.
pub(super) fn delete<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    range: &Range<u64>,
    format: ItemFormat,
) -> Result<()> {
    let mut at = range.start;
    let before = editor.at_or_before(at_key(at))?;
    if let Some((key, _)) = before.filter(|(key, _)| key.kind == ItemKind::EXTENT_CSUM) {
        at = key.offset;
    }
    while let Some((key, data)) = editor.at_or_after(at_key(at))?
        && key.kind == ItemKind::EXTENT_CSUM
        && key.offset < range.end
    {
        let locus = editor.tree().locus(key);
        let kind = format.checksum_kind;
        let item = CsumItem::decode(key, &data, kind, format.sector_bytes, locus)?;
        let (start, end) = (item.start.0, item.end.0);
        let position = |address: u64| {
            let sectors = (address - start) / u64::from(format.sector_bytes);
            usize::try_from(sectors)
                .unwrap_or(usize::MAX)
                .saturating_mul(kind.len_bytes())
        };
        if end > range.start {
            let left = data.get(..position(range.start.max(start)));
            let right = data.get(position(range.end.min(end))..);
            match left.filter(|left| !left.is_empty()) {
                Some(left) => editor.set(key, left)?,
                None => drop(editor.remove(key)?),
            }
            if let Some(right) = right.filter(|right| !right.is_empty()) {
                editor.insert(at_key(range.end), right)?;
            }
        }
        at = end;
    }
    Ok(())
}
