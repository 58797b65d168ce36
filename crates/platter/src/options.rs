//! Mount options that are the same for all filesystems, and the names of those that are not.

use std::fmt;
use std::time::Duration;

/// What to do about a journal or log that holds changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Replay it in memory. The image is not written.
    #[default]
    Replay,
    /// Leave it alone: what is read may be inconsistent (`norecovery`).
    Skip,
}

/// How a filesystem is maintained while it may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// What to do about corruption; `None` for what the filesystem asks for itself.
    pub on_error: Option<OnError>,
    /// How often changes are made durable without being asked, by a thread of the volume's own. `None`
    /// for never: then only syncing and unmounting does it, in the caller's thread.
    pub commit_interval: Option<Duration>,
    /// Whether contents of files may take the blocks that the filesystem reserves for the superuser:
    /// true where all writers are the superuser.
    pub uses_reserve: bool,
}

impl Default for WriteOptions {
    /// What the filesystem asks for, every five seconds, for any user.
    fn default() -> Self {
        Self {
            on_error: None,
            commit_interval: Some(Duration::from_secs(5)),
            uses_reserve: false,
        }
    }
}

/// What to do about corruption found while a filesystem may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Record it in the filesystem and continue.
    Continue,
    /// Record it and refuse all further changes.
    ReadOnly,
}

/// A mount option that only some filesystems have, as in `-o NAME[=VALUE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOption {
    /// The name of the option.
    pub name: String,
    /// What follows the `=`, if there is one.
    pub value: Option<String>,
}

impl MountOption {
    /// Reads `NAME` or `NAME=VALUE`.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        Self {
            name: name.to_owned(),
            value,
        }
    }
}

impl fmt::Display for MountOption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)?;
        match &self.value {
            Some(value) => write!(out, "={value}"),
            None => Ok(()),
        }
    }
}

/// Why a driver does not accept an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The filesystem has no such option.
    #[error("is not known")]
    Unknown,
    /// The kernel has it, and this driver does not.
    #[error("is not supported")]
    Unsupported,
    /// It takes other values.
    #[error("takes {0}")]
    Invalid(&'static str),
}

/// Options of the kernel that a driver knows by name only.
pub(crate) struct OtherOptions {
    /// About caches, the placing of data and speed, or about what is always so here: nothing is done about them.
    pub(crate) passed_over: &'static [&'static str],
    /// The same, with a number.
    pub(crate) with_size: &'static [&'static str],
    /// They ask for what is not done here.
    pub(crate) unsupported: &'static [&'static str],
}

impl OtherOptions {
    /// Accepts options about which nothing is done.
    pub(crate) fn check(&self, option: &MountOption) -> Result<(), OptionError> {
        let name = &*option.name;
        match option.value.as_deref() {
            _ if self.unsupported.contains(&name) => Err(OptionError::Unsupported),
            None if self.passed_over.contains(&name) => Ok(()),
            Some(_) if self.passed_over.contains(&name) => Err(OptionError::Invalid("no value")),
            Some(size) if self.with_size.contains(&name) && is_size(size) => Ok(()),
            _ if self.with_size.contains(&name) => Err(OptionError::Invalid("a number")),
            _ => Err(OptionError::Unknown),
        }
    }
}

/// Whether the kernel takes it for a number of bytes.
fn is_size(value: &str) -> bool {
    let digits = value.trim_end_matches(['K', 'k', 'M', 'm', 'G', 'g']);
    value.len() - digits.len() <= 1 && digits.parse::<u64>().is_ok()
}
