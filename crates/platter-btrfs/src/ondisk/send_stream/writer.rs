//! Writing a stream.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use platter_block::{IoError, Operation};
use platter_vfs::{Condition, Result};
use zerocopy::IntoBytes;

use super::{Command, DiskCommandHeader, DiskStreamHeader, MAGIC, checksum};

/// Writes the commands of a stream.
pub struct StreamWriter<'w> {
    out: &'w mut dyn Write,
    name: Arc<str>,
    at: u64,
    version: u32,
    /// The attributes of the command that is written.
    attributes: Vec<u8>,
}

impl<'w> StreamWriter<'w> {
    /// Writes the header of a stream.
    pub fn begin(out: &'w mut dyn Write, version: u32) -> Result<Self> {
        let mut stream = Self {
            out,
            name: "send stream".into(),
            at: 0,
            version,
            attributes: Vec::new(),
        };
        let header = DiskStreamHeader {
            magic: MAGIC,
            version: version.into(),
        };
        stream.write(header.as_bytes())?;
        Ok(stream)
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Writes a command.
    ///
    /// # Errors
    /// `NameTooLong` for values that do not fit into an attribute; those of the output.
    pub fn put(&mut self, command: &Command<'_>) -> Result<()> {
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.clear();
        let kind = command.encode(&mut attributes, self.version);
        let len = u32::try_from(attributes.len()).ok();
        let (Some(kind), Some(len)) = (kind, len) else {
            return Err(Condition::NameTooLong.into());
        };
        let mut header = DiskCommandHeader {
            len_bytes: len.into(),
            kind: kind.into(),
            checksum: 0.into(),
        };
        header.checksum = checksum(header, &attributes).into();
        self.write(header.as_bytes())?;
        self.write(&attributes)?;
        self.attributes = attributes;
        Ok(())
    }

    /// How much was written.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.at
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let (at, len) = (self.at, bytes.len() as u64);
        let written = self.out.write_all(bytes);
        written.map_err(|error| IoError::new(&self.name, Operation::Write, at, len, error))?;
        self.at = at.saturating_add(len);
        Ok(())
    }
}

impl fmt::Debug for StreamWriter<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StreamWriter")
            .field("at", &self.at)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
