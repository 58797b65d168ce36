//! The headers of one archive member: a PAX extended header where one is needed, then ustar.

use platter_vfs::{Attr, FileKind};

use super::pax::{append_number, append_record, time_text, xattr_keyword};
use super::ustar::{BLOCK_BYTES, TypeFlag, Ustar};

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attribute {
    pub(super) keyword: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Attribute {
    /// An attribute with this full name, such as `user.comment`.
    pub(super) fn xattr(name: &[u8], value: Vec<u8>) -> Self {
        Self {
            keyword: xattr_keyword(name),
            value,
        }
    }
}

/// What follows the headers, or stands in them instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body<'a> {
    /// Nothing: a directory, device or FIFO.
    None,
    /// The contents.
    Bytes(u64),
    /// A map and the data packed, of this length together.
    Sparse { packed_bytes: u64 },
    /// Another name of an earlier member.
    HardLink(&'a [u8]),
    /// The target of a symbolic link.
    Symlink(&'a [u8]),
}

/// Metadata from the headers of a member.
#[derive(Debug)]
pub(super) struct Member<'a> {
    /// The path; that of a directory ends in a slash.
    pub(super) path: &'a [u8],
    pub(super) attr: &'a Attr,
    pub(super) attributes: &'a [Attribute],
    pub(super) body: Body<'a>,
}

impl Member<'_> {
    /// Appends the headers. `records` is scratch space.
    pub(super) fn append_to(&self, out: &mut Vec<u8>, records: &mut Vec<u8>) {
        records.clear();
        let ustar = self.encode(records);
        if !records.is_empty() {
            let mut extended = Ustar::new(TypeFlag::Pax);
            extended.set_path(&stand_in_path(self.path, b"PaxHeaders"));
            extended.set_mode(0o644);
            extended.set_size(records.len() as u64);
            out.extend_from_slice(&extended.finish());
            out.extend_from_slice(records);
            pad(out, records.len() as u64);
        }
        out.extend_from_slice(&ustar);
    }

    /// Encodes the ustar header, and what has no space in it as PAX records.
    fn encode(&self, records: &mut Vec<u8>) -> [u8; BLOCK_BYTES] {
        let mut header = Ustar::new(self.type_flag());
        self.encode_names(&mut header, records);
        let attr = self.attr;
        header.set_mode(attr.permissions);
        if !header.set_uid(attr.uid) {
            append_number(records, b"uid", u64::from(attr.uid));
        }
        if !header.set_gid(attr.gid) {
            append_number(records, b"gid", u64::from(attr.gid));
        }
        if !header.set_mtime(attr.modified.seconds) || attr.modified.nanoseconds != 0 {
            append_record(records, b"mtime", time_text(attr.modified).as_bytes());
        }
        let size_bytes = match self.body {
            Body::Bytes(size_bytes) => size_bytes,
            Body::Sparse { packed_bytes } => packed_bytes,
            Body::None | Body::HardLink(_) | Body::Symlink(_) => 0,
        };
        if !header.set_size(size_bytes) {
            append_number(records, b"size", size_bytes);
        }
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            let (major, minor) = (attr.device.major, attr.device.minor);
            if !header.set_device(major, minor) {
                append_number(records, b"SCHILY.devmajor", u64::from(major));
                append_number(records, b"SCHILY.devminor", u64::from(minor));
            }
        }
        for attribute in self.attributes {
            append_record(records, &attribute.keyword, &attribute.value);
        }
        header.finish()
    }

    fn encode_names(&self, header: &mut Ustar, records: &mut Vec<u8>) {
        let link_name = match self.body {
            Body::HardLink(target) | Body::Symlink(target) => target,
            Body::None | Body::Bytes(_) | Body::Sparse { .. } => b"",
        };
        let is_sparse = matches!(self.body, Body::Sparse { .. });
        let link_fits = header.set_link_name(link_name);
        let path_fits = if is_sparse {
            header.set_path(&stand_in_path(self.path, b"GNUSparseFile.0"));
            false
        } else {
            header.set_path(self.path)
        };
        let path_record = needs_record(self.path, path_fits);
        let link_record = needs_record(link_name, link_fits);
        let raw = |name: &[u8], recorded: bool| recorded && str::from_utf8(name).is_err();
        if raw(self.path, path_record) || raw(link_name, link_record) {
            append_record(records, b"hdrcharset", b"BINARY");
        }
        if is_sparse {
            append_record(records, b"GNU.sparse.major", b"1");
            append_record(records, b"GNU.sparse.minor", b"0");
            append_record(records, b"GNU.sparse.name", self.path);
            append_number(records, b"GNU.sparse.realsize", self.attr.size_bytes);
        } else if path_record {
            append_record(records, b"path", self.path);
        }
        if link_record {
            append_record(records, b"linkpath", link_name);
        }
    }

    fn type_flag(&self) -> TypeFlag {
        match (self.body, self.attr.kind) {
            (Body::HardLink(_), _) => TypeFlag::HardLink,
            (Body::Symlink(_), _) => TypeFlag::Symlink,
            (_, FileKind::Directory) => TypeFlag::Directory,
            (_, FileKind::CharDevice) => TypeFlag::CharDevice,
            (_, FileKind::BlockDevice) => TypeFlag::BlockDevice,
            (_, FileKind::Fifo) => TypeFlag::Fifo,
            (_, FileKind::Regular | FileKind::Symlink | FileKind::Socket) => TypeFlag::Regular,
        }
    }
}

/// Fills `out`, to which `len_bytes` of contents were appended, up to a whole block.
pub(super) fn pad(out: &mut Vec<u8>, len_bytes: u64) {
    out.resize(out.len() + padding_bytes(len_bytes), 0);
}

/// How many bytes fill contents of `len_bytes` up to a whole block.
pub(super) fn padding_bytes(len_bytes: u64) -> usize {
    let block = BLOCK_BYTES as u64;
    usize::try_from((block - len_bytes % block) % block).unwrap_or_default()
}

/// Whether a name needs a record: it has no space in the header, or the header, which is in no
/// known character set, would leave open that it is UTF-8. A name that is not UTF-8 stands in the
/// header as it is wherever it has space, since every reader takes those bytes as they are.
fn needs_record(name: &[u8], fits: bool) -> bool {
    !fits || (!name.is_ascii() && str::from_utf8(name).is_ok())
}

/// `DIR/directory/NAME` for `DIR/NAME`, as far as a header has space: the name that a program which
/// knows no PAX would give the member.
fn stand_in_path(path: &[u8], directory: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let (dir, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => path.split_at(slash + 1),
        None => (&b""[..], path),
    };
    let whole = [dir, directory, b"/", name].concat();
    if whole.len() <= 100 {
        return whole;
    }
    let mut short = [directory, b"/", name].concat();
    short.truncate(100);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_in_names_keep_their_dir_while_there_is_space() {
        assert_eq!(stand_in_path(b"./a/b", b"X"), b"./a/X/b");
        assert_eq!(stand_in_path(b"./a/", b"X"), b"./X/a");
        assert_eq!(stand_in_path(b"a", b"X"), b"X/a");
        let long = [&[b'd'; 90][..], b"/", &[b'n'; 120]].concat();
        assert_eq!(
            stand_in_path(&long, b"X"),
            [&b"X/"[..], &[b'n'; 98]].concat()
        );
    }

    #[test]
    fn only_what_has_no_space_needs_a_record() {
        assert!(!needs_record(b"plain", true));
        assert!(needs_record(b"plain", false));
        assert!(needs_record("grün".as_bytes(), true));
        assert!(!needs_record(b"\xff", true));
    }

    #[test]
    fn contents_fill_whole_blocks() {
        assert_eq!(padding_bytes(0), 0);
        assert_eq!(padding_bytes(1), 511);
        assert_eq!(padding_bytes(512), 0);
        assert_eq!(padding_bytes(u64::MAX), 1);
    }
}
