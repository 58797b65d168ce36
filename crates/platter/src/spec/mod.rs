//! `IMAGE[@PARTITION][:PATH]`: how a filesystem, or a file in it, is named on a command line.

mod partition;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use partition::PartitionSelector;

use crate::Escaped;
use crate::host_file::HostFileId;

/// Names an image, perhaps a partition of it, perhaps a file in that.
///
/// # Parsing
/// File names may hold `:` and `@` themselves, so the text alone does not say where the image's
/// name ends. The rule: of all prefixes that end at a `:`, at an `@`, or with the text, the
/// longest that names an existing file other than a directory is the image. What follows must
/// then be empty, `@PARTITION`, `:PATH`, or `@PARTITION:PATH`.
///
/// Where no prefix exists, the image ends at the first `:`, and the part before that is cut at
/// its last `@` if a partition selector follows it. So an image that does not exist yet is still
/// read the same way every time.
///
/// When `disk` and `disk:x` both exist, `disk:x` is the second; `disk:/x` reaches into the first.
/// `PATH` always counts from the root of the filesystem, with or without a leading slash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// The image file or device.
    pub image: PathBuf,
    /// Which partition; the whole image without one.
    pub partition: Option<PartitionSelector>,
    /// The path in the filesystem, if one was given; may be empty, which means the root.
    pub path: Option<Vec<u8>>,
}

/// Why a text is no [`ImageSpec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no image name.
    #[error("the name of the image is empty")]
    EmptyImage,
    /// What follows the `@` selects no partition.
    #[error(
        "'{}' is no partition: give its number, PARTUUID=UUID or PARTLABEL=NAME",
        Escaped(.0)
    )]
    BadPartition(Vec<u8>),
}

impl ImageSpec {
    /// A whole image.
    pub fn new(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            partition: None,
            path: None,
        }
    }

    /// Reads `text`, looking at which files exist; see the type for the rule.
    pub fn parse(text: impl AsRef<OsStr>) -> Result<Self, SpecError> {
        Self::parse_with(text.as_ref(), is_image_file)
    }

    /// As [`parse`](Self::parse), with `exists` to say which paths can be images.
    pub fn parse_with(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Result<Self, SpecError> {
        let bytes = text.as_bytes();
        let ends = (0..=bytes.len())
            .rev()
            .filter(|&end| matches!(bytes.get(end), None | Some(b':' | b'@')));
        for end in ends {
            let (image, rest) = bytes.split_at(end);
            if !image.is_empty() && exists(Path::new(OsStr::from_bytes(image))) {
                return Self::from_parts(image, rest);
            }
        }
        Self::parse_unseen(bytes)
    }

    /// Whether `text` can only mean something in an image: it names a path, and what comes before
    /// it exists as a file.
    #[must_use]
    pub fn is_inside_image(text: &OsStr) -> bool {
        Self::parse(text).is_ok_and(|spec| spec.path.is_some() && is_image_file(&spec.image))
    }

    /// The same image and partition, with another path.
    #[must_use]
    pub fn with_path(&self, path: impl Into<Vec<u8>>) -> Self {
        Self {
            path: Some(path.into()),
            ..self.clone()
        }
    }

    /// Whether both name the same file or device, however they spell it, and the same partition.
    #[must_use]
    pub fn is_same_image(&self, other: &Self) -> bool {
        let is_same_file = || {
            let file = |spec: &Self| HostFileId::at(&spec.image).ok();
            file(self).is_some_and(|found| file(other) == Some(found))
        };
        self.partition == other.partition && (self.image == other.image || is_same_file())
    }

    /// The path, or the root if none was given.
    #[must_use]
    pub fn path_or_root(&self) -> &[u8] {
        match &self.path {
            Some(path) if !path.is_empty() => path,
            _ => b"/",
        }
    }

    fn parse_unseen(bytes: &[u8]) -> Result<Self, SpecError> {
        let colon = bytes.iter().position(|&byte| byte == b':');
        let head = &bytes[..colon.unwrap_or(bytes.len())];
        let at = head.iter().rposition(|&byte| byte == b'@');
        let cut = at.filter(|&at| PartitionSelector::parse(&head[at + 1..]).is_some());
        let (image, rest) = bytes.split_at(cut.unwrap_or(head.len()));
        Self::from_parts(image, rest)
    }

    /// `rest` is empty or begins with `:` or `@`.
    fn from_parts(image: &[u8], rest: &[u8]) -> Result<Self, SpecError> {
        if image.is_empty() {
            return Err(SpecError::EmptyImage);
        }
        let colon = rest.iter().position(|&byte| byte == b':');
        let (selector, path) = match colon {
            Some(colon) => (&rest[..colon], Some(rest[colon + 1..].to_vec())),
            None => (rest, None),
        };
        let partition = match selector.strip_prefix(b"@") {
            None => None,
            Some(selector) => Some(
                PartitionSelector::parse(selector)
                    .ok_or_else(|| SpecError::BadPartition(selector.to_vec()))?,
            ),
        };
        Ok(Self {
            image: PathBuf::from(OsString::from_vec(image.to_vec())),
            partition,
            path,
        })
    }
}

fn is_image_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_dir())
}

impl FromStr for ImageSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse(text)
    }
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", Escaped(self.image.as_os_str().as_bytes()))?;
        if let Some(partition) = &self.partition {
            write!(out, "@{partition}")?;
        }
        if let Some(path) = &self.path {
            write!(out, ":{}", Escaped(path))?;
        }
        Ok(())
    }
}
