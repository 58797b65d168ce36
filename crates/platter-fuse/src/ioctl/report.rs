//! What a mounted filesystem says of itself, as bytes.
//!
//! Numbers are little-endian. Texts and lists begin with their lengths, in 32 bits; a list of properties of a record is
//! one of those.

use std::borrow::Cow;

use platter_vfs::{
    Counters, Description, Detail, DetailValue, Feature, FeatureClass, Timestamp, Uuid,
};

/// The version of the encoding, which comes first.
const VERSION: u32 = 1;
/// Records within records, at most.
const DEPTH_MAX: u32 = 4;

const ABSENT: u8 = 0;
const FLAG: u8 = 1;
const NUMBER: u8 = 2;
const HEXADECIMAL: u8 = 3;
const WORD: u8 = 4;
const TEXT: u8 = 5;
const NAME: u8 = 6;
const UUID: u8 = 7;
const TIME: u8 = 8;
const ITEM: u8 = 9;
const RECORD: u8 = 10;

const CLASSES: [FeatureClass; 3] = [
    FeatureClass::Compatible,
    FeatureClass::ReadOnlyCompatible,
    FeatureClass::Incompatible,
];

/// What a mounted filesystem reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountReport {
    /// What it says of itself.
    pub description: Description,
    /// What it counted since it was mounted.
    pub counters: Counters,
}

impl MountReport {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Description {
            kind,
            uuid,
            label,
            features,
            details,
        } = &self.description;
        let mut out = Vec::new();
        put_word(&mut out, VERSION);
        put_bytes(&mut out, kind.as_bytes());
        out.extend(uuid.into_bytes());
        put_bytes(&mut out, label);
        put_len(&mut out, features.len());
        for Feature { name, class } in features {
            put_bytes(&mut out, name.as_bytes());
            let class = CLASSES.iter().position(|it| it == class);
            out.push(
                class
                    .and_then(|it| u8::try_from(it).ok())
                    .unwrap_or(u8::MAX),
            );
        }
        put_details(&mut out, details);
        put_len(&mut out, self.counters.len());
        for (name, count) in &self.counters {
            put_bytes(&mut out, name.as_bytes());
            put_number(&mut out, *count);
        }
        out
    }

    /// `None` for bytes that are no report of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut left = Reader(bytes);
        if left.word()? != VERSION {
            return None;
        }
        let description = Description {
            kind: left.text()?,
            uuid: Uuid::from_bytes(left.take()?),
            label: left.bytes()?.to_vec(),
            features: left.list(|left| {
                Some(Feature {
                    name: left.text()?,
                    class: *CLASSES.get(usize::from(left.byte()?))?,
                })
            })?,
            details: left.details(0)?,
        };
        let counters = left.list(|left| Some((left.text()?, left.number()?)))?;
        left.0.is_empty().then_some(Self {
            description,
            counters,
        })
    }
}

fn put_word(out: &mut Vec<u8>, word: u32) {
    out.extend(word.to_le_bytes());
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

/// What is longer has no end that is found.
fn put_len(out: &mut Vec<u8>, len: usize) {
    put_word(out, u32::try_from(len).unwrap_or(u32::MAX));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend(bytes);
}

fn put_details(out: &mut Vec<u8>, details: &[Detail]) {
    put_len(out, details.len());
    for Detail { key, label, value } in details {
        put_bytes(out, key.as_bytes());
        put_bytes(out, label.as_bytes());
        put_value(out, value);
    }
}

fn put_value(out: &mut Vec<u8>, value: &DetailValue) {
    match value {
        DetailValue::Absent(word) => {
            out.push(ABSENT);
            put_bytes(out, word.as_bytes());
        }
        DetailValue::Flag(flag) => out.extend([FLAG, u8::from(*flag)]),
        DetailValue::Number(number) => {
            out.push(NUMBER);
            put_number(out, *number);
        }
        DetailValue::Hexadecimal(number) => {
            out.push(HEXADECIMAL);
            put_word(out, *number);
        }
        DetailValue::Word(word) => {
            out.push(WORD);
            put_bytes(out, word.as_bytes());
        }
        DetailValue::Text(text) => {
            out.push(TEXT);
            put_bytes(out, text.as_bytes());
        }
        DetailValue::Name(name) => {
            out.push(NAME);
            put_bytes(out, name);
        }
        DetailValue::Uuid(uuid) => {
            out.push(UUID);
            out.extend(uuid.into_bytes());
        }
        DetailValue::Time(time) => {
            out.push(TIME);
            out.extend(time.seconds.to_le_bytes());
            put_word(out, time.nanoseconds);
        }
        DetailValue::Item { text, fields } => {
            out.push(ITEM);
            put_bytes(out, text.as_bytes());
            put_details(out, fields);
        }
        DetailValue::Record { text, fields } => {
            out.push(RECORD);
            put_bytes(out, text.as_bytes());
            put_details(out, fields);
        }
    }
}

/// The bytes that are left.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (first, left) = self.0.split_first_chunk()?;
        self.0 = left;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.word()?).ok()?;
        let (bytes, left) = self.0.split_at_checked(len)?;
        self.0 = left;
        Some(bytes)
    }

    fn string(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn text(&mut self) -> Option<Cow<'static, str>> {
        self.string().map(Cow::Owned)
    }

    /// Each item takes at least a byte.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.word()?;
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn details(&mut self, depth: u32) -> Option<Vec<Detail>> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.list(|left| {
            Some(Detail {
                key: left.text()?,
                label: left.text()?,
                value: left.value(depth)?,
            })
        })
    }

    fn value(&mut self, depth: u32) -> Option<DetailValue> {
        Some(match self.byte()? {
            ABSENT => DetailValue::Absent(self.text()?),
            FLAG => DetailValue::Flag(self.byte()? != 0),
            NUMBER => DetailValue::Number(self.number()?),
            HEXADECIMAL => DetailValue::Hexadecimal(self.word()?),
            WORD => DetailValue::Word(self.text()?),
            TEXT => DetailValue::Text(self.string()?),
            NAME => DetailValue::Name(self.bytes()?.to_vec()),
            UUID => DetailValue::Uuid(Uuid::from_bytes(self.take()?)),
            TIME => DetailValue::Time(Timestamp {
                seconds: self.take().map(i64::from_le_bytes)?,
                nanoseconds: self.word()?,
            }),
            ITEM => DetailValue::Item {
                text: self.string()?,
                fields: self.details(depth + 1)?,
            },
            RECORD => DetailValue::Record {
                text: self.string()?,
                fields: self.details(depth + 1)?,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> MountReport {
        let detail = |value| Detail::new("key", "a label", value);
        let fields = vec![detail(DetailValue::Flag(true)), detail(7_u64.into())];
        let text = || "a line".to_owned();
        let details = [
            DetailValue::absent("never"),
            DetailValue::Flag(false),
            DetailValue::Number(u64::MAX),
            DetailValue::Hexadecimal(0xf00d),
            DetailValue::word("clean"),
            DetailValue::Text(text()),
            DetailValue::Name(b"not \xff text".to_vec()),
            DetailValue::Uuid(Uuid::from_u128(3)),
            DetailValue::Time(Timestamp {
                seconds: -1,
                nanoseconds: 999,
            }),
            DetailValue::Item {
                text: text(),
                fields: fields.clone(),
            },
            DetailValue::Record {
                text: text(),
                fields: vec![detail(DetailValue::Record {
                    text: text(),
                    fields,
                })],
            },
        ];
        let feature = |class| Feature {
            name: "name".into(),
            class,
        };
        MountReport {
            description: Description {
                kind: "kind".into(),
                uuid: Uuid::from_u128(1),
                label: b"label \xfe".to_vec(),
                features: CLASSES.map(feature).to_vec(),
                details: details.map(detail).to_vec(),
            },
            counters: vec![("commits".into(), 5), ("flushes".into(), u64::MAX)],
        }
    }

    #[test]
    fn reports_are_what_they_were() {
        assert_eq!(MountReport::decode(&report().encode()), Some(report()));
    }

    #[test]
    fn bytes_that_are_no_report_are_refused() {
        let bytes = report().encode();
        for len in 0..bytes.len() {
            assert_eq!(MountReport::decode(&bytes[..len]), None, "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(MountReport::decode(&longer), None);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            // No more than an end of it that is not found.
            let _ = MountReport::decode(&changed);
        }
        let mut other_version = bytes;
        other_version[0] += 1;
        assert_eq!(MountReport::decode(&other_version), None);
    }

    #[test]
    fn deep_records_are_refused() {
        let mut value = DetailValue::Flag(true);
        for _ in 0..10 {
            value = DetailValue::Record {
                text: String::new(),
                fields: vec![Detail::new("key", "label", value)],
            };
        }
        let mut deep = report();
        deep.description.details = vec![Detail::new("key", "label", value)];
        assert_eq!(MountReport::decode(&deep.encode()), None);
    }
}
