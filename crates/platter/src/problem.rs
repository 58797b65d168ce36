//! Something that does not come out of an image as it should, while everything else does.

use std::fmt;
use std::sync::Arc;

use crate::{Cause, Error, Escaped};

/// What a problem did to the copy of a file, in an archive or on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It is not there, nor is what would be below it.
    Omitted,
    /// Some entries of the directory are not there.
    EntriesLost,
    /// So many bytes of the contents are zeros.
    ZeroFilled {
        /// How many bytes at least.
        bytes: u64,
    },
    /// Some of the attributes are not there.
    AttributesLost,
    /// A socket, which an archive cannot hold. No corruption.
    SocketIgnored,
}

impl fmt::Display for Effect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Omitted => out.write_str("left out"),
            Self::EntriesLost => out.write_str("some entries left out"),
            Self::ZeroFilled { bytes } => write!(out, "{bytes} bytes filled with zeros"),
            Self::AttributesLost => out.write_str("some attributes left out"),
            Self::SocketIgnored => out.write_str("socket ignored"),
        }
    }
}

/// Something that is not as it should be.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The image, escaped; empty for what happened on the host.
    pub image: Arc<str>,
    /// The path of the file there.
    pub path: Vec<u8>,
    /// What the problem did to the copy of the file.
    pub effect: Effect,
    /// Why; nothing for what is no corruption.
    pub cause: Option<Cause>,
}

impl Problem {
    /// Whether something is missing that could be there.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        self.cause.is_some()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = &self.cause else {
            let colon = if self.image.is_empty() { "" } else { ":" };
            return write!(
                out,
                "{}{colon}{}: {}",
                self.image,
                Escaped(&self.path),
                self.effect
            );
        };
        let error = Error::at_path(&self.image, &self.path, cause.clone());
        write!(out, "{error} ({})", self.effect)
    }
}
