//! I/O errors with device, operation and location.

use std::{fmt, io, sync::Arc};

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Finding or opening the device itself.
    Open,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making completed writes durable.
    Flush,
    /// Discarding a range.
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// A failed request to a device.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{device}: {}: {source}", self.request())]
pub struct IoError {
    /// The device's name, see [`name`](crate::BlockDevice::name).
    pub device: Arc<str>,
    /// The operation that failed.
    pub operation: Operation,
    /// First byte of the request on the device.
    pub offset: u64,
    /// Length of the request in bytes.
    pub length: u64,
    /// The error of the layer below.
    pub source: Arc<io::Error>,
}

impl IoError {
    /// Wraps an error of the layer below.
    #[must_use]
    pub fn new(
        device: &Arc<str>,
        operation: Operation,
        offset: u64,
        length: u64,
        source: impl Into<io::Error>,
    ) -> Self {
        let source = Arc::new(source.into());
        Self {
            device: Arc::clone(device),
            operation,
            offset,
            length,
            source,
        }
    }

    /// Formats the request: the operation, and its location if it has one.
    fn request(&self) -> impl fmt::Display {
        fmt::from_fn(|out| {
            let Self {
                operation,
                offset,
                length,
                ..
            } = self;
            match operation {
                Operation::Open | Operation::Flush => write!(out, "{operation}"),
                Operation::Read | Operation::Write | Operation::Discard => {
                    write!(out, "{operation} of {length} bytes at byte {offset}")
                }
            }
        })
    }

    /// The error for a request that is not within the device.
    #[must_use]
    pub fn out_of_range(device: &Arc<str>, operation: Operation, offset: u64, length: u64) -> Self {
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device");
        Self::new(device, operation, offset, length, source)
    }

    /// The error for a write to a read-only device.
    #[must_use]
    pub fn read_only(device: &Arc<str>, operation: Operation, offset: u64, length: u64) -> Self {
        let source = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        Self::new(device, operation, offset, length, source)
    }
}
