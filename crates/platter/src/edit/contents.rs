//! Contents of files, as `std::fs` writes them.

use platter_vfs::Condition;

use super::{Creation, Edit, SizeChange};
use crate::{File, Result};

impl Edit {
    /// Writes the whole contents of a file, as [`std::fs::write`] does: one that is not there is
    /// made, one that is there loses what it held. A symbolic link is followed.
    ///
    /// # Errors
    /// `IsDirectory` for a directory, `InvalidArgument` for what else has no contents.
    pub fn write(&self, path: &[u8], bytes: &[u8]) -> Result<()> {
        let file = self.writable(path)?;
        self.truncate(path, SizeChange::Set(0), Creation::Never)?;
        self.named(path, file.inode().write_at(0, bytes))
    }

    /// Writes after the end of a file, as one that was opened for appending. One that is not there is
    /// made. A symbolic link is followed.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn append(&self, path: &[u8], bytes: &[u8]) -> Result<()> {
        let file = self.writable(path)?;
        self.named(path, file.inode().append(bytes)).map(drop)
    }

    /// A regular file to write to, made if it is not there.
    fn writable(&self, path: &[u8]) -> Result<File> {
        let Some(file) = self.open_or_create(path, Creation::IfMissing)? else {
            return Err(self.error(path, platter_vfs::Error::from(Condition::NotFound)));
        };
        let attr = file.attr()?;
        let allowed = self.volume.may_write_to(&**file.inode(), &attr);
        self.named(path, allowed)?;
        Ok(file)
    }
}
