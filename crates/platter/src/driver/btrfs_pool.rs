//! The devices of a btrfs.

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_btrfs::ondisk::DeviceId;
use platter_btrfs::ondisk::chunk_item::Profile;
use platter_btrfs::scrub::scrub;
use platter_btrfs::{BalanceArgs, BalanceFilter, PoolRequest, ScrubCounts};
use platter_vfs::{CheckReport, CheckSink, Result, Unsupported};

use super::MountRequest;
use super::btrfs::{BtrfsDriver, devices_of, options_of};
use super::pool::{Balance, Moved, Moving, Pool, Scrubbed};

impl Pool for BtrfsDriver {
    fn scrub(
        &self,
        request: MountRequest,
        repairs: bool,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        let devices = devices_of(&request)?;
        let options = options_of(&request);
        let scrubbed = scrub(&devices, &options, &request.budget, repairs, sink)?;
        Ok(scrubbed_of(&scrubbed, repairs))
    }

    fn balance(
        &self,
        request: MountRequest,
        balance: &Balance,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        let metadata = filter(balance.metadata.as_deref())?;
        let system = filter(balance.system.as_deref())?;
        let args = BalanceArgs {
            data: filter(balance.data.as_deref())?,
            system: system.or_else(|| metadata.clone()),
            metadata,
            is_forced: balance.is_forced,
        };
        pool_request(&request)?.balance(&args, moving).map(moved)
    }

    fn add_device(&self, request: MountRequest, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        pool_request(&request)?.add_device(device)
    }

    fn remove_device(
        &self,
        request: MountRequest,
        device: u64,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        pool_request(&request)?
            .remove_device(DeviceId(device), moving)
            .map(moved)
    }

    fn replace_device(
        &self,
        request: MountRequest,
        device: u64,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        let request = pool_request(&request)?;
        let scrubbed = request.replace_device(DeviceId(device), target, sink)?;
        Ok(scrubbed_of(&scrubbed, true))
    }

    fn resize_device(
        &self,
        request: MountRequest,
        device: u64,
        len_bytes: u64,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        let request = pool_request(&request)?;
        request
            .resize_device(DeviceId(device), len_bytes, moving)
            .map(moved)
    }
}

fn pool_request(request: &MountRequest) -> Result<PoolRequest> {
    Ok(PoolRequest {
        devices: devices_of(request)?,
        options: options_of(request),
        budget: Arc::clone(&request.budget),
        clock: Arc::clone(&request.clock),
    })
}

fn scrubbed_of((counts, report): &(ScrubCounts, CheckReport), repairs: bool) -> Scrubbed {
    Scrubbed {
        errors: counts.errors(),
        uncorrectable: counts.uncorrectable_errors,
        counters: counts.named().to_vec(),
        ..Scrubbed::from((report, repairs))
    }
}

fn moved(moved: platter_btrfs::Moved) -> Moved {
    Moved {
        considered: moved.considered,
        moved: moved.moved,
        removed: moved.removed,
        is_cancelled: moved.is_cancelled,
    }
}

const PROFILES: [(&str, Profile); 9] = [
    ("single", Profile::Single),
    ("dup", Profile::Dup),
    ("raid0", Profile::Raid0),
    ("raid1", Profile::Raid1),
    ("raid1c3", Profile::Raid1C3),
    ("raid1c4", Profile::Raid1C4),
    ("raid10", Profile::Raid10),
    ("raid5", Profile::Raid5),
    ("raid6", Profile::Raid6),
];

fn profile(name: &str) -> Option<Profile> {
    let found = PROFILES.iter().find(|(known, _)| *known == name);
    found.map(|(_, profile)| *profile)
}

/// A number, or two with `..` in between of which one may be left out; the second one is not included.
fn range(text: &str) -> Option<Range<u64>> {
    let number = |text: &str, default| match text {
        "" => Some(default),
        text => text.parse().ok(),
    };
    match text.split_once("..") {
        Some((start, end)) => Some(number(start, 0)?..number(end, u64::MAX)?),
        None => Some(0..text.parse().ok()?),
    }
}

/// Parses the filters of a type.
fn filter(text: Option<&str>) -> Result<Option<BalanceFilter>> {
    let Some(text) = text else { return Ok(None) };
    let mut filter = BalanceFilter::default();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        set(&mut filter, word).ok_or_else(|| {
            platter_vfs::Error::from(Unsupported {
                filesystem: "btrfs",
                feature: format!("the balance filter {word}"),
                reason: None,
            })
        })?;
    }
    Ok(Some(filter))
}

fn set(filter: &mut BalanceFilter, word: &str) -> Option<()> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "profiles" => {
            filter.profiles = value.split('|').map(profile).collect::<Option<_>>()?;
        }
        // Nothing of it is used.
        "usage" if value == "0" => filter.usage = Some(0..1),
        "usage" => filter.usage = Some(range(value)?),
        "devid" => filter.device = Some(DeviceId(value.parse().ok()?)),
        "drange" => filter.device_range = Some(range(value)?),
        "vrange" => filter.logical_range = Some(range(value)?),
        "stripes" => {
            let counts = range(value).filter(|_| value.contains(".."))?;
            // The last number is included here.
            filter.stripes = Some(counts.start..counts.end.saturating_add(1));
        }
        "limit" => filter.limit = Some(value.parse().ok()?),
        "convert" => filter.convert = Some(profile(value)?),
        "soft" if value.is_empty() => filter.is_soft = true,
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_have_the_words_of_btrfs() {
        let parse = |text| filter(Some(text)).map(Option::unwrap);
        let found = parse("usage=50,convert=raid1c3,soft,limit=3,devid=2").unwrap();
        assert_eq!(found.usage, Some(0..50));
        assert_eq!(found.convert, Some(Profile::Raid1C3));
        assert!(found.is_soft);
        assert_eq!((found.limit, found.device), (Some(3), Some(DeviceId(2))));
        let found = parse("profiles=single|dup,vrange=10..20,stripes=2..3,usage=..30").unwrap();
        assert_eq!(found.profiles, [Profile::Single, Profile::Dup]);
        assert_eq!(found.logical_range, Some(10..20));
        assert_eq!((found.stripes, found.usage), (Some(2..4), Some(0..30)));
        assert_eq!(parse("usage=0").unwrap().usage, Some(0..1));
        assert_eq!(parse("").unwrap(), BalanceFilter::default());
        assert_eq!(filter(None).unwrap(), None);
        for word in ["usage=x", "convert=raid7", "soft=1", "other", "stripes=2"] {
            let refused = parse(word).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
