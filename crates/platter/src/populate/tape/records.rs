//! PAX records: what they say of a member beyond its header. Spec: POSIX.1-2017 pax; `SCHILY.*` of
//! star, `GNU.sparse.*` of GNU tar.

use std::collections::BTreeMap;

use platter_vfs::Timestamp;
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};

use super::super::{Xattr, broken};
use crate::archive::acl_text;
use crate::{Cause, Result};

/// The attribute with the label of `SELinux`.
const SELINUX_NAME: &[u8] = b"security.selinux";

/// A record as it stands there. Values are bytes of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Record {
    /// Whether it cannot be meant for several members.
    pub(super) fn is_of_one_member(&self) -> bool {
        matches!(&*self.key, b"path" | b"linkpath" | b"size")
            || self.key.starts_with(b"GNU.sparse.")
    }

    /// Whether it says anything of what a member becomes. Comments do not.
    pub(super) fn has_meaning(&self) -> bool {
        matches!(
            &*self.key,
            b"mtime" | b"uid" | b"gid" | b"RHT.security.selinux"
        ) || self.key.starts_with(b"SCHILY.acl.")
            || self.key.starts_with(b"SCHILY.xattr.")
            || self.is_of_one_member()
    }
}

/// Takes records apart: a length in decimal that counts itself, a space, a key, `=`, a value, and
/// the end of the line.
pub(super) fn decode_records(mut text: &[u8]) -> Result<Vec<Record>, Cause> {
    let mut records = Vec::new();
    while !text.is_empty() {
        let (record, rest) = split_record(text).ok_or_else(|| broken("a PAX record is broken"))?;
        records.push(record);
        text = rest;
    }
    Ok(records)
}

fn split_record(text: &[u8]) -> Option<(Record, &[u8])> {
    let digits = text.iter().position(|&byte| byte == b' ')?;
    let len: usize = str::from_utf8(text.get(..digits)?).ok()?.parse().ok()?;
    let (record, rest) = text.split_at_checked(len)?;
    let line = record.get(digits + 1..)?.strip_suffix(b"\n")?;
    let equals = line.iter().position(|&byte| byte == b'=')?;
    let record = Record {
        key: line.get(..equals)?.to_vec(),
        value: line.get(equals + 1..)?.to_vec(),
    };
    Some((record, rest))
}

/// What the records of a member say.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) target: Option<Vec<u8>>,
    pub(super) size_bytes: Option<u64>,
    pub(super) modified: Option<Timestamp>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) sparse: Sparse,
}

/// A sparse file in one of the PAX forms.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    pub(super) name: Option<Vec<u8>>,
    pub(super) real_size: Option<u64>,
    /// Offsets and lengths one after the other, of forms 0.0 and 0.1.
    pub(super) map: Vec<u64>,
    /// Form 1.0: the map comes before the data.
    pub(super) is_first: bool,
}

impl Records {
    /// Adds records that count more than those before. An empty value takes an earlier one back.
    pub(super) fn add(&mut self, records: &[Record]) -> Result<(), Cause> {
        for record in records {
            self.add_one(&record.key, &record.value)?;
        }
        Ok(())
    }

    fn add_one(&mut self, key: &[u8], value: &[u8]) -> Result<(), Cause> {
        let text = || (!value.is_empty()).then(|| value.to_vec());
        let id = || -> Result<Option<u32>, Cause> {
            let id = number(value)?.map(u32::try_from).transpose();
            id.map_err(|_| broken("the owner in a PAX record is out of range"))
        };
        match key {
            b"path" => self.path = text(),
            b"linkpath" => self.target = text(),
            b"size" => self.size_bytes = number(value)?,
            b"mtime" => self.modified = text().map(|text| time(&text)).transpose()?,
            b"uid" => self.uid = id()?,
            b"gid" => self.gid = id()?,
            b"SCHILY.acl.access" if !value.is_empty() => {
                self.set_xattr(ACL_ACCESS_NAME.to_vec(), acl(value)?);
            }
            b"SCHILY.acl.default" if !value.is_empty() => {
                self.set_xattr(ACL_DEFAULT_NAME.to_vec(), acl(value)?);
            }
            // The label as text, which Linux keeps with a zero at the end.
            b"RHT.security.selinux"
                if !value.is_empty() && !self.xattrs.contains_key(SELINUX_NAME) =>
            {
                self.set_xattr(SELINUX_NAME.to_vec(), [value, b"\0"].concat());
            }
            key => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.set_xattr(unescape(name), value.to_vec());
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.add(key, value)?;
                }
            }
        }
        Ok(())
    }

    fn set_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        self.xattrs.insert(name, value);
    }

    /// The extended attributes, in the order of their names.
    pub(super) fn take_xattrs(&mut self) -> Vec<Xattr> {
        std::mem::take(&mut self.xattrs).into_iter().collect()
    }
}

impl Sparse {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), Cause> {
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.real_size = number(value)?,
            b"major" => self.is_first = number(value)? == Some(1),
            b"offset" | b"numbytes" => self.map.extend(number(value)?),
            b"map" => {
                for part in value.split(|&byte| byte == b',') {
                    self.map.extend(number(part)?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The attribute of an ACL in text form.
fn acl(text: &[u8]) -> Result<Vec<u8>, Cause> {
    acl_text::parse(text).map_err(|error| broken(error.to_string()))
}

/// A number in decimal; none of an empty text.
fn number(text: &[u8]) -> Result<Option<u64>, Cause> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| broken("a number of a PAX record is none"))
}

/// Seconds with an optional fraction.
fn time(text: &[u8]) -> Result<Timestamp, Cause> {
    let broken = || broken("a time of a PAX record is none");
    let text = str::from_utf8(text).map_err(|_| broken())?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().map_err(|_| broken())?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanoseconds: u32 = digits.parse().map_err(|_| broken())?;
    if whole.starts_with('-') && nanoseconds > 0 {
        // The fraction is part of the negative number; here nanoseconds count upwards.
        return Ok(Timestamp {
            seconds: seconds.saturating_sub(1),
            nanoseconds: 1_000_000_000 - nanoseconds,
        });
    }
    Ok(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// A name of an attribute as libarchive and GNU tar keep it: `=` and `%` as hexadecimal digits.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| byte == b'%');
        let code = code.and_then(|code| str::from_utf8(code).ok());
        let escaped = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        plain.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &[u8], value: &[u8]) -> Record {
        Record {
            key: key.to_vec(),
            value: value.to_vec(),
        }
    }

    #[test]
    fn values_of_records_are_bytes_of_any_kind() {
        let text = b"13 a=1\n2\n=x\n\n7 b=cd\n";
        let records = decode_records(text).unwrap();
        assert_eq!(records, [record(b"a", b"1\n2\n=x\n"), record(b"b", b"cd")]);
    }

    #[test]
    fn broken_records_are_refused() {
        for text in [
            &b"5 a=b"[..],
            b"x a=b\n",
            b"99 a=b\n",
            b"6 ab\n\n",
            b"2 \n",
            b"0 a=b\n",
            b"18446744073709551615 a=b\n",
        ] {
            assert!(decode_records(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn later_records_count_more_and_empty_ones_take_back() {
        let mut records = Records::default();
        let all = [
            record(b"uid", b"5"),
            record(b"gid", b"6"),
            record(b"SCHILY.xattr.user.b", b"old"),
            record(b"SCHILY.xattr.user.a", b""),
        ];
        records.add(&all).unwrap();
        let all = [record(b"uid", b""), record(b"SCHILY.xattr.user.b", b"new")];
        records.add(&all).unwrap();
        assert_eq!((records.uid, records.gid), (None, Some(6)));
        let expected = [
            (b"user.a".to_vec(), Vec::new()),
            (b"user.b".to_vec(), b"new".to_vec()),
        ];
        assert_eq!(records.take_xattrs(), expected);
    }

    #[test]
    fn labels_are_read_in_both_forms() {
        let label = b"system_u:object_r:etc_t:s0";
        let with_zero = [&label[..], b"\0"].concat();
        let gnu = record(b"RHT.security.selinux", label);
        let star = record(b"SCHILY.xattr.security.selinux", &with_zero);
        for all in [
            vec![gnu.clone()],
            vec![gnu.clone(), star.clone()],
            vec![star, gnu],
        ] {
            let mut records = Records::default();
            records.add(&all).unwrap();
            let expected = [(SELINUX_NAME.to_vec(), with_zero.clone())];
            assert_eq!(records.take_xattrs(), expected);
        }
    }

    #[test]
    fn times_have_fractions_and_signs() {
        let at = |text: &[u8]| {
            let time = time(text).unwrap();
            (time.seconds, time.nanoseconds)
        };
        assert_eq!(at(b"5"), (5, 0));
        assert_eq!(at(b"5.25"), (5, 250_000_000));
        assert_eq!(at(b"-1.5"), (-2, 500_000_000));
        assert!(time(b"x").is_err());
    }

    #[test]
    fn names_of_attributes_are_unescaped() {
        assert_eq!(unescape(b"user.a%3Db%25"), b"user.a=b%");
        assert_eq!(unescape(b"user.%zz"), b"user.%zz");
    }
}
