//! Contents that a stream has in other forms: compressed, or in another file.

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, InodeId, Result};

use super::{Receiver, paths, unsupported};
use crate::compress::Decompressor;
use crate::context::Subvolume;
use crate::ondisk::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use crate::ondisk::send_stream::{EncodedData, EncodedForm, Source};
use crate::ops::encoded;
use crate::ops::subvolumes::in_use::root_of;

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
        if encoded.encryption != 0 {
            return Err(unsupported("encrypted data in a send stream"));
        }
        let name = || format!("compression {} in a send stream", encoded.compression);
        let form = EncodedForm::from_number(encoded.compression);
        let form = form.ok_or_else(|| unsupported(name()))?;
        if encoded.ram_bytes > COMPRESSED_BYTES_MAX {
            return Err(Condition::InvalidArgument.into());
        }
        let whole = decoded(encoded, form)?;
        let part = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        // The command was refused where the part is not within all data.
        let range = part(encoded.offset)..part(encoded.offset + encoded.file_bytes);
        let bytes = whole.get(range).ok_or(Condition::InvalidArgument)?;
        if form.compression != Compression::None
            && form.sector_bytes == self.fs.context().sector_bytes()
        {
            let inode = self.fs.load(file.id())?.ok_or(Condition::Stale)?;
            let _writer = self.fs.writers.enter();
            if encoded::write(&inode, offset, encoded, form.compression)? {
                return Ok(());
            }
        }
        file.write_at(offset, bytes)
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

/// All data of an encoded write.
fn decoded(encoded: &EncodedData<'_>, form: EncodedForm) -> Result<Vec<u8>> {
    if form.compression == Compression::None {
        return Ok(encoded.data.to_vec());
    }
    let len = usize::try_from(encoded.ram_bytes).unwrap_or_default();
    let mut bytes = vec![0; len];
    let sector = usize::try_from(form.sector_bytes).unwrap_or_default();
    let decompressor = Decompressor::default();
    decompressor
        .decompress(form.compression, encoded.data, &mut bytes, sector)
        .map_err(|rule| Corrupt::new(Locus::UNKNOWN, rule))?;
    Ok(bytes)
}
