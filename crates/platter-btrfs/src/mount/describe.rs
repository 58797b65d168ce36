//! What a filesystem says about itself.

use platter_vfs::{Description, Detail, DetailValue, Feature, FeatureClass};

use super::statfs::{Usage, usage};
use crate::chunk::Member;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ops::SuperBlock;

pub(super) fn describe(fs: &SuperBlock) -> Description {
    let superblock = &fs.context.superblock;
    let features = &superblock.features;
    let of = |class| move |name| Feature { name, class };
    let incompat = features.incompat_names().into_iter();
    let compat_ro = features.compat_ro_names().into_iter();
    Description {
        kind: "btrfs",
        uuid: superblock.fsid,
        label: superblock.label.clone(),
        features: incompat
            .map(of(FeatureClass::Incompatible))
            .chain(compat_ro.map(of(FeatureClass::ReadOnlyCompatible)))
            .collect(),
        details: details(fs),
    }
}

fn details(fs: &SuperBlock) -> Vec<Detail> {
    let superblock = &fs.context.superblock;
    let number = |key, label, number: u64| Detail::new(key, label, number.into());
    let log = match superblock.log_root {
        Some(_) => DetailValue::Word("present"),
        None => DetailValue::Absent("none"),
    };
    let mut details = vec![
        number("generation", "generation", superblock.generation.0),
        Detail::new("log_tree", "log tree", log),
        number(
            "sector_bytes",
            "sector size",
            superblock.sector_bytes.into(),
        ),
        number("node_bytes", "node size", superblock.node_bytes.into()),
        Detail::new(
            "checksum",
            "checksum",
            DetailValue::Word(superblock.checksum_kind.name()),
        ),
        number("total_bytes", "total bytes", superblock.total_bytes),
        number("used_bytes", "used bytes", superblock.bytes_used),
        number("devices", "devices", superblock.device_count),
        number("root_subvolume", "root subvolume", fs.root().tree),
    ];
    let members = fs.context.blocks.store().members();
    details.extend(members.iter().map(member));
    if let Ok((all, _)) = usage(&fs.context) {
        details.extend(all.iter().map(space));
    }
    let bad = fs.context.blocks.bad_copies();
    details.push(number("bad_copies", "bad copies found", bad.found));
    let data = &fs.data;
    details.push(number(
        "corrected_sectors",
        "data sectors read from another copy",
        data.other_copies(),
    ));
    details.push(number(
        "bad_sectors",
        "data sectors without a good copy",
        data.mismatches(),
    ));
    details
}

fn member(member: &Member) -> Detail {
    let device = member.device.as_ref();
    let name = device.map_or("missing", |device| device.name());
    let fields = vec![
        Detail::new("id", "id", member.id.0.into()),
        Detail::new("uuid", "uuid", member.uuid.into()),
        Detail::new("missing", "missing", DetailValue::Flag(device.is_none())),
        Detail::new(
            "total_bytes",
            "total bytes",
            member.total_bytes.unwrap_or_default().into(),
        ),
    ];
    let text = format!("{} ({name})", member.id);
    Detail::new("device", "device", DetailValue::Record { text, fields })
}

fn space(usage: &Usage) -> Detail {
    let kind = kind(usage.flags);
    let profile = Profile::of(usage.flags).map_or("unknown", Profile::name);
    let fields = vec![
        Detail::new("kind", "kind", DetailValue::Word(kind)),
        Detail::new("profile", "profile", DetailValue::Word(profile)),
        Detail::new("total_bytes", "total bytes", usage.total_bytes.into()),
        Detail::new("used_bytes", "used bytes", usage.used_bytes.into()),
        Detail::new(
            "device_bytes",
            "bytes on devices",
            usage.device_bytes.into(),
        ),
    ];
    let text = format!(
        "{kind}, {profile}: {} of {} bytes used",
        usage.used_bytes, usage.total_bytes
    );
    Detail::new("space", "space", DetailValue::Record { text, fields })
}

fn kind(flags: BlockGroupFlags) -> &'static str {
    if flags.contains(BlockGroupFlags::DATA | BlockGroupFlags::METADATA) {
        "mixed"
    } else if flags.contains(BlockGroupFlags::DATA) {
        "data"
    } else if flags.contains(BlockGroupFlags::METADATA) {
        "metadata"
    } else {
        "system"
    }
}
