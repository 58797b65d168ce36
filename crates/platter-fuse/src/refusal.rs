//! Errors of a mounted filesystem that its answers describe in words.

use rustix::io::Errno;

/// An error of a mounted filesystem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The number of the error.
    pub errno: Errno,
    /// The error in words.
    pub message: String,
}

impl Refusal {
    /// The error that an answer has.
    ///
    /// # Errors
    /// `EPROTO` for what is no number of an error.
    pub(crate) fn decode(errno: u32, message: &[u8]) -> Result<Self, Errno> {
        let errno = i32::try_from(errno).map_err(|_| Errno::PROTO)?;
        Ok(Self {
            errno: Errno::from_raw_os_error(errno),
            message: String::from_utf8_lossy(message).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_decoded() {
        let refusal = Refusal::decode(1, b"not now").unwrap();
        assert_eq!(refusal.errno, Errno::PERM);
        assert_eq!(refusal.to_string(), "not now");
        assert_eq!(Refusal::decode(u32::MAX, b""), Err(Errno::PROTO));
    }
}
