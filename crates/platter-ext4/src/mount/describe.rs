//! What a filesystem says about itself.

use platter_vfs::{Description, Detail, DetailValue, Timestamp};

use super::Ext4;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::State;
use crate::recovery::open_journal;

/// Returns what is shown of a mounted filesystem.
pub(super) fn description(ext4: &Ext4) -> Description {
    let superblock = &ext4.fs().superblock;
    Description {
        kind: superblock.kind().into(),
        uuid: superblock.uuid,
        label: superblock.label.clone(),
        features: superblock.features.describe(),
        details: details(ext4),
    }
}

fn details(ext4: &Ext4) -> Vec<Detail> {
    let fs = ext4.fs();
    let (geometry, superblock) = (&fs.geometry, &fs.superblock);
    let put = Detail::new;
    let number = |key, label, number: u64| Detail::new(key, label, number.into());
    let time = |key, label, time| Detail::new(key, label, moment(time));
    let mut details = vec![
        put("state", "state", state(superblock.state)),
        number(
            "errors_recorded",
            "errors recorded",
            superblock.error_count.into(),
        ),
        put("journal", "journal", journal_state(ext4)),
        number(
            "orphaned_inodes",
            "orphaned inodes",
            ext4.orphans().all().len() as u64,
        ),
        number("revision", "revision", superblock.revision.into()),
        number("blocks", "blocks", geometry.blocks_count),
        number("block_bytes", "block size", geometry.block_bytes.into()),
        number("first_block", "first block", geometry.first_data_block.0),
        number("groups", "groups", geometry.groups_count.into()),
        number(
            "blocks_per_group",
            "blocks per group",
            geometry.blocks_per_group.into(),
        ),
        number("inodes", "inodes", geometry.inodes_count.into()),
        number(
            "inodes_per_group",
            "inodes per group",
            geometry.inodes_per_group.into(),
        ),
        number("inode_bytes", "inode size", geometry.inode_bytes.into()),
        number("first_inode", "first inode", geometry.first_inode.into()),
        number(
            "descriptor_bytes",
            "descriptor size",
            geometry.descriptor_bytes.into(),
        ),
        number(
            "reserved_blocks",
            "reserved blocks",
            superblock.reserved_blocks,
        ),
        number(
            "reserved_uid",
            "reserved for user",
            superblock.reserved_uid.into(),
        ),
        number(
            "reserved_gid",
            "reserved for group",
            superblock.reserved_gid.into(),
        ),
        time("created", "created", superblock.created),
        time("last_mounted", "last mounted", superblock.mounted),
        time("last_written", "last written", superblock.written),
        time("last_checked", "last checked", superblock.checked),
        number("mount_count", "mount count", superblock.mount_count.into()),
        put(
            "mounts_before_check",
            "mounts before check",
            mounts(superblock.max_mount_count),
        ),
        put(
            "last_mounted_on",
            "last mounted on",
            DetailValue::Name(superblock.last_mounted.clone()),
        ),
        put(
            "directory_hash",
            "directory hash",
            hash(superblock.default_hash_version),
        ),
        put(
            "directory_hash_seed",
            "directory hash seed",
            hash_seed(ext4).into(),
        ),
    ];
    let held = fs.device().geometry().len_bytes;
    if let Some(missing @ 1..) = geometry.len_bytes().checked_sub(held) {
        let value = DetailValue::Record {
            text: format!("the last {missing} bytes are missing"),
            fields: vec![number("missing_bytes", "missing bytes", missing)],
        };
        details.insert(0, put("truncated", "truncated", value));
    }
    details.extend(details_of_features(ext4));
    details
}

/// What only filesystems with certain features have.
fn details_of_features(ext4: &Ext4) -> Vec<Detail> {
    let fs = ext4.fs();
    let (geometry, superblock) = (&fs.geometry, &fs.superblock);
    let put = Detail::new;
    let number = |key, label, number: u64| Detail::new(key, label, number.into());
    let mut details = Vec::new();
    if geometry.features.has_bigalloc() {
        let bytes = u64::from(geometry.cluster_blocks) * u64::from(geometry.block_bytes);
        details.push(number("cluster_bytes", "cluster size", bytes));
    }
    if geometry.features.incompat.contains(Incompat::FLEX_BG) {
        let groups = geometry.groups_per_flex.into();
        details.push(number("groups_per_flex", "flex group size", groups));
    }
    if geometry.features.incompat.contains(Incompat::MMP) {
        details.push(number("mmp_block", "mmp block", superblock.mmp_block));
    }
    if geometry.features.has_metadata_csum() {
        let value = DetailValue::Hexadecimal(geometry.checksum_seed);
        details.push(put("checksum_seed", "checksum seed", value));
    }
    if geometry.features.incompat.contains(Incompat::CASEFOLD) {
        let value = encoding(superblock.encoding);
        details.push(put("name_encoding", "name encoding", value));
    }
    details
}

/// Where the journal is and in which state.
fn journal_state(ext4: &Ext4) -> DetailValue {
    let fs = ext4.fs();
    let superblock = &fs.superblock;
    let field = Detail::new;
    let record = |text: String, state, more: Vec<Detail>| {
        let is_external = superblock.journal_inode.is_none();
        let place = match state {
            "none" => "none",
            _ if is_external => "external",
            _ => "internal",
        };
        let mut fields = vec![
            field("state", "state", DetailValue::word(state)),
            field("place", "place", DetailValue::word(place)),
        ];
        if place == "external" {
            fields.push(field("uuid", "uuid", superblock.journal_uuid.into()));
        }
        fields.extend(more);
        DetailValue::Record { text, fields }
    };
    if !superblock.features.has_journal() {
        return record("none".into(), "none", Vec::new());
    }
    if let Some(report) = ext4.recovery() {
        let (transactions, blocks) = (report.log.transactions, report.log.blocks_replayed);
        let fast_commits = report.fast_commits.fast_commits;
        let fast = match fast_commits {
            0 => String::new(),
            count => format!(", {count} fast commits"),
        };
        let text = format!("recovered ({transactions} transactions, {blocks} blocks{fast})");
        let counts = vec![
            field("transactions", "transactions", transactions.into()),
            field("blocks", "blocks", blocks.into()),
            field("fast_commits", "fast commits", fast_commits.into()),
        ];
        return record(text, "recovered", counts);
    }
    if superblock.features.incompat.contains(Incompat::RECOVER) {
        return record("needs recovery".into(), "needs_recovery", Vec::new());
    }
    if superblock.journal_inode.is_none() {
        let text = format!("external, {}", superblock.journal_uuid);
        return record(text, "not_opened", Vec::new());
    }
    match open_journal(fs, None) {
        Ok(journal) => {
            let bytes = journal.state().len_bytes;
            let size = field("size_bytes", "size", bytes.into());
            record(format!("clean, {bytes} bytes"), "clean", vec![size])
        }
        Err(error) => {
            let reason = DetailValue::Text(error.to_string());
            let reason = field("message", "message", reason);
            record(format!("corrupt: {error}"), "corrupt", vec![reason])
        }
    }
}

fn hash_seed(ext4: &Ext4) -> platter_ondisk::Uuid {
    let words = ext4.fs().superblock.hash_seed;
    let mut bytes = [0; 16];
    for (to, from) in bytes
        .iter_mut()
        .zip(words.iter().flat_map(|word| word.to_le_bytes()))
    {
        *to = from;
    }
    platter_ondisk::Uuid::from_bytes(bytes)
}

fn state(state: State) -> DetailValue {
    let (clean, word) = if state.is_clean() {
        ("clean", "clean")
    } else {
        ("not clean", "not_clean")
    };
    let errors = if state.has_errors() {
        ", with errors"
    } else {
        ""
    };
    let orphans = if state.is_cleaning_orphans() {
        ", cleaning orphans"
    } else {
        ""
    };
    let flag = |key, label, flag| Detail::new(key, label, DetailValue::Flag(flag));
    DetailValue::Record {
        text: format!("{clean}{errors}{orphans}"),
        fields: vec![
            Detail::new("word", "word", DetailValue::word(word)),
            flag("has_errors", "has errors", state.has_errors()),
            flag(
                "is_cleaning_orphans",
                "is cleaning orphans",
                state.is_cleaning_orphans(),
            ),
        ],
    }
}

fn mounts(count: u16) -> DetailValue {
    match count {
        0 | u16::MAX => DetailValue::absent("unlimited"),
        count => count.into(),
    }
}

fn hash(version: u8) -> DetailValue {
    DetailValue::word(match version {
        0 | 3 => "legacy",
        1 | 4 => "half_md4",
        2 | 5 => "tea",
        6 => "siphash",
        _ => "unknown",
    })
}

fn encoding(number: u16) -> DetailValue {
    DetailValue::word(match number {
        1 => "utf8-12.1",
        _ => "unknown",
    })
}

/// A moment; none for the zero of the superblock.
fn moment(time: Timestamp) -> DetailValue {
    if time.seconds == 0 {
        return DetailValue::absent("never");
    }
    DetailValue::Time(time)
}
