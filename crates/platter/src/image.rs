//! An image or a part of one, opened and not yet mounted.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter_block::partition::{Fault, read_table};
use platter_block::{
    Access, BlockDevice, FileDevice, IoError, PartitionTable, TableError, WindowDevice,
};

use crate::signature::SIGNATURE_LEN_BYTES;
use crate::spec::{ImageSpec, PartitionSelector};
use crate::{Cause, Error, Escaped, Format, Result};

/// The bytes of an image, a partition, or a stretch of one, under the name that errors give it.
#[derive(Debug, Clone)]
pub struct Image {
    name: Arc<str>,
    device: Arc<dyn BlockDevice>,
}

impl Image {
    /// Opens an image file or a block device for reading.
    ///
    /// With [`Access::Read`], a writer elsewhere is refused while it is open, and one that is
    /// there already makes this fail.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let name = Self::name_of(path);
        let options = platter_block::OpenOptions {
            access,
            ..platter_block::OpenOptions::default()
        };
        let device = FileDevice::open(path, options)
            .map_err(|error| Error::new(&name, IoError::from(error)))?;
        Ok(Self::new(name, Arc::new(device)))
    }

    /// What errors call the image at a path of the host.
    pub(crate) fn name_of(path: &Path) -> Arc<str> {
        Escaped(path.as_os_str().as_bytes()).to_string().into()
    }

    /// Opens the image and the partition that `spec` names.
    pub fn open_spec(spec: &ImageSpec, access: Access) -> Result<Self> {
        let image = Self::open(&spec.image, access)?;
        match &spec.partition {
            Some(partition) => image.partition(partition),
            None => Ok(image),
        }
    }

    /// An image on any device.
    pub fn new(name: impl Into<Arc<str>>, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            name: name.into(),
            device,
        }
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// What `selector` selects of the partition table.
    pub fn partition(&self, selector: &PartitionSelector) -> Result<Self> {
        let table = self
            .partition_table()?
            .ok_or_else(|| Error::new(&self.name, Cause::NotPartitioned))?;
        let number = selector.find(&table).ok_or_else(|| {
            let partitions = self.probe_table(table.clone()).to_string();
            Error::new(&self.name, Cause::NoSuchPartition { partitions })
        })?;
        self.partition_of(&table, number)
    }

    /// The partition of this number, as much of it as the device holds.
    pub(crate) fn partition_of(&self, table: &PartitionTable, number: u32) -> Result<Self> {
        let name = format!("{}@{number}", self.name);
        let end = self.device.geometry().len_bytes;
        let cut_off = table.get(number).filter(|partition| {
            partition.fault == Some(Fault::BeyondEnd) && partition.range.start < end
        });
        let device = Arc::clone(&self.device);
        let window = match cut_off {
            Some(partition) => WindowDevice::new(&name, device, partition.range.start..end)
                .map_err(|error| Error::new(&self.name, error))?,
            None => table
                .open(device, number)
                .map_err(|error| self.table_error(error))?,
        };
        Ok(Self::new(name, Arc::new(window)))
    }

    /// What begins `offset` bytes into it.
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
        let window = WindowDevice::new(&self.name, Arc::clone(&self.device), range)
            .map_err(|error| Error::new(&self.name, error))?;
        Ok(Self::new(Arc::clone(&self.name), Arc::new(window)))
    }

    /// The partition table, if there is one.
    pub fn partition_table(&self) -> Result<Option<PartitionTable>> {
        read_table(&*self.device).map_err(|error| self.table_error(error))
    }

    /// What the first bytes say it is.
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
            TableError::Damaged { damage, .. } => Cause::DamagedTable { damage },
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
