//! Reading a stream.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

use platter_block::{IoError, Operation};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result, Unsupported};
use zerocopy::{FromZeros, IntoBytes};

use super::{
    COMMAND_BYTES_MAX, Command, DiskCommandHeader, DiskStreamHeader, MAGIC, StreamRule,
    VERSION_MAX, checksum,
};

/// Reads the commands of a stream.
pub struct StreamReader<'r> {
    input: &'r mut dyn Read,
    name: Arc<str>,
    /// How much was read.
    at: u64,
    version: u32,
    place: Place,
    /// The attributes of the last command.
    attributes: Vec<u8>,
}

/// Where in a stream the next command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// After the header: no subvolume was named.
    Beginning,
    /// In a subvolume that was named.
    Subvolume,
    /// After the end of the stream.
    End,
}

impl<'r> StreamReader<'r> {
    /// Reads the header of a stream. `None` if there is no stream any more.
    ///
    /// # Errors
    /// `Unsupported` for a version that is not known.
    pub fn begin(input: &'r mut dyn Read) -> Result<Option<Self>> {
        let mut stream = Self {
            input,
            name: "send stream".into(),
            at: 0,
            version: 0,
            place: Place::Beginning,
            attributes: Vec::new(),
        };
        Ok(stream.next_stream()?.then_some(stream))
    }

    /// Reads the header of a stream that has to be there.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin); `Corrupt` where there is none.
    pub fn open(input: &'r mut dyn Read) -> Result<Self> {
        Self::begin(input)?.ok_or_else(|| corrupt(0, StreamRule::Truncated))
    }

    /// Reads the header of a stream that follows the end of one. Returns whether there is one.
    pub fn next_stream(&mut self) -> Result<bool> {
        let mut header = DiskStreamHeader::new_zeroed();
        let begun = self.at;
        let filled = self.fill(header.as_mut_bytes());
        // What ends within a header may not be one.
        let count = usize::try_from(self.at.saturating_sub(begun)).unwrap_or(usize::MAX);
        let mut both = header.magic.iter().zip(&MAGIC).take(count);
        if both.any(|(found, expected)| found != expected) {
            return Err(self.corrupt(StreamRule::Magic));
        }
        if !filled? {
            return Ok(false);
        }
        self.version = header.version.get();
        if !(1..=VERSION_MAX).contains(&self.version) {
            let feature = format!("send stream version {}", self.version);
            return Err(Unsupported {
                filesystem: "btrfs",
                feature,
                reason: None,
            }
            .into());
        }
        self.place = Place::Beginning;
        Ok(true)
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The next command; `None` after [`Command::End`], which each stream has once, after its last subvolume.
    pub fn next_command(&mut self) -> Result<Option<Command<'_>>> {
        let mut header = DiskCommandHeader::new_zeroed();
        if !self.fill(header.as_mut_bytes())? {
            if self.place != Place::End {
                return Err(self.corrupt(StreamRule::Truncated));
            }
            return Ok(None);
        }
        let len = usize::try_from(header.len_bytes.get()).unwrap_or(usize::MAX);
        if len > COMMAND_BYTES_MAX {
            return Err(self.corrupt(StreamRule::CommandSize));
        }
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.resize(len, 0);
        if len > 0 && !self.fill(&mut attributes)? {
            return Err(self.corrupt(StreamRule::Truncated));
        }
        self.attributes = attributes;
        if checksum(header, &self.attributes) != header.checksum.get() {
            return Err(self.corrupt(StreamRule::Checksum));
        }
        let command = Command::decode(header.kind.get(), &self.attributes, self.version);
        let command = command.map_err(|rule| corrupt(self.at, rule))?;
        if let Command::Subvolume { .. } | Command::Snapshot { .. } = command {
            self.place = Place::Subvolume;
        } else if command == Command::End {
            self.place = Place::End;
        } else if self.place != Place::Subvolume {
            return Err(corrupt(self.at, StreamRule::Order));
        }
        Ok(Some(command))
    }

    fn corrupt(&self, rule: StreamRule) -> Error {
        corrupt(self.at, rule)
    }

    /// Fills `bytes`. Returns `false` if nothing is left.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool> {
        let mut done = 0;
        while let Some(left) = bytes.get_mut(done..).filter(|left| !left.is_empty()) {
            match self.input.read(left) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(self.corrupt(StreamRule::Truncated)),
                Ok(count) => {
                    done = done.saturating_add(count);
                    self.at = self.at.saturating_add(count as u64);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let len = left.len() as u64;
                    let error = IoError::new(&self.name, Operation::Read, self.at, len, error);
                    return Err(error.into());
                }
            }
        }
        Ok(true)
    }
}

fn corrupt(at: u64, rule: StreamRule) -> Error {
    Corrupt::new(Locus::UNKNOWN.at_offset(at), rule).into()
}

impl fmt::Debug for StreamReader<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StreamReader")
            .field("at", &self.at)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
