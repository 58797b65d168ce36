//! What a filesystem says about itself.

use platter_vfs::{Description, Timestamp};

use super::Ext4;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::State;
use crate::recovery::open_journal;

impl Ext4 {
    pub(super) fn description(&self) -> Description {
        let superblock = &self.volume().superblock;
        Description {
            kind: superblock.kind(),
            uuid: superblock.uuid,
            label: superblock.label.clone(),
            features: superblock.features.describe(),
            details: self.details(),
        }
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let volume = self.volume();
        let (geometry, superblock) = (&volume.geometry, &volume.superblock);
        let mut details = vec![
            ("state", state(superblock.state)),
            ("errors recorded", superblock.error_count.to_string()),
            ("journal", self.journal_state()),
            ("orphaned inodes", self.orphans().all().len().to_string()),
            ("revision", superblock.revision.to_string()),
            ("blocks", geometry.blocks_count.to_string()),
            ("block size", geometry.block_bytes.to_string()),
            ("first block", geometry.first_data_block.to_string()),
            ("groups", geometry.groups_count.to_string()),
            ("blocks per group", geometry.blocks_per_group.to_string()),
            ("inodes", geometry.inodes_count.to_string()),
            ("inodes per group", geometry.inodes_per_group.to_string()),
            ("inode size", geometry.inode_bytes.to_string()),
            ("first inode", geometry.first_inode.to_string()),
            ("descriptor size", geometry.descriptor_bytes.to_string()),
            ("reserved blocks", superblock.reserved_blocks.to_string()),
            ("reserved for user", superblock.reserved_uid.to_string()),
            ("reserved for group", superblock.reserved_gid.to_string()),
            ("created", moment(superblock.created)),
            ("last mounted", moment(superblock.mounted)),
            ("last written", moment(superblock.written)),
            ("last checked", moment(superblock.checked)),
            ("mount count", superblock.mount_count.to_string()),
            ("mounts before check", mounts(superblock.max_mount_count)),
            (
                "last mounted on",
                superblock.last_mounted.escape_ascii().to_string(),
            ),
            ("directory hash", hash_name(superblock.default_hash_version)),
            ("directory hash seed", self.hash_seed()),
        ];
        let held = volume.device().geometry().len_bytes;
        if let Some(missing @ 1..) = geometry.len_bytes().checked_sub(held) {
            let text = format!("the last {missing} bytes are missing");
            details.insert(0, ("cut off", text));
        }
        if geometry.features.has_bigalloc() {
            let bytes = u64::from(geometry.cluster_blocks) * u64::from(geometry.block_bytes);
            details.push(("cluster size", bytes.to_string()));
        }
        if geometry.features.incompat.contains(Incompat::FLEX_BG) {
            details.push(("flex group size", geometry.groups_per_flex.to_string()));
        }
        if geometry.features.incompat.contains(Incompat::MMP) {
            details.push(("mmp block", superblock.mmp_block.to_string()));
        }
        if geometry.features.has_metadata_csum() {
            details.push(("checksum seed", format!("{:#010x}", geometry.checksum_seed)));
        }
        if geometry.features.incompat.contains(Incompat::CASEFOLD) {
            details.push(("name encoding", encoding(superblock.encoding)));
        }
        details
    }

    fn journal_state(&self) -> String {
        let volume = self.volume();
        if !volume.superblock.features.has_journal() {
            return "none".into();
        }
        if let Some(report) = self.recovery() {
            let (transactions, blocks) = (report.log.transactions, report.log.blocks_replayed);
            let fast = match report.fast_commits.fast_commits {
                0 => String::new(),
                count => format!(", {count} fast commits"),
            };
            return format!("recovered ({transactions} transactions, {blocks} blocks{fast})");
        }
        if volume
            .superblock
            .features
            .incompat
            .contains(Incompat::RECOVER)
        {
            return "needs recovery".into();
        }
        if volume.superblock.journal_inode.is_none() {
            return format!("external, {}", volume.superblock.journal_uuid);
        }
        match open_journal(volume, None) {
            Ok(journal) => format!("clean, {} bytes", journal.state().len_bytes),
            Err(error) => format!("damaged: {error}"),
        }
    }

    fn hash_seed(&self) -> String {
        let words = self.volume().superblock.hash_seed;
        let mut bytes = [0; 16];
        for (to, from) in bytes
            .iter_mut()
            .zip(words.iter().flat_map(|word| word.to_le_bytes()))
        {
            *to = from;
        }
        platter_ondisk::Uuid::from_bytes(bytes).to_string()
    }
}

fn state(state: State) -> String {
    let clean = if state.is_clean() {
        "clean"
    } else {
        "not clean"
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
    format!("{clean}{errors}{orphans}")
}

fn mounts(count: u16) -> String {
    match count {
        0 | u16::MAX => "unlimited".into(),
        count => count.to_string(),
    }
}

fn hash_name(version: u8) -> String {
    let name = match version {
        0 | 3 => "legacy",
        1 | 4 => "half_md4",
        2 | 5 => "tea",
        6 => "siphash",
        other => return format!("unknown ({other})"),
    };
    name.into()
}

fn encoding(number: u16) -> String {
    match number {
        1 => "utf8-12.1".into(),
        other => format!("unknown ({other})"),
    }
}

/// A moment in UTC, as `2026-01-31T12:00:00Z`; `never` for the zero of the superblock.
fn moment(time: Timestamp) -> String {
    const DAY: i64 = 86_400;
    if time.seconds == 0 {
        return "never".into();
    }
    let (days, second) = (time.seconds.div_euclid(DAY), time.seconds.rem_euclid(DAY));
    // Years that begin in March end with the leap day, and their months follow one formula.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z",
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_of_the_calendar() {
        let at = |seconds| {
            moment(Timestamp {
                seconds,
                nanoseconds: 0,
            })
        };
        assert_eq!(at(1), "1970-01-01T00:00:01Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_825_600), "2000-02-29T12:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(at(0), "never");
    }
}
