//! The ioctls that reach a FUSE filesystem: inode flags and projects, as `chattr` and `lsattr` use
//! them. See `linux/fs.h`.

#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use platter_vfs::SetAttr;
use rustix::io::Errno;

use super::{Answer, Caller, Server};
use crate::Operation;
use crate::node::NodeId;

/// `FS_IOC_GETFLAGS`, and how the kernel asks for it on behalf of a 32-bit program.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// `FS_IOC_SETFLAGS`, likewise.
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// `FS_IOC_FSGETXATTR`.
const GET_XFLAGS: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const SET_XFLAGS: u32 = 0x401c_5820;

/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;
/// Where in it the project lies.
const FSXATTR_PROJECT: usize = 12;

/// `FS_*_FL` flags and their `FS_XFLAG_*` counterparts.
const XFLAGS: [(u32, u32); 7] = [
    (0x0000_0010, 0x0000_0008), // immutable
    (0x0000_0020, 0x0000_0010), // append only
    (0x0000_0008, 0x0000_0020), // sync
    (0x0000_0080, 0x0000_0040), // no atime
    (0x0000_0040, 0x0000_0080), // no dump
    (0x2000_0000, 0x0000_0200), // project inheritance
    (0x0200_0000, 0x0000_8000), // DAX
];

/// Whether an ioctl changes flags.
pub(crate) fn sets_flags(command: u32) -> bool {
    SET_FLAGS.contains(&command) || command == SET_XFLAGS
}

impl Server {
    /// Carries out an ioctl; what it returns is for the caller's buffer.
    pub(crate) fn ioctl(
        &self,
        caller: Caller,
        node: NodeId,
        command: u32,
        input: &[u8],
    ) -> Answer<Vec<u8>> {
        self.counters.count(Operation::Ioctl);
        let inode = self.inode(node)?;
        if GET_FLAGS.contains(&command) {
            let attr = self.check(inode.attr())?;
            return Ok(attr.flags.to_ne_bytes().to_vec());
        }
        if command == GET_XFLAGS {
            let attr = self.check(inode.attr())?;
            return Ok(fsxattr(attr.flags, attr.project).to_vec());
        }
        let changes = if SET_FLAGS.contains(&command) {
            SetAttr {
                flags: Some(word(input, 0)?),
                ..SetAttr::default()
            }
        } else if command == SET_XFLAGS {
            let attr = self.check(inode.attr())?;
            SetAttr {
                flags: Some(with_xflags(attr.flags, word(input, 0)?)),
                project: Some(word(input, FSXATTR_PROJECT)?),
                ..SetAttr::default()
            }
        } else {
            return Err(Errno::NOTTY);
        };
        self.must_be_writable()?;
        self.check(inode.set_attr(&Self::context(caller, 0), &changes))?;
        Ok(Vec::new())
    }
}

/// The 32 bits at byte `at`.
fn word(bytes: &[u8], at: usize) -> Answer<u32> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u32::from_ne_bytes(*word.ok_or(Errno::INVAL)?))
}

/// `flags` with those that have a counterpart as `xflags` has them.
fn with_xflags(flags: u32, xflags: u32) -> u32 {
    XFLAGS.iter().fold(flags, |flags, (flag, xflag)| {
        if xflags & xflag == 0 {
            flags & !flag
        } else {
            flags | flag
        }
    })
}

fn fsxattr(flags: u32, project: u32) -> [u8; FSXATTR_BYTES] {
    let set = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0);
    let xflags = set.fold(0, |xflags, (_, xflag)| xflags | xflag);
    let mut bytes = [0; FSXATTR_BYTES];
    bytes[..4].copy_from_slice(&u32::to_ne_bytes(xflags));
    bytes[FSXATTR_PROJECT..][..4].copy_from_slice(&project.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_project_are_where_linux_looks_for_them() {
        let bytes = fsxattr(0x2000_0090, 0x0102_0304);
        assert_eq!(bytes[..4], 0x0000_0248_u32.to_ne_bytes());
        assert_eq!(bytes[12..16], 0x0102_0304_u32.to_ne_bytes());
        assert!(bytes[16..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn flags_without_a_counterpart_are_kept() {
        assert_eq!(with_xflags(0x0008_0090, 0x0000_0010), 0x0008_0020);
        assert!(word(&[0; 15], FSXATTR_PROJECT).is_err());
    }
}
