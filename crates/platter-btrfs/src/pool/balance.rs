//! Balance: chunks are placed anew, with another profile if that is wanted.

use std::ops::{Range, RangeInclusive};

use platter_vfs::Result;
use platter_vfs::devices::{Balance, Moved, Moving};

use super::{filters, move_chunks, unsupported};
use crate::ondisk::DeviceId;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile};
use crate::ondisk::features::Incompat;
use crate::txn::{Placing, WriteContext, restripe};

/// Which chunks of a type are balanced: those that all conditions hold of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BalanceFilter {
    /// `profiles`: one of these, if there are any.
    pub profiles: Vec<Profile>,
    /// `usage`: as many percent of it are used, the end not included; an end of 0 means that nothing of it is.
    pub usage: Option<Range<u64>>,
    /// `devid`: it has a stripe on this device.
    pub device: Option<DeviceId>,
    /// `drange`: a stripe on that device has a byte in this range.
    pub device_range: Option<Range<u64>>,
    /// `vrange`: it has an address in this range.
    pub logical_range: Option<Range<u64>>,
    /// `stripes`: so many stripes.
    pub stripes: Option<RangeInclusive<u64>>,
    /// `limit`: so many chunks at most; none where there are fewer.
    pub limit: Option<RangeInclusive<u64>>,
    /// `convert`: the profile that they get.
    pub convert: Option<Profile>,
    /// `soft`: not those that have it.
    pub is_soft: bool,
}

/// What is balanced: types that are `None` are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BalanceArgs {
    /// `-d`.
    pub data: Option<BalanceFilter>,
    /// `-m`.
    pub metadata: Option<BalanceFilter>,
    /// `-s`.
    pub system: Option<BalanceFilter>,
    /// `-f`: metadata may have fewer copies after it.
    pub is_forced: bool,
}

impl BalanceFilter {
    fn holds_of(&self, chunk: &ChunkItem, used: u64) -> bool {
        let overlaps = |wanted: &Range<u64>, start: u64, len_bytes: u64| {
            wanted.start < start.saturating_add(len_bytes) && start < wanted.end
        };
        let percent = |part: u64| chunk.len_bytes.saturating_mul(part) / 100;
        let is_so_full = |wanted: &Range<u64>| {
            let end = percent(wanted.end).max(u64::from(wanted.end == 0));
            (percent(wanted.start)..end).contains(&used)
        };
        let has_stripe = || {
            chunk.stripes.iter().any(|stripe| {
                let is_on = self.device.is_none_or(|device| device == stripe.device);
                let len_bytes = chunk.stripe_len_bytes();
                let range = self.device_range.as_ref();
                is_on && range.is_none_or(|it| overlaps(it, stripe.offset.0, len_bytes))
            })
        };
        let count = chunk.stripes.len() as u64;
        let logical = self.logical_range.as_ref();
        let has_profile = self.profiles.is_empty() || self.profiles.contains(&chunk.profile);
        let is_converted = self.is_soft && self.convert == Some(chunk.profile);
        has_profile
            && !is_converted
            && self.usage.as_ref().is_none_or(is_so_full)
            && has_stripe()
            && logical.is_none_or(|it| overlaps(it, chunk.start.0, chunk.len_bytes))
            && self.stripes.as_ref().is_none_or(|it| it.contains(&count))
    }
}

impl BalanceArgs {
    /// What the words of filters say.
    ///
    /// # Errors
    /// `Unsupported` for words that are not known.
    pub fn parse(words: &Balance) -> Result<Self> {
        let metadata = filters::parse(words.metadata.as_deref())?;
        let system = filters::parse(words.system.as_deref())?;
        Ok(Self {
            data: filters::parse(words.data.as_deref())?,
            system: system.or_else(|| metadata.clone()),
            metadata,
            is_forced: words.is_forced,
        })
    }

    /// The filter of a chunk: of one that holds data and metadata, that of data.
    fn of(&self, flags: BlockGroupFlags) -> Option<&BalanceFilter> {
        if flags.contains(BlockGroupFlags::DATA) {
            self.data.as_ref()
        } else if flags.contains(BlockGroupFlags::SYSTEM) {
            self.system.as_ref()
        } else {
            self.metadata.as_ref()
        }
    }

    fn types(&self) -> [(BlockGroupFlags, Option<&BalanceFilter>); 3] {
        [
            (BlockGroupFlags::DATA, self.data.as_ref()),
            (BlockGroupFlags::SYSTEM, self.system.as_ref()),
            (BlockGroupFlags::METADATA, self.metadata.as_ref()),
        ]
    }
}

/// Whether something is left of a chunk without a device, or without one of its copies.
fn has_copies(profile: Profile) -> bool {
    !matches!(profile, Profile::Single | Profile::Raid0)
}

/// Places chunks anew: on the devices with the most free space, over as many as the profile and the length of the
/// chunk allow. Chunks that nothing is in are removed, and those whose extents fit in others of their kind.
///
/// # Errors
/// `ENOSPC` where the devices have no space for a chunk: those before it were moved.
pub(crate) fn balance(fs: &WriteContext, args: &BalanceArgs, moving: Moving<'_>) -> Result<Moved> {
    let incompat = fs.superblock().features.incompat;
    if incompat.contains(Incompat::MIXED_GROUPS) && args.data != args.metadata {
        let feature = "filters of data other than those of metadata".to_owned();
        return Err(unsupported(feature, Some("they share chunks")));
    }
    let map = fs.blocks().store().map();
    let mut placing = Placing::default();
    for (kind, filter) in args.types() {
        let Some(target) = filter.and_then(|filter| filter.convert) else {
            continue;
        };
        let of_kind = |chunk: &&ChunkItem| chunk.flags.contains(kind);
        let is_data = kind == BlockGroupFlags::DATA;
        let loses = map.iter().filter(of_kind).any(|it| has_copies(it.profile));
        if loses && !has_copies(target) && !is_data && !args.is_forced {
            let feature = format!("metadata as {} without its copies", target.name());
            return Err(unsupported(feature, Some("use --force")));
        }
        placing.profiles.push((kind, target));
    }
    // Chunks that are added meanwhile are as they should be.
    let last = map.end();
    drop(map);
    let _placed = restripe::set_placing(fs, placing);
    let limit = |types| {
        let filter = args.of(types);
        let limit = filter.and_then(|filter| filter.limit.clone());
        limit.unwrap_or(0..=u64::MAX)
    };
    let wanted = |chunk: &ChunkItem, used: u64| {
        let filter = args.of(chunk.flags)?;
        let is_old = chunk.start < last || filter.convert.is_some_and(|it| it != chunk.profile);
        let is_wanted = is_old && filter.holds_of(chunk, used);
        is_wanted.then(|| filter.convert.unwrap_or(chunk.profile))
    };
    move_chunks(fs, moving, &wanted, &|_| true, &limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::chunk_item::tests::sample;

    #[test]
    fn filters_choose_chunks() {
        let chunk = sample(1 << 30, Profile::Raid1, 2);
        let filter = BalanceFilter::default();
        assert!(filter.holds_of(&chunk, 0));
        let usage = |range| BalanceFilter {
            usage: Some(range),
            ..BalanceFilter::default()
        };
        assert!(usage(0..50).holds_of(&chunk, chunk.len_bytes / 4));
        assert!(!usage(0..50).holds_of(&chunk, chunk.len_bytes / 2));
        assert!(usage(50..51).holds_of(&chunk, chunk.len_bytes / 2));
        assert!(!usage(50..51).holds_of(&chunk, chunk.len_bytes / 2 - 1));
        assert!(!usage(0..100).holds_of(&chunk, chunk.len_bytes));
        assert!(usage(0..0).holds_of(&chunk, 0));
        assert!(!usage(0..0).holds_of(&chunk, 1));
        assert!(!usage(30..30).holds_of(&chunk, chunk.len_bytes / 10 * 3));
        let stripes = |stripes| BalanceFilter {
            stripes: Some(stripes),
            ..BalanceFilter::default()
        };
        assert!(stripes(2..=2).holds_of(&chunk, 0));
        assert!(!stripes(3..=4).holds_of(&chunk, 0));
        let of_device = |device, range| BalanceFilter {
            device: Some(DeviceId(device)),
            device_range: range,
            ..BalanceFilter::default()
        };
        assert!(of_device(2, None).holds_of(&chunk, 0));
        assert!(!of_device(3, None).holds_of(&chunk, 0));
        assert!(of_device(2, Some(0..(2 << 20) + 1)).holds_of(&chunk, 0));
        assert!(!of_device(2, Some(0..2 << 20)).holds_of(&chunk, 0));
        let convert = BalanceFilter {
            convert: Some(Profile::Raid1),
            is_soft: true,
            ..BalanceFilter::default()
        };
        assert!(!convert.holds_of(&chunk, 0));
        let hard = BalanceFilter {
            is_soft: false,
            ..convert
        };
        assert!(hard.holds_of(&chunk, 0));
        let of_profile = BalanceFilter {
            profiles: vec![Profile::Dup],
            ..BalanceFilter::default()
        };
        assert!(!of_profile.holds_of(&chunk, 0));
    }
}
