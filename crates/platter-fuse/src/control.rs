//! What another process asks of a mounted filesystem by ioctls.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use platter_vfs::Trim;
use platter_vfs::subvolumes::Subvolume;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::ioctl::{
    Command, FSLABEL_BYTES, NextSubvolume, SUBVOL_RDONLY, SubvolumeCommand, SubvolumeInfo,
    TrimRange, VolArgs, VolArgsV2, call, text,
};

/// A directory of a mounted filesystem, which is asked for changes of that as a whole, and of subvolumes in the
/// directory. The ioctls are those of Linux where it has some, so that a filesystem of the kernel takes them, too.
///
/// Errors are those of the ioctls: `ENOTTY` or `EOPNOTSUPP` for what the filesystem does not have, `EPERM` for what
/// is for its administrator. The user that mounted it is that, and the superuser.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Opens a directory.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty())?;
        Ok(Self(opened.into()))
    }

    /// Makes an empty subvolume in the directory. It belongs to the caller.
    pub fn create_subvolume(&self, name: &[u8]) -> io::Result<()> {
        let mut args = VolArgs::new(name)?;
        self.subvolume(SubvolumeCommand::Create, &mut args)
    }

    /// Makes a snapshot in the directory, of the subvolume whose root directory is `source`. Data that the kernel
    /// has cached and not [passed on](Self::flush_cache) yet is not in it.
    ///
    /// # Errors
    /// `EXDEV` where the source is elsewhere; `EINVAL` where it is no root directory of a subvolume.
    pub fn snapshot(&self, source: &Self, name: &[u8], read_only: bool) -> io::Result<()> {
        let flags = if read_only { SUBVOL_RDONLY } else { 0 };
        let mut args = VolArgsV2::new(source.0.as_raw_fd().into(), name, flags)?;
        self.subvolume(SubvolumeCommand::SnapshotV2, &mut args)
    }

    /// Deletes a subvolume that has its name in the directory. Its files that are open are read, and refuse what the
    /// kernel has cached and not [passed on](Self::flush_cache) yet.
    ///
    /// # Errors
    /// `EINVAL` for what is none; `ENOTEMPTY` where it has others in it.
    pub fn delete_subvolume(&self, name: &[u8]) -> io::Result<()> {
        let mut args = VolArgs::new(name)?;
        self.subvolume(SubvolumeCommand::Delete, &mut args)
    }

    /// Makes the subvolume refuse changes, also what the kernel has cached and not [passed on](Self::flush_cache) yet,
    /// or take them.
    ///
    /// # Errors
    /// `EINVAL` where the directory is not the root directory of one.
    pub fn set_read_only(&self, read_only: bool) -> io::Result<()> {
        let mut flags = if read_only { SUBVOL_RDONLY } else { 0 };
        self.subvolume(SubvolumeCommand::SetFlags, &mut flags)
    }

    /// The number of the subvolume whose root directory this is.
    ///
    /// # Errors
    /// `EINVAL` where it is that of none.
    pub fn subvolume_id(&self) -> io::Result<u64> {
        let mut flags = 0_u64;
        self.subvolume(SubvolumeCommand::GetFlags, &mut flags)?;
        let mut info = SubvolumeInfo::new_zeroed();
        self.subvolume(SubvolumeCommand::Info, &mut info)?;
        Ok(info.id)
    }

    /// Makes a subvolume the one that is mounted where none is asked for.
    pub fn set_default_subvolume(&self, mut id: u64) -> io::Result<()> {
        self.subvolume(SubvolumeCommand::SetDefault, &mut id)
    }

    /// The subvolume with the least number that is `id` or greater, and whether it is the default one; `None` where
    /// there is none. Only platter lists them so.
    pub fn next_subvolume(&self, id: u64) -> io::Result<Option<(Subvolume, bool)>> {
        let mut next = NextSubvolume::request(id);
        match self.subvolume(SubvolumeCommand::Next, &mut next) {
            Ok(()) => Ok(Some(next.decode()?)),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes everything done so far durable. Of what the kernel has cached, that is what
    /// [`flush_cache`](Self::flush_cache) reaches.
    pub fn sync(&self) -> io::Result<()> {
        self.flush_cache()?;
        Ok(call(&self.0, Command::Sync.number(), &mut [])?)
    }

    /// Makes the kernel pass on the data that it has cached. Before Linux 6.16 it does not wait until the filesystem has
    /// it: only `fsync(2)` of a file makes sure.
    pub fn flush_cache(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    /// Discards free space. Returns how many bytes.
    pub fn trim(&self, asked: &Trim) -> io::Result<u64> {
        let mut range = TrimRange {
            start: asked.start_bytes,
            len: asked.len_bytes,
            minlen: asked.min_bytes,
        };
        self.ask(Command::Trim, &mut range)?;
        Ok(range.len)
    }

    /// The label.
    pub fn label(&self) -> io::Result<Vec<u8>> {
        let mut label = [0; FSLABEL_BYTES];
        self.ask(Command::GetLabel, &mut label)?;
        Ok(text(&label)?.to_vec())
    }

    /// Sets the label.
    ///
    /// # Errors
    /// `EINVAL` for one that is too long.
    pub fn set_label(&self, label: &[u8]) -> io::Result<()> {
        let mut buffer = [0; FSLABEL_BYTES];
        let place = buffer.get_mut(..label.len());
        let place = place.filter(|place| place.len() < FSLABEL_BYTES);
        place.ok_or(Errno::INVAL)?.copy_from_slice(label);
        self.ask(Command::SetLabel, &mut buffer)
    }

    fn subvolume<T>(&self, command: SubvolumeCommand, argument: &mut T) -> io::Result<()>
    where
        T: IntoBytes + FromBytes,
    {
        self.ask(Command::Subvolume(command), argument)
    }

    fn ask<T>(&self, command: Command, argument: &mut T) -> io::Result<()>
    where
        T: IntoBytes + FromBytes,
    {
        Ok(call(&self.0, command.number(), argument.as_mut_bytes())?)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
