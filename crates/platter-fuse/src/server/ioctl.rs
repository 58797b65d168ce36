//! The ioctls that reach a FUSE filesystem: inode flags, projects and generations, as `chattr` and
//! `lsattr` use them, the label, and discarding and shutting down. See `linux/fs.h`.

#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use std::sync::atomic::Ordering;

use platter_vfs::{ExtendedFlags, Inode, SetAttr, Trim};
use rustix::io::Errno;

use super::{Answer, Caller, Server};
use crate::Operation;
use crate::node::NodeId;

/// An ioctl that is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    GetFlags,
    SetFlags,
    /// `FS_IOC_FSGETXATTR`.
    GetXflags,
    /// `FS_IOC_FSSETXATTR`.
    SetXflags,
    GetGeneration,
    GetLabel,
    SetLabel,
    /// `FITRIM`.
    Trim,
    Shutdown,
}

/// By their numbers; some have one more, by which the kernel asks on behalf of a 32-bit program.
const COMMANDS: [(u32, Command); 14] = [
    (0x8008_6601, Command::GetFlags),      // FS_IOC_GETFLAGS
    (0x8004_6601, Command::GetFlags),      // FS_IOC32_GETFLAGS
    (0x4008_6602, Command::SetFlags),      // FS_IOC_SETFLAGS
    (0x4004_6602, Command::SetFlags),      // FS_IOC32_SETFLAGS
    (0x801c_581f, Command::GetXflags),     // FS_IOC_FSGETXATTR
    (0x401c_5820, Command::SetXflags),     // FS_IOC_FSSETXATTR
    (0x8008_7601, Command::GetGeneration), // FS_IOC_GETVERSION
    (0x8004_7601, Command::GetGeneration), // FS_IOC32_GETVERSION
    (0x8008_6603, Command::GetGeneration), // EXT3_IOC_GETVERSION
    (0x8004_6603, Command::GetGeneration), // EXT3_IOC32_GETVERSION
    (0x8100_9431, Command::GetLabel),      // FS_IOC_GETFSLABEL
    (0x4100_9432, Command::SetLabel),      // FS_IOC_SETFSLABEL
    (0xc018_5879, Command::Trim),          // FITRIM
    (0x8004_587d, Command::Shutdown),      // FS_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
];

/// Bytes of the buffer of a label, `FSLABEL_MAX`.
const LABEL_BYTES: usize = 256;

/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;
/// Where in it the extent size hint, the number of extents, the project and the extent size hint for
/// copies on write lie.
const FSXATTR_EXTENT_SIZE: usize = 4;
const FSXATTR_EXTENTS: usize = 8;
const FSXATTR_PROJECT: usize = 12;
const FSXATTR_COW_EXTENT_SIZE: usize = 16;

/// `FS_*_FL` flags and their `FS_XFLAG_*` counterparts. Those without, as XFS has them, are passed on as
/// they are.
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
    let command = Command::decode(command);
    matches!(command, Some(Command::SetFlags | Command::SetXflags))
}

impl Command {
    fn decode(number: u32) -> Option<Self> {
        let mut commands = COMMANDS.iter();
        let found = commands.find(|(known, _)| *known == number);
        found.map(|(_, command)| *command)
    }

    /// Whether it concerns the whole filesystem, which takes `CAP_SYS_ADMIN`.
    fn takes_admin(self) -> bool {
        matches!(self, Self::SetLabel | Self::Trim | Self::Shutdown)
    }
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
        let command = Command::decode(command).ok_or(Errno::NOTTY)?;
        if command.takes_admin() && !caller.is_admin() {
            return Err(Errno::PERM);
        }
        let inode = self.inode(node)?;
        match command {
            Command::GetFlags => {
                let attr = self.check(inode.attr())?;
                Ok(attr.flags.to_ne_bytes().to_vec())
            }
            Command::GetXflags => {
                let attr = self.check(inode.attr())?;
                let extended = self.check(inode.extended_flags())?;
                Ok(fsxattr(attr.flags, attr.project, extended).to_vec())
            }
            Command::SetFlags => {
                let changes = SetAttr {
                    flags: Some(word(input, 0)?),
                    ..SetAttr::default()
                };
                self.set_flags(caller, &*inode, &changes)
            }
            Command::SetXflags => {
                let attr = self.check(inode.attr())?;
                let xflags = word(input, 0)?;
                let changes = SetAttr {
                    flags: Some(with_xflags(attr.flags, xflags)),
                    project: Some(word(input, FSXATTR_PROJECT)?),
                    xflags: Some(xflags & !common_xflags()),
                    extent_size_bytes: Some(word(input, FSXATTR_EXTENT_SIZE)?),
                    cow_extent_size_bytes: Some(word(input, FSXATTR_COW_EXTENT_SIZE)?),
                    ..SetAttr::default()
                };
                self.set_flags(caller, &*inode, &changes)
            }
            Command::GetGeneration => {
                let generation = self.check(inode.attr())?.generation;
                // An int, whatever size the number of the ioctl speaks of.
                let generation = u32::try_from(generation & u64::from(u32::MAX));
                Ok(generation.unwrap_or_default().to_ne_bytes().to_vec())
            }
            Command::GetLabel => {
                let mut label = self.check(self.fs.label())?;
                label.truncate(LABEL_BYTES - 1);
                label.push(0);
                Ok(label)
            }
            Command::SetLabel => {
                self.must_be_writable()?;
                let end = input.iter().position(|&byte| byte == 0);
                let label = &input[..end.unwrap_or(input.len())];
                self.check(self.fs.set_label(label)).map(|()| Vec::new())
            }
            Command::Trim => self.trim(input),
            Command::Shutdown => self.shut_down(),
        }
    }

    fn set_flags(&self, caller: Caller, inode: &dyn Inode, changes: &SetAttr) -> Answer<Vec<u8>> {
        self.must_be_writable()?;
        self.check(inode.set_attr(&Self::context(caller, 0), changes))?;
        Ok(Vec::new())
    }

    /// The request and the answer are a `struct fstrim_range`: start, length, shortest run.
    fn trim(&self, input: &[u8]) -> Answer<Vec<u8>> {
        self.must_be_writable()?;
        let asked = Trim {
            start_bytes: long(input, 0)?,
            len_bytes: long(input, 8)?,
            min_bytes: long(input, 16)?,
        };
        let trimmed = self.check(self.fs.trim(&asked))?;
        let words = [asked.start_bytes, trimmed, asked.min_bytes];
        Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    /// The flags of the request do not reach us: by its number, its argument is for an answer. So it is
    /// always the strongest form, which makes everything durable before (`FS_SHUTDOWN_FLAGS_DEFAULT`).
    fn shut_down(&self) -> Answer<Vec<u8>> {
        self.shut_down.store(true, Ordering::Relaxed);
        self.check(self.fs.shutdown())?;
        Ok(Vec::new())
    }
}

/// The 32 bits at byte `at`.
fn word(bytes: &[u8], at: usize) -> Answer<u32> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u32::from_ne_bytes(*word.ok_or(Errno::INVAL)?))
}

/// The 64 bits at byte `at`.
fn long(bytes: &[u8], at: usize) -> Answer<u64> {
    let long = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u64::from_ne_bytes(*long.ok_or(Errno::INVAL)?))
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

/// The `FS_XFLAG_*` that have a counterpart.
fn common_xflags() -> u32 {
    XFLAGS.iter().fold(0, |xflags, (_, xflag)| xflags | xflag)
}

fn fsxattr(flags: u32, project: u32, extended: ExtendedFlags) -> [u8; FSXATTR_BYTES] {
    let set = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0);
    let own = extended.xflags & !common_xflags();
    let xflags = set.fold(own, |xflags, (_, xflag)| xflags | xflag);
    let mut bytes = [0; FSXATTR_BYTES];
    for (at, word) in [
        (0, xflags),
        (FSXATTR_EXTENT_SIZE, extended.extent_size_bytes),
        (FSXATTR_EXTENTS, extended.extents),
        (FSXATTR_PROJECT, project),
        (FSXATTR_COW_EXTENT_SIZE, extended.cow_extent_size_bytes),
    ] {
        bytes[at..][..4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_project_are_where_linux_looks_for_them() {
        let extended = ExtendedFlags {
            xflags: 0x0001_0809,
            extent_size_bytes: 0x0004_0000,
            extents: 3,
            cow_extent_size_bytes: 0x0008_0000,
        };
        let bytes = fsxattr(0x2000_0090, 0x0102_0304, extended);
        // Immutable is one of the flags, and not set there.
        let words = [
            0x0001_0a49_u32,
            0x0004_0000,
            3,
            0x0102_0304,
            0x0008_0000,
            0,
            0,
        ];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[..], words);
    }

    #[test]
    fn flags_without_a_counterpart_are_kept() {
        assert_eq!(with_xflags(0x0008_0090, 0x0000_0010), 0x0008_0020);
        assert!(word(&[0; 15], FSXATTR_PROJECT).is_err());
    }
}
