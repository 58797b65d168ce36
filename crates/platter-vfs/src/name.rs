//! One component of a path: bytes, never empty, never with a slash or a NUL.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use crate::{Condition, Result};

/// The longest name in bytes (`NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// An owned file name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameBuf(Box<[u8]>);

/// A borrowed, valid file name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Takes `bytes` as a name.
    ///
    /// # Errors
    /// `NotFound` for an empty name, `NameTooLong` beyond [`NAME_LEN_MAX`], `InvalidArgument` for
    /// a slash or NUL in it. `.` and `..` are names.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Condition::NotFound.into());
        }
        if bytes.len() > NAME_LEN_MAX {
            return Err(Condition::NameTooLong.into());
        }
        if bytes.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(Condition::InvalidArgument.into());
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// An owned copy.
    #[must_use]
    pub fn to_owned(self) -> NameBuf {
        NameBuf(self.0.into())
    }

    /// `.` or `..`.
    #[must_use]
    pub fn is_dot_or_dotdot(self) -> bool {
        matches!(self.0, b"." | b"..")
    }
}

impl NameBuf {
    /// The name, borrowed.
    #[must_use]
    pub fn as_name(&self) -> Name<'_> {
        Name(&self.0)
    }
}

impl Deref for Name<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl Deref for NameBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for NameBuf {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for NameBuf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_name().fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_once() {
        assert!(Name::new(b"a\xff b").is_ok());
        assert!(Name::new(b"..").is_ok());
        for (bytes, condition) in [
            (&b""[..], Condition::NotFound),
            (&[b'a'; 256], Condition::NameTooLong),
            (b"a/b", Condition::InvalidArgument),
            (b"a\0b", Condition::InvalidArgument),
        ] {
            let error = Name::new(bytes).unwrap_err();
            assert!(matches!(error, crate::Error::Condition(found) if found == condition));
        }
    }
}
