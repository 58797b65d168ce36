//! What a filesystem reports about itself: what `xfs_info` prints, and more.

use std::ops::ControlFlow;

use platter_vfs::{Description, Detail, DetailValue};

use crate::context::FsContext;
use crate::ondisk::AgNr;
use crate::ondisk::dquot::QuotaKind;
use crate::ondisk::superblock::QuotaFlags;
use crate::quota;
use crate::recovery::RecoveryReport;
use crate::txn::LogState;

/// Bits of `sb_qflags` by name.
const QUOTA_FLAGS: [(QuotaFlags, &str); 11] = [
    (QuotaFlags::USERS_ACCOUNTED, "user accounting"),
    (QuotaFlags::USERS_ENFORCED, "user enforcement"),
    (QuotaFlags::USERS_CHECKED, "user checked"),
    (QuotaFlags::GROUPS_ACCOUNTED, "group accounting"),
    (QuotaFlags::GROUPS_ENFORCED, "group enforcement"),
    (QuotaFlags::GROUPS_CHECKED, "group checked"),
    (QuotaFlags::PROJECTS_ACCOUNTED, "project accounting"),
    (QuotaFlags::PROJECTS_ENFORCED, "project enforcement"),
    (QuotaFlags::PROJECTS_CHECKED, "project checked"),
    (QuotaFlags::OTHERS_ENFORCED, "group or project enforcement"),
    (QuotaFlags::OTHERS_CHECKED, "group or project checked"),
];

/// Use is shown of each of up to so many groups.
const GROUPS_LISTED_MAX: u32 = 64;

type NamedKind = (QuotaKind, &'static str, &'static str);

const QUOTA_KINDS: [NamedKind; 3] = [
    (QuotaKind::User, "user_quota", "user quota"),
    (QuotaKind::Group, "group_quota", "group quota"),
    (QuotaKind::Project, "project_quota", "project quota"),
];

/// How many records of a kind there are, and how many have a limit; `None` without a quota file.
fn quota_records(context: &FsContext, &(kind, key, label): &NamedKind) -> Option<Detail> {
    let (mut records, mut limited) = (0_u64, 0_u64);
    let found = quota::file(context, kind).and_then(|file| {
        quota::records(context, kind, &mut |record| {
            let resources = [record.blocks, record.inodes, record.rt_blocks];
            let mut limits = resources.iter().map(|one| one.hard_limit | one.soft_limit);
            records += 1;
            limited += u64::from(limits.any(|limit| limit > 0));
            ControlFlow::Continue(())
        })?;
        Ok(file)
    });
    let value = match found {
        Ok(None) => return None,
        Ok(Some(_)) => DetailValue::Record {
            text: format!("{records} records, {limited} with limits"),
            fields: vec![
                number("records", "records", records),
                number("with_limits", "with limits", limited),
            ],
        },
        Err(error) => DetailValue::Text(error.to_string()),
    };
    Some(Detail::new(key, label, value))
}

pub(super) fn description(context: &FsContext, recovery: Option<&RecoveryReport>) -> Description {
    let superblock = &context.superblock;
    Description {
        kind: "xfs".into(),
        uuid: superblock.uuid,
        label: superblock.label.clone(),
        features: superblock.features.describe(),
        details: details(context, recovery),
    }
}

fn number(key: &'static str, label: &'static str, number: impl Into<u64>) -> Detail {
    Detail::new(key, label, number.into().into())
}

fn details(context: &FsContext, recovery: Option<&RecoveryReport>) -> Vec<Detail> {
    let (geometry, superblock) = (context.geometry(), &context.superblock);
    let mut details = vec![
        number("version", "version", superblock.features.number),
        number("blocks", "blocks", geometry.data_blocks()),
        number("block_bytes", "block size", geometry.block_bytes()),
        number("sector_bytes", "sector size", geometry.sector_bytes()),
        number("groups", "allocation groups", geometry.ag_count()),
        number("blocks_per_group", "blocks per group", geometry.ag_blocks),
        number("inode_bytes", "inode size", geometry.inode_bytes()),
        number(
            "directory_block_bytes",
            "directory block size",
            geometry.dir_block_bytes(),
        ),
        number("inodes", "inodes", superblock.inode_count),
        number("free_inodes", "free inodes", superblock.free_inodes),
        number("free_blocks", "free blocks", superblock.free_data_blocks),
        number(
            "inode_percent_max",
            "maximum inode percentage",
            superblock.inode_percent_max,
        ),
        number("root_inode", "root inode", superblock.root_inode.get()),
        number(
            "inode_alignment",
            "inode alignment",
            superblock.inode_alignment,
        ),
        number("stripe_unit", "stripe unit", superblock.stripe_unit),
        number("stripe_width", "stripe width", superblock.stripe_width),
        Detail::new("log", "log", log(context, recovery)),
    ];
    if geometry.ag_count() <= GROUPS_LISTED_MAX {
        details.extend(geometry.groups().map(|ag| group(context, ag)));
    }
    let realtime = superblock.rt_blocks;
    if realtime > 0 {
        details.push(number("realtime_blocks", "realtime blocks", realtime));
        let extent = superblock.rt_extent_blocks;
        details.push(number(
            "realtime_extent_blocks",
            "realtime extent size",
            extent,
        ));
        let free = superblock.free_rt_extents;
        details.push(number(
            "free_realtime_extents",
            "free realtime extents",
            free,
        ));
    }
    if superblock.rt_group_count > 0 {
        let groups = superblock.rt_group_count;
        details.push(number("realtime_groups", "realtime groups", groups));
    }
    if superblock.features.has_quota() {
        let on = QUOTA_FLAGS
            .iter()
            .filter(|(flag, _)| superblock.quota_flags.contains(*flag));
        let names: Vec<_> = on.map(|&(_, name)| name).collect();
        let value = if names.is_empty() {
            DetailValue::absent("none")
        } else {
            DetailValue::Text(names.join(", "))
        };
        details.push(Detail::new("quota", "quota", value));
        details.extend(
            QUOTA_KINDS
                .iter()
                .filter_map(|kind| quota_records(context, kind)),
        );
    }
    if superblock.features.has_meta_uuid() {
        let value = superblock.meta_uuid.into();
        details.push(Detail::new("metadata_uuid", "metadata UUID", value));
    }
    let held = context.device().geometry().len_bytes;
    if let Some(missing @ 1..) = geometry.len_bytes().checked_sub(held) {
        let value = DetailValue::Record {
            text: format!("the last {missing} bytes are missing"),
            fields: vec![number("missing_bytes", "missing bytes", missing)],
        };
        details.insert(0, Detail::new("truncated", "truncated", value));
    }
    details
}

/// What of a group is free.
fn group(context: &FsContext, ag: AgNr) -> Detail {
    // The last group may become longer meanwhile.
    let held = context.log().map(|_| context.space().lock(ag));
    let headers = context.agf(ag).and_then(|agf| Ok((agf, context.agi(ag)?)));
    drop(held);
    let value = match headers {
        Ok((agf, agi)) => DetailValue::Item {
            text: format!(
                "{}: {} of {} blocks free, at most {} in a row; {} of {} inodes free",
                ag.0, agf.free_blocks, agf.length, agf.longest, agi.free_count, agi.count
            ),
            fields: vec![
                number("group", "group", ag.0),
                number("blocks", "blocks", agf.length),
                number("free_blocks", "free blocks", agf.free_blocks),
                number("longest_free", "longest free extent", agf.longest),
                number("inodes", "inodes", agi.count),
                number("free_inodes", "free inodes", agi.free_count),
            ],
        },
        Err(error) => DetailValue::Item {
            text: format!("{}: {error}", ag.0),
            fields: vec![number("group", "group", ag.0)],
        },
    };
    Detail::new("group_use", "group", value)
}

fn log(context: &FsContext, recovery: Option<&RecoveryReport>) -> DetailValue {
    let superblock = &context.superblock;
    let version = if superblock.features.has_logv2() {
        2_u64
    } else {
        1
    };
    let location = match superblock.log_start {
        Some(_) => "internal",
        None => "external",
    };
    let bytes = u64::from(superblock.log_blocks) * u64::from(context.geometry().block_bytes());
    let unit = match superblock.log_stripe_unit {
        1 => 0,
        unit => unit,
    };
    let state = match recovery.map(|report| report.position.state) {
        Some(LogState::Clean) => "clean",
        Some(LogState::Dirty) => "replayed_in_memory",
        None => "not_replayed",
    };
    let shown = state.replace('_', " ");
    DetailValue::Record {
        text: format!("{shown}, {location}, version {version}, {bytes} bytes"),
        fields: vec![
            Detail::new("state", "state", DetailValue::word(state)),
            Detail::new("location", "location", DetailValue::word(location)),
            number("version", "version", version),
            number("bytes", "size", bytes),
            number("sector_bytes", "sector size", superblock.log_sector_bytes),
            number("stripe_unit_bytes", "stripe unit", unit),
        ],
    }
}
