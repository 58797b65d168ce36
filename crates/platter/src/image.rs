//! An image or a part of one, opened and not yet mounted.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter_block::partition::{Fault, read_table};
use platter_block::{
    Access, BlockDevice, FileDevice, IoError, MemoryDevice, OpenError, PartitionTable,
    PartitionView, TableError,
};

use platter_vfs::Condition;

use crate::host_file::HostFileId;
use crate::signature::SIGNATURE_LEN_BYTES;
use crate::spec::{ImageSpec, PartitionSelector};
use crate::{Cause, Error, Escaped, Format, Result};

/// The bytes of an image, a partition, or a stretch of one, under the name that errors give it.
#[derive(Debug, Clone)]
pub struct Image {
    name: Arc<str>,
    device: Arc<dyn BlockDevice>,
    /// The open file below, where it is one.
    file: Option<Arc<FileDevice>>,
}

impl Image {
    /// Opens an image file or a block device for reading.
    ///
    /// With [`Access::Read`], a writer elsewhere is refused while it is open, and one that is
    /// there already makes this fail.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let file = open_file(path, access, FileDevice::open)?;
        Ok(Self::of_file(path, Arc::new(file)))
    }

    /// Opens an image of which a partition is going to be used, and that alone is locked.
    pub(crate) fn open_parts(path: &Path, access: Access) -> Result<Self> {
        let file = open_file(path, access, FileDevice::open_parts)?;
        Ok(Self::of_file(path, Arc::new(file)))
    }

    fn of_file(path: &Path, file: Arc<FileDevice>) -> Self {
        Self {
            file: Some(Arc::clone(&file)),
            ..Self::new(Self::name_of(path), file)
        }
    }

    /// An image in a file that is open already: received from another process, without a name, or below a
    /// directory of the caller. It is locked as by [`open`](Self::open).
    ///
    /// ```
    /// # let file = tempfile::tempfile().unwrap();
    /// # file.set_len(4 << 20).unwrap();
    /// use platter::block::Access;
    /// use platter::{FormatOptions, Image};
    /// let image = Image::from_file(file, Access::Write)?;
    /// FormatOptions::default().format(&image)?;
    /// # Ok::<(), platter::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EBADF` if the file is not open for that access, `EINVAL` if it is open for appending.
    pub fn from_file(file: std::fs::File, access: Access) -> Result<Self> {
        let file = FileDevice::from_file(file, access);
        let file = file.map_err(|error| Error::new(&"".into(), IoError::from(error)))?;
        Ok(Self::of_file(
            Path::new(&*Arc::clone(file.name())),
            Arc::new(file),
        ))
    }

    /// The open file below, where it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<FileDevice>> {
        self.file.as_ref()
    }

    /// The files of the host that it lies in, as far as they are known.
    pub(crate) fn host_files(&self) -> Vec<HostFileId> {
        self.file
            .as_deref()
            .map(HostFileId::below)
            .unwrap_or_default()
    }

    /// What errors call the image at a path of the host.
    pub(crate) fn name_of(path: &Path) -> Arc<str> {
        Escaped(path.as_os_str().as_bytes()).to_string().into()
    }

    /// Opens the image and the partition that `spec` names. Other partitions may be used by others at
    /// the same time.
    pub fn open_spec(spec: &ImageSpec, access: Access) -> Result<Self> {
        match &spec.partition {
            Some(partition) => Self::open_parts(&spec.image, access)?.partition(partition),
            None => Self::open(&spec.image, access),
        }
    }

    /// An image on any device.
    pub fn new(name: impl Into<Arc<str>>, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            name: name.into(),
            device,
            file: None,
        }
    }

    /// A disk in memory that holds zeros.
    #[must_use]
    pub fn in_memory(len_bytes: usize) -> Self {
        Self::from_bytes(vec![0; len_bytes])
    }

    /// A disk in memory that holds `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::new("memory", Arc::new(MemoryDevice::new("memory", bytes)))
    }

    /// Returns all bytes of the image as they are now. Changes of a volume are there once it is closed.
    ///
    /// # Errors
    /// `FileTooLarge` for more than there is memory for.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let len_bytes = self.device.geometry().len_bytes;
        let too_large = || {
            let condition = platter_vfs::Error::from(Condition::FileTooLarge);
            Error::new(&self.name, condition)
        };
        let len_bytes = usize::try_from(len_bytes).map_err(|_| too_large())?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len_bytes)
            .map_err(|_| too_large())?;
        bytes.resize(len_bytes, 0);
        let read = self.device.read_at(0, &mut bytes);
        read.map_err(|error| Error::new(&self.name, error))?;
        Ok(bytes)
    }

    /// The same image, on another device that leads to the same bytes.
    pub(crate) fn on(&self, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            device,
            ..self.clone()
        }
    }

    /// The name of the image in errors, escaped.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the partition that `selector` selects, locked if the file is not as a whole.
    pub fn partition(&self, selector: &PartitionSelector) -> Result<Self> {
        let table = match self.partition_table() {
            Ok(Some(table)) => table,
            read => {
                // What has to be converted or opened first says so itself.
                if let Some(format) = self.format()?.filter(|format| format.is_wrapped()) {
                    return Err(Error::new(&self.name, Cause::UnsupportedFormat { format }));
                }
                read?;
                return Err(Error::new(&self.name, Cause::NotPartitioned));
            }
        };
        let number = selector.find(&table).ok_or_else(|| {
            let partitions = self.probe_table(table.clone()).to_string();
            Error::new(&self.name, Cause::NoSuchPartition { partitions })
        })?;
        if let (Some(file), Some(partition)) = (&self.file, table.get(number)) {
            file.lock_part(&partition.range)
                .map_err(|error| Error::new(&self.name, IoError::from(error)))?;
        }
        self.partition_of(&table, number)
    }

    /// The partition of this number, as much of it as the device holds.
    pub(crate) fn partition_of(&self, table: &PartitionTable, number: u32) -> Result<Self> {
        let name = format!("{}@{number}", self.name);
        let end = self.device.geometry().len_bytes;
        let truncated = table.get(number).filter(|partition| {
            partition.fault == Some(Fault::BeyondEnd) && partition.range.start < end
        });
        let device = Arc::clone(&self.device);
        let view = match truncated {
            Some(partition) => PartitionView::new(&name, device, partition.range.start..end)
                .map_err(|error| Error::new(&self.name, error))?,
            None => table
                .open(device, number)
                .map_err(|error| self.table_error(error))?,
        };
        Ok(Self {
            name: name.into(),
            ..self.on(Arc::new(view))
        })
    }

    /// Returns the part of the image that begins at `offset`, in bytes.
    pub fn at_offset(&self, offset: u64) -> Result<Self> {
        let end = self.device.geometry().len_bytes;
        let range = offset.min(end)..end;
        if range.is_empty() {
            let cause = Cause::OffsetBeyondEnd {
                offset,
                len_bytes: end,
            };
            return Err(Error::new(&self.name, cause));
        }
        let view = PartitionView::new(&self.name, Arc::clone(&self.device), range)
            .map_err(|error| Error::new(&self.name, error))?;
        Ok(self.on(Arc::new(view)))
    }

    /// The partition table, if there is one.
    pub fn partition_table(&self) -> Result<Option<PartitionTable>> {
        read_table(&*self.device).map_err(|error| self.table_error(error))
    }

    /// Returns the format that the first bytes show; `None` for none that is known.
    pub fn format(&self) -> Result<Option<Format>> {
        let length = self.device.geometry().len_bytes;
        let length = length.min(SIGNATURE_LEN_BYTES as u64);
        let mut head = vec![0; usize::try_from(length).unwrap_or(SIGNATURE_LEN_BYTES)];
        self.device
            .read_at(0, &mut head)
            .map_err(|error| Error::new(&self.name, error))?;
        Ok(Format::identify(&head))
    }

    pub(crate) fn table_error(&self, error: TableError) -> Error {
        let cause = match error {
            TableError::Io(error) => Cause::from(error),
            TableError::Corrupt { corruption, .. } => Cause::CorruptTable { corruption },
            TableError::NoSuchPartition { .. } => {
                let partitions = String::new();
                Cause::NoSuchPartition { partitions }
            }
            TableError::Unusable { number, fault, .. } => {
                Cause::UnusablePartition { number, fault }
            }
        };
        Error::new(&self.name, cause)
    }
}

fn open_file(
    path: &Path,
    access: Access,
    open: impl Fn(&Path, platter_block::OpenOptions) -> Result<FileDevice, OpenError>,
) -> Result<FileDevice> {
    let options = platter_block::OpenOptions {
        access,
        ..platter_block::OpenOptions::default()
    };
    open(path, options).map_err(|error| Error::new(&Image::name_of(path), IoError::from(error)))
}
