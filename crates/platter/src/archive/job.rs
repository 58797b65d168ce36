//! A stretch of the archive: what the planner decides about it, and the bytes it becomes.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::{Attr, Condition, Inode};

use super::TarOptions;
use super::acl_text::acl_attribute;
use super::member::{Attribute, Body, Member, pad};
use super::sparse::encode_map;
use crate::Effect;
use crate::data_map::DataMap;
use crate::pipeline::Footprint;
use crate::salvage::{self, Missing};

/// More attribute bytes than this in one file are left out. Linux itself stops at 64 KiB a value.
const ATTRIBUTE_BYTES_MAX: usize = 256 << 10;

/// What becomes one run of bytes of the archive.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Paths and link targets, one after the other.
    pub(super) text: Vec<u8>,
    pub(super) pieces: Vec<Piece>,
}

/// A part of a job. Ranges of text point into [`Job::text`].
#[derive(Debug)]
pub(super) enum Piece {
    /// The headers of a member.
    Member {
        path: Range<usize>,
        inode: Arc<dyn Inode>,
        attr: Box<Attr>,
        body: PlannedBody,
    },
    /// Bytes of the file at `path`.
    Data {
        path: Range<usize>,
        inode: Arc<dyn Inode>,
        range: Range<u64>,
    },
    /// The end of contents of this many bytes.
    End(u64),
    /// A problem to be reported at this point.
    Hitch(Hitch),
}

/// What the headers of a member say about its contents.
#[derive(Debug)]
pub(super) enum PlannedBody {
    /// There are none.
    None,
    /// All bytes follow.
    Dense,
    /// The data of the map follows.
    Sparse(DataMap),
    /// Another name of the member at this range of text.
    HardLink(Range<usize>),
    /// A symbolic link, whose target is still to be read.
    Symlink,
}

impl Job {
    /// Adds a path to the text.
    pub(super) fn add_text(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        start..self.text.len()
    }
}

/// A problem without its image, which the caller adds when it reports it.
#[derive(Debug)]
pub(super) struct Hitch {
    pub(super) path: Vec<u8>,
    pub(super) effect: Effect,
    pub(super) error: Option<platter_vfs::Error>,
}

impl Hitch {
    pub(super) fn new(path: &[u8], effect: Effect, error: Option<platter_vfs::Error>) -> Self {
        let path = path.to_vec();
        Self {
            path,
            effect,
            error,
        }
    }
}

/// A finished stretch of the archive.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) members: u64,
    pub(super) problems: Vec<Hitch>,
}

impl Chunk {
    fn report(&mut self, path: &[u8], effect: Effect, error: platter_vfs::Error) {
        self.problems.push(Hitch::new(path, effect, Some(error)));
    }
}

impl Footprint for Chunk {
    fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Turns jobs into bytes; one in each thread, with its scratch space.
#[derive(Debug)]
pub(super) struct Encoder<'a> {
    options: &'a TarOptions,
    records: Vec<u8>,
    attributes: Vec<Attribute>,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(options: &'a TarOptions) -> Self {
        Self {
            options,
            records: Vec::new(),
            attributes: Vec::new(),
        }
    }

    /// Does `job`, with the bytes going to `buffer`, which is empty.
    pub(super) fn encode(&mut self, job: Job, buffer: Vec<u8>) -> Chunk {
        let mut chunk = Chunk {
            bytes: buffer,
            ..Chunk::default()
        };
        let Job { text, pieces } = job;
        for piece in pieces {
            match piece {
                Piece::Member {
                    path,
                    inode,
                    attr,
                    body,
                } => {
                    let path = &text[path];
                    self.read_attributes(&*inode, path, &body, &mut chunk);
                    self.append_member(&*inode, path, &attr, (&body, &text), &mut chunk);
                }
                Piece::Data { path, inode, range } => {
                    append_data(&*inode, range, &text[path], &mut chunk);
                }
                Piece::End(len_bytes) => pad(&mut chunk.bytes, len_bytes),
                Piece::Hitch(hitch) => chunk.problems.push(hitch),
            }
        }
        chunk
    }

    fn append_member(
        &mut self,
        inode: &dyn Inode,
        path: &[u8],
        attr: &Attr,
        (planned, text): (&PlannedBody, &[u8]),
        chunk: &mut Chunk,
    ) {
        let target;
        let mut map = Vec::new();
        let body = match planned {
            PlannedBody::None => Body::None,
            PlannedBody::Dense => Body::Bytes(attr.size_bytes),
            PlannedBody::HardLink(first) => Body::HardLink(&text[first.clone()]),
            PlannedBody::Sparse(data) => {
                map = encode_map(data);
                let packed_bytes = data.data_bytes().saturating_add(map.len() as u64);
                Body::Sparse { packed_bytes }
            }
            PlannedBody::Symlink => match inode.read_link() {
                Ok(read) => {
                    target = read;
                    Body::Symlink(&target)
                }
                Err(error) => {
                    chunk.report(path, Effect::Omitted, error);
                    return;
                }
            },
        };
        self.append_headers(path, attr, body, chunk);
        chunk.bytes.extend_from_slice(&map);
    }

    fn append_headers(&mut self, path: &[u8], attr: &Attr, body: Body<'_>, chunk: &mut Chunk) {
        let member = Member {
            path,
            attr,
            attributes: &self.attributes,
            body,
        };
        member.append_to(&mut chunk.bytes, &mut self.records);
        chunk.members += 1;
    }

    /// Reads the extended attributes into the scratch space, as far as they can be read.
    fn read_attributes(
        &mut self,
        inode: &dyn Inode,
        path: &[u8],
        body: &PlannedBody,
        chunk: &mut Chunk,
    ) {
        self.attributes.clear();
        let wanted = self.options.xattrs || self.options.acls;
        if !wanted || matches!(body, PlannedBody::HardLink(_)) {
            return;
        }
        let mut names = match inode.list_xattrs() {
            Ok(names) => names,
            Err(error) => {
                chunk.report(path, Effect::AttributesLost, error);
                return;
            }
        };
        names.sort_unstable();
        let mut total_bytes = 0;
        for name in names {
            let is_acl = [ACL_ACCESS_NAME, ACL_DEFAULT_NAME].contains(&&*name);
            if !(if is_acl {
                self.options.acls
            } else {
                self.options.xattrs
            }) {
                continue;
            }
            let value = inode.get_xattr(&name).and_then(|value| {
                total_bytes += name.len() + value.len();
                if total_bytes > ATTRIBUTE_BYTES_MAX {
                    return Err(Condition::TooBig.into());
                }
                Ok(value)
            });
            match value {
                Ok(value) => self.add_attribute(&name, value),
                Err(error) => {
                    chunk.report(path, Effect::AttributesLost, error);
                    if total_bytes > ATTRIBUTE_BYTES_MAX {
                        return;
                    }
                }
            }
        }
    }

    fn add_attribute(&mut self, name: &[u8], value: Vec<u8>) {
        if let Some(acl) = acl_attribute(name, &value) {
            self.attributes.push(acl);
            return;
        }
        if name == b"security.selinux" {
            // What GNU tar --selinux writes and restores; the value without the NUL at its end.
            self.attributes.push(Attribute {
                keyword: b"RHT.security.selinux".to_vec(),
                value: value.strip_suffix(b"\0").unwrap_or(&value).to_vec(),
            });
        }
        self.attributes.push(Attribute::xattr(name, value));
    }
}

/// Appends `range` of the file; zeros where it cannot be read.
fn append_data(inode: &dyn Inode, range: Range<u64>, path: &[u8], chunk: &mut Chunk) {
    let length = usize::try_from(range.end - range.start).unwrap_or_default();
    let start = chunk.bytes.len();
    chunk.bytes.resize(start + length, 0);
    let buf = &mut chunk.bytes[start..];
    if let Some(Missing { bytes, error }) = salvage::read(inode, range.start, buf) {
        chunk.report(path, Effect::ZeroFilled { bytes }, error);
    }
}
