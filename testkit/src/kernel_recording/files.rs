//! Devices as the regular files of a filesystem, to be served through FUSE.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_block::{BlockDevice, IoError};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{
    Attr, Condition, Context, Description, DirCursor, DirEntry, DirSink, ExtentSink, FallocateMode,
    FileKind, Filesystem, Inode, InodeId, Name, Result, SeekTarget, SetAttr, StatFs, Timestamp,
};

use crate::subject::Devices;

/// The root directory; files have the numbers after it, in the order of their devices.
const ROOT: u64 = 1;
const FIRST_FILE: u64 = 2;
const BLOCK_BYTES: u32 = 4096;
/// What programs see as the magic number: that of FUSE.
const MAGIC: u32 = 0x6573_5546;

/// The name of the file that is a device.
#[must_use]
pub(super) fn file_name(member: usize) -> String {
    format!("device{member}")
}

/// A filesystem whose root holds one file for each device. A write to a file is a write to its device,
/// `fsync` a flush, a punched hole a discard.
#[derive(Debug)]
pub(super) struct DeviceFiles {
    devices: Devices,
}

impl DeviceFiles {
    pub(super) fn new(devices: Devices) -> Self {
        Self { devices }
    }

    fn object(&self, number: u64) -> Result<Arc<dyn Inode>> {
        if number == ROOT {
            let devices = self.devices.clone();
            return Ok(Arc::new(Root { devices }));
        }
        let member = number.checked_sub(FIRST_FILE);
        let member = member.and_then(|member| usize::try_from(member).ok());
        match member.and_then(|member| self.devices.get(member)) {
            Some(device) => Ok(Arc::new(DeviceFile {
                number,
                device: Arc::clone(device),
            })),
            None => Err(Condition::Stale.into()),
        }
    }
}

impl Filesystem for DeviceFiles {
    fn describe(&self) -> Description {
        Description {
            kind: "devices".into(),
            uuid: platter_ondisk::Uuid::nil(),
            label: Vec::new(),
            features: Vec::new(),
            details: Vec::new(),
        }
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        self.object(ROOT)
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        self.object(id.number)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let bytes = self
            .devices
            .iter()
            .map(|device| device.geometry().len_bytes);
        Ok(StatFs {
            block_bytes: BLOCK_BYTES,
            blocks: bytes.sum::<u64>() / u64::from(BLOCK_BYTES),
            blocks_free: 0,
            blocks_available: 0,
            inodes: self.devices.len() as u64,
            inodes_free: 0,
            name_len_max: 255,
            id: 0,
            magic: MAGIC,
        })
    }

    fn sync(&self) -> Result<()> {
        for device in &self.devices {
            device.flush()?;
        }
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

fn attr(number: u64, kind: FileKind, size_bytes: u64) -> Attr {
    let now = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    Attr {
        inode: number,
        generation: 0,
        kind,
        permissions: if kind == FileKind::Directory {
            0o755
        } else {
            0o600
        },
        links: 1,
        uid: 0,
        gid: 0,
        project: 0,
        size_bytes,
        sectors: size_bytes / 512,
        space_is_estimated: false,
        io_block_bytes: BLOCK_BYTES,
        device: DeviceNumber::default(),
        accessed: now,
        modified: now,
        changed: now,
        created: None,
        flags: 0,
    }
}

#[derive(Debug)]
struct Root {
    devices: Devices,
}

impl Inode for Root {
    fn id(&self) -> InodeId {
        InodeId {
            tree: 0,
            number: ROOT,
        }
    }

    fn attr(&self) -> Result<Attr> {
        Ok(attr(ROOT, FileKind::Directory, 0))
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        let files = DeviceFiles::new(self.devices.clone());
        if name.is_dot_or_dotdot() {
            return files.root();
        }
        let mut members = 0..self.devices.len();
        match members.find(|&member| file_name(member).as_bytes() == name.as_bytes()) {
            Some(member) => files.object(FIRST_FILE + member as u64),
            None => Err(Condition::NotFound.into()),
        }
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        for member in usize::try_from(from.0).unwrap_or(usize::MAX)..self.devices.len() {
            let name = file_name(member);
            let entry = DirEntry {
                name: Name::new(name.as_bytes())?,
                id: InodeId {
                    tree: 0,
                    number: FIRST_FILE + member as u64,
                },
                kind: Some(FileKind::Regular),
                next: DirCursor(member as u64 + 1),
            };
            if sink(entry) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Condition::InvalidArgument.into())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Condition::IsDirectory.into())
    }

    fn seek(&self, _: u64, _: SeekTarget) -> Result<u64> {
        Err(Condition::IsDirectory.into())
    }

    fn extents(&self, _: Range<u64>, _: &mut ExtentSink<'_>) -> Result<()> {
        Ok(())
    }

    fn get_xattr(&self, _: &[u8]) -> Result<Vec<u8>> {
        Err(Condition::NoAttribute.into())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
}

#[derive(Debug)]
struct DeviceFile {
    number: u64,
    device: Arc<dyn BlockDevice>,
}

impl DeviceFile {
    fn len(&self) -> u64 {
        self.device.geometry().len_bytes
    }
}

impl Inode for DeviceFile {
    fn id(&self) -> InodeId {
        InodeId {
            tree: 0,
            number: self.number,
        }
    }

    fn attr(&self) -> Result<Attr> {
        Ok(attr(self.number, FileKind::Regular, self.len()))
    }

    fn lookup(&self, _: Name<'_>) -> Result<Arc<dyn Inode>> {
        Err(Condition::NotDirectory.into())
    }

    fn read_dir(&self, _: DirCursor, _: &mut DirSink<'_>) -> Result<()> {
        Err(Condition::NotDirectory.into())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Condition::InvalidArgument.into())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = self.len().saturating_sub(offset);
        let length = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.device.read_at(offset, &mut buf[..length])?;
        Ok(length)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        if offset >= self.len() {
            return Err(Condition::NoSuchAddress.into());
        }
        Ok(match target {
            SeekTarget::Data => offset,
            SeekTarget::Hole => self.len(),
        })
    }

    fn extents(&self, _: Range<u64>, _: &mut ExtentSink<'_>) -> Result<()> {
        Ok(())
    }

    fn get_xattr(&self, _: &[u8]) -> Result<Vec<u8>> {
        Err(Condition::NoAttribute.into())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    /// Times are not kept; the size never changes.
    fn set_attr(&self, _: &Context, changes: &SetAttr) -> Result<Attr> {
        if changes.size_bytes.is_some_and(|size| size != self.len()) {
            return Err(Condition::NotPermitted.into());
        }
        self.attr()
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.device.write_at(offset, data)?)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        match mode {
            FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => {
                self.device.discard(range).map_err(IoError::into)
            }
            FallocateMode::Allocate { .. }
            | FallocateMode::CollapseRange
            | FallocateMode::InsertRange
            | FallocateMode::UnshareRange { .. } => Err(Condition::NotSupported.into()),
        }
    }

    fn sync(&self, _: bool) -> Result<()> {
        Ok(self.device.flush()?)
    }
}
