//! The members of a tar archive as their headers describe them: ustar and GNU headers, with long
//! names and PAX records put together. Spec: POSIX.1-2017 pax, GNU tar manual.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use tar::{EntryType, Header};

use super::super::broken;
use super::records::{Record, Records, decode_records};
use crate::{Cause, Result};

/// What everything in an archive is a multiple of.
pub(super) const BLOCK_BYTES: u64 = 512;
/// The longest name or set of records that is read.
const EXTENSION_BYTES_MAX: u64 = 16 << 20;
/// Bytes of global records with a meaning: each member that follows has a copy of them, and is no longer than a block.
const GLOBAL_BYTES_MAX: usize = 4096;
/// Where a header has its own checksum, which counts as spaces in it.
const SUM_FIELD: std::ops::Range<usize> = 148..156;

/// One member.
pub(super) struct Entry {
    pub(super) header: Header,
    /// Where the header lies.
    pub(super) header_place: u64,
    /// Where the data lies, and its length there: within the archive.
    pub(super) place: u64,
    pub(super) len_bytes: u64,
    pub(super) path: Vec<u8>,
    /// What a link leads to.
    pub(super) target: Vec<u8>,
    pub(super) records: Records,
}

/// Goes from header to header.
pub(super) struct Walk<'a> {
    archive: &'a File,
    len_bytes: u64,
    at: u64,
    /// The records of global headers so far, which count for all that follows.
    globals: Vec<Record>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(archive: &'a File) -> std::io::Result<Self> {
        Ok(Self {
            archive,
            len_bytes: archive.metadata()?.len(),
            at: 0,
            globals: Vec::new(),
        })
    }

    /// The next member; `None` at the end of the archive.
    ///
    /// # Errors
    /// When a header is broken, or something ends past the end of the archive.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, Cause> {
        let (mut name, mut link, mut locals) = (None, None, Vec::new());
        loop {
            let header_place = self.at;
            let Some(header) = self.read_header()? else {
                if name.is_some() || link.is_some() || !locals.is_empty() {
                    return Err(broken(
                        "the archive ends after a header that belongs to another",
                    ));
                }
                return Ok(None);
            };
            let kind = header.entry_type();
            let is_extension = kind.is_gnu_longname()
                || kind.is_gnu_longlink()
                || kind.is_pax_local_extensions()
                || kind.is_pax_global_extensions();
            if !is_extension {
                let mut records = Records::default();
                records.add(&self.globals)?;
                records.add(&locals)?;
                let path = records.path.take().or(name);
                let target = records.target.take().or(link);
                return self
                    .member(header, header_place, records, path, target)
                    .map(Some);
            }
            let text = self.read_extension(&header)?;
            if kind.is_gnu_longname() {
                name = Some(until_nul(text));
            } else if kind.is_gnu_longlink() {
                link = Some(until_nul(text));
            } else if kind.is_pax_local_extensions() {
                locals.extend(decode_records(&text)?);
            } else {
                self.add_globals(decode_records(&text)?)?;
            }
        }
    }

    fn member(
        &mut self,
        header: Header,
        header_place: u64,
        records: Records,
        path: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
    ) -> Result<Entry, Cause> {
        let len_bytes = match (header.entry_type(), records.size_bytes) {
            // Some archivers give a further name the size of its file, and no data.
            (EntryType::Link, _) => 0,
            (_, Some(size_bytes)) => size_bytes,
            (_, None) => header_number(header.entry_size())?,
        };
        let mut place = self.at;
        let is_sparse = header.entry_type() == EntryType::GNUSparse;
        if is_sparse && header.as_gnu().is_some_and(tar::GnuHeader::is_extended) {
            place = self.after_sparse_headers(place)?;
        }
        self.pass(place, len_bytes)?;
        Ok(Entry {
            path: path.unwrap_or_else(|| header.path_bytes().into_owned()),
            target: target
                .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned))
                .unwrap_or_default(),
            header,
            header_place,
            place,
            len_bytes,
            records,
        })
    }

    /// The header here, and moves past it; `None` where zeros or nothing at all end the archive.
    fn read_header(&mut self) -> Result<Option<Header>, Cause> {
        if self.at >= self.len_bytes {
            return Ok(None);
        }
        let mut header = Header::new_old();
        read_at(self.archive, header.as_mut_bytes(), self.at)?;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if !is_summed(&header) {
            let text = "the checksum of a header is wrong, or it is no tar archive";
            return Err(broken(text));
        }
        self.at += BLOCK_BYTES;
        Ok(Some(header))
    }

    fn read_extension(&mut self, header: &Header) -> Result<Vec<u8>, Cause> {
        let (place, len) = (self.at, header_number(header.entry_size())?);
        self.pass(place, len)?;
        let len = usize::try_from(len.min(EXTENSION_BYTES_MAX + 1)).unwrap_or(usize::MAX);
        if len as u64 > EXTENSION_BYTES_MAX {
            return Err(broken("the records of a member are too long"));
        }
        let mut text = vec![0; len];
        read_at(self.archive, &mut text, place)?;
        Ok(text)
    }

    /// Moves past data, which has to be there.
    fn pass(&mut self, place: u64, len_bytes: u64) -> Result<(), Cause> {
        let end = place.checked_add(len_bytes);
        let end = end.filter(|&end| end <= self.len_bytes);
        let end = end.ok_or_else(|| broken("a member goes on past the end of the archive"))?;
        self.at = end.next_multiple_of(BLOCK_BYTES);
        Ok(())
    }

    /// GNU tar continues the map of a sparse file in blocks after the header.
    fn after_sparse_headers(&self, mut place: u64) -> Result<u64, Cause> {
        loop {
            let mut extended = tar::GnuExtSparseHeader::new();
            read_at(self.archive, extended.as_mut_bytes(), place)?;
            place += BLOCK_BYTES;
            if !extended.is_extended() {
                return Ok(place);
            }
        }
    }

    fn add_globals(&mut self, records: Vec<Record>) -> Result<(), Cause> {
        for record in records {
            if record.is_of_one_member() {
                return Err(broken(
                    "a global header names what only one member can have",
                ));
            }
            if !record.has_meaning() {
                continue;
            }
            self.globals.retain(|earlier| earlier.key != record.key);
            if !record.value.is_empty() {
                self.globals.push(record);
            }
            let len = |record: &Record| record.key.len() + record.value.len();
            if self.globals.iter().map(len).sum::<usize>() > GLOBAL_BYTES_MAX {
                return Err(broken("global headers say too much of every member"));
            }
        }
        Ok(())
    }
}

/// Some old archivers summed signed bytes.
fn is_summed(header: &Header) -> bool {
    let byte = |(at, &byte): (usize, &u8)| if SUM_FIELD.contains(&at) { b' ' } else { byte };
    let bytes = || header.as_bytes().iter().enumerate().map(byte);
    let unsigned: u32 = bytes().map(u32::from).sum();
    let signed: i32 = bytes().map(|byte| i32::from(byte.cast_signed())).sum();
    header
        .cksum()
        .is_ok_and(|sum| sum == unsigned || i64::from(sum) == i64::from(signed))
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|&byte| byte == 0);
    text.truncate(end.unwrap_or(text.len()));
    text
}

/// The number in a field of a header.
pub(super) fn header_number<T>(field: std::io::Result<T>) -> Result<T, Cause> {
    field.map_err(|error| broken(error.to_string()))
}

/// Reads what has to be in the archive.
pub(super) fn read_at(archive: &File, bytes: &mut [u8], place: u64) -> Result<(), Cause> {
    match archive.read_exact_at(bytes, place) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(broken("the archive ends too early"))
        }
        read => Ok(read?),
    }
}
