//! A request: its header, and its body in one part or two.

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::protocol::InHeader;
use crate::server::{Answer, Caller};

/// A request as received by the transport.
#[derive(Clone, Copy)]
pub(super) struct Request<'b> {
    pub(super) header: InHeader,
    pub(super) body: Body<'b>,
}

impl<'b> Request<'b> {
    /// Decodes a request from contiguous bytes.
    pub(super) fn whole(bytes: &'b [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        Some(Self::parts(header, body, &[]))
    }

    /// Assembles a request from header, its structure if any, and the rest.
    pub(super) fn parts(header: InHeader, structure: &'b [u8], rest: &'b [u8]) -> Self {
        Self {
            header,
            body: Body { structure, rest },
        }
    }
}

/// The body of a request, contiguous or with its structure apart.
#[derive(Clone, Copy)]
pub(super) struct Body<'b> {
    structure: &'b [u8],
    rest: &'b [u8],
}

impl<'b> Body<'b> {
    /// Returns the current part. No structure or name spans both parts.
    fn next(&mut self) -> &mut &'b [u8] {
        if self.structure.is_empty() {
            &mut self.rest
        } else {
            &mut self.structure
        }
    }

    /// Reads a structure.
    pub(super) fn take<T: FromBytes>(&mut self) -> Answer<T> {
        let next = self.next();
        let (structure, rest) = T::read_from_prefix(next).map_err(|_| Errno::INVAL)?;
        *next = rest;
        Ok(structure)
    }

    /// Reads a name up to its terminating NUL.
    pub(super) fn name(&mut self) -> Answer<&'b [u8]> {
        let next = self.next();
        let end = next.iter().position(|&byte| byte == 0);
        let (name, rest) = next.split_at(end.ok_or(Errno::INVAL)?);
        *next = &rest[1..];
        Ok(name)
    }

    pub(super) fn bytes(&mut self, count: u32) -> Answer<&'b [u8]> {
        let next = self.next();
        let (bytes, rest) = next.split_at_checked(count as usize).ok_or(Errno::INVAL)?;
        *next = rest;
        Ok(bytes)
    }
}

impl Caller {
    /// Returns the credentials in the header of a request.
    pub(super) fn of(header: &InHeader) -> Self {
        Self {
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::transport::protocol::{LinkIn, ReadIn};

    #[test]
    fn request_in_two_parts_equals_contiguous_one() {
        let mut bytes = Vec::from(InHeader::new_zeroed().as_bytes());
        bytes.extend([7; 16]);
        bytes.extend(b"from\0to\0");
        let (head, rest) = bytes.split_at(56);
        let parts = Request::parts(InHeader::new_zeroed(), &head[40..], rest);
        for request in [Request::whole(&bytes).unwrap(), parts] {
            let mut body = request.body;
            let structure: LinkIn = body.take().unwrap();
            assert_eq!(structure.node, 0x0707_0707_0707_0707);
            let _: LinkIn = body.take().unwrap();
            assert_eq!(body.name(), Ok(&b"from"[..]));
            assert_eq!(body.bytes(3), Ok(&b"to\0"[..]));
            assert!(body.name().is_err());
        }
    }

    #[test]
    fn truncated_requests_are_refused() {
        let request = |bytes: &'static [u8]| Request::parts(InHeader::new_zeroed(), bytes, &[]);
        let mut body = request(b"name without end").body;
        assert!(body.name().is_err());
        assert!(body.bytes(17).is_err());
        assert!(body.take::<ReadIn>().is_err());
        assert_eq!(request(b"a\0b\0").body.name(), Ok(&b"a"[..]));
        assert!(Request::whole(&[0; 39]).is_none());
    }
}
