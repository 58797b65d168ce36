//! What a filesystem reports about itself, for people and for programs.

use std::borrow::Cow;
use std::fmt;

use platter_ondisk::Uuid;

use crate::Timestamp;

/// How a driver must treat a feature it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureClass {
    /// May be ignored.
    Compatible,
    /// Forbids writing.
    ReadOnlyCompatible,
    /// Forbids mounting.
    Incompatible,
}

/// A feature that is switched on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its name in the format's own tools.
    pub name: Cow<'static, str>,
    /// What not knowing it would mean.
    pub class: FeatureClass,
}

/// What a filesystem reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `ext2`, `btrfs`, `xfs`.
    pub kind: Cow<'static, str>,
    /// The volume's UUID.
    pub uuid: Uuid,
    /// The label, as bytes without padding.
    pub label: Vec<u8>,
    /// Features that are on.
    pub features: Vec<Feature>,
    /// Further properties of the format in a fixed order: block size, journal state, mount counts,
    /// times.
    pub details: Vec<Detail>,
}

/// What is counted while a filesystem is mounted, by names in `snake_case` that stay as they are.
pub type Counters = Vec<(Cow<'static, str>, u64)>;

/// One property of a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// Its stable name for programs, in `snake_case`.
    pub key: Cow<'static, str>,
    /// Its name for people.
    pub label: Cow<'static, str>,
    /// Its value.
    pub value: DetailValue,
}

/// The value of a property, with its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetailValue {
    /// There is none: a time that never was, a limit that is not set. The word is for people.
    Absent(Cow<'static, str>),
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A number that people read in hexadecimal.
    Hexadecimal(u32),
    /// One of a fixed set of words in `snake_case`.
    Word(Cow<'static, str>),
    /// A sentence for people.
    Text(String),
    /// A name from the image, of any bytes.
    Name(Vec<u8>),
    /// A UUID.
    Uuid(Uuid),
    /// A moment.
    Time(Timestamp),
    /// One of any number of records under one key: of devices, of kinds of space.
    Item {
        /// The line.
        text: String,
        /// The properties.
        fields: Vec<Detail>,
    },
    /// Properties that belong together, and one line for people that sums them up.
    Record {
        /// The line.
        text: String,
        /// The properties.
        fields: Vec<Detail>,
    },
}

impl Description {
    /// The property with this key.
    #[must_use]
    pub fn detail(&self, key: &str) -> Option<&DetailValue> {
        let found = self.details.iter().find(|detail| detail.key == key);
        found.map(|detail| &detail.value)
    }
}

impl Detail {
    /// A property.
    #[must_use]
    pub fn new(key: &'static str, label: &'static str, value: DetailValue) -> Self {
        Self {
            key: key.into(),
            label: label.into(),
            value,
        }
    }
}

impl DetailValue {
    /// One of a fixed set of words.
    #[must_use]
    pub fn word(word: &'static str) -> Self {
        Self::Word(Cow::Borrowed(word))
    }

    /// None, and the word for that.
    #[must_use]
    pub fn absent(word: &'static str) -> Self {
        Self::Absent(Cow::Borrowed(word))
    }
}

impl From<u64> for DetailValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for DetailValue {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for DetailValue {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<Uuid> for DetailValue {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(uuid)
    }
}

impl fmt::Display for DetailValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(word) | Self::Word(word) => out.write_str(word),
            Self::Flag(flag) => out.write_str(if *flag { "yes" } else { "no" }),
            Self::Number(number) => number.fmt(out),
            Self::Hexadecimal(number) => write!(out, "{number:#010x}"),
            Self::Text(text) | Self::Item { text, .. } | Self::Record { text, .. } => {
                out.write_str(text)
            }
            Self::Name(bytes) => bytes.escape_ascii().fmt(out),
            Self::Uuid(uuid) => uuid.fmt(out),
            Self::Time(time) => write_moment(*time, out),
        }
    }
}

/// Writes a moment in UTC, as `2026-01-31T12:00:00Z`.
fn write_moment(time: Timestamp, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    const DAY: i64 = 86_400;
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
    write!(
        out,
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
            let time = Timestamp {
                seconds,
                nanoseconds: 0,
            };
            DetailValue::Time(time).to_string()
        };
        assert_eq!(at(1), "1970-01-01T00:00:01Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_825_600), "2000-02-29T12:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
    }
}
