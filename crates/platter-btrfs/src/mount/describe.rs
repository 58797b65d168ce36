//! What a filesystem says about itself.

use hashbrown::{HashMap, HashSet};
use platter_ondisk::Uuid;
use platter_vfs::{Description, Detail, DetailValue, Feature, FeatureClass};

use super::statfs::{Usage, reserved_bytes, usage};
use crate::chunk::{Member, Members};
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::{DeviceId, Superblock};
use crate::ops::SuperBlock;
use crate::qgroup::QuotaState;
use crate::txn::{WriteContext, quotas};

pub(super) fn describe(fs: &SuperBlock) -> Description {
    let superblock = superblock(fs);
    let features = fs.features();
    let of = |class| {
        move |name: &'static str| Feature {
            name: name.into(),
            class,
        }
    };
    let incompat = features.incompat_names().into_iter();
    let compat_ro = features.compat_ro_names().into_iter();
    Description {
        kind: "btrfs".into(),
        uuid: superblock.fsid,
        label: superblock.label,
        features: incompat
            .map(of(FeatureClass::Incompatible))
            .chain(compat_ro.map(of(FeatureClass::ReadOnlyCompatible)))
            .collect(),
        details: details(fs),
    }
}

/// The superblock of the last commit, with what has changed of it since.
fn superblock(fs: &SuperBlock) -> Superblock {
    match fs.writing() {
        Some(writing) => writing.superblock(),
        None => fs.context().superblock.clone(),
    }
}

/// What the last commit of this mount counted.
fn last_commit(writing: &WriteContext) -> Vec<Detail> {
    let report = writing.last_commit();
    let refs = &report.references;
    let mut groups = report.groups_before;
    groups += report.groups;
    let counts = [
        ("commit_generation", "last commit", report.generation.0),
        ("commit_heads", "heads of references inserted", refs.heads),
        (
            "commit_heads_median",
            "heads present at insertion, median",
            refs.present_at(50),
        ),
        ("commit_references", "references queued", refs.refs),
        ("commit_cancelled", "references cancelled", refs.cancelled),
        (
            "commit_extent_searches",
            "searches of the extent tree",
            report.extent_searches,
        ),
        ("commit_groups_dirty", "block groups changed", groups.dirty),
        (
            "commit_groups_skipped",
            "block groups skipped",
            groups.skipped,
        ),
        (
            "commit_groups_written",
            "block groups written",
            groups.written,
        ),
        (
            "commit_groups_inserted",
            "block groups inserted",
            groups.inserted,
        ),
        (
            "commit_blocks_copied",
            "tree blocks copied",
            report.blocks_copied,
        ),
        (
            "commit_inodes_recorded",
            "inode items recorded",
            report.inodes_recorded,
        ),
        (
            "commit_inode_items_written",
            "inode items written",
            report.inode_items_written,
        ),
        (
            "commit_leaf_searches",
            "searches of subvolumes",
            report.leaf_searches,
        ),
        (
            "commit_leaf_changes",
            "changes of leaves of subvolumes",
            report.leaf_changes,
        ),
        (
            "commit_blocks_written",
            "tree blocks written",
            report.blocks_written,
        ),
        (
            "commit_loop_nanoseconds",
            "block group loop, ns",
            groups.nanoseconds,
        ),
        (
            "commit_critical_nanoseconds",
            "critical section, ns",
            report.critical_nanoseconds,
        ),
        (
            "commit_unblocked_nanoseconds",
            "unblocked phase, ns",
            report.unblocked_nanoseconds,
        ),
    ];
    let detail = |(key, label, count): (&'static str, &'static str, u64)| {
        Detail::new(key, label, count.into())
    };
    counts.into_iter().map(detail).collect()
}

fn details(fs: &SuperBlock) -> Vec<Detail> {
    let superblock = superblock(fs);
    let number = |key, label, number: u64| Detail::new(key, label, number.into());
    let log = match superblock.log_root {
        Some(_) => DetailValue::word("present"),
        None => DetailValue::absent("none"),
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
            DetailValue::word(superblock.checksum_kind.name()),
        ),
        number("total_bytes", "total bytes", superblock.total_bytes),
        number("used_bytes", "used bytes", superblock.bytes_used),
        number("devices", "devices", superblock.device_count),
        number("root_subvolume", "root subvolume", fs.root().tree),
    ];
    details.extend(fs.writing().into_iter().flat_map(last_commit));
    let members = &*fs.context().blocks.store().members();
    let allocation = Allocation::of(fs);
    details.extend(device_totals(members, &allocation));
    details.extend(members.iter().map(|it| member(it, &allocation)));
    if let Ok(all) = usage(fs) {
        let reserve = reserved_bytes(fs).ok();
        let unallocated = allocation.unallocated(members);
        details.extend(space_totals(&all, unallocated, reserve));
        details.extend(reserve.map(|bytes| number("reserve_bytes", "global reserve", bytes)));
        details.extend(all.iter().map(|usage| space(usage, members, &allocation)));
    }
    details.extend(quota_groups(fs));
    let bad = fs.context().blocks.bad_copies();
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

/// Whether the usage of quota groups is right, and why not.
fn quota_groups(fs: &SuperBlock) -> Vec<Detail> {
    let state = match fs.writing() {
        Some(writing) => Ok(quotas::state(writing)),
        None => QuotaState::read(fs.context()),
    };
    let (value, reason) = match state {
        Ok(QuotaState::Off) => (DetailValue::absent("off"), None),
        Ok(QuotaState::Simple) => (DetailValue::word("simple"), None),
        Ok(QuotaState::Consistent) => (DetailValue::word("consistent"), None),
        Ok(QuotaState::Inconsistent(why)) => {
            (DetailValue::word("inconsistent"), Some(why.to_string()))
        }
        Err(error) => (DetailValue::word("unreadable"), Some(error.to_string())),
    };
    let mut details = vec![Detail::new("quota_groups", "quota groups", value)];
    details.extend(reason.map(|reason| {
        let text = DetailValue::Text(reason);
        Detail::new("quota_groups_reason", "quota groups, reason", text)
    }));
    details
}

/// Bytes that chunks take of devices, by the flags of the chunks.
struct Allocation(HashMap<(DeviceId, Uuid), HashMap<BlockGroupFlags, u64>>);

impl Allocation {
    fn of(fs: &SuperBlock) -> Self {
        let mut devices: HashMap<_, HashMap<_, u64>> = HashMap::new();
        for chunk in fs.context().blocks.store().map().iter() {
            for stripe in &chunk.stripes {
                let device = devices.entry((stripe.device, stripe.device_uuid));
                let bytes = device.or_default().entry(chunk.flags).or_default();
                *bytes = bytes.saturating_add(chunk.stripe_len_bytes());
            }
        }
        Self(devices)
    }

    fn on(&self, member: &Member, flags: BlockGroupFlags) -> u64 {
        let device = self.0.get(&(member.id, member.uuid));
        let bytes = device.and_then(|device| device.get(&flags));
        bytes.copied().unwrap_or_default()
    }

    /// Bytes of all devices that belong to no chunk.
    fn unallocated(&self, members: &Members) -> u64 {
        let of = |it: &Member| it.total_bytes.unwrap_or_default();
        let free = members
            .iter()
            .map(|it| of(it).saturating_sub(self.all_on(it)));
        free.fold(0, u64::saturating_add)
    }

    fn all_on(&self, member: &Member) -> u64 {
        let device = self.0.get(&(member.id, member.uuid));
        let bytes = device.into_iter().flat_map(HashMap::values);
        bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Bytes on devices, and the bytes of the filesystem that they hold.
#[derive(Debug, Clone, Copy, Default)]
struct Ratio {
    on_devices: u64,
    logical: u64,
}

impl Ratio {
    /// That of all block groups with some flags.
    fn of(all: &[Usage], flags: BlockGroupFlags) -> Self {
        let of_flags = all.iter().filter(|usage| usage.flags.contains(flags));
        of_flags.fold(Self::default(), |sum, usage| Self {
            on_devices: sum.on_devices.saturating_add(usage.device_bytes),
            logical: sum.logical.saturating_add(usage.total_bytes),
        })
    }

    fn scale(bytes: u64, by: u64, divided_by: u64) -> u64 {
        let product = u128::from(bytes) * u128::from(by) / u128::from(divided_by.max(1));
        u64::try_from(product).unwrap_or(u64::MAX)
    }

    /// Converts bytes of the filesystem to bytes on devices.
    fn on_devices(self, logical: u64) -> u64 {
        Self::scale(logical, self.on_devices, self.logical)
    }

    /// Converts bytes on devices to bytes of the filesystem.
    fn logical(self, on_devices: u64) -> u64 {
        Self::scale(on_devices, self.logical, self.on_devices)
    }

    /// The ratio with two digits.
    fn text(self) -> String {
        let hundredths = Self::scale(100, self.on_devices, self.logical);
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

/// Unallocated space below this size is not counted as free: no chunk is made of it (`btrfs-filesystem(8)`).
const UNALLOCATED_MIN: u64 = 16 << 20;

/// What all block groups take, and what is left of them, as `btrfs filesystem usage` estimates it. Without the
/// reserve, nothing is estimated of mixed groups.
fn space_totals(all: &[Usage], unallocated: u64, reserve: Option<u64>) -> Vec<Detail> {
    let data = Ratio::of(all, BlockGroupFlags::DATA);
    let metadata = Ratio::of(all, BlockGroupFlags::METADATA);
    let of_one = |usage: &Usage| Ratio {
        on_devices: usage.device_bytes,
        logical: usage.total_bytes,
    };
    let used = all
        .iter()
        .map(|usage| of_one(usage).on_devices(usage.used_bytes));
    let free_of_data = all
        .iter()
        .filter(|usage| usage.flags.contains(BlockGroupFlags::DATA))
        .map(|usage| usage.total_bytes.saturating_sub(usage.used_bytes))
        .fold(0, u64::saturating_add);
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    let is_mixed = all.iter().any(|usage| usage.flags.contains(mixed));
    // The reserve is for metadata, which only mixed groups hold with data.
    let reserved = if is_mixed { reserve } else { Some(0) };
    let new = |ratio: Ratio| {
        let free_of_data = free_of_data.saturating_sub(reserved?);
        Some(match unallocated {
            UNALLOCATED_MIN.. => free_of_data.saturating_add(ratio.logical(unallocated)),
            _ => free_of_data,
        })
    };
    // Where new chunks take as much as those of the profile that takes the most, which may be that of metadata.
    let least = all.iter().map(of_one).filter_map(new).min();
    let kinds: HashSet<_> = all.iter().map(|usage| kind(usage.flags)).collect();
    let has_several = kinds.len() < all.len();
    let number = |key, label, number: u64| Detail::new(key, label, number.into());
    let ratio = |key, label, ratio: Ratio| Detail::new(key, label, DetailValue::Text(ratio.text()));
    let mut details = vec![number(
        "device_used_bytes",
        "device used",
        used.fold(0, u64::saturating_add),
    )];
    let free = new(data).map(|bytes| number("free_bytes", "free, estimated", bytes));
    let least = least.map(|bytes| number("free_min_bytes", "free, at least", bytes));
    details.extend(free.into_iter().chain(least));
    details.extend([
        ratio("data_ratio", "data ratio", data),
        ratio("metadata_ratio", "metadata ratio", metadata),
        Detail::new(
            "multiple_profiles",
            "multiple profiles",
            DetailValue::Flag(has_several),
        ),
    ]);
    details
}

/// Sums over all devices.
fn device_totals(members: &Members, allocation: &Allocation) -> [Detail; 4] {
    let (mut total, mut missing, mut allocated) = (0u64, 0u64, 0u64);
    for member in members.iter() {
        let bytes = member.total_bytes.unwrap_or_default();
        total = total.saturating_add(bytes);
        if member.device.is_none() {
            missing = missing.saturating_add(bytes);
        }
        allocated = allocated.saturating_add(allocation.all_on(member));
    }
    let number = |key, label, number: u64| Detail::new(key, label, number.into());
    [
        number("device_bytes", "device size", total),
        number("allocated_bytes", "device allocated", allocated),
        number(
            "unallocated_bytes",
            "device unallocated",
            allocation.unallocated(members),
        ),
        number("missing_bytes", "device missing", missing),
    ]
}

fn member(member: &Member, allocation: &Allocation) -> Detail {
    let device = member.device.as_ref();
    let name = device.map_or("missing", |device| device.name());
    let total = member.total_bytes.unwrap_or_default();
    let allocated = allocation.all_on(member);
    let fields = vec![
        Detail::new("id", "id", member.id.0.into()),
        Detail::new("uuid", "uuid", member.uuid.into()),
        Detail::new("missing", "missing", DetailValue::Flag(device.is_none())),
        Detail::new("total_bytes", "total bytes", total.into()),
        Detail::new("allocated_bytes", "allocated bytes", allocated.into()),
    ];
    let text = format!(
        "{} ({name}): {allocated} of {total} bytes allocated",
        member.id
    );
    Detail::new("device", "device", DetailValue::Item { text, fields })
}

fn space(usage: &Usage, members: &Members, allocation: &Allocation) -> Detail {
    let kind = kind(usage.flags);
    let profile = Profile::of(usage.flags);
    let word = profile.map_or("unknown", profile_word);
    let profile = profile.map_or("unknown", Profile::name);
    let mut fields = vec![
        Detail::new("kind", "kind", DetailValue::word(kind)),
        Detail::new("profile", "profile", DetailValue::word(word)),
        Detail::new("total_bytes", "total bytes", usage.total_bytes.into()),
        Detail::new("used_bytes", "used bytes", usage.used_bytes.into()),
        Detail::new(
            "device_bytes",
            "bytes on devices",
            usage.device_bytes.into(),
        ),
    ];
    let mut devices = Vec::new();
    for member in members.iter() {
        let bytes = allocation.on(member, usage.flags);
        if bytes > 0 {
            let text = format!("{bytes} on {}", member.id);
            devices.push(text.clone());
            let of_device = vec![
                Detail::new("id", "id", member.id.0.into()),
                Detail::new("bytes", "bytes", bytes.into()),
            ];
            let item = DetailValue::Item {
                text,
                fields: of_device,
            };
            fields.push(Detail::new("devices", "devices", item));
        }
    }
    let text = format!(
        "{kind}, {profile}: {} of {} bytes used; {}",
        usage.used_bytes,
        usage.total_bytes,
        devices.join(", ")
    );
    Detail::new("space", "space", DetailValue::Item { text, fields })
}

/// A profile as programs read it, and `mkfs.btrfs` takes it.
fn profile_word(profile: Profile) -> &'static str {
    match profile {
        Profile::Single => "single",
        Profile::Dup => "dup",
        Profile::Raid0 => "raid0",
        Profile::Raid1 => "raid1",
        Profile::Raid1C3 => "raid1c3",
        Profile::Raid1C4 => "raid1c4",
        Profile::Raid10 => "raid10",
        Profile::Raid5 => "raid5",
        Profile::Raid6 => "raid6",
    }
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
