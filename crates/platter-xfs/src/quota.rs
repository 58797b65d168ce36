//! Quota records, in the quota file that the superblock or the metadata directory tree names.

use std::ops::ControlFlow;

use platter_ondisk::Corrupt;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;

use crate::context::FsContext;
use crate::inode;
use crate::mapping::{Backing, ForkMap};
use crate::metadir;
use crate::ondisk::dquot::{self, DiskDquot, Dquot, QuotaKind};
use crate::ondisk::inode::MetafileKind;
use crate::ondisk::{FileBlock, FsBlock, InodeNr};

/// The quota file of a kind, if there is one.
pub fn file(context: &FsContext, kind: QuotaKind) -> Result<Option<InodeNr>> {
    let superblock = &context.superblock;
    let [user, group, project] = superblock.quota_inodes;
    let (number, name, metafile) = match kind {
        QuotaKind::User => (user, "user", MetafileKind::UserQuota),
        QuotaKind::Group => (group, "group", MetafileKind::GroupQuota),
        QuotaKind::Project => (project, "project", MetafileKind::ProjectQuota),
    };
    if !superblock.features.has_metadir() {
        return Ok(number);
    }
    metadir::find(context, &["quota", name], metafile)
}

/// The record of a user, group or project; `None` where there is none.
pub fn record(context: &FsContext, kind: QuotaKind, id: u32) -> Result<Option<Dquot>> {
    let Some(number) = file(context, kind)? else {
        return Ok(None);
    };
    let geometry = context.geometry();
    let per_block = dquot::per_block(geometry);
    let file = inode::read(context, number)?;
    let map = ForkMap::of_data(context, &file)?;
    let block = FileBlock(u64::from(id / per_block));
    let Backing::Written(start) = map.lookup(context, block)?.backing else {
        return Ok(None);
    };
    let bytes = context.read_block(FsBlock(start), &Unverified)?;
    decode(context, (number, FsBlock(start)), &bytes, kind, id)
}

/// Passes the records of a kind, those that were never used excepted, to `sink` until it breaks.
pub fn records(
    context: &FsContext,
    kind: QuotaKind,
    sink: &mut dyn FnMut(&Dquot) -> ControlFlow<()>,
) -> Result<()> {
    let Some(number) = file(context, kind)? else {
        return Ok(());
    };
    let per_block = u64::from(dquot::per_block(context.geometry()));
    let file = inode::read(context, number)?;
    let map = ForkMap::of_data(context, &file)?;
    map.mappings(context, &mut |mapping| {
        let count = if mapping.is_unwritten {
            0
        } else {
            mapping.count
        };
        for step in 0..count {
            let block = FsBlock(mapping.start.saturating_add(step));
            let first = mapping
                .offset
                .0
                .saturating_add(step)
                .saturating_mul(per_block);
            let bytes = context.read_block(block, &Unverified)?;
            for id in first..first.saturating_add(per_block) {
                let Ok(id) = u32::try_from(id) else {
                    return Ok(ControlFlow::Break(()));
                };
                let record = decode(context, (number, block), &bytes, kind, id)?;
                if record.is_some_and(|record| sink(&record).is_break()) {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// The record in a block of a quota file. Records are validated one by one: each has its own checksum.
fn decode(
    context: &FsContext,
    (file, block): (InodeNr, FsBlock),
    bytes: &[u8],
    kind: QuotaKind,
    id: u32,
) -> Result<Option<Dquot>> {
    let geometry = context.geometry();
    let at = size_of::<DiskDquot>() * (id % dquot::per_block(geometry)) as usize;
    let record = bytes.get(at..).unwrap_or_default();
    let locus = geometry.locus(geometry.basic_block(block));
    let locus = locus.of_inode(file.get()).at_offset(at as u64);
    let record = Dquot::decode(record, kind, id, geometry);
    Ok(record.map_err(|rule| Corrupt::new(locus, rule))?)
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::context::tests::sample_context;
    use crate::ondisk::dquot::DQUOT_MAGIC;
    use crate::ondisk::inode::{DiskInodeV3, tests::sample};
    use crate::ondisk::{Mapping, checksum};

    /// Inode 131 as the quota file of users, with the record of user 31 in its second block.
    fn context() -> FsContext {
        let mut inode = sample();
        let (disk, literal) = DiskInodeV3::mut_from_prefix(&mut inode).unwrap();
        disk.core.data_extents.set(1);
        let mapping = Mapping {
            offset: FileBlock(1),
            start: 60,
            count: 1,
            is_unwritten: false,
        };
        crate::ondisk::inode::tests::put_mappings(literal, &[mapping]);
        DiskInodeV3::seal(&mut inode);
        let mut inodes = vec![0; 4096];
        inodes[3 * 512..4 * 512].copy_from_slice(&inode);
        let mut record = DiskDquot::read_from_bytes(&[0; 136]).unwrap();
        record.magic.set(DQUOT_MAGIC);
        record.version = 1;
        record.kind = 1;
        record.id.set(31);
        record.inodes.set(4);
        record.uuid = [0x5a; 16];
        checksum::seal(record.as_mut_bytes(), DiskDquot::CHECKSUM_OFFSET);
        let mut records = vec![0; 4096];
        records[136..272].copy_from_slice(record.as_bytes());
        let mut context = sample_context(&[(16, &inodes), (60, &records)]);
        context.superblock.quota_inodes[0] = InodeNr::new(131);
        context
    }

    #[test]
    fn record_is_found_by_its_id() {
        let context = context();
        let find = |kind, id| record(&context, kind, id).unwrap();
        let found = find(QuotaKind::User, 31).map(|record| record.inodes.used);
        assert_eq!(found, Some(4));
        assert_eq!(find(QuotaKind::User, 30), None);
        assert_eq!(find(QuotaKind::User, 3), None);
        assert_eq!(find(QuotaKind::Group, 31), None);
    }

    #[test]
    fn records_of_a_kind_are_all_found() {
        let context = context();
        let all = |kind| {
            let mut found = Vec::new();
            records(&context, kind, &mut |record| {
                found.push((record.id, record.inodes.used));
                ControlFlow::Continue(())
            })
            .unwrap();
            found
        };
        assert_eq!(all(QuotaKind::User), [(31, 4)]);
        assert_eq!(all(QuotaKind::Project), []);
    }
}
