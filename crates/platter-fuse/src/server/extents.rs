//! What backs contents: extents as they are, which `FIEMAP` does not ask a filesystem in user space for, and extents
//! that are written anew.

#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use platter_vfs::permission::check_access;
use platter_vfs::{Access, Condition, Defragment, Error, Inode};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::ioctl::{argument, must_be_mounted_writable};
use super::{Answer, Caller, Server};
use crate::ioctl::{DefragRange, DefragmentRange, FileExtents, text};

/// `BTRFS_DEFRAG_RANGE_COMPRESS`.
const COMPRESS: u64 = 1 << 0;
/// `BTRFS_DEFRAG_RANGE_START_IO`, which is done in any case.
const START_IO: u64 = 1 << 1;
/// `BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL`.
const COMPRESS_LEVEL: u64 = 1 << 2;
/// Methods by their numbers, `BTRFS_COMPRESS_*`; the first one is what 0 stands for.
const METHODS: [&str; 4] = ["zlib", "zlib", "lzo", "zstd"];
/// How long extents are that Linux leaves as they are, where no length is named.
const EXTENT_BYTES: u64 = 256 << 10;

/// Lists extents of a file, from a byte on.
pub(super) fn list(server: &Server, file: &dyn Inode, input: &[u8]) -> Answer<Vec<u8>> {
    let asked: FileExtents = argument(input)?;
    server.must_not_be_shut_down()?;
    if i64::try_from(asked.start).is_err() {
        // No file is so long.
        return Err(Errno::FBIG);
    }
    let kind = server.check(file.attr())?.kind;
    server.check(kind.refuse_without_contents())?;
    let mut found = FileExtents::request(asked.start);
    let listed = file.extents(asked.start..u64::MAX, &mut |extent| found.push(&extent));
    server.check(listed)?;
    Ok(found.as_bytes().to_vec())
}

/// A file whose extents a caller may have written anew.
pub(super) struct Fragmented<'f> {
    server: &'f Server,
    file: &'f dyn Inode,
}

impl<'f> Fragmented<'f> {
    /// A file, for a caller.
    ///
    /// # Errors
    /// `EPERM` for callers that may not write to the file; those of what has no contents, and of what is not changed.
    pub(super) fn new(server: &'f Server, caller: Caller, file: &'f dyn Inode) -> Answer<Self> {
        must_be_mounted_writable(server)?;
        let attr = server.shown_attr(file)?;
        server.check(attr.kind.refuse_without_contents())?;
        // The file need not be open for writing: a program that runs is not.
        if !server.options.no_permission_checks && !caller.is_admin() {
            let user = caller.context()?.credentials;
            match check_access(file, &attr, &user, Access::WRITE) {
                Err(Error::Condition(Condition::AccessDenied)) => return Err(Errno::PERM),
                checked => server.check(checked)?,
            }
        }
        Ok(Self { server, file })
    }

    /// Writes extents of a range anew, for platter itself.
    pub(super) fn defragment(&self, input: &[u8]) -> Answer<Vec<u8>> {
        let asked: DefragmentRange = argument(input)?;
        let method = text(&asked.compression)?;
        let method = str::from_utf8(method).map_err(|_| Errno::INVAL)?;
        let written_bytes = self.carry_out(&Defragment {
            range: asked.start..asked.end,
            extent_bytes: asked.extent_bytes,
            compression: (!method.is_empty()).then(|| method.to_owned()),
        })?;
        let answer = DefragmentRange {
            written_bytes,
            ..asked
        };
        Ok(answer.as_bytes().to_vec())
    }

    /// The same, of a whole file, as Linux is asked for it.
    pub(super) fn defragment_all(&self) -> Answer<Vec<u8>> {
        let all = Defragment {
            extent_bytes: EXTENT_BYTES,
            ..Defragment::default()
        };
        self.carry_out(&all).map(|_| Vec::new())
    }

    /// The same, of a range.
    pub(super) fn defragment_range(&self, input: &[u8]) -> Answer<Vec<u8>> {
        let asked: DefragRange = argument(input)?;
        if asked.flags & !(COMPRESS | START_IO | COMPRESS_LEVEL) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let extent_bytes = match asked.extent_bytes {
            0 => EXTENT_BYTES,
            bytes => bytes.into(),
        };
        let request = Defragment {
            range: asked.start..asked.start.saturating_add(asked.len_bytes),
            extent_bytes,
            compression: compression(&asked)?,
        };
        self.carry_out(&request).map(|_| Vec::new())
    }

    fn carry_out(&self, request: &Defragment) -> Answer<u64> {
        self.server.check(self.file.defragment(request))
    }
}

/// What a range is to be compressed by, in the words of the format.
fn compression(asked: &DefragRange) -> Answer<Option<String>> {
    if asked.flags & COMPRESS == 0 {
        return Ok(None);
    }
    let [kind, level, ..] = asked.compression;
    let (kind, level) = if asked.flags & COMPRESS_LEVEL == 0 {
        (u32::from_ne_bytes(asked.compression), 0)
    } else {
        (kind.into(), i8::from_ne_bytes([level]))
    };
    let kind = usize::try_from(kind).map_err(|_| Errno::INVAL)?;
    let method = METHODS.get(kind).ok_or(Errno::INVAL)?;
    Ok(Some(match level {
        0 => (*method).to_owned(),
        level => format!("{method}:{level}"),
    }))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn methods_are_those_of_their_numbers() {
        let method = |flags: u64, compression: [u8; 4]| {
            super::compression(&DefragRange {
                flags,
                compression,
                ..DefragRange::new_zeroed()
            })
        };
        let plain = |number: u32| method(COMPRESS | START_IO, number.to_ne_bytes());
        assert_eq!(method(START_IO, 2_u32.to_ne_bytes()), Ok(None));
        assert_eq!(plain(0).unwrap().unwrap(), "zlib");
        assert_eq!(plain(2).unwrap().unwrap(), "lzo");
        assert_eq!(plain(3).unwrap().unwrap(), "zstd");
        assert_eq!(plain(4), Err(Errno::INVAL));
        assert_eq!(plain(u32::MAX), Err(Errno::INVAL));
        let leveled = |bytes| method(COMPRESS | COMPRESS_LEVEL, bytes).unwrap().unwrap();
        assert_eq!(leveled([1, 9, 0, 0]), "zlib:9");
        assert_eq!(leveled([3, 0xf1, 0, 0]), "zstd:-15");
        assert_eq!(leveled([3, 0, 0, 0]), "zstd");
    }
}
