//! Contents that a stream has in other forms: compressed, or in another file.

use std::ops::Range;

use platter_vfs::{Condition, Error, InodeId, Result};

use super::{Receiver, paths};
use crate::context::Subvolume;
use crate::ondisk::file_extent::Compression;
use crate::ondisk::send_stream::{EncodedData, Source};
use crate::ops::encoded;
use crate::ops::subvolumes::in_use::root_of;
use crate::send::encoded::decode;

/// Data that is copied at once where it cannot be shared.
const COPIED_BYTES: u64 = 1 << 20;

impl Receiver<'_> {
    /// Writes compressed data: as it is where the file can have it so, or what it is of.
    pub(super) fn write_encoded(
        &mut self,
        path: &[u8],
        offset: u64,
        encoded: &EncodedData<'_>,
    ) -> Result<()> {
        let file = self.file(path)?;
        let (form, bytes) = decode(encoded)?;
        if form.compression != Compression::None
            && form.sector_bytes == self.fs.context().sector_bytes()
        {
            let inode = self.fs.load(file.id())?.ok_or(Condition::Stale)?;
            let _writer = self.fs.writers.enter();
            if encoded::write(&inode, offset, encoded, form.compression)? {
                return Ok(());
            }
        }
        file.write_at(offset, &bytes)
    }

    /// Shares a range of another file, or copies it where it cannot be shared.
    pub(super) fn clone_range(
        &mut self,
        path: &[u8],
        offset: u64,
        source: Source,
        (source_path, range): (&[u8], Range<u64>),
    ) -> Result<()> {
        let target = self.file(path)?;
        let current = self.current.as_ref().ok_or(Condition::NotFound)?;
        let root = if source.uuid == current.source.uuid {
            current.root.clone()
        } else {
            let id = self.sources.find(self.fs.context(), source)?;
            let found: Option<Subvolume> = self.fs.context().subvolume(id)?;
            let root: InodeId = root_of(&found.ok_or(Condition::NotFound)?);
            self.fs.find(root)?.ok_or(Condition::Stale)?
        };
        let slash = source_path.iter().rposition(|&byte| byte == b'/');
        let (dir, name) = match slash {
            Some(at) => (&source_path[..at], &source_path[at + 1..]),
            None => (&[][..], source_path),
        };
        let dir = paths::walk(&root, dir)?;
        let from = dir.lookup(platter_vfs::Name::new(name)?)?;
        match target.clone_range(&*from, range.clone(), offset) {
            // Checksums that only one has, or a range that ends within a sector.
            Err(Error::Condition(Condition::InvalidArgument | Condition::NotSupported)) => {}
            done => return done,
        }
        let mut at = range.start;
        let mut buffer = Vec::new();
        while at < range.end {
            let count = COPIED_BYTES.min(range.end - at);
            buffer.resize(usize::try_from(count).unwrap_or_default(), 0);
            let count = from.read_at(at, &mut buffer)?;
            if count == 0 {
                return Err(Condition::InvalidArgument.into());
            }
            target.write_at(offset + (at - range.start), &buffer[..count])?;
            at += count as u64;
        }
        Ok(())
    }
}
