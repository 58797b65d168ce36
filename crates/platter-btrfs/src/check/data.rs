//! Data against its checksums: every copy of every sector.

use std::io::IoSliceMut;

use platter_ondisk::{Corrupt, Corruption, Locus};
use platter_vfs::Error;
use platter_vfs::check::{Checking as _, Finding};

use super::owners::Owner;
use super::{Checker, DataRule, Flow};
use crate::chunk::{Placement, Segment};
use crate::data::Checksums;
use crate::ondisk::chunk_item::{ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::tree::Tree;

/// Data that is read at once.
const READ_BYTES: u64 = 1 << 20;
/// Reads all data that has checksums.
pub(super) fn verify(checker: &mut Checker<'_>) -> Flow {
    let context = checker.context;
    let locus = Locus::tree(TreeId::CSUM.0);
    let tree = context.required_tree(TreeId::CSUM);
    let Some(tree) = checker.tolerate("tree", locus, tree)? else {
        return Ok(());
    };
    let mut cursor = context.cursor(tree);
    let from = Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, 0);
    let sought = cursor.seek(from);
    if checker.tolerate("tree", locus, sought)?.is_none() {
        return Ok(());
    }
    let mut done = 0u64;
    loop {
        let Some((key, data)) = cursor.item() else {
            return Ok(());
        };
        if key.object == EXTENT_CSUM_OBJECT && key.kind == ItemKind::EXTENT_CSUM {
            done = done.saturating_add(verify_item(checker, tree, key, data)?);
            let total = context.superblock.bytes_used.max(done);
            checker.report.progress("data", done, total)?;
        }
        let stepped = cursor.step();
        // What follows in the tree cannot be found without the block that is corrupt.
        if checker.tolerate("tree", locus, stepped)?.is_none() {
            return Ok(());
        }
    }
}

/// Reads the data of an item of checksums. Returns how much it is.
fn verify_item(checker: &mut Checker<'_>, tree: Tree, key: Key, data: &[u8]) -> Flow<u64> {
    let (kind, sector) = (checker.format.checksum_kind, checker.format.sector_bytes);
    let locus = tree.locus(key);
    let item = CsumItem::decode(key, data, kind, sector, locus).map_err(Error::from);
    let Some(item) = checker.tolerate("csum item", locus, item)? else {
        return Ok(0);
    };
    let mut at = item.start;
    while at < item.end {
        let context = checker.context;
        let map = context.blocks.store().map();
        let chunk = map.find(at).map_err(Error::from);
        let Some(chunk) = checker.tolerate("chunk map", locus, chunk)? else {
            break;
        };
        let left = (item.end.0 - at.0).min(READ_BYTES);
        let segment = chunk.segment(at, left);
        verify_segment(checker, chunk, &segment, at, &item)?;
        at.0 = at.0.saturating_add(segment.len_bytes.max(1));
    }
    let len_bytes = item.end.0 - item.start.0;
    checker
        .report
        .count("sectors", len_bytes / u64::from(sector));
    Ok(len_bytes)
}

/// Reads a piece that no stripe boundary divides, from each of its copies.
fn verify_segment(
    checker: &mut Checker<'_>,
    chunk: &ChunkItem,
    segment: &Segment,
    start: LogicalAddr,
    item: &CsumItem<'_>,
) -> Flow {
    let store = checker.context.blocks.store();
    let count = store.copies(start, segment.len_bytes);
    let mut bytes = vec![0; usize::try_from(segment.len_bytes).unwrap_or_default()];
    for copy in copies_to_read(chunk.profile, count) {
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        let read = store.read(start, copy, bufs);
        let is_read = read.is_ok();
        if let Err(error) = read
            && segment.len_bytes <= checker.format.sector_bytes.into()
        {
            if !follows_from_row(checker, chunk, start, copy) {
                report_unreadable(checker, start, copy, error.into())?;
            }
            continue;
        }
        let sector_bytes = checker.format.sector_bytes as usize;
        let mut at = start;
        for sector in bytes.chunks_mut(sector_bytes) {
            // What cannot be read at once may be read in part.
            if !is_read {
                let bufs = &mut [IoSliceMut::new(&mut *sector)];
                if let Err(error) = store.read(at, copy, bufs) {
                    if !follows_from_row(checker, chunk, at, copy) {
                        report_unreadable(checker, at, copy, error.into())?;
                    }
                    at.0 += sector_bytes as u64;
                    continue;
                }
            }
            let stored = item.checksum(at).unwrap_or_default();
            let is_good = checker.format.checksum_kind.matches(sector, stored);
            if !is_good && !follows_from_row(checker, chunk, at, copy) {
                report_sector(checker, at, copy)?;
            }
            at.0 += sector_bytes as u64;
        }
    }
    Ok(())
}

/// Whether a sector was reconstructed from data of its row that is itself bad, which is reported where it is read.
fn follows_from_row(checker: &Checker<'_>, chunk: &ChunkItem, at: LogicalAddr, copy: u16) -> bool {
    let Placement::Parity { data, .. } = chunk.segment(at, 1).placement else {
        return false;
    };
    if checker.context.blocks.store().location(at, copy).is_some() {
        return false;
    }
    let stripe_at = |index: usize| (index as u64).saturating_mul(STRIPE_BYTES);
    let first = at.0.saturating_sub(stripe_at(data));
    let others = (0..chunk.data_stripes()).filter(|other| *other != data);
    let mut others = others.map(|other| LogicalAddr(first.saturating_add(stripe_at(other))));
    others.any(|other| is_bad(checker, other))
}

/// Whether a sector that has a checksum does not match it, or cannot be read. Others are read with their row only,
/// which is reported then.
fn is_bad(checker: &Checker<'_>, at: LogicalAddr) -> bool {
    let sector_bytes = checker.format.sector_bytes;
    let stored = Checksums::read(checker.context, at, sector_bytes.into());
    let Some(stored) = stored.ok().filter(|stored| stored.is_stored(0)) else {
        return false;
    };
    let store = checker.context.blocks.store();
    if store.location(at, 0).is_none() {
        return false;
    }
    let mut sector = vec![0; sector_bytes as usize];
    let read = store.read(at, 0, &mut [IoSliceMut::new(&mut sector)]);
    read.is_err() || !stored.matches(0, &sector)
}

fn report_unreadable(checker: &mut Checker<'_>, at: LogicalAddr, copy: u16, error: Error) -> Flow {
    let (locus, owner) = locus_of_sector(checker, at, copy);
    let finding = Finding::of_error("data", locus, error);
    report_owned(checker, finding, owner)
}

/// Reports a sector that does not match.
fn report_sector(checker: &mut Checker<'_>, at: LogicalAddr, copy: u16) -> Flow {
    let (locus, owner) = locus_of_sector(checker, at, copy);
    let rule = if locus.parts().member.is_some() {
        DataRule::Checksum
    } else {
        DataRule::Parity
    };
    let corruption = Corruption::from(Corrupt::new(locus, rule));
    report_owned(checker, Finding::error(corruption), owner)
}

fn report_owned(checker: &mut Checker<'_>, finding: Finding, owner: Option<Owner>) -> Flow {
    if owner.is_none() {
        checker.report.count("sectors without a file", 1);
    }
    checker.report_finding(finding)
}

fn locus_of_sector(
    checker: &mut Checker<'_>,
    at: LogicalAddr,
    copy: u16,
) -> (Locus, Option<Owner>) {
    let mut locus = Locus::block(at.0).of_copy(copy);
    if let Some((member, place)) = checker.context.blocks.store().location(at, copy) {
        locus = locus.on_member(member.id.0).at_offset(place.0);
    }
    // What cannot be read is what a check is for; the sector is reported without a file.
    let owner = checker.owners.owner_of(checker.context, at).ok().flatten();
    if let Some(owner) = owner {
        locus = locus.in_tree(owner.tree.0).at_key(owner.key.into());
        locus = locus.of_inode(owner.key.object);
    }
    (locus, owner)
}

/// The copies that are read of data. Of parity, the data itself and what P and Q say it is.
fn copies_to_read(profile: Profile, count: u16) -> Vec<u16> {
    let last_but_one = count.saturating_sub(2);
    if profile == Profile::Raid6 && last_but_one > 1 {
        return vec![0, 1, last_but_one];
    }
    (0..count.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_is_read_by_p_and_by_q() {
        assert_eq!(copies_to_read(Profile::Raid1C3, 3), [0, 1, 2]);
        assert_eq!(copies_to_read(Profile::Single, 0), [0]);
        // The data, P, and the reconstructions without one of two other data, P and Q.
        assert_eq!(copies_to_read(Profile::Raid6, 6), [0, 1, 4]);
        assert_eq!(copies_to_read(Profile::Raid6, 2), [0, 1]);
    }
}
