//! An I/O error with the device, the operation and the place it happened at.

use std::{fmt, io, sync::Arc};

/// What was asked of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Finding or opening the device itself.
    Open,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making earlier writes durable.
    Flush,
    /// Giving a range back.
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

/// A device that could not do what it was asked for.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{device}: {}: {source}", self.request())]
pub struct IoError {
    /// The device's name, as its [`name`](crate::BlockDevice::name) gives it.
    pub device: Arc<str>,
    /// What was asked.
    pub operation: Operation,
    /// First byte of the request on the device.
    pub offset: u64,
    /// Length of the request in bytes.
    pub length: u64,
    /// What the layer below said.
    pub source: Arc<io::Error>,
}

impl IoError {
    /// Wraps the answer of the layer below.
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

    /// The request in words: what, and where it has a place.
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

    /// The request does not lie within the device.
    #[must_use]
    pub fn out_of_range(device: &Arc<str>, operation: Operation, offset: u64, length: u64) -> Self {
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device");
        Self::new(device, operation, offset, length, source)
    }

    /// The device does not take writes.
    #[must_use]
    pub fn read_only(device: &Arc<str>, operation: Operation, offset: u64, length: u64) -> Self {
        let source = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        Self::new(device, operation, offset, length, source)
    }
}
