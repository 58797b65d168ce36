//! Quota items. Spec: `xfs/journaling_log`, "Update Quota File"; `xfs/internal_inodes`.

use platter_ondisk::endian::Be64;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::FromBytes;

use super::rules::ReplayRule;
use super::second_pass::{Applied, SecondPass};
use super::transactions::Item;
use crate::ondisk::log::dquot::{DQUOT_BYTES, has_dquot_magic};
use crate::ondisk::log::{DquotFormat, QuotaOff};
use crate::ondisk::{Lsn, checksum};

/// Length of a quota record on disk (`struct xfs_dqblk`).
const RECORD_BYTES: usize = 136;
/// `dd_crc` and `dd_lsn`.
const CRC_AT: usize = 108;
const LSN_AT: usize = 112;

/// Applies the item of a quota record.
pub(super) fn apply(pass: &mut SecondPass<'_>, item: &Item) -> Result<Applied> {
    let format = DquotFormat::decode(item.first(), pass.locus)?;
    let locus = Locus::UNKNOWN.at_offset(format.block.byte_offset());
    let broken = || Corrupt::new(locus, ReplayRule::Dquot);
    let logged = item
        .regions
        .get(1)
        .and_then(|region| region.get(..DQUOT_BYTES));
    let logged = logged.filter(|logged| has_dquot_magic(logged));
    let logged = logged.ok_or_else(broken)?;
    let quota = QuotaOff::of_record(logged).ok_or_else(broken)?;
    let len = u64::from(format.blocks) * u64::from(pass.geometry.block_bytes() >> 9);
    if pass.quota_off.intersects(quota) || pass.cancelled.contains(format.block, len) {
        return Ok(Applied::Skipped);
    }
    let (is_v5, lsn) = (pass.geometry.features.is_v5(), pass.lsn);
    let buffer = pass.buffers.get(format.block, len)?;
    let start = format.offset as usize;
    let end = start.saturating_add(RECORD_BYTES);
    let outside = || Corrupt::new(locus, ReplayRule::ObjectPlace);
    let current = buffer.bytes.get(start..end).ok_or_else(outside)?;
    if is_v5 {
        let stored = Be64::ref_from_prefix(current.get(LSN_AT..).ok_or_else(outside)?);
        let stored = stored.map_or(Lsn::NULL, |(stored, _)| Lsn(stored.get()));
        if stored != Lsn::NULL && stored > lsn {
            return Ok(Applied::Skipped);
        }
    }
    let record = buffer.edit().get_mut(start..end).ok_or_else(outside)?;
    let slot = record.get_mut(..DQUOT_BYTES).ok_or_else(outside)?;
    slot.copy_from_slice(logged);
    if is_v5 {
        checksum::seal(record, CRC_AT);
    }
    Ok(Applied::Yes)
}
