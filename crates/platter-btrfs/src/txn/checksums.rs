//! Deletion of the checksums of data that was freed.

use std::ops::Range;

use platter_vfs::Result;

use super::Cow;
use crate::ondisk::Key;
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::item::ItemFormat;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::tree::edit::TreeEditor;

/// Deletes the checksums of a range of logical addresses.
pub(super) fn delete(
    editor: &mut TreeEditor<'_, Cow<'_>>,
    range: &Range<u64>,
    format: ItemFormat,
) -> Result<()> {
    let at_key = |at| Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, at);
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
