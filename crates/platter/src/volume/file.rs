//! One open file.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use platter_vfs::{
    Attr, Condition, FileKind, Inode, InodeId, SeekTarget, SetAttr, WalkOrder, WriteTo,
};

use super::rights::set_attr;
use super::{Entries, LoadedEntries, Metadata, OpenOptions, Volume};
use crate::{Cause, Error, Result};

/// How much a stream reads at once.
const STREAM_BYTES: usize = 1 << 20;

/// How far ahead of it the contents are announced.
const STREAM_AHEAD_BYTES: u64 = 8 << 20;

/// An open file of a [`Volume`], as [`std::fs::File`]: it implements [`Read`], [`Write`] and [`Seek`].
///
/// It stays readable and writable when its name is removed. A clone has a position of its own. Methods that
/// take `&self` have no position, and may be called by several threads at once.
#[derive(Debug, Clone)]
pub struct File {
    volume: Volume,
    /// The path it was opened by, for its errors.
    path: Arc<[u8]>,
    inode: Arc<dyn Inode>,
    position: u64,
    access: OpenOptions,
}

impl File {
    pub(super) fn new(volume: &Volume, path: &[u8], inode: Arc<dyn Inode>) -> Self {
        Self {
            volume: volume.clone(),
            path: path.into(),
            inode,
            position: 0,
            access: OpenOptions::new().read(true),
        }
    }

    pub(super) fn allowing(mut self, access: OpenOptions) -> Self {
        self.access = access;
        self
    }

    /// The volume it is on.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The inode below.
    #[must_use]
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the attributes of the file.
    pub fn attr(&self) -> Result<Attr> {
        self.named(self.inode.attr())
    }

    /// Returns the size of the file in bytes.
    pub fn len(&self) -> Result<u64> {
        Ok(self.attr()?.size_bytes)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `IsDirectory` for a directory, `InvalidArgument` for what else has no contents.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.named(self.inode.read_at(offset, buf))
    }

    /// The whole contents, if they are at most `len_bytes_max` long.
    ///
    /// # Errors
    /// `FileTooLarge` when they are longer.
    pub fn read_all(&self, len_bytes_max: usize) -> Result<Vec<u8>> {
        let attr = self.attr()?;
        if attr.kind == FileKind::Directory {
            return Err(self.error(Condition::IsDirectory));
        }
        let length = usize::try_from(attr.size_bytes)
            .ok()
            .filter(|&length| length <= len_bytes_max)
            .ok_or_else(|| self.error(Condition::FileTooLarge))?;
        let mut bytes = vec![0; length];
        let filled = self.read_at(0, &mut bytes)?;
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Writes the whole contents to `out`, and returns how many bytes that were. What comes next is
    /// announced while something is written.
    ///
    /// # Errors
    /// Those of `out` have [`Cause::Host`].
    pub fn write_to(&self, out: &mut dyn Write) -> Result<u64> {
        let mut buf = vec![0; STREAM_BYTES];
        let (mut offset, mut announced) = (0_u64, 0_u64);
        loop {
            if announced.saturating_sub(offset) < STREAM_AHEAD_BYTES / 2 {
                let ahead = offset.saturating_add(STREAM_AHEAD_BYTES);
                self.inode.will_need(announced.max(offset)..ahead);
                announced = ahead;
            }
            let count = self.read_at(offset, &mut buf)?;
            if count == 0 {
                return Ok(offset);
            }
            out.write_all(&buf[..count])
                .map_err(|error| Error::at_path(self.volume.name(), &self.path, error))?;
            offset += count as u64;
        }
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.named(self.inode.read_link())
    }

    /// The first byte of data, or of a hole, at or after `offset`; `None` where none follows. The
    /// end of the file counts as a hole.
    pub fn seek_to(&self, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        match self.inode.seek(offset, target) {
            Ok(found) => Ok(Some(found)),
            Err(platter_vfs::Error::Condition(Condition::NoSuchAddress)) => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.named(self.inode.list_xattrs())
    }

    /// The value of the extended attribute with this full name, such as `user.comment`.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.named(self.inode.get_xattr(name))
    }

    /// Returns all extended attributes of the file, names with values.
    pub fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = self.list_xattrs()?;
        names
            .into_iter()
            .map(|name| {
                let value = self.get_xattr(&name)?;
                Ok((name, value))
            })
            .collect()
    }

    /// The entries of a directory but `.` and `..`, in bounded memory. Where the listing breaks
    /// off, the error comes after all entries before it.
    ///
    /// In [`WalkOrder::Name`], a very large directory comes in several runs, each in order.
    #[must_use]
    pub fn entries(&self, order: WalkOrder) -> Entries {
        Entries::new(self.clone(), order)
    }

    /// The entries of a directory with their inodes, which are read in the order they lie on the
    /// disk. The error of a listing that breaks off may come before the last entries.
    #[must_use]
    pub fn loaded_entries(&self, order: WalkOrder) -> LoadedEntries {
        LoadedEntries::new(self.clone(), order)
    }

    /// The file that an entry of this directory names.
    pub fn open_entry(&self, name: &[u8], id: InodeId) -> Result<Self> {
        let path = self.path_of_entry(name);
        match self.volume.filesystem().inode(id) {
            Ok(inode) => Ok(Self::new(&self.volume, &path, inode)),
            Err(error) => Err(Error::at_path(self.volume.name(), &path, error)),
        }
    }

    /// An entry of this directory, whose inode is there already.
    pub(crate) fn entry_file(&self, name: &[u8], inode: Arc<dyn Inode>) -> Self {
        Self::new(&self.volume, &self.path_of_entry(name), inode)
    }

    /// An error of an entry of this directory.
    pub(crate) fn entry_error(&self, name: &[u8], error: platter_vfs::Error) -> Error {
        Error::at_path(self.volume.name(), &self.path_of_entry(name), error)
    }

    /// The attributes.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.attr()?.into())
    }

    /// Writes all of `data` at `offset`, whatever the position is; at the end where it is open for appending,
    /// as `pwrite(2)` does.
    ///
    /// # Errors
    /// [`Cause::NotOpenFor`] where it is not open for writing.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        if self.access.appends() {
            return self.append(data).map(drop);
        }
        self.named(self.inode.write_at(offset, data))
    }

    /// Writes all of `data` at the end of the file. Returns the new end.
    ///
    /// # Errors
    /// [`Cause::NotOpenFor`] where it is not open for writing.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.check_writable()?;
        self.named(self.inode.append(data))
    }

    /// Sets the size: what is beyond it is dropped, what is missing reads as zeros.
    ///
    /// # Errors
    /// [`Cause::NotOpenFor`] where it is not open for writing.
    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.change(&SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        })
    }

    /// Sets the permission bits.
    pub fn set_permissions(&self, permissions: u32) -> Result<()> {
        self.change(&SetAttr {
            permissions: Some(permissions & 0o7777),
            ..SetAttr::default()
        })
    }

    /// Sets owner and group, as far as they are given.
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(&SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        })
    }

    /// Returns when contents and attributes survive a power failure.
    pub fn sync_all(&self) -> Result<()> {
        self.named(self.inode.sync(false))
    }

    /// Returns when the contents survive a power failure, and what is needed to read them.
    pub fn sync_data(&self) -> Result<()> {
        self.named(self.inode.sync(true))
    }

    fn change(&self, changes: &SetAttr) -> Result<()> {
        self.named(set_attr(&*self.inode, changes))
    }

    fn check_readable(&self) -> Result<()> {
        self.check_open_for(self.access.may_read(), "reading")
    }

    fn check_writable(&self) -> Result<()> {
        self.check_open_for(self.access.may_write(), "writing")
    }

    fn check_open_for(&self, is_open: bool, access: &'static str) -> Result<()> {
        let cause = Cause::NotOpenFor { access };
        let refused = || Err(Error::at_path(self.volume.name(), &self.path, cause));
        if is_open { Ok(()) } else { refused() }
    }

    /// An error of this file: its image, its path and `cause`.
    pub fn error(&self, cause: impl Into<platter_vfs::Error>) -> Error {
        Error::at_path(
            self.volume.name(),
            &self.path,
            Cause::Filesystem(cause.into()),
        )
    }

    /// The path of an entry of this directory.
    #[must_use]
    pub fn path_of_entry(&self, name: &[u8]) -> Vec<u8> {
        let slashes = self
            .path
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'/')
            .count();
        let mut path = self.path[..self.path.len() - slashes].to_vec();
        if !path.is_empty() || slashes > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    fn named<T>(&self, result: platter_vfs::Result<T>) -> Result<T> {
        // After the fact, since an edit may end meanwhile.
        self.volume
            .check_live()
            .map_err(|cause| Error::at_path(self.volume.name(), &self.path, cause))?;
        result.map_err(|error| self.error(error))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.access.may_write() {
            self.inode.closed();
        }
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.check_readable()?;
        let count = self.read_at(self.position, buf)?;
        self.position = self.position.saturating_add(count as u64);
        Ok(count)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.position = if self.access.appends() {
            self.append(buf)?
        } else {
            self.check_writable()?;
            let written = self.inode.write_some(self.position, buf, WriteTo::Cache);
            let written = self.named(written)?;
            self.position = self.position.saturating_add(written as u64);
            return Ok(written);
        };
        Ok(buf.len())
    }

    /// Nothing is kept back: see [`File::sync_all`] for durability.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, target: SeekFrom) -> io::Result<u64> {
        let len = match target {
            SeekFrom::End(_) => self.len()?,
            SeekFrom::Start(_) | SeekFrom::Current(_) => 0,
        };
        let offset = offset_of(target, self.position, len);
        self.position = offset.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// The offset that a seek leads to.
fn offset_of(target: SeekFrom, position: u64, len: u64) -> Option<u64> {
    let (base, distance) = match target {
        SeekFrom::Start(offset) => (offset, 0),
        SeekFrom::Current(distance) => (position, distance),
        SeekFrom::End(distance) => (len, distance),
    };
    base.checked_add_signed(distance)
}
