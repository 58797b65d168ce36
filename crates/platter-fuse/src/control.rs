//! What another process asks of a mounted filesystem by ioctls.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use platter_vfs::devices::{Balance, Moved, NewLength, Resized, Scrubbed};
use platter_vfs::subvolumes::Subvolume;
use platter_vfs::{Defragment, ExtentSink, Trim, Uuid};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::ioctl::{
    self, CANCELLED, Command, DedupeRange, DefragmentStep, DeviceAction, DeviceCommand,
    DeviceStatus, ENDED, FORCED, FSLABEL_BYTES, FileExtents, HAS_DEVICE, InoLookup, LARGER,
    MountReport, NextSubvolume, OF_DATA, OF_METADATA, OF_SYSTEM, REPAIRS, ROOT_DIRECTORY,
    ReceivedSubvolume, ReportPage, SUBVOL_RDONLY, SubvolumeCommand, SubvolumeInfo, TrimRange,
    VolArgs, VolArgsV2, call, defragment_in_steps, text,
};
use crate::pause::Pause;
use crate::refusal::Refusal;

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

    /// Records what was received into the subvolume: its UUID and generation where it was sent.
    ///
    /// # Errors
    /// `EINVAL` where the directory is not the root directory of one; `EROFS` for one that is read-only.
    pub fn set_received(&self, uuid: Uuid, generation: u64) -> io::Result<()> {
        let mut received = ReceivedSubvolume {
            uuid: uuid.into_bytes(),
            sent_generation: generation,
            ..ReceivedSubvolume::new_zeroed()
        };
        self.subvolume(SubvolumeCommand::SetReceived, &mut received)
    }

    /// Whether the subvolume whose root directory this is refuses changes.
    ///
    /// # Errors
    /// `EINVAL` where it is that of none.
    pub fn is_read_only(&self) -> io::Result<bool> {
        let mut flags = 0_u64;
        self.subvolume(SubvolumeCommand::GetFlags, &mut flags)?;
        Ok(flags & SUBVOL_RDONLY != 0)
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

    /// The number of the subvolume that a file of a mount is in.
    ///
    /// # Errors
    /// `ENOTTY` where the filesystem has none.
    pub fn subvolume_of(file: &File) -> io::Result<u64> {
        let mut lookup = InoLookup {
            inode: ROOT_DIRECTORY,
            ..InoLookup::new_zeroed()
        };
        let command = Command::Subvolume(SubvolumeCommand::Lookup);
        call(file, command.number(), lookup.as_mut_bytes())?;
        Ok(lookup.tree)
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

    /// What the filesystem says of itself, and what it counted since it was mounted. Only platter reports it so.
    ///
    /// # Errors
    /// `ENOTTY` where something else is mounted; `EPROTO` where another version of platter mounted it.
    pub fn report(&self) -> io::Result<MountReport> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.read_report() {
                // Another process began one meanwhile.
                Err(Errno::STALE) if attempt < REPORT_ATTEMPTS_MAX => {}
                read => return Ok(MountReport::decode(&read?).ok_or(Errno::PROTO)?),
            }
        }
    }

    fn read_report(&self) -> Result<Vec<u8>, Errno> {
        let mut report = Vec::new();
        let mut number = 0;
        loop {
            let mut page = ReportPage::new_zeroed();
            (page.number, page.offset) = (number, report.len() as u64);
            call(&self.0, Command::Report.number(), page.as_mut_bytes())?;
            let total = usize::try_from(page.total_bytes).map_err(|_| Errno::PROTO)?;
            if total <= report.len() || total > REPORT_BYTES_MAX {
                return Err(Errno::PROTO);
            }
            let len = page.bytes.len().min(total - report.len());
            report.extend_from_slice(&page.bytes[..len]);
            if report.len() == total {
                return Ok(report);
            }
            number = page.number;
        }
    }

    /// Has a file of a mount share the bytes of a range with another file of it, if they are equal there: `target` has
    /// them from `to` on. Returns whether they share them now and did not before; with `dry_run`, nothing is compared,
    /// and it is whether they could. At most 32 MiB are shared at once. What the kernel has cached of both and not
    /// [passed on](Self::flush_cache) comes later.
    ///
    /// # Errors
    /// `EXDEV` for files of several filesystems; `ENOTTY` where something else is mounted.
    pub fn dedupe(
        target: &File,
        source: &File,
        range: &Range<u64>,
        to: u64,
        dry_run: bool,
    ) -> io::Result<bool> {
        let found = source.metadata()?;
        if found.dev() != target.metadata()?.dev() {
            return Err(Errno::XDEV.into());
        }
        let mut asked = DedupeRange {
            source: found.ino(),
            source_offset: range.start,
            len_bytes: range.end.saturating_sub(range.start),
            offset: to,
            dry_run: dry_run.into(),
            is_shared: 0,
        };
        call(target, Command::Dedupe.number(), asked.as_mut_bytes())?;
        Ok(asked.is_shared != 0)
    }

    /// Passes what backs a file of a mount to `sink`, in order; holes are left out, and `place` is not known. What the
    /// kernel has cached and not [passed on](Self::flush_cache) yet has no extents.
    ///
    /// # Errors
    /// `EISDIR` or `EINVAL` for what has no contents; `ENOTTY` where something else is mounted.
    pub fn extents(file: &File, sink: &mut ExtentSink<'_>) -> io::Result<()> {
        let mut start = 0;
        loop {
            let mut listed = FileExtents::request(start);
            call(file, Command::Extents.number(), listed.as_mut_bytes())?;
            for extent in listed.decode()? {
                start = extent.file.end;
                if sink(extent).is_break() {
                    return Ok(());
                }
            }
            if !listed.is_full() {
                return Ok(());
            }
        }
    }

    /// Writes short extents of a file of a mount anew as longer ones, or as compressed ones if that is wanted. Returns
    /// how many bytes were written anew. What the kernel has cached and not [passed on](Self::flush_cache) yet is not.
    /// The file need not be open for writing; its position changes. Waits while a file is defragmented for another
    /// caller, unless this one is the administrator.
    ///
    /// # Errors
    /// `EPERM` for a file that the caller may not write to; `EISDIR` or `EINVAL` for what has no contents; `EOPNOTSUPP`
    /// where the filesystem cannot; `ENOTTY` where something else is mounted.
    pub fn defragment(file: &File, request: &Defragment) -> io::Result<u64> {
        let size_bytes = file.metadata()?.len();
        let compression = request.compression.as_deref();
        let step = |range: Range<u64>| -> Result<u64, Errno> {
            let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
            loop {
                let mut asked = DefragmentStep::new(&range, request.extent_bytes, compression)?;
                match call(file, Command::DefragmentStep.number(), asked.as_mut_bytes()) {
                    Err(Errno::BUSY) => pause.wait(),
                    called => return called.map(|()| asked.written_bytes),
                }
            }
        };
        let data = |from: u64| {
            if from >= size_bytes {
                return Err(Errno::NXIO);
            }
            rustix::fs::seek(file, SeekFrom::Data(from))
        };
        Ok(defragment_in_steps(&request.range, step, data)?)
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

    /// Asks the filesystem to carry out a command on its devices, and passes on how far it is, and what was found, until
    /// it ends. `Break` ends it as soon as that can be.
    ///
    /// # Errors
    /// `EBUSY` while another one runs; what it failed with.
    pub fn run_on_devices(
        &self,
        command: &DevicesCommand<'_>,
        listen: &mut dyn FnMut(&DevicesReport) -> ControlFlow<()>,
    ) -> Result<DevicesOutcome, DevicesRefusal> {
        let mut request = command.encode()?;
        self.ask(Command::Devices(ioctl::DevicesCommand::Start), &mut request)?;
        let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let mut status = DeviceStatus {
                job: request.job,
                ..DeviceStatus::new_zeroed()
            };
            self.ask(Command::Devices(ioctl::DevicesCommand::Status), &mut status)?;
            let found = text(&status.found)?;
            let lines = found.split(|&byte| byte == b'\n');
            let lines = lines.filter(|line| !line.is_empty());
            let report = DevicesReport {
                done: status.done,
                total: status.total,
                found: lines.map(<[u8]>::to_vec).collect(),
            };
            let is_cancelled = listen(&report).is_break();
            if status.flags & ENDED != 0 {
                return outcome(&status);
            }
            if is_cancelled {
                self.ask(
                    Command::Devices(ioctl::DevicesCommand::Cancel),
                    &mut [0_u8; 0],
                )?;
            }
            pause.wait();
        }
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

/// How often a report is begun that others take from us.
const REPORT_ATTEMPTS_MAX: u32 = 100;
/// Bytes of the longest report that is read.
const REPORT_BYTES_MAX: usize = 4 << 20;

/// Between two looks at a command on devices, or two attempts to defragment.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// A command on the devices of a mounted filesystem. Paths are absolute: the process that serves the mount opens them, with
/// its rights.
#[derive(Debug, Clone)]
pub enum DevicesCommand<'c> {
    /// Every copy is read.
    Scrub {
        /// Bad ones are rewritten.
        repairs: bool,
    },
    /// Chunks are placed anew.
    Balance(&'c Balance),
    /// A device is added.
    Add {
        /// Its path.
        path: &'c [u8],
        /// Although something is on it.
        is_forced: bool,
    },
    /// What is on a device is moved to others.
    Remove {
        /// Its number.
        device: u64,
    },
    /// A device takes the place of another one.
    Replace {
        /// The number of the other one.
        device: u64,
        /// The path of the new one.
        path: &'c [u8],
        /// Although something is on it.
        is_forced: bool,
    },
    /// What is used of a device becomes longer or shorter.
    Resize {
        /// Its number; `None` for the only one.
        device: Option<u64>,
        /// Its length.
        length: NewLength,
    },
}

/// How far a command on devices is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicesReport {
    /// What was done: chunks, of a scrub bytes.
    pub done: u64,
    /// What there is to do.
    pub total: u64,
    /// What was found since the report before.
    pub found: Vec<Vec<u8>>,
}

/// What a command on devices came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicesOutcome {
    /// Of a scrub or a replacement.
    pub scrubbed: Scrubbed,
    /// Of others; lengths are those of a resize.
    pub resized: Resized,
    /// The number of a device that was added.
    pub device: u64,
}

/// Why a command on devices was refused, or failed.
#[derive(Debug, thiserror::Error)]
pub enum DevicesRefusal {
    /// It was not begun, or nothing is known of what became of it.
    #[error(transparent)]
    Asking(#[from] io::Error),
    /// It failed.
    #[error(transparent)]
    Failed(Refusal),
}

impl From<Errno> for DevicesRefusal {
    fn from(errno: Errno) -> Self {
        Self::Asking(errno.into())
    }
}

impl DevicesCommand<'_> {
    fn encode(&self) -> Result<DeviceCommand, Errno> {
        let flag = |flag: u32, is_set: bool| if is_set { flag } else { 0 };
        Ok(match self {
            Self::Scrub { repairs } => {
                DeviceCommand::new(DeviceAction::Scrub, flag(REPAIRS, *repairs), &[])?
            }
            Self::Balance(balance) => {
                let filters = [
                    (OF_DATA, &balance.data),
                    (OF_METADATA, &balance.metadata),
                    (OF_SYSTEM, &balance.system),
                ];
                let given = filters.iter().map(|(of, it)| flag(*of, it.is_some()));
                let flags = given.sum::<u32>() | flag(FORCED, balance.is_forced);
                let texts = filters.map(|(_, it)| it.as_deref().unwrap_or_default().as_bytes());
                DeviceCommand::new(DeviceAction::Balance, flags, &texts)?
            }
            Self::Add { path, is_forced } => {
                DeviceCommand::new(DeviceAction::Add, flag(FORCED, *is_forced), &[path])?
            }
            Self::Remove { device } => DeviceCommand {
                device: *device,
                ..DeviceCommand::new(DeviceAction::Remove, HAS_DEVICE, &[])?
            },
            Self::Replace {
                device,
                path,
                is_forced,
            } => DeviceCommand {
                device: *device,
                ..DeviceCommand::new(
                    DeviceAction::Replace,
                    HAS_DEVICE | flag(FORCED, *is_forced),
                    &[path],
                )?
            },
            Self::Resize { device, length } => {
                let (larger, len_bytes) = match length {
                    NewLength::Whole => (false, u64::MAX),
                    NewLength::Bytes(bytes) => (false, *bytes),
                    NewLength::Larger(bytes) => (true, *bytes),
                };
                let flags = flag(HAS_DEVICE, device.is_some()) | flag(LARGER, larger);
                DeviceCommand {
                    device: device.unwrap_or_default(),
                    len_bytes,
                    ..DeviceCommand::new(DeviceAction::Resize, flags, &[])?
                }
            }
        })
    }
}

/// What an answer says of a command that ended.
fn outcome(status: &DeviceStatus) -> Result<DevicesOutcome, DevicesRefusal> {
    if status.errno != 0 {
        let refusal = Refusal::decode(status.errno, text(&status.error)?)?;
        return Err(DevicesRefusal::Failed(refusal));
    }
    let is_cancelled = status.flags & CANCELLED != 0;
    let count = usize::try_from(status.counters).map_err(|_| Errno::PROTO)?;
    let counters = status.counter.iter().take(count).map(|counter| {
        let name = String::from_utf8_lossy(text(&counter.name)?).into_owned();
        Ok((Cow::Owned(name), counter.count))
    });
    Ok(DevicesOutcome {
        scrubbed: Scrubbed {
            is_cancelled,
            repairs: status.flags & REPAIRS != 0,
            errors: status.errors,
            uncorrectable: status.uncorrectable,
            counters: counters.collect::<Result<_, Errno>>()?,
        },
        resized: Resized {
            before_bytes: status.before_bytes,
            after_bytes: status.after_bytes,
            moved: Moved {
                considered: status.considered,
                moved: status.moved,
                removed: status.removed,
                is_cancelled,
            },
        },
        device: status.device,
    })
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
