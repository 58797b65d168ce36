//! Requests for send streams, and their pieces.

use platter_vfs::subvolumes::SendOptions;
use rustix::io::Errno;
use zerocopy::FromZeros;

use super::structures::{CLONE_SOURCES_MAX, ENDED, SendPiece, SendStart};

/// The stream is what differs from a parent.
const HAS_PARENT: u32 = 1 << 0;
/// Compressed extents are sent as they are stored.
const COMPRESSED: u32 = 1 << 1;
/// Data is left out.
const NO_DATA: u32 = 1 << 2;

impl SendStart {
    /// A request.
    ///
    /// # Errors
    /// `E2BIG` for more clone sources than it can have.
    pub(crate) fn new(options: &SendOptions) -> Result<Self, Errno> {
        let sources = &options.clone_sources;
        let mut start = Self {
            version: options.version.unwrap_or_default(),
            parent: options.parent.unwrap_or_default(),
            count: sources.len() as u64,
            ..Self::new_zeroed()
        };
        for (flag, is_set) in [
            (HAS_PARENT, options.parent.is_some()),
            (COMPRESSED, options.compressed),
            (NO_DATA, options.no_data),
        ] {
            if is_set {
                start.flags |= flag;
            }
        }
        let places = start.clone_sources.get_mut(..sources.len());
        places.ok_or(Errno::TOOBIG)?.copy_from_slice(sources);
        Ok(start)
    }

    /// What it asks for.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for flags that are not known; `EINVAL` for more clone sources than it has.
    pub(crate) fn options(&self) -> Result<SendOptions, Errno> {
        if self.flags & !(HAS_PARENT | COMPRESSED | NO_DATA) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let has = |flag| self.flags & flag != 0;
        let count = usize::try_from(self.count).unwrap_or(CLONE_SOURCES_MAX + 1);
        let sources = self.clone_sources.get(..count).ok_or(Errno::INVAL)?;
        Ok(SendOptions {
            parent: has(HAS_PARENT).then_some(self.parent),
            clone_sources: sources.to_vec(),
            version: Some(self.version).filter(|&version| version > 0),
            compressed: has(COMPRESSED),
            no_data: has(NO_DATA),
            cancellation: None,
        })
    }
}

impl SendPiece {
    /// A request for the next piece of a stream, of which so many bytes were returned.
    pub(crate) fn request(stream: u64, offset: u64) -> Self {
        Self {
            stream,
            offset,
            ..Self::new_zeroed()
        }
    }

    /// Whether nothing follows.
    pub(crate) fn is_last(&self) -> bool {
        self.flags & ENDED != 0
    }

    /// Puts as many bytes into it as there is space for. Returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let at = (self.count as usize).min(self.bytes.len());
        let space = &mut self.bytes[at..];
        let added = bytes.len().min(space.len());
        space[..added].copy_from_slice(&bytes[..added]);
        self.count = u32::try_from(at + added).unwrap_or_default();
        added
    }

    /// Its bytes.
    ///
    /// # Errors
    /// `EPROTO` where it says that it has more than fit.
    pub(crate) fn bytes(&self) -> Result<&[u8], Errno> {
        let bytes = self.bytes.get(..self.count as usize);
        bytes.ok_or(Errno::PROTO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_streams_are_what_they_were() {
        for options in [
            SendOptions::default(),
            SendOptions {
                parent: Some(256),
                clone_sources: (257..257 + CLONE_SOURCES_MAX as u64).collect(),
                version: Some(2),
                compressed: true,
                ..SendOptions::default()
            },
            SendOptions {
                no_data: true,
                ..SendOptions::default()
            },
        ] {
            let found = SendStart::new(&options).unwrap().options().unwrap();
            assert_eq!(format!("{found:?}"), format!("{options:?}"));
        }
    }

    #[test]
    fn requests_for_streams_are_within_their_limits() {
        let many = SendOptions {
            clone_sources: vec![256; CLONE_SOURCES_MAX + 1],
            ..SendOptions::default()
        };
        assert_eq!(SendStart::new(&many).map(drop), Err(Errno::TOOBIG));
        for count in [CLONE_SOURCES_MAX as u64 + 1, u64::MAX] {
            let mut forged = SendStart::new_zeroed();
            forged.count = count;
            assert_eq!(forged.options().map(drop), Err(Errno::INVAL));
        }
        let mut unknown = SendStart::new_zeroed();
        unknown.flags = 1 << 3;
        assert_eq!(unknown.options().map(drop), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn pieces_have_what_fits() {
        let mut piece = SendPiece::request(1, 0);
        assert_eq!(piece.fill(b"one"), 3);
        assert_eq!(piece.fill(&vec![7; 20_000]), piece.bytes.len() - 3);
        assert_eq!(piece.fill(b"more"), 0);
        let bytes = piece.bytes().unwrap();
        assert_eq!((bytes.len(), &bytes[..4]), (16344, &b"one\x07"[..]));
        piece.count += 1;
        assert_eq!(piece.bytes(), Err(Errno::PROTO));
    }
}
