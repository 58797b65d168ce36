//! What a tar archive holds: ustar, GNU and PAX headers, sparse files of GNU tar in all its forms,
//! attributes as `SCHILY.xattr.*` and ACLs as `SCHILY.acl.*`.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use platter_vfs::Timestamp;
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::attr::DeviceNumber;
use tar::{Archive, Entry, EntryType};

use super::contents::Contents;
use super::folder::host_error;
use super::{Content, Member, MemberKind, MemberPath, Xattr};
use crate::archive::acl_text;
use crate::{Cause, Escaped, Result};

/// The longest map of a sparse file that is read, in bytes.
const MAP_BYTES_MAX: u64 = 16 << 20;
const BLOCK_BYTES: usize = 512;

/// Finds the members of an archive.
pub(super) fn index(path: &Path) -> Result<Content> {
    let name: Arc<str> = Escaped(path.as_os_str().as_bytes()).to_string().into();
    let host = |error| host_error(path, error);
    let file = Arc::new(File::open(path).map_err(host)?);
    let mut tape = Tape {
        archive: Arc::clone(&file),
        members: BTreeMap::new(),
        links: Vec::new(),
    };
    let mut archive = Archive::new(&*file);
    for entry in archive.entries_with_seek().map_err(host)? {
        tape.add(entry.map_err(host)?)
            .map_err(|cause| crate::Error::new(&name, cause))?;
    }
    let members = tape.resolve_links().map_err(|(path, cause)| {
        let text = path.text();
        crate::Error::at_path(&name, &text, cause)
    })?;
    Ok(Content { members, name })
}

struct Tape {
    archive: Arc<File>,
    members: BTreeMap<MemberPath, Member>,
    /// Names of files that the archive gives elsewhere.
    links: Vec<(MemberPath, MemberPath)>,
}

/// What the PAX records of a member say beyond its header.
#[derive(Default)]
struct Records {
    modified: Option<Timestamp>,
    xattrs: Vec<Xattr>,
    sparse: Sparse,
    uid: Option<u32>,
    gid: Option<u32>,
}

/// A sparse file in one of the PAX forms.
#[derive(Default)]
struct Sparse {
    name: Option<Vec<u8>>,
    real_size: Option<u64>,
    /// Offsets and lengths one after the other, of forms 0.0 and 0.1.
    map: Vec<u64>,
    /// Form 1.0: the map comes before the data.
    is_first: bool,
}

impl Tape {
    fn add(&mut self, mut entry: Entry<'_, &File>) -> Result<(), Cause> {
        let records = records(&mut entry)?;
        let kind = entry.header().entry_type();
        let path = match &records.sparse.name {
            Some(name) => MemberPath::parse(name)?,
            None => MemberPath::parse(&entry.path_bytes())?,
        };
        if kind == EntryType::Link {
            let target = entry.link_name_bytes();
            let target = MemberPath::parse(&target.unwrap_or_default())?;
            self.members.remove(&path);
            self.links.push((path, target));
            return Ok(());
        }
        self.links.retain(|(link, _)| *link != path);
        #[expect(clippy::wildcard_enum_match_arm, reason = "there may be others")]
        let kind = match kind {
            EntryType::Directory => MemberKind::Directory,
            EntryType::Symlink => {
                MemberKind::Symlink(entry.link_name_bytes().unwrap_or_default().to_vec())
            }
            EntryType::Char => MemberKind::CharDevice(device(&entry)?),
            EntryType::Block => MemberKind::BlockDevice(device(&entry)?),
            EntryType::Fifo => MemberKind::Fifo,
            EntryType::Regular | EntryType::Continuous => {
                // Old archives know directories by their names.
                if entry.path_bytes().ends_with(b"/") && entry.size() == 0 {
                    MemberKind::Directory
                } else {
                    MemberKind::File(self.contents(&entry, &records.sparse)?)
                }
            }
            EntryType::GNUSparse => MemberKind::File(self.gnu_sparse(&entry)?),
            _ => return Err(unknown(kind).into()),
        };
        let header = entry.header();
        let id = |number: u64| u32::try_from(number).map_err(std::io::Error::other);
        let member = Member {
            uid: match records.uid {
                Some(uid) => uid,
                None => id(header.uid()?)?,
            },
            gid: match records.gid {
                Some(gid) => gid,
                None => id(header.gid()?)?,
            },
            permissions: header.mode()? & 0o7777,
            modified: records.modified.unwrap_or(Timestamp {
                seconds: header.mtime()?.cast_signed(),
                nanoseconds: 0,
            }),
            xattrs: records.xattrs,
            kind,
        };
        self.members.insert(path, member);
        Ok(())
    }

    fn contents(&self, entry: &Entry<'_, &File>, sparse: &Sparse) -> Result<Contents, Cause> {
        let place = entry.raw_file_position();
        let (size_bytes, pieces) = match sparse.real_size {
            None => (entry.size(), whole(entry.size(), place)),
            Some(real_size) if sparse.is_first => {
                let (map, skipped) = self.read_map(place, entry.size())?;
                (real_size, packed(&map, real_size, place + skipped)?)
            }
            Some(real_size) => (real_size, packed(&sparse.map, real_size, place)?),
        };
        Ok(Contents::Tape {
            archive: Arc::clone(&self.archive),
            pieces,
            size_bytes,
        })
    }

    /// The map of form 1.0: numbers, one a line, filled up to whole blocks. Gives also how long it
    /// is with that.
    fn read_map(&self, place: u64, len: u64) -> Result<(Vec<u64>, u64), Cause> {
        let broken = || Cause::from(std::io::Error::other("the map of a sparse file is broken"));
        let mut text = Vec::new();
        let mut numbers: Vec<u64> = Vec::new();
        let mut number: Option<u64> = None;
        let mut at = 0;
        loop {
            if at == text.len() {
                if at as u64 >= len.min(MAP_BYTES_MAX) {
                    return Err(broken());
                }
                let mut block = [0; BLOCK_BYTES];
                self.archive.read_exact_at(&mut block, place + at as u64)?;
                text.extend_from_slice(&block);
            }
            match text[at] {
                b'\n' => numbers.push(number.take().ok_or_else(broken)?),
                digit @ b'0'..=b'9' => {
                    let sum = number.unwrap_or(0).checked_mul(10);
                    let sum = sum.and_then(|sum| sum.checked_add(u64::from(digit - b'0')));
                    number = Some(sum.ok_or_else(broken)?);
                }
                _ => return Err(broken()),
            }
            at += 1;
            let wanted = numbers.first().map(|count| count.saturating_mul(2));
            if wanted == Some(numbers.len() as u64 - u64::from(!numbers.is_empty())) {
                break;
            }
        }
        numbers.remove(0);
        Ok((numbers, (at as u64).next_multiple_of(BLOCK_BYTES as u64)))
    }

    /// GNU tar's own form: the map is in the header and in blocks behind it, which the reader of the
    /// archive has taken apart. Its data is read through it.
    fn gnu_sparse(&self, entry: &Entry<'_, &File>) -> Result<Contents, Cause> {
        let broken = || Cause::from(std::io::Error::other("a sparse header is broken"));
        let gnu = entry.header().as_gnu().ok_or_else(broken)?;
        let size_bytes = gnu.real_size()?;
        let mut map = Vec::new();
        let mut add = |part: &tar::GnuSparseHeader| -> Result<(), Cause> {
            if !part.is_empty() {
                map.extend([part.offset()?, part.length()?]);
            }
            Ok(())
        };
        gnu.sparse.iter().try_for_each(&mut add)?;
        let mut place = entry.raw_header_position() + BLOCK_BYTES as u64;
        let mut goes_on = gnu.is_extended();
        while goes_on {
            let mut extended = tar::GnuExtSparseHeader::new();
            self.archive.read_exact_at(extended.as_mut_bytes(), place)?;
            extended.sparse.iter().try_for_each(&mut add)?;
            goes_on = extended.is_extended();
            place += BLOCK_BYTES as u64;
        }
        Ok(Contents::Tape {
            archive: Arc::clone(&self.archive),
            pieces: packed(&map, size_bytes, place)?,
            size_bytes,
        })
    }

    /// Gives the file of each group of names to the first of them.
    fn resolve_links(mut self) -> Result<BTreeMap<MemberPath, Member>, (MemberPath, Cause)> {
        let targets: HashMap<MemberPath, MemberPath> = self.links.iter().cloned().collect();
        let mut groups: BTreeMap<MemberPath, Vec<MemberPath>> = BTreeMap::new();
        for (link, target) in self.links {
            let mut end = target;
            // A chain is no longer than there are links.
            for _ in 0..targets.len() {
                match targets.get(&end) {
                    Some(next) => end = next.clone(),
                    None => break,
                }
            }
            if !self.members.contains_key(&end) {
                let text = "is a link to what the archive does not hold";
                return Err((link, std::io::Error::other(text).into()));
            }
            groups.entry(end).or_default().push(link);
        }
        for (target, mut names) in groups {
            names.push(target.clone());
            names.sort_unstable();
            names.dedup();
            let Some(member) = self.members.remove(&target) else {
                continue;
            };
            let Some((first, others)) = names.split_first() else {
                continue;
            };
            for name in others {
                let link = Member {
                    kind: MemberKind::Link(first.clone()),
                    xattrs: Vec::new(),
                    ..member
                };
                self.members.insert(name.clone(), link);
            }
            self.members.insert(first.clone(), member);
        }
        Ok(self.members)
    }
}

fn unknown(kind: EntryType) -> std::io::Error {
    let letter = char::from(kind.as_byte());
    std::io::Error::other(format!("a member of type {letter:?} is not known"))
}

/// A file all of whose bytes lie in a row.
fn whole(size_bytes: u64, place: u64) -> Vec<(Range<u64>, u64)> {
    let range = 0..size_bytes;
    if range.is_empty() {
        return Vec::new();
    }
    vec![(range, place)]
}

/// A file of which the parts in `map` lie in a row.
fn packed(map: &[u64], size_bytes: u64, place: u64) -> Result<Vec<(Range<u64>, u64)>, Cause> {
    let broken = || Cause::from(std::io::Error::other("the map of a sparse file is broken"));
    let (mut pieces, mut place, mut end) = (Vec::new(), place, 0);
    for part in map.chunks(2) {
        let &[offset, len] = part else {
            return Err(broken());
        };
        let range = offset..offset.checked_add(len).ok_or_else(broken)?;
        if range.start < end || range.end > size_bytes {
            return Err(broken());
        }
        end = range.end;
        if len > 0 {
            pieces.push((range, place));
            place = place.checked_add(len).ok_or_else(broken)?;
        }
    }
    Ok(pieces)
}

fn device(entry: &Entry<'_, impl Read>) -> Result<DeviceNumber, Cause> {
    let header = entry.header();
    Ok(DeviceNumber {
        major: header.device_major()?.unwrap_or_default(),
        minor: header.device_minor()?.unwrap_or_default(),
    })
}

fn records(entry: &mut Entry<'_, &File>) -> Result<Records, Cause> {
    let mut records = Records::default();
    let Some(extensions) = entry.pax_extensions()? else {
        return Ok(records);
    };
    for extension in extensions {
        let extension = extension?;
        let (key, value) = (extension.key_bytes(), extension.value_bytes());
        let number = || {
            let text = str::from_utf8(value).ok();
            let number = text.and_then(|text| text.parse::<u64>().ok());
            number.ok_or_else(|| std::io::Error::other("a number of a PAX record is none"))
        };
        let id = |number: u64| u32::try_from(number).map_err(std::io::Error::other);
        let sparse = &mut records.sparse;
        match key {
            b"mtime" => records.modified = Some(time(value)?),
            b"uid" => records.uid = Some(id(number()?)?),
            b"gid" => records.gid = Some(id(number()?)?),
            b"GNU.sparse.name" => sparse.name = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => sparse.real_size = Some(number()?),
            b"GNU.sparse.major" => sparse.is_first = number()? == 1,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => sparse.map.push(number()?),
            b"GNU.sparse.map" => {
                for part in value.split(|&byte| byte == b',') {
                    let part = str::from_utf8(part).ok().and_then(|part| part.parse().ok());
                    let part = part.ok_or_else(|| std::io::Error::other("a sparse map is broken"));
                    sparse.map.push(part?);
                }
            }
            b"SCHILY.acl.access" => {
                let value = acl_text::parse(value)?;
                records.xattrs.push((ACL_ACCESS_NAME.to_vec(), value));
            }
            b"SCHILY.acl.default" => {
                let value = acl_text::parse(value)?;
                records.xattrs.push((ACL_DEFAULT_NAME.to_vec(), value));
            }
            key => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    records.xattrs.push((unescape(name), value.to_vec()));
                }
            }
        }
    }
    // The text form of an ACL says the same as the attribute; the later record counts.
    records.xattrs.reverse();
    records
        .xattrs
        .sort_by(|(left, _), (right, _)| left.cmp(right));
    records
        .xattrs
        .dedup_by(|(left, _), (right, _)| left == right);
    Ok(records)
}

/// Seconds with an optional fraction.
fn time(text: &[u8]) -> Result<Timestamp, Cause> {
    let broken = || Cause::from(std::io::Error::other("a time of a PAX record is none"));
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
            seconds: seconds - 1,
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

    #[test]
    fn parts_of_a_sparse_file_lie_in_a_row() {
        let pieces = packed(&[0, 10, 4096, 20, 8192, 0], 8192, 100).unwrap();
        assert_eq!(pieces, [(0..10, 100), (4096..4116, 110)]);
        for broken in [&[0, 10, 5, 5][..], &[0], &[8000, 1000]] {
            assert!(packed(broken, 8192, 0).is_err(), "{broken:?}");
        }
    }
}
