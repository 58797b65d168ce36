//! Between the types of the FUSE crate and ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::fuser::{FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Attr, FallocateMode, FileKind, RenameMode, SetTime, Timestamp, XattrMode};
use rustix::io::Errno;

use crate::server::{Answer, Validity};

/// As good as for ever, and still a number the kernel can add to its clock.
pub(super) const ALWAYS: Duration = Duration::from_secs(1 << 32);

pub(super) fn errno(errno: Errno) -> ::fuser::Errno {
    ::fuser::Errno::from_i32(errno.raw_os_error())
}

pub(super) fn validity(validity: Validity) -> Duration {
    match validity {
        Validity::Always => ALWAYS,
        Validity::Never => Duration::ZERO,
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// The attributes with the number the crate takes for node and inode alike.
pub(super) fn file_attr(number: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: attr.size_bytes,
        blocks: attr.sectors,
        atime: system_time(attr.accessed),
        mtime: system_time(attr.modified),
        ctime: system_time(attr.changed),
        crtime: system_time(attr.created.unwrap_or_default()),
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.permissions & 0o7777).unwrap_or(0),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.device),
        blksize: attr.io_block_bytes,
        flags: 0,
    }
}

/// Attributes of a file of which nothing but number and kind is known.
pub(super) fn bare_attr(number: u64, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// A device number in the 32 bits of the protocol: the minor's upper bits lie above the major.
pub(super) fn encode_device(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

pub(super) fn decode_device(encoded: u32) -> DeviceNumber {
    DeviceNumber {
        major: (encoded >> 8) & 0xfff,
        minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    }
}

pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(nanoseconds))
        .unwrap_or(UNIX_EPOCH)
}

/// The time of a request. For times before 1970 the crate takes the nanoseconds away from the
/// seconds instead of adding them; this undoes it.
pub(super) fn requested_time(time: SystemTime) -> Timestamp {
    let (sign, distance) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (1, after),
        Err(before) => (-1, before.duration()),
    };
    Timestamp {
        seconds: sign * i64::try_from(distance.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: distance.subsec_nanos(),
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(requested_time(time)),
    }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Answer<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else if flags == RenameFlags::RENAME_WHITEOUT {
        Ok(RenameMode::Whiteout)
    } else {
        Err(Errno::INVAL)
    }
}

/// The mode bits of `fallocate(2)`.
pub(super) fn fallocate_mode(mode: i32) -> Answer<FallocateMode> {
    Ok(match mode {
        0x00 => FallocateMode::Allocate { keep_size: false },
        0x01 => FallocateMode::Allocate { keep_size: true },
        0x03 => FallocateMode::PunchHole,
        0x08 => FallocateMode::CollapseRange,
        0x10 => FallocateMode::ZeroRange { keep_size: false },
        0x11 => FallocateMode::ZeroRange { keep_size: true },
        0x20 => FallocateMode::InsertRange,
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// `XATTR_CREATE` and `XATTR_REPLACE`.
pub(super) fn xattr_mode(flags: i32) -> Answer<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(8, 1), (0, 0), (259, 70_000), (0xfff, 0xf_ffff)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(decode_device(encode_device(device)), device);
        }
        let disk = DeviceNumber { major: 8, minor: 1 };
        assert_eq!(encode_device(disk), 0x801);
    }

    #[test]
    fn times_before_1970_come_and_go_right() {
        let time = Timestamp {
            seconds: -2,
            nanoseconds: 750_000_000,
        };
        let before = UNIX_EPOCH - Duration::from_millis(1_250);
        assert_eq!(system_time(time), before);
        // The way the crate hands over -2 s and 750 ms.
        let handed_over = UNIX_EPOCH - Duration::new(2, 750_000_000);
        assert_eq!(requested_time(handed_over), time);
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert!(rename_mode(RenameFlags::all()).is_err());
        assert!(fallocate_mode(0x28).is_err());
        assert!(xattr_mode(3).is_err());
    }
}
