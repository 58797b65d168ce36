//! The filters of a balance, in the words of `btrfs balance`.

use std::ops::Range;

use platter_vfs::{Result, Unsupported};

use super::balance::BalanceFilter;
use crate::ondisk::DeviceId;
use crate::ondisk::chunk_item::Profile;

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
pub(super) fn parse(text: Option<&str>) -> Result<Option<BalanceFilter>> {
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
        let parsed = |text| parse(Some(text)).map(Option::unwrap);
        let found = parsed("usage=50,convert=raid1c3,soft,limit=3,devid=2").unwrap();
        assert_eq!(found.usage, Some(0..50));
        assert_eq!(found.convert, Some(Profile::Raid1C3));
        assert!(found.is_soft);
        assert_eq!((found.limit, found.device), (Some(3), Some(DeviceId(2))));
        let found = parsed("profiles=single|dup,vrange=10..20,stripes=2..3,usage=..30").unwrap();
        assert_eq!(found.profiles, [Profile::Single, Profile::Dup]);
        assert_eq!(found.logical_range, Some(10..20));
        assert_eq!((found.stripes, found.usage), (Some(2..4), Some(0..30)));
        assert_eq!(parsed("usage=0").unwrap().usage, Some(0..1));
        assert_eq!(parsed("").unwrap(), BalanceFilter::default());
        assert_eq!(parse(None).unwrap(), None);
        for word in ["usage=x", "convert=raid7", "soft=1", "other", "stripes=2"] {
            let refused = parsed(word).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
