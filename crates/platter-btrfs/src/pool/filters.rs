//! The filters of a balance, in the words of `btrfs balance`.

use std::ops::{Range, RangeInclusive};

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

/// Two numbers with `..` in between, of which one may be left out.
fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once("..")?;
    let number = |text: &str, default| match text {
        "" => Some(default),
        text => text.parse().ok(),
    };
    let range = number(start, 0)?..number(end, u64::MAX)?;
    let is_there = !start.is_empty() || !end.is_empty();
    (is_there && range.start <= range.end).then_some(range)
}

/// A range of bytes.
fn byte_range(text: &str) -> Option<Range<u64>> {
    range(text).filter(|range| !range.is_empty())
}

/// A range of numbers that are kept in 32 bits, both of them included.
fn counts(text: &str) -> Option<RangeInclusive<u64>> {
    let range = range(text)?;
    let most = u64::from(u32::MAX);
    let is_kept = range.start <= most && (range.end <= most || range.end == u64::MAX);
    is_kept.then_some(range.start..=range.end)
}

/// A part of a chunk in percent: a number stands for all up to it.
fn percent(text: &str) -> Option<Range<u64>> {
    let range = text.parse().ok().map(|end| 0..end).or_else(|| range(text));
    range.filter(|range| range.end <= 100)
}

/// How many chunks: a number stands for all up to it.
fn limit(text: &str) -> Option<RangeInclusive<u64>> {
    let most = text.parse().ok();
    most.map(|most| 0..=most).or_else(|| counts(text))
}

/// Parses the filters of a type.
pub(super) fn parse(text: Option<&str>) -> Result<Option<BalanceFilter>> {
    let Some(text) = text else { return Ok(None) };
    let refused = |word: &str, reason| {
        platter_vfs::Error::from(Unsupported {
            filesystem: "btrfs",
            feature: format!("the balance filter {word}"),
            reason,
        })
    };
    let mut filter = BalanceFilter::default();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        set(&mut filter, word).ok_or_else(|| refused(word, None))?;
    }
    if filter.device_range.is_some() && filter.device.is_none() {
        return Err(refused("drange", Some("it takes devid=")));
    }
    if filter.is_soft && filter.convert.is_none() {
        return Err(refused("soft", Some("it takes convert=")));
    }
    Ok(Some(filter))
}

fn set(filter: &mut BalanceFilter, word: &str) -> Option<()> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "profiles" => {
            filter.profiles = value.split('|').map(profile).collect::<Option<_>>()?;
        }
        "usage" => filter.usage = Some(percent(value)?),
        "devid" => {
            let id = value.parse().ok().filter(|&id| id > 0);
            filter.device = Some(DeviceId(id?));
        }
        "drange" => filter.device_range = Some(byte_range(value)?),
        "vrange" => filter.logical_range = Some(byte_range(value)?),
        "stripes" => filter.stripes = Some(counts(value)?),
        "limit" => filter.limit = Some(limit(value)?),
        "convert" => filter.convert = Some(profile(value)?),
        "soft" => filter.is_soft = true,
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BalanceFilter> {
        parse(Some(text)).map(Option::unwrap)
    }

    #[test]
    fn filters_have_the_words_of_btrfs() {
        let found = parsed("usage=50,convert=raid1c3,soft,limit=3,devid=2,drange=7..").unwrap();
        assert_eq!(found.usage, Some(0..50));
        assert_eq!(found.convert, Some(Profile::Raid1C3));
        assert!(found.is_soft);
        assert_eq!(
            (found.limit, found.device),
            (Some(0..=3), Some(DeviceId(2)))
        );
        assert_eq!(found.device_range, Some(7..u64::MAX));
        let found = parsed("profiles=single|dup,vrange=10..20,stripes=2..3,usage=..30").unwrap();
        assert_eq!(found.profiles, [Profile::Single, Profile::Dup]);
        assert_eq!(found.logical_range, Some(10..20));
        assert_eq!((found.stripes, found.usage), (Some(2..=3), Some(0..30)));
        let found = parsed("usage=20..60,limit=2..5,stripes=..4").unwrap();
        assert_eq!((found.usage, found.limit), (Some(20..60), Some(2..=5)));
        assert_eq!(found.stripes, Some(0..=4));
        assert_eq!(parsed("usage=0").unwrap().usage, Some(0..0));
        assert_eq!(parsed("limit=2..").unwrap().limit, Some(2..=u64::MAX));
        assert_eq!(parsed("").unwrap(), BalanceFilter::default());
        assert_eq!(parse(None).unwrap(), None);
    }

    /// Each of them is what btrfs-progs says of it.
    #[test]
    fn filters_are_refused_as_by_btrfs_progs() {
        for word in [
            "usage=x",
            "usage=10..",
            "usage=10..101",
            "usage=30..10",
            "usage=..",
            "usage=101",
            "usage=1..2..3",
            "limit=3..1",
            "limit=..",
            "limit=x",
            "limit=0..4294967296",
            "stripes=2",
            "stripes=3..2",
            "stripes=..",
            "drange=5",
            "drange=5..6",
            "devid=0",
            "devid=1,drange=5..5",
            "vrange=5",
            "vrange=5..5",
            "vrange=6..5",
            "vrange=..",
            "vrange=1k..2k",
            "usage=0x10",
            "soft",
            "soft=1",
            "convert=raid7",
            "other",
            "profiles=round",
            "usage=..30",
            "usage=10..100",
            "usage=30..30",
            "usage=0",
            "usage=0..0",
            "limit=1..3",
            "limit=3..3",
            "limit=2..",
            "limit=..2",
            "limit=0",
            "limit=4294967296",
            "stripes=2..2",
            "stripes=2..",
            "devid=1,drange=5..6",
            "devid=1,drange=7..",
            "vrange=5..6",
            "convert=raid1,soft",
            "profiles=dup|raid1",
        ] {
            let mut btrfs = std::process::Command::new("btrfs");
            btrfs.args(["balance", "start", &format!("-d{word}")]);
            // It reads the words before it looks at the directory, which is of no btrfs.
            let output = btrfs.arg("/proc").output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_taken = said.starts_with("ERROR: not a btrfs filesystem");
            let ours = parsed(word);
            assert_eq!(ours.is_ok(), is_taken, "{word}: {said}");
            if let Err(error) = ours {
                let error = error.to_string();
                assert!(error.contains("the balance filter"), "{error}");
            }
        }
    }
}
